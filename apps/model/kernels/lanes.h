/* Sixteen floats at a time, whatever the instruction set, so that every sum has the same order on all of them. Only the
 * kernel sources include this. */
#ifndef MG_MODEL_LANES_H
#define MG_MODEL_LANES_H
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define MG_JOIN_(name, isa) name##_##isa
#define MG_JOIN(name, isa) MG_JOIN_(name, isa)

enum { LANES = 16 };
typedef float vec __attribute__((vector_size(64)));
typedef int32_t ivec __attribute__((vector_size(64)));
typedef uint32_t uvec __attribute__((vector_size(64)));

INLINE vec splat(float x) { return x - (vec){0}; }

INLINE vec load(const float *p)
{
    vec x;
    memcpy(&x, p, sizeof x);
    return x;
}

INLINE void store(float *p, vec x) { memcpy(p, &x, sizeof x); }

/* The first n lanes, 0 < n <= 16; the others are 0. */
INLINE vec load_some(const float *p, int64_t n)
{
    if (n >= LANES)
        return load(p);
#if defined(__AVX512F__)
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    vec x = {0};
    for (int64_t i = 0; i < n; i++)
        x[i] = p[i];
    return x;
#endif
}

INLINE void store_some(float *p, vec x, int64_t n)
{
    if (n >= LANES) {
        store(p, x);
        return;
    }
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
#else
    for (int64_t i = 0; i < n; i++)
        p[i] = x[i];
#endif
}

INLINE vec choose(ivec yes, vec a, vec b) { return (vec)((yes & (ivec)a) | (~yes & (ivec)b)); }

/* The sum of all lanes: halves, quarters, eighths, the last two. */
INLINE float total(vec x)
{
    float a[LANES];
    store(a, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] += a[i + half];
    return a[0];
}

/* exp(x): relative error below 1.6e-7; x is first brought into [-87.3, 88.3], so results stay normal and finite; NaN stays
 * NaN. n = round(x / ln 2) comes out of the low bits of x / ln 2 + 1.5 * 2^23; f = x - n ln 2 in two parts; e^f by a polynomial of
 * degree 6 (its own error 1.1e-8); times 2^n. */
INLINE vec exponential(vec x)
{
    const vec low = splat(-87.3f), high = splat(88.3f), magic = splat(12582912.f);
    x = choose(x < low, low, x);
    x = choose(x > high, high, x);
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

INLINE vec sigmoid(vec x) { return 1.f / (1.f + exponential(-x)); }
#endif
