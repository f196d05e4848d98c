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

/* Not 0 where an element is not finite. */
static int32_t not_finite(const float *row, int32_t dim)
{
    int32_t bad = 0;
    for (int32_t d = 0; d < dim; d++) {
        int32_t bits;
        memcpy(&bits, row + d, sizeof bits);
        bad |= (bits & 0x7fffffff) > 0x7f7fffff;
    }
    return bad;
}

/* Tokens are turned eight at a time. */
enum { EIGHT = 8, ROOM = MG_ATTN_MAX_DIM + 8 };
typedef float eight[EIGHT][ROOM];

/* Element d of the eight goes to out + d * step. */
static void put_eight(float *out, int64_t step, const eight rows, int32_t dim)
{
    for (int32_t d = 0; d < dim; d += 4)
        for (int half = 0; half < EIGHT; half += 4) {
            quad x[4];
            for (int i = 0; i < 4; i++)
                x[i] = load_quad(rows[half + i] + d);
            transpose_quads(x);
            for (int i = 0; i < 4 && d + i < dim; i++)
                store_quad(out + (d + i) * step + half, x[i]);
        }
}

int mg_attn_pack_lanes(float *out, const mg_attn_tensor *from, mg_attn_type type, int64_t token, int count,
                       int32_t head, int32_t dim, float scale)
{
    eight rows;
    int32_t bad = 0;
    if (count < TILE)
        memset(out, 0, (size_t)dim * TILE * sizeof *out);
    for (int i = 0; i < count; i += EIGHT) {
        for (int j = 0; j < EIGHT; j++) {
            float *row = rows[j];
            if (i + j >= count) {
                memset(row, 0, (size_t)dim * sizeof *row);
                continue;
            }
            mg_attn_load_row(row, from, type, token + i + j, head, dim);
            for (int32_t d = 0; d < dim; d++)
                row[d] *= scale;
            bad |= not_finite(row, dim);
        }
        put_eight(out + i, TILE, (const float(*)[ROOM])rows, dim);
    }
    return !bad;
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

/* Token i of a tile, whose first token is `token`, to a row; part 0 or 1. Returns whether an element is not finite. */
static int32_t load_token(float row[ROOM], const packing *p, int part, int64_t unit, int64_t token, int i, int32_t head,
                          int skip)
{
    const call_state *s = p->s;
    const int32_t dim = part ? s->call.value_dim : s->call.dim, dim1 = part ? dim : s->dim1;
    const int32_t row_length = part ? s->value_row : s->row;
    for (int32_t d = skip ? 0 : dim; d < row_length; d++)
        row[d] = 0;
    if (!skip) {
        mg_attn_load_row(row, &p->from[part], p->types[part], token + i, head, dim);
        if (!part && p->scale != 1)
            for (int32_t d = 0; d < dim; d++)
                row[d] *= p->scale;
    }
    if (p->side->rows[part])
        memcpy(p->side->rows[part] + (unit * TILE + i) * row_length, row, (size_t)row_length * sizeof *row);
    if (dim1 > dim)
        row[dim] = p->side == &s->queries ? 1
                   : s->call.key_bias     ? s->call.key_bias[head * s->plan->keys + token + i]
                                          : 0;
    return not_finite(row, dim);
}

/* The row of a token that is not there: a bias element of 0 would meet a key bias of -inf. */
static void load_nothing(float row[ROOM], const packing *p, int part)
{
    const call_state *s = p->s;
    memset(row, 0, ROOM * sizeof *row);
    if (!part && s->has_bias_element && p->side == &s->queries)
        row[s->call.dim] = 1;
}

/* The rows of tokens that are not there. */
static void zero_rows(const packing *p, int part, int64_t unit, int count)
{
    const call_state *s = p->s;
    const int32_t row_length = part ? s->value_row : s->row;
    if (p->side->rows[part])
        memset(p->side->rows[part] + (unit * TILE + count) * row_length, 0,
               (size_t)(TILE - count) * (size_t)row_length * sizeof(float));
}

/* The query's log-sum-exp and delta; returns whether it sees nothing. */
static int pack_statistics(call_state *s, int64_t unit, int64_t token, int i, int32_t head, float *finite)
{
    const mg_attn_call *call = &s->call;
    const int64_t at = (int64_t)head * s->plan->queries + token + i;
    const float lse = call->lse[at];
    double delta = 0;
    float out[MG_ATTN_MAX_DIM], dout[MG_ATTN_MAX_DIM];
    if (lse == -__builtin_inff()) {
        s->lse[unit * TILE + i] = __builtin_inff();
        s->delta[unit * TILE + i] = 0;
        return 1;
    }
    const mg_attn_type type = call->out_fp32 ? MG_ATTN_FP32 : call->type;
    mg_attn_load_row(out, &call->out, type, token + i, head, call->value_dim);
    mg_attn_load_row(dout, &call->dout, type, token + i, head, call->value_dim);
    for (int32_t d = 0; d < call->value_dim; d++)
        delta += (double)out[d] * dout[d];
    s->lse[unit * TILE + i] = lse;
    s->delta[unit * TILE + i] = (float)(delta - (call->dlse ? (double)call->dlse[at] : 0));
    *finite += lse * 0 + s->delta[unit * TILE + i] * 0;
    return 0;
}

static void pack_head(const packing *p, int64_t tile, int32_t head)
{
    call_state *s = p->s;
    const int64_t unit = head * p->side->tiles + tile, token = tile * TILE;
    const int count = (int)smaller_of(TILE, p->tokens - token), of_queries = p->side == &s->queries;
    float finite = 0;
    int32_t bad = 0;
    eight rows[2];
    for (int i = count; i < TILE && of_queries; i++) {
        s->lse[unit * TILE + i] = __builtin_inff();
        s->delta[unit * TILE + i] = 0;
    }
    for (int i = 0; i < TILE; i += EIGHT) {
        for (int j = i; j < i + EIGHT; j++) {
            const int there = j < count;
            const int skip = there && of_queries && pack_statistics(s, unit, token, j, head, &finite);
            for (int part = 0; part < 2; part++)
                if (there)
                    bad |= load_token(rows[part][j - i], p, part, unit, token, j, head, skip);
                else
                    load_nothing(rows[part][j - i], p, part);
        }
        for (int part = 0; part < 2; part++) {
            const int32_t dim1 = part ? s->call.value_dim : s->dim1;
            float *tiled = p->side->tiled[part];
            if (tiled)
                put_eight(tiled + unit * dim1 * TILE + (p->blocks ? (int64_t)i * dim1 : half_lane(i, dim1)),
                          p->blocks ? BLOCK : HALF, (const float(*)[ROOM])rows[part], dim1);
        }
    }
    for (int part = 0; part < 2 && count < TILE; part++)
        zero_rows(p, part, unit, count);
    p->side->bad[unit] = bad || !(finite == 0);
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
                 .scale = s->call.scale,
                 .blocks = 1};
    pack_side(&p);
}
