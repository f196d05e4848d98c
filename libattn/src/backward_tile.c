/* The backward kernel of a tile, on every instruction set. Lanes are keys: k, v, dk and dv are lane-major, queries are
 * broadcast; only dq, whose sum goes over the lanes, is made by rows from the dS that were written to memory. */
#include "kernel.h"
#include "lanes.h"

void KERNEL(mg_attn_backward_tile)(const backward_tile *t);

typedef struct strip {
    const backward_tile *t;
    lookup_table table;
    int lane, query; /* the register tile: keys from `lane`, queries from `query` */
    const float *q, *dout;
} strip;

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

/* s[r][v] += broadcast[d][r] * lanes[d][v] over all d */
INLINE void product(vec s[ROWS][VECS], const float *lanes, const float *broadcast, int32_t dim)
{
    for (int32_t d = 0; d < dim; d++) {
        vec x[VECS];
        UNROLL
        for (int v = 0; v < VECS; v++)
            x[v] = load(lanes + d * TILE + v * LANES);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int v = 0; v < VECS; v++)
                s[r][v] += x[v] * broadcast[d * BLOCK + r];
        }
    }
}

/* lanes[d][v] += sum over r of broadcast[d][r] * s[r][v] */
INLINE void accumulate(float *lanes, vec s[ROWS][VECS], const float *broadcast, int32_t dim)
{
    for (int32_t d = 0; d < dim; d++) {
        vec sum[VECS];
        UNROLL
        for (int v = 0; v < VECS; v++)
            sum[v] = load(lanes + d * TILE + v * LANES);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int v = 0; v < VECS; v++)
                sum[v] += s[r][v] * broadcast[d * BLOCK + r];
        }
        UNROLL
        for (int v = 0; v < VECS; v++)
            store(lanes + d * TILE + v * LANES, sum[v]);
    }
}

INLINE void probabilities(vec s[ROWS][VECS], const strip *p, const int kind)
{
    const backward_tile *t = p->t;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            s[r][v] = bias_of(&t->bias, p->table, (p->query + r) * TILE + p->lane + v * LANES, kind);
    }
    product(s, t->k + p->lane, p->q, t->dim);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            s[r][v] = exponential(s[r][v] - t->lse[p->query + r]);
    }
}

INLINE void gradient_of_values(vec s[ROWS][VECS], const strip *p, const int dropout)
{
    if (dropout) {
        vec kept[ROWS][VECS];
        const float *keep = p->t->keep + p->query * TILE + p->lane;
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int v = 0; v < VECS; v++)
                kept[r][v] = s[r][v] * load(keep + r * TILE + v * LANES);
        }
        accumulate(p->t->dv + p->lane, kept, p->dout, p->t->value_dim);
    } else {
        accumulate(p->t->dv + p->lane, s, p->dout, p->t->value_dim);
    }
}

/* One register tile: dv, dS and dk. */
INLINE void step(const strip *p, const int kind, const int dropout)
{
    const backward_tile *t = p->t;
    float *ds = t->ds + p->query * TILE + p->lane;
    vec s[ROWS][VECS];
    probabilities(s, p, kind);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            store(ds + r * TILE + v * LANES, s[r][v]);
    }
    if (t->dv)
        gradient_of_values(s, p, dropout);
    if (!t->need_ds)
        return;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            s[r][v] = dropout ? (vec){0} : splat(-t->delta[p->query + r]);
    }
    product(s, t->v + p->lane, p->dout, t->value_dim);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++) {
            if (dropout)
                s[r][v] =
                    s[r][v] * load(t->keep + (p->query + r) * TILE + p->lane + v * LANES) - t->delta[p->query + r];
            s[r][v] *= load(ds + r * TILE + v * LANES);
            store(ds + r * TILE + v * LANES, s[r][v]);
        }
    }
    if (t->dk)
        accumulate(t->dk + p->lane, s, p->q, t->dim);
}

/* dq of 8 queries, elements [from, from + width) */
#define DEFINE_QUERY_GRADIENT(name, vec, load, store, count)                                                           \
    INLINE void name(const backward_tile *t, int query, int32_t from)                                                  \
    {                                                                                                                  \
        float *dq = t->dq + (int64_t)query * t->row + from;                                                            \
        const float *ds = t->ds + query * TILE, *k = t->k_rows + from;                                                 \
        vec sum[count];                                                                                                \
        UNROLL                                                                                                         \
        for (int r = 0; r < count; r++)                                                                                \
            sum[r] = load(dq + r * t->row);                                                                            \
        for (int key = 0; key < TILE; key++) {                                                                         \
            vec x = load(k + (int64_t)key * t->row);                                                                   \
            UNROLL                                                                                                     \
            for (int r = 0; r < count; r++)                                                                            \
                sum[r] += x * ds[r * TILE + key];                                                                      \
        }                                                                                                              \
        UNROLL                                                                                                         \
        for (int r = 0; r < count; r++)                                                                                \
            store(dq + r * t->row, sum[r]);                                                                            \
    }
DEFINE_QUERY_GRADIENT(query_gradient, vec, load, store, BLOCK)
#if defined(__AVX512F__)
DEFINE_QUERY_GRADIENT(query_gradient8, octet, load8, store8, BLOCK)
#endif

INLINE void tile(const backward_tile *t, const int kind, const int dropout)
{
    strip p = {.t = t};
    if (kind == BIAS_LOOKUP16 || kind == BIAS_LOOKUP32)
        p.table = load_table(t->bias.table);
    for (int32_t block = 0; block < t->query_blocks; block++) {
        for (int within = 0; within < BLOCK; within += ROWS) {
            p.query = block * BLOCK + within;
            p.q = t->q + (int64_t)block * t->dim * BLOCK + within;
            p.dout = t->dout + (int64_t)block * t->value_dim * BLOCK + within;
            for (p.lane = 0; p.lane < TILE; p.lane += STRIP)
                step(&p, kind, dropout);
        }
        int32_t from = 0;
        if (t->dq)
            for (; from + LANES <= t->row; from += LANES)
                query_gradient(t, block * BLOCK, from);
#if defined(__AVX512F__)
        if (t->dq && from < t->row)
            query_gradient8(t, block * BLOCK, from);
#endif
    }
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
