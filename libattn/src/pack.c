/* Copies tokens between the caller's tensors and the layouts of the kernels. */
#include "call.h"
#include "numbers.h"
#include "parallel.h"

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

/* 0, or NaN where an element is not finite. */
static float finite_sum(const float *row, int32_t dim)
{
    float sum = 0;
    for (int32_t d = 0; d < dim; d++)
        sum += row[d] * 0;
    return sum;
}

/* Where element d of token i of a tile goes: [2][dim][32] in lanes, or [8][dim][8] in blocks. */
static void put_row(float *out, const float *row, int i, int32_t dim, int32_t dim1, int blocks)
{
    const int64_t first = blocks ? (int64_t)(i / BLOCK) * dim1 * BLOCK + i % BLOCK : half_lane(i, dim1),
                  step = blocks ? BLOCK : HALF;
    for (int32_t d = 0; d < dim; d++)
        out[first + d * step] = row[d];
}

int mg_attn_pack_lanes(float *out, const mg_attn_tensor *from, mg_attn_type type, int64_t token, int count,
                       int32_t head, int32_t dim, float scale)
{
    float row[MG_ATTN_MAX_DIM], finite = 0;
    if (count < TILE)
        memset(out, 0, (size_t)dim * TILE * sizeof *out);
    for (int i = 0; i < count; i++) {
        mg_attn_load_row(row, from, type, token + i, head, dim);
        for (int32_t d = 0; d < dim; d++)
            row[d] *= scale;
        finite += finite_sum(row, dim);
        for (int32_t d = 0; d < dim; d++)
            out[d * TILE + i] = row[d];
    }
    return finite == 0;
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
static float pack_token(const packing *p, int part, int64_t unit, int64_t token, int i, int32_t head, int skip)
{
    const call_state *s = p->s;
    const int32_t dim = part ? s->call.value_dim : s->call.dim, dim1 = part ? dim : s->dim1;
    const int32_t row_length = part ? s->value_row : s->row;
    float row[MG_ATTN_MAX_DIM + 8];
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
    if (!p->side->tiled[part])
        return finite_sum(row, dim);
    if (dim1 > dim)
        row[dim] = p->side == &s->queries ? 1
                   : s->call.key_bias     ? s->call.key_bias[head * s->plan->keys + token + i]
                                          : 0;
    put_row(p->side->tiled[part] + unit * dim1 * TILE, row, i, dim1, dim1, p->blocks);
    return finite_sum(row, dim);
}

static void zero_rest(const packing *p, int part, int64_t unit, int count)
{
    const call_state *s = p->s;
    const int32_t dim1 = part ? s->call.value_dim : s->dim1, row_length = part ? s->value_row : s->row;
    if (p->side->tiled[part])
        memset(p->side->tiled[part] + unit * dim1 * TILE, 0, (size_t)dim1 * TILE * sizeof(float));
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
    for (int part = 0; part < 2 && count < TILE; part++)
        zero_rest(p, part, unit, count);
    for (int i = count; i < TILE && of_queries; i++) {
        if (s->has_bias_element && p->side->tiled[0]) /* 0 would meet a key bias of -inf */
            put_row(p->side->tiled[0] + unit * s->dim1 * TILE + s->call.dim * BLOCK, (const float[]){1}, i, 1, s->dim1,
                    1);
        s->lse[unit * TILE + i] = __builtin_inff();
        s->delta[unit * TILE + i] = 0;
    }
    for (int i = 0; i < count; i++) {
        const int skip = of_queries && pack_statistics(s, unit, token, i, head, &finite);
        for (int part = 0; part < 2; part++)
            finite += pack_token(p, part, unit, token, i, head, skip);
    }
    p->side->bad[unit] = !(finite == 0);
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
