/* OGB folders: each file is a section. */
#include "fuzz.h"

static const char *const names[] = {"raw/edge.csv",
                                    "raw/num-node-list.csv",
                                    "raw/num-edge-list.csv",
                                    "raw/node-feat.csv",
                                    "raw/edge-feat.csv",
                                    "raw/node-label.csv",
                                    "raw/graph-label.csv",
                                    "split/x/train.csv",
                                    "split/x/valid.csv",
                                    "split/x/test.csv",
                                    NULL};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_section sections[16];
    int count = fuzz_cut(sections, 16, data, size, names);
    for (int n = 0; names[n]; n++)
        fuzz_remove(names[n]);
    for (int s = 0; s < count; s++)
        fuzz_write(sections[s].name, sections[s].data, sections[s].size);
    fuzz_open(fuzz_folder(), &(mg_dataset_desc){.format = "ogb", .directed = size % 2});
    return 0;
}
