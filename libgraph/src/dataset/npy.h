/* Arrays in an .npz archive, read as a stream: a member is never held beside the array that it becomes. */
#ifndef MG_DATASET_NPY_H
#define MG_DATASET_NPY_H
#include <stdint.h>
#include <zip.h>

typedef struct mg_npy {
    const char *path; /* of the archive, for errors */
    char member[64];  /* without .npy */
    zip_file_t *file; /* open between mg_npy_open and mg_npy_close */
    char kind;        /* f, i, u, b, S or U, as numpy names them */
    int64_t size;     /* bytes of an element */
    int swapped;      /* the other byte order than ours */
    int fortran;
    int dims;         /* 0 to 3 */
    int64_t shape[3]; /* 1 beyond dims */
    int64_t count;
} mg_npy;

/* 1: array->member is there and its header is read; 0: the archive has none; negative: it is there but cannot be read.
 */
int mg_npy_open(mg_npy *array, zip_t *archive, const char *path, const char *member);
void mg_npy_close(mg_npy *array);

/* The whole array in C order; numbers of any kind. Whole numbers that are asked for must be whole; a double holds
   integers up to 2^53, larger ones are refused. */
int mg_npy_read_floats(float *values, mg_npy *array);
int mg_npy_read_doubles(double *values, mg_npy *array);
int mg_npy_read_integers(int64_t *values, mg_npy *array);
/* Strings (kind S or U) as one block, UTF-8. */
int mg_npy_read_strings(char ***strings, mg_npy *array);

/* -EINVAL and "path: member x: ...". */
int mg_npy_fail(const mg_npy *array, const char *format, ...) __attribute__((format(printf, 2, 3)));
#endif
