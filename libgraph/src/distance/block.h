/* The few things on 512-bit blocks that vector extensions do not say well. */
#ifndef MG_GRAPH_BLOCK_H
#define MG_GRAPH_BLOCK_H
#include "stream.h"

#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define JOIN_(name, isa) name##_##isa
#define JOIN(name, isa) JOIN_(name, isa)
#define KERNEL(name) JOIN(mg_graph_##name, MG_ISA)

INLINE int is_zero(const bits512 *bits)
{
#if defined(__AVX512F__)
    return _mm512_test_epi64_mask((__m512i)*bits, (__m512i)*bits) == 0;
#elif defined(__AVX2__)
    typedef uint64_t half __attribute__((vector_size(32)));
    half either = __builtin_shufflevector(*bits, *bits, 0, 1, 2, 3) | __builtin_shufflevector(*bits, *bits, 4, 5, 6, 7);
    return _mm256_testz_si256((__m256i)either, (__m256i)either);
#else
    const bits512 b = *bits;
    return !(b[0] | b[1] | b[2] | b[3] | b[4] | b[5] | b[6] | b[7]);
#endif
}

/* bytes[c] = sum over p of bit c of words[p], times 2^p. past_caches: bytes is 64-byte aligned, and written around the
   caches; finish_writes() must follow before others read. */
INLINE void expand_bits(uint8_t *bytes, const uint64_t *words, int planes, int past_caches)
{
    (void)past_caches;
#if defined(__AVX512BW__)
    __m512i codes = _mm512_maskz_set1_epi8(words[0], 1);
    for (int p = 1; p < planes; p++)
        codes = _mm512_mask_add_epi8(codes, words[p], codes, _mm512_set1_epi8((char)(1 << p)));
    if (past_caches)
        _mm512_stream_si512((__m512i *)bytes, codes);
    else
        _mm512_storeu_si512(bytes, codes);
#elif defined(__AVX2__)
    const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    for (int half = 0; half < 2; half++) {
        __m256i codes = _mm256_setzero_si256();
        for (int p = 0; p < planes; p++) {
            __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)(words[p] >> 32 * half)), which);
            __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
            codes = _mm256_or_si256(codes, _mm256_and_si256(set, _mm256_set1_epi8((char)(1 << p))));
        }
        if (past_caches)
            _mm256_stream_si256((__m256i *)(bytes + 32 * half), codes);
        else
            _mm256_storeu_si256((__m256i *)(bytes + 32 * half), codes);
    }
#else
    for (int byte = 0; byte < 8; byte++) {
        uint64_t codes = 0;
        for (int p = 0; p < planes; p++) {
            uint64_t spread = (words[p] >> 8 * byte & 255) * 0x0101010101010101 & 0x8040201008040201;
            codes |= ((spread + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101) << p;
        }
        memcpy(bytes + 8 * byte, &codes, 8); /* little-endian */
    }
#endif
}

/* For each bit c of chosen, in order: columns gets node + c, codes gets bytes[c]. Writes exactly as many as there are
 * bits. */
INLINE int64_t write_chosen(int32_t *columns, uint8_t *codes, uint64_t chosen, const uint8_t *bytes, int64_t node)
{
    int64_t written = 0;
#if defined(__AVX512BW__)
    __m512i column = _mm512_add_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                      _mm512_set1_epi32((int32_t)node));
    for (int part = 0; part < 4; part++) {
        __mmask16 mask = (__mmask16)(chosen >> 16 * part);
        int count = __builtin_popcount(mask);
        __mmask16 first = (__mmask16)((1u << count) - 1);
        __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(bytes + 16 * part)));
        _mm512_mask_storeu_epi32(columns + written, first, _mm512_maskz_compress_epi32(mask, column));
        _mm512_mask_cvtepi32_storeu_epi8(codes + written, first, _mm512_maskz_compress_epi32(mask, code));
        column = _mm512_add_epi32(column, _mm512_set1_epi32(16));
        written += count;
    }
#else
    for (; chosen; chosen &= chosen - 1) {
        int c = __builtin_ctzll(chosen);
        columns[written] = (int32_t)(node + c);
        codes[written++] = bytes[c];
    }
#endif
    return written;
}

INLINE void finish_writes(void)
{
#if defined(__AVX2__)
    _mm_sfence();
#endif
}
#endif
