/* fp32 and bf16; the logarithm of a softmax. */
#ifndef MG_ATTN_NUMBERS_H
#define MG_ATTN_NUMBERS_H
#include <stdint.h>
#include <string.h>

static inline float from_bf16(uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

/* To nearest, ties to even; NaN stays NaN. */
static inline uint16_t to_bf16(float x)
{
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    return x != x ? (uint16_t)(word >> 16 | 0x40) : (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

static inline int all_finite_bf16(const uint16_t *x, int32_t count)
{
    int bad = 0;
    for (int32_t i = 0; i < count; i++)
        bad |= (x[i] & 0x7f80) == 0x7f80;
    return !bad;
}

/* ln x of a normal x > 0, to 1.2e-7 of the result and 6e-8; NaN stays. No calls, no branches: loops become vectors.
   x = 2^e (1 + r), 1 + r in sqrt(1/2) to sqrt(2); ln(1 + r) - r + r^2 / 2 through Chebyshev's nodes, to 7e-9. */
static inline float logarithm(float x)
{
    const float high = 0x1.62e4p-1f, low = 0x1.7f7d1cp-20f; /* ln 2 */
    int32_t bits;
    float r, p;
    memcpy(&bits, &x, sizeof bits);
    const int32_t exponent = (bits - 0x3f3504f3) >> 23;
    bits -= (int32_t)((uint32_t)exponent << 23);
    memcpy(&r, &bits, sizeof r);
    r -= 1;
    p = -7.902743771e-2f * r + 1.262231985e-1f;
    p = p * r - 1.299818376e-1f;
    p = p * r + 1.421449592e-1f;
    p = p * r - 1.664128146e-1f;
    p = p * r + 2.000104509e-1f;
    p = p * r - 2.500030642e-1f;
    p = p * r + 3.333333073e-1f;
    p = p * r * r * r - 0.5f * r * r;
    return (float)exponent * high + ((float)exponent * low + p + r) + (x - x);
}

#endif
