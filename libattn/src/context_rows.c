/* Rows of fp32 tensors, in parallel by chunks of rows. */
#include "context_rows.h"
#include "parallel.h"

#include <string.h>

enum { CHUNK = 128, AHEAD = 8 /* listed rows that are fetched before they are needed */ };

typedef struct row_work {
    mg_attn_tensor to, from;
    const int32_t *to_list, *from_list;
    int64_t rows;
    int32_t heads, dim;
    float *lse;
    const float *part_lse;
} row_work;

static float *row_of(const mg_attn_tensor *t, const int32_t *list, int64_t row, int32_t head)
{
    return (float *)t->data + (list ? list[row] : row) * t->token_stride + head * t->head_stride;
}

static int64_t chunk_end(const row_work *w, int64_t chunk)
{
    return (chunk + 1) * CHUNK < w->rows ? (chunk + 1) * CHUNK : w->rows;
}

/* Lines of the row that comes AHEAD rows later; without a list the processor finds them itself. */
static void fetch_ahead(const row_work *w, const mg_attn_tensor *t, const int32_t *list, int64_t row, int32_t head,
                        const int written)
{
    if (!list || row + AHEAD >= w->rows)
        return;
    const float *later = row_of(t, list, row + AHEAD, head);
    for (int32_t d = 0; d < w->dim; d += 16)
        if (written)
            __builtin_prefetch(later + d, 1);
        else
            __builtin_prefetch(later + d, 0);
}

static void copy_chunk(void *context, int thread, int64_t step, int64_t chunk)
{
    const row_work *w = context;
    (void)thread, (void)step;
    for (int64_t i = chunk * CHUNK; i < chunk_end(w, chunk); i++)
        for (int32_t h = 0; h < w->heads; h++) {
            fetch_ahead(w, &w->from, w->from_list, i, h, 0);
            memcpy(row_of(&w->to, NULL, i, h), row_of(&w->from, w->from_list, i, h), (size_t)w->dim * sizeof(float));
        }
}

static void zero_chunk(void *context, int thread, int64_t step, int64_t chunk)
{
    const row_work *w = context;
    (void)thread, (void)step;
    for (int64_t i = chunk * CHUNK; i < chunk_end(w, chunk); i++)
        for (int32_t h = 0; h < w->heads; h++)
            memset(row_of(&w->to, NULL, i, h), 0, (size_t)w->dim * sizeof(float));
}

static void add_chunk(void *context, int thread, int64_t step, int64_t chunk)
{
    const row_work *w = context;
    (void)thread, (void)step;
    for (int64_t i = chunk * CHUNK; i < chunk_end(w, chunk); i++)
        for (int32_t h = 0; h < w->heads; h++) {
            float *restrict to = row_of(&w->to, w->to_list, i, h);
            const float *restrict from = row_of(&w->from, NULL, i, h);
            fetch_ahead(w, &w->to, w->to_list, i, h, 1);
            for (int32_t d = 0; d < w->dim; d++)
                to[d] += from[d];
        }
}

static void merge_chunk(void *context, int thread, int64_t step, int64_t chunk)
{
    const row_work *w = context;
    const int64_t i = chunk * CHUNK, rows = chunk_end(w, chunk) - i;
    (void)thread, (void)step;
    for (int32_t h = 0; h < w->heads; h++)
        mg_attn_merge(rows_from(w->to, i, h), w->lse + h * w->rows + i, rows_from(w->from, i, h),
                      w->part_lse + h * w->rows + i, rows, 1, w->dim);
}

/* Heads that lie side by side are one of all their floats. */
static void join_heads(row_work *w)
{
    const int64_t floats = (int64_t)w->heads * w->dim;
    if (w->to.head_stride != w->dim || (w->from.data && w->from.head_stride != w->dim) || floats > INT32_MAX)
        return;
    w->dim = (int32_t)floats;
    w->heads = 1;
}

static void in_chunks(row_work w, int threads, void (*work)(void *context, int thread, int64_t step, int64_t chunk))
{
    if (!w.lse)
        join_heads(&w);
    mg_attn_parallel(mg_attn_threads(threads), 1, (w.rows + CHUNK - 1) / CHUNK, work, &w);
}

void mg_attn_rows_copy(mg_attn_tensor to, mg_attn_tensor from, int64_t rows, int32_t heads, int32_t dim, int threads)
{
    mg_attn_rows_gather(to, from, NULL, rows, heads, dim, threads);
}

void mg_attn_rows_gather(mg_attn_tensor to, mg_attn_tensor from, const int32_t *list, int64_t rows, int32_t heads,
                         int32_t dim, int threads)
{
    in_chunks((row_work){.to = to, .from = from, .from_list = list, .rows = rows, .heads = heads, .dim = dim}, threads,
              copy_chunk);
}

void mg_attn_rows_zero(mg_attn_tensor to, int64_t rows, int32_t heads, int32_t dim, int threads)
{
    in_chunks((row_work){.to = to, .rows = rows, .heads = heads, .dim = dim}, threads, zero_chunk);
}

void mg_attn_rows_add(mg_attn_tensor to, mg_attn_tensor from, int64_t rows, int32_t heads, int32_t dim, int threads)
{
    mg_attn_rows_scatter_add(to, from, NULL, rows, heads, dim, threads);
}

void mg_attn_rows_scatter_add(mg_attn_tensor to, mg_attn_tensor from, const int32_t *list, int64_t rows, int32_t heads,
                              int32_t dim, int threads)
{
    in_chunks((row_work){.to = to, .from = from, .to_list = list, .rows = rows, .heads = heads, .dim = dim}, threads,
              add_chunk);
}

void mg_attn_rows_merge(mg_attn_tensor out, float *lse, mg_attn_tensor part, const float *part_lse, int64_t rows,
                        int32_t heads, int32_t dim, int threads)
{
    in_chunks(
        (row_work){.to = out, .from = part, .rows = rows, .heads = heads, .dim = dim, .lse = lse, .part_lse = part_lse},
        threads, merge_chunk);
}
