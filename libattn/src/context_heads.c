/* All-to-all: own rows of all heads become all rows of the group for own heads, and results come back. Rows arrive
 * where they belong; what leaves is packed by rank, but for results, whose rows of a rank lie together. */
#include "context.h"

#include <string.h>

enum { KINDS = 6 }; /* messages of a pair of ranks, one way */

int32_t mg_attn_context_heads_slots(const mg_attn_context *c) { return 2 * KINDS * c->grid.across; }

static int32_t slot_of(const mg_attn_context *c, int receives, int32_t place, int kind)
{
    return (receives * c->grid.across + place) * KINDS + kind;
}

/* Rows of a rank of the group within the group's. */
static int64_t row_of(const mg_attn_context *c, int32_t place)
{
    return c->first[rank_of(c, c->group, place)] - c->begin;
}
static int64_t rows_at(const mg_attn_context *c, int32_t place) { return rows_of_rank(c, rank_of(c, c->group, place)); }
static int32_t after(const mg_attn_context *c, int32_t s) { return (c->place + s) % c->grid.across; }
static int32_t before(const mg_attn_context *c, int32_t s) { return (c->place + c->grid.across - s) % c->grid.across; }

/* A tensor on both sides. */
typedef struct moved {
    mg_attn_tensor given; /* [own rows][all heads][dim] */
    mg_attn_tensor group; /* [rows of the group][own heads][dim], packed */
    int32_t dim;
} moved;

static int list_in(moved list[KINDS], const context_run *r)
{
    const mg_attn_call *given = &r->given, *call = &r->call;
    list[0] = (moved){given->q, call->q, call->dim};
    list[1] = (moved){given->k, call->k, call->dim};
    list[2] = (moved){given->v, call->v, call->value_dim};
    list[3] = (moved){given->out, call->out, call->value_dim};
    list[4] = (moved){given->dout, call->dout, call->value_dim};
    return r->backward ? 5 : 3;
}

static int list_out(moved list[KINDS], const context_run *r)
{
    const mg_attn_call *given = &r->given, *call = &r->call;
    list[0] = (moved){given->out, call->out, call->value_dim};
    if (!r->backward)
        return 1;
    list[0] = (moved){given->dq, call->dq, call->dim};
    list[1] = (moved){given->dk, call->dk, call->dim};
    list[2] = (moved){given->dv, call->dv, call->value_dim};
    return 3;
}

void mg_attn_context_carve_heads(context_run *r)
{
    const mg_attn_context *c = r->c;
    mg_attn_call *call = &r->call;
    const int64_t rows = c->rows, heads = call->heads, dim = call->dim, value_dim = call->value_dim;
    const int backward = r->backward;
    r->q = mg_attn_context_carve(r, 1, rows, heads, dim);
    r->kv = mg_attn_context_carve(r, 1, rows, r->key_floats, 1);
    r->out = mg_attn_context_carve(r, 1, rows, heads, value_dim);
    r->lse = mg_attn_context_carve(r, 1, rows, heads, 1);
    r->dout = mg_attn_context_carve(r, backward, rows, heads, value_dim);
    r->dq = mg_attn_context_carve(r, backward, rows, heads, dim);
    r->dkv = mg_attn_context_carve(r, backward, rows, r->key_floats, 1);
    r->away = mg_attn_context_carve(r, 1, c->own, c->heads - heads, 2 * dim + (backward ? 3 : 1) * value_dim);
    r->away_lse = mg_attn_context_carve(r, 1, rows, heads, 1);
    if (!backward && !r->given.lse)
        r->given.lse = mg_attn_context_carve(r, 1, c->own, c->heads, 1);
    call->q = packed_rows(r->q, call->heads, call->dim);
    call->k = keys_of(r, r->kv);
    call->v = values_of(r, r->kv, rows);
    call->out = packed_rows(r->out, call->heads, call->value_dim);
    call->dout = packed_rows(r->dout, call->heads, call->value_dim);
    call->lse = r->lse;
    call->dq = packed_rows(r->dq, call->heads, call->dim);
    call->dk = keys_of(r, r->dkv);
    call->dv = values_of(r, r->dkv, rows);
}

/* Rows of `dim` of one rank of the group: where they begin, and their bytes. */
static float *group_rows(const context_run *r, const moved *m, int32_t place)
{
    return (float *)m->group.data + row_of(r->c, place) * r->call.heads * m->dim;
}
static int64_t group_bytes(const context_run *r, int32_t place, int32_t dim)
{
    return rows_at(r->c, place) * r->call.heads * dim * (int64_t)sizeof(float);
}
static int64_t away_bytes(const context_run *r, int32_t place, int32_t dim)
{
    return r->c->own * heads_of(r->c, place) * dim * (int64_t)sizeof(float);
}

static void copy_own(const context_run *r, const moved *m, int in)
{
    const mg_attn_context *c = r->c;
    const mg_attn_tensor given = rows_from(m->given, 0, c->head_begin),
                         group = rows_from(m->group, row_of(c, c->place), 0);
    if (c->own && given.data)
        mg_attn_rows_copy(in ? group : given, in ? given : group, c->own, r->call.heads, m->dim, r->call.threads);
}

/* --- lse: [heads][rows] on both sides; of one rank, [own heads][its rows] in away_lse --- */

static void copy_lse(const context_run *r, int32_t place, int in)
{
    const mg_attn_context *c = r->c;
    const int64_t rows = rows_at(c, place);
    float *away = r->away_lse + row_of(c, place) * r->call.heads, *group = r->lse + row_of(c, place);
    for (int32_t h = 0; h < r->call.heads; h++) {
        float *one = place == c->place ? r->given.lse + (c->head_begin + h) * rows : away + h * rows;
        memcpy(in ? group + h * c->rows : one, in ? one : group + h * c->rows, (size_t)rows * sizeof *one);
    }
}

static int exchange_lse(context_run *r, int in)
{
    const mg_attn_context *c = r->c;
    const int kind = KINDS - 1;
    int status = 0;
    for (int32_t s = 1; s < c->grid.across && !status; s++) {
        const int32_t to = after(c, s), from = before(c, s);
        float *sent = in ? r->given.lse + head_begin_of(c, to) * c->own : r->away_lse + row_of(c, to) * r->call.heads;
        float *received =
            in ? r->away_lse + row_of(c, from) * r->call.heads : r->given.lse + head_begin_of(c, from) * c->own;
        if (!in)
            copy_lse(r, to, 0);
        status = mg_attn_messages_receive(&r->messages, slot_of(c, 1, from, kind), rank_of(c, c->group, from),
                                          TAG_HEADS, received, in ? group_bytes(r, from, 1) : away_bytes(r, from, 1));
        if (!status)
            status = mg_attn_messages_send(&r->messages, slot_of(c, 0, to, kind), rank_of(c, c->group, to), TAG_HEADS,
                                           sent, in ? away_bytes(r, to, 1) : group_bytes(r, to, 1));
    }
    return status;
}

/* --- in --- */

static int receive_in(context_run *r, const moved *list, int kinds)
{
    const mg_attn_context *c = r->c;
    int status = 0;
    for (int32_t s = 1; s < c->grid.across; s++)
        for (int k = 0; k < kinds && !status; k++)
            status = mg_attn_messages_receive(
                &r->messages, slot_of(c, 1, before(c, s), k), rank_of(c, c->group, before(c, s)), TAG_HEADS,
                group_rows(r, &list[k], before(c, s)), group_bytes(r, before(c, s), list[k].dim));
    return status;
}

static int send_in(context_run *r, const moved *list, int kinds)
{
    const mg_attn_context *c = r->c;
    float *away = r->away;
    int status = 0;
    for (int32_t s = 1; s < c->grid.across; s++) {
        const int32_t to = after(c, s), heads = heads_of(c, to);
        for (int k = 0; k < kinds && !status; k++) {
            const moved *m = &list[k];
            mg_attn_rows_copy(packed_rows(away, heads, m->dim), rows_from(m->given, 0, head_begin_of(c, to)), c->own,
                              heads, m->dim, r->call.threads);
            status = mg_attn_messages_send(&r->messages, slot_of(c, 0, to, k), rank_of(c, c->group, to), TAG_HEADS,
                                           away, away_bytes(r, to, m->dim));
            away += c->own * heads * m->dim;
        }
    }
    return status;
}

int mg_attn_context_heads_in(context_run *r)
{
    moved list[KINDS];
    const int kinds = list_in(list, r);
    int status = receive_in(r, list, kinds);
    if (!status)
        status = send_in(r, list, kinds);
    if (!status && r->backward)
        status = exchange_lse(r, 1);
    for (int k = 0; k < kinds && !status; k++)
        copy_own(r, &list[k], 1);
    if (!status)
        status = mg_attn_messages_wait_all(&r->messages);
    for (int32_t place = 0; place < r->c->grid.across && !status && r->backward; place++)
        copy_lse(r, place, 1);
    return status;
}

/* --- out --- */

static int exchange_out(context_run *r, const moved *list, int kinds)
{
    const mg_attn_context *c = r->c;
    float *away = r->away;
    int status = 0;
    for (int32_t s = 1; s < c->grid.across; s++) {
        const int32_t to = after(c, s), from = before(c, s);
        for (int k = 0; k < kinds && !status; k++) {
            status = mg_attn_messages_receive(&r->messages, slot_of(c, 1, from, k), rank_of(c, c->group, from),
                                              TAG_HEADS, away, away_bytes(r, from, list[k].dim));
            away += c->own * heads_of(c, from) * list[k].dim;
            if (!status)
                status = mg_attn_messages_send(&r->messages, slot_of(c, 0, to, k), rank_of(c, c->group, to), TAG_HEADS,
                                               group_rows(r, &list[k], to), group_bytes(r, to, list[k].dim));
        }
    }
    return status;
}

static void unpack_out(const context_run *r, const moved *list, int kinds)
{
    const mg_attn_context *c = r->c;
    float *away = r->away;
    for (int32_t s = 1; s < c->grid.across; s++) {
        const int32_t from = before(c, s), heads = heads_of(c, from);
        for (int k = 0; k < kinds; k++) {
            const moved *m = &list[k];
            if (c->own && m->given.data)
                mg_attn_rows_copy(rows_from(m->given, 0, head_begin_of(c, from)), packed_rows(away, heads, m->dim),
                                  c->own, heads, m->dim, r->call.threads);
            away += c->own * heads * m->dim;
        }
    }
}

int mg_attn_context_heads_out(context_run *r)
{
    moved list[KINDS];
    const int kinds = list_out(list, r);
    int status = exchange_out(r, list, kinds);
    if (!status && !r->backward)
        status = exchange_lse(r, 0);
    for (int k = 0; k < kinds && !status; k++)
        copy_own(r, &list[k], 0);
    if (!status && !r->backward)
        copy_lse(r, r->c->place, 0);
    if (!status)
        status = mg_attn_messages_wait_all(&r->messages);
    if (!status)
        unpack_out(r, list, kinds);
    return status;
}

int64_t mg_attn_context_heads_bytes(const mg_attn_context *c, int32_t dim, int backward)
{
    const int64_t in = backward ? 5 * dim + 1 : 3 * dim, out = backward ? 3 * dim : dim + 1;
    int64_t floats = 0;
    for (int32_t place = 0; place < c->grid.across; place++)
        if (place != c->place)
            floats += c->own * heads_of(c, place) * in + rows_at(c, place) * heads_of(c, c->place) * out;
    return floats * (int64_t)sizeof(float);
}
