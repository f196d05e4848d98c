/* Checkpoints: the manifest, the header of safetensors against the bytes that follow, and both as files. */
#include <string.h>

#include "checkpoint.h"
#include "fuzz.h"
#include "safetensors.h"

static void open_tensors(const uint8_t *data, size_t size)
{
    mg_safetensors *file;
    int32_t rank;
    int64_t shape[3];
    float values[4];
    fuzz_write("a.safetensors", data, size);
    if (mg_safetensors_open(&file, fuzz_path("a.safetensors")))
        return;
    if (mg_safetensors_shape(&rank, shape, file, "a") == 0 && rank == 1 && shape[0] <= 4)
        mg_safetensors_read(values, file, &(mg_tensor){.name = "a", .rank = 1, .shape = {shape[0]}});
    mg_safetensors_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"manifest", NULL};
    fuzz_section sections[4];
    mg_checkpoint state;
    int count = fuzz_cut(sections, 4, data, size, names);
    for (int s = 0; s < count; s++) {
        if (sections[s].name[0]) {
            mg_checkpoint_parse(&state, "fuzz", (const char *)sections[s].data, (int64_t)sections[s].size);
            mg_checkpoint_clear(&state);
            continue;
        }
        open_tensors(sections[s].data, sections[s].size);
        mg_safetensors_check("fuzz", (const char *)sections[s].data, (int64_t)sections[s].size, 8);
    }
    return 0;
}
