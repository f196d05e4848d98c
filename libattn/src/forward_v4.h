/* What the AVX-512 kernels share: the exponential, and the product they are made of. Compiled for AVX512-BF16 a word
 * holds two elements that a product adds up (header of paired.c); everything but products is fp32 all the same. */
#ifndef MG_ATTN_FORWARD_V4_H
#define MG_ATTN_FORWARD_V4_H
#include "lanes.h"

#if defined(__AVX512BF16__)
enum { PER_WORD = 2 };
#else
enum { PER_WORD = 1 };
#endif
/* Words of so many elements. */
INLINE int32_t words_of(int32_t elements) { return (elements + PER_WORD - 1) / PER_WORD; }

#define LOG2_E 1.44269504f
#define RAISE_ABOVE 0x1p60f /* a sum of probabilities above this has its maximum raised */

#define POWER_OF_TWO                                                                                                   \
    {                                                                                                                  \
        1.877576700e-03f, 8.989340024e-03f, 5.582631812e-02f, 2.401536170e-01f, 6.931530732e-01f, 9.999999251e-01f     \
    }

/* 2^y, relative error below 2e-7 of the y that is given; 0 for -inf and what underflows, Inf above, NaN stays. */
INLINE __m512 power_of_two(__m512 y)
{
    const __m512 f = _mm512_reduce_ps(y, 1); /* y - floor y */
    static const float c[6] = POWER_OF_TWO;
    __m512 p = _mm512_set1_ps(c[0]);
    for (int n = 1; n < 6; n++)
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c[n]));
    return _mm512_scalef_ps(p, y);
}

/* 2^(s - less), four vectors side by side: one after the other they would wait for each other's place in the
 * scheduler. A subtraction, where a multiply-add would do, leaves the pipes of multiply-adds free where additions have
 * their own. */
INLINE void four_powers(__m512 s[2][VECS], const __m512 less[4])
{
    static const float c[6] = POWER_OF_TWO;
    __m512 f[4], x[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        s[i / VECS][i % VECS] = _mm512_sub_ps(s[i / VECS][i % VECS], less[i]);
        f[i] = _mm512_reduce_ps(s[i / VECS][i % VECS], 1);
        x[i] = _mm512_set1_ps(c[0]);
    }
    UNROLL
    for (int n = 1; n < 6; n++) {
        UNROLL
        for (int i = 0; i < 4; i++)
            x[i] = _mm512_fmadd_ps(x[i], f[i], _mm512_set1_ps(c[n]));
        __asm__("" : "+v"(x[0]), "+v"(x[1]), "+v"(x[2]), "+v"(x[3]));
    }
    UNROLL
    for (int i = 0; i < 4; i++)
        s[i / VECS][i % VECS] = _mm512_scalef_ps(x[i], s[i / VECS][i % VECS]);
}

/* (s - less) log2 e of natural scores. */
INLINE __m512 natural_less(__m512 s, __m512 less)
{
    return _mm512_mul_ps(_mm512_sub_ps(s, less), _mm512_set1_ps(LOG2_E));
}

/* The broadcast of one element, which the compiler must not fold into its uses. */
INLINE __m512 spread(const float *p)
{
    __m512 x = _mm512_set1_ps(*p);
    __asm__("" : "+v"(x));
    return x;
}

#if defined(__AVX512BF16__)
INLINE __m512 multiply_add_words(__m512 sum, __m512 x, __m512 y)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
}
#define MULTIPLY_ADD "vdpbf16ps"

/* Of each lane a word: a below b. */
INLINE __m512 words(__m512 a, __m512 b)
{
    const __m512i in_turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                              21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(in_turns, (__m512i)_mm512_cvtne2ps_pbh(b, a)));
}
#else
INLINE __m512 multiply_add_words(__m512 sum, __m512 x, __m512 y) { return _mm512_fmadd_ps(x, y, sum); }
#define MULTIPLY_ADD "vfmadd231ps"
#endif

/* sum + x * element, broadcast inside the multiply-add, which the compiler must not undo. */
INLINE __m512 multiply_add_one(__m512 sum, __m512 x, const float *element)
{
    __asm__(MULTIPLY_ADD " %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(x), "m"(*element));
    return sum;
}

INLINE __m256 multiply_add_one_of_8(__m256 sum, __m256 x, const float *element)
{
    __asm__(MULTIPLY_ADD " %2%{1to8%}, %1, %0" : "+v"(sum) : "v"(x), "m"(*element));
    return sum;
}

/* s[r][v] += x[v] * elements[r], the elements `apart`: a product of outer kind, of which kernels are made. An element
 * that is broadcast inside its two multiply-adds takes two loads and no instruction of its own: with FOLDED of eight
 * so, two loads a cycle still suffice, and the front end has 20 instructions instead of 26. */
enum { FOLDED = 6 };
INLINE void multiply_add(__m512 s[][VECS], const __m512 x[VECS], const float *elements, const int apart, const int rows)
{
    UNROLL
    for (int r = 0; r < rows; r++) {
        const float *one = elements + r * apart;
        const __m512 y = r < FOLDED ? x[0] : spread(one);
        UNROLL
        for (int v = 0; v < VECS; v++)
            s[r][v] = r < FOLDED ? multiply_add_one(s[r][v], x[v], one) : multiply_add_words(s[r][v], x[v], y);
    }
}

#endif
