/* What the fuzz targets share. A target is one file: it includes this and defines LLVMFuzzerTestOneInput;
 * CMakeLists.txt makes two programs of it, fuzz_<name> by libFuzzer (MEGAGRAPH_FUZZ) and replay_<name>, which runs
 * corpus/<name> as a test.
 *
 * An input that stands for several files is cut by lines "=== name": what follows, up to the next, is that file. Only
 * names that the target lists are written; bytes before the first such line are the file called "".
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H
#include <stddef.h>
#include <stdint.h>
#include <megagraph/dataset.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct fuzz_section {
    const char *name;
    const uint8_t *data;
    size_t size;
} fuzz_section;

/* Cuts an input; the sections of names[] (ended by NULL) that are there, first to last. Returns how many (at most
 * most). */
int fuzz_cut(fuzz_section *sections, int most, const uint8_t *data, size_t size, const char *const *names);

/* A folder of this process, in memory where there is one; removed with its files when the process ends. */
const char *fuzz_folder(void);
/* folder/name; four static buffers, used in turn. */
const char *fuzz_path(const char *name);
/* Writes a file below the folder, making the folders between. */
void fuzz_write(const char *name, const uint8_t *data, size_t size);
/* Removes it, if it is there. */
void fuzz_remove(const char *name);

/* Opens what was written, with a memory limit; whatever opens must survive being written and opened again, unchanged.
 */
void fuzz_open(const char *path, const mg_dataset_desc *desc);
void fuzz_round_trip(mg_dataset *data);
/* Limits the memory of libgraph from here on. */
void fuzz_limit_memory(void);
/* Ends the process, saying what is wrong, so that the fuzzer keeps the input. */
void fuzz_check(int holds, const char *what);
#endif
