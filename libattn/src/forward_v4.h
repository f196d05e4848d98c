/* The exponential of the AVX-512 kernels. */
#ifndef MG_ATTN_FORWARD_V4_H
#define MG_ATTN_FORWARD_V4_H
#include "lanes.h"

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

#endif
