/* Kernels on the pairs of one query: what attention does elsewhere between its products. */
#include "../kernels.h"
#include "powers.h"

#include <math.h>

/* Codes as 32-bit lanes, by name: gcc 12 takes the general conversion of bytes apart, one by one. */
INLINE ivec load_codes(const uint8_t *from)
{
#if defined(__AVX512F__)
    return (ivec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
#elif defined(__AVX2__)
    return (ivec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
#else
    ivec codes;
    for (int l = 0; l < LANES; l++)
        codes[l] = from[l];
    return codes;
#endif
}

/* few: at most 16 codes, whose entries fit a register. */
INLINE vec look_up(const uint8_t *codes, const float *table, int few)
{
#ifdef __AVX512F__
    ivec code = load_codes(codes);
    if (few)
        return (vec)_mm512_permutexvar_ps((__m512i)code, _mm512_loadu_ps(table));
    return (vec)_mm512_i32gather_ps((__m512i)code, table, 4);
#else
    vec x;
    (void)few;
    for (int l = 0; l < LANES; l++)
        x[l] = table[codes[l]];
    return x;
#endif
}

static void bias(float *b, const uint8_t *codes, const float *table, int32_t code_count, int64_t count)
{
    int64_t whole = count / LANES * LANES, i;
    for (i = 0; i < whole; i += LANES)
        store(b + i, look_up(codes + i, table, code_count <= 16));
    for (; i < count; i++)
        b[i] = table[codes[i]];
}

/* e^(s - its most) and their sum, for s + bias or, where there are codes, s + bias[codes]. */
INLINE void softmax_of(float *s, const float *bias_of, const uint8_t *codes, int few, int64_t count)
{
    vec most = splat(-INFINITY), sum = splat(0);
    int64_t whole = count / LANES * LANES, i;
    for (i = 0; i < whole; i += LANES) {
        vec x = load(s + i) + (codes ? look_up(codes + i, bias_of, few) : load(bias_of + i));
        store(s + i, x);
        most = larger(x, most);
    }
    float top = -INFINITY, rest = 0;
    for (int l = 0; l < LANES; l++)
        top = most[l] > top ? most[l] : top;
    for (; i < count; i++) {
        s[i] += bias_of[codes ? codes[i] : i];
        top = s[i] > top ? s[i] : top;
    }
    for (i = 0; i < whole; i += LANES) {
        vec p = power_of_two((load(s + i) - top) * 1.442695041f);
        sum += p;
        store(s + i, p);
    }
    for (; i < count; i++)
        rest += s[i] = expf(s[i] - top);
    float share = 1 / (total(sum) + rest);
    for (i = 0; i < whole; i += LANES)
        store(s + i, load(s + i) * share);
    for (; i < count; i++)
        s[i] *= share;
}

static void softmax_biased(float *s, const float *of, int64_t count) { softmax_of(s, of, NULL, 0, count); }

static void softmax_coded(float *s, const uint8_t *codes, const float *table, int32_t code_count, int64_t count)
{
    if (code_count <= 16)
        softmax_of(s, table, codes, 1, count);
    else
        softmax_of(s, table, codes, 0, count);
}

static void score_gradient(float *ds, const float *t, const float *p, float d, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        ds[i] = p[i] * (t[i] - d);
}

INLINE vec add_where(vec sum, ivec code, int32_t is, vec x)
{
#ifdef __AVX512F__
    return (vec)_mm512_mask_add_ps((__m512)sum, _mm512_cmpeq_epi32_mask((__m512i)code, _mm512_set1_epi32(is)),
                                   (__m512)sum, (__m512)x);
#else
    return sum + (vec)((code == is) & (ivec)x);
#endif
}

/* Four codes at a time: a compare and a masked add each, which beats adding each element to its sum. */
static void table_gradient(float *sums, const float *t, const uint8_t *codes, int32_t code_count, int64_t count)
{
    int64_t whole = count / LANES * LANES;
    for (int32_t c = 0; c < code_count; c += 4) {
        vec sum0 = splat(0), sum1 = splat(0), sum2 = splat(0), sum3 = splat(0);
        for (int64_t i = 0; i < whole; i += LANES) {
            ivec code = load_codes(codes + i);
            vec x = load(t + i);
            sum0 = add_where(sum0, code, c, x);
            sum1 = add_where(sum1, code, c + 1, x);
            sum2 = add_where(sum2, code, c + 2, x);
            sum3 = add_where(sum3, code, c + 3, x);
        }
        const float four[4] = {total(sum0), total(sum1), total(sum2), total(sum3)};
        for (int u = 0; u < 4 && c + u < code_count; u++)
            sums[c + u] += four[u];
    }
    for (int64_t i = whole; i < count; i++)
        sums[codes[i]] += t[i];
}

static float dot(const float *a, const float *b, int64_t count)
{
    vec sum = splat(0);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        sum += load(a + i) * load(b + i);
    float rest = 0;
    for (; i < count; i++)
        rest += a[i] * b[i];
    return total(sum) + rest;
}

const mg_model_pair_kernels MG_JOIN(mg_model_pairs, MG_ISA) = {
    .bias = bias,
    .softmax_biased = softmax_biased,
    .softmax_coded = softmax_coded,
    .score_gradient = score_gradient,
    .table_gradient = table_gradient,
    .dot = dot,
};
