/* Kernels on rows by themselves: norm, element-wise functions, dropout, softmax. */
#include "../kernels.h"
#include "lanes.h"

#include <math.h>

/* x with all lanes from n on 0. */
INLINE vec first_lanes(vec x, int64_t n)
{
    for (int64_t i = n; i < LANES; i++)
        x[i] = 0;
    return x;
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

/* --- gains --- */

static void gain_rows(float *restrict y, const float *restrict gain, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++, y += columns)
        for (int64_t c = 0; c < columns; c++)
            y[c] *= gain[c];
}

static void gain_rows_backward(float *restrict dy, float *restrict dgain, const float *restrict y,
                               const float *restrict gain, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++, y += columns, dy += columns)
        for (int64_t c = 0; c < columns; c++) {
            dgain[c] += dy[c] * y[c];
            dy[c] *= gain[c];
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

static float largest(const float *x, int64_t count)
{
    vec most = splat(x[0]);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        most = larger(load(x + i), most);
    float all = x[0];
    for (int lane = 0; lane < LANES; lane++)
        all = most[lane] > all ? most[lane] : all;
    for (; i < count; i++)
        all = x[i] > all ? x[i] : all;
    return all;
}

static float softmax_row(float *p, float *most, const float *x, int64_t count)
{
    vec sum = splat(0);
    *most = largest(x, count);
    for (int64_t i = 0; i < count; i += LANES) {
        vec e = exponential(load_some(x + i, count - i) - *most);
        sum += first_lanes(e, count - i);
        store_some(p + i, e, count - i);
    }
    float all = total(sum), share = 1 / all;
    for (int64_t i = 0; i < count; i++)
        p[i] *= share;
    return logf(all);
}

/* --- dropout --- */

/* Counters in the low halves of 64-bit lanes; high halves hold anything. */
#if defined(__AVX512F__)
enum { COUNTERS = 8 };
typedef uint64_t wide __attribute__((vector_size(64)));
#define LOW_LANES 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_LANES 4, 12, 5, 13, 6, 14, 7, 15
INLINE wide multiply(wide x, uint32_t by) { return (wide)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64((int64_t)by)); }
#elif defined(__AVX2__)
enum { COUNTERS = 4 };
typedef uint64_t wide __attribute__((vector_size(32)));
#define LOW_LANES 0, 4, 1, 5
#define HIGH_LANES 2, 6, 3, 7
INLINE wide multiply(wide x, uint32_t by)
{
    return (wide)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x((int64_t)by));
}
#else
enum { COUNTERS = 2 };
typedef uint64_t wide __attribute__((vector_size(16)));
#define LOW_LANES 0, 2
#define HIGH_LANES 1, 3
#if defined(__SSE2__)
INLINE wide multiply(wide x, uint32_t by) { return (wide)_mm_mul_epu32((__m128i)x, _mm_set1_epi64x((int64_t)by)); }
#else
INLINE wide multiply(wide x, uint32_t by) { return (x & 0xFFFFFFFFu) * by; }
#endif
#endif

/* Little-endian. Philox 4x32-7 (libattn/src/philox.h) of EIGHTS counters {ids, eights, site, step}, of eight columns
 * each; bits[8 i + column]. */
enum { EIGHTS = 16, PARTS = EIGHTS / COUNTERS };
INLINE void philox(uint16_t bits[8 * EIGHTS], const uint32_t ids[EIGHTS], const uint32_t eights[EIGHTS],
                   const mg_model_mask *mask)
{
    uint64_t x[2][EIGHTS];
    wide x0[PARTS], x1[PARTS], x2[PARTS], x3[PARTS];
    for (int i = 0; i < EIGHTS; i++) {
        x[0][i] = ids[i];
        x[1][i] = eights[i];
    }
    memcpy(x0, x[0], sizeof x0);
    memcpy(x1, x[1], sizeof x1);
    for (int p = 0; p < PARTS; p++) {
        x2[p] = mask->site - (wide){0};
        x3[p] = mask->step - (wide){0};
    }
    uint32_t k0 = mask->key[0], k1 = mask->key[1];
    for (int round = 0; round < 7; round++) {
        UNROLL
        for (int p = 0; p < PARTS; p++) {
            wide a = multiply(x0[p], 0xD2511F53u), b = multiply(x2[p], 0xCD9E8D57u);
            x0[p] = (b >> 32) ^ x1[p] ^ k0;
            x1[p] = b;
            x2[p] = (a >> 32) ^ x3[p] ^ k1;
            x3[p] = a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    UNROLL
    for (int p = 0; p < PARTS; p++) {
        wide first = (x0[p] & 0xFFFFFFFFu) | x1[p] << 32, last = (x2[p] & 0xFFFFFFFFu) | x3[p] << 32;
        wide low = __builtin_shufflevector(first, last, LOW_LANES);
        wide high = __builtin_shufflevector(first, last, HIGH_LANES);
        memcpy(bits + 8 * COUNTERS * p, &low, sizeof low);
        memcpy(bits + 8 * COUNTERS * p + 4 * COUNTERS, &high, sizeof high);
    }
}

INLINE void drop(float *restrict y, const uint16_t *restrict bits, int64_t count, const mg_model_mask *mask)
{
    uint32_t threshold = mask->threshold;
    float scale = mask->scale;
    for (int64_t c = 0; c < count; c++)
        y[c] = bits[c] < threshold ? 0 : y[c] * scale;
}

/* As many rows at a time as EIGHTS hold; of longer rows 128 columns at a time. */
static void dropout(float *y, const uint32_t *ids, int64_t rows, int64_t first, int64_t columns,
                    const mg_model_mask *mask)
{
    uint16_t bits[8 * EIGHTS];
    uint32_t id[EIGHTS], eight[EIGHTS], row_of[EIGHTS], eight_of[EIGHTS];
    int64_t row_eights = (columns + 7) / 8, width = row_eights < EIGHTS ? row_eights : EIGHTS;
    int64_t at_once = columns ? EIGHTS / width : 1;
    for (uint32_t e = 0; e < EIGHTS && columns; e++) {
        row_of[e] = e / (uint32_t)width;
        eight_of[e] = (uint32_t)(first / 8) + e % (uint32_t)width;
    }
    for (int64_t i = 0; i < rows; i += at_once)
        for (int64_t c = 0; c < columns; c += 8 * width) {
            int64_t some = rows - i < at_once ? rows - i : at_once,
                    n = columns - c < 8 * width ? columns - c : 8 * width;
            for (int e = 0; e < EIGHTS; e++)
                eight[e] = eight_of[e] + (uint32_t)(c / 8);
            if (at_once == 1)
                for (int e = 0; e < EIGHTS; e++)
                    id[e] = ids[i];
            else
                for (int e = 0; e < EIGHTS; e++)
                    id[e] = ids[i + (row_of[e] < some ? row_of[e] : 0)];
            philox(bits, id, eight, mask);
            if (n == 8 * EIGHTS)
                drop(y + i * columns + c, bits, 8 * EIGHTS, mask);
            else
                for (int64_t row = 0; row < some; row++)
                    drop(y + (i + row) * columns + c, bits + 8 * row * width, n, mask);
        }
}

const mg_model_row_kernels MG_JOIN(mg_model_rows, MG_ISA) = {
    .norm = norm_rows,
    .norm_backward = norm_rows_backward,
    .fill = fill,
    .add = add,
    .add_scaled = add_scaled,
    .column_sums = column_sums,
    .gain = gain_rows,
    .gain_backward = gain_rows_backward,
    .gelu = gelu,
    .gelu_backward = gelu_backward,
    .relu = relu,
    .relu_backward = relu_backward,
    .relu_backward_by = relu_backward_by,
    .dropout = dropout,
    .softmax = softmax_row,
    .logistic = logistic,
};
