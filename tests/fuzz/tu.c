/* TU folders: each file is a section. */
#include "fuzz.h"

static const char *const names[] = {"DS_A.txt",           "DS_graph_indicator.txt", "DS_graph_labels.txt",
                                    "DS_node_labels.txt", "DS_node_attributes.txt", "DS_graph_attributes.txt",
                                    "DS_edge_labels.txt", "DS_edge_attributes.txt", NULL};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_section sections[16];
    int count = fuzz_cut(sections, 16, data, size, names);
    for (int n = 0; names[n]; n++)
        fuzz_remove(names[n]);
    for (int s = 0; s < count; s++)
        fuzz_write(sections[s].name, sections[s].data, sections[s].size);
    fuzz_open(fuzz_folder(), &(mg_dataset_desc){.format = "tu", .directed = size % 2});
    return 0;
}
