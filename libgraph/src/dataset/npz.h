/* The members of an .npz dataset, as reader and writer agree on them. */
#ifndef MG_DATASET_NPZ_H
#define MG_DATASET_NPZ_H
#include "npy.h"
#include "parts.h"

typedef struct mg_npz {
    zip_t *archive;
    mg_parts *parts;
    int64_t items; /* nodes or graphs; set once labels are looked for */
    char *used;    /* by place in the archive: was opened */
} mg_npz;

/* Opens one member and remembers that it is used: 1, 0 or negative. */
int mg_npz_member(mg_npy *array, const mg_npz *npz, const char *member);

/* Opens the first of the names (ended by NULL) that is there: 1, 0 or negative. */
int mg_npz_open(mg_npy *array, const mg_npz *npz, const char *const *names);
/* Fails unless the array has the shape rows x columns; negative: any. */
int mg_npz_expect(const mg_npy *array, int dims, int64_t rows, int64_t columns);

/* read_npz_csr.c: adj_*, attr_* (gnn-benchmark). */
int mg_npz_read_csr_edges(mg_npz *npz);    /* 1, 0: no such members, negative */
int mg_npz_read_csr_features(mg_npz *npz); /* likewise */
/* read_npz_split.c: masks and index lists. */
int mg_npz_read_split(mg_npz *npz);
#endif
