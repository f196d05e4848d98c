/* What rows of scores go through in the kernels in bf16. */
#ifndef MG_ATTN_AMX_LANES_H
#define MG_ATTN_AMX_LANES_H
#include "forward_v4.h"

typedef struct lookup {
    __m512 low, high;
} lookup;

/* Biases in units of log2. */
INLINE lookup table_of(const tile_bias *bias, const int kind)
{
    const __m512 log2_e = _mm512_set1_ps(LOG2_E);
    lookup table = {_mm512_set1_ps(bias->constant * LOG2_E), _mm512_setzero_ps()};
    if (kind == BIAS_LOOKUP16 || kind == BIAS_LOOKUP32) {
        table.low = _mm512_mul_ps(_mm512_loadu_ps(bias->table), log2_e);
        if (kind == BIAS_LOOKUP32)
            table.high = _mm512_mul_ps(_mm512_loadu_ps(bias->table + 16), log2_e);
    }
    return table;
}

/* The nearest bf16, for numbers that are not near the largest. */
INLINE __m512 rounded(__m512 x)
{
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int32_t)0xffff0000)));
}

/* Two vectors, of neighbouring keys, as pairs in bf16: the upper halves of their words. */
INLINE __m512i upper_halves(__m512 a, __m512 b)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(a), 16), _mm512_castps_si512(b));
}

#endif
