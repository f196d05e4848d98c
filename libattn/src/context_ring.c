/* The ring: shards of keys and values come from their owners, gradients go back to them.
 *
 *     step           0      1      2              of rank 1 of 4, which sees the shards of 1, 2 and 3
 *     computes       own    of 2   of 3
 *     receives       of 2   of 3                  posted before the step computes; two buffers
 *     sends          own shard to each rank that sees it, all at once, before step 0
 *
 * Backward: gradients of 2's shard go to 2 while 3's is computed; those of the own shard come from 0 (its step 1), then
 * from 3 (its step 2), and are added in that order, each a step after it was made.
 *
 * Nothing waits for a step that is later than its own, so nothing can wait in a circle. */
#include "context.h"

enum { RECEIVE = 0, GRADIENT = 2, CONTRIBUTION = 4, SEND = 6 }; /* slots; the first three have two each */

int32_t mg_attn_context_ring_slots(const mg_attn_context *c) { return SEND + c->reader_count; }

/* --- plans --- */

/* Whether segments let any query see any key of [begin, end). */
static int may_see(const mg_attn_map *map, int64_t begin, int64_t end)
{
    int sees = !map->segments;
    for (int64_t s = 0; s < map->segments; s++)
        sees |= map->query_segments[s] < map->query_segments[s + 1] && map->key_segments[s] < end &&
                map->key_segments[s + 1] > begin && map->key_segments[s] < map->key_segments[s + 1];
    return sees && map->queries && begin < end;
}

static int plan_shard(mg_attn_context *c, int32_t step)
{
    const int32_t group = group_after(c, step);
    mg_attn_map map = c->map;
    map.key_begin = c->first[rank_of(c, group, 0)];
    map.key_end = c->first[rank_of(c, group + 1, 0)];
    if (!may_see(&map, map.key_begin, map.key_end))
        return 0;
    shard s = {.step = step, .keys = map.key_end - map.key_begin, .key_ids = c->ids ? c->ids + map.key_begin : NULL};
    int status = mg_attn_plan_create(&s.plan, &map);
    if (status)
        return status;
    if (s.plan->info.seen_pairs)
        c->shards[c->shard_count++] = s;
    else
        mg_attn_plan_destroy(s.plan);
    return 0;
}

int mg_attn_context_make_ring(mg_attn_context *c)
{
    int status = 0;
    for (int32_t step = 0; step < c->grid.along && !status; step++)
        status = plan_shard(c, step);
    return status;
}

/* --- workspace --- */

static int32_t first_foreign(const mg_attn_context *c) { return c->shard_count && !c->shards[0].step; }

void mg_attn_context_carve_ring(context_run *r)
{
    const mg_attn_context *c = r->c;
    const int32_t foreign = c->shard_count - first_foreign(c);
    int64_t most = 0;
    for (int32_t i = first_foreign(c); i < c->shard_count; i++)
        most = larger_of(most, c->shards[i].keys);
    if (c->grid.across == 1)
        r->kv = mg_attn_context_carve(r, c->reader_count > 0, c->rows, r->key_floats, 1);
    for (int i = 0; i < 2; i++) {
        r->keys[i] = mg_attn_context_carve(r, foreign > i, most, r->key_floats, 1);
        r->gradients[i] = mg_attn_context_carve(r, r->backward && foreign > i, most, r->key_floats, 1);
        r->contributions[i] = mg_attn_context_carve(r, r->backward && c->reader_count > i, c->rows, r->key_floats, 1);
    }
}

/* --- keys and values --- */

static int64_t shard_bytes(const context_run *r, int64_t rows) { return rows * r->key_floats * (int64_t)sizeof(float); }

/* Of two buffers or slots, by turns. */
static int turn(const context_run *r, int32_t index) { return (index - first_foreign(r->c)) & 1; }

static int receive_shard(context_run *r, int32_t index)
{
    const mg_attn_context *c = r->c;
    if (index >= c->shard_count)
        return 0;
    const shard *s = &c->shards[index];
    return mg_attn_messages_receive(&r->messages, RECEIVE + turn(r, index),
                                    rank_of(c, group_after(c, s->step), c->place), TAG_KEYS, r->keys[turn(r, index)],
                                    shard_bytes(r, s->keys));
}

static int begin_shards(context_run *r)
{
    const mg_attn_context *c = r->c;
    const mg_attn_call *call = &r->call;
    int status = receive_shard(r, first_foreign(c));
    if (c->grid.across == 1 && c->reader_count) {
        mg_attn_rows_copy(keys_of(r, r->kv), call->k, c->rows, call->heads, call->dim, call->threads);
        mg_attn_rows_copy(values_of(r, r->kv, c->rows), call->v, c->rows, call->heads, call->value_dim, call->threads);
    }
    for (int32_t i = 0; i < c->reader_count && !status; i++)
        status = mg_attn_messages_send(&r->messages, SEND + i, rank_of(c, group_before(c, c->readers[i]), c->place),
                                       TAG_KEYS, r->kv, shard_bytes(r, c->rows));
    return status;
}

/* Keys and values of a shard, when they are there. */
static int take_shard(mg_attn_tensor *k, mg_attn_tensor *v, context_run *r, int32_t index)
{
    const shard *s = &r->c->shards[index];
    *k = r->call.k;
    *v = r->call.v;
    if (!s->step)
        return 0;
    *k = keys_of(r, r->keys[turn(r, index)]);
    *v = values_of(r, r->keys[turn(r, index)], s->keys);
    const int status = mg_attn_messages_wait(&r->messages, RECEIVE + turn(r, index));
    return status ? status : receive_shard(r, index + 1);
}

int mg_attn_context_ring_forward(context_run *r)
{
    int status = begin_shards(r);
    for (int32_t i = 0; i < r->c->shard_count && !status; i++) {
        mg_attn_tensor k, v;
        status = take_shard(&k, &v, r, i);
        if (!status)
            mg_attn_context_forward_shard(r, i, k, v, i == 0);
    }
    return status ? status : mg_attn_messages_wait_all(&r->messages);
}

/* --- backward --- */

static int receive_contribution(context_run *r, int32_t reader)
{
    const mg_attn_context *c = r->c;
    return mg_attn_messages_receive(&r->messages, CONTRIBUTION + (reader & 1),
                                    rank_of(c, group_before(c, c->readers[reader]), c->place), TAG_GRADIENTS,
                                    r->contributions[reader & 1], shard_bytes(r, c->rows));
}

static int add_contribution(context_run *r, int32_t reader)
{
    const mg_attn_call *call = &r->call;
    float *from = r->contributions[reader & 1];
    int status = mg_attn_messages_wait(&r->messages, CONTRIBUTION + (reader & 1));
    if (!status && call->dk.data)
        mg_attn_rows_add(call->dk, keys_of(r, from), r->c->rows, call->heads, call->dim, call->threads);
    if (!status && call->dv.data)
        mg_attn_rows_add(call->dv, values_of(r, from, r->c->rows), r->c->rows, call->heads, call->value_dim,
                         call->threads);
    return status;
}

static int backward_step(context_run *r, int32_t index)
{
    const mg_attn_context *c = r->c;
    const shard *s = &c->shards[index];
    const int at = turn(r, index);
    mg_attn_tensor k, v;
    int status = take_shard(&k, &v, r, index);
    if (!status && !s->step)
        mg_attn_context_backward_shard(r, index, k, v, r->call.dk, r->call.dv, index == 0, NULL);
    if (status || !s->step)
        return status;
    status = mg_attn_messages_wait(&r->messages, GRADIENT + at);
    if (status)
        return status;
    mg_attn_context_backward_shard(r, index, k, v, keys_of(r, r->gradients[at]),
                                   values_of(r, r->gradients[at], s->keys), index == 0, NULL);
    return mg_attn_messages_send(&r->messages, GRADIENT + at, rank_of(c, group_after(c, s->step), c->place),
                                 TAG_GRADIENTS, r->gradients[at], shard_bytes(r, s->keys));
}

static void zero_unseen(const context_run *r)
{
    const mg_attn_call *call = &r->call;
    if (first_foreign(r->c))
        return;
    if (call->dk.data)
        mg_attn_rows_zero(call->dk, r->c->rows, call->heads, call->dim, call->threads);
    if (call->dv.data)
        mg_attn_rows_zero(call->dv, r->c->rows, call->heads, call->value_dim, call->threads);
}

int mg_attn_context_ring_backward(context_run *r)
{
    const mg_attn_context *c = r->c;
    int status = begin_shards(r);
    int32_t next = 0, posted = 0, added = 0; /* shard, contributions */
    zero_unseen(r);
    for (int32_t step = 0; step < c->grid.along && !status; step++) {
        const int32_t due = posted;
        if (posted < c->reader_count && c->readers[posted] == step)
            status = receive_contribution(r, posted++);
        if (!status && next < c->shard_count && c->shards[next].step == step)
            status = backward_step(r, next++);
        while (added < due && !status)
            status = add_contribution(r, added++);
    }
    while (added < posted && !status)
        status = add_contribution(r, added++);
    return status ? status : mg_attn_messages_wait_all(&r->messages);
}
