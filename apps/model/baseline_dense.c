/* Attention as a chain of matrix products and passes. A block of rows is all of them, or BASELINE_ROWS. */
#include "baseline_internal.h"

#include <oneapi/dnnl/dnnl.h>
#include <string.h>

/* One head. */
typedef struct head {
    const mg_model_baseline *b;
    const mg_attn_call *call;
    int32_t index;
    float *p;              /* [tokens][tokens] */
    float *first, *second; /* dense: matrices, bias, then dP and dS; dense_rows: first is BASELINE_ROWS rows */
    int status;
} head;

static int whole(const head *h) { return h->b->kind == MG_MODEL_BASELINE_DENSE; }

static int64_t block_rows(const head *h, int64_t begin)
{
    int64_t left = h->b->tokens - begin;
    return whole(h) || left < BASELINE_ROWS ? left : BASELINE_ROWS;
}

/* c [m][n] = scale op(a) op(b) + keep c; the strides of tensors are those of their rows. */
static void product(head *h, char a_transposed, char b_transposed, int64_t m, int64_t n, int64_t k, float scale,
                    const float *a, int64_t lda, const float *b, int64_t ldb, float keep, float *c, int64_t ldc)
{
    dnnl_status_t status = dnnl_sgemm(a_transposed, b_transposed, m, n, k, scale, a, lda, b, ldb, keep, c, ldc);
    h->status = h->status ? h->status : (int)status;
}

static head head_of(const mg_model_baseline *b, const mg_attn_call *call, int32_t index, int backward)
{
    const int64_t matrix = b->tokens * b->tokens;
    float *work = call->workspace;
    head h = {b, call, index, b->p[call->dropout.layer] + index * matrix, NULL, NULL, 0};
    if (whole(&h)) {
        h.first = work + index * matrix;
        h.second = backward ? work + (b->heads + index) * matrix : NULL;
    } else if (backward) {
        h.first = h.second = work + (int64_t)mg_model_this_thread() * BASELINE_ROWS * b->tokens;
    }
    return h;
}

static void forward_head(head *h)
{
    const mg_model_baseline *b = h->b;
    const mg_attn_call *call = h->call;
    const int64_t n = b->tokens;
    const uint8_t *codes = b->map.dense;
    float table[TABLE_ENTRIES];
    mg_model_baseline_table(table, b, call, h->index);
    for (int64_t i = 0; i < n && whole(h); i++)
        b->pass->bias(h->first + i * n, codes + i * b->map.dense_stride, table, b->map.codes, n);
    for (int64_t begin = 0, rows; begin < n; begin += rows) {
        rows = block_rows(h, begin);
        float *p = h->p + begin * n;
        product(h, 'N', 'T', rows, n, call->dim, call->scale, head_at(call->q, h->index, begin), call->q.token_stride,
                head_at(call->k, h->index, 0), call->k.token_stride, 0, p, n);
        for (int64_t i = 0; i < rows; i++)
            if (whole(h))
                b->pass->softmax_biased(p + i * n, h->first + i * n, n);
            else
                b->pass->softmax_coded(p + i * n, codes + (begin + i) * b->map.dense_stride, table, b->map.codes, n);
        product(h, 'N', 'N', rows, call->value_dim, n, 1, p, n, head_at(call->v, h->index, 0), call->v.token_stride, 0,
                head_at(call->out, h->index, begin), call->out.token_stride);
    }
}

static void backward_head(head *h)
{
    const mg_model_baseline *b = h->b;
    const mg_attn_call *call = h->call;
    const int64_t n = b->tokens;
    const int32_t x = h->index, dim = call->dim, value_dim = call->value_dim;
    float *table_sums = call->dtable + (int64_t)x * b->map.codes;
    memset(table_sums, 0, (size_t)b->map.codes * sizeof *table_sums);
    for (int64_t begin = 0, rows; begin < n; begin += rows) {
        rows = block_rows(h, begin);
        const float *p = h->p + begin * n, more = begin ? 1 : 0;
        const float *dout = head_at(call->dout, x, begin), *out = head_at(call->out, x, begin);
        product(h, 'T', 'N', n, value_dim, rows, 1, p, n, dout, call->dout.token_stride, more, head_at(call->dv, x, 0),
                call->dv.token_stride);
        product(h, 'N', 'T', rows, n, value_dim, 1, dout, call->dout.token_stride, head_at(call->v, x, 0),
                call->v.token_stride, 0, h->first, n);
        for (int64_t i = 0; i < rows; i++) {
            float d = b->pass->dot(dout + i * call->dout.token_stride, out + i * call->out.token_stride, value_dim);
            float *ds = h->second + i * n;
            b->pass->score_gradient(ds, h->first + i * n, p + i * n, d, n);
            b->pass->table_gradient(table_sums, ds, b->map.dense + (begin + i) * b->map.dense_stride, b->map.codes, n);
        }
        product(h, 'N', 'N', rows, dim, n, call->scale, h->second, n, head_at(call->k, x, 0), call->k.token_stride, 0,
                head_at(call->dq, x, begin), call->dq.token_stride);
        product(h, 'T', 'N', n, dim, rows, call->scale, h->second, n, head_at(call->q, x, begin), call->q.token_stride,
                more, head_at(call->dk, x, 0), call->dk.token_stride);
    }
}

/* Heads are shared out to the threads; a product is one thread's. */
static int run_heads(const mg_model_baseline *b, const mg_attn_call *call, int backward)
{
    int failed = 0, threads = mg_model_threads(call->threads);
    (void)threads;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        mg_model_work_alone();
#pragma omp for schedule(dynamic, 1)
        for (int32_t x = 0; x < b->heads; x++) {
            head h = head_of(b, call, x, backward);
            if (backward)
                backward_head(&h);
            else
                forward_head(&h);
            failed |= h.status;
        }
    }
    return failed ? fail(-EIO, "baseline dense: oneDNN's sgemm failed with status %d", failed) : 0;
}

int mg_model_dense_forward(const mg_model_baseline *b, const mg_attn_call *call) { return run_heads(b, call, 0); }
int mg_model_dense_backward(const mg_model_baseline *b, const mg_attn_call *call) { return run_heads(b, call, 1); }
