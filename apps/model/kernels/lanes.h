/* Vectors of the instruction set a kernel source is compiled for: 16, 8 or 4 lanes. Only kernel sources include this.
 */
#ifndef MG_MODEL_LANES_H
#define MG_MODEL_LANES_H
#include <stdint.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define UNROLL /* it does so by itself; told to, with sanitizers, it takes minutes */
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define MG_JOIN_(name, isa) name##_##isa
#define MG_JOIN(name, isa) MG_JOIN_(name, isa)

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

INLINE vec splat(float x) { return x - (vec){0}; }

INLINE vec load(const float *p)
{
    vec x;
    memcpy(&x, p, sizeof x);
    return x;
}

INLINE void store(float *p, vec x) { memcpy(p, &x, sizeof x); }

INLINE vec choose(ivec yes, vec a, vec b) { return (vec)((yes & (ivec)a) | (~yes & (ivec)b)); }

/* larger(a, b) and smaller(a, b): b where either is NaN. load_part and store_part: the first n lanes, 0 < n < LANES;
 * load_part makes the others 0. positive(x): 0 where x <= 0, NaN stays. where_positive(by, x): x where by is, else 0.
 * reciprocal: relative error below 1.2e-7 for 1 <= x < 2^126. */
#if defined(__AVX512F__)
INLINE vec larger(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE vec load_part(const float *p, int64_t n) { return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
INLINE void store_part(float *p, vec x, int64_t n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x); }
INLINE vec where_positive(vec by, vec x)
{
    return (vec)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)by, _mm512_setzero_ps(), _CMP_NLE_UQ), (__m512)x);
}
INLINE vec reciprocal(vec x)
{
    vec y = (vec)_mm512_rcp14_ps((__m512)x);
    return y + y * (1 - x * y);
}
#else
#if defined(__AVX2__)
INLINE vec larger(vec a, vec b) { return (vec)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE __m256i first_of(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vec load_part(const float *p, int64_t n) { return (vec)_mm256_maskload_ps(p, first_of(n)); }
INLINE void store_part(float *p, vec x, int64_t n) { _mm256_maskstore_ps(p, first_of(n), (__m256)x); }
#else
INLINE vec larger(vec a, vec b) { return choose(a > b, a, b); }
INLINE vec smaller(vec a, vec b) { return choose(a < b, a, b); }
INLINE vec load_part(const float *p, int64_t n)
{
    vec x = {0};
    for (int64_t i = 0; i < n; i++)
        x[i] = p[i];
    return x;
}
INLINE void store_part(float *p, vec x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = x[i];
}
#endif
INLINE vec where_positive(vec by, vec x) { return (vec)(~(by <= 0) & (ivec)x); }
INLINE vec reciprocal(vec x) { return 1 / x; }
#endif
INLINE vec positive(vec x) { return where_positive(x, x); }

/* The first n lanes, or all where n is more. */
INLINE vec load_some(const float *p, int64_t n) { return n >= LANES ? load(p) : load_part(p, n); }

INLINE void store_some(float *p, vec x, int64_t n)
{
    if (n >= LANES)
        store(p, x);
    else
        store_part(p, x, n);
}

/* The sum of all lanes: halves, quarters, ... */
INLINE float total(vec x)
{
    float a[LANES];
    store(a, x);
    UNROLL
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] += a[i + half];
    return a[0];
}

/* exp(x): relative error below 2e-7; x is first brought into [-87.3, 88.3], so results stay normal and finite; NaN
 * stays NaN. n = round(x / ln 2) comes out of the low bits of x / ln 2 + 1.5 * 2^23; f = x - n ln 2 in two parts; e^f
 * by a polynomial of degree 6 (its own error 1.1e-8); times 2^n. */
INLINE vec exponential(vec x)
{
    const vec magic = splat(12582912.f);
    x = smaller(splat(88.3f), larger(splat(-87.3f), x));
    vec shifted = x * 1.442695041f + magic, n = shifted - magic;
    vec f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = f * 1.392618359e-3f + 8.363179053e-3f;
    p = p * f + 4.166655462e-2f;
    p = p * f + 1.666657699e-1f;
    p = p * f + 0.5f;
    p = p * (f * f) + f + 1.f;
    ivec power = ((ivec)shifted - 0x4B400000 + 127) << 23;
    return p * (vec)power;
}

/* Not below 1e-35, which is what it is at -80. */
INLINE vec sigmoid(vec x) { return reciprocal(1.f + exponential(smaller(splat(80), -x))); }
#endif
