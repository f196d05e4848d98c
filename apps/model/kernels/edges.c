/* Kernels over edges: rows of heads x dim floats, a weight for each edge and head. Heads of a row lie side by side. */
#include "../kernels.h"
#include "powers.h"

#include <math.h>

enum { AHEAD = 16 }; /* rows that are fetched before they are read */
enum { BLOCK = 8 };  /* vectors of a row that stay in registers */

INLINE int64_t row_of(const int32_t *rows, int64_t e) { return rows ? rows[e] : e; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE void fetch(const float *row, int64_t columns)
{
    for (int64_t c = 0; c < columns; c += 16)
        __builtin_prefetch(row + c);
}

/* past: past the caches, to an aligned place. */
INLINE void store_past(float *to, vec x, int past)
{
#if defined(__AVX512F__)
    if (past) {
        _mm512_stream_ps(to, (__m512)x);
        return;
    }
#elif defined(__AVX2__)
    if (past) {
        _mm256_stream_ps(to, (__m256)x);
        return;
    }
#endif
    (void)past;
    store(to, x);
}

INLINE int is_aligned(const void *to) { return (uintptr_t)to % (4 * LANES) == 0; }

INLINE void written(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

/* --- to edges --- */

static void gather(float *to, const float *from, int64_t stride, const int32_t *rows, int64_t count, int64_t columns,
                   int past)
{
    past = past && is_aligned(to) && columns % LANES == 0;
    for (int64_t e = 0; e < count; e++, to += columns) {
        const float *row = from + rows[e] * stride;
        if (e + AHEAD < count && rows[e + AHEAD] != rows[e])
            fetch(from + rows[e + AHEAD] * stride, columns);
        for (int64_t c = 0; c < columns; c += LANES)
            if (past)
                store_past(to + c, load(row + c), past);
            else
                store_some(to + c, load_some(row + c, columns - c), columns - c);
    }
    written();
}

static void multiply(float *y, const float *a, const float *b, int64_t count, int past)
{
    past = past && is_aligned(y);
    int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        store_past(y + i, load(a + i) * load(b + i), past);
    for (int64_t i = whole; i < count; i++)
        y[i] = a[i] * b[i];
    written();
}

/* --- a number for each group of dim floats --- */

#if defined(__AVX512F__)
#define EVENS(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
#define ODDS(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)
#elif defined(__AVX2__)
#define EVENS(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14)
#define ODDS(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15)
#else
#define EVENS(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6)
#define ODDS(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7)
#endif

/* x[0 .. 2^levels): sums of 2^levels floats that follow each other, in order. */
INLINE vec fold(vec *x, int levels)
{
    UNROLL
    for (int half = 1 << levels >> 1; half; half /= 2)
        for (int i = 0; i < half; i++)
            x[i] = EVENS(x[2 * i], x[2 * i + 1]) + ODDS(x[2 * i], x[2 * i + 1]);
    return x[0];
}

/* LANES groups of 2^levels floats each. */
INLINE vec sums_of_small(const float *x, int levels)
{
    vec parts[LANES];
    UNROLL
    for (int i = 0; i < LANES; i++)
        if (i < 1 << levels)
            parts[i] = load(x + i * LANES);
    return fold(parts, levels);
}

enum { LEVELS = LANES == 16 ? 4 : LANES == 8 ? 3 : 2 };

/* LANES groups of dim floats each, dim a multiple of LANES. */
INLINE vec sums_of_large(const float *x, int64_t dim)
{
    vec parts[LANES];
    UNROLL
    for (int i = 0; i < LANES; i++) {
        vec sum = load(x + i * dim);
        for (int64_t c = LANES; c < dim; c += LANES)
            sum += load(x + i * dim + c);
        parts[i] = sum;
    }
    return fold(parts, LEVELS);
}

INLINE float sum_of(const float *x, int64_t dim)
{
    vec sum = load_some(x, dim);
    for (int64_t c = LANES; c < dim; c += LANES)
        sum += load_some(x + c, dim - c);
    return total(sum);
}

static void group_sums(float *y, const float *x, int64_t groups, int32_t dim)
{
    int64_t whole = groups / LANES * LANES, g = 0;
    if (dim % LANES == 0)
        for (; g < whole; g += LANES)
            store(y + g, sums_of_large(x + g * dim, dim));
    else if (dim == 8)
        for (; g < whole; g += LANES)
            store(y + g, sums_of_small(x + g * 8, LANES == 4 ? 2 : 3));
    else if (dim == 4)
        for (; g < whole; g += LANES)
            store(y + g, sums_of_small(x + g * 4, 2));
    for (; g < groups; g++)
        y[g] = sum_of(x + g * dim, dim);
}

static void add_bias(float *s, const uint8_t *codes, const float *table, float scale, int64_t count, int32_t heads)
{
    for (int64_t e = 0; e < count; e++, s += heads)
        for (int32_t h = 0; h < heads; h += LANES) {
            const int64_t n = heads - h;
            store_some(s + h, load_some(s + h, n) * scale + load_some(table + codes[e] * (int64_t)heads + h, n), n);
        }
}

static void table_sums(float *sums, const float *ds, const uint8_t *codes, int64_t count, int32_t heads)
{
    for (int64_t e = 0; e < count; e++, ds += heads)
        for (int32_t h = 0; h < heads; h += LANES) {
            float *sum = sums + codes[e] * (int64_t)heads + h;
            store_some(sum, load_some(sum, heads - h) + load_some(ds + h, heads - h), heads - h);
        }
}

/* --- softmax of a query's edges [count][heads], head by head --- */

/* Lanes l of edges that follow each other belong to head l % heads, where that divides LANES: one pass over all floats.
 * Else a pass for each register of heads. across: each lane gets what all lanes of its head make. */
INLINE vec across_most(vec x, int32_t heads)
{
    float a[LANES];
    store(a, x);
    for (int l = heads; l < LANES; l++)
        a[l % heads] = a[l] > a[l % heads] ? a[l] : a[l % heads];
    for (int l = heads; l < LANES; l++)
        a[l] = a[l % heads];
    return load(a);
}

INLINE vec across_sum(vec x, int32_t heads)
{
    float a[LANES];
    store(a, x);
    for (int l = heads; l < LANES; l++)
        a[l % heads] += a[l];
    for (int l = heads; l < LANES; l++)
        a[l] = a[l % heads];
    return load(a);
}

/* The first n floats at p; `rest` in the lanes behind them. */
INLINE vec load_filled(const float *p, int64_t n, float rest)
{
    float a[LANES];
    if (n >= LANES)
        return load(p);
    store(a, splat(rest));
    memcpy(a, p, (size_t)n * sizeof *a);
    return load(a);
}

/* Floats [0, count) by steps of `stride`, `width` at each (0: all that are left), folded by heads unless that is 0. */
INLINE void softmax_lanes(float *p, int64_t count, int64_t stride, int64_t width, int32_t fold_heads)
{
    vec most = splat(-INFINITY), sum = splat(0);
    for (int64_t i = 0; i < count; i += stride)
        most = larger(load_filled(p + i, width ? width : count - i, -INFINITY), most);
    if (fold_heads)
        most = across_most(most, fold_heads);
    for (int64_t i = 0; i < count; i += stride) {
        const int64_t n = width ? width : count - i;
        vec e = power_of_two((load_filled(p + i, n, -INFINITY) - most) * 1.442695041f);
        store_some(p + i, e, n);
        sum += n >= LANES ? e : load_part(p + i, n);
    }
    if (fold_heads)
        sum = across_sum(sum, fold_heads);
    const vec share = 1 / sum;
    for (int64_t i = 0; i < count; i += stride) {
        const int64_t n = width ? width : count - i;
        store_some(p + i, load_some(p + i, n) * share, n);
    }
}

static void softmax(float *p, int64_t count, int32_t heads)
{
    if (LANES % heads == 0)
        softmax_lanes(p, count * heads, LANES, 0, heads);
    else
        for (int32_t h = 0; h < heads; h += LANES)
            softmax_lanes(p + h, count * heads - h, heads, least(heads - h, LANES), 0);
}

INLINE void backward_lanes(float *dp, const float *p, int64_t count, int64_t stride, int64_t width, int32_t fold_heads)
{
    vec sum = splat(0);
    for (int64_t i = 0; i < count; i += stride) {
        const int64_t n = width ? width : count - i;
        sum += load_some(dp + i, n) * load_some(p + i, n);
    }
    if (fold_heads)
        sum = across_sum(sum, fold_heads);
    for (int64_t i = 0; i < count; i += stride) {
        const int64_t n = width ? width : count - i;
        store_some(dp + i, load_some(p + i, n) * (load_some(dp + i, n) - sum), n);
    }
}

static void softmax_backward(float *dp, const float *p, int64_t count, int32_t heads)
{
    if (LANES % heads == 0)
        backward_lanes(dp, p, count * heads, LANES, 0, heads);
    else
        for (int32_t h = 0; h < heads; h += LANES)
            backward_lanes(dp + h, p + h, count * heads - h, heads, least(heads - h, LANES), 0);
}

/* --- weights to rows --- */

/* How a register of a row finds its weights: all lanes one head's; several heads of dim 8 or 4; or neither. */
typedef enum spread { ONE_HEAD, SEVERAL_HEADS, ANY } spread;

INLINE spread spread_of(int32_t dim, int64_t columns)
{
    return dim % LANES == 0 ? ONE_HEAD : LANES % dim == 0 && columns % LANES == 0 ? SEVERAL_HEADS : ANY;
}

INLINE ivec head_lanes(int32_t dim)
{
    ivec of;
    for (int l = 0; l < LANES; l++)
        of[l] = l / dim;
    return of;
}

/* Column c of a row whose weights are w. */
INLINE vec weights_at(const float *w, int64_t c, int32_t dim, spread how, ivec lanes)
{
    if (how == ONE_HEAD)
        return splat(w[c / dim]);
#if defined(__AVX512F__)
    return (vec)_mm512_permutexvar_ps((__m512i)lanes,
                                      _mm512_maskz_loadu_ps((__mmask16)((1u << 16 / dim) - 1), w + c / dim));
#elif defined(__AVX2__)
    return (vec)_mm256_permutevar8x32_ps((__m256)load_part(w + c / dim, LANES / dim), (__m256i)lanes);
#else
    vec x;
    for (int l = 0; l < LANES; l++)
        x[l] = w[c / dim + lanes[l]];
    return x;
#endif
}

INLINE void scale_as(float *y, const float *x, const float *w, float scale, int64_t count, int32_t heads, int32_t dim,
                     int past, spread how)
{
    const int64_t columns = (int64_t)heads * dim;
    const ivec lanes = head_lanes(dim);
    past = past && is_aligned(y);
    for (int64_t e = 0; e < count; e++, x += columns, y += columns, w += heads)
        for (int64_t c = 0; c < columns; c += LANES)
            store_past(y + c, load(x + c) * (weights_at(w, c, dim, how, lanes) * scale), past);
    written();
}

static void scale_groups(float *y, const float *x, const float *w, float scale, int64_t count, int32_t heads,
                         int32_t dim, int past)
{
    switch (spread_of(dim, (int64_t)heads * dim)) {
    case ONE_HEAD:
        scale_as(y, x, w, scale, count, heads, dim, past, ONE_HEAD);
        return;
    case SEVERAL_HEADS:
        scale_as(y, x, w, scale, count, heads, dim, past, SEVERAL_HEADS);
        return;
    default:
        for (int64_t g = 0; g < count * heads; g++)
            for (int32_t c = 0; c < dim; c++)
                y[g * dim + c] = x[g * dim + c] * (w[g] * scale);
    }
}

/* The sum of rows e, times their weights where there are some: columns in blocks that stay in registers. */
INLINE void sum_block(float *y, const float *x, int64_t stride, const int32_t *rows, const float *w,
                      const int32_t *pairs, int64_t count, int32_t heads, int32_t dim, int64_t first, int64_t vectors,
                      spread how)
{
    const ivec lanes = head_lanes(dim);
    vec sum[BLOCK];
    for (int64_t i = 0; i < vectors; i++)
        sum[i] = splat(0);
    for (int64_t e = 0; e < count; e++) {
        const float *row = x + row_of(rows, e) * stride + first, *weights = w ? w + row_of(pairs, e) * heads : NULL;
        if (rows && e + AHEAD < count)
            fetch(x + rows[e + AHEAD] * stride + first, vectors * LANES);
        for (int64_t i = 0; i < vectors; i++) {
            vec value = load(row + i * LANES);
            sum[i] += w ? value * weights_at(weights, first + i * LANES, dim, how, lanes) : value;
        }
    }
    for (int64_t i = 0; i < vectors; i++)
        store(y + first + i * LANES, sum[i]);
}

INLINE void sum_as(float *y, const float *x, int64_t stride, const int32_t *rows, const float *w, const int32_t *pairs,
                   int64_t count, int32_t heads, int32_t dim, int64_t vectors, spread how)
{
    int64_t v = 0;
    for (; v + BLOCK <= vectors; v += BLOCK)
        sum_block(y, x, stride, rows, w, pairs, count, heads, dim, v * LANES, BLOCK, how);
    for (; v + 4 <= vectors; v += 4)
        sum_block(y, x, stride, rows, w, pairs, count, heads, dim, v * LANES, 4, how);
    for (; v < vectors; v++)
        sum_block(y, x, stride, rows, w, pairs, count, heads, dim, v * LANES, 1, how);
}

/* Any sizes: one register, or a part of one, of a head at a time. */
static void sum_any(float *y, const float *x, int64_t stride, const int32_t *rows, const float *w, const int32_t *pairs,
                    int64_t count, int32_t heads, int32_t dim)
{
    for (int32_t h = 0; h < heads; h++)
        for (int64_t c = 0; c < dim; c += LANES) {
            vec sum = splat(0);
            for (int64_t e = 0; e < count; e++)
                sum += load_some(x + row_of(rows, e) * stride + h * dim + c, dim - c) *
                       (w ? w[row_of(pairs, e) * heads + h] : 1);
            store_some(y + h * dim + c, sum, dim - c);
        }
}

static void sum_rows(float *y, const float *x, int64_t stride, const int32_t *rows, const float *w,
                     const int32_t *pairs, int64_t count, int32_t heads, int32_t dim)
{
    const int64_t columns = (int64_t)heads * dim, vectors = columns / LANES;
    const spread how = spread_of(dim, columns);
    if (how == ONE_HEAD || (!w && columns % LANES == 0))
        sum_as(y, x, stride, rows, w, pairs, count, heads, dim, vectors, ONE_HEAD);
    else if (how == SEVERAL_HEADS)
        sum_as(y, x, stride, rows, w, pairs, count, heads, dim, vectors, SEVERAL_HEADS);
    else
        sum_any(y, x, stride, rows, w, pairs, count, heads, dim);
}

/* --- one row with the rows of others --- */

/* A few products at a time, which stay in the first cache. */
static void row_scores(float *s, const float *q, const float *k, int64_t stride, const int32_t *rows, int64_t count,
                       int32_t heads, int32_t dim)
{
    enum { FLOATS = 4096 };
    const int64_t columns = (int64_t)heads * dim, most = columns < FLOATS ? FLOATS / columns : 1;
    float products[FLOATS];
    if (columns > FLOATS) {
        for (int64_t g = 0; g < count * heads; g++) {
            const float *a = q + g % heads * dim, *b = k + rows[g / heads] * stride + g % heads * dim;
            s[g] = 0;
            for (int32_t c = 0; c < dim; c++)
                s[g] += a[c] * b[c];
        }
        return;
    }
    for (int64_t e = 0; e < count; e += most) {
        const int64_t n = least(count - e, most);
        for (int64_t i = 0; i < n; i++) {
            const float *row = k + rows[e + i] * stride;
            if (e + i + AHEAD < count)
                fetch(k + rows[e + i + AHEAD] * stride, columns);
            for (int64_t c = 0; c < columns; c += LANES)
                store_some(products + i * columns + c, load_some(q + c, columns - c) * load_some(row + c, columns - c),
                           columns - c);
        }
        group_sums(s + e * heads, products, n * heads, dim);
    }
}

const mg_model_edge_kernels MG_JOIN(mg_model_edges, MG_ISA) = {
    .gather = gather,
    .multiply = multiply,
    .group_sums = group_sums,
    .add_bias = add_bias,
    .softmax = softmax,
    .softmax_backward = softmax_backward,
    .table_sums = table_sums,
    .scale_groups = scale_groups,
    .sum_rows = sum_rows,
    .row_scores = row_scores,
};
