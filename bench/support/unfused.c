/* Attention as a chain of matrix products and passes. */
#include "bench.h"
#include "passes.h"

#include <oneapi/dnnl/dnnl.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
static int thread_index(void) { return omp_get_thread_num(); }
/* oneDNN starts threads of its own where it is not called from one of several: with one thread of ours it must not. */
static void begin(int threads) { omp_set_num_threads(threads); }
#else
static int thread_index(void) { return 0; }
static void begin(int threads) { (void)threads; }
#endif

enum { ENTRIES = 16 }; /* of a table in a register */

static int64_t rows_from(const bench_unfused *a, int64_t first)
{
    return a->rows && a->rows < a->tokens - first ? a->rows : a->tokens - first;
}

static void forward_head(const bench_unfused *a, const passes *pass, int32_t h, float *bias)
{
    int64_t n = a->tokens, row = (int64_t)a->heads * a->dim, at = h * a->dim;
    float table[256 + ENTRIES] = {0};
    memcpy(table, a->table + h * a->codes, (size_t)a->codes * sizeof *table);
    for (int64_t i = 0; i < n && !a->rows; i++)
        pass->bias(bias + i * n, a->map + i * n, table, n);
    for (int64_t first = 0, rows; first < n; first += rows) {
        rows = rows_from(a, first);
        float *p = a->p + (h * n + first) * n;
        dnnl_sgemm('N', 'T', rows, n, a->dim, a->scale, a->q + first * row + at, row, a->k + at, row, 0, p, n);
        for (int64_t i = 0; i < rows; i++)
            if (a->rows)
                pass->biased_softmax(p + i * n, a->map + (first + i) * n, table, n);
            else
                pass->softmax(p + i * n, bias + i * n, n);
        dnnl_sgemm('N', 'N', rows, a->dim, n, 1, p, n, a->v + at, row, 0, a->out + first * row + at, row);
    }
}

static void backward_head(const bench_unfused *a, const passes *pass, int32_t h, float *ds)
{
    int64_t n = a->tokens, row = (int64_t)a->heads * a->dim, at = h * a->dim;
    float *sums = a->dtable + h * a->codes;
    memset(sums, 0, (size_t)a->codes * sizeof *sums);
    for (int64_t first = 0, rows; first < n; first += rows) {
        rows = rows_from(a, first);
        const int64_t here = first * row + at;
        const float *p = a->p + (h * n + first) * n, more = first ? 1 : 0;
        dnnl_sgemm('T', 'N', n, a->dim, rows, 1, p, n, a->dout + here, row, more, a->dv + at, row);
        dnnl_sgemm('N', 'T', rows, n, a->dim, 1, a->dout + here, row, a->v + at, row, 0, ds, n);
        for (int64_t i = 0; i < rows; i++) {
            float d = pass->dot(a->dout + here + i * row, a->out + here + i * row, a->dim);
            pass->score_gradient(ds + i * n, p + i * n, d, n);
            pass->table_gradient(sums, ds + i * n, a->map + (first + i) * n, a->codes, n);
        }
        dnnl_sgemm('N', 'N', rows, a->dim, n, a->scale, ds, n, a->k + at, row, 0, a->dq + here, row);
        dnnl_sgemm('T', 'N', n, a->dim, rows, a->scale, ds, n, a->q + here, row, more, a->dk + at, row);
    }
}

void bench_unfused_forward(const bench_unfused *a, int threads)
{
    const passes *pass = bench_passes();
    begin(threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int32_t h = 0; h < a->heads; h++)
        forward_head(a, pass, h, a->ds + (int64_t)thread_index() * a->tokens * a->tokens);
}

void bench_unfused_backward(const bench_unfused *a, int threads)
{
    const passes *pass = bench_passes();
    begin(threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int32_t h = 0; h < a->heads; h++)
        backward_head(a, pass, h, a->ds + (int64_t)thread_index() * a->tokens * a->tokens);
}
