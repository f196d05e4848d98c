/* Halo: sparse attention over own keys and those fetched rows that the rank's pairs name.
 *
 *     forward     fetch ~~> behind own k, v | attention over both
 *     backward    fetch ~~> behind own k, v | fetched ones' dk, dv ~~> return, while own ones are made | add
 *
 * keys_kept: backward does not fetch.
 *
 * The pairs are kept by local row: [own | fetched], one plan. Pairs that segments or the masked code hide are left out:
 * nothing is fetched for them. Two plans, own keys while the halo travels and fetched ones merged, cost more than the
 * travel they hide: see README.md. */
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

/* --- the plan --- */

static int plan_pairs(mg_attn_context *c)
{
    const mg_attn_halo *halo = c->halo;
    local_pairs *p = &c->pairs;
    const int64_t keys = c->rows + halo_rows(halo);
    p->ids = obtain(c, keys, sizeof *p->ids);
    if (!p->ids)
        return -ENOMEM;
    for (int64_t i = 0; i < keys; i++) {
        const int64_t token = i < c->rows ? c->begin + i : halo->needs[i - c->rows];
        p->ids[i] = c->ids ? c->ids[token] : (uint32_t)token;
    }
    mg_attn_halo_localise(p->columns, halo, p->starts, p->columns);
    const mg_attn_map map = {.kind = MG_ATTN_NEAR,
                             .queries = c->rows,
                             .keys = keys,
                             .codes = c->map.codes,
                             .far_code = c->map.far_code,
                             .mask_far = 1,
                             .near_starts = p->starts,
                             .near_columns = p->columns,
                             .near_codes = p->codes};
    shard s = {.keys = keys, .key_ids = p->ids};
    if (!p->starts[c->rows])
        return 0;
    const int status = mg_attn_plan_create(&s.plan, &map);
    if (!status)
        c->shards[c->shard_count++] = s;
    return status;
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
    c->keys_kept = desc->keys_kept;
    return plan_pairs(c);
}

/* --- workspace --- */

void mg_attn_context_carve_halo(context_run *r)
{
    const mg_attn_context *c = r->c;
    const int64_t pairs = c->pairs.starts[c->rows], heads = r->call.heads;
    const int64_t fetched = halo_rows(c->halo), rows = c->rows + fetched;
    r->given_rows = mg_attn_context_carve(r, 1, halo_sent(c->halo), r->key_floats, 1);
    r->keys[0] = mg_attn_context_carve(r, fetched > 0, fetched, r->key_floats, 1);
    /* The others want what this rank does not. */
    if (r->backward && fetched && !r->given.dk.data)
        r->call.dk = packed_rows(mg_attn_context_carve(r, 1, rows, heads, r->call.dim), r->call.heads, r->call.dim);
    if (r->backward && fetched && !r->given.dv.data)
        r->call.dv =
            packed_rows(mg_attn_context_carve(r, 1, rows, heads, r->call.value_dim), r->call.heads, r->call.value_dim);
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

/* Whether a row of k and v lies as in a message. */
static int side_by_side(const context_run *r, mg_attn_tensor k, mg_attn_tensor v)
{
    const int64_t width = (int64_t)r->call.heads * r->call.dim;
    return k.token_stride == r->key_floats && v.token_stride == r->key_floats && k.head_stride == r->call.dim &&
           v.head_stride == r->call.value_dim && k.data && v.data == (float *)k.data + width;
}

/* Where rows of others travel: where they stay, behind own rows, if they lie there as in a message; else in the
   workspace. */
static float *travelling(const context_run *r, mg_attn_tensor k, mg_attn_tensor v)
{
    return side_by_side(r, k, v) ? (float *)k.data + r->c->rows * k.token_stride : r->keys[0];
}

/* k and v, or their gradients, of some rows between a tensor of each and messages. */
typedef void row_move(mg_attn_tensor to, mg_attn_tensor from, const int32_t *list, int64_t rows, int32_t heads,
                      int32_t dim, int threads);

static void move_rows(const context_run *r, row_move *move, int out, mg_attn_tensor k, mg_attn_tensor v, float *message,
                      const int32_t *list, int64_t rows)
{
    const mg_attn_call *call = &r->call;
    const mg_attn_tensor keys = keys_in(r, message), values = values_in(r, message);
    if (side_by_side(r, k, v) && r->key_floats <= INT32_MAX) {
        move(out ? keys : k, out ? k : keys, list, rows, 1, (int32_t)r->key_floats, call->threads);
        return;
    }
    if (k.data)
        move(out ? keys : k, out ? k : keys, list, rows, call->heads, call->dim, call->threads);
    if (v.data)
        move(out ? values : v, out ? v : values, list, rows, call->heads, call->value_dim, call->threads);
}

/* Keys and values of fetched rows. */
static int fetch(context_run *r)
{
    const mg_attn_context *c = r->c;
    const mg_attn_halo *halo = c->halo;
    const mg_attn_call *call = &r->call;
    float *rows = travelling(r, call->k, call->v);
    move_rows(r, mg_attn_rows_gather, 1, call->k, call->v, r->given_rows, halo->gives, halo_sent(halo));
    int status = mg_attn_halo_post(halo, &r->messages, r->given_rows, rows, r->key_floats, 0);
    if (!status)
        status = mg_attn_messages_wait_all(&r->messages);
    if (!status && rows && rows == r->keys[0])
        move_rows(r, mg_attn_rows_gather, 0, rows_from(call->k, c->rows, 0), rows_from(call->v, c->rows, 0), rows, NULL,
                  halo_rows(halo));
    return status;
}

/* Gradients of fetched rows on their way home. */
typedef struct way_home {
    context_run *r;
    int posted, status;
} way_home;

/* What was given is gone: its memory takes what returns. */
static int post_home(void *context)
{
    way_home *home = context;
    context_run *r = home->r;
    const mg_attn_context *c = r->c;
    const mg_attn_call *call = &r->call;
    float *rows = travelling(r, call->dk, call->dv);
    if (rows && rows == r->keys[0])
        move_rows(r, mg_attn_rows_gather, 1, rows_from(call->dk, c->rows, 0), rows_from(call->dv, c->rows, 0), rows,
                  NULL, halo_rows(c->halo));
    home->posted = 1;
    home->status = mg_attn_halo_post(c->halo, &r->messages, rows, r->given_rows, r->key_floats, 1);
    return home->status;
}

static void add_returned(const context_run *r)
{
    const mg_attn_halo *halo = r->c->halo;
    const mg_attn_call *call = &r->call;
    for (int rank = 0; rank < halo->port.ranks; rank++) {
        const int64_t from = halo->give_starts[rank], rows = halo->give_starts[rank + 1] - from;
        move_rows(r, mg_attn_rows_scatter_add, 0, call->dk, call->dv, r->given_rows + from * r->key_floats,
                  halo->gives + from, rows);
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
    const int status = fetch(r);
    if (!status && r->values)
        by_head(r, gather_values);
    if (!status && r->c->shard_count)
        mg_attn_context_forward_shard(r, 0, r->call.k, r->call.v, 1);
    return status;
}

static void zero_unseen(const context_run *r)
{
    const mg_attn_call *call = &r->call;
    if (call->dk.data)
        mg_attn_rows_zero(call->dk, r->c->rows, call->heads, call->dim, call->threads);
    if (call->dv.data)
        mg_attn_rows_zero(call->dv, r->c->rows, call->heads, call->value_dim, call->threads);
}

int mg_attn_context_halo_backward(context_run *r)
{
    way_home home = {.r = r};
    const last_keys fetched = {.from = r->c->rows, .then = post_home, .context = &home};
    int status = r->c->keys_kept ? 0 : fetch(r);
    if (status)
        return status;
    if (r->values)
        by_head(r, gather_values);
    if (r->c->shard_count)
        mg_attn_context_backward_shard(r, 0, r->call.k, r->call.v, r->call.dk, r->call.dv, 1, &fetched);
    else
        zero_unseen(r);
    if (!home.posted) /* the others wait, whatever happened here */
        post_home(&home);
    status = home.status ? home.status : mg_attn_messages_wait_all(&r->messages);
    if (status)
        return status;
    add_returned(r);
    if (r->dvalues)
        by_head(r, scatter_values);
    return 0;
}
