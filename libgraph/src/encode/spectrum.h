/* Eigenvectors of one connected component, by one of two solvers. */
#ifndef MG_GRAPH_SPECTRUM_H
#define MG_GRAPH_SPECTRUM_H
#include <stdint.h>

/* Nodes base .. base + nodes - 1 of a graph: symmetric, no self loops, connected. */
typedef struct mg_component {
    int64_t nodes, base;
    const int64_t *starts;      /* [nodes + 1], places in columns */
    const int32_t *columns;     /* of the whole graph: base and up */
    const double *inverse_root; /* [nodes] degree^-1/2 */
    const double *trivial;      /* [nodes] the eigenvector of eigenvalue 0: degree^1/2, of unit length */
} mg_component;

/* The `count` < nodes non-trivial eigenvectors of smallest eigenvalue, ascending: vectors[count][nodes].
   0, -ENOMEM, or -EIO when the iteration does not converge. */
int mg_spectrum_arpack(double *vectors, int64_t count, const mg_component *component);
int mg_spectrum_dense(double *vectors, int64_t count, const mg_component *component, double *scratch);
int64_t mg_spectrum_dense_scratch(int64_t nodes); /* doubles */

/* All eigenvectors of a symmetric matrix[n][n], which is destroyed: values[n], not sorted, row k of vectors[n][n]
   belongs to values[k]. scratch[3 n]. -EIO when the iteration does not end, which no finite matrix is known to do. */
int mg_spectrum_symmetric(double *vectors, double *values, double *matrix, double *scratch, int64_t n);
#endif
