/* fp32 and bf16. */
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

#endif
