/* Configurations in YAML. What reads must write text that reads back the same. */
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static mg_config config, again;
    mg_options_standard(&config);
    if (mg_config_parse(&config, "fuzz", (const char *)data, size))
        return 0;
    char *text = mg_config_text(&config);
    mg_options_standard(&again);
    fuzz_check(text && mg_config_parse(&again, "again", text, strlen(text)) == 0,
               "a written configuration does not read");
    char *second = mg_config_text(&again);
    fuzz_check(second && !strcmp(text, second), "a written configuration reads back as another");
    free(text);
    free(second);
    return 0;
}
