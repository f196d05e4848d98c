/* The forward kernel of a tile, on every instruction set but AVX-512, for which there is one by hand. Lanes are queries:
 * a register tile holds the scores of VECS vectors of queries with ROWS keys; a key's elements are broadcast. */
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

/* Probabilities of a strip, parked until out is at hand: it then stays in registers over all keys. */
typedef float parking[TILE][STRIP];

/* `dims` elements of v from d on, keys [begin, end) in their order. */
INLINE void add_dims(const parking parked, const strip *p, int begin, int end, int32_t d, const int dims)
{
    const int32_t value_dim = p->t->value_dim;
    float *out = p->t->out + d * TILE + p->lane;
    vec sum[ROWS][VECS];
    UNROLL
    for (int i = 0; i < dims; i++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            sum[i][v] = load(out + i * TILE + v * LANES);
    }
    for (int key = begin; key < end; key += ROWS) {
        const float *values = p->t->v + (int64_t)(key / BLOCK) * value_dim * BLOCK + d * BLOCK + key % BLOCK;
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            vec x[VECS];
            UNROLL
            for (int v = 0; v < VECS; v++)
                x[v] = load(parked[key + r] + v * LANES);
            UNROLL
            for (int i = 0; i < dims; i++) {
                UNROLL
                for (int v = 0; v < VECS; v++)
                    sum[i][v] += x[v] * values[i * BLOCK + r];
            }
        }
    }
    UNROLL
    for (int i = 0; i < dims; i++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            store(out + i * TILE + v * LANES, sum[i][v]);
    }
}

INLINE void add_parked(const parking parked, const strip *p, int begin, int end)
{
    int32_t d = 0;
    for (; d + ROWS <= p->t->value_dim; d += ROWS)
        add_dims(parked, p, begin, end, d, ROWS);
    for (; d < p->t->value_dim; d++)
        add_dims(parked, p, begin, end, d, 1);
}

/* s becomes exp(s - maximum), and is added to the sum. Where a maximum has to be raised, keys [*begin, key) leave the
 * parking first. */
INLINE void probabilities(vec s[ROWS][VECS], const strip *p, const parking parked, int *begin, int key)
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
        add_parked(parked, p, *begin, key);
        *begin = key;
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

INLINE void tile(const forward_tile *t, const int kind, const int dropout)
{
    strip p = {.t = t};
    if (kind == BIAS_LOOKUP16 || kind == BIAS_LOOKUP32)
        p.table = load_table(t->bias.table);
    for (p.lane = 0; p.lane < t->lanes; p.lane += STRIP) {
        parking parked __attribute__((aligned(64)));
        const int end = t->key_blocks * BLOCK;
        int begin = 0;
        for (int key = 0; key < end; key += ROWS) {
            vec s[ROWS][VECS];
            scores(s, &p, t->k + (int64_t)(key / BLOCK) * t->dim * BLOCK + key % BLOCK, key, kind);
            probabilities(s, &p, (const float(*)[STRIP])parked, &begin, key);
            UNROLL
            for (int r = 0; r < ROWS; r++) {
                UNROLL
                for (int v = 0; v < VECS; v++) {
                    if (dropout)
                        s[r][v] *= load(t->keep + (key + r) * TILE + p.lane + v * LANES);
                    store(parked[key + r] + v * LANES, s[r][v]);
                }
            }
        }
        add_parked((const float(*)[STRIP])parked, &p, begin, end);
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
