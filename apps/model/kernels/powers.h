/* 2^y and e^x for y, x <= 0, to 2e-7, in three codings: which is fast depends on the processor. Only kernel sources
 * include this. */
#ifndef MG_MODEL_POWERS_H
#define MG_MODEL_POWERS_H
#include "lanes.h"

/* 2^f for f in [-1/2, 1/2], by a polynomial of degree 5. */
INLINE vec power_of_fraction(vec f)
{
    vec p = splat(1.327647217e-3f);
    p = p * f + 9.675541331e-3f;
    p = p * f + 5.550713273e-2f;
    p = p * f + 2.402211972e-1f;
    p = p * f + 6.931469671e-1f;
    return p * f + 1.000000072f;
}

/* y >= -126: rounds by a large number added, and adds integers to the exponent. */
INLINE vec power_by_integers(vec y)
{
    vec shifted = y + 12582912.f;
    return (vec)((ivec)power_of_fraction(y - (shifted - 12582912.f)) + ((ivec)shifted << 23));
}

#ifdef __AVX512F__
INLINE vec power_by_rounding(vec y)
{
    vec whole = (vec)_mm512_roundscale_ps((__m512)y, 0);
    return (vec)_mm512_scalef_ps((__m512)power_of_fraction(y - whole), (__m512)whole);
}
/* f = y - floor(y) in [0, 1), and another polynomial. */
INLINE vec power_by_reducing(vec y)
{
    vec f = (vec)_mm512_reduce_ps((__m512)y, 1);
    vec p = splat(1.877576700e-3f);
    p = p * f + 8.989340024e-3f;
    p = p * f + 5.582631812e-2f;
    p = p * f + 2.401536170e-1f;
    p = p * f + 6.931530732e-1f;
    p = p * f + 9.999999251e-1f;
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)y);
}
INLINE vec power_of_two(vec y) { return power_by_reducing(y); }
#else
#define power_by_rounding power_by_integers
#define power_by_reducing power_by_integers
INLINE vec power_of_two(vec y) { return power_by_integers(larger(y, splat(-126))); }
#endif
#endif
