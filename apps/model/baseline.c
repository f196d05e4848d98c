/* The engine around the baselines: memory, checks. */
#include "baseline_internal.h"

#include <math.h>
#include <string.h>

static int has_edges(mg_model_baseline_kind kind)
{
    return kind == MG_MODEL_BASELINE_EDGE || kind == MG_MODEL_BASELINE_EDGE_ROWS;
}

/* Floats kept for each pair and head of a layer. */
static double kept_floats(const mg_model_baseline_desc *desc)
{
    return desc->kind == MG_MODEL_BASELINE_EDGE ? 3.0 * desc->dim + 1 : 1;
}

/* Floats of a call's workspace. */
static double work_floats(const mg_model_baseline_desc *desc, double tokens, double pairs, int threads, int backward)
{
    const double table = (double)TABLE_ENTRIES * desc->heads, all = pairs * desc->heads;
    switch (desc->kind) {
    case MG_MODEL_BASELINE_DENSE:
        return (backward ? 2 : 1) * all;
    case MG_MODEL_BASELINE_DENSE_ROWS:
        return backward ? tokens * BASELINE_ROWS * threads : 0;
    case MG_MODEL_BASELINE_EDGE:
        return backward ? all * (2.0 * desc->dim + 1) + BASELINE_PARTS * table : all * desc->dim + table;
    default:
        return backward ? all + BASELINE_PARTS * table : table;
    }
}

double mg_model_baseline_bytes(const mg_model_baseline_desc *desc, int64_t tokens, int64_t pairs, int threads)
{
    double n = (double)tokens, all = (double)pairs;
    double lists = has_edges(desc->kind) ? 8 * (n + 1) + 8 * all : 0;
    double work = work_floats(desc, n, all, mg_model_threads(threads), 1);
    return 4 * (desc->layers * all * desc->heads * kept_floats(desc) + work) + lists;
}

/* --- lists of edges --- */

/* Runs of rows of about equal entries. */
static void cut(int64_t parts[BASELINE_PARTS + 1], const int64_t *starts, int64_t rows)
{
    int64_t row = 0;
    for (int part = 0; part < BASELINE_PARTS; part++) {
        while (row < rows && starts[row] < starts[rows] / BASELINE_PARTS * part)
            row++;
        parts[part] = row;
    }
    parts[0] = 0;
    parts[BASELINE_PARTS] = rows;
}

/* Entry x of the transposed list is pair e of query i. */
static void put_entry(mg_model_baseline *b, int64_t x, int64_t i, int64_t e)
{
    b->key_pairs[x] = (int32_t)e;
    if (b->key_queries)
        b->key_queries[x] = (int32_t)i;
    if (b->pair_queries)
        b->pair_queries[e] = (int32_t)i;
}

static int list_edges(mg_model_baseline *b)
{
    const int64_t *starts = b->map.near_starts, n = b->tokens;
    const int32_t *columns = b->map.near_columns;
    int32_t **queries = b->kind == MG_MODEL_BASELINE_EDGE ? &b->pair_queries : &b->key_queries;
    if (b->pairs > INT32_MAX)
        return fail(-EOVERFLOW, "baseline: %lld near pairs; at most 2^31 - 1 are numbered", (long long)b->pairs);
    b->key_starts = allocate_zeroed(n + 1, sizeof *b->key_starts);
    b->key_pairs = allocate(b->pairs, sizeof *b->key_pairs);
    *queries = allocate(b->pairs, sizeof **queries);
    if (!b->key_starts || !b->key_pairs || !*queries)
        return -ENOMEM;
    int64_t *next = b->key_starts;
    for (int64_t e = 0; e < b->pairs; e++)
        next[columns[e] + 1]++;
    for (int64_t j = 0; j < n; j++)
        next[j + 1] += next[j];
    for (int64_t i = 0; i < n; i++)
        for (int64_t e = starts[i]; e < starts[i + 1]; e++)
            put_entry(b, next[columns[e]]++, i, e);
    memmove(next + 1, next, (size_t)n * sizeof *next);
    next[0] = 0;
    cut(b->row_parts, starts, n);
    cut(b->key_parts, b->key_starts, n);
    return 0;
}

/* --- create --- */

static int check(const mg_model_baseline_desc *desc)
{
    const mg_attn_map *map = desc->map;
    int edge = has_edges(desc->kind);
    if (desc->heads < 1 || desc->dim < 1 || desc->layers < 1)
        return fail(-EINVAL, "baseline: %d heads of %d, %d layers; each is at least 1", desc->heads, desc->dim,
                    desc->layers);
    if (map->kind != (edge ? MG_ATTN_NEAR : MG_ATTN_DENSE) || (edge && (!map->mask_far || !map->near_codes)))
        return fail(-EINVAL, edge ? "baseline edge: the map is not of near pairs with codes and far pairs masked"
                                  : "baseline dense: the map is not of kind MG_ATTN_DENSE");
    if (map->queries != map->keys || map->segments > 1)
        return fail(-EINVAL, "baseline: %lld queries, %lld keys, %lld segments; one graph's square map is needed",
                    (long long)map->queries, (long long)map->keys, (long long)map->segments);
    return 0;
}

static int obtain(mg_model_baseline *b, int64_t floats_each)
{
    int64_t floats;
    if (__builtin_mul_overflow(b->pairs, b->heads * floats_each, &floats))
        return fail(-EOVERFLOW, "baseline: %lld pairs of %d heads overflow", (long long)b->pairs, b->heads);
    if (!(b->p = allocate_zeroed(b->layers, sizeof *b->p)))
        return -ENOMEM;
    for (int32_t l = 0; l < b->layers; l++)
        if (!(b->p[l] = allocate(floats, sizeof **b->p)))
            return -ENOMEM;
    return has_edges(b->kind) ? list_edges(b) : 0;
}

int mg_model_baseline_create(mg_model_baseline **out, const mg_model_baseline_desc *desc)
{
    int kernels, status = check(desc);
    *out = NULL;
    if (status)
        return status;
    mg_model_baseline *b = allocate_zeroed(1, sizeof *b);
    if (!b)
        return -ENOMEM;
    const mg_model_kernels *best = mg_model_kernels_list(&kernels);
    b->kind = desc->kind;
    b->map = *desc->map;
    b->heads = desc->heads;
    b->dim = desc->dim;
    b->layers = desc->layers;
    b->tokens = desc->map->queries;
    b->pairs = has_edges(b->kind) ? desc->map->near_starts[b->tokens] : b->tokens * b->tokens;
    b->pass = best->pairs;
    b->edges = best->edges;
    status = obtain(b, (int64_t)kept_floats(desc));
    if (status) {
        mg_model_baseline_destroy(b);
        return status;
    }
    *out = b;
    return 0;
}

void mg_model_baseline_destroy(mg_model_baseline *b)
{
    if (!b)
        return;
    for (int32_t l = 0; b->p && l < b->layers; l++)
        release(b->p[l]);
    release(b->p);
    release(b->key_starts);
    release(b->key_queries);
    release(b->pair_queries);
    release(b->key_pairs);
    release(b);
}

/* --- the engine --- */

void mg_model_baseline_table(float table[TABLE_ENTRIES], const mg_model_baseline *b, const mg_attn_call *call,
                             int32_t head)
{
    memset(table, 0, TABLE_ENTRIES * sizeof *table);
    memcpy(table, call->table + (int64_t)head * b->map.codes, (size_t)b->map.codes * sizeof *table);
    if (b->map.mask_far)
        table[b->map.far_code] = -INFINITY;
}

/* Heads that lie side by side, so that a token is one row. */
static int is_row(mg_attn_tensor t, const mg_model_baseline *b) { return !t.data || t.head_stride == b->dim; }

static int check_rows(const mg_model_baseline *b, const mg_attn_call *call)
{
    const mg_attn_tensor all[] = {call->q, call->k, call->v, call->out, call->dout, call->dq, call->dk, call->dv};
    for (size_t t = 0; t < sizeof all / sizeof *all; t++)
        if (b->heads > 1 && !is_row(all[t], b))
            return fail(-EINVAL, "baseline: over edges the heads of a token lie side by side, %d apart; these are %lld",
                        b->dim, (long long)all[t].head_stride);
    return 0;
}

static int check_call(const mg_model_baseline *b, const mg_attn_call *call)
{
    if (call->heads != b->heads || call->dim != b->dim || (call->value_dim && call->value_dim != b->dim) ||
        call->dropout.layer >= (uint32_t)b->layers)
        return fail(-EINVAL,
                    "baseline: %d heads of %d, values of %d, layer %u; it was made for %d heads of %d and %d "
                    "layers",
                    call->heads, call->dim, call->value_dim, call->dropout.layer, b->heads, b->dim, b->layers);
    if (!call->table || call->values || call->dropout.probability > 0)
        return fail(-EINVAL, "baseline: a call needs a table (%s) and can have no pair values (%s) or dropout (%g)",
                    call->table ? "given" : "missing", call->values ? "given" : "none",
                    (double)call->dropout.probability);
    return has_edges(b->kind) ? check_rows(b, call) : 0;
}

static int64_t workspace_bytes(void *context, const mg_attn_call *call, int backward)
{
    const mg_model_baseline *b = context;
    const mg_model_baseline_desc desc = {.kind = b->kind, .heads = b->heads, .dim = b->dim};
    int status = check_call(b, call);
    double floats = work_floats(&desc, (double)b->tokens, (double)b->pairs, mg_model_threads(call->threads), backward);
    return status ? status : 4 * (int64_t)floats;
}

static int compute(const mg_model_baseline *b, const mg_attn_call *call, int backward)
{
    typedef int (*way)(const mg_model_baseline *, const mg_attn_call *);
    static const way ways[][2] = {
        [MG_MODEL_BASELINE_DENSE] = {mg_model_dense_forward, mg_model_dense_backward},
        [MG_MODEL_BASELINE_DENSE_ROWS] = {mg_model_dense_forward, mg_model_dense_backward},
        [MG_MODEL_BASELINE_EDGE] = {mg_model_edge_forward, mg_model_edge_backward},
        [MG_MODEL_BASELINE_EDGE_ROWS] = {mg_model_edge_rows_forward, mg_model_edge_rows_backward},
    };
    int status = check_call(b, call);
    return status ? status : ways[b->kind][backward](b, call);
}

static int forward(void *context, const mg_attn_call *call) { return compute(context, call, 0); }
static int backward(void *context, const mg_attn_call *call) { return compute(context, call, 1); }

mg_attn_engine mg_model_baseline_engine(mg_model_baseline *b)
{
    return (mg_attn_engine){.context = b, .workspace_bytes = workspace_bytes, .forward = forward, .backward = backward};
}
