/* Vectors of the instruction set this file is compiled for, and the few operations that vector extensions of C do not
 * have. Everything else about a kernel is the same source on every instruction set. Only kernel sources include this.
 *
 *              lanes  registers   a register tile is VECS vectors of lanes x ROWS broadcasts
 *     v4         16      32       2 x 8
 *     v3          8      16       2 x 4
 *     portable    4      16       2 x 4
 */
#ifndef MG_ATTN_LANES_H
#define MG_ATTN_LANES_H
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 8 };
#elif defined(__AVX2__)
enum { LANES = 8, ROWS = 4 };
#else
enum { LANES = 4, ROWS = 4 };
#endif
enum { VECS = 2, STRIP = VECS * LANES, OCTET = 8 };

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" /* an octet is returned only by functions that are inlined */
#endif
#define INLINE static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define MG_JOIN_(name, isa) name##_##isa
#define MG_JOIN(name, isa) MG_JOIN_(name, isa)
#define KERNEL(name) MG_JOIN(name, MG_ISA) /* mg_attn_forward_tile -> mg_attn_forward_tile_v4 */

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef float octet __attribute__((vector_size(32))); /* 8 floats, for rows of few elements */
typedef int32_t ioctet __attribute__((vector_size(32)));

INLINE vec load(const float *p)
{
    vec x;
    memcpy(&x, p, sizeof x);
    return x;
}
INLINE void store(float *p, vec x) { memcpy(p, &x, sizeof x); }
INLINE vec splat(float x) { return x - (vec){0}; }
INLINE octet load8(const float *p)
{
    octet x;
    memcpy(&x, p, sizeof x);
    return x;
}
INLINE void store8(float *p, octet x) { memcpy(p, &x, sizeof x); }
INLINE octet splat8(float x) { return x - (octet){0}; }

/* larger(a, b) and smaller(a, b): b where either is NaN. */
#if defined(__AVX512F__)
INLINE vec larger(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE int any_above(vec a, vec b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0; }
#elif defined(__AVX2__)
INLINE vec larger(vec a, vec b) { return (vec)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE int any_above(vec a, vec b) { return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ)); }
#elif defined(__SSE2__)
INLINE vec larger(vec a, vec b) { return (vec)_mm_max_ps((__m128)a, (__m128)b); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm_min_ps((__m128)a, (__m128)b); }
INLINE int any_above(vec a, vec b) { return _mm_movemask_ps(_mm_cmpgt_ps((__m128)a, (__m128)b)); }
#else
INLINE vec larger(vec a, vec b)
{
    ivec yes = a > b;
    return (vec)(((ivec)a & yes) | ((ivec)b & ~yes));
}
INLINE vec smaller(vec a, vec b)
{
    ivec yes = a < b;
    return (vec)(((ivec)a & yes) | ((ivec)b & ~yes));
}
INLINE int any_above(vec a, vec b)
{
    ivec yes = a > b;
    int32_t any = 0;
    for (int i = 0; i < LANES; i++)
        any |= yes[i];
    return any;
}
#endif

#if defined(__AVX__)
INLINE octet larger8(octet a, octet b) { return (octet)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE octet smaller8(octet a, octet b) { return (octet)_mm256_min_ps((__m256)a, (__m256)b); }
#else
INLINE octet larger8(octet a, octet b)
{
    ioctet yes = a > b;
    return (octet)(((ioctet)a & yes) | ((ioctet)b & ~yes));
}
INLINE octet smaller8(octet a, octet b)
{
    ioctet yes = a < b;
    return (octet)(((ioctet)a & yes) | ((ioctet)b & ~yes));
}
#endif

/* Codes of LANES pairs, one byte each, widened. */
INLINE ivec load_codes(const uint8_t *p)
{
#if defined(__AVX512F__)
    return (ivec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
#elif defined(__AVX2__)
    return (ivec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    return (ivec){p[0], p[1], p[2], p[3]};
#endif
}

/* acc + (codes == code ? y : 0) */
INLINE vec add_where(vec acc, ivec codes, int32_t code, vec y)
{
#if defined(__AVX512F__)
    return (vec)_mm512_mask_add_ps((__m512)acc, _mm512_cmpeq_epi32_mask((__m512i)codes, _mm512_set1_epi32(code)),
                                   (__m512)acc, (__m512)y);
#else
    return acc + (vec)((codes == code) & (ivec)y);
#endif
}

/* The sum of the lanes. */
INLINE double total(vec x)
{
#if defined(__AVX512F__)
    const __m512 upper = _mm512_shuffle_f32x4((__m512)x, (__m512)x, 0x4e);
    return _mm512_reduce_add_pd(_mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)),
                                              _mm512_cvtps_pd(_mm512_castps512_ps256(upper))));
#else
    double sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += x[i];
    return sum;
#endif
}

/* table[codes] of a table held in registers: LOOKUP entries at most, so LOOKUP is 0 where that does not pay. */
typedef struct lookup_table {
#if defined(__AVX512F__)
    __m512 low, high;
#elif defined(__AVX2__)
    __m256 low, high;
#else
    const float *memory;
#endif
} lookup_table;

#if defined(__AVX512F__)
enum { LOOKUP = 32 };
INLINE lookup_table load_table(const float *p) { return (lookup_table){_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16)}; }
INLINE vec lookup16(lookup_table t, const uint8_t *codes)
{
    return (vec)_mm512_permutexvar_ps((__m512i)load_codes(codes), t.low);
}
INLINE vec lookup32(lookup_table t, const uint8_t *codes)
{
    return (vec)_mm512_permutex2var_ps(t.low, (__m512i)load_codes(codes), t.high);
}
#elif defined(__AVX2__)
enum { LOOKUP = 16 };
INLINE lookup_table load_table(const float *p) { return (lookup_table){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE vec lookup16(lookup_table t, const uint8_t *codes)
{
    __m256i c = (__m256i)load_codes(codes);
    __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(c, 28)); /* bit 3 becomes the sign, which blendv reads */
    return (vec)_mm256_blendv_ps(_mm256_permutevar8x32_ps(t.low, c), _mm256_permutevar8x32_ps(t.high, c), upper);
}
INLINE vec lookup32(lookup_table t, const uint8_t *codes) { return lookup16(t, codes); }
#else
enum { LOOKUP = 0 };
INLINE lookup_table load_table(const float *p) { return (lookup_table){p}; }
INLINE vec lookup16(lookup_table t, const uint8_t *codes)
{
    return (vec){t.memory[codes[0]], t.memory[codes[1]], t.memory[codes[2]], t.memory[codes[3]]};
}
INLINE vec lookup32(lookup_table t, const uint8_t *codes) { return lookup16(t, codes); }
#endif

/* 64-bit products of the low halves; what stands in the high halves does not matter. */
typedef uint64_t wide __attribute__((vector_size(4 * LANES)));
enum { WIDE = LANES / 2 };
INLINE wide multiply_low(wide a, uint32_t b)
{
#if defined(__AVX512F__)
    return (wide)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi32((int32_t)b));
#elif defined(__AVX2__)
    return (wide)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi32((int32_t)b));
#elif defined(__SSE2__)
    return (wide)_mm_mul_epu32((__m128i)a, _mm_set1_epi32((int32_t)b));
#else
    return (a & UINT32_MAX) * b;
#endif
}

/* exp(x) = exp(x') (1 + e), |e| < 2.2e-7 (under 2 ulp), where x' is x within half an ulp. 0 below -87.7 (so for -inf),
 * Inf above 88.37, NaN stays NaN. Between -87.7 and -87.3 results are subnormal. n = round(x log2 e): adding 2^23 +
 * 2^22 + 127 leaves n + 127 in the low bits, which shifted are the float 2^n; f = x log2 e - n in [-1/2, 1/2];  2^f by
 * a polynomial of degree 5, relative error 9.2e-8, exactly 1 at 0. */
#define DEFINE_EXPONENTIAL(name, vec, ivec, larger, smaller, splat)                                                    \
    INLINE vec name(vec x)                                                                                             \
    {                                                                                                                  \
        const float magic = 12583039.f, log2_e = 1.44269504f;                                                          \
        x = smaller(splat(89.f), larger(splat(-88.03f), x));                                                           \
        vec shifted = x * log2_e + magic;                                                                              \
        vec f = x * log2_e - (shifted - magic);                                                                        \
        vec p = f * 1.326473895e-3f + 9.671516716e-3f;                                                                 \
        p = p * f + 5.550733581e-2f;                                                                                   \
        p = p * f + 2.402224243e-1f;                                                                                   \
        p = p * f + 6.931470037e-1f;                                                                                   \
        p = p * f + 1.f;                                                                                               \
        return p * (vec)((ivec)shifted << 23);                                                                         \
    }
DEFINE_EXPONENTIAL(exponential, vec, ivec, larger, smaller, splat)
DEFINE_EXPONENTIAL(exponential8, octet, ioctet, larger8, smaller8, splat8)

#endif
