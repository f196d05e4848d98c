/* The backward kernel of a tile for AVX-512 with two 512-bit pipes, part of backward_tile.c. A strip is 32 keys (two
 * vectors) x all queries of the tile; a block is a strip's 8 queries, whose 16 vectors stay in registers:
 *
 *     S, dP    blocks, over the dims; P and dS are parked in the first cache (8 KB each)
 *     dv, dk   8 dims in registers over all queries, P and dS read
 *     dq       8 queries x 32 elements in registers over the keys, dS broadcast
 *
 * Each product is 16 multiply-adds to 2 loads of vectors and 8 elements broadcast. An element that is broadcast inside
 * its two multiply-adds takes two loads and no instruction of its own: with six of eight so, two loads a cycle suffice
 * and the front end, which a neighbour on the same core takes half of, has 20 instructions instead of 26.
 *
 * A vector of 16 scores costs the pipes 5 dim + 11: 2 for the bias, 8 for the exponential, 1 for P * (dP - delta); and
 * 2 for each code of the table's gradient, which walks over dS for dk take along. */
#ifndef MG_ATTN_BACKWARD_TILE_V4_H
#define MG_ATTN_BACKWARD_TILE_V4_H
#include "forward_v4.h"

typedef struct strip {
    const backward_tile *t;
    __m512 low, high;
    int lane;         /* the first key */
    const float *lse; /* [64] times log2 e; 0 where scores are natural */
    int products; /* how many were made: each fetches its part of what the next tile needs */
    const float *k, *v;
    float *dk, *dv, *ds;
    struct paired *words; /* of two, where those are what is multiplied */
} strip;

typedef __m512 block[ROWS][VECS];
typedef float parking[TILE][STRIP];

/* P and dS of a strip, rounded: two queries to a word as dv and dk add them up; dS of a tile, two keys to a word. */
typedef struct paired {
    float p[TILE / 2][STRIP], ds[TILE / 2][STRIP], ds_rows[2][TILE][HALF / 2];
} paired;

INLINE __m512 bias_of(const strip *p, int query, int v, const int kind)
{
    const tile_bias *bias = &p->t->bias;
    const int at = query * TILE + p->lane + v * LANES;
    if (kind == BIAS_CONSTANT)
        return _mm512_set1_ps(bias->constant);
    if (kind == BIAS_TILE)
        return _mm512_loadu_ps(bias->tile + at);
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(bias->codes + at)));
    return kind == BIAS_LOOKUP16 ? _mm512_permutexvar_ps(codes, p->low)
                                 : _mm512_permutex2var_ps(p->low, codes, p->high);
}

/* Where product n of a tile fetches from: each of the arrays ahead, 4 lines an element, lasts for some products. */
INLINE const char *fetch_from(strip *p, int32_t dim)
{
    enum { PRODUCTS = 2 * PAIRS / (ROWS * STRIP), EACH = PRODUCTS / AHEAD };
    const backward_tile *t = p->t;
    const int n = p->products++, array = n / EACH % AHEAD;
    if (t->codes_ahead)
        for (int row = 0; row < TILE / PRODUCTS; row++)
            __builtin_prefetch(t->codes_ahead + (n * TILE / PRODUCTS % TILE + row) * t->codes_stride);
    return t->ahead[array] ? (const char *)t->ahead[array] + (int64_t)(n % EACH) * dim * (4 * 64 / EACH)
                           : (const char *)t->ds;
}

/* s[r][v] += sum over d of lanes[d][v] * broadcast[d][r] */
INLINE void product(block s, const float *lanes, const float *broadcast, int32_t dim, const char *ahead)
{
    for (int32_t d = 0; d < dim; d++) {
        const __m512 x[VECS] = {_mm512_loadu_ps(lanes + d * HALF), _mm512_loadu_ps(lanes + d * HALF + LANES)};
        __builtin_prefetch(ahead + d * 64, 0, 2);
        multiply_add(s, x, broadcast + d * BLOCK, 1, ROWS);
    }
}

/* Rows of a block, two to a word. */
INLINE void store_words(float rows[TILE / 2][STRIP], block s, int query)
{
#if defined(__AVX512BF16__)
    UNROLL
    for (int r = 0; r < ROWS; r += 2) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            _mm512_store_ps(rows[(query + r) / 2] + v * LANES, words(s[r][v], s[r + 1][v]));
    }
#else
    (void)rows, (void)s, (void)query;
#endif
}

/* dS of a block as rows in memory, for dq, and as words for dk. */
INLINE void store_ds(const strip *p, block s, int query)
{
#if defined(__AVX512BF16__)
    store_words(p->words->ds, s, query);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        float *row = p->words->ds_rows[p->lane / HALF][query + r];
        _mm512_store_si512((void *)row, (__m512i)_mm512_cvtne2ps_pbh(s[r][1], s[r][0]));
    }
    if (!p->t->store_ds)
        return;
#endif
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            _mm512_storeu_ps(p->ds + (query + r) * HALF + v * LANES, s[r][v]);
    }
}

/* P of 8 queries. */
INLINE void probabilities(parking parked, strip *p, int query, const int kind, const int dropout, const int dim)
{
    const backward_tile *t = p->t;
    const int32_t dims = words_of(dim ? dim : t->dim);
    block s;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            s[r][v] = PER_WORD == 1 ? bias_of(p, query + r, v, kind) : _mm512_setzero_ps();
    }
    product(s, p->k, t->q + (int64_t)query * dims, dims, fetch_from(p, dims));
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS && PER_WORD > 1; v++)
            s[r][v] = _mm512_fmadd_ps(s[r][v], _mm512_set1_ps(t->scale), bias_of(p, query + r, v, kind));
    }
    if (__builtin_expect(!t->log2_scores, 0)) {
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int v = 0; v < VECS; v++)
                s[r][v] = natural_less(s[r][v], _mm512_set1_ps(t->lse[query + r]));
        }
    }
    UNROLL
    for (int r = 0; r < ROWS; r += 2) {
        const __m512 a = _mm512_set1_ps(p->lse[query + r]), b = _mm512_set1_ps(p->lse[query + r + 1]);
        const __m512 lse[4] = {a, a, b, b};
        four_powers(&s[r], lse);
        UNROLL
        for (int i = 0; i < 4; i++) {
            const int at = r + i / VECS, v = i % VECS;
            if (dropout && !t->need_ds)
                s[at][v] =
                    _mm512_mul_ps(s[at][v], _mm512_loadu_ps(t->keep + (query + at) * TILE + p->lane + v * LANES));
            _mm512_store_ps(parked[query + at] + v * LANES, s[at][v]);
        }
    }
    if (!dropout || !t->need_ds)
        store_words(p->words->p, s, query);
}

/* dS of 8 queries from P, which dropout then changes to what goes into out. */
INLINE void score_gradients(parking parked, strip *p, int query, const int dropout, const int dim)
{
    const backward_tile *t = p->t;
    const int32_t dims = words_of(dim ? dim : t->value_dim);
    block s, kept;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        const __m512 minus = dropout ? _mm512_setzero_ps() : _mm512_set1_ps(-t->delta[query + r]);
        UNROLL
        for (int v = 0; v < VECS; v++)
            s[r][v] = minus;
    }
    product(s, p->v, t->dout + (int64_t)query * dims, dims, fetch_from(p, dims));
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int v = 0; v < VECS; v++) {
            float *at = parked[query + r] + v * LANES;
            if (dropout) {
                const __m512 keep = _mm512_loadu_ps(t->keep + (query + r) * TILE + p->lane + v * LANES);
                s[r][v] = _mm512_fmsub_ps(s[r][v], keep, _mm512_set1_ps(t->delta[query + r]));
                s[r][v] = _mm512_mul_ps(s[r][v], _mm512_load_ps(at));
                kept[r][v] = _mm512_mul_ps(_mm512_load_ps(at), keep);
                _mm512_store_ps(at, kept[r][v]);
            } else
                s[r][v] = _mm512_mul_ps(s[r][v], _mm512_load_ps(at));
        }
    }
    store_ds(p, s, query);
    if (dropout)
        store_words(p->words->p, kept, query);
}

enum { AT_ONCE = 8, WORDS = BLOCK / PER_WORD };

/* What else a walk over the rows of dS does: sums by code of some codes, compared with the bytes of a row. Additions have
 * pipes of their own on Zen, and everywhere the rows are in registers. */
enum { CODES_AT_ONCE = 6, ONE = -1 }; /* ONE: all pairs have the code */
typedef struct code_sums {
    const uint8_t *codes; /* of the strip in the first row */
    __m256i code[CODES_AT_ONCE];
    __m512 sum[CODES_AT_ONCE][VECS];
} code_sums;

/* In place, of which the compiler makes copies else. */
INLINE void add_where_set(__m512 *sum, __mmask16 set, __m512 x)
{
    __asm__("vaddps %2, %0, %0%{%1%}" : "+v"(*sum) : "Yk"(set), "v"(x));
}

INLINE void add_by_code(__m512 sum[][VECS], const code_sums *of, const int count, int row, const __m512 x[VECS])
{
    if (count == ONE) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            sum[0][v] = _mm512_add_ps(sum[0][v], x[v]);
        return;
    }
    const __m256i codes = _mm256_loadu_si256((const __m256i *)(of->codes + row * TILE));
    UNROLL
    for (int i = 0; i < count; i++) {
        const __mmask32 equal = _mm256_cmpeq_epi8_mask(codes, of->code[i]);
        add_where_set(&sum[i][0], (__mmask16)equal, x[0]);
        add_where_set(&sum[i][1], (__mmask16)_kshiftri_mask32(equal, LANES), x[1]);
    }
}

/* lanes[d][v] += sum over queries of broadcast[d][query] * rows[query][v], for `dims` d; or over words of two */
INLINE void accumulate_some(float *lanes, const float *rows, const float *broadcast, int queries, int32_t dim,
                            const int dims, code_sums *by_code, const int codes)
{
    const int sums = codes == ONE ? 1 : codes;
    block sum;
    __m512 of_codes[CODES_AT_ONCE][VECS];
    UNROLL
    for (int i = 0; i < sums; i++)
        of_codes[i][0] = by_code->sum[i][0], of_codes[i][1] = by_code->sum[i][1];
    UNROLL
    for (int d = 0; d < dims; d++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            sum[d][v] = _mm512_loadu_ps(lanes + d * HALF + v * LANES);
    }
    for (int query = 0; query < queries / PER_WORD; query += WORDS, broadcast += (int64_t)dim * WORDS) {
        UNROLL
        for (int r = 0; r < WORDS; r++) {
            const float *row = rows + (query + r) * STRIP;
            const __m512 x[VECS] = {_mm512_loadu_ps(row), _mm512_loadu_ps(row + LANES)};
            if (codes)
                add_by_code(of_codes, by_code, codes, query + r, x);
            multiply_add(sum, x, broadcast + r, WORDS, dims);
        }
    }
    UNROLL
    for (int d = 0; d < dims; d++) {
        UNROLL
        for (int v = 0; v < VECS; v++)
            _mm512_storeu_ps(lanes + d * HALF + v * LANES, sum[d][v]);
    }
    UNROLL
    for (int i = 0; i < sums; i++)
        by_code->sum[i][0] = of_codes[i][0], by_code->sum[i][1] = of_codes[i][1];
}

/* All d from `d` on. */
INLINE void accumulate(float *lanes, const float *rows, const float *broadcast, int queries, int32_t d, int32_t dim)
{
    for (; d + AT_ONCE <= dim; d += AT_ONCE)
        accumulate_some(lanes + d * HALF, rows, broadcast + d * WORDS, queries, dim, AT_ONCE, NULL, 0);
    for (; d < dim; d++)
        accumulate_some(lanes + d * HALF, rows, broadcast + d * WORDS, queries, dim, 1, NULL, 0);
}

INLINE void set_keys(strip *p, int lane)
{
    const backward_tile *t = p->t;
    const int64_t of_k = half_lane(lane, t->dim), of_v = half_lane(lane, t->value_dim);
    p->lane = lane;
    p->k = t->k + half_lane(lane, words_of(t->dim));
    p->v = t->v + half_lane(lane, words_of(t->value_dim));
    p->dk = t->dk ? t->dk + of_k : NULL;
    p->dv = t->dv ? t->dv + of_v : NULL;
    p->ds = t->ds + half_lane(lane, TILE);
}

/* --- dk, with sums by code as far as its walks take them --- */

typedef struct codes_taken {
    int one, count;
    int32_t codes[MOST_CODES];
    code_sums walks[MOST_CODES / CODES_AT_ONCE];
} codes_taken;

/* Takes codes out of the table's `present`. */
static void take_codes(codes_taken *taken, const backward_tile *t)
{
    const int walks = PER_WORD > 1 || !t->table || !t->dk || many_codes(t->table->present) ? 0 : t->dim / AT_ONCE;
    taken->count = 0;
    if (!walks)
        return;
    taken->one = t->table->one;
    for (; t->table->present && taken->count < CODES_AT_ONCE * walks; taken->count++) {
        code_sums *walk = &taken->walks[taken->count / CODES_AT_ONCE];
        const int i = taken->count % CODES_AT_ONCE, code = __builtin_ctzll(t->table->present);
        t->table->present &= t->table->present - 1;
        taken->codes[taken->count] = code;
        walk->code[i] = _mm256_set1_epi8((char)code);
        walk->sum[i][0] = walk->sum[i][1] = _mm512_setzero_ps();
    }
}

static void give_sums(const codes_taken *taken, const backward_tile *t)
{
    for (int i = 0; i < taken->count; i++) {
        const __m512 *sum = taken->walks[i / CODES_AT_ONCE].sum[i % CODES_AT_ONCE];
        t->table->sums[taken->codes[i]] += total((vec)_mm512_add_ps(sum[0], sum[1]));
    }
}

#define DEFINE_WALK(name, codes)                                                                                       \
    __attribute__((noinline)) static void name(float *lanes, const float *rows, const float *broadcast, int queries,   \
                                               int32_t dim, code_sums *by_code)                                        \
    {                                                                                                                  \
        accumulate_some(lanes, rows, broadcast, queries, dim, AT_ONCE, by_code, codes);                                \
    }
DEFINE_WALK(walk_one, ONE)
DEFINE_WALK(walk_1, 1)
DEFINE_WALK(walk_2, 2)
DEFINE_WALK(walk_3, 3)
DEFINE_WALK(walk_4, 4)
DEFINE_WALK(walk_5, 5)
DEFINE_WALK(walk_6, 6)

INLINE void key_gradients(strip *p, const float *rows, codes_taken *taken, int queries, int32_t dim)
{
    static void (*const walks[])(float *, const float *, const float *, int, int32_t, code_sums *) = {
        walk_one, walk_1, walk_2, walk_3, walk_4, walk_5, walk_6};
    const backward_tile *t = p->t;
    int32_t d = 0;
    for (int done = 0; PER_WORD == 1 && done < taken->count; done += CODES_AT_ONCE, d += AT_ONCE) {
        const int left = taken->count - done, now = left < CODES_AT_ONCE ? left : CODES_AT_ONCE;
        code_sums *walk = &taken->walks[done / CODES_AT_ONCE];
        walk->codes = t->table->codes + p->lane;
        walks[taken->one ? 0 : now](p->dk + d * HALF, rows, t->sum_q + d * WORDS, queries, dim, walk);
    }
    accumulate(p->dk, rows, t->sum_q, queries, d, dim);
}

#include "backward_query_v4.h"

static void scale_lse(float scaled[TILE], const backward_tile *t)
{
    for (int i = 0; i < TILE; i += LANES)
        _mm512_store_ps(scaled + i, t->log2_scores
                                        ? _mm512_mul_ps(_mm512_loadu_ps(t->lse + i), _mm512_set1_ps(LOG2_E))
                                        : _mm512_setzero_ps());
}

INLINE void tile(const backward_tile *t, const int kind, const int dropout, const int dim)
{
    parking parked __attribute__((aligned(64)));
    paired twos __attribute__((aligned(64)));
    float lse[TILE] __attribute__((aligned(64)));
    strip p = {.t = t, .lse = lse, .words = &twos};
    codes_taken taken;
    scale_lse(lse, t);
    take_codes(&taken, t);
    const int queries = t->query_blocks * BLOCK;
    const int32_t dims = dim ? dim : t->dim, value_dims = dim ? dim : t->value_dim;
    if (kind == BIAS_LOOKUP16 || kind == BIAS_LOOKUP32) {
        p.low = _mm512_loadu_ps(t->bias.table);
        p.high = kind == BIAS_LOOKUP32 ? _mm512_loadu_ps(t->bias.table + 16) : p.low;
    }
    for (int lane = 0; lane < TILE; lane += STRIP) {
        set_keys(&p, lane);
        for (int query = 0; query < queries; query += ROWS)
            probabilities(parked, &p, query, kind, dropout, dim);
        for (int query = 0; query < queries && t->need_ds; query += ROWS)
            score_gradients(parked, &p, query, dropout, dim);
        if (t->dv)
            accumulate(p.dv, PER_WORD == 1 ? *parked : *twos.p, t->sum_dout, queries, 0, value_dims);
        if (t->dk)
            key_gradients(&p, PER_WORD == 1 ? p.ds : *twos.ds, &taken, queries, dims);
    }
    give_sums(&taken, t);
    if (t->dq)
        query_gradients(t, PER_WORD == 1 ? t->ds : **twos.ds_rows);
}

#define NOINLINE __attribute__((noinline)) static
#define DEFINE(name, kind, dropout)                                                                                    \
    NOINLINE void name(const backward_tile *t) { tile(t, kind, dropout, 0); }
/* Where the number of dims is known, the loops over it are unrolled: this pays where they are short. */
#define DEFINE_DIMS(name, kind)                                                                                        \
    DEFINE(name, kind, 0)                                                                                              \
    NOINLINE void name##_8(const backward_tile *t) { tile(t, kind, 0, 8 * PER_WORD); }                                     \
    NOINLINE void name##_16(const backward_tile *t) { tile(t, kind, 0, 16 * PER_WORD); }
DEFINE_DIMS(constant_tile, BIAS_CONSTANT)
DEFINE_DIMS(lookup16_tile, BIAS_LOOKUP16)
DEFINE(lookup32_tile, BIAS_LOOKUP32, 0)
DEFINE(bias_tile, BIAS_TILE, 0)
DEFINE(dropout_constant_tile, BIAS_CONSTANT, 1)
DEFINE(dropout_lookup16_tile, BIAS_LOOKUP16, 1)
DEFINE(dropout_lookup32_tile, BIAS_LOOKUP32, 1)
DEFINE(dropout_bias_tile, BIAS_TILE, 1)

void KERNEL(mg_attn_backward_tile)(const backward_tile *t)
{
    static void (*const kernels[4][4])(const backward_tile *) = {
        [BIAS_CONSTANT] = {constant_tile, constant_tile_8, constant_tile_16, dropout_constant_tile},
        [BIAS_LOOKUP16] = {lookup16_tile, lookup16_tile_8, lookup16_tile_16, dropout_lookup16_tile},
        [BIAS_LOOKUP32] = {lookup32_tile, lookup32_tile, lookup32_tile, dropout_lookup32_tile},
        [BIAS_TILE] = {bias_tile, bias_tile, bias_tile, dropout_bias_tile}};
    const int square = t->dim == t->value_dim;
    const int which = t->keep ? 3 : square && t->dim == 8 * PER_WORD ? 1 : square && t->dim == 16 * PER_WORD ? 2 : 0;
    kernels[t->bias.kind][which](t);
}

#endif
