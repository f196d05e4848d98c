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

static void forward_head(const bench_unfused *a, const passes *pass, int32_t h)
{
    int64_t n = a->tokens, row = (int64_t)a->heads * a->dim;
    float *p = a->p + h * n * n, table[256 + ENTRIES] = {0};
    memcpy(table, a->table + h * a->codes, (size_t)a->codes * sizeof *table);
    for (int64_t i = 0; i < n; i++)
        pass->bias(p + i * n, a->map + i * n, table, n);
    dnnl_sgemm('N', 'T', n, n, a->dim, a->scale, a->q + h * a->dim, row, a->k + h * a->dim, row, 1, p, n);
    for (int64_t i = 0; i < n; i++)
        pass->softmax(p + i * n, n);
    dnnl_sgemm('N', 'N', n, a->dim, n, 1, p, n, a->v + h * a->dim, row, 0, a->out + h * a->dim, row);
}

static void backward_head(const bench_unfused *a, const passes *pass, int32_t h, float *ds)
{
    int64_t n = a->tokens, row = (int64_t)a->heads * a->dim, at = h * a->dim;
    const float *p = a->p + h * n * n;
    float *sums = a->dtable + h * a->codes;
    memset(sums, 0, (size_t)a->codes * sizeof *sums);
    dnnl_sgemm('T', 'N', n, a->dim, n, 1, p, n, a->dout + at, row, 0, a->dv + at, row);
    dnnl_sgemm('N', 'T', n, n, a->dim, 1, a->dout + at, row, a->v + at, row, 0, ds, n);
    for (int64_t i = 0; i < n; i++) {
        float d = pass->dot(a->dout + i * row + at, a->out + i * row + at, a->dim);
        pass->score_gradient(ds + i * n, p + i * n, d, n);
        pass->table_gradient(sums, ds + i * n, a->map + i * n, a->codes, n);
    }
    dnnl_sgemm('N', 'N', n, a->dim, n, a->scale, ds, n, a->k + at, row, 0, a->dq + at, row);
    dnnl_sgemm('T', 'N', n, a->dim, n, a->scale, ds, n, a->q + at, row, 0, a->dk + at, row);
}

void bench_unfused_forward(const bench_unfused *a, int threads)
{
    const passes *pass = bench_passes();
    begin(threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int32_t h = 0; h < a->heads; h++)
        forward_head(a, pass, h);
}

void bench_unfused_backward(const bench_unfused *a, int threads)
{
    const passes *pass = bench_passes();
    begin(threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int32_t h = 0; h < a->heads; h++)
        backward_head(a, pass, h, a->ds + thread_index() * a->tokens * a->tokens);
}
