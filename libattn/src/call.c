/* Checking a call and laying out its workspace. */
#include "amx.h"
#include "call.h"
#include "check.h"
#include "library.h"
#include "near_call.h"
#include "parallel.h"

#include <string.h>

/* Hands out pieces of the workspace; with base NULL it only measures. */
typedef struct carver {
    char *base;
    int64_t used;
    int overflow;
} carver;

static void *carve(carver *c, int wanted, int64_t a, int64_t b, int64_t bytes_each)
{
    int64_t bytes;
    if (!wanted)
        return NULL;
    if (__builtin_mul_overflow(a, b, &bytes) || __builtin_mul_overflow(bytes, bytes_each, &bytes) ||
        bytes > INT64_MAX - 64 || __builtin_add_overflow(c->used, (bytes + 63) / 64 * 64, &bytes)) {
        c->overflow = 1;
        return NULL;
    }
    void *piece = c->base ? c->base + c->used : NULL;
    c->used = bytes;
    return piece;
}

static void carve_band(call_state *s, carver *c)
{
    const mg_attn_plan *plan = s->plan;
    const int stream = plan->map.kind == MG_ATTN_STREAM;
    s->band = (band){.rows = plan->tile_rows};
    if (!stream)
        return;
    s->band.rows = mg_attn_plan_band_tile_rows(plan);
    s->band.stride = plan->tile_columns * TILE + TILE; /* not a multiple of 4096 */
    s->band.tiles = carve(c, 1, s->band.rows, plan->tile_columns, sizeof(plan_tile));
    s->band.counts = carve(c, 1, s->band.rows, 1, sizeof(int64_t));
    s->band.codes = carve(c, 1, s->band.rows * TILE, s->band.stride, 1);
}

static void carve_side(packed *p, call_state *s, carver *c, int64_t tiles, int rows)
{
    const int64_t units = (int64_t)s->call.heads * tiles;
    /* In pairs: v of forward in words of two keys, all else in words of two dims. */
    const int32_t each = s->paired ? 2 : 1, of_dims = s->backward ? each : 1, of_keys = s->backward ? 1 : each;
    p->tiles = tiles;
    p->tile_floats[0] = (int64_t)round_up(s->dim1, each) / each * TILE;
    p->tile_floats[1] = (int64_t)round_up(s->call.value_dim, of_dims) / of_dims * TILE / of_keys;
    for (int part = 0; part < 2; part++)
        p->tiled[part] = carve(c, 1, units, p->tile_floats[part], sizeof(float));
    p->rows = carve(c, rows, units, (int64_t)s->row * TILE / each, sizeof(float));
    p->bad = carve(c, 1, units, 1, 1);
}

/* Gradients, and what queries' rows need. */
static void carve_gradients(call_state *s, carver *c)
{
    const mg_attn_plan *plan = s->plan;
    const mg_attn_call *call = &s->call;
    const int64_t rows = (int64_t)call->heads * plan->tile_rows * TILE,
                  units = (int64_t)call->heads * plan->tile_columns;
    s->dq_row = s->bf16 ? round_up(call->dim, 16) : s->row;
    s->dk_rows = s->bf16 ? round_up(call->dim, 16) : s->dim1;
    s->dv_rows = s->bf16 ? round_up(call->value_dim, 16) : call->value_dim;
    s->lse = carve(c, 1, rows, 1, sizeof(float));
    s->delta = carve(c, 1, rows, 1, sizeof(float));
    s->dq = carve(c, call->dq.data != NULL, rows, s->dq_row, sizeof(float));
    s->dk = carve(c, call->dk.data || call->dkey_bias, units, (int64_t)s->dk_rows * TILE, sizeof(float));
    s->dv = carve(c, call->dv.data != NULL, units, (int64_t)s->dv_rows * TILE, sizeof(float));
}

static void carve_fp32(call_state *s, carver *c)
{
    const mg_attn_plan *plan = s->plan;
    carve_side(&s->keys, s, c, plan->tile_columns, s->backward && s->call.dq.data);
    if (!s->backward)
        return;
    carve_side(&s->queries, s, c, plan->tile_rows, 0);
    for (int part = 0; part < 2; part++)
        s->turned[part] = carve(c, s->paired, (int64_t)s->call.heads * plan->tile_rows,
                                (int64_t)(part ? s->call.value_dim : s->call.dim) * (TILE / 2), sizeof(float));
    carve_gradients(s, c);
}

static void carve_bf16(call_state *s, carver *c)
{
    const int64_t of_keys = s->call.heads * s->plan->tile_columns * TILE,
                  of_queries = s->call.heads * s->plan->tile_rows * TILE;
    const int32_t steps = round_up(s->call.dim, STEP), value_steps = round_up(s->call.value_dim, STEP),
                  wide = round_up(s->call.dim, 16), value_wide = round_up(s->call.value_dim, 16);
    const struct {
        int64_t tokens;
        int32_t wide;
        int backward, forward;
    } of[HALF_TENSORS] = {[HALF_K] = {of_keys, steps, 1, 1},
                    [HALF_V] = {of_keys, s->backward ? value_steps : value_wide, 1, 1},
                    [HALF_PAIRED_K] = {of_keys, wide, s->call.dq.data != NULL, 0},
                    [HALF_Q] = {of_queries, steps, 1, 0},
                    [HALF_DOUT] = {of_queries, value_steps, 1, 0},
                    [HALF_TURNED_Q] = {of_queries, wide, s->call.dk.data != NULL, 0},
                    [HALF_TURNED_DOUT] = {of_queries, value_wide, s->call.dv.data != NULL, 0}};
    for (int i = 0; i < HALF_TENSORS; i++)
        s->half[i] = carve(c, s->backward ? of[i].backward : of[i].forward, of[i].tokens, of[i].wide, sizeof(uint16_t));
    s->keys.tiles = s->plan->tile_columns;
    s->queries.tiles = s->plan->tile_rows;
    s->keys.bad = carve(c, 1, s->call.heads, s->keys.tiles, 1);
    s->queries.bad = carve(c, s->backward, s->call.heads, s->queries.tiles, 1);
    if (s->backward)
        carve_gradients(s, c);
}

/* Tokens and gradients in bf16 lie where those in fp32 would, and give way to them where a call needs fp32 after all.
 */
static void carve_tokens(call_state *s, carver *c)
{
    const int64_t begin = c->used;
    int64_t end = begin;
    if (s->could_bf16) {
        const int bf16 = s->bf16;
        s->bf16 = !bf16;
        bf16 ? carve_fp32(s, c) : carve_bf16(s, c);
        s->bf16 = bf16;
        end = c->used;
        c->used = begin;
    }
    if (s->could_be_paired) {
        const int paired = s->paired;
        s->paired = !paired;
        carve_fp32(s, c);
        s->paired = paired;
        end = c->used;
        c->used = begin;
    }
    if (s->has_tiles)
        s->bf16 ? carve_bf16(s, c) : carve_fp32(s, c);
    c->used = larger_of(end, c->used);
}

static void carve_near(call_state *s, carver *c)
{
    const mg_attn_plan *plan = s->plan;
    for (int which = 0; which < (s->backward ? NEAR_TENSORS : NEAR_DOUT); which++) {
        const int64_t tokens = which == NEAR_K || which == NEAR_V ? plan->keys : plan->queries;
        const int32_t row = which == NEAR_Q || which == NEAR_K ? s->row : s->value_row;
        /* Even where the tensor will do: a workspace is good for any strides. */
        s->near[which].room = carve(c, 1, tokens, (int64_t)s->call.heads * row, sizeof(float));
    }
    s->near_tables = carve(c, 1, 1, s->call.heads * (int64_t)plan->map.codes + NEAR_PAD, sizeof(float));
    s->near_p_ds = carve(c, s->backward, plan->pairs, 2 * smaller_of(s->call.heads, NEAR_HEADS), sizeof(float));
    s->part =
        carve(c, s->has_tiles && !s->backward, plan->queries, (int64_t)s->call.heads * s->value_row, sizeof(float));
    s->part_lse = carve(c, s->has_tiles && !s->backward, plan->queries, s->call.heads, sizeof(float));
}

static void carve_sums(call_state *s, carver *c)
{
    s->sum_rows = smaller_of(s->band.rows, s->plan->tile_rows);
    s->sum_row = round_up(s->entries, 8);
    s->sums = carve(c, s->call.dtable != NULL, s->call.heads * s->sum_rows, s->sum_row, sizeof(double));
}

/* Of one thread, from base on. */
static scratch carve_scratch(const call_state *s, carver *c)
{
    const mg_attn_call *call = &s->call;
    const int drops = call->dropout.probability > 0, forward = !s->backward;
    scratch w;
    w.q = carve(c, forward, call->heads, (int64_t)s->dim1 * TILE, sizeof(float));
    w.half_q =
        carve(c, s->could_bf16 && forward, call->heads, (int64_t)mg_attn_bf16_steps(s) * STEP * TILE, sizeof(uint16_t));
    w.room = carve(c, s->could_bf16, s->backward ? BF16_GRADIENT_ROOM : BF16_ROOM, 1, 1);
    w.out = carve(c, forward, call->heads, (int64_t)round_up(call->value_dim, s->could_bf16 ? 16 : 1) * TILE,
                  sizeof(float));
    w.softmax = carve(c, forward, call->heads, (s->could_bf16 ? 17 : SOFTMAX) * TILE, sizeof(float));
    w.codes = carve(c, s->has_tiles, forward ? SPAN + 1 : CELL * CELL, PAIRS, 1);
    w.bias = carve(c, s->has_tiles, PAIRS, 1, sizeof(float));
    w.keep = carve(c, s->has_tiles && drops, MASK_HEADS, PAIRS, sizeof(float));
    w.ds = carve(c, s->has_tiles && s->backward, PAIRS, 1, sizeof(float));
    w.careful = carve(c, s->has_tiles, mg_attn_careful_floats(s->dim1, call->value_dim, s->row), 1, sizeof(float));
    return w;
}

static int lay_out(call_state *s, char *base)
{
    const mg_attn_plan *plan = s->plan;
    carver c = {.base = base}, own = {0};
    s->tables = carve(&c, 1, s->call.heads, s->table_row, sizeof(float));
    s->tile_tables = carve(&c, 1, s->call.heads, s->table_row, sizeof(float));
    carve_band(s, &c);
    if (s->has_pairs)
        carve_near(s, &c);
    carve_tokens(s, &c);
    if (s->backward)
        carve_sums(s, &c);
    carve_scratch(s, &own);
    s->scratch_bytes = own.used + 64; /* a line apart */
    s->scratch = carve(&c, 1, s->threads, s->scratch_bytes, 1);
    s->bytes = c.used;
    if (c.overflow || own.overflow)
        return fail(-EOVERFLOW, "attention with %d heads, %lld queries, %lld keys: the workspace's bytes overflow",
                    s->call.heads, (long long)plan->queries, (long long)plan->keys);
    return 0;
}

scratch mg_attn_call_scratch(const call_state *s, int thread)
{
    carver c = {.base = s->scratch + thread * s->scratch_bytes};
    return carve_scratch(s, &c);
}

int mg_attn_call_prepare(call_state *s, const mg_attn_plan *plan, const mg_attn_call *call, int backward)
{
    memset(s, 0, sizeof *s);
    int status = mg_attn_check_call(&s->call, plan, call, backward);
    if (status)
        return status;
    s->plan = plan;
    s->backend = plan->backend;
    s->backward = backward;
    s->threads = mg_attn_threads(call->threads);
    s->has_pairs = plan->pairs != 0;
    s->has_tiles = !s->has_pairs || plan->row_tiles[plan->tile_rows];
    s->has_bias_element = call->key_bias || (backward && call->dkey_bias);
    s->dim1 = call->dim + s->has_bias_element;
    s->row = round_up(call->dim, 8);
    s->value_row = round_up(s->call.value_dim, 8);
    s->entries = plan->entries;
    s->table_row = round_up(plan->entries, 32);
    s->bf16 = s->could_bf16 = mg_attn_bf16_wanted(s);
    s->paired = s->could_be_paired = mg_attn_paired_wanted(s);
    return lay_out(s, NULL);
}

static void make_tables(call_state *s)
{
    const mg_attn_plan *plan = s->plan;
    const int32_t codes = plan->map.codes;
    for (int32_t h = 0; h < s->call.heads; h++) {
        float *table = s->tables + (int64_t)h * s->table_row;
        memset(table, 0, (size_t)s->table_row * sizeof *table);
        if (s->call.table)
            memcpy(table, s->call.table + (int64_t)h * codes, (size_t)codes * sizeof *table);
        for (int32_t c = 0; c < codes; c++)
            s->table_hides |= table[c] == -__builtin_inff();
        if (plan->hidden >= 0)
            table[plan->hidden] = -__builtin_inff();
    }
    mg_attn_bias_begin(s);
}

int mg_attn_call_begin(call_state *s, const mg_attn_plan *plan, const mg_attn_call *call, int backward)
{
    int status = mg_attn_call_prepare(s, plan, call, backward);
    if (status)
        return status;
    if (!call->workspace || (uintptr_t)call->workspace % 64)
        return fail(-EINVAL, "attention: workspace is %s; give mg_attn_workspace_bytes() of memory, 64-byte aligned",
                    call->workspace ? "not aligned" : "NULL");
    lay_out(s, call->workspace);
    make_tables(s);
    if ((s->bf16 && !mg_attn_bf16_pack(s)) || (s->paired && !mg_attn_paired_pack(s))) {
        s->bf16 = s->paired = 0;
        lay_out(s, call->workspace);
        make_tables(s);
    }
    if (s->has_tiles && !s->bf16 && !s->paired)
        mg_attn_pack_keys(s);
    if (s->has_pairs)
        mg_attn_near_begin(s);
    return 0;
}

int64_t mg_attn_workspace_bytes(const mg_attn_plan *plan, const mg_attn_call *call, int backward)
{
    call_state s;
    int status = mg_attn_call_prepare(&s, plan, call, backward);
    if (status)
        return status;
    return plan->backend->whole_forward ? 64 : s.bytes;
}
