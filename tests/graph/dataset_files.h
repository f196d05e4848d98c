/* Small files for the tests of readers: a folder of its own for each test program, text, gz, and .npz made byte by
 * byte. */
#ifndef TESTS_GRAPH_DATASET_FILES_H
#define TESTS_GRAPH_DATASET_FILES_H
#include "support/test.h"

#include <megagraph/dataset.h>

/* folder/name, in one of 256 static buffers; the folder is made at the first call and removed at the end. */
const char *file_path(const char *name);
/* Write a file and return its path. Folders in the name are made. */
const char *file_text(const char *name, const char *text);
const char *file_bytes(const char *name, const void *bytes, size_t size);
const char *file_gz(const char *name, const char *text);
/* How many entries the folder has. */
int file_count(void);

/* One member of an .npz: descr and shape as numpy writes them ("<f4", "(2, 3)"), then the bytes. */
typedef struct file_member {
    const char *name, *descr, *shape;
    const void *bytes;
    size_t size;
    int fortran, stored;
} file_member;
#define MEMBER(name, descr, shape, ...)                                                                                \
    {                                                                                                                  \
        name, descr, shape, (__VA_ARGS__), sizeof(__VA_ARGS__), 0, 0                                                   \
    }
const char *file_npz(const char *name, const file_member *members, int count);
#define FILE_NPZ(name, ...)                                                                                            \
    file_npz(name, (file_member[]){__VA_ARGS__}, sizeof((file_member[]){__VA_ARGS__}) / sizeof(file_member))

/* Opens; fails the test with the error line where it does not. */
mg_dataset *open_with(const char *path, const mg_dataset_desc *desc);
mg_dataset *open_plain(const char *path);
/* Fails unless opening gives the status and an error line with all of the words (ended by NULL). */
void refuse(const char *path, const mg_dataset_desc *desc, int status, const char *const *words);
#define REFUSE(path, ...) refuse(path, &(mg_dataset_desc){0}, -EINVAL, (const char *const[]){__VA_ARGS__, NULL})

/* Whether row has an edge to column. */
int has_edge(const mg_dataset *data, int64_t row, int32_t column);
/* Its entry of graph->columns, or the test fails. */
int64_t entry(const mg_dataset *data, int64_t row, int32_t column);
void story_has(const mg_dataset *data, const char *words);
#endif
