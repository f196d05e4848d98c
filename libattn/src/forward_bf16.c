/* Which calls are done in bf16 on matrix tiles, and forward of them: as forward.c, with the layouts of
 * amx.h. Codes are read where they stand. */
#include "amx.h"
#include "call.h"
#include "numbers.h"
#include "parallel.h"

#include <math.h>
#include <string.h>

int mg_attn_bf16_wanted(const call_state *s)
{
    const mg_attn_call *call = &s->call;
    const int backward_too = !call->out_fp32 && !call->values && !call->dvalues && s->plan->hidden >= 0;
    return s->backend->bf16 && call->type == MG_ATTN_BF16 && call->dim > 8 && !s->has_pairs && !s->has_bias_element &&
           !(call->dropout.probability > 0) && (!s->backward || backward_too);
}

int32_t mg_attn_bf16_steps(const call_state *s) { return (s->call.dim + STEP - 1) / STEP; }
int32_t mg_attn_bf16_value_tiles(const call_state *s) { return (s->call.value_dim + 15) / 16; }

static const uint16_t *token_of(const mg_attn_tensor *from, int64_t token, int32_t head)
{
    return (const uint16_t *)from->data + token * from->token_stride + head * from->head_stride;
}

static int pack_key(uint16_t *to, const uint16_t *from, int key, int32_t dim)
{
    to += key % 4 * 512 + key / 4 * 2;
    for (int32_t d = 0; d < dim; d++)
        to[d / STEP * 4 * 512 + d % STEP / 2 * 32 + d % 2] = from[d];
    return all_finite_bf16(from, dim);
}

static int pack_value(uint16_t *to, const uint16_t *from, int key, int32_t dim, int32_t tiles)
{
    to += key % 4 / 2 * (int64_t)tiles * 512 + key / 4 * 32 + key % 2;
    for (int32_t d = 0; d < dim; d++)
        to[d / 16 * 512 + d % 16 * 2] = from[d];
    return all_finite_bf16(from, dim);
}

static void pack_tile(void *context, int thread, int64_t step, int64_t tile)
{
    call_state *s = context;
    const int32_t steps = mg_attn_bf16_steps(s), tiles = mg_attn_bf16_value_tiles(s);
    const int count = (int)smaller_of(TILE, s->plan->keys - tile * TILE);
    (void)thread, (void)step;
    for (int32_t head = 0; head < s->call.heads; head++) {
        const int64_t unit = head * s->keys.tiles + tile;
        uint16_t *k = s->half[HALF_K] + unit * steps * STEP * TILE, *v = s->half[HALF_V] + unit * tiles * 16 * TILE;
        int good = 1;
        if (count < TILE || s->call.dim % STEP)
            memset(k, 0, (size_t)steps * STEP * TILE * sizeof *k);
        if (count < TILE || s->call.value_dim % 16)
            memset(v, 0, (size_t)tiles * 16 * TILE * sizeof *v);
        for (int i = 0; i < count; i++) {
            good &= pack_key(k, token_of(&s->call.k, tile * TILE + i, head), i, s->call.dim);
            good &= pack_value(v, token_of(&s->call.v, tile * TILE + i, head), i, s->call.value_dim, tiles);
        }
        s->keys.bad[unit] = !good;
    }
}

int mg_attn_bf16_pack(call_state *s)
{
    if (mg_attn_bias_is_huge(s))
        return 0;
    if (s->backward)
        return mg_attn_bf16_pack_backward(s);
    mg_attn_parallel(s->threads, 1, s->keys.tiles, pack_tile, s);
    int bad = 0;
    for (int64_t i = 0; i < s->call.heads * s->keys.tiles; i++)
        bad |= s->keys.bad[i];
    return !bad;
}

typedef struct row_task {
    const call_state *s;
    int64_t row;
    int queries;
    int32_t head_begin, head_end;
    scratch w;
} row_task;

typedef struct forward_context {
    call_state *s;
    int32_t groups;
} forward_context;

/* A head's part of the scratch. */
static bf16_tile head_tile(const row_task *r, int32_t head)
{
    const call_state *s = r->s;
    const int32_t steps = mg_attn_bf16_steps(s), tiles = mg_attn_bf16_value_tiles(s), at = head - r->head_begin;
    float *state = r->w.softmax + (int64_t)at * 17 * TILE;
    return (bf16_tile){.steps = steps,
                       .value_tiles = tiles,
                       .queries = r->queries,
                       .q = r->w.half_q + (int64_t)at * steps * STEP * TILE,
                       .scale = s->call.scale,
                       .maximum = state,
                       .sums = state + TILE,
                       .out = r->w.out + (int64_t)at * tiles * 16 * TILE,
                       .room = r->w.room};
}

static void begin_row(const row_task *r)
{
    const call_state *s = r->s;
    for (int32_t head = r->head_begin; head < r->head_end; head++) {
        const bf16_tile t = head_tile(r, head);
        const int32_t row = t.steps * STEP;
        uint16_t *q = (uint16_t *)t.q;
        memset(q, 0, (size_t)row * TILE * sizeof *q);
        for (int i = 0; i < r->queries; i++)
            memcpy(q + i * row, token_of(&s->call.q, r->row * TILE + i, head), (size_t)s->call.dim * sizeof *q);
        for (int i = 0; i < TILE; i++)
            t.maximum[i] = -INFINITY;
        memset(t.sums, 0, 16 * TILE * sizeof(float));
        memset(t.out, 0, (size_t)t.value_tiles * 16 * TILE * sizeof(float));
    }
}

static void add_tiles(const row_task *r, const plan_tile *tiles, int count)
{
    const call_state *s = r->s;
    const uint8_t *codes[SPAN];
    int64_t strides[SPAN];
    for (int i = 0; i < count; i++) {
        codes[i] = mg_attn_band_memory(s, &tiles[i], r->row, &strides[i]);
        /* A lookup reads three bytes beyond a row, and a bias is made from codes that lie together. */
        if (codes[i] && (s->plan->map.codes > s->backend->lookup || (s->call.values && tiles[i].entry_count) ||
                         (int64_t)tiles[i].column * TILE + TILE + 3 > s->plan->keys))
            codes[i] = NULL;
        if (!codes[i] && mg_attn_tile_needs_codes(s, &tiles[i])) {
            uint8_t *own = r->w.codes + i * PAIRS;
            mg_attn_band_codes(own, s, &tiles[i], r->row);
            codes[i] = own;
            strides[i] = TILE;
        }
    }
    for (int32_t head = r->head_begin; head < r->head_end; head++) {
        bf16_tile t = head_tile(r, head);
        for (int i = 0; i < count; i++) {
            const int64_t unit = head * s->keys.tiles + tiles[i].column;
            const tile_place place = {.tile = &tiles[i], .row = r->row, .codes = codes[i], .keys_in_lanes = 1};
            t.k = s->half[HALF_K] + unit * t.steps * STEP * TILE;
            t.v = s->half[HALF_V] + unit * t.value_tiles * 16 * TILE;
            t.codes_stride = strides[i];
            if (mg_attn_tile_bias(&t.bias, r->w.bias, s, &place, head, 0))
                s->backend->bf16(&t);
        }
    }
}

static void end_row(const row_task *r)
{
    const call_state *s = r->s;
    float row[MG_ATTN_MAX_DIM];
    for (int32_t head = r->head_begin; head < r->head_end; head++) {
        const bf16_tile t = head_tile(r, head);
        for (int i = 0; i < r->queries; i++) {
            const float *parts = t.sums + i * 16, *out = t.out + (int64_t)i * t.value_tiles * 16;
            float sum = 0;
            for (int l = 0; l < 16; l++)
                sum += parts[l];
            const float inverse = sum == 0 ? 0 : 1 / sum;
            for (int32_t d = 0; d < s->call.value_dim; d++)
                row[d] = out[d] * inverse;
            mg_attn_store_row(&s->call.out, row, !s->call.out_fp32, r->row * TILE + i, head, s->call.value_dim);
            if (s->call.lse)
                s->call.lse[head * s->plan->queries + r->row * TILE + i] =
                    sum == 0 ? -INFINITY : (float)((double)t.maximum[i] * 0.693147180559945309 + log(sum));
        }
    }
}

static void do_row(void *context, int thread, int64_t step, int64_t task)
{
    const forward_context *f = context;
    const call_state *s = f->s;
    const mg_attn_plan *plan = s->plan;
    const int64_t at = task / f->groups, group = task % f->groups;
    row_task r = {.s = s, .row = plan->row_order ? plan->row_order[at] : s->band.first + at};
    r.queries = (int)smaller_of(TILE, plan->queries - r.row * TILE);
    r.head_begin = (int32_t)(s->call.heads * group / f->groups);
    r.head_end = (int32_t)(s->call.heads * (group + 1) / f->groups);
    r.w = mg_attn_call_scratch(s, thread);
    (void)step;
    begin_row(&r);
    int64_t count;
    const plan_tile *tiles = mg_attn_band_row(s, r.row, &count);
    s->backend->bf16_begin();
    for (int64_t i = 0; i < count; i += SPAN)
        add_tiles(&r, tiles + i, (int)smaller_of(SPAN, count - i));
    s->backend->bf16_end();
    end_row(&r);
}

void mg_attn_bf16_rows(call_state *s, int64_t rows, int32_t groups)
{
    forward_context f = {.s = s, .groups = groups};
    mg_attn_parallel(s->threads, 1, rows * groups, do_row, &f);
}
