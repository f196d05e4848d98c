/* Copies tokens between the caller's tensors and the layouts of the kernels. */
#include "call.h"
#include "numbers.h"
#include "parallel.h"
#include "quads.h"

#include <string.h>

/* memcpy of few floats, without its call. */
static inline void copy_floats(float *to, const float *from, int32_t count)
{
    int32_t i = 0;
    for (; i + 4 <= count; i += 4)
        memcpy(to + i, from + i, 16);
    for (; i < count; i++)
        memcpy(to + i, from + i, 4);
}

void mg_attn_load_row(float *out, const mg_attn_tensor *from, mg_attn_type type, int64_t token, int32_t head,
                      int32_t dim)
{
    const int64_t at = token * from->token_stride + head * from->head_stride;
    if (type == MG_ATTN_FP32) {
        copy_floats(out, (const float *)from->data + at, dim);
        return;
    }
    const uint16_t *in = (const uint16_t *)from->data + at;
    for (int32_t d = 0; d < dim; d++)
        out[d] = from_bf16(in[d]);
}

void mg_attn_store_row(const mg_attn_tensor *to, const float *row, int bf16, int64_t token, int32_t head, int32_t dim)
{
    const int64_t at = token * to->token_stride + head * to->head_stride;
    if (!bf16) {
        copy_floats((float *)to->data + at, row, dim);
        return;
    }
    uint16_t *out = (uint16_t *)to->data + at;
    for (int32_t d = 0; d < dim; d++)
        out[d] = to_bf16(row[d]);
}

/* Tokens are turned eight at a time. */
enum { EIGHT = 8, ROOM = MG_ATTN_MAX_DIM + 8 };
typedef float eight[EIGHT][ROOM];

/* Element d of the eight, times scale, goes to out + d * step. Returns whether the first `checked` are finite. */
static int put_eight(float *out, int64_t step, const float *const rows[EIGHT], int32_t dim, int32_t checked,
                     float scale)
{
    quad zeros = {0};
    float zero = 0;
    int32_t d = 0;
    for (; d + 4 <= checked; d += 4)
        for (int half = 0; half < EIGHT; half += 4) {
            quad x[4];
            for (int i = 0; i < 4; i++) {
                x[i] = load_quad(rows[half + i] + d);
                zeros += x[i] * 0;
                x[i] *= scale;
            }
            transpose_quads(x);
            for (int i = 0; i < 4; i++)
                store_quad(out + (d + i) * step + half, x[i]);
        }
    for (; d < dim; d++)
        for (int i = 0; i < EIGHT; i++) {
            zero += d < checked ? rows[i][d] * 0 : 0;
            out[d * step + i] = rows[i][d] * scale;
        }
    return zero + zeros[0] + zeros[1] + zeros[2] + zeros[3] == 0;
}

/* Where a token's elements stand as floats, for put_eight: in the caller's tensor, or in `room`. */
static const float *row_of(float room[ROOM], const mg_attn_tensor *from, mg_attn_type type, int64_t token, int32_t head,
                           int32_t dim)
{
    if (type == MG_ATTN_FP32 && dim % 4 == 0)
        return (const float *)from->data + token * from->token_stride + head * from->head_stride;
    mg_attn_load_row(room, from, type, token, head, dim);
    return room;
}

int mg_attn_pack_lanes(float *out, const mg_attn_tensor *from, mg_attn_type type, int64_t token, int count,
                       int32_t head, int32_t dim, float scale)
{
    eight rows;
    int good = 1;
    if (count < TILE)
        memset(out, 0, (size_t)dim * TILE * sizeof *out);
    for (int i = 0; i < count; i += EIGHT) {
        const float *at[EIGHT];
        for (int j = 0; j < EIGHT; j++) {
            at[j] = i + j < count ? row_of(rows[j], from, type, token + i + j, head, dim) : rows[j];
            if (i + j >= count)
                memset(rows[j], 0, (size_t)dim * sizeof(float));
        }
        good &= put_eight(out + i, TILE, at, dim, dim, scale);
    }
    return good;
}

/* One side being packed. */
typedef struct packing {
    call_state *s;
    packed *side;
    int64_t tokens;
    mg_attn_tensor from[2]; /* q, dout or k, v */
    mg_attn_type types[2];
    float scale; /* of the first */
    int blocks;
} packing;

/* Token i of a tile, whose first token is `token`; part 0 or 1. */
static const float *load_token(float room[ROOM], const packing *p, int part, int64_t unit, int64_t token, int i,
                               int32_t head)
{
    const call_state *s = p->s;
    const int32_t dim = part ? s->call.value_dim : s->call.dim;
    const float scale = part ? 1 : p->scale;
    float *copy = part ? NULL : p->side->rows;
    const int extra = !part && s->has_bias_element;
    const float *row = row_of(room, &p->from[part], p->types[part], token + i, head, dim);
    if (copy) {
        copy += (unit * TILE + i) * s->row;
        for (int32_t d = 0; d < dim; d++)
            copy[d] = row[d] * scale;
        for (int32_t d = dim; d < s->row; d++)
            copy[d] = 0;
    }
    if (!extra)
        return row;
    if (row != room)
        copy_floats(room, row, dim);
    if (scale != 1) /* all but the bias element */
        for (int32_t d = 0; d < dim; d++)
            room[d] *= scale;
    if (p->side == &s->queries)
        room[dim] = 1;
    else
        room[dim] = s->call.key_bias ? s->call.key_bias[head * s->plan->keys + token + i] * s->score_unit : 0;
    return room;
}

/* The same of a token that is not there or sees nothing: a bias element of 0 would meet a key bias of -inf. */
static const float *load_nothing(float room[ROOM], const packing *p, int part, int64_t unit, int i)
{
    const call_state *s = p->s;
    memset(room, 0, ROOM * sizeof *room);
    if (!part && s->has_bias_element && p->side == &s->queries)
        room[s->call.dim] = 1;
    if (!part && p->side->rows)
        memset(p->side->rows + (unit * TILE + i) * s->row, 0, (size_t)s->row * sizeof *room);
    return room;
}

/* The query's log-sum-exp and delta; returns whether it sees nothing. */
static int query_statistics(call_state *s, int64_t unit, int64_t token, int i, int32_t head)
{
    const mg_attn_call *call = &s->call;
    const int64_t at = (int64_t)head * s->plan->queries + token + i;
    const float lse = call->lse[at];
    double parts[4] = {0}; /* one chain of additions would wait for itself */
    float rooms[2][ROOM];
    if (lse == -__builtin_inff()) {
        s->lse[unit * TILE + i] = __builtin_inff();
        s->delta[unit * TILE + i] = 0;
        return 1;
    }
    const mg_attn_type type = call->out_fp32 ? MG_ATTN_FP32 : call->type;
    const float *out = row_of(rooms[0], &call->out, type, token + i, head, call->value_dim),
                *dout = row_of(rooms[1], &call->dout, type, token + i, head, call->value_dim);
    int32_t d = 0;
    for (; d + 4 <= call->value_dim; d += 4)
        for (int j = 0; j < 4; j++)
            parts[j] += (double)out[d + j] * dout[d + j];
    for (; d < call->value_dim; d++)
        parts[0] += (double)out[d] * dout[d];
    const double delta = parts[0] + parts[1] + (parts[2] + parts[3]);
    s->lse[unit * TILE + i] = lse;
    s->delta[unit * TILE + i] = (float)(delta - (call->dlse ? (double)call->dlse[at] : 0));
    return 0;
}

int mg_attn_pack_statistics(call_state *s, int64_t unit, int64_t token, int count, int32_t head)
{
    float finite = 0;
    for (int i = 0; i < TILE; i++) {
        if (i < count) {
            if (!query_statistics(s, unit, token, i, head))
                finite += (s->lse[unit * TILE + i] + s->delta[unit * TILE + i]) * 0;
            continue;
        }
        s->lse[unit * TILE + i] = __builtin_inff();
        s->delta[unit * TILE + i] = 0;
    }
    return finite == 0;
}

static void pack_head(const packing *p, int64_t tile, int32_t head)
{
    call_state *s = p->s;
    const int64_t unit = head * p->side->tiles + tile, token = tile * TILE;
    const int count = (int)smaller_of(TILE, p->tokens - token), of_queries = p->side == &s->queries;
    int good = !of_queries || mg_attn_pack_statistics(s, unit, token, count, head);
    eight rooms[2];
    for (int i = 0; i < TILE; i += EIGHT) {
        const float *rows[2][EIGHT];
        for (int j = 0; j < EIGHT; j++) {
            const int there = i + j < count && !(of_queries && s->lse[unit * TILE + i + j] == __builtin_inff());
            for (int part = 0; part < 2; part++)
                rows[part][j] = there ? load_token(rooms[part][j], p, part, unit, token, i + j, head)
                                      : load_nothing(rooms[part][j], p, part, unit, i + j);
        }
        for (int part = 0; part < 2; part++) {
            const int32_t dim1 = part ? s->call.value_dim : s->dim1;
            float *to = p->side->tiled[part] + unit * dim1 * TILE;
            good &= put_eight(to + (p->blocks ? (int64_t)i * dim1 : half_lane(i, dim1)), p->blocks ? BLOCK : HALF,
                              rows[part], dim1, part ? s->call.value_dim : s->call.dim,
                              part || s->has_bias_element ? 1 : p->scale);
        }
    }
    p->side->bad[unit] = !good;
}

/* All heads of a tile together: they share the tensor's cache lines. */
static void pack_tile(void *context, int thread, int64_t step, int64_t tile)
{
    const packing *p = context;
    (void)thread, (void)step;
    for (int32_t head = 0; head < p->s->call.heads; head++)
        pack_head(p, tile, head);
}

static void pack_side(packing *p)
{
    call_state *s = p->s;
    mg_attn_parallel(s->threads, 1, p->side->tiles, pack_tile, p);
    for (int64_t i = 0; i < s->call.heads * p->side->tiles; i++)
        s->any_bad |= p->side->bad[i];
}

void mg_attn_pack_keys(call_state *s)
{
    packing p = {.s = s,
                 .side = &s->keys,
                 .tokens = s->plan->keys,
                 .from = {s->call.k, s->call.v},
                 .types = {s->call.type, s->call.type},
                 .scale = 1,
                 .blocks = !s->backward};
    pack_side(&p);
}

void mg_attn_pack_queries(call_state *s)
{
    const mg_attn_type type = s->call.out_fp32 ? MG_ATTN_FP32 : s->call.type;
    packing p = {.s = s,
                 .side = &s->queries,
                 .tokens = s->plan->queries,
                 .from = {s->call.q, s->call.dout},
                 .types = {s->call.type, type},
                 .scale = s->call.scale * s->score_unit,
                 .blocks = 1};
    pack_side(&p);
}
