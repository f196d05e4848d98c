/* Halo: sparse attention over own keys and those fetched rows that the rank's pairs name.
 *
 *     forward     fetch ~~~~~~~~~~~~~~~~~> | wait        backward    fetch ~~> | wait, fetched keys, | return ~~~~~~~> | add
 *                 own keys                 | fetched                           | gradients of them   | own keys
 *
 * The pairs are kept by local row: [own | fetched], so each list has two ascending parts, which are two plans over one
 * map. Pairs that segments or the masked code hide are left out: nothing is fetched for them. */
#include "context.h"
#include "library.h"
#include "parallel.h"

#include <string.h>

/* --- the seen pairs by local row --- */

static int is_seen(const mg_attn_map *map, int64_t pair, int64_t begin, int64_t end)
{
    const int64_t key = map->near_columns[pair];
    const int32_t code = map->near_codes ? map->near_codes[pair] : 0;
    return key >= begin && key < end && code != map->far_code;
}

static void *obtain(mg_attn_context *c, int64_t count, size_t size)
{
    void *block = allocate(count, size);
    c->bytes += block ? count * (int64_t)size : 0;
    return block;
}

/* Keys [begin, end) of the row's segment; *segment only goes on. */
static void segment_keys(const mg_attn_map *map, int64_t row, int64_t *segment, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = map->keys;
    if (!map->segments)
        return;
    while (map->query_segments[*segment + 1] <= row)
        ++*segment;
    *begin = map->key_segments[*segment];
    *end = map->key_segments[*segment + 1];
}

static int count_pairs(mg_attn_context *c)
{
    const mg_attn_map *map = &c->map;
    local_pairs *p = &c->pairs;
    int64_t begin, end, segment = 0, count = 0;
    p->starts = obtain(c, c->rows + 1, sizeof *p->starts);
    if (!p->starts)
        return -ENOMEM;
    p->starts[0] = 0;
    for (int64_t row = 0; row < c->rows; row++) {
        segment_keys(map, row, &segment, &begin, &end);
        for (int64_t e = map->near_starts[row]; e < map->near_starts[row + 1]; e++)
            count += is_seen(map, e, begin, end);
        p->starts[row + 1] = count;
    }
    p->columns = obtain(c, count, sizeof *p->columns);
    p->codes = obtain(c, count, sizeof *p->codes);
    p->offsets = obtain(c, count, sizeof *p->offsets);
    return p->columns && p->codes && p->offsets ? 0 : -ENOMEM;
}

static int keep_pairs(mg_attn_context *c)
{
    const mg_attn_map *map = &c->map;
    local_pairs *p = &c->pairs;
    int64_t begin, end, segment = 0, at = 0;
    int status = count_pairs(c);
    for (int64_t row = 0; row < c->rows && !status; row++) {
        segment_keys(map, row, &segment, &begin, &end);
        for (int own = 1; own >= 0; own--)
            for (int64_t e = map->near_starts[row]; e < map->near_starts[row + 1]; e++) {
                const int32_t key = map->near_columns[e];
                if (!is_seen(map, e, begin, end) || own != (key >= c->begin && key < c->begin + c->rows))
                    continue;
                p->columns[at] = key;
                p->codes[at] = map->near_codes ? map->near_codes[e] : 0;
                p->offsets[at++] = (int32_t)(e - map->near_starts[row]);
            }
    }
    return status;
}

/* --- plans --- */

static int plan_keys(mg_attn_context *c, int32_t step, int64_t begin, int64_t end, const uint32_t *ids)
{
    const mg_attn_map map = {.kind = MG_ATTN_NEAR,
                             .queries = c->rows,
                             .keys = c->rows + halo_rows(c->halo),
                             .codes = c->map.codes,
                             .far_code = c->map.far_code,
                             .mask_far = 1,
                             .near_starts = c->pairs.starts,
                             .near_columns = c->pairs.columns,
                             .near_codes = c->pairs.codes,
                             .key_begin = begin,
                             .key_end = end};
    shard s = {.step = step, .keys = end - begin, .key_ids = ids};
    if (begin == end)
        return 0;
    int status = mg_attn_plan_create(&s.plan, &map);
    if (status)
        return status;
    if (s.plan->info.seen_pairs)
        c->shards[c->shard_count++] = s;
    else
        mg_attn_plan_destroy(s.plan);
    return 0;
}

static int plan_both(mg_attn_context *c)
{
    const mg_attn_halo *halo = c->halo;
    const int64_t fetched = halo_rows(halo);
    c->pairs.ids = obtain(c, fetched, sizeof *c->pairs.ids);
    if (!c->pairs.ids)
        return -ENOMEM;
    for (int64_t i = 0; i < fetched; i++)
        c->pairs.ids[i] = c->ids ? c->ids[halo->needs[i]] : (uint32_t)halo->needs[i];
    mg_attn_halo_localise(c->pairs.columns, halo, c->pairs.starts, c->pairs.columns);
    int status = plan_keys(c, 0, 0, c->rows, c->query_ids);
    return status ? status : plan_keys(c, 1, c->rows, c->rows + fetched, c->pairs.ids);
}

int mg_attn_context_make_halo(mg_attn_context *c, const mg_attn_context_desc *desc, int status, int *told)
{
    mg_attn_halo *halo;
    if (!status)
        status = keep_pairs(c);
    status = mg_attn_halo_make(&halo, &desc->port, desc->first, status ? NULL : c->pairs.starts,
                               status ? NULL : c->pairs.columns, status);
    if (status) {
        *told = 1;
        return status;
    }
    c->halo = halo;
    return plan_both(c);
}

/* --- workspace --- */

void mg_attn_context_carve_halo(context_run *r)
{
    const mg_attn_context *c = r->c;
    const int64_t pairs = c->pairs.starts[c->rows], heads = r->call.heads;
    r->given_rows = mg_attn_context_carve(r, 1, halo_sent(c->halo), r->key_floats, 1);
    r->fetched = mg_attn_context_carve(r, 1, halo_rows(c->halo), r->key_floats, 1);
    r->fetched_gradients = mg_attn_context_carve(r, r->backward, halo_rows(c->halo), r->key_floats, 1);
    r->returned = r->given_rows; /* what was given is gone by then */
    r->values = mg_attn_context_carve(r, r->given.values != NULL, heads, pairs, 1);
    r->dvalues = mg_attn_context_carve(r, r->backward && r->given.dvalues, heads, pairs, 1);
    r->call.values = r->values;
    r->call.dvalues = r->dvalues;
}

/* --- rows and values --- */

/* k and v of a row lie together: a row is one message's worth. */
static mg_attn_tensor keys_in(const context_run *r, float *rows)
{
    return (mg_attn_tensor){.data = rows, .token_stride = r->key_floats, .head_stride = r->call.dim};
}
static mg_attn_tensor values_in(const context_run *r, float *rows)
{
    return (mg_attn_tensor){.data = rows ? rows + r->call.heads * r->call.dim : NULL,
                            .token_stride = r->key_floats,
                            .head_stride = r->call.value_dim};
}

static int begin_fetch(context_run *r)
{
    const mg_attn_halo *halo = r->c->halo;
    const mg_attn_call *call = &r->call;
    mg_attn_rows_gather(keys_in(r, r->given_rows), call->k, halo->gives, halo_sent(halo), call->heads, call->dim,
                        call->threads);
    mg_attn_rows_gather(values_in(r, r->given_rows), call->v, halo->gives, halo_sent(halo), call->heads,
                        call->value_dim, call->threads);
    return mg_attn_halo_post(halo, &r->messages, r->given_rows, r->fetched, r->key_floats, 0);
}

static void add_returned(const context_run *r)
{
    const mg_attn_halo *halo = r->c->halo;
    const mg_attn_call *call = &r->call;
    for (int rank = 0; rank < halo->port.ranks; rank++) {
        const int64_t from = halo->give_starts[rank], rows = halo->give_starts[rank + 1] - from;
        float *returned = r->returned + from * r->key_floats;
        if (rows && call->dk.data)
            mg_attn_rows_scatter_add(call->dk, keys_in(r, returned), halo->gives + from, rows, call->heads, call->dim,
                                     call->threads);
        if (rows && call->dv.data)
            mg_attn_rows_scatter_add(call->dv, values_in(r, returned), halo->gives + from, rows, call->heads,
                                     call->value_dim, call->threads);
    }
}

/* Of one head: to local order, and back. */
static void gather_values(void *context, int thread, int64_t step, int64_t head)
{
    const context_run *r = context;
    const local_pairs *p = &r->c->pairs;
    const mg_attn_map *map = &r->c->map;
    const float *from = r->given.values + head * map->near_starts[r->c->rows];
    float *to = r->values + head * p->starts[r->c->rows];
    (void)thread, (void)step;
    for (int64_t row = 0; row < r->c->rows; row++)
        for (int64_t e = p->starts[row]; e < p->starts[row + 1]; e++)
            to[e] = from[map->near_starts[row] + p->offsets[e]];
}

static void scatter_values(void *context, int thread, int64_t step, int64_t head)
{
    const context_run *r = context;
    const local_pairs *p = &r->c->pairs;
    const mg_attn_map *map = &r->c->map;
    const float *from = r->dvalues + head * p->starts[r->c->rows];
    float *to = r->given.dvalues + head * map->near_starts[r->c->rows];
    (void)thread, (void)step;
    for (int64_t row = 0; row < r->c->rows; row++)
        for (int64_t e = p->starts[row]; e < p->starts[row + 1]; e++)
            to[map->near_starts[row] + p->offsets[e]] = from[e];
}

static void by_head(context_run *r, void (*work)(void *context, int thread, int64_t step, int64_t head))
{
    mg_attn_parallel(mg_attn_threads(r->call.threads), 1, r->call.heads, work, r);
}

/* --- forward, backward --- */

int mg_attn_context_halo_forward(context_run *r)
{
    const mg_attn_context *c = r->c;
    int32_t next = 0;
    int status = begin_fetch(r);
    if (!status && r->values)
        by_head(r, gather_values);
    if (!status && c->shard_count && !c->shards[0].step)
        mg_attn_context_forward_shard(r, next++, r->call.k, r->call.v, 1);
    if (!status)
        status = mg_attn_messages_wait_all(&r->messages);
    if (!status && next < c->shard_count)
        mg_attn_context_forward_shard(r, next, keys_in(r, r->fetched), values_in(r, r->fetched), next == 0);
    return status;
}

static void backward_own(context_run *r, int first)
{
    const mg_attn_call *call = &r->call;
    if (r->c->shard_count && !r->c->shards[0].step) {
        mg_attn_context_backward_shard(r, 0, call->k, call->v, call->dk, call->dv, first);
        return;
    }
    if (call->dk.data)
        mg_attn_rows_zero(call->dk, r->c->rows, call->heads, call->dim, call->threads);
    if (call->dv.data)
        mg_attn_rows_zero(call->dv, r->c->rows, call->heads, call->value_dim, call->threads);
}

int mg_attn_context_halo_backward(context_run *r)
{
    const mg_attn_context *c = r->c;
    const int32_t last = c->shard_count - 1;
    const int fetches = c->shard_count && c->shards[last].step;
    int status = begin_fetch(r);
    if (!status && r->values)
        by_head(r, gather_values);
    if (!status)
        status = mg_attn_messages_wait_all(&r->messages);
    if (!status && fetches)
        mg_attn_context_backward_shard(r, last, keys_in(r, r->fetched), values_in(r, r->fetched),
                                       keys_in(r, r->fetched_gradients), values_in(r, r->fetched_gradients), 1);
    if (!status)
        status = mg_attn_halo_post(c->halo, &r->messages, r->fetched_gradients, r->returned, r->key_floats, 1);
    if (!status)
        backward_own(r, !fetches);
    if (!status)
        status = mg_attn_messages_wait_all(&r->messages);
    if (!status)
        add_returned(r);
    if (!status && r->dvalues)
        by_head(r, scatter_values);
    return status;
}
