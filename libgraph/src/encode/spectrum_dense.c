/* Small components: the matrix is written out. */
#include <string.h>

#include "encode/spectrum.h"

int64_t mg_spectrum_dense_scratch(int64_t nodes) { return nodes * (2 * nodes + 4); }

/* I - D^-1/2 A D^-1/2, with the trivial eigenvalue moved from 0 to 3, beyond all others. */
static void write_laplacian(double *matrix, const mg_component *component)
{
    int64_t n = component->nodes;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            matrix[i * n + j] = (i == j) + 3 * component->trivial[i] * component->trivial[j];
    for (int64_t i = 0; i < n; i++)
        for (int64_t e = component->starts[i]; e < component->starts[i + 1]; e++) {
            int64_t j = component->columns[e] - component->base;
            matrix[i * n + j] -= component->inverse_root[i] * component->inverse_root[j];
        }
}

int mg_spectrum_dense(double *vectors, int64_t count, const mg_component *component, double *scratch)
{
    int64_t n = component->nodes;
    double *matrix = scratch, *basis = scratch + n * n, *values = basis + n * n;
    write_laplacian(matrix, component);
    int status = mg_spectrum_symmetric(basis, values, matrix, values + n, n);
    if (status)
        return status;
    for (int64_t k = 0; k < count; k++) {
        int64_t smallest = 0;
        for (int64_t i = 1; i < n; i++)
            if (values[i] < values[smallest])
                smallest = i;
        memcpy(vectors + k * n, basis + smallest * n, (size_t)n * sizeof *vectors);
        values[smallest] = 4; /* taken: beyond all */
    }
    return 0;
}
