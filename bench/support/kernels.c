/* The passes in plain C with vector extensions; this file is compiled once per instruction set. */
#include "passes.h"

#include <math.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { WIDTH = 16 };
#elif defined(__AVX__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif

typedef float vec __attribute__((vector_size(WIDTH * 4)));
typedef int32_t ivec __attribute__((vector_size(WIDTH * 4)));
#if !defined(__AVX2__)
typedef uint8_t bvec __attribute__((vector_size(WIDTH)));
#endif

static inline vec load(const float *from)
{
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline void store(float *to, vec x) { memcpy(to, &x, sizeof x); }
static inline vec all(float x) { return x - (vec){0}; }

/* By name: gcc 12 takes the general conversion of bytes apart, one by one. */
static inline ivec load_codes(const uint8_t *from)
{
#if defined(__AVX512F__)
    return (ivec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
#elif defined(__AVX2__)
    return (ivec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
    bvec x;
    memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, ivec);
#endif
}

static inline vec larger(vec a, vec b)
{
#ifdef __AVX512F__
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
    ivec more = a > b;
    return (vec)((more & (ivec)a) | (~more & (ivec)b));
#endif
}

static inline float sum(vec x)
{
    float total = 0;
    for (int i = 0; i < WIDTH; i++)
        total += x[i];
    return total;
}

/* 2^f for f in [-1/2, 1/2], by a polynomial of degree 5; 2e-7. */
static inline vec power_of_fraction(vec f)
{
    vec p = all(1.327647217e-3f);
    p = p * f + 9.675541331e-3f;
    p = p * f + 5.550713273e-2f;
    p = p * f + 2.402211972e-1f;
    p = p * f + 6.931469671e-1f;
    return p * f + 1.000000072f;
}

/* 2^y for y in [-126, 0]. Which of three ways is fast depends on the processor: rounding by a large number added and
 * integers added to the exponent, or the instructions that AVX-512 has for both. */
static inline vec power_by_integers(vec y)
{
    vec shifted = y + 12582912.f;
    return (vec)((ivec)power_of_fraction(y - (shifted - 12582912.f)) + ((ivec)shifted << 23));
}

#ifdef __AVX512F__
static inline vec power_by_rounding(vec y)
{
    vec whole = (vec)_mm512_roundscale_ps((__m512)y, 0);
    return (vec)_mm512_scalef_ps((__m512)power_of_fraction(y - whole), (__m512)whole);
}
/* f = y - floor(y) in [0, 1), and another polynomial. */
static inline vec power_by_reducing(vec y)
{
    vec f = (vec)_mm512_reduce_ps((__m512)y, 1);
    vec p = all(1.877576700e-3f);
    p = p * f + 8.989340024e-3f;
    p = p * f + 5.582631812e-2f;
    p = p * f + 2.401536170e-1f;
    p = p * f + 6.931530732e-1f;
    p = p * f + 9.999999251e-1f;
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)y);
}
static inline vec power_of_two(vec y) { return power_by_reducing(y); }
#else
#define power_by_rounding power_by_integers
#define power_by_reducing power_by_integers
static inline vec power_of_two(vec y) { return power_by_integers(larger(y, all(-126))); }
#endif

static inline vec exponential(vec x) { return power_of_two(x * 1.442695041f); }

/* --- probes --- */

/* A value the compiler must take as it is, in a register: keeps a probe's loop from being folded. */
#if defined(__AVX512F__)
#define KEEP(x) __asm__ volatile("" : "+v"(x))
#elif defined(__x86_64__)
#define KEEP(x) __asm__ volatile("" : "+x"(x))
#elif defined(__aarch64__)
#define KEEP(x) __asm__ volatile("" : "+w"(x))
#else
#define KEEP(x) __asm__ volatile("" : "+m"(x))
#endif

/* Twelve sums hide the latency of a multiply-add on any processor, and fit 16 registers; an array would go to memory.
 */
#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static float multiply_adds(int64_t rounds, int64_t *count)
{
    vec a = all(1e-3f), b = all(0.999f), total = all(0);
    KEEP(a);
    KEEP(b);
#define BEGIN(c) vec s##c = all((float)c);
#define STEP(c) s##c = s##c * b + a;
#define END(c) total += s##c;
    TWELVE(BEGIN)
    for (int64_t r = 0; r < rounds; r++) {
        TWELVE(STEP)
    }
    TWELVE(END)
    *count = rounds * 12 * WIDTH;
    return sum(total);
}

#define COPY(c)                                                                                                        \
    vec y##c = x;                                                                                                      \
    KEEP(y##c);
#define USE(c) KEEP(y##c);
#define EXPONENTIALS(name, power)                                                                                      \
    static float name(int64_t rounds, int64_t *count)                                                                  \
    {                                                                                                                  \
        vec x = all(-1.5f);                                                                                            \
        for (int64_t r = 0; r < rounds; r++) {                                                                         \
            KEEP(x);                                                                                                   \
            TWELVE(COPY)                                                                                               \
            y0 = power(y0), y1 = power(y1), y2 = power(y2), y3 = power(y3), y4 = power(y4), y5 = power(y5);            \
            y6 = power(y6), y7 = power(y7), y8 = power(y8), y9 = power(y9), y10 = power(y10), y11 = power(y11);        \
            TWELVE(USE)                                                                                                \
        }                                                                                                              \
        *count = rounds * 12 * WIDTH;                                                                                  \
        return sum(x);                                                                                                 \
    }
EXPONENTIALS(exponentials_by_integers, power_by_integers)
EXPONENTIALS(exponentials_by_rounding, power_by_rounding)
EXPONENTIALS(exponentials_by_reducing, power_by_reducing)

static uint64_t read_words(const uint64_t *words, int64_t count)
{
    typedef uint64_t wvec __attribute__((vector_size(WIDTH * 4)));
    enum { PER = WIDTH / 2 };
    wvec any = {0}, x0, x1, x2, x3;
    for (int64_t i = 0; i + 4 * PER <= count; i += 4 * PER) {
        memcpy(&x0, words + i, sizeof x0);
        memcpy(&x1, words + i + PER, sizeof x1);
        memcpy(&x2, words + i + 2 * PER, sizeof x2);
        memcpy(&x3, words + i + 3 * PER, sizeof x3);
        any |= (x0 | x1) | (x2 | x3);
    }
    uint64_t total = 0;
    for (int i = 0; i < PER; i++)
        total |= any[i];
    return total;
}

/* --- rows --- */

/* Lookups need 16 entries: callers pad their tables, and have at most 16 codes. */
static inline vec looked_up(const uint8_t *codes, const float *table)
{
#ifdef __AVX512F__
    return (vec)_mm512_permutexvar_ps((__m512i)load_codes(codes), _mm512_loadu_ps(table));
#else
    vec x;
    for (int l = 0; l < WIDTH; l++)
        x[l] = table[codes[l]];
    return x;
#endif
}

/* In place, of s + bias, or of s + table[codes] where there are codes: bias is then the table. */
static inline void softmax_of(float *s, const float *bias, const uint8_t *codes, int64_t n)
{
    vec most = all(-INFINITY), total = all(0);
    int64_t whole = n / WIDTH * WIDTH, i;
    for (i = 0; i < whole; i += WIDTH) {
        vec x = load(s + i) + (codes ? looked_up(codes + i, bias) : load(bias + i));
        store(s + i, x);
        most = larger(x, most);
    }
    float top = -INFINITY, rest = 0;
    for (int l = 0; l < WIDTH; l++)
        top = most[l] > top ? most[l] : top;
    for (; i < n; i++) {
        s[i] += bias[codes ? codes[i] : i];
        top = s[i] > top ? s[i] : top;
    }
    for (i = 0; i < whole; i += WIDTH) {
        vec p = exponential(load(s + i) - top);
        total += p;
        store(s + i, p);
    }
    for (; i < n; i++)
        rest += s[i] = expf(s[i] - top);
    float factor = 1 / (sum(total) + rest);
    for (i = 0; i < whole; i += WIDTH)
        store(s + i, load(s + i) * factor);
    for (; i < n; i++)
        s[i] *= factor;
}
static void softmax(float *s, const float *bias, int64_t n) { softmax_of(s, bias, NULL, n); }
static void biased_softmax(float *s, const uint8_t *codes, const float *table, int64_t n)
{
    softmax_of(s, table, codes, n);
}

static void bias(float *s, const uint8_t *codes, const float *table, int64_t n)
{
    int64_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        store(s + i, looked_up(codes + i, table));
    for (; i < n; i++)
        s[i] = table[codes[i]];
}

static void score_gradient(float *t, const float *p, float d, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        t[i] = p[i] * (t[i] - d);
}

static inline vec add_where(vec part, ivec code, int32_t is, vec x)
{
#ifdef __AVX512F__
    return (vec)_mm512_mask_add_ps((__m512)part, _mm512_cmpeq_epi32_mask((__m512i)code, _mm512_set1_epi32(is)),
                                   (__m512)part, (__m512)x);
#else
    return part + (vec)((code == is) & (ivec)x);
#endif
}

/* Four codes at a time: a compare and a masked add each, which beats adding each element to its sum. */
static void table_gradient(float *sums, const float *t, const uint8_t *codes, int32_t code_count, int64_t n)
{
    int64_t whole = n / WIDTH * WIDTH;
    for (int32_t c = 0; c < code_count; c += 4) {
        vec part0 = all(0), part1 = all(0), part2 = all(0), part3 = all(0);
        for (int64_t i = 0; i < whole; i += WIDTH) {
            ivec code = load_codes(codes + i);
            vec x = load(t + i);
            part0 = add_where(part0, code, c, x);
            part1 = add_where(part1, code, c + 1, x);
            part2 = add_where(part2, code, c + 2, x);
            part3 = add_where(part3, code, c + 3, x);
        }
        const float parts[4] = {sum(part0), sum(part1), sum(part2), sum(part3)};
        for (int u = 0; u < 4 && c + u < code_count; u++)
            sums[c + u] += parts[u];
    }
    for (int64_t i = whole; i < n; i++)
        sums[codes[i]] += t[i];
}

static float dot(const float *a, const float *b, int32_t n)
{
    vec total = all(0);
    int32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        total += load(a + i) * load(b + i);
    float rest = 0;
    for (; i < n; i++)
        rest += a[i] * b[i];
    return sum(total) + rest;
}

static void add(float *to, const float *from, float factor, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        to[i] += factor * from[i];
}

#define NAME2(isa) bench_passes_##isa
#define NAME(isa) NAME2(isa)
extern const passes NAME(MG_ISA);
const passes NAME(MG_ISA) = {
    .multiply_adds = multiply_adds,
    .exponentials = {exponentials_by_integers, exponentials_by_rounding, exponentials_by_reducing},
    .read = read_words,
    .bias = bias,
    .softmax = softmax,
    .biased_softmax = biased_softmax,
    .score_gradient = score_gradient,
    .table_gradient = table_gradient,
    .dot = dot,
    .add = add,
};
