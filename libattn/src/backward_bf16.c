/* Backward in bf16 on matrix tiles, for the calls that mg_attn_bf16_wanted() takes: tokens packed as in amx.h, and one
 * tile. Which tiles there are, and in which order, is backward.c's. */
#include "amx.h"
#include "call.h"
#include "backward.h"
#include "numbers.h"
#include "parallel.h"

#include <string.h>

/* One token of a side in bf16, by head: as rows of the left side, as columns of the right, and so on. */
typedef struct layout {
    uint16_t *rows, *columns, *turned, *paired; /* of a tile; NULL: not wanted */
    int32_t dim;
} layout;

static void put_token(const layout *to, const uint16_t *x, int i)
{
    const int32_t steps = round_up(to->dim, STEP) / STEP, tiles = round_up(to->dim, 16) / 16;
    if (to->rows)
        memcpy(to->rows + i * steps * STEP, x, (size_t)to->dim * sizeof *x);
    for (int32_t d = 0; d < to->dim && to->columns; d++)
        to->columns[(d / STEP * 4 + i % 4) * 512 + d % STEP / 2 * 32 + i / 4 * 2 + d % 2] = x[d];
    for (int32_t d = 0; d < to->dim && to->turned; d++)
        to->turned[(d / 16 * 2 + i / 32) * 512 + d % 16 * 32 + i % 32] = x[d];
    for (int32_t d = 0; d < to->dim && to->paired; d++)
        to->paired[(i % 4 / 2 * tiles + d / 16) * 512 + i / 4 * 32 + d % 16 * 2 + i % 2] = x[d];
}

/* `count` tokens of one tile of a head; returns whether all are finite. */
static int put_tile(const layout *to, const mg_attn_tensor *from, int64_t token, int count, int32_t head)
{
    const size_t of_steps = (size_t)round_up(to->dim, STEP) * TILE * sizeof(uint16_t),
                 of_tiles = (size_t)round_up(to->dim, 16) * TILE * sizeof(uint16_t);
    int good = 1;
    if (to->rows)
        memset(to->rows, 0, of_steps);
    if (to->columns)
        memset(to->columns, 0, of_steps);
    if (to->turned)
        memset(to->turned, 0, of_tiles);
    if (to->paired)
        memset(to->paired, 0, of_tiles);
    for (int i = 0; i < count; i++) {
        const uint16_t *x = (const uint16_t *)from->data + (token + i) * from->token_stride + head * from->head_stride;
        good &= all_finite_bf16(x, to->dim);
        put_token(to, x, i);
    }
    return good;
}

static uint16_t *piece(uint16_t *array, int64_t unit, int32_t wide)
{
    return array ? array + unit * wide * TILE : NULL;
}

static void pack_tile(void *context, int thread, int64_t step, int64_t tile)
{
    call_state *s = context;
    const mg_attn_call *call = &s->call;
    const mg_attn_plan *plan = s->plan;
    const int64_t token = tile * TILE;
    const int32_t steps = round_up(call->dim, STEP), value_steps = round_up(call->value_dim, STEP),
                  wide = round_up(call->dim, 16), value_wide = round_up(call->value_dim, 16);
    (void)thread, (void)step;
    for (int32_t head = 0; head < call->heads; head++) {
        if (tile < s->keys.tiles) {
            const int64_t unit = head * s->keys.tiles + tile;
            const int count = (int)smaller_of(TILE, plan->keys - token);
            const layout k = {.columns = piece(s->half[HALF_K], unit, steps),
                              .paired = piece(s->half[HALF_PAIRED_K], unit, wide),
                              .dim = call->dim},
                         v = {.columns = piece(s->half[HALF_V], unit, value_steps), .dim = call->value_dim};
            const int good = put_tile(&k, &call->k, token, count, head);
            s->keys.bad[unit] = !(put_tile(&v, &call->v, token, count, head) & good);
        }
        if (tile < s->queries.tiles) {
            const int64_t unit = head * s->queries.tiles + tile;
            const int count = (int)smaller_of(TILE, plan->queries - token);
            const layout q = {.rows = piece(s->half[HALF_Q], unit, steps),
                              .turned = piece(s->half[HALF_TURNED_Q], unit, wide),
                              .dim = call->dim},
                         dout = {.rows = piece(s->half[HALF_DOUT], unit, value_steps),
                                 .turned = piece(s->half[HALF_TURNED_DOUT], unit, value_wide),
                                 .dim = call->value_dim};
            const int good = put_tile(&q, &call->q, token, count, head);
            s->queries.bad[unit] = !(put_tile(&dout, &call->dout, token, count, head) & good);
            if (!mg_attn_pack_statistics(s, unit, token, count, head))
                s->queries.bad[unit] = 1;
        }
    }
}

int mg_attn_bf16_pack_backward(call_state *s)
{
    mg_attn_parallel(s->threads, 1, larger_of(s->keys.tiles, s->queries.tiles), pack_tile, s);
    int bad = 0;
    for (int64_t i = 0; i < s->call.heads * s->keys.tiles; i++)
        bad |= s->keys.bad[i];
    for (int64_t i = 0; i < s->call.heads * s->queries.tiles; i++)
        bad |= s->queries.bad[i];
    return !bad;
}

int mg_attn_bf16_backward_tile(const call_state *s, const scratch *w, const tile_place *place, int32_t head)
{
    const mg_attn_call *call = &s->call;
    const int64_t keys = head * s->keys.tiles + place->tile->column, queries = head * s->queries.tiles + place->row;
    bf16_gradient_tile t = {.steps = round_up(call->dim, STEP) / STEP,
                            .value_steps = round_up(call->value_dim, STEP) / STEP,
                            .tiles = round_up(call->dim, 16) / 16,
                            .value_tiles = round_up(call->value_dim, 16) / 16,
                            .queries = (int32_t)smaller_of(TILE, s->plan->queries - place->row * TILE),
                            .lse = s->lse + queries * TILE,
                            .delta = s->delta + queries * TILE,
                            .scale = call->scale,
                            .dq = part_of(s->dq, queries, s->dq_row),
                            .dk = part_of(s->dk, keys, s->dk_rows),
                            .dv = part_of(s->dv, keys, s->dv_rows),
                            .ds = call->dtable ? w->ds : NULL,
                            .room = w->room};
    t.q = piece(s->half[HALF_Q], queries, t.steps * STEP);
    t.dout = piece(s->half[HALF_DOUT], queries, t.value_steps * STEP);
    t.turned_q = piece(s->half[HALF_TURNED_Q], queries, t.tiles * 16);
    t.turned_dout = piece(s->half[HALF_TURNED_DOUT], queries, t.value_tiles * 16);
    t.k = piece(s->half[HALF_K], keys, t.steps * STEP);
    t.v = piece(s->half[HALF_V], keys, t.value_steps * STEP);
    t.paired_k = piece(s->half[HALF_PAIRED_K], keys, t.tiles * 16);
    if (!mg_attn_tile_bias(&t.bias, w->bias, s, place, head, 0))
        return 0;
    s->backend->bf16_backward(&t);
    return 1;
}
