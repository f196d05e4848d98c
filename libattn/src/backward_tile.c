/* The backward kernel of a tile, on every instruction set. Lanes are keys: k, v, dk and dv are lane-major, queries are
 * broadcast; only dq, whose sum goes over the lanes, is made by rows from the dS that were written to memory.
 *
 * A strip of keys meets all queries of the tile before the next: its part of k, v, dk and dv stays in the first cache.
 * Where all four are too much for it, a first walk over the queries uses k and dv alone, a second one v and dk. */
#include "kernel.h"
#include "lanes.h"

void KERNEL(mg_attn_backward_tile)(const backward_tile *t);

#if defined(__AVX512F__)
#include "backward_tile_v4.h"
#else
typedef struct strip {
    const backward_tile *t;
    lookup_table table;
    int lane, query; /* the register tile: keys from `lane`, queries from `query` */
    const float *q, *dout;
    const float *k, *v; /* of these keys: elements are HALF apart */
    float *dk, *dv, *ds;
    int products; /* how many were made: each fetches its part of what the next tile needs */
} strip;

enum { FIRST_CACHE = 40960 }; /* bytes of it that a strip may take */

INLINE vec bias_of(const tile_bias *bias, lookup_table table, int at, const int kind)
{
    if (kind == BIAS_CONSTANT)
        return splat(bias->constant);
    if (kind == BIAS_LOOKUP16)
        return lookup16(table, bias->codes + at);
    if (kind == BIAS_LOOKUP32)
        return lookup32(table, bias->codes + at);
    return load(bias->tile + at);
}

/* Where product n of a tile fetches from: each of the arrays ahead, 4 lines an element, lasts for some products. */
INLINE const char *fetch_from(strip *p, int32_t dim)
{
    enum { PRODUCTS = 2 * PAIRS / (ROWS * STRIP), EACH = PRODUCTS / AHEAD };
    const backward_tile *t = p->t;
    const int n = p->products++, array = n / EACH % AHEAD;
    if (t->codes_ahead)
        for (int row = 0; row < TILE / PRODUCTS + !(TILE / PRODUCTS); row++)
            __builtin_prefetch(t->codes_ahead + (n * TILE / PRODUCTS % TILE + row) * t->codes_stride);
    return t->ahead[array] ? (const char *)t->ahead[array] + (int64_t)(n % EACH) * dim * (4 * 64 / EACH)
                           : (const char *)t->ds;
}

/* s[r][v] += broadcast[d][r] * lanes[d][v] over all d */
INLINE void product(vec s[ROWS][VECS], const float *lanes, const float *broadcast, int32_t dim, const char *ahead)
{
    for (int32_t d = 0; d < dim; d++) {
        vec x[VECS];
        __builtin_prefetch(ahead + d * 64, 0, 2);
        UNROLL
        for (int v = 0; v < VECS; v++)
            x[v] = load(lanes + d * HALF + v * LANES);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int v = 0; v < VECS; v++)
                s[r][v] += x[v] * broadcast[d * BLOCK + r];
        }
    }
}

/* lanes[d][v] += sum over r of broadcast[d][r] * s[r][v], for `count` d at once: each is a chain of ROWS additions. */
INLINE void accumulate_some(float *lanes, vec s[ROWS][VECS], const float *broadcast, const int count)
{
    vec sum[2][VECS];
    UNROLL
    for (int d = 0; d < count; d++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            sum[d][v] = load(lanes + d * HALF + v * LANES);
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int d = 0; d < count; d++) {
            UNROLL
            for (int v = 0; v < VECS; v++)
                sum[d][v] += s[r][v] * broadcast[d * BLOCK + r];
        }
    }
    UNROLL
    for (int d = 0; d < count; d++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            store(lanes + d * HALF + v * LANES, sum[d][v]);
    }
}

INLINE void accumulate(float *lanes, vec s[ROWS][VECS], const float *broadcast, int32_t dim)
{
    int32_t d = 0;
    for (; d + 2 <= dim; d += 2)
        accumulate_some(lanes + d * HALF, s, broadcast + d * BLOCK, 2);
    if (d < dim)
        accumulate_some(lanes + d * HALF, s, broadcast + d * BLOCK, 1);
}

INLINE void probabilities(vec s[ROWS][VECS], strip *p, const int kind)
{
    const backward_tile *t = p->t;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            s[r][v] = bias_of(&t->bias, p->table, (p->query + r) * TILE + p->lane + v * LANES, kind);
    }
    product(s, p->k, p->q, t->dim, fetch_from(p, t->dim));
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            s[r][v] = exponential(s[r][v] - t->lse[p->query + r]);
    }
}

/* P of a register tile, to memory, and its share of dv. */
INLINE void first_step(strip *p, const int kind, const int dropout)
{
    const backward_tile *t = p->t;
    vec s[ROWS][VECS];
    probabilities(s, p, kind);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            store(p->ds + r * HALF + v * LANES, s[r][v]);
    }
    if (!t->dv)
        return;
    if (dropout) {
        const float *keep = t->keep + p->query * TILE + p->lane;
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int v = 0; v < VECS; v++)
                s[r][v] *= load(keep + r * TILE + v * LANES);
        }
    }
    accumulate(p->dv, s, p->dout, t->value_dim);
}

/* dS of a register tile, in the place of P, and its share of dk. */
INLINE void second_step(strip *p, const int dropout)
{
    const backward_tile *t = p->t;
    vec s[ROWS][VECS];
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            s[r][v] = dropout ? (vec){0} : splat(-t->delta[p->query + r]);
    }
    product(s, p->v, p->dout, t->value_dim, fetch_from(p, t->value_dim));
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++) {
            if (dropout)
                s[r][v] =
                    s[r][v] * load(t->keep + (p->query + r) * TILE + p->lane + v * LANES) - t->delta[p->query + r];
            s[r][v] *= load(p->ds + r * HALF + v * LANES);
            store(p->ds + r * HALF + v * LANES, s[r][v]);
        }
    }
    if (t->dk)
        accumulate(p->dk, s, p->q, t->dim);
}

INLINE void set_queries(strip *p, int query)
{
    const backward_tile *t = p->t;
    p->query = query;
    p->q = t->q + (int64_t)(query / BLOCK) * t->dim * BLOCK + query % BLOCK;
    p->dout = t->dout + (int64_t)(query / BLOCK) * t->value_dim * BLOCK + query % BLOCK;
    p->ds = t->ds + half_lane(p->lane, TILE) + query * HALF;
}

INLINE void set_keys(strip *p, int lane)
{
    const backward_tile *t = p->t;
    const int64_t of_k = half_lane(lane, t->dim), of_v = half_lane(lane, t->value_dim);
    p->lane = lane;
    p->k = t->k + of_k;
    p->v = t->v + of_v;
    p->dk = t->dk ? t->dk + of_k : NULL;
    p->dv = t->dv ? t->dv + of_v : NULL;
}

/* --- dq --- */

/* dq of 8 queries, LANES elements from `from` on */
INLINE void query_gradient(const backward_tile *t, int query, int32_t from)
{
    float *dq = t->dq + (int64_t)query * t->row + from;
    const float *k = t->k_rows + from;
    vec sum[BLOCK];
    UNROLL
    for (int r = 0; r < BLOCK; r++)
        sum[r] = load(dq + r * t->row);
    for (int key = 0; key < TILE; key++) {
        const float *ds = t->ds + half_lane(key, TILE) + query * HALF;
        vec x = load(k + (int64_t)key * t->row);
        UNROLL
        for (int r = 0; r < BLOCK; r++)
            sum[r] += x * ds[r * HALF];
    }
    UNROLL
    for (int r = 0; r < BLOCK; r++)
        store(dq + r * t->row, sum[r]);
}

INLINE void query_gradients(const backward_tile *t)
{
    for (int query = 0; query < t->query_blocks * BLOCK; query += BLOCK)
        for (int32_t from = 0; from < t->row; from += LANES)
            query_gradient(t, query, from);
}

INLINE void tile(const backward_tile *t, const int kind, const int dropout)
{
    strip p = {.t = t};
    const int queries = t->query_blocks * BLOCK;
    const int apart = (2 * t->dim + 2 * t->value_dim) * STRIP * 4 > FIRST_CACHE;
    if (kind == BIAS_LOOKUP16 || kind == BIAS_LOOKUP32)
        p.table = load_table(t->bias.table);
    for (int lane = 0; lane < TILE; lane += STRIP) {
        set_keys(&p, lane);
        for (int query = 0; query < queries; query += ROWS) {
            set_queries(&p, query);
            first_step(&p, kind, dropout);
            if (t->need_ds && !apart)
                second_step(&p, dropout);
        }
        for (int query = 0; query < queries && t->need_ds && apart; query += ROWS) {
            set_queries(&p, query);
            second_step(&p, dropout);
        }
    }
    if (t->dq)
        query_gradients(t);
}

__attribute__((noinline)) static void constant_tile(const backward_tile *t) { tile(t, BIAS_CONSTANT, 0); }
__attribute__((noinline)) static void lookup16_tile(const backward_tile *t) { tile(t, BIAS_LOOKUP16, 0); }
__attribute__((noinline)) static void lookup32_tile(const backward_tile *t) { tile(t, BIAS_LOOKUP32, 0); }
__attribute__((noinline)) static void bias_tile(const backward_tile *t) { tile(t, BIAS_TILE, 0); }
__attribute__((noinline)) static void dropout_constant_tile(const backward_tile *t) { tile(t, BIAS_CONSTANT, 1); }
__attribute__((noinline)) static void dropout_lookup16_tile(const backward_tile *t) { tile(t, BIAS_LOOKUP16, 1); }
__attribute__((noinline)) static void dropout_lookup32_tile(const backward_tile *t) { tile(t, BIAS_LOOKUP32, 1); }
__attribute__((noinline)) static void dropout_bias_tile(const backward_tile *t) { tile(t, BIAS_TILE, 1); }

void KERNEL(mg_attn_backward_tile)(const backward_tile *t)
{
    static void (*const kernels[2][4])(const backward_tile *) = {{[BIAS_CONSTANT] = constant_tile,
                                                                  [BIAS_LOOKUP16] = lookup16_tile,
                                                                  [BIAS_LOOKUP32] = lookup32_tile,
                                                                  [BIAS_TILE] = bias_tile},
                                                                 {[BIAS_CONSTANT] = dropout_constant_tile,
                                                                  [BIAS_LOOKUP16] = dropout_lookup16_tile,
                                                                  [BIAS_LOOKUP32] = dropout_lookup32_tile,
                                                                  [BIAS_TILE] = dropout_bias_tile}};
    kernels[t->keep != NULL][t->bias.kind](t);
}
#endif
