/* Vectors of the scores of some pairs with all their heads, as listed pairs have them: lanes are pair by pair, heads
 * side by side. SPREAD lanes: 16, elsewhere 8. Only near.c includes this, and the test of its logarithm. */
#ifndef MG_ATTN_NEAR_LANES_H
#define MG_ATTN_NEAR_LANES_H
#include "lanes.h"

#if defined(__AVX512F__)
#include "forward_v4.h"
enum { SPREAD = 16, MOST_VECTORS = 16 };
typedef vec wvec;
typedef ivec wivec;
INLINE wvec load_some(const float *p, int32_t left)
{
    return (wvec)_mm512_maskz_loadu_ps(left >= SPREAD ? 0xFFFF : 0xFF, p);
}
INLINE void store_some(float *p, wvec x, int32_t left)
{
    _mm512_mask_storeu_ps(p, left >= SPREAD ? 0xFFFF : 0xFF, (__m512)x);
}
INLINE wvec load_whole(const float *p) { return load(p); }
INLINE void keep_past(float *p, wvec x) { _mm512_stream_ps(p, (__m512)x); }
INLINE wvec exponential_of(wvec x) { return (wvec)power_of_two((__m512)x * LOG2_E); }
INLINE wvec larger_of_both(wvec a, wvec b) { return larger(a, b); }
INLINE wvec add_of_code(wvec sum, wivec codes, int32_t code, wvec x) { return add_where(sum, codes, code, x); }
INLINE wvec only(wvec x, int32_t left, wvec other)
{
    return (wvec)_mm512_mask_mov_ps((__m512)other, (__mmask16)_bzhi_u32(0xFFFF, left < SPREAD ? left : SPREAD),
                                    (__m512)x);
}
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define SECOND(a, b) __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#define FIRST2(a, b) __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define SECOND2(a, b) __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define FIRST4(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define SECOND4(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define SWAP1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#define SWAP2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define SWAP4(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define SWAP8(x) __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define LANE_NUMBERS                                                                                                   \
    {                                                                                                                  \
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15                                                           \
    }
#else
enum { SPREAD = 8, MOST_VECTORS = 8 };
typedef octet wvec;
typedef ioctet wivec;
INLINE wvec load_some(const float *p, int32_t left)
{
    (void)left;
    return load8(p);
}
INLINE void store_some(float *p, wvec x, int32_t left)
{
    (void)left;
    store8(p, x);
}
INLINE wvec load_whole(const float *p) { return load8(p); }
#if defined(__AVX2__)
INLINE void keep_past(float *p, wvec x) { _mm256_stream_ps(p, (__m256)x); }
#else
INLINE void keep_past(float *p, wvec x) { store8(p, x); }
#endif
INLINE wvec exponential_of(wvec x) { return exponential8(x); }
INLINE wvec larger_of_both(wvec a, wvec b) { return larger8(a, b); }
INLINE wvec add_of_code(wvec sum, wivec codes, int32_t code, wvec x)
{
    return sum + (wvec)((codes == code) & (wivec)x);
}
INLINE wvec only(wvec x, int32_t left, wvec other)
{
    const wivec yes = (wivec){0, 1, 2, 3, 4, 5, 6, 7} < left;
    return (wvec)(((wivec)x & yes) | ((wivec)other & ~yes));
}
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
#define SECOND(a, b) __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15)
#define FIRST2(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define SECOND2(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define FIRST4(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define SECOND4(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#define SWAP1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6)
#define SWAP2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5)
#define SWAP4(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3)
#define SWAP8(x) (x)
#define LANE_NUMBERS                                                                                                   \
    {                                                                                                                  \
        0, 1, 2, 3, 4, 5, 6, 7                                                                                         \
    }
#endif

INLINE wvec all(float x) { return x - (wvec){0}; }
INLINE void keep_whole(float *p, wvec x) { memcpy(p, &x, sizeof x); }
INLINE void keep_result(float *p, wvec x, int past) /* past the cache or to it */
{
    if (past)
        keep_past(p, x);
    else
        keep_whole(p, x);
}

/* ln x of a normal x > 0, to 1.2e-7 of the result and 6e-8; NaN stays NaN.
 * x = 2^e (1 + r), 1 + r in sqrt(1/2) to sqrt(2); ln(1 + r) - r + r^2 / 2 through Chebyshev's nodes, to 7e-9. */
INLINE wvec logarithm(wvec x)
{
    const float high = 0x1.62e4p-1f, low = 0x1.7f7d1cp-20f; /* ln 2 */
    typedef uint32_t bits __attribute__((vector_size(sizeof(wvec)))); /* which wrap where lanes hold anything */
    const wivec exponent = (wivec)((bits)x - 0x3f3504f3) >> 23;
    const wvec e = __builtin_convertvector(exponent, wvec), r = (wvec)((bits)x - ((bits)exponent << 23)) - 1;
    wvec p = r * -7.902743771e-2f + 1.262231985e-1f;
    p = p * r - 1.299818376e-1f;
    p = p * r + 1.421449592e-1f;
    p = p * r - 1.664128146e-1f;
    p = p * r + 2.000104509e-1f;
    p = p * r - 2.500030642e-1f;
    p = p * r + 3.333333073e-1f;
    p = p * r * r * r - 0.5f * r * r;
    return e * high + (e * low + p + r) + (x - x);
}

/* Of a vector of pairs with their heads: over the pairs, in every lane of the head. */
INLINE wvec sum_of_pairs(wvec x, const int heads)
{
    x = SPREAD > 8 ? x + SWAP8(x) : x;
    x = heads < 8 ? x + SWAP4(x) : x;
    x = heads < 4 ? x + SWAP2(x) : x;
    return heads < 2 ? x + SWAP1(x) : x;
}
INLINE wvec largest_of_pairs(wvec x, const int heads)
{
    x = SPREAD > 8 ? larger_of_both(x, SWAP8(x)) : x;
    x = heads < 8 ? larger_of_both(x, SWAP4(x)) : x;
    x = heads < 4 ? larger_of_both(x, SWAP2(x)) : x;
    return heads < 2 ? larger_of_both(x, SWAP1(x)) : x;
}

/* What each head has, for each pair of a vector; and the first pair's back. */
INLINE wvec repeat(const float *p, const int heads)
{
    wvec x;
    for (int i = 0; i < SPREAD / heads; i++)
        memcpy((char *)&x + i * heads * 4, p, (size_t)heads * 4);
    return x;
}
INLINE void keep_heads(float *p, wvec x, const int heads) { memcpy(p, &x, (size_t)heads * 4); }

/* Lane i: the sum of x[i], or (8 vectors of 16 lanes) of octet i % 8 of them, low ones in lanes 0 to 7. */
INLINE wvec sums_of_8(wvec x[8])
{
    wvec two[4], four[2];
    UNROLL
    for (int i = 0; i < 4; i++)
        two[i] = FIRST(x[2 * i], x[2 * i + 1]) + SECOND(x[2 * i], x[2 * i + 1]);
    UNROLL
    for (int i = 0; i < 2; i++)
        four[i] = FIRST2(two[2 * i], two[2 * i + 1]) + SECOND2(two[2 * i], two[2 * i + 1]);
    return FIRST4(four[0], four[1]) + SECOND4(four[0], four[1]);
}

INLINE wvec sums_of_all(wvec x[SPREAD])
{
#if defined(__AVX512F__)
    const wvec a = sums_of_8(x), b = sums_of_8(x + 8);
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
#else
    return sums_of_8(x);
#endif
}

/* Codes of the pairs of a vector, in each lane of a pair; 16 bytes are read. */
INLINE wivec codes_of(const uint8_t *codes, const int heads)
{
#if defined(__AVX512F__)
    return (wivec)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)codes)),
                                      (__m512i)((wivec)LANE_NUMBERS / heads | (int32_t)0x80808000));
#elif defined(__AVX2__)
    return (wivec)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)codes)),
                                      (__m256i)((wivec)LANE_NUMBERS / heads | (int32_t)0x80808000));
#else
    wivec x;
    for (int i = 0; i < SPREAD; i++)
        x[i] = codes[i / heads];
    return x;
#endif
}

#endif
