/* The codes of a tile that is stored as bit planes: word r of plane p holds bit p of the codes of row r, column c in
 * bit c. */
#include "kernel.h"
#include "lanes.h"

void KERNEL(mg_attn_expand_planes)(uint8_t out[PAIRS], const uint64_t *planes, int count);

#if defined(__AVX512BW__)
/* A plane's word is the mask of a register of bytes. */
INLINE void expand_row(uint8_t *out, const uint64_t *words, const int count)
{
    __m512i codes = _mm512_setzero_si512();
    UNROLL
    for (int p = 0; p < count; p++)
        codes = _mm512_or_si512(codes, _mm512_maskz_mov_epi8(words[p * TILE], _mm512_set1_epi8((char)(1 << p))));
    _mm512_storeu_si512(out, codes);
}
#else
/* Byte i of the result is bit i of bits. */
INLINE uint64_t spread_bits(uint8_t bits)
{
#if defined(__BMI2__)
    return _pdep_u64(bits, UINT64_C(0x0101010101010101));
#else
    const uint64_t own = (bits * UINT64_C(0x0101010101010101)) & UINT64_C(0x8040201008040201);
    return (own + UINT64_C(0x7f7f7f7f7f7f7f7f)) >> 7 & UINT64_C(0x0101010101010101);
#endif
}

INLINE void expand_row(uint8_t *out, const uint64_t *words, const int count)
{
    for (int byte = 0; byte < 8; byte++) {
        uint64_t codes = 0;
        for (int p = 0; p < count; p++)
            codes |= spread_bits((uint8_t)(words[p * TILE] >> 8 * byte)) << p;
        memcpy(out + byte * 8, &codes, sizeof codes);
    }
}
#endif

/* Tiles follow each other in memory, and the next one is usually next. */
INLINE void expand(uint8_t out[PAIRS], const uint64_t *planes, const int count)
{
    for (int row = 0; row < TILE; row++) {
        __builtin_prefetch(planes + count * TILE + row * count);
        expand_row(out + row * TILE, planes + row, count);
    }
}

#define CASE(count)                                                                                                    \
    case count:                                                                                                        \
        expand(out, planes, count);                                                                                    \
        break;

void KERNEL(mg_attn_expand_planes)(uint8_t out[PAIRS], const uint64_t *planes, int count)
{
    switch (count) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
    }
}
