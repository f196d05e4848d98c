/* The forward kernel of a tile for AVX-512 with two 512-bit pipes. Lanes are queries; a block is 32 queries (a strip of
 * two vectors) x 8 keys, whose 16 vectors of scores stay in registers from the bias to the products with v.
 *
 * Counted in instructions of the two pipes, of which a vector of 16 scores needs 2 dim + 10 at least:
 *     1  the bias, looked up, is what the products are added to. Codes of four keys lie in a word of each lane
 *        ([16][64][4] bytes), so that a load one byte further brings the next key's code to where vpermps reads it.
 *   dim  products with q, by multiply_add of forward_v4.h
 *     8  exponential: y = s - m, f = y - floor y (vreduceps), degree 5, times 2^(floor y) (vscalefps).
 * Any y will do, so nothing is clamped and hidden scores, -inf, give 0 1  the sum dim  products with v, out in memory
 * The maximum is not looked for: its only use is to keep sums from overflowing, and sums are looked at once a block.
 * A lane's maximum is its first block's largest score, and is raised when its sum exceeds 2^60.
 *
 * Scores are times log2 e, or, where a bias is too large for that, come to be when the maximum has been taken off. What
 * is rare is done by `rare_block`: lanes that have seen nothing, or have to be raised. Each lane follows its own scores
 * there, and other lanes' bits are as if it had not run.
 */
#ifndef MG_ATTN_FORWARD_TILE_V4_H
#define MG_ATTN_FORWARD_TILE_V4_H
#include "forward_v4.h"

void mg_attn_turn_codes_v4(uint8_t *out, const uint8_t *in, int64_t stride);

enum { AT_ONCE = 8 }; /* dims of out in registers */

typedef struct strip {
    const forward_tile *t;
    int lane;           /* the first of the strip */
    const float *ahead; /* the next tile's keys or values, which this strip has brought nearer */
    __m512 low, high;
} strip;

typedef __m512 block[ROWS][VECS];

/* Of key + r; key is the first of a block. */
INLINE __m512 bias_of(const strip *p, int64_t key, const int r, const int v, const int kind)
{
    const tile_bias *bias = &p->t->bias;
    if (kind == BIAS_CONSTANT)
        return _mm512_set1_ps(bias->constant);
    if (kind == BIAS_TILE)
        return _mm512_loadu_ps(bias->tile + key * TILE + p->lane + r * TILE + v * LANES);
    const uint8_t *at = bias->codes + key * TILE + p->lane * 4 + r / 4 * 4 * TILE + v * LANES * 4;
    const __m512i codes = _mm512_loadu_si512(at + r % 4);
    return kind == BIAS_LOOKUP16 ? _mm512_permutexvar_ps(codes, p->low)
                                 : _mm512_permutex2var_ps(p->low, codes, p->high);
}

INLINE void scores(block s, const strip *p, int64_t key, const int kind, const int dim)
{
    const forward_tile *t = p->t;
    const int32_t dims = words_of(dim ? dim : t->dim);
    const float *q = t->q + p->lane, *k = t->k + key * dims;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            s[r][v] = PER_WORD == 1 ? bias_of(p, key, r, v, kind) : _mm512_setzero_ps();
    }
    for (int32_t d = 0; d < dims; d++) {
        __m512 x[VECS];
        UNROLL
        for (int v = 0; v < VECS; v++)
            x[v] = _mm512_loadu_ps(q + d * TILE + v * LANES);
        if (d % 2 == 0)
            _mm_prefetch(p->ahead + key * dims + d * BLOCK, _MM_HINT_T1);
        multiply_add(s, x, k + d * BLOCK, 1, ROWS);
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS && PER_WORD > 1; v++)
            s[r][v] = _mm512_fmadd_ps(s[r][v], _mm512_set1_ps(t->scale), bias_of(p, key, r, v, kind));
    }
}

/* Probabilities of a strip, parked until out is at hand: it then stays in registers over all keys. As words of two
   keys they are rounded, and `weights` is what these add up to. */
typedef float parking[TILE][STRIP];

INLINE void park(parking parked, block s, __m512 weights[VECS], const strip *p, int64_t key, const int dropout)
{
#if defined(__AVX512BF16__)
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    UNROLL
    for (int r = 0; r < ROWS; r += 2) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            weights[v] = _mm512_dpbf16_ps(weights[v], (__m512bh)words(s[r][v], s[r + 1][v]), ones);
    }
#endif
    UNROLL
    for (int r = 0; r < ROWS && dropout; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            s[r][v] = _mm512_mul_ps(s[r][v], _mm512_loadu_ps(p->t->keep + (key + r) * TILE + p->lane + v * LANES));
    }
    UNROLL
    for (int r = 0; r < ROWS; r += PER_WORD) {
        UNROLL
        for (int v = 0; v < VECS; v++)
#if defined(__AVX512BF16__)
            _mm512_store_ps(parked[(key + r) / PER_WORD] + v * LANES, words(s[r][v], s[r + 1][v]));
#else
            _mm512_store_ps(parked[key + r] + v * LANES, s[r][v]);
#endif
    }
    (void)weights;
}

/* `dims` elements of v from d on, keys [begin, end) in their order. */
INLINE void add_dims(const parking parked, const strip *p, int64_t begin, int64_t end, int32_t d, const int dims,
                     const int32_t value_dim)
{
    float *out = p->t->out + d * TILE + p->lane;
    __m512 sum[AT_ONCE][VECS];
    UNROLL
    for (int i = 0; i < dims; i++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            sum[i][v] = _mm512_loadu_ps(out + i * TILE + v * LANES);
    }
    for (int64_t key = begin; key < end; key += ROWS) {
        const float *values = p->t->v + key / PER_WORD * value_dim + (int64_t)d * (BLOCK / PER_WORD);
        UNROLL
        for (int r = 0; r < ROWS / PER_WORD; r++) {
            __m512 x[VECS];
            UNROLL
            for (int v = 0; v < VECS; v++)
                x[v] = _mm512_load_ps(parked[key / PER_WORD + r] + v * LANES);
            multiply_add(sum, x, values + r, BLOCK / PER_WORD, dims);
        }
    }
    UNROLL
    for (int i = 0; i < dims; i++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            _mm512_storeu_ps(out + i * TILE + v * LANES, sum[i][v]);
    }
}

INLINE void add_parked(const parking parked, const strip *p, int64_t begin, int64_t end, const int dim)
{
    const int32_t value_dim = dim ? dim : p->t->value_dim;
    int32_t d = 0;
    for (; d + AT_ONCE <= value_dim; d += AT_ONCE)
        add_dims(parked, p, begin, end, d, AT_ONCE, value_dim);
    for (; d < value_dim; d++)
        add_dims(parked, p, begin, end, d, 1, value_dim);
}

INLINE __m512 sum_of(block s, int v)
{
    __m512 sum = s[0][v];
    UNROLL
    for (int r = 1; r < ROWS; r++)
        sum = _mm512_add_ps(sum, s[r][v]);
    return sum;
}

/* --- what is rare --- */

/* Multiplies what the chosen lanes hold by exp(old maximum - new). */
static void scale_lanes(const forward_tile *t, int lane, __mmask16 chosen, __m512 by)
{
    _mm512_mask_storeu_ps(t->sum + lane, chosen, _mm512_mul_ps(_mm512_loadu_ps(t->sum + lane), by));
    if (PER_WORD > 1)
        _mm512_mask_storeu_ps(t->weight + lane, chosen, _mm512_mul_ps(_mm512_loadu_ps(t->weight + lane), by));
    for (int32_t d = 0; d < t->value_dim; d++) {
        float *out = t->out + d * TILE + lane;
        _mm512_mask_storeu_ps(out, chosen, _mm512_mul_ps(_mm512_loadu_ps(out), by));
    }
}

static void set_maximum(const forward_tile *t, int lane, __mmask16 chosen, __m512 maximum)
{
    _mm512_mask_storeu_ps(t->maximum + lane, chosen, maximum);
    _mm512_mask_storeu_ps(t->limit + lane, chosen, _mm512_add_ps(maximum, _mm512_set1_ps(20)));
}

static __m512 rare_probability(const forward_tile *t, __m512 s, __m512 maximum)
{
    return power_of_two(t->log2_scores ? _mm512_sub_ps(s, maximum) : natural_less(s, maximum));
}

/* Column v of a block: scores in s become probabilities, the lanes' state is brought up to date. */
static void rare_column(block s, const forward_tile *t, int lane, int v)
{
    __m512 scores_of[ROWS], top = s[0][v];
    for (int r = 0; r < ROWS; r++) {
        scores_of[r] = s[r][v];
        top = _mm512_max_ps(top, s[r][v]);
    }
    const __m512 nothing = _mm512_set1_ps(-__builtin_inff());
    const __mmask16 first = _mm512_mask_cmp_ps_mask(
        _mm512_cmp_ps_mask(_mm512_loadu_ps(t->limit + lane), nothing, _CMP_EQ_OQ), top, nothing, _CMP_GT_OQ);
    set_maximum(t, lane, first, top);
    __m512 maximum = _mm512_loadu_ps(t->maximum + lane), sum;
    for (int again = 0; again < 2; again++) {
        for (int r = 0; r < ROWS; r++)
            s[r][v] = rare_probability(t, scores_of[r], maximum);
        sum = _mm512_add_ps(_mm512_loadu_ps(t->sum + lane), sum_of(s, v));
        const __mmask16 above = _mm512_cmp_ps_mask(sum, _mm512_set1_ps(RAISE_ABOVE), _CMP_GT_OQ);
        if (again || !above)
            break;
        const __m512 raised = _mm512_max_ps(top, _mm512_add_ps(maximum, _mm512_set1_ps(40)));
        scale_lanes(t, lane, above, rare_probability(t, maximum, raised));
        set_maximum(t, lane, above, raised);
        maximum = _mm512_loadu_ps(t->maximum + lane);
    }
    _mm512_storeu_ps(t->sum + lane, sum);
}

INLINE void load_weights(__m512 weights[VECS], const strip *p)
{
    UNROLL
    for (int v = 0; v < VECS && PER_WORD > 1; v++)
        weights[v] = _mm512_loadu_ps(p->t->weight + p->lane + v * LANES);
}

INLINE void store_weights(const strip *p, const __m512 weights[VECS])
{
    UNROLL
    for (int v = 0; v < VECS && PER_WORD > 1; v++)
        _mm512_storeu_ps(p->t->weight + p->lane + v * LANES, weights[v]);
}

INLINE void rare_block(const strip *p, int64_t key, const int kind, const int dropout)
{
    parking room __attribute__((aligned(64)));
    block s;
    __m512 weights[VECS];
    scores(s, p, key, kind, 0);
    for (int v = 0; v < VECS; v++)
        rare_column(s, p->t, p->lane + v * LANES, v);
    load_weights(weights, p);
    park(room, s, weights, p, key, dropout);
    store_weights(p, weights);
    add_parked(room, p, key, key + ROWS, 0);
}

/* Whether some lane of the strip has seen nothing so far. */
INLINE int is_rare(const strip *p)
{
    int rare = 0;
    for (int v = 0; v < VECS; v++)
        rare |= _mm512_cmp_ps_mask(_mm512_loadu_ps(p->t->limit + p->lane + v * LANES),
                                   _mm512_set1_ps(-__builtin_inff()), _CMP_EQ_OQ);
    return rare;
}

/* --- what is not --- */

/* 0: some sum is too large, and nothing was changed. */
INLINE int common_block(const strip *p, int64_t key, const __m512 maximum[VECS], __m512 total[VECS],
                        __m512 weights[VECS], const int kind, const int dropout, const int dim, parking parked)
{
    block s;
    __m512 sum[VECS];
    scores(s, p, key, kind, dim);
    if (__builtin_expect(!p->t->log2_scores, 0)) {
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int v = 0; v < VECS; v++)
                s[r][v] = natural_less(s[r][v], _mm512_loadu_ps(p->t->maximum + p->lane + v * LANES));
        }
    }
    const __m512 less[4] = {maximum[0], maximum[1], maximum[0], maximum[1]};
    UNROLL
    for (int r = 0; r < ROWS; r += 2)
        four_powers(&s[r], less);
    __mmask16 above = 0;
    UNROLL
    for (int v = 0; v < VECS; v++) {
        sum[v] = _mm512_add_ps(total[v], sum_of(s, v));
        above |= _mm512_cmp_ps_mask(sum[v], _mm512_set1_ps(RAISE_ABOVE), _CMP_GT_OQ);
    }
    if (__builtin_expect(above, 0))
        return 0;
    UNROLL
    for (int v = 0; v < VECS; v++)
        total[v] = sum[v];
    park(parked, s, weights, p, key, dropout);
    return 1;
}

/* --- heads of 8: one vector of queries, whose 8 vectors of out stay in registers beside a block's scores. Nothing is
 * parked: a store costs as much as a multiply-add on Zen 4. Sums go in the same order: the same bits. --- */

enum { FUSED_DIM = 8 };

INLINE void fused_scores(__m512 s[ROWS], const strip *p, int64_t key, const int kind)
{
    const float *q = p->t->q + p->lane, *k = p->t->k + key * FUSED_DIM;
    UNROLL
    for (int r = 0; r < ROWS; r++)
        s[r] = bias_of(p, key, r, 0, kind);
    UNROLL
    for (int d = 0; d < FUSED_DIM; d++) {
        const __m512 x = _mm512_loadu_ps(q + d * TILE);
        if (d % 2 == 0)
            _mm_prefetch(p->ahead + key * FUSED_DIM + d * BLOCK, _MM_HINT_T1);
        UNROLL
        for (int r = 0; r < ROWS; r++)
            s[r] = multiply_add_one(s[r], x, k + d * BLOCK + r);
    }
}

/* As rare_block, of one vector of lanes. */
INLINE void rare_lanes(const strip *p, int64_t key, const int kind)
{
    const forward_tile *t = p->t;
    const float *values = t->v + key * FUSED_DIM;
    float *out = t->out + p->lane;
    __m512 first[ROWS];
    block s;
    fused_scores(first, p, key, kind);
    for (int r = 0; r < ROWS; r++)
        s[r][0] = first[r];
    rare_column(s, t, p->lane, 0);
    for (int d = 0; d < FUSED_DIM; d++) {
        __m512 sum = _mm512_loadu_ps(out + d * TILE);
        for (int r = 0; r < ROWS; r++)
            sum = multiply_add_one(sum, s[r][0], values + d * BLOCK + r);
        _mm512_storeu_ps(out + d * TILE, sum);
    }
}

/* 0: some sum is too large, and nothing was changed. */
INLINE int fused_block(const strip *p, int64_t key, __m512 maximum, __m512 *total, __m512 out[FUSED_DIM],
                       const int kind)
{
    const forward_tile *t = p->t;
    const float *values = t->v + key * FUSED_DIM;
    __m512 s[ROWS];
    fused_scores(s, p, key, kind);
    if (__builtin_expect(!t->log2_scores, 0)) {
        UNROLL
        for (int r = 0; r < ROWS; r++)
            s[r] = natural_less(s[r], _mm512_loadu_ps(t->maximum + p->lane));
    }
    const __m512 less[4] = {maximum, maximum, maximum, maximum};
    four_powers((__m512(*)[VECS])s, less);
    four_powers((__m512(*)[VECS])(s + 4), less);
    __m512 sum = s[0];
    UNROLL
    for (int r = 1; r < ROWS; r++)
        sum = _mm512_add_ps(sum, s[r]);
    sum = _mm512_add_ps(*total, sum);
    if (__builtin_expect(_mm512_cmp_ps_mask(sum, _mm512_set1_ps(RAISE_ABOVE), _CMP_GT_OQ), 0))
        return 0;
    *total = sum;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int d = 0; d < FUSED_DIM; d++)
            out[d] = multiply_add_one(out[d], s[r], values + d * BLOCK + r);
    }
    return 1;
}

/* Keys from `key` on, as long as sums are not too large; returns the first that is not done. */
INLINE int64_t fused_lanes(const strip *p, int64_t key, int64_t end, const int kind)
{
    const forward_tile *t = p->t;
    float *sums = t->out + p->lane;
    __m512 out[FUSED_DIM], total = _mm512_loadu_ps(t->sum + p->lane);
    const __m512 maximum = t->log2_scores ? _mm512_loadu_ps(t->maximum + p->lane) : _mm512_setzero_ps();
    UNROLL
    for (int d = 0; d < FUSED_DIM; d++)
        out[d] = _mm512_loadu_ps(sums + d * TILE);
    while (key < end && fused_block(p, key, maximum, &total, out, kind))
        key += ROWS;
    UNROLL
    for (int d = 0; d < FUSED_DIM; d++)
        _mm512_storeu_ps(sums + d * TILE, out[d]);
    _mm512_storeu_ps(t->sum + p->lane, total);
    return key;
}

typedef void rare_function(const strip *p, int64_t key);

INLINE void fused_tile(const forward_tile *t, const int kind)
{
    strip p = {.t = t};
    if (kind == BIAS_LOOKUP16 || kind == BIAS_LOOKUP32) {
        p.low = _mm512_loadu_ps(t->bias.table);
        p.high = kind == BIAS_LOOKUP32 ? _mm512_loadu_ps(t->bias.table + 16) : p.low;
    }
    const int64_t end = t->key_blocks * BLOCK;
    for (p.lane = 0; p.lane < t->lanes; p.lane += LANES) {
        p.ahead = p.lane & LANES ? t->next_v : t->next_k;
        for (int64_t key = 0; key < end;) {
            if (!_mm512_cmp_ps_mask(_mm512_loadu_ps(t->limit + p.lane), _mm512_set1_ps(-__builtin_inff()), _CMP_EQ_OQ))
                key = fused_lanes(&p, key, end, kind);
            if (key < end) {
                rare_lanes(&p, key, kind);
                key += ROWS;
            }
        }
    }
}

INLINE void tile(const forward_tile *t, rare_function *rare, const int kind, const int dropout, const int dim)
{
    parking room __attribute__((aligned(64)));
    strip p = {.t = t};
    if (kind == BIAS_LOOKUP16 || kind == BIAS_LOOKUP32) {
        p.low = _mm512_loadu_ps(t->bias.table);
        p.high = kind == BIAS_LOOKUP32 ? _mm512_loadu_ps(t->bias.table + 16) : p.low;
    }
    for (p.lane = 0; p.lane < t->lanes; p.lane += STRIP) {
        const int end = t->key_blocks * BLOCK;
        p.ahead = p.lane ? t->next_v : t->next_k;
        int64_t key = 0;
        while (key < end) {
            for (; key < end && is_rare(&p); key += ROWS)
                rare(&p, key);
            __m512 maximum[VECS], total[VECS], weights[VECS];
            load_weights(weights, &p);
            UNROLL
            for (int v = 0; v < VECS; v++) {
                maximum[v] = t->log2_scores ? _mm512_loadu_ps(t->maximum + p.lane + v * LANES) : _mm512_setzero_ps();
                total[v] = _mm512_loadu_ps(t->sum + p.lane + v * LANES);
            }
            const int64_t begin = key;
            while (key < end && common_block(&p, key, maximum, total, weights, kind, dropout, dim, room))
                key += ROWS;
            add_parked(room, &p, begin, key, dim);
            store_weights(&p, weights);
            UNROLL
            for (int v = 0; v < VECS; v++)
                _mm512_storeu_ps(t->sum + p.lane + v * LANES, total[v]);
            if (key < end) {
                rare(&p, key);
                key += ROWS;
            }
        }
    }
}

#define NOINLINE __attribute__((noinline)) static
#define DEFINE(name, kind, dropout)                                                                                    \
    NOINLINE void rare_##name(const strip *p, int64_t key) { rare_block(p, key, kind, dropout); }                      \
    NOINLINE void name(const forward_tile *t) { tile(t, rare_##name, kind, dropout, 0); }
/* Where the number of dims is known, the loops over it are unrolled: this pays where they are short. */
#define DEFINE_DIMS(name, kind)                                                                                        \
    DEFINE(name, kind, 0)                                                                                              \
    NOINLINE void name##_8(const forward_tile *t)                                                                      \
    {                                                                                                                  \
        PER_WORD == 1 ? fused_tile(t, kind) : tile(t, rare_##name, kind, 0, 8 * PER_WORD);                             \
    }                                                                                                                  \
    NOINLINE void name##_16(const forward_tile *t) { tile(t, rare_##name, kind, 0, 16 * PER_WORD); }
DEFINE_DIMS(constant_tile, BIAS_CONSTANT)
DEFINE_DIMS(lookup16_tile, BIAS_LOOKUP16)
DEFINE_DIMS(lookup32_tile, BIAS_LOOKUP32)
DEFINE(bias_tile, BIAS_TILE, 0)
DEFINE(dropout_constant_tile, BIAS_CONSTANT, 1)
DEFINE(dropout_lookup16_tile, BIAS_LOOKUP16, 1)
DEFINE(dropout_lookup32_tile, BIAS_LOOKUP32, 1)
DEFINE(dropout_bias_tile, BIAS_TILE, 1)

typedef void kernel_function(const forward_tile *t);

void KERNEL(mg_attn_forward_tile)(const forward_tile *t)
{
    static kernel_function *const kernels[4][4] = {
        [BIAS_CONSTANT] = {constant_tile, constant_tile_8, constant_tile_16, dropout_constant_tile},
        [BIAS_LOOKUP16] = {lookup16_tile, lookup16_tile_8, lookup16_tile_16, dropout_lookup16_tile},
        [BIAS_LOOKUP32] = {lookup32_tile, lookup32_tile_8, lookup32_tile_16, dropout_lookup32_tile},
        [BIAS_TILE] = {bias_tile, bias_tile, bias_tile, dropout_bias_tile}};
    const int square = t->dim == t->value_dim;
    const int which = t->keep ? 3 : square && t->dim == 8 * PER_WORD ? 1 : square && t->dim == 16 * PER_WORD ? 2 : 0;
    kernels[t->bias.kind][which](t);
}

#if !defined(__AVX512BF16__)
/* --- codes --- */

/* Codes of 16 queries x 64 keys: word g of each query, four keys, goes to row g of the output. Quarters of the rows are
 * gathered by loads, so that only the transposition inside quarters takes shuffles: 80 instructions for 64 vectors. */
INLINE void turn_sixteen(uint8_t *out, const uint8_t *in, int64_t stride)
{
    UNROLL
    for (int c = 0; c < 4; c++) {
        __m512i x[4];
        UNROLL
        for (int r = 0; r < 4; r++) {
            const uint8_t *from = in + r * stride + 16 * c;
            x[r] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)from));
            x[r] = _mm512_inserti32x4(x[r], _mm_loadu_si128((const __m128i *)(from + 4 * stride)), 1);
            x[r] = _mm512_inserti32x4(x[r], _mm_loadu_si128((const __m128i *)(from + 8 * stride)), 2);
            x[r] = _mm512_inserti32x4(x[r], _mm_loadu_si128((const __m128i *)(from + 12 * stride)), 3);
        }
        const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
        const __m512i d = _mm512_unpacklo_epi32(x[2], x[3]), e = _mm512_unpackhi_epi32(x[2], x[3]);
        uint8_t *to = out + 4 * c * TILE * 4;
        _mm512_storeu_si512(to, _mm512_unpacklo_epi64(a, d));
        _mm512_storeu_si512(to + TILE * 4, _mm512_unpackhi_epi64(a, d));
        _mm512_storeu_si512(to + 2 * TILE * 4, _mm512_unpacklo_epi64(b, e));
        _mm512_storeu_si512(to + 3 * TILE * 4, _mm512_unpackhi_epi64(b, e));
    }
}

void mg_attn_turn_codes_v4(uint8_t *out, const uint8_t *in, int64_t stride)
{
    for (int row = 0; row < TILE; row += LANES)
        turn_sixteen(out + row * 4, in + row * stride, stride);
}
#endif

#endif
