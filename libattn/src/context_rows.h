/* Rows of fp32 tensors [row][head][dim], in parallel: copied, added, merged. */
#ifndef MG_ATTN_CONTEXT_ROWS_H
#define MG_ATTN_CONTEXT_ROWS_H
#include "megagraph/attn.h"

/* Rows as they travel: [rows][heads][dim]. */
static inline mg_attn_tensor packed_rows(float *data, int32_t heads, int32_t dim)
{
    return (mg_attn_tensor){.data = data, .token_stride = (int64_t)heads * dim, .head_stride = dim};
}
/* The same rows from a later row or head on. */
static inline mg_attn_tensor rows_from(mg_attn_tensor t, int64_t row, int32_t head)
{
    if (t.data)
        t.data = (float *)t.data + row * t.token_stride + head * t.head_stride;
    return t;
}

void mg_attn_rows_copy(mg_attn_tensor to, mg_attn_tensor from, int64_t rows, int32_t heads, int32_t dim, int threads);
/* Row i from row list[i]. */
void mg_attn_rows_gather(mg_attn_tensor to, mg_attn_tensor from, const int32_t *list, int64_t rows, int32_t heads,
                         int32_t dim, int threads);
void mg_attn_rows_zero(mg_attn_tensor to, int64_t rows, int32_t heads, int32_t dim, int threads);
void mg_attn_rows_add(mg_attn_tensor to, mg_attn_tensor from, int64_t rows, int32_t heads, int32_t dim, int threads);
/* Row i to row list[i]; no row is listed twice. */
void mg_attn_rows_scatter_add(mg_attn_tensor to, mg_attn_tensor from, const int32_t *list, int64_t rows, int32_t heads,
                              int32_t dim, int threads);
/* mg_attn_merge */
void mg_attn_rows_merge(mg_attn_tensor out, float *lse, mg_attn_tensor part, const float *part_lse, int64_t rows,
                        int32_t heads, int32_t dim, int threads);

#endif
