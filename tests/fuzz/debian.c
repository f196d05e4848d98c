/* Text of apt-cache dumpavail. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mg_dataset *set = NULL;
    char *text = malloc(size ? size : 1); /* of exactly that size, so that reading on is found */
    if (size)
        memcpy(text, data, size);
    fuzz_limit_memory();
    int status = mg_dataset_import_debian(&set, text, (int64_t)size);
    free(text);
    fuzz_check(status <= 0 && (status == 0) == (set != NULL), "status and dataset disagree");
    if (set)
        fuzz_round_trip(set);
    mg_dataset_close(set);
    return 0;
}
