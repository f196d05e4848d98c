/* Forward: a task is one row of tiles with some of the heads. It decodes the codes of a few tiles at a time, once for
 * its heads, and divides at the end. Where pairs are listed too, it goes on from what they gave. Queries are in the
 * lanes. */
#include "call.h"
#include "library.h"
#include "near_call.h"
#include "parallel.h"
#include "quads.h"

#include <math.h>
#include <string.h>

typedef struct row_task {
    const call_state *s;
    int64_t row; /* of tiles */
    int queries;
    int32_t head_begin, head_end;
    scratch w;
} row_task;

typedef struct forward_context {
    call_state *s;
    int32_t groups; /* of heads */
} forward_context;

static float *query_lanes(const row_task *r, int32_t head)
{
    return r->w.q + (int64_t)(head - r->head_begin) * r->s->dim1 * TILE;
}
static float *out_lanes(const row_task *r, int32_t head)
{
    return r->w.out + (int64_t)(head - r->head_begin) * r->s->call.value_dim * TILE;
}
/* [SOFTMAX][64] */
static float *softmax_lanes(const row_task *r, int32_t head)
{
    return r->w.softmax + (int64_t)(head - r->head_begin) * SOFTMAX * TILE;
}

/* The softmax of the listed pairs: out, already divided, with a sum of 1 at the lse. */
static void go_on_from_pairs(const row_task *r, int32_t head)
{
    const call_state *s = r->s;
    const mg_attn_tensor part = {s->part, (int64_t)s->call.heads * s->value_row, s->value_row};
    float *softmax = softmax_lanes(r, head);
    for (int i = 0; i < r->queries; i++) {
        const float lse = s->part_lse[head * s->plan->queries + r->row * TILE + i];
        if (lse == -INFINITY)
            continue;
        softmax[i] = lse * s->score_unit;
        softmax[TILE + i] = softmax[i] + 20;
        softmax[2 * TILE + i] = 1;
    }
    mg_attn_pack_lanes(out_lanes(r, head), &part, MG_ATTN_FP32, r->row * TILE, r->queries, head, s->call.value_dim, 1);
}

static void begin_row(const row_task *r)
{
    const call_state *s = r->s;
    for (int32_t head = r->head_begin; head < r->head_end; head++) {
        float *q = query_lanes(r, head), *softmax = softmax_lanes(r, head);
        if (s->paired)
            mg_attn_paired_lanes(q, &s->call.q, r->row * TILE, r->queries, head, s->call.dim);
        else
            mg_attn_pack_lanes(q, &s->call.q, s->call.type, r->row * TILE, r->queries, head, s->call.dim,
                               s->call.scale * s->score_unit);
        for (int i = 0; i < TILE; i++) {
            if (s->has_bias_element)
                q[s->call.dim * TILE + i] = 1;
            softmax[i] = 0;
            softmax[TILE + i] = i < r->queries ? -INFINITY : INFINITY; /* nobody waits for lanes that are not used */
            softmax[2 * TILE + i] = softmax[3 * TILE + i] = 0;
        }
        memset(out_lanes(r, head), 0, (size_t)s->call.value_dim * TILE * sizeof(float));
        if (s->has_pairs)
            go_on_from_pairs(r, head);
    }
}

/* Turns the 8 x 8 bytes of x, a row a word. */
static void transpose_bytes8(uint64_t x[8])
{
    static const uint64_t masks[3] = {UINT64_C(0x00000000ffffffff), UINT64_C(0x0000ffff0000ffff),
                                      UINT64_C(0x00ff00ff00ff00ff)};
    for (int level = 0, distance = 4; level < 3; level++, distance /= 2)
        for (int i = 0; i < 8; i++)
            if (!(i & distance)) {
                const uint64_t t = (x[i] >> 8 * distance ^ x[i + distance]) & masks[level];
                x[i + distance] ^= t;
                x[i] ^= t << 8 * distance;
            }
}

/* The codes of a tile as the kernel wants them. */
static void transpose_codes(uint8_t out[PAIRS], const uint8_t *in, int64_t stride)
{
    for (int row = 0; row < TILE; row += 8)
        for (int key = 0; key < TILE; key += 8) {
            uint64_t x[8];
            for (int i = 0; i < 8; i++)
                memcpy(&x[i], in + (row + i) * stride + key, 8);
            transpose_bytes8(x);
            for (int i = 0; i < 8; i++)
                memcpy(out + (key + i) * TILE + row, &x[i], 8);
        }
}

static void add_tile(const row_task *r, const tile_place *place, int32_t head, int64_t next)
{
    const call_state *s = r->s;
    const packed *from = &s->keys;
    const int64_t unit = head * s->keys.tiles + place->tile->column;
    const int64_t keys = smaller_of(TILE, s->plan->keys - (int64_t)place->tile->column * TILE);
    float *softmax = softmax_lanes(r, head);
    const int careful = s->keys.bad[unit] && mg_attn_tile_hides(s, place->tile);
    void (*const kernel)(const forward_tile *) = s->paired ? s->backend->paired_forward : s->backend->forward;
    forward_tile t = {.dim = s->dim1,
                      .value_dim = s->call.value_dim,
                      .bias_element = s->has_bias_element,
                      .lanes = r->queries,
                      .key_blocks = (int32_t)((keys + BLOCK - 1) / BLOCK),
                      .q = query_lanes(r, head),
                      .k = from->tiled[0] + unit * from->tile_floats[0],
                      .v = from->tiled[1] + unit * from->tile_floats[1],
                      .scale = s->call.scale * s->score_unit,
                      .log2_scores = s->score_unit != 1,
                      .keep = r->w.keep ? r->w.keep + dropout_slot(s, head) * PAIRS : NULL,
                      .next_k = from->tiled[0] + next * from->tile_floats[0],
                      .next_v = from->tiled[1] + next * from->tile_floats[1],
                      .maximum = softmax,
                      .limit = softmax + TILE,
                      .sum = softmax + 2 * TILE,
                      .weight = softmax + 3 * TILE,
                      .out = out_lanes(r, head)};
    if (!mg_attn_tile_bias(&t.bias, r->w.bias, s, place, head, careful))
        return;
    if (careful)
        mg_attn_careful_forward(&t, r->w.bias, r->w.careful, kernel);
    else
        kernel(&t);
}

static void load_codes(const row_task *r, const plan_tile *tile, uint8_t *out)
{
    int64_t stride = 0;
    const uint8_t *codes = mg_attn_band_memory(r->s, tile, r->row, &stride);
    if (!codes) {
        uint8_t *turning = r->w.codes + SPAN * PAIRS;
        mg_attn_band_codes(turning, r->s, tile, r->row);
        codes = turning;
        stride = TILE;
    }
    (r->s->backend->turn_codes ? r->s->backend->turn_codes : transpose_codes)(out, codes, stride);
}

/* Has share `part` of `parts` of a tile's codes brought into the cache. */
static void prefetch_codes(const row_task *r, const plan_tile *tile, int64_t part, int64_t parts)
{
    int64_t stride = 0;
    const uint8_t *codes = mg_attn_band_memory(r->s, tile, r->row, &stride);
    for (int64_t row = TILE * part / parts; codes && row < TILE * (part + 1) / parts; row++)
        __builtin_prefetch(codes + row * stride, 0, 2);
}

/* `count` tiles; `ahead` more come after them. */
static void add_tiles(const row_task *r, const plan_tile *tiles, int count, int ahead)
{
    const call_state *s = r->s;
    for (int i = 0; i < count; i++)
        if (mg_attn_tile_needs_codes(s, &tiles[i]))
            load_codes(r, &tiles[i], r->w.codes + i * PAIRS);
    for (int32_t head = r->head_begin; head < r->head_end; head++)
        for (int i = 0; i < count; i++) {
            if (i < ahead)
                prefetch_codes(r, &tiles[count + i], head - r->head_begin, r->head_end - r->head_begin);
            const tile_place place = {.tile = &tiles[i], .row = r->row, .codes = r->w.codes + i * PAIRS};
            if (r->w.keep && (head == r->head_begin || dropout_slot(s, head) == 0))
                mg_attn_dropout_tile((float(*)[PAIRS])r->w.keep, s, &place, head);
            const int last = i + 1 == count;
            const int32_t next_head = last && head + 1 < r->head_end ? head + 1 : head;
            add_tile(r, &place, head, next_head * s->keys.tiles + tiles[last ? 0 : i + 1].column);
        }
}

/* Four lanes of out, divided by their sums, to rows; 0 where nothing was seen. */
static void divide_four(float rows[4][MG_ATTN_MAX_DIM + 4], const float *out, const float *sum, int32_t dim)
{
    quad inverse;
    for (int i = 0; i < 4; i++)
        inverse[i] = sum[i] == 0 ? 0 : 1 / sum[i];
    for (int32_t d = 0; d < dim; d += 4) {
        quad x[4];
        for (int i = 0; i < 4; i++)
            x[i] = (d + i < dim ? load_quad(out + (d + i) * TILE) : (quad){0}) * inverse;
        transpose_quads(x);
        for (int i = 0; i < 4; i++)
            store_quad(rows[i] + d, x[i]);
    }
}

static void end_row(const row_task *r)
{
    const call_state *s = r->s;
    const int bf16 = s->call.type == MG_ATTN_BF16 && !s->call.out_fp32;
    const double natural = s->score_unit == 1 ? 1 : M_LN2; /* units of a score */
    float rows[4][MG_ATTN_MAX_DIM + 4];
    for (int32_t head = r->head_begin; head < r->head_end; head++) {
        const float *softmax = softmax_lanes(r, head), *sum = softmax + 2 * TILE, *out = out_lanes(r, head);
        const float *divisor = s->paired ? softmax + 3 * TILE : sum;
        float *lse = s->call.lse ? s->call.lse + head * s->plan->queries + r->row * TILE : NULL;
        for (int i = 0; i < r->queries; i += 4) {
            divide_four(rows, out + i, divisor + i, s->call.value_dim);
            for (int j = i; j < i + 4 && j < r->queries; j++)
                mg_attn_store_row(&s->call.out, rows[j - i], bf16, r->row * TILE + j, head, s->call.value_dim);
        }
        for (int i = 0; lse && i < r->queries; i++)
            lse[i] = sum[i] == 0 ? -INFINITY : (float)(softmax[i] * natural + log(sum[i]));
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
    const int span = r.w.keep ? 1 : SPAN;
    for (int64_t i = 0; i < count; i += span) {
        const int64_t now = smaller_of(span, count - i);
        add_tiles(&r, tiles + i, (int)now, (int)smaller_of(span, count - i - now));
    }
    end_row(&r);
}

int mg_attn_forward(const mg_attn_plan *plan, const mg_attn_call *call)
{
    if (plan && plan->backend->whole_forward)
        return plan->backend->whole_forward(plan, call);
    call_state s;
    int status = mg_attn_call_begin(&s, plan, call, 0);
    if (!status && s.has_pairs)
        mg_attn_near_forward(&s);
    for (int64_t first = 0; first < (status || !s.has_tiles ? 0 : plan->tile_rows); first += s.band.rows) {
        const int64_t rows = smaller_of(s.band.rows, plan->tile_rows - first);
        status = mg_attn_band_load(&s, first);
        if (status)
            return status;
        /* Heads share decoded codes, so they are split only where rows alone do not feed the threads. */
        const int64_t wanted = (4 * s.threads + rows - 1) / rows;
        if (s.bf16) {
            mg_attn_bf16_rows(&s, rows, (int32_t)smaller_of(wanted, s.call.heads));
            continue;
        }
        forward_context f = {.s = &s, .groups = (int32_t)smaller_of(wanted, s.call.heads)};
        mg_attn_parallel(s.threads, 1, rows * f.groups, do_row, &f);
    }
    return status;
}
