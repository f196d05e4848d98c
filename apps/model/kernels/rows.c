/* Kernels on rows by themselves: norm, element-wise functions, dropout, softmax. */
#include "../kernels.h"
#include "lanes.h"

#include <math.h>

/* x with all lanes from n on 0. */
INLINE vec first_lanes(vec x, int64_t n)
{
    const ivec index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return n >= LANES ? x : choose(index < (int32_t)n, x, splat(0));
}

/* --- layer norm --- */

typedef struct statistics {
    float mean, scale; /* scale: 1 / standard deviation */
} statistics;

INLINE statistics row_statistics(const float *x, int64_t columns)
{
    statistics s;
    vec sum = splat(0), square = splat(0);
    for (int64_t c = 0; c < columns; c += LANES)
        sum += load_some(x + c, columns - c);
    s.mean = total(sum) / (float)columns;
    for (int64_t c = 0; c < columns; c += LANES) {
        vec d = first_lanes(load_some(x + c, columns - c) - s.mean, columns - c);
        square += d * d;
    }
    s.scale = 1 / sqrtf(total(square) / (float)columns + 1e-5f);
    return s;
}

static void norm_rows(float *y, const float *x, const float *weight, const float *bias, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++, x += columns, y += columns) {
        statistics s = row_statistics(x, columns);
        for (int64_t c = 0; c < columns; c += LANES) {
            int64_t n = columns - c;
            vec normal = (load_some(x + c, n) - s.mean) * s.scale;
            store_some(y + c, normal * load_some(weight + c, n) + load_some(bias + c, n), n);
        }
    }
}

/* With n = the normal row and g = dy * weight: dx = scale (g - mean(g) - n mean(g n)). */
static void norm_rows_backward(float *dx, float *dweight, float *dbias, const float *dy, const float *x,
                           const float *weight, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++, x += columns, dx += columns, dy += columns) {
        statistics s = row_statistics(x, columns);
        vec sum = splat(0), along = splat(0);
        for (int64_t c = 0; c < columns; c += LANES) {
            int64_t n = columns - c;
            vec d = load_some(dy + c, n), g = d * load_some(weight + c, n);
            vec normal = (load_some(x + c, n) - s.mean) * s.scale;
            store_some(dweight + c, load_some(dweight + c, n) + d * normal, n);
            store_some(dbias + c, load_some(dbias + c, n) + d, n);
            sum += g;
            along += g * normal;
        }
        float mean = total(sum) / (float)columns, slope = total(along) / (float)columns;
        for (int64_t c = 0; c < columns; c += LANES) {
            int64_t n = columns - c;
            vec normal = (load_some(x + c, n) - s.mean) * s.scale;
            vec g = load_some(dy + c, n) * load_some(weight + c, n);
            store_some(dx + c, load_some(dx + c, n) + s.scale * (g - mean - normal * slope), n);
        }
    }
}

/* --- sums --- */

static void fill(float *y, const float *bias, int64_t rows, int64_t columns)
{
    if (!bias) {
        memset(y, 0, (size_t)(rows * columns) * sizeof *y);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        memcpy(y + i * columns, bias, (size_t)columns * sizeof *y);
}

static void add(float *restrict y, const float *restrict x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += x[i];
}

static void add_scaled(float *restrict y, const float *restrict x, float scale, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] += scale * x[i];
}

static void column_sums(float *sums, const float *x, int64_t rows, int64_t columns)
{
    for (int64_t c = 0; c < columns; c += LANES) {
        vec sum = splat(0);
        for (int64_t i = 0; i < rows; i++)
            sum += load_some(x + i * columns + c, columns - c);
        store_some(sums + c, load_some(sums + c, columns - c) + sum, columns - c);
    }
}

/* --- element by element --- */

static const float gelu_slope = 1.5957691216f, gelu_cubic = 0.044715f;

static void gelu(float *y, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANES) {
        vec v = load_some(x + i, count - i);
        store_some(y + i, v * sigmoid(gelu_slope * (v + gelu_cubic * v * v * v)), count - i);
    }
}

static void gelu_backward(float *dy, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANES) {
        vec v = load_some(x + i, count - i), square = v * v;
        vec s = sigmoid(gelu_slope * (v + gelu_cubic * square * v));
        vec slope = s + v * s * (1 - s) * (gelu_slope * (1 + 3 * gelu_cubic * square));
        store_some(dy + i, load_some(dy + i, count - i) * slope, count - i);
    }
}

/* NaN passes, in both directions. */
static void relu(float *restrict y, uint8_t *restrict positive, int64_t count)
{
    if (positive)
        for (int64_t i = 0; i < count; i++)
            positive[i] = !(y[i] <= 0);
    for (int64_t i = 0; i < count; i++)
        y[i] = y[i] <= 0 ? 0 : y[i];
}

static void relu_backward(float *restrict dy, const uint8_t *restrict positive, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dy[i] = positive[i] ? dy[i] : 0;
}

static void relu_backward_by(float *restrict dy, const float *restrict y, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dy[i] = y[i] <= 0 ? 0 : dy[i];
}

static void logistic(float *p, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANES)
        store_some(p + i, sigmoid(load_some(x + i, count - i)), count - i);
}

static float softmax_row(float *p, float *most, const float *x, int64_t count)
{
    float largest = x[0];
    for (int64_t i = 1; i < count; i++)
        largest = x[i] > largest ? x[i] : largest;
    vec sum = splat(0);
    for (int64_t i = 0; i < count; i += LANES) {
        vec e = exponential(load_some(x + i, count - i) - largest);
        sum += first_lanes(e, count - i);
        store_some(p + i, e, count - i);
    }
    float all = total(sum);
    for (int64_t i = 0; i < count; i++)
        p[i] /= all;
    *most = largest;
    return logf(all);
}

/* --- dropout --- */

INLINE void multiply(uvec *high, uvec *low, uvec x, uint32_t by)
{
#if defined(__AVX512F__)
    __m512i factor = _mm512_set1_epi64((int64_t)by), even = _mm512_mul_epu32((__m512i)x, factor);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)x, 32), factor);
    *low = (uvec)_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
    *high = (uvec)_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
#else
    for (int i = 0; i < LANES; i++) {
        uint64_t product = (uint64_t)x[i] * by;
        (*low)[i] = (uint32_t)product;
        (*high)[i] = (uint32_t)(product >> 32);
    }
#endif
}

/* Philox 4x32-10 (libattn/src/philox.h) of 16 counters {ids, quads, site, step} at once; words[4 lane + word]. */
INLINE void philox(uint32_t words[4 * LANES], uvec ids, uvec quads, const mg_model_mask *mask)
{
    uvec x0 = ids, x1 = quads, x2 = mask->site - (uvec){0}, x3 = mask->step - (uvec){0};
    uint32_t k0 = mask->key[0], k1 = mask->key[1];
    for (int round = 0; round < 10; round++) {
        uvec a_high, a_low, b_high, b_low;
        multiply(&a_high, &a_low, x0, 0xD2511F53u);
        multiply(&b_high, &b_low, x2, 0xCD9E8D57u);
        x0 = b_high ^ x1 ^ k0;
        x1 = b_low;
        x2 = a_high ^ x3 ^ k1;
        x3 = a_low;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < LANES; i++) {
        words[4 * i] = x0[i];
        words[4 * i + 1] = x1[i];
        words[4 * i + 2] = x2[i];
        words[4 * i + 3] = x3[i];
    }
}

INLINE void drop(float *restrict y, const uint32_t *restrict words, int64_t count, const mg_model_mask *mask)
{
    uint32_t threshold = mask->threshold;
    float scale = mask->scale;
    for (int64_t c = 0; c < count; c++)
        y[c] = words[c] < threshold ? 0 : y[c] * scale;
}

/* Rows of 64 columns and more: 16 quads of one row at a time. */
static void dropout_wide(float *y, const uint32_t *ids, int64_t rows, int64_t first, int64_t columns,
                         const mg_model_mask *mask)
{
    const uvec index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    uint32_t words[4 * LANES];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < columns; c += 4 * LANES) {
            int64_t n = columns - c < 4 * LANES ? columns - c : 4 * LANES;
            philox(words, ids[i] - (uvec){0}, index + (uint32_t)((first + c) / 4), mask);
            if (n == 4 * LANES)
                drop(y + i * columns + c, words, 4 * LANES, mask);
            else
                drop(y + i * columns + c, words, n, mask);
        }
}

/* Shorter rows: as many as 16 quads hold. */
static void dropout_narrow(float *y, const uint32_t *ids, int64_t rows, int64_t first, int64_t columns,
                           const mg_model_mask *mask)
{
    int64_t quads = (columns + 3) / 4, at_once = LANES / quads;
    uint32_t words[4 * LANES];
    for (int64_t i = 0; i < rows; i += at_once) {
        int64_t n = rows - i < at_once ? rows - i : at_once;
        uvec id = {0}, quad = {0};
        for (int64_t r = 0; r < n; r++)
            for (int64_t q = 0; q < quads; q++) {
                id[r * quads + q] = ids[i + r];
                quad[r * quads + q] = (uint32_t)(first / 4 + q);
            }
        philox(words, id, quad, mask);
        for (int64_t r = 0; r < n; r++)
            drop(y + (i + r) * columns, words + 4 * r * quads, columns, mask);
    }
}

static void dropout(float *y, const uint32_t *ids, int64_t rows, int64_t first, int64_t columns,
                     const mg_model_mask *mask)
{
    if (columns > 4 * (LANES / 2))
        dropout_wide(y, ids, rows, first, columns, mask);
    else if (columns > 0)
        dropout_narrow(y, ids, rows, first, columns, mask);
}

const mg_model_row_kernels MG_JOIN(mg_model_rows, MG_ISA) = {
    .norm = norm_rows,
    .norm_backward = norm_rows_backward,
    .fill = fill,
    .add = add,
    .add_scaled = add_scaled,
    .column_sums = column_sums,
    .gelu = gelu,
    .gelu_backward = gelu_backward,
    .relu = relu,
    .relu_backward = relu_backward,
    .relu_backward_by = relu_backward_by,
    .dropout = dropout,
    .softmax = softmax_row,
    .logistic = logistic,
};
