/* Attention by gather and scatter over edges. */
#include "bench.h"
#include "passes.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 64 }; /* rows a thread takes at once */

/* Softmax of the scores [edge][head] of one row, head by head. */
static void row_softmax(float *p, int64_t count, int32_t heads)
{
    for (int32_t h = 0; h < heads; h++) {
        float most = -INFINITY, sum = 0;
        for (int64_t e = 0; e < count; e++)
            most = fmaxf(most, p[e * heads + h]);
        for (int64_t e = 0; e < count; e++)
            sum += p[e * heads + h] = expf(p[e * heads + h] - most);
        for (int64_t e = 0; e < count; e++)
            p[e * heads + h] /= sum;
    }
}

static void forward_row(const bench_edges *a, const passes *pass, int64_t i)
{
    int64_t begin = a->starts[i], end = a->starts[i + 1], row = (int64_t)a->heads * a->dim;
    for (int64_t e = begin; e < end; e++)
        for (int32_t h = 0; h < a->heads; h++)
            a->p[e * a->heads + h] =
                a->table[h * a->codes + a->edge_codes[e]] +
                a->scale * pass->dot(a->q + i * row + h * a->dim, a->k + a->columns[e] * row + h * a->dim, a->dim);
    row_softmax(a->p + begin * a->heads, end - begin, a->heads);
    memset(a->out + i * row, 0, (size_t)row * sizeof(float));
    for (int64_t e = begin; e < end; e++)
        for (int32_t h = 0; h < a->heads; h++)
            pass->add(a->out + i * row + h * a->dim, a->v + a->columns[e] * row + h * a->dim, a->p[e * a->heads + h],
                      a->dim);
}

void bench_edges_forward(const bench_edges *a, int threads)
{
    const passes *pass = bench_passes();
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic, CHUNK)
    for (int64_t i = 0; i < a->tokens; i++)
        forward_row(a, pass, i);
}

/* dS of the edges of a query, and its dq; table holds this thread's sums. */
static void backward_row(const bench_edges *a, const passes *pass, int64_t i, float *table)
{
    int64_t row = (int64_t)a->heads * a->dim;
    memset(a->dq + i * row, 0, (size_t)row * sizeof(float));
    for (int32_t h = 0; h < a->heads; h++) {
        int64_t mine = i * row + h * a->dim;
        float d = pass->dot(a->dout + mine, a->out + mine, a->dim);
        for (int64_t e = a->starts[i]; e < a->starts[i + 1]; e++) {
            int64_t other = a->columns[e] * row + h * a->dim;
            float ds = a->p[e * a->heads + h] * (pass->dot(a->dout + mine, a->v + other, a->dim) - d);
            a->ds[e * a->heads + h] = ds;
            table[h * a->codes + a->edge_codes[e]] += ds;
            pass->add(a->dq + mine, a->k + other, a->scale * ds, a->dim);
        }
    }
}

static void backward_column(const bench_edges *a, const passes *pass, int64_t j)
{
    int64_t row = (int64_t)a->heads * a->dim;
    memset(a->dk + j * row, 0, (size_t)row * sizeof(float));
    memset(a->dv + j * row, 0, (size_t)row * sizeof(float));
    for (int64_t x = a->transposed_starts[j]; x < a->transposed_starts[j + 1]; x++) {
        int64_t from = a->transposed_rows[x] * row, e = a->transposed_edges[x];
        for (int32_t h = 0; h < a->heads; h++) {
            pass->add(a->dk + j * row + h * a->dim, a->q + from + h * a->dim, a->scale * a->ds[e * a->heads + h],
                      a->dim);
            pass->add(a->dv + j * row + h * a->dim, a->dout + from + h * a->dim, a->p[e * a->heads + h], a->dim);
        }
    }
}

/* Thread t takes the t-th part of the rows, so that its table sums are its own. */
void bench_edges_backward(const bench_edges *a, int threads)
{
    const passes *pass = bench_passes();
    int64_t entries = (int64_t)a->heads * a->codes;
    memset(a->table_partials, 0, (size_t)(threads * entries) * sizeof(float));
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++)
        for (int64_t i = a->tokens * t / threads; i < a->tokens * (t + 1) / threads; i++)
            backward_row(a, pass, i, a->table_partials + t * entries);
#pragma omp parallel for num_threads(threads) schedule(dynamic, CHUNK)
    for (int64_t j = 0; j < a->tokens; j++)
        backward_column(a, pass, j);
    for (int64_t x = 0; x < entries; x++) {
        a->dtable[x] = 0;
        for (int t = 0; t < threads; t++)
            a->dtable[x] += a->table_partials[t * entries + x];
    }
}

void bench_edges_transpose(int64_t *transposed_starts, int32_t *transposed_rows, int64_t *transposed_edges,
                           int64_t tokens, const int64_t *starts, const int32_t *columns)
{
    memset(transposed_starts, 0, (size_t)(tokens + 1) * sizeof *transposed_starts);
    for (int64_t e = 0; e < starts[tokens]; e++)
        transposed_starts[columns[e] + 1]++;
    for (int64_t j = 0; j < tokens; j++)
        transposed_starts[j + 1] += transposed_starts[j];
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t e = starts[i]; e < starts[i + 1]; e++) {
            int64_t to = transposed_starts[columns[e]]++;
            transposed_rows[to] = (int32_t)i;
            transposed_edges[to] = e;
        }
    for (int64_t j = tokens; j > 0; j--)
        transposed_starts[j] = transposed_starts[j - 1];
    transposed_starts[0] = 0;
}
