/* The forward kernel of a tile, on every instruction set but AVX-512, for which there is one by hand. Lanes are queries: a register tile holds the scores of VECS
 * vectors of queries with ROWS keys; a key's elements are broadcast. Probabilities never leave registers. */
#include "kernel.h"
#include "lanes.h"

void KERNEL(mg_attn_forward_tile)(const forward_tile *t);

#if defined(__AVX512F__)
#include "forward_tile_v4.h"
#else

/* Scores from the first of 64 lanes on. */
typedef struct strip {
    const forward_tile *t;
    int lane;
    lookup_table table;
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

/* Moves the maximum of the queries where `top` exceeds the limit, and scales what they hold. */
__attribute__((noinline)) static void raise_maximum(const forward_tile *t, int lane, const float *top)
{
    float scale[STRIP];
    for (int i = 0; i < STRIP; i++) {
        float *maximum = t->maximum + lane + i, *limit = t->limit + lane + i;
        scale[i] = 1;
        if (top[i] > *limit) {
            /* Nothing was seen before: sum and out are 0. */
            scale[i] = *limit == -__builtin_inff() ? 0 : exponential(splat(*maximum - top[i]))[0];
            *maximum = top[i];
            *limit = top[i] + 20;
        }
        t->sum[lane + i] *= scale[i];
    }
    for (int32_t d = 0; d < t->value_dim; d++)
        for (int i = 0; i < STRIP; i++)
            t->out[d * TILE + lane + i] *= scale[i];
}

INLINE void scores(vec s[ROWS][VECS], const strip *p, const float *keys, int key, const int kind)
{
    const forward_tile *t = p->t;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            s[r][v] = bias_of(&t->bias, p->table, (key + r) * TILE + p->lane + v * LANES, kind);
    }
    const float *q = t->q + p->lane;
    for (int32_t d = 0; d < t->dim; d++) {
        vec x[VECS];
        UNROLL
        for (int v = 0; v < VECS; v++)
            x[v] = load(q + d * TILE + v * LANES);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int v = 0; v < VECS; v++)
                s[r][v] += x[v] * keys[d * BLOCK + r];
        }
    }
}

/* s becomes exp(s - maximum), and is added to the sum. */
INLINE void probabilities(vec s[ROWS][VECS], const strip *p)
{
    const forward_tile *t = p->t;
    vec top[VECS];
    int above = 0;
    UNROLL
    for (int v = 0; v < VECS; v++) {
        top[v] = s[0][v];
        UNROLL
        for (int r = 1; r < ROWS; r++)
            top[v] = larger(top[v], s[r][v]);
        above |= any_above(top[v], load(t->limit + p->lane + v * LANES));
    }
    if (__builtin_expect(above, 0)) {
        float tops[STRIP];
        UNROLL
        for (int v = 0; v < VECS; v++)
            store(tops + v * LANES, top[v]);
        raise_maximum(t, p->lane, tops);
    }
    UNROLL
    for (int v = 0; v < VECS; v++) {
        vec maximum = load(t->maximum + p->lane + v * LANES), sum = {0};
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            s[r][v] = exponential(s[r][v] - maximum);
            sum += s[r][v];
        }
        store(t->sum + p->lane + v * LANES, load(t->sum + p->lane + v * LANES) + sum);
    }
}

INLINE void add_values(vec s[ROWS][VECS], const strip *p, const float *values)
{
    float *out = p->t->out + p->lane;
    for (int32_t d = 0; d < p->t->value_dim; d++) {
        vec sum[VECS];
        UNROLL
        for (int v = 0; v < VECS; v++)
            sum[v] = load(out + d * TILE + v * LANES);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int v = 0; v < VECS; v++)
                sum[v] += s[r][v] * values[d * BLOCK + r];
        }
        UNROLL
        for (int v = 0; v < VECS; v++)
            store(out + d * TILE + v * LANES, sum[v]);
    }
}

INLINE void tile(const forward_tile *t, const int kind, const int dropout)
{
    strip p = {.t = t};
    if (kind == BIAS_LOOKUP16 || kind == BIAS_LOOKUP32)
        p.table = load_table(t->bias.table);
    for (p.lane = 0; p.lane < t->lanes; p.lane += STRIP)
        for (int key = 0; key < t->key_blocks * BLOCK; key += ROWS) {
            const int32_t block = key / BLOCK, within = key % BLOCK;
            vec s[ROWS][VECS];
            scores(s, &p, t->k + (int64_t)block * t->dim * BLOCK + within, key, kind);
            probabilities(s, &p);
            if (dropout) {
                UNROLL
                for (int r = 0; r < ROWS; r++) {
                    UNROLL
                    for (int v = 0; v < VECS; v++)
                        s[r][v] *= load(t->keep + (key + r) * TILE + p.lane + v * LANES);
                }
            }
            add_values(s, &p, t->v + (int64_t)block * t->value_dim * BLOCK + within);
        }
}

__attribute__((noinline)) static void constant_tile(const forward_tile *t) { tile(t, BIAS_CONSTANT, 0); }
__attribute__((noinline)) static void lookup16_tile(const forward_tile *t) { tile(t, BIAS_LOOKUP16, 0); }
__attribute__((noinline)) static void lookup32_tile(const forward_tile *t) { tile(t, BIAS_LOOKUP32, 0); }
__attribute__((noinline)) static void bias_tile(const forward_tile *t) { tile(t, BIAS_TILE, 0); }
__attribute__((noinline)) static void dropout_constant_tile(const forward_tile *t) { tile(t, BIAS_CONSTANT, 1); }
__attribute__((noinline)) static void dropout_lookup16_tile(const forward_tile *t) { tile(t, BIAS_LOOKUP16, 1); }
__attribute__((noinline)) static void dropout_lookup32_tile(const forward_tile *t) { tile(t, BIAS_LOOKUP32, 1); }
__attribute__((noinline)) static void dropout_bias_tile(const forward_tile *t) { tile(t, BIAS_TILE, 1); }

void KERNEL(mg_attn_forward_tile)(const forward_tile *t)
{
    static void (*const kernels[2][4])(const forward_tile *) = {{[BIAS_CONSTANT] = constant_tile,
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
