/* Attention by gather and scatter over edges. */
#include "baseline_internal.h"

#include <math.h>
#include <string.h>

enum { EDGE_ROWS = 64 }; /* a thread takes at once */

/* Softmax of the scores [pair][head] of one row, head by head. */
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

static void zero_row(mg_attn_tensor t, int64_t row, int32_t heads, int32_t dim)
{
    for (int32_t h = 0; h < heads; h++)
        memset(head_at(t, h, row), 0, (size_t)dim * sizeof(float));
}

static void forward_row(const mg_model_baseline *b, const mg_attn_call *call, int64_t i)
{
    const int64_t begin = b->map.near_starts[i], end = b->map.near_starts[i + 1];
    const int32_t *keys = b->map.near_columns, heads = b->heads, codes = b->map.codes;
    float *p = b->p[call->dropout.layer];
    for (int64_t e = begin; e < end; e++)
        for (int32_t h = 0; h < heads; h++)
            p[e * heads + h] =
                call->table[h * codes + b->map.near_codes[e]] +
                call->scale * b->pass->dot(head_at(call->q, h, i), head_at(call->k, h, keys[e]), call->dim);
    row_softmax(p + begin * heads, end - begin, heads);
    zero_row(call->out, i, heads, call->value_dim);
    for (int64_t e = begin; e < end; e++)
        for (int32_t h = 0; h < heads; h++)
            b->rows->add_scaled(head_at(call->out, h, i), head_at(call->v, h, keys[e]), p[e * heads + h],
                                call->value_dim);
}

int mg_model_edge_forward(const mg_model_baseline *b, const mg_attn_call *call)
{
    int threads = mg_model_threads(call->threads);
    (void)threads;
#pragma omp parallel for num_threads(threads) schedule(dynamic, EDGE_ROWS)
    for (int64_t i = 0; i < b->tokens; i++)
        forward_row(b, call, i);
    return 0;
}

/* dS of the pairs of a query, and its dq; table: sums of this part. */
static void backward_row(const mg_model_baseline *b, const mg_attn_call *call, float *ds, float *table, int64_t i)
{
    const int32_t heads = b->heads, codes = b->map.codes;
    const float *p = b->p[call->dropout.layer];
    zero_row(call->dq, i, heads, call->dim);
    for (int32_t h = 0; h < heads; h++) {
        const float *dout = head_at(call->dout, h, i);
        const float d = b->pass->dot(dout, head_at(call->out, h, i), call->value_dim);
        for (int64_t e = b->map.near_starts[i]; e < b->map.near_starts[i + 1]; e++) {
            const int64_t j = b->map.near_columns[e];
            const float dp = b->pass->dot(dout, head_at(call->v, h, j), call->value_dim);
            const float x = p[e * heads + h] * (dp - d);
            ds[e * heads + h] = x;
            table[h * codes + b->map.near_codes[e]] += x;
            b->rows->add_scaled(head_at(call->dq, h, i), head_at(call->k, h, j), call->scale * x, call->dim);
        }
    }
}

static void backward_column(const mg_model_baseline *b, const mg_attn_call *call, const float *ds, int64_t j)
{
    const int32_t heads = b->heads;
    const float *p = b->p[call->dropout.layer];
    zero_row(call->dk, j, heads, call->dim);
    zero_row(call->dv, j, heads, call->value_dim);
    for (int64_t x = b->key_starts[j]; x < b->key_starts[j + 1]; x++) {
        const int64_t i = b->key_queries[x], e = b->key_pairs[x] * heads;
        for (int32_t h = 0; h < heads; h++) {
            b->rows->add_scaled(head_at(call->dk, h, j), head_at(call->q, h, i), call->scale * ds[e + h], call->dim);
            b->rows->add_scaled(head_at(call->dv, h, j), head_at(call->dout, h, i), p[e + h], call->value_dim);
        }
    }
}

int mg_model_edge_backward(const mg_model_baseline *b, const mg_attn_call *call)
{
    const int64_t entries = (int64_t)b->heads * b->map.codes, n = b->tokens;
    float *ds = call->workspace, *parts = ds + b->pairs * b->heads;
    int threads = mg_model_threads(call->threads);
    (void)threads;
    memset(parts, 0, (size_t)(BASELINE_PARTS * entries) * sizeof *parts);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int part = 0; part < BASELINE_PARTS; part++)
        for (int64_t i = n * part / BASELINE_PARTS; i < n * (part + 1) / BASELINE_PARTS; i++)
            backward_row(b, call, ds, parts + part * entries, i);
#pragma omp parallel for num_threads(threads) schedule(dynamic, EDGE_ROWS)
    for (int64_t j = 0; j < n; j++)
        backward_column(b, call, ds, j);
    memset(call->dtable, 0, (size_t)entries * sizeof *call->dtable);
    for (int part = 0; part < BASELINE_PARTS; part++)
        b->rows->add(call->dtable, parts + part * entries, entries);
    return 0;
}
