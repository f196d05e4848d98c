/* Calls whose pairs are all gathered: no tiles, nothing is packed by head. The heads of a token lie side by side, in
 * the caller's tensor where it is fp32 and has them so, else in a copy, and 8, 4, 2 or 1 of them are done at once:
 *
 *     forward      by query: out, lse
 *     backward     by query: P and dS of the heads at hand to [pairs][2][heads], dq, the table's sums
 *                  by key, over the transposed list: dk, dv
 *
 * Where some heads hide pairs that others see (a table entry of -inf), heads are done one by one, and what is hidden is
 * left out of the lists. Each sum has one owner and the order of its list, whatever the threads. */
#include "near_call.h"
#include "parallel.h"

#include <math.h>
#include <string.h>

enum { LIST_BYTES = 16384 }; /* of gathered rows that stay in the first cache */

typedef struct near_context {
    call_state *s;
    int32_t head, heads; /* at hand */
} near_context;

/* One query's or key's rows, on their way to the caller's tensor. */
typedef float near_row[NEAR_HEADS * MG_ATTN_MAX_DIM];

static int32_t heads_at_once(const call_state *s, int32_t head)
{
    int32_t heads = s->table_hides ? 1 : NEAR_HEADS;
    while (heads > s->call.heads - head)
        heads /= 2;
    return heads;
}

static int is_direct(const mg_attn_tensor *t, mg_attn_type type, int32_t dim, int32_t heads)
{
    return type == MG_ATTN_FP32 && dim % 8 == 0 && (t->head_stride == dim || heads == 1);
}

/* Whether a tensor is used where it lies. */
static int lies_well(const call_state *s, int which)
{
    const mg_attn_call *c = &s->call;
    const mg_attn_type out_type = c->out_fp32 ? MG_ATTN_FP32 : c->type;
    const struct {
        const mg_attn_tensor *tensor;
        mg_attn_type type;
        int32_t dim;
    } of[NEAR_TENSORS] = {{&c->q, c->type, c->dim},
                          {&c->k, c->type, c->dim},
                          {&c->v, c->type, c->value_dim},
                          {&c->dout, out_type, c->value_dim},
                          {&c->out, out_type, c->value_dim}};
    return is_direct(of[which].tensor, of[which].type, of[which].dim, c->heads);
}

/* --- before --- */

typedef struct packing {
    const call_state *s;
    const mg_attn_tensor *from;
    mg_attn_type type;
    float *to;
    int64_t tokens;
    int32_t dim, row;
} packing;

static void pack_tile(void *context, int thread, int64_t step, int64_t tile)
{
    const packing *p = context;
    const int32_t heads = p->s->call.heads;
    (void)thread, (void)step;
    for (int64_t token = tile * TILE; token < smaller_of(tile * TILE + TILE, p->tokens); token++)
        for (int32_t head = 0; head < heads; head++) {
            float *to = p->to + (token * heads + head) * p->row;
            mg_attn_load_row(to, p->from, p->type, token, head, p->dim);
            memset(to + p->dim, 0, (size_t)(p->row - p->dim) * sizeof *to);
        }
}

static void prepare(call_state *s, int which, const mg_attn_tensor *from, int fp32, int64_t tokens, int32_t dim)
{
    near_rows *rows = &s->near[which];
    const mg_attn_type type = fp32 ? MG_ATTN_FP32 : s->call.type;
    packing p = {.s = s, .from = from, .type = type, .tokens = tokens, .dim = dim, .row = round_up(dim, 8)};
    if (lies_well(s, which)) {
        *rows = (near_rows){.data = from->data, .stride = from->token_stride};
        return;
    }
    rows->data = p.to = rows->room;
    rows->stride = (int64_t)s->call.heads * p.row;
    mg_attn_parallel(s->threads, 1, tiles_of(tokens), pack_tile, &p);
}

static void begin(call_state *s)
{
    const mg_attn_call *c = &s->call;
    const mg_attn_plan *plan = s->plan;
    const int32_t codes = plan->map.codes;
    prepare(s, NEAR_Q, &c->q, 0, plan->queries, c->dim);
    prepare(s, NEAR_K, &c->k, 0, plan->keys, c->dim);
    prepare(s, NEAR_V, &c->v, 0, plan->keys, c->value_dim);
    if (s->backward) {
        prepare(s, NEAR_DOUT, &c->dout, c->out_fp32, plan->queries, c->value_dim);
        prepare(s, NEAR_OUT, &c->out, c->out_fp32, plan->queries, c->value_dim);
    }
    for (int32_t head = 0, heads; head < c->heads; head += heads) {
        heads = heads_at_once(s, head);
        for (int32_t code = 0; code < codes; code++)
            for (int32_t h = 0; h < heads; h++)
                s->near_tables[head * codes + code * heads + h] = s->tables[(head + h) * s->table_row + code];
    }
}

static const float *row_of(const call_state *s, int which, int64_t token, int32_t head)
{
    const int32_t row = which == NEAR_Q || which == NEAR_K ? s->row : s->value_row;
    return s->near[which].data + token * s->near[which].stride + head * row;
}

/* --- lists --- */

/* Pairs of a query, at most NEAR_BATCH; hidden ones left out. */
typedef struct batch {
    int32_t count;
    const int32_t *keys;
    const uint8_t *codes;
    int64_t ahead;
    int64_t at[NEAR_BATCH]; /* where some are left out: their places in the plan's pairs */
    int32_t key_room[NEAR_BATCH];
    uint8_t code_room[NEAR_BATCH];
    float keep[NEAR_BATCH * NEAR_HEADS + NEAR_LANES];
} batch;

static void make_keep(batch *b, const near_context *c, int64_t query)
{
    float words[HEAD_GROUP][NEAR_BATCH];
    for (int32_t h = 0; h < c->heads; h++) {
        const int slot = dropout_slot(c->s, c->head + h);
        if (!h || !slot)
            mg_attn_dropout_list(words, c->s, query, b->keys, b->count, c->head + h);
        for (int32_t i = 0; i < b->count; i++)
            b->keep[i * c->heads + h] = words[slot][i];
    }
}

/* Takes pairs from `from` on, `most` at most and not those from `to` on; returns the first that is left. */
static int64_t take(batch *b, const near_context *c, int64_t query, int64_t from, int64_t to, int32_t most)
{
    const mg_attn_plan *plan = c->s->plan;
    const int64_t end = smaller_of(from + most, to);
    b->keys = plan->pair_keys + from;
    b->codes = plan->pair_codes + from;
    b->count = (int32_t)(end - from);
    b->ahead = plan->pairs - from;
    if (c->s->table_hides) {
        const float *table = c->s->near_tables + c->head * plan->map.codes;
        b->count = 0;
        for (; from < end; from++)
            if (table[plan->pair_codes[from]] != -INFINITY) {
                b->at[b->count] = from;
                b->key_room[b->count] = plan->pair_keys[from];
                b->code_room[b->count++] = plan->pair_codes[from];
            }
        b->keys = b->key_room;
        b->codes = b->code_room;
        b->ahead = b->count;
    }
    if (c->s->call.dropout.probability > 0)
        make_keep(b, c, query);
    return end;
}

static near_list list_of(const near_context *c, int64_t query)
{
    const call_state *s = c->s;
    return (near_list){.heads = c->heads,
                       .row = s->row,
                       .value_row = s->value_row,
                       .table = s->near_tables + c->head * s->plan->map.codes,
                       .scale = s->call.scale,
                       .q = row_of(s, NEAR_Q, query, c->head),
                       .k = row_of(s, NEAR_K, 0, c->head),
                       .v = row_of(s, NEAR_V, 0, c->head),
                       .k_stride = s->near[NEAR_K].stride,
                       .v_stride = s->near[NEAR_V].stride};
}

static void set_batch(near_list *l, const batch *b, const call_state *s)
{
    l->count = b->count;
    l->keys = b->keys;
    l->codes = b->codes;
    l->ahead = b->ahead;
    l->keep = s->call.dropout.probability > 0 ? b->keep : NULL;
}

static int32_t batch_pairs(const near_context *c)
{
    const int64_t bytes = (int64_t)c->heads * larger_of(c->s->row, c->s->value_row) * 4;
    return (int32_t)larger_of(NEAR_LANES, smaller_of(NEAR_BATCH, LIST_BYTES / bytes / NEAR_LANES * NEAR_LANES));
}

/* Head h of rows of `row` elements goes to the caller, times factors[h]. */
static void store_heads(const near_context *c, const mg_attn_tensor *to, int bf16, float *rows, const float *factors,
                        int64_t token, int32_t row, int32_t dim)
{
    for (int32_t h = 0; h < c->heads; h++) {
        for (int32_t d = 0; d < dim; d++)
            rows[h * row + d] *= factors[h];
        mg_attn_store_row(to, rows + h * row, bf16, token, c->head + h, dim);
    }
}

static int64_t end_of_tile(int64_t tile, int64_t tokens) { return smaller_of(tile * TILE + TILE, tokens); }

/* --- forward --- */

static void forward_query(const near_context *c, int64_t query)
{
    const call_state *s = c->s;
    const int64_t *starts = s->plan->pair_starts + query;
    const int32_t most = batch_pairs(c);
    near_row out;
    float maximum[NEAR_LANES], sum[NEAR_LANES] = {0}, inverse[NEAR_HEADS];
    batch b;
    near_list l = list_of(c, query);
    l.maximum = maximum, l.sum = sum, l.out = out, l.first = 1;
    for (int i = 0; i < NEAR_LANES; i++)
        maximum[i] = -INFINITY;
    memset(out, 0, (size_t)(c->heads * s->value_row) * sizeof *out);
    for (int64_t at = starts[0]; at < starts[1];) {
        at = take(&b, c, query, at, starts[1], most);
        set_batch(&l, &b, s);
        l.last = at == starts[1];
        if (!l.count)
            continue;
        s->backend->near_forward(&l);
        l.first = 0;
    }
    for (int32_t h = 0; h < c->heads; h++) {
        float total = sum[h];
        for (int i = 1; !l.last && i * c->heads < NEAR_LANES; i++) /* the last pairs were hidden */
            total += sum[h + i * c->heads];
        inverse[h] = total == 0 ? 0 : 1 / total;
        if (s->call.lse)
            s->call.lse[(c->head + h) * s->plan->queries + query] = total == 0 ? -INFINITY : maximum[h] + logf(total);
    }
    store_heads(c, &s->call.out, s->call.type == MG_ATTN_BF16 && !s->call.out_fp32, out, inverse, query, s->value_row,
                s->call.value_dim);
}

static void forward_tile_row(void *context, int thread, int64_t step, int64_t task)
{
    const near_context *c = context;
    const mg_attn_plan *plan = c->s->plan;
    const int64_t tile = plan->row_order[task];
    (void)thread, (void)step;
    for (int64_t query = tile * TILE; query < end_of_tile(tile, plan->queries); query++)
        forward_query(c, query);
}

void mg_attn_near_call_forward(call_state *s)
{
    begin(s);
    near_context c = {.s = s};
    for (; c.head < s->call.heads; c.head += c.heads) {
        c.heads = heads_at_once(s, c.head);
        mg_attn_parallel(s->threads, 1, s->plan->tile_rows, forward_tile_row, &c);
    }
}

/* --- backward, by query --- */

/* Log-sum-exp and D - dlse of the query, repeated; queries that see nothing take no part. */
static void statistics(const near_context *c, int64_t query, float lse[NEAR_LANES], float delta[NEAR_LANES])
{
    const call_state *s = c->s;
    s->backend->near_delta(delta, row_of(s, NEAR_OUT, query, c->head), row_of(s, NEAR_DOUT, query, c->head),
                           s->value_row, c->heads);
    for (int32_t h = 0; h < c->heads; h++) {
        const int64_t at = (int64_t)(c->head + h) * s->plan->queries + query;
        lse[h] = s->call.lse[at];
        delta[h] -= s->call.dlse ? s->call.dlse[at] : 0;
        if (lse[h] == -INFINITY) {
            lse[h] = INFINITY;
            delta[h] = 0;
        }
    }
    for (int i = c->heads; i < NEAR_LANES; i++) {
        lse[i] = lse[i - c->heads];
        delta[i] = delta[i - c->heads];
    }
}

/* P and dS of one head's seen pairs to their places; hidden ones have 0. */
static void spread(float *p_ds, const batch *b, const float *from, int64_t begin, int64_t end)
{
    memset(p_ds + 2 * begin, 0, (size_t)(end - begin) * 2 * sizeof *p_ds);
    for (int32_t i = 0; i < b->count; i++)
        memcpy(p_ds + 2 * b->at[i], from + 2 * i, 2 * sizeof *p_ds);
}

static void backward_query(const near_context *c, int64_t query, float *table_sums)
{
    const call_state *s = c->s;
    const int64_t *starts = s->plan->pair_starts + query;
    const int32_t most = batch_pairs(c);
    near_row dq;
    float lse[NEAR_LANES], delta[NEAR_LANES], p_ds[NEAR_BATCH * 2], scale[NEAR_HEADS];
    batch b;
    near_list l = list_of(c, query);
    statistics(c, query, lse, delta);
    l.dout = row_of(s, NEAR_DOUT, query, c->head);
    l.lse = lse, l.delta = delta, l.table_sums = table_sums;
    l.dq = s->call.dq.data ? dq : NULL;
    memset(dq, 0, (size_t)(c->heads * s->row) * sizeof *dq);
    for (int64_t from = starts[0], at = from; at < starts[1]; from = at) {
        at = take(&b, c, query, from, starts[1], most);
        set_batch(&l, &b, s);
        l.p_ds = s->table_hides ? p_ds : s->near_p_ds + 2 * from * c->heads;
        if (l.count && lse[0] != INFINITY)
            s->backend->near_backward(&l);
        else
            memset(l.p_ds, 0, (size_t)(l.count * 2 * c->heads) * sizeof *l.p_ds);
        if (s->table_hides)
            spread(s->near_p_ds, &b, p_ds, from, at);
    }
    for (int32_t h = 0; h < c->heads; h++)
        scale[h] = s->call.scale;
    if (l.dq)
        store_heads(c, &s->call.dq, s->call.type == MG_ATTN_BF16 && !s->call.gradients_fp32, dq, scale, query, s->row,
                    s->call.dim);
}

static void backward_tile_row(void *context, int thread, int64_t step, int64_t task)
{
    const near_context *c = context;
    const call_state *s = c->s;
    const int64_t tile = s->plan->row_order[task];
    const int32_t codes = s->plan->map.codes, each = NEAR_SUMS * c->heads;
    float sums[MG_ATTN_MAX_CODES * NEAR_SUMS * NEAR_HEADS];
    (void)thread, (void)step;
    if (s->sums)
        memset(sums, 0, (size_t)(codes * each) * sizeof *sums);
    for (int64_t query = tile * TILE; query < end_of_tile(tile, s->plan->queries); query++)
        backward_query(c, query, s->sums ? sums : NULL);
    for (int32_t h = 0; h < c->heads && s->sums; h++)
        for (int32_t code = 0; code < codes; code++)
            for (int i = 0; i < NEAR_SUMS; i++)
                s->sums[((c->head + h) * s->sum_rows + tile) * s->sum_row + code] +=
                    sums[code * each + i * c->heads + h];
}

/* --- backward, by key --- */

/* The pairs of [from, to) in the transposed list of a head that are seen: adds them in batches. */
static void add_seen(const call_state *s, const near_sums *a, int64_t from, int64_t to)
{
    const mg_attn_plan *plan = s->plan;
    int32_t queries[NEAR_BATCH];
    int64_t at[NEAR_BATCH];
    near_sums some = *a;
    some.queries = queries;
    some.at = at;
    while (from < to) {
        for (some.count = 0; from < to && some.count < NEAR_BATCH; from++) {
            const float *p_ds = a->p_ds + 2 * plan->column_pairs[from];
            if (p_ds[0] == 0 && p_ds[1] == 0) /* a hidden pair's query may be anything */
                continue;
            queries[some.count] = plan->column_queries[from];
            at[some.count++] = plan->column_pairs[from];
        }
        some.ahead = some.count;
        s->backend->near_add(&some);
    }
}

static void do_key(const near_context *c, int64_t key)
{
    const call_state *s = c->s;
    const mg_attn_plan *plan = s->plan;
    const mg_attn_call *call = &s->call;
    const int64_t from = plan->column_starts[key], to = plan->column_starts[key + 1];
    const int bf16 = call->type == MG_ATTN_BF16 && !call->gradients_fp32;
    near_row dk, dv;
    float scale[NEAR_HEADS], one[NEAR_HEADS];
    near_sums a = {.heads = c->heads,
                   .row = s->row,
                   .value_row = s->value_row,
                   .count = (int32_t)(to - from),
                   .queries = plan->column_queries + from,
                   .at = plan->column_pairs + from,
                   .ahead = plan->pairs - from,
                   .p_ds = s->near_p_ds,
                   .q = row_of(s, NEAR_Q, 0, c->head),
                   .dout = row_of(s, NEAR_DOUT, 0, c->head),
                   .q_stride = s->near[NEAR_Q].stride,
                   .dout_stride = s->near[NEAR_DOUT].stride,
                   .dk = call->dk.data ? dk : NULL,
                   .dv = call->dv.data ? dv : NULL};
    memset(dk, 0, (size_t)(c->heads * s->row) * sizeof *dk);
    memset(dv, 0, (size_t)(c->heads * s->value_row) * sizeof *dv);
    if (s->table_hides)
        add_seen(s, &a, from, to);
    else
        s->backend->near_add(&a);
    for (int32_t h = 0; h < c->heads; h++) {
        scale[h] = call->scale;
        one[h] = 1;
    }
    if (a.dk)
        store_heads(c, &call->dk, bf16, dk, scale, key, s->row, call->dim);
    if (a.dv)
        store_heads(c, &call->dv, bf16, dv, one, key, s->value_row, call->value_dim);
}

static void do_key_tile(void *context, int thread, int64_t step, int64_t tile)
{
    const near_context *c = context;
    (void)thread, (void)step;
    for (int64_t key = tile * TILE; key < end_of_tile(tile, c->s->plan->keys); key++)
        do_key(c, key);
}

void mg_attn_near_call_backward(call_state *s)
{
    begin(s);
    near_context c = {.s = s};
    for (; c.head < s->call.heads; c.head += c.heads) {
        c.heads = heads_at_once(s, c.head);
        mg_attn_parallel(s->threads, 1, s->plan->tile_rows, backward_tile_row, &c);
        if (s->call.dk.data || s->call.dv.data)
            mg_attn_parallel(s->threads, 1, tiles_of(s->plan->keys), do_key_tile, &c);
    }
}
