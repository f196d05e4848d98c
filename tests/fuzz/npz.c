/* .npz: an archive as it is, or "=== member" sections whose first line is the header of an .npy, which we put together:
   the fuzzer then need not invent lengths and checksums. */
#include <stdio.h>
#include <string.h>
#include <zip.h>

#include "fuzz.h"

static const char *const names[] = {"node_features",
                                    "node_labels",
                                    "node_targets",
                                    "edges",
                                    "edge_index",
                                    "edge_features",
                                    "train_masks",
                                    "val_masks",
                                    "test_masks",
                                    "train_idx",
                                    "val_idx",
                                    "test_idx",
                                    "adj_data",
                                    "adj_indices",
                                    "adj_indptr",
                                    "adj_shape",
                                    "attr_data",
                                    "attr_indices",
                                    "attr_indptr",
                                    "attr_shape",
                                    "labels",
                                    "class_names",
                                    "node_names",
                                    "num_nodes",
                                    "directed",
                                    "graph_segments",
                                    "graph_labels",
                                    "graph_targets",
                                    "task",
                                    "level",
                                    NULL};

static void add(zip_t *archive, const fuzz_section *section, uint8_t *array)
{
    const uint8_t *end = memchr(section->data, '\n', section->size);
    size_t length = end ? (size_t)(end + 1 - section->data) : section->size;
    memcpy(array, "\x93NUMPY\x01\x00", 8);
    array[8] = (uint8_t)length;
    array[9] = (uint8_t)(length >> 8);
    memcpy(array + 10, section->data, section->size);
    char name[64];
    snprintf(name, sizeof name, "%s.npy", section->name);
    zip_int64_t index =
        zip_file_add(archive, name, zip_source_buffer(archive, array, section->size + 10, 0), ZIP_FL_OVERWRITE);
    zip_set_file_compression(archive, (zip_uint64_t)index, ZIP_CM_STORE, 0);
}

static void build(const fuzz_section *sections, int count, uint8_t *arrays)
{
    fuzz_write("set.npz", (const uint8_t *)"", 0);
    zip_t *archive = zip_open(fuzz_path("set.npz"), ZIP_CREATE | ZIP_TRUNCATE, NULL);
    fuzz_check(archive != NULL, "no archive");
    for (int s = 0; s < count; s++) {
        add(archive, &sections[s], arrays);
        arrays += sections[s].size + 10;
    }
    fuzz_check(zip_close(archive) == 0, "the archive cannot be written");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t arrays[1 << 17];
    fuzz_section sections[64];
    if (size > 65536)
        return 0;
    int count = size >= 2 && !memcmp(data, "PK", 2) ? 0 : fuzz_cut(sections, 64, data, size, names);
    if (count)
        build(sections, count, arrays);
    else
        fuzz_write("set.npz", data, size);
    fuzz_open(fuzz_path("set.npz"), &(mg_dataset_desc){.format = "npz", .directed = size % 2});
    return 0;
}
