/* The part of a call that goes by listed pairs. Nothing is packed by head: the heads of a token lie side by side, in
 * the caller's tensor where it is fp32 and has them so, else in a copy, and 8, 4, 2 or 1 of them are done at once:
 *
 *     forward      by query: out, lse
 *     backward     by query: P and dS of the heads at hand to [pairs][2][heads], dq, the table's sums
 *                  by key, over the transposed list: dk, dv
 *
 * A kernel gets the pairs of some queries or keys that follow each other; a long list of one query goes in parts. Where
 * some heads hide pairs that others see (a bias of -inf), heads are done one by one, and what is hidden is left out of
 * the lists. Each sum has one owner and the order of its list, whatever the threads. */
#include "near_call.h"
#include "backward.h"
#include "parallel.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum {
    LIST_BYTES = 16384,                  /* of gathered rows that stay in the first cache */
    PAST_BYTES = 4 << 20,                /* of a result that is not read again before the caches of a core lose it */
    ROOM = NEAR_HEADS * MG_ATTN_MAX_DIM, /* floats of rows on their way to a caller's tensor */
    ITEMS = NEAR_QUERIES * NEAR_HEADS + NEAR_PAD
};

typedef struct near_context {
    call_state *s;
    int32_t head, heads; /* at hand */
    int64_t key_tile;    /* the first at hand */
} near_context;

static int32_t heads_at_once(const call_state *s, int32_t head)
{
    int32_t heads = s->pairs_hide ? 1 : NEAR_HEADS;
    while (heads > s->call.heads - head)
        heads /= 2;
    return heads;
}

/* Whether heads lie side by side as kernels want them. */
static int lies_well(const mg_attn_tensor *t, int bf16, int32_t dim, int32_t row, int32_t heads)
{
    return !bf16 && dim == row && (t->head_stride == row || heads == 1);
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
    if (lies_well(from, type == MG_ATTN_BF16, dim, p.row, s->call.heads)) {
        *rows = (near_rows){.data = from->data, .stride = from->token_stride};
        return;
    }
    rows->data = p.to = rows->room;
    rows->stride = (int64_t)s->call.heads * p.row;
    mg_attn_parallel(s->threads, 1, tiles_of(tokens), pack_tile, &p);
}

static int has_hidden(const float *bias, int64_t count)
{
    int64_t i = 0;
    while (i < count && bias[i] != -INFINITY)
        i++;
    return i < count;
}

void mg_attn_near_begin(call_state *s)
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
    s->pairs_hide = s->table_hides || (c->key_bias && has_hidden(c->key_bias, c->heads * plan->keys)) ||
                    (c->values && has_hidden(c->values, c->heads * plan->map.near_starts[plan->map.queries]));
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

/* Where a kernel writes rows of some tokens: to the tensor itself, or to a room they are stored from. */
typedef struct target {
    const mg_attn_tensor *tensor;
    int bf16, direct;
    int32_t row, dim;
    float room[ROOM];
} target;

static void set_target(target *t, const near_context *c, const mg_attn_tensor *tensor, int bf16, int32_t row,
                       int32_t dim)
{
    t->tensor = tensor;
    t->bf16 = bf16;
    t->direct = lies_well(tensor, bf16, dim, row, c->s->call.heads);
    t->row = row;
    t->dim = dim;
}

/* Whether what is written there goes past the cache: without it, each line would be read first. */
static int goes_past(const target *t, const near_context *c, int64_t tokens)
{
    const int64_t line = 64, width = (int64_t)c->heads * t->row * 4, stride = t->tensor->token_stride * 4;
    return !t->tensor->data || (t->direct && !c->s->has_tiles && !c->s->pairs_hide &&
                                tokens * c->s->call.heads * t->row * 4 >= PAST_BYTES && width % line == 0 &&
                                stride % line == 0 && (uintptr_t)t->tensor->data % line == 0);
}

/* Stores past the cache are seen by other threads when this returns. */
static void settle(int past)
{
#if defined(__x86_64__)
    if (past)
        _mm_sfence();
#endif
    (void)past;
}

static float *target_rows(target *t, const near_context *c, int64_t token, int64_t *stride)
{
    if (!t->tensor->data)
        return NULL;
    *stride = t->direct ? t->tensor->token_stride : (int64_t)c->heads * t->row;
    return t->direct ? (float *)t->tensor->data + token * *stride + c->head * t->row : t->room;
}

static void store_target(const target *t, const near_context *c, int64_t token, int64_t tokens)
{
    for (int64_t i = 0; i < tokens && t->tensor->data && !t->direct; i++)
        for (int32_t h = 0; h < c->heads; h++)
            mg_attn_store_row(t->tensor, t->room + (i * c->heads + h) * t->row, t->bf16, token + i, c->head + h,
                              t->dim);
}

/* Tokens whose rows fit a target's room. */
static int32_t most_tokens(const near_context *c)
{
    return (int32_t)smaller_of(NEAR_QUERIES, ROOM / (c->heads * larger_of(c->s->row, c->s->value_row)));
}

/* Puts the tiles' part of a gradient where the pairs' will be added. */
static void begin_target(const near_context *c, int which, float *rows, int64_t stride, int32_t row, int64_t token,
                         int64_t tokens)
{
    for (int64_t i = 0; i < tokens && rows; i++)
        for (int32_t h = 0; h < c->heads; h++) {
            if (c->s->has_tiles)
                mg_attn_tile_gradient(rows + i * stride + h * row, c->s, which, token + i, c->head + h);
            else
                memset(rows + i * stride + h * row, 0, (size_t)row * sizeof *rows);
        }
}

/* --- lists --- */

/* Pairs of some queries, or a part of one query's; hidden ones left out. */
typedef struct batch {
    int64_t query, from, to; /* the first query; pairs of the plan */
    int32_t queries, count;
    int first, last;
    int32_t starts[NEAR_QUERIES + 1];
    const int32_t *keys;
    const uint8_t *codes;
    int64_t ahead;
    int64_t at[NEAR_BATCH]; /* where some are left out: their places in the plan's pairs */
    int32_t key_room[NEAR_BATCH + NEAR_PAD];
    uint8_t code_room[NEAR_BATCH + NEAR_PAD];
    float bias[NEAR_BATCH * NEAR_HEADS + NEAR_PAD], keep[NEAR_BATCH * NEAR_HEADS + NEAR_PAD];
} batch;

static int has_own_bias(const call_state *s) { return s->call.values || s->call.key_bias; }

/* Of a pair of the plan, of a head. */
static float bias_of(const call_state *s, int64_t query, int64_t pair, int32_t head)
{
    const mg_attn_plan *plan = s->plan;
    float bias = s->tables[(int64_t)head * s->table_row + plan->pair_codes[pair]];
    if (s->call.key_bias)
        bias += s->call.key_bias[head * plan->keys + plan->pair_keys[pair]];
    if (s->call.values)
        bias += s->call.values[mg_attn_map_pair(s, head, query, plan->pair_offsets[pair])];
    return bias;
}

static void make_keep(batch *b, const near_context *c)
{
    float words[MASK_HEADS][NEAR_BATCH];
    for (int32_t h = 0, heads; h < c->heads; h += heads) {
        const int slot = dropout_slot(c->s, c->head + h);
        heads = (int32_t)smaller_of(c->heads - h, MASK_HEADS - slot);
        mg_attn_dropout_list(words, c->s, b->query, b->queries, b->starts, b->keys, c->head + h);
        for (int32_t i = 0; i < b->count; i++)
            for (int32_t x = 0; x < heads; x++)
                b->keep[i * c->heads + h + x] = words[slot + x][i];
    }
}

/* Leaves out what the one head at hand hides. */
static void leave_out(batch *b, const near_context *c)
{
    const mg_attn_plan *plan = c->s->plan;
    int32_t count = 0;
    for (int32_t j = 0, next = b->starts[0]; j < b->queries; j++) {
        const int32_t from = next;
        next = b->starts[j + 1];
        for (int64_t pair = b->from + from; pair < b->from + next; pair++)
            if (bias_of(c->s, b->query + j, pair, c->head) != -INFINITY) {
                b->at[count] = pair;
                b->key_room[count] = plan->pair_keys[pair];
                b->code_room[count++] = plan->pair_codes[pair];
            }
        b->starts[j + 1] = count;
    }
    memset(b->key_room + count, 0, NEAR_PAD * sizeof *b->key_room);
    memset(b->code_room + count, 0, NEAR_PAD);
    b->keys = b->key_room;
    b->codes = b->code_room;
    b->ahead = b->count = count;
}

static int64_t pair_at(const batch *b, const call_state *s, int32_t i)
{
    return s->pairs_hide ? b->at[i] : b->from + i;
}

/* The next batch of the queries before `end`, with at most `most` pairs; 0: there is none. The first has `last` set and
   no queries. */
static int next_batch(batch *b, const near_context *c, int64_t end, int32_t most)
{
    const mg_attn_plan *plan = c->s->plan;
    const int64_t *starts = plan->pair_starts;
    b->first = b->last;
    if (b->first)
        b->query += b->queries;
    if (b->query >= end)
        return 0;
    b->from = b->first ? starts[b->query] : b->to;
    b->queries = 1;
    b->to = smaller_of(b->from + most, starts[b->query + 1]);
    b->last = b->to == starts[b->query + 1];
    while (b->first && b->last && b->query + b->queries < end && b->queries < most_tokens(c) &&
           starts[b->query + b->queries + 1] - b->from <= most)
        b->to = starts[b->query + ++b->queries];
    b->starts[0] = 0;
    for (int32_t j = 1; j <= b->queries; j++)
        b->starts[j] = (int32_t)(smaller_of(starts[b->query + j], b->to) - b->from);
    b->count = b->starts[b->queries];
    b->keys = plan->pair_keys + b->from;
    b->codes = plan->pair_codes + b->from;
    b->ahead = plan->pairs - b->from;
    if (c->s->pairs_hide)
        leave_out(b, c);
    for (int32_t j = 0; j < b->queries && has_own_bias(c->s); j++)
        for (int32_t i = b->starts[j]; i < b->starts[j + 1]; i++)
            for (int32_t h = 0; h < c->heads; h++)
                b->bias[i * c->heads + h] = bias_of(c->s, b->query + j, pair_at(b, c->s, i), c->head + h);
    if (c->s->call.dropout.probability > 0)
        make_keep(b, c);
    return 1;
}

/* What all batches of the heads at hand have in common. */
static near_list list_of(const near_context *c)
{
    const call_state *s = c->s;
    return (near_list){.heads = c->heads,
                       .row = s->row,
                       .value_row = s->value_row,
                       .code_count = s->plan->pair_code_end,
                       .table = s->near_tables + c->head * s->plan->map.codes,
                       .scale = s->call.scale,
                       .k = row_of(s, NEAR_K, 0, c->head),
                       .v = row_of(s, NEAR_V, 0, c->head),
                       .q_stride = s->near[NEAR_Q].stride,
                       .k_stride = s->near[NEAR_K].stride,
                       .v_stride = s->near[NEAR_V].stride,
                       .dout_stride = s->near[NEAR_DOUT].stride};
}

static void set_batch(near_list *l, const near_context *c, const batch *b)
{
    const call_state *s = c->s;
    l->queries = b->queries;
    l->count = b->count;
    l->starts = b->starts;
    l->keys = b->keys;
    l->ahead = b->ahead;
    l->codes = b->codes;
    l->bias = has_own_bias(s) ? b->bias : NULL;
    l->keep = s->call.dropout.probability > 0 ? b->keep : NULL;
    l->q = row_of(s, NEAR_Q, b->query, c->head);
    l->first = b->first;
    l->last = b->last;
}

static int32_t batch_pairs(const near_context *c)
{
    const int64_t bytes = (int64_t)c->heads * larger_of(c->s->row, c->s->value_row) * 4;
    return (int32_t)larger_of(NEAR_PAD, smaller_of(NEAR_BATCH, LIST_BYTES / bytes / NEAR_PAD * NEAR_PAD));
}

static int64_t end_of_tile(int64_t tile, int64_t tokens) { return smaller_of(tile * TILE + TILE, tokens); }

/* --- forward --- */

/* lse [heads][queries of the plan] of log_sums [queries][heads] */
static void store_lse(float *lse, const near_context *c, int32_t queries, const float *log_sums)
{
    for (int32_t h = 0; h < c->heads; h++)
        for (int32_t j = 0; j < queries; j++)
            lse[h * c->s->plan->queries + j] = log_sums[j * c->heads + h];
}

static void forward_tile_row(void *context, int thread, int64_t step, int64_t task)
{
    const near_context *c = context;
    const call_state *s = c->s;
    const mg_attn_plan *plan = s->plan;
    const int64_t tile = plan->row_order[task], end = end_of_tile(tile, plan->queries);
    const int32_t most = batch_pairs(c);
    const mg_attn_tensor part = {s->part, (int64_t)s->call.heads * s->value_row, s->value_row};
    float maximum[ITEMS], sum[ITEMS], log_sums[ITEMS], *lse = s->has_tiles ? s->part_lse : s->call.lse;
    near_list l = list_of(c);
    target out;
    batch b = {.query = tile * TILE, .last = 1};
    (void)thread, (void)step;
    if (s->has_tiles)
        set_target(&out, c, &part, 0, s->value_row, s->value_row);
    else
        set_target(&out, c, &s->call.out, s->call.type == MG_ATTN_BF16 && !s->call.out_fp32, s->value_row,
                   s->call.value_dim);
    l.maximum = maximum, l.sum = sum, l.log_sums = lse ? log_sums : NULL;
    const int past = goes_past(&out, c, plan->queries);
    while (next_batch(&b, c, end, most)) {
        set_batch(&l, c, &b);
        l.rows_past = past && b.first && b.last;
        l.out = target_rows(&out, c, b.query, &l.out_stride);
        s->backend->near_forward(&l);
        if (!b.last)
            continue;
        store_target(&out, c, b.query, b.queries);
        if (lse)
            store_lse(lse + c->head * plan->queries + b.query, c, b.queries, log_sums);
    }
    settle(past);
}

void mg_attn_near_forward(call_state *s)
{
    near_context c = {.s = s};
    for (; c.head < s->call.heads; c.head += c.heads) {
        c.heads = heads_at_once(s, c.head);
        mg_attn_parallel(s->threads, 1, s->plan->tile_rows, forward_tile_row, &c);
    }
}

/* --- backward, by query --- */

/* Log-sum-exp and D - dlse; queries that see nothing take no part. */
static void statistics(float *lse, float *delta, const near_context *c, const batch *b)
{
    const call_state *s = c->s;
    s->backend->near_delta(&(near_delta){.heads = c->heads,
                                         .value_row = s->value_row,
                                         .queries = b->queries,
                                         .out = row_of(s, NEAR_OUT, b->query, c->head),
                                         .dout = row_of(s, NEAR_DOUT, b->query, c->head),
                                         .out_stride = s->near[NEAR_OUT].stride,
                                         .dout_stride = s->near[NEAR_DOUT].stride,
                                         .delta = delta});
    for (int32_t h = 0; h < c->heads; h++) {
        const int64_t at = (c->head + h) * s->plan->queries + b->query;
        const float *from = s->call.lse + at, *dlse = s->call.dlse ? s->call.dlse + at : NULL;
        for (int32_t j = 0, i = h; j < b->queries; j++, i += c->heads) {
            const int none = from[j] == -INFINITY;
            lse[i] = none ? INFINITY : from[j];
            delta[i] = none ? 0 : dlse ? delta[i] - dlse[j] : delta[i];
        }
    }
}

/* P and dS to their places; pairs that are left out have 0. */
static void spread(const near_context *c, const batch *b, const float *p_ds)
{
    float *to = c->s->near_p_ds;
    if (!c->s->pairs_hide)
        return;
    memset(to + 2 * b->from, 0, (size_t)(b->to - b->from) * 2 * sizeof *to);
    for (int32_t i = 0; i < b->count; i++)
        memcpy(to + 2 * b->at[i], p_ds + 2 * i, 2 * sizeof *to);
}

static void store_value_gradients(const near_context *c, const batch *b, const float *p_ds)
{
    const call_state *s = c->s;
    for (int32_t j = 0; j < b->queries; j++)
        for (int32_t i = b->starts[j]; i < b->starts[j + 1]; i++)
            for (int32_t h = 0; h < c->heads; h++)
                s->call
                    .dvalues[mg_attn_map_pair(s, c->head + h, b->query + j, s->plan->pair_offsets[pair_at(b, s, i)])] =
                    p_ds[(2 * i + 1) * c->heads + h];
}

static void backward_tile_row(void *context, int thread, int64_t step, int64_t task)
{
    const near_context *c = context;
    const call_state *s = c->s;
    const mg_attn_call *call = &s->call;
    const int64_t tile = s->plan->row_order[task], end = end_of_tile(tile, s->plan->queries);
    const int32_t codes = s->plan->map.codes, most = batch_pairs(c);
    float sums[MG_ATTN_MAX_CODES * NEAR_SUMS], lse[ITEMS], delta[ITEMS], some[NEAR_BATCH * 2];
    near_list l = list_of(c);
    target dq;
    batch b = {.query = tile * TILE, .last = 1};
    (void)thread, (void)step;
    set_target(&dq, c, &call->dq, call->type == MG_ATTN_BF16 && !call->gradients_fp32, s->row, call->dim);
    if (s->sums)
        memset(sums, 0, (size_t)(codes * NEAR_SUMS) * sizeof *sums);
    l.lse = lse, l.delta = delta, l.table_sums = s->sums ? sums : NULL;
    l.p_ds_past = !s->pairs_hide && s->plan->pairs * c->heads * 8 >= PAST_BYTES;
    const int past = goes_past(&dq, c, s->plan->queries);
    while (next_batch(&b, c, end, most)) {
        set_batch(&l, c, &b);
        statistics(lse, delta, c, &b);
        l.dout = row_of(s, NEAR_DOUT, b.query, c->head);
        l.dq = target_rows(&dq, c, b.query, &l.dq_stride);
        l.add = s->has_tiles || !b.first;
        l.rows_past = past && b.first && b.last;
        if (s->has_tiles && b.first)
            begin_target(c, GRADIENT_Q, l.dq, l.dq_stride, s->row, b.query, b.queries);
        l.p_ds = s->pairs_hide ? some : s->near_p_ds + 2 * b.from * c->heads;
        s->backend->near_backward(&l);
        spread(c, &b, l.p_ds);
        if (call->dvalues)
            store_value_gradients(c, &b, l.p_ds);
        if (b.last)
            store_target(&dq, c, b.query, b.queries);
    }
    settle(past || l.p_ds_past);
    for (int32_t h = 0; h < c->heads && s->sums; h++)
        for (int32_t code = 0; code < codes; code++)
            for (int i = h; i < NEAR_SUMS; i += c->heads)
                sums_of(s, c->head + h, tile)[code] += sums[code * NEAR_SUMS + i];
}

/* --- backward, by key --- */

/* Hidden pairs' queries may be anything: adds the pairs that are seen, in parts, key by key. */
static void add_seen(const call_state *s, const near_sums *a)
{
    const mg_attn_plan *plan = s->plan;
    int32_t queries[NEAR_BATCH];
    int64_t at[NEAR_BATCH], part[2] = {0};
    near_sums some = *a;
    some.keys = 1, some.starts = part, some.queries = queries, some.at = at;
    for (int32_t j = 0; j < a->keys; j++) {
        for (int64_t from = a->starts[j]; from < a->starts[j + 1];) {
            for (part[1] = 0; from < a->starts[j + 1] && part[1] < NEAR_BATCH; from++) {
                const float *p_ds = a->p_ds + 2 * plan->column_pairs[from];
                if (p_ds[0] == 0 && p_ds[1] == 0)
                    continue;
                queries[part[1]] = plan->column_queries[from];
                at[part[1]++] = plan->column_pairs[from];
            }
            some.ahead = part[1];
            s->backend->near_add(&some);
        }
        some.dk += some.dk ? some.dk_stride : 0;
        some.dv += some.dv ? some.dv_stride : 0;
    }
}

static void store_key_bias(const near_context *c, int64_t key)
{
    const call_state *s = c->s;
    const mg_attn_plan *plan = s->plan;
    for (int32_t h = 0; h < c->heads; h++) {
        float sum = s->has_tiles ? mg_attn_tile_key_bias(s, key, c->head + h) : 0;
        for (int64_t at = plan->column_starts[key]; at < plan->column_starts[key + 1]; at++)
            sum += s->near_p_ds[(2 * plan->column_pairs[at] + 1) * c->heads + h];
        s->call.dkey_bias[(c->head + h) * plan->keys + key] = sum;
    }
}

static void backward_key_tile(void *context, int thread, int64_t step, int64_t task)
{
    const near_context *c = context;
    const int64_t tile = c->key_tile + task;
    const call_state *s = c->s;
    const mg_attn_plan *plan = s->plan;
    const mg_attn_call *call = &s->call;
    const int64_t end = end_of_tile(tile, plan->keys);
    const int32_t most = most_tokens(c);
    const int bf16 = call->type == MG_ATTN_BF16 && !call->gradients_fp32;
    target dk, dv;
    (void)thread, (void)step;
    set_target(&dk, c, &call->dk, bf16, s->row, call->dim);
    set_target(&dv, c, &call->dv, bf16, s->value_row, call->value_dim);
    const int past = goes_past(&dk, c, plan->keys) && goes_past(&dv, c, plan->keys);
    for (int64_t key = tile * TILE, keys; key < end; key += keys) {
        keys = smaller_of(most, end - key);
        near_sums a = {.heads = c->heads,
                       .row = s->row,
                       .value_row = s->value_row,
                       .keys = (int32_t)keys,
                       .starts = plan->column_starts + key,
                       .queries = plan->column_queries,
                       .at = plan->column_pairs,
                       .ahead = plan->pairs,
                       .p_ds = s->near_p_ds,
                       .q = row_of(s, NEAR_Q, 0, c->head),
                       .dout = row_of(s, NEAR_DOUT, 0, c->head),
                       .q_stride = s->near[NEAR_Q].stride,
                       .dout_stride = s->near[NEAR_DOUT].stride,
                       .scale = call->scale,
                       .add = s->has_tiles || s->pairs_hide,
                       .rows_past = past};
        a.dk = target_rows(&dk, c, key, &a.dk_stride);
        a.dv = target_rows(&dv, c, key, &a.dv_stride);
        if (a.add) {
            begin_target(c, GRADIENT_K, a.dk, a.dk_stride, s->row, key, keys);
            begin_target(c, GRADIENT_V, a.dv, a.dv_stride, s->value_row, key, keys);
        }
        if (s->pairs_hide)
            add_seen(s, &a);
        else
            s->backend->near_add(&a);
        store_target(&dk, c, key, keys);
        store_target(&dv, c, key, keys);
        for (int64_t i = key; i < key + keys && call->dkey_bias; i++)
            store_key_bias(c, i);
    }
    settle(past);
}

/* Key tiles [begin, end). */
static void backward_keys(near_context *c, int64_t begin, int64_t end)
{
    const mg_attn_call *call = &c->s->call;
    c->key_tile = begin;
    if (call->dk.data || call->dv.data || call->dkey_bias)
        mg_attn_parallel(c->s->threads, 1, end - begin, backward_key_tile, c);
}

int mg_attn_near_backward(call_state *s, const last_keys *last)
{
    const int64_t tiles = tiles_of(s->plan->keys), waited_for = last ? last->from / TILE : 0;
    near_context c = {.s = s};
    int status = 0;
    for (; c.head < s->call.heads; c.head += c.heads) {
        c.heads = heads_at_once(s, c.head);
        mg_attn_parallel(s->threads, 1, s->plan->tile_rows, backward_tile_row, &c);
        backward_keys(&c, waited_for, tiles);
        if (last && c.head + c.heads == s->call.heads)
            status = last->then(last->context);
        backward_keys(&c, 0, waited_for);
    }
    return status;
}
