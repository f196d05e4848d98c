/* Attention over edges row by row: of an edge only P is kept. And what both ways over edges share. */
#include "baseline_edge.h"

#include <string.h>

/* --- shared: the table by code --- */

void mg_model_edge_table(float *table, const mg_model_baseline *b, const mg_attn_call *call)
{
    for (int32_t c = 0; c < b->map.codes; c++)
        for (int32_t h = 0; h < b->heads; h++)
            table[c * b->heads + h] = call->table[h * b->map.codes + c];
}

void mg_model_edge_part_table(const mg_model_baseline *b, float *parts, int part, const float *ds, const uint8_t *codes,
                              int64_t count)
{
    parts += (int64_t)part * TABLE_ENTRIES * b->heads;
    memset(parts, 0, (size_t)(TABLE_ENTRIES * b->heads) * sizeof *parts);
    b->edges->table_sums(parts, ds, codes, count, b->heads);
}

void mg_model_edge_table_gradient(float *dtable, const mg_model_baseline *b, const float *parts)
{
    for (int32_t h = 0; h < b->heads; h++)
        for (int32_t c = 0; c < b->map.codes; c++) {
            float sum = 0;
            for (int64_t part = 0; part < BASELINE_PARTS; part++)
                sum += parts[(part * TABLE_ENTRIES + c) * b->heads + h];
            dtable[h * b->map.codes + c] = sum;
        }
}

/* --- rows --- */

static void forward_row(const mg_model_baseline *b, const mg_attn_call *call, const float *table, int64_t i)
{
    const int64_t e = b->map.near_starts[i], count = b->map.near_starts[i + 1] - e;
    const int32_t *keys = b->map.near_columns + e, heads = b->heads, dim = b->dim;
    float *p = b->p[call->dropout.layer] + e * heads;
    b->edges->row_scores(p, head_at(call->q, 0, i), call->k.data, call->k.token_stride, keys, count, heads, dim);
    b->edges->add_bias(p, b->map.near_codes + e, table, call->scale, count, heads);
    b->edges->softmax(p, count, heads);
    b->edges->sum_rows(head_at(call->out, 0, i), call->v.data, call->v.token_stride, keys, p, NULL, count, heads, dim);
}

/* dS of the pairs of a query, times the scale for what follows, and its dq. */
static void backward_row(const mg_model_baseline *b, const mg_attn_call *call, float *ds, int64_t i)
{
    const int64_t e = b->map.near_starts[i], count = b->map.near_starts[i + 1] - e;
    const int32_t *keys = b->map.near_columns + e, heads = b->heads, dim = b->dim;
    float *mine = ds + e * heads;
    b->edges->row_scores(mine, head_at(call->dout, 0, i), call->v.data, call->v.token_stride, keys, count, heads, dim);
    b->edges->softmax_backward(mine, b->p[call->dropout.layer] + e * heads, count, heads);
    b->edges->sum_rows(head_at(call->dq, 0, i), call->k.data, call->k.token_stride, keys, mine, NULL, count, heads,
                       dim);
}

static void scale_row(mg_attn_tensor t, int64_t row, int64_t columns, float by)
{
    float *x = head_at(t, 0, row);
    for (int64_t c = 0; c < columns; c++)
        x[c] *= by;
}

static void backward_column(const mg_model_baseline *b, const mg_attn_call *call, const float *ds, int64_t j)
{
    const int64_t x = b->key_starts[j], count = b->key_starts[j + 1] - x;
    const int32_t *queries = b->key_queries + x, *pairs = b->key_pairs + x, heads = b->heads, dim = b->dim;
    const float *p = b->p[call->dropout.layer];
    b->edges->sum_rows(head_at(call->dk, 0, j), call->q.data, call->q.token_stride, queries, ds, pairs, count, heads,
                       dim);
    b->edges->sum_rows(head_at(call->dv, 0, j), call->dout.data, call->dout.token_stride, queries, p, pairs, count,
                       heads, dim);
    scale_row(call->dk, j, (int64_t)heads * dim, call->scale);
}

int mg_model_edge_rows_forward(const mg_model_baseline *b, const mg_attn_call *call)
{
    float *table = call->workspace;
    const int threads = mg_model_threads(call->threads);
    (void)threads;
    mg_model_edge_table(table, b, call);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int part = 0; part < BASELINE_PARTS; part++)
        for (int64_t i = b->row_parts[part]; i < b->row_parts[part + 1]; i++)
            forward_row(b, call, table, i);
    return 0;
}

static void backward_part(const mg_model_baseline *b, const mg_attn_call *call, float *ds, float *parts, int part)
{
    const int64_t *starts = b->map.near_starts, begin = b->row_parts[part], end = b->row_parts[part + 1];
    for (int64_t i = begin; i < end; i++) {
        backward_row(b, call, ds, i);
        scale_row(call->dq, i, (int64_t)b->heads * b->dim, call->scale);
    }
    mg_model_edge_part_table(b, parts, part, ds + starts[begin] * b->heads, b->map.near_codes + starts[begin],
                             starts[end] - starts[begin]);
}

int mg_model_edge_rows_backward(const mg_model_baseline *b, const mg_attn_call *call)
{
    float *ds = call->workspace, *parts = ds + b->pairs * b->heads;
    const int threads = mg_model_threads(call->threads);
    (void)threads;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic, 1)
        for (int part = 0; part < BASELINE_PARTS; part++)
            backward_part(b, call, ds, parts, part);
#pragma omp for schedule(dynamic, 1)
        for (int part = 0; part < BASELINE_PARTS; part++)
            for (int64_t j = b->key_parts[part]; j < b->key_parts[part + 1]; j++)
                backward_column(b, call, ds, j);
    }
    mg_model_edge_table_gradient(call->dtable, b, parts);
    return 0;
}
