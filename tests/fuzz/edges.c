/* Edge lists and CSV, with the files of labels and features as sections. */
#include "fuzz.h"

static const char *const names[] = {"", "labels", "features", NULL};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_section sections[8];
    int count = fuzz_cut(sections, 8, data, size, names);
    mg_dataset_desc desc = {.format = "edges", .directed = size % 2};
    fuzz_write("set.edges", (const uint8_t *)"", 0);
    for (int s = 0; s < count; s++) {
        const char *file = sections[s].name[0] == 'l' ? "labels.csv"
                           : sections[s].name[0]      ? "features.csv"
                                                      : "set.edges";
        fuzz_write(file, sections[s].data, sections[s].size);
        if (sections[s].name[0] == 'l')
            desc.labels = fuzz_path(file);
        if (sections[s].name[0] == 'f')
            desc.features = fuzz_path(file);
    }
    fuzz_open(fuzz_path("set.edges"), &desc);
    return 0;
}
