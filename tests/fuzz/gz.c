/* gz text, by way of an edge list: the inflating reader meets damaged streams. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_write("set.edges.gz", data, size);
    fuzz_open(fuzz_path("set.edges.gz"), &(mg_dataset_desc){.format = "edges"});
    return 0;
}
