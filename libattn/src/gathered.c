/* Backward of gathered pairs, some heads at a time: first by query, which gives P, dS and dq; then by key, where dk and
 * dv are sums of the same P and dS over the queries that see the key. Each sum has one owner, and its order is that of
 * the lists. */
#include "backward.h"
#include "parallel.h"

#include <math.h>

typedef struct gathered_context {
    call_state *s;
    int32_t head_begin, head_end;
} gathered_context;

/* [pairs] of a head at hand */
static float *of_head(const call_state *s, float *pairs, int32_t head)
{
    return pairs + head % HEAD_GROUP * s->plan->pairs;
}

static void keep_batch(const call_state *s, const pair_batch *b, const pair_list *l, int64_t query, int32_t head,
                       double *sums)
{
    const mg_attn_plan *plan = s->plan;
    const mg_attn_map *map = &plan->map;
    float *p = of_head(s, s->pair_p, head), *ds = of_head(s, s->pair_ds, head);
    for (int32_t i = 0; i < b->count; i++) {
        p[b->at[i]] = l->p[i];
        ds[b->at[i]] = l->ds[i];
    }
    for (int32_t i = 0; i < b->count && sums; i++)
        sums[plan->pair_codes[b->at[i]]] += l->ds[i];
    if (s->call.dvalues) {
        float *dvalues =
            s->call.dvalues + head * map->near_starts[map->queries] + map->near_starts[map->query_begin + query];
        for (int32_t i = 0; i < b->count; i++)
            dvalues[plan->pair_offsets[b->at[i]]] = l->ds[i];
    }
}

static void do_query(const call_state *s, int64_t query, int32_t head, double *sums)
{
    const int64_t query_row = head * s->queries.tiles * TILE + query, key_rows = head * s->keys.tiles * TILE;
    const int64_t begin = s->plan->pair_starts[query], end = s->plan->pair_starts[query + 1];
    float p[PAIR_BATCH], ds[PAIR_BATCH];
    pair_batch b;
    pair_list l = {.row = s->row,
                   .value_row = s->value_row,
                   .keys = b.keys,
                   .bias = b.bias,
                   .keep = s->call.dropout.probability > 0 ? b.keep : NULL,
                   .q = s->queries.rows[0] + query_row * s->row,
                   .k = s->keys.rows[0] + key_rows * s->row,
                   .v = s->keys.rows[1] + key_rows * s->value_row,
                   .dout = s->queries.rows[1] + query_row * s->value_row,
                   .lse = s->lse[query_row],
                   .delta = s->delta[query_row],
                   .dq = s->dq ? s->dq + query_row * s->row : NULL,
                   .p = p,
                   .ds = ds};
    for (int64_t at = begin; at < end; at++)
        of_head(s, s->pair_p, head)[at] = of_head(s, s->pair_ds, head)[at] = 0;
    for (int64_t at = begin; at < end && l.lse != INFINITY;) {
        at = mg_attn_pair_batch(&b, s, query, at, end, head);
        l.count = b.count;
        if (l.count)
            s->backend->backward_pairs(&l);
        keep_batch(s, &b, &l, query, head, sums);
    }
}

static void do_chunk(void *context, int thread, int64_t step, int64_t chunk)
{
    const gathered_context *c = context;
    const call_state *s = c->s;
    const int32_t chunks = s->plan->chunks;
    const int64_t end = smaller_of(chunk_begin(s->plan->tile_rows, chunks, chunk + 1) * TILE, s->plan->queries);
    (void)thread, (void)step;
    for (int32_t head = c->head_begin; head < c->head_end; head++)
        for (int64_t query = chunk_begin(s->plan->tile_rows, chunks, chunk) * TILE; query < end; query++)
            if (s->plan->pair_starts[query] < s->plan->pair_starts[query + 1])
                do_query(s, query, head, s->sums ? sums_of(s, head, chunk_begin(s->plan->tile_rows, chunks, chunk)) : NULL);
}

void mg_attn_gathered_rows(call_state *s, int32_t head_begin, int32_t head_end)
{
    gathered_context c = {.s = s, .head_begin = head_begin, .head_end = head_end};
    mg_attn_parallel(s->threads, 1, s->plan->chunks, do_chunk, &c);
}

void mg_attn_gathered_key(const call_state *s, float *dk, float *dv, float *dkey_bias, int64_t key, int32_t head)
{
    const mg_attn_plan *plan = s->plan;
    const float *p = of_head(s, s->pair_p, head), *ds = of_head(s, s->pair_ds, head);
    const int64_t rows = head * s->queries.tiles * TILE, end = plan->column_starts[key + 1];
    const float *q = s->queries.rows[0] + rows * s->row, *dout = s->queries.rows[1] + rows * s->value_row;
    int32_t queries[PAIR_BATCH];
    float of_p[PAIR_BATCH], of_ds[PAIR_BATCH];
    for (int64_t at = plan->column_starts[key]; at < end;) {
        int32_t count = 0;
        for (; at < end && count < PAIR_BATCH; at++) {
            const int64_t pair = plan->column_pairs[at];
            /* A hidden pair's query may be anything; it is passed over. */
            if (p[pair] == 0 && ds[pair] == 0)
                continue;
            queries[count] = plan->column_queries[at];
            of_p[count] = p[pair];
            of_ds[count] = ds[pair];
            count++;
        }
        if (dk)
            s->backend->add_rows(dk, of_ds, q, s->row, queries, count);
        if (dv)
            s->backend->add_rows(dv, of_p, dout, s->value_row, queries, count);
        for (int32_t i = 0; i < count && dkey_bias; i++)
            *dkey_bias += of_ds[i];
    }
}
