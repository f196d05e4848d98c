/* Philox 4x32, a counter-based generator: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011. One key and one counter give four words; equal inputs give equal words on every machine. Ten rounds are the
 * usual number; seven pass BigCrush too, by the same paper. */
#ifndef MG_ATTN_PHILOX_H
#define MG_ATTN_PHILOX_H
#include <math.h>
#include <stdint.h>

enum { MG_ATTN_PHILOX_ROUNDS = 10, MG_ATTN_MASK_ROUNDS = 7 };

static inline void mg_attn_philox_rounds(uint32_t words[4], const uint32_t counter[4], const uint32_t key[2],
                                         int rounds)
{
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < rounds; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * x0, b = (uint64_t)0xCD9E8D57u * x2;
        x0 = (uint32_t)(b >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)b;
        x2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = x0;
    words[1] = x1;
    words[2] = x2;
    words[3] = x3;
}

/* A decision takes 16 bits: below this drops, the rest is scaled by mg_attn_mask_scale, so that the mean is exact. */
static inline uint32_t mg_attn_mask_limit(double probability)
{
    const double limit = ceil(probability * 0x1p16);
    return limit < 0xFFFF ? (uint32_t)limit : 0xFFFF;
}
static inline float mg_attn_mask_scale(uint32_t limit) { return (float)(0x1p16 / (0x1p16 - limit)); }

static inline void mg_attn_philox(uint32_t words[4], const uint32_t counter[4], const uint32_t key[2])
{
    mg_attn_philox_rounds(words, counter, key, MG_ATTN_PHILOX_ROUNDS);
}
#endif
