/* The engine around the baselines: memory, checks. */
#include "baseline_internal.h"

#include <math.h>
#include <string.h>

/* Floats of a call's workspace. */
static double work_floats(const mg_model_baseline_desc *desc, double tokens, double pairs, int threads, int backward)
{
    switch (desc->kind) {
    case MG_MODEL_BASELINE_DENSE:
        return (backward ? 2 : 1) * pairs * desc->heads;
    case MG_MODEL_BASELINE_DENSE_ROWS:
        return backward ? tokens * BASELINE_ROWS * threads : 0;
    default:
        return backward ? (pairs + (double)BASELINE_PARTS * TABLE_ENTRIES) * desc->heads : 0;
    }
}

double mg_model_baseline_bytes(const mg_model_baseline_desc *desc, int64_t tokens, int64_t pairs, int threads)
{
    double n = (double)tokens, all = (double)pairs;
    double lists = desc->kind == MG_MODEL_BASELINE_EDGE ? 8 * (n + 1) + 12 * all : 0;
    return 4 * (desc->layers * all * desc->heads + work_floats(desc, n, all, mg_model_threads(threads), 1)) + lists;
}

/* --- edge: the transposed list --- */

static int transpose(mg_model_baseline *b)
{
    const int64_t *starts = b->map.near_starts, n = b->tokens;
    const int32_t *columns = b->map.near_columns;
    b->key_starts = allocate_zeroed(n + 1, sizeof *b->key_starts);
    b->key_queries = allocate(b->pairs, sizeof *b->key_queries);
    b->key_pairs = allocate(b->pairs, sizeof *b->key_pairs);
    if (!b->key_starts || !b->key_queries || !b->key_pairs)
        return -ENOMEM;
    int64_t *next = b->key_starts;
    for (int64_t e = 0; e < b->pairs; e++)
        next[columns[e] + 1]++;
    for (int64_t j = 0; j < n; j++)
        next[j + 1] += next[j];
    for (int64_t i = 0; i < n; i++)
        for (int64_t e = starts[i]; e < starts[i + 1]; e++) {
            int64_t to = next[columns[e]]++;
            b->key_queries[to] = (int32_t)i;
            b->key_pairs[to] = e;
        }
    memmove(next + 1, next, (size_t)n * sizeof *next);
    next[0] = 0;
    return 0;
}

/* --- create --- */

static int check(const mg_model_baseline_desc *desc)
{
    const mg_attn_map *map = desc->map;
    int edge = desc->kind == MG_MODEL_BASELINE_EDGE;
    if (desc->heads < 1 || desc->layers < 1)
        return fail(-EINVAL, "baseline: %d heads, %d layers; both are at least 1", desc->heads, desc->layers);
    if (map->kind != (edge ? MG_ATTN_NEAR : MG_ATTN_DENSE) || (edge && (!map->mask_far || !map->near_codes)))
        return fail(-EINVAL, edge ? "baseline edge: the map is not of near pairs with codes and far pairs masked"
                                  : "baseline dense: the map is not of kind MG_ATTN_DENSE");
    if (map->queries != map->keys || map->segments > 1)
        return fail(-EINVAL, "baseline: %lld queries, %lld keys, %lld segments; one graph's square map is needed",
                    (long long)map->queries, (long long)map->keys, (long long)map->segments);
    return 0;
}

static int obtain(mg_model_baseline *b)
{
    int64_t floats;
    if (__builtin_mul_overflow(b->pairs, (int64_t)b->heads, &floats))
        return fail(-EOVERFLOW, "baseline: %lld pairs of %d heads overflow", (long long)b->pairs, b->heads);
    if (!(b->p = allocate_zeroed(b->layers, sizeof *b->p)))
        return -ENOMEM;
    for (int32_t l = 0; l < b->layers; l++)
        if (!(b->p[l] = allocate(floats, sizeof **b->p)))
            return -ENOMEM;
    return b->kind == MG_MODEL_BASELINE_EDGE ? transpose(b) : 0;
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
    b->layers = desc->layers;
    b->tokens = desc->map->queries;
    b->pairs = b->kind == MG_MODEL_BASELINE_EDGE ? desc->map->near_starts[b->tokens] : b->tokens * b->tokens;
    b->pass = best->pairs;
    b->rows = best->rows;
    status = obtain(b);
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

static int check_call(const mg_model_baseline *b, const mg_attn_call *call)
{
    if (call->heads != b->heads || call->dropout.layer >= (uint32_t)b->layers)
        return fail(-EINVAL, "baseline: %d heads, layer %u; it was made for %d heads and %d layers", call->heads,
                    call->dropout.layer, b->heads, b->layers);
    if (!call->table || call->values || call->dropout.probability > 0)
        return fail(-EINVAL, "baseline: a call needs a table (%s) and can have no pair values (%s) or dropout (%g)",
                    call->table ? "given" : "missing", call->values ? "given" : "none",
                    (double)call->dropout.probability);
    return 0;
}

static int64_t workspace_bytes(void *context, const mg_attn_call *call, int backward)
{
    const mg_model_baseline *b = context;
    const mg_model_baseline_desc desc = {.kind = b->kind, .heads = b->heads};
    int status = check_call(b, call);
    double floats = work_floats(&desc, (double)b->tokens, (double)b->pairs, mg_model_threads(call->threads), backward);
    return status ? status : 4 * (int64_t)floats;
}

static int forward(void *context, const mg_attn_call *call)
{
    const mg_model_baseline *b = context;
    int status = check_call(b, call);
    if (status)
        return status;
    return b->kind == MG_MODEL_BASELINE_EDGE ? mg_model_edge_forward(b, call) : mg_model_dense_forward(b, call);
}

static int backward(void *context, const mg_attn_call *call)
{
    const mg_model_baseline *b = context;
    int status = check_call(b, call);
    if (status)
        return status;
    return b->kind == MG_MODEL_BASELINE_EDGE ? mg_model_edge_backward(b, call) : mg_model_dense_backward(b, call);
}

mg_attn_engine mg_model_baseline_engine(mg_model_baseline *b)
{
    return (mg_attn_engine){.context = b, .workspace_bytes = workspace_bytes, .forward = forward, .backward = backward};
}
