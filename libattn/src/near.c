/* Sparse attention where all pairs are gathered: one query, or one key, with its listed tokens, for 1, 2, 4 or 8 heads
 * at once, whose elements lie side by side in a token's row. Elements are in the lanes:
 *
 *     whole    a head has 1 vector       (row = SPREAD)
 *     halves   a vector has 2 heads      (row = 8, SPREAD 16)
 *     long     a head has some vectors   (the last may be half full)
 *
 * Scores stand pair by pair, its heads side by side, and come SPREAD at once by a transposing sum; so do P and dS. */
#include "kernel.h"
#include "lanes.h"

void KERNEL(mg_attn_near_forward)(const near_list *l);
void KERNEL(mg_attn_near_backward)(const near_list *l);
void KERNEL(mg_attn_near_delta)(float *delta, const float *out, const float *dout, int32_t row, int32_t heads);
void KERNEL(mg_attn_near_add)(const near_sums *a);

#if defined(__AVX512F__)
#include "forward_v4.h"
enum { SPREAD = 16 };
typedef vec wvec;
INLINE wvec load_some(const float *p, int32_t left)
{
    return (wvec)_mm512_maskz_loadu_ps(left >= SPREAD ? 0xFFFF : 0xFF, p);
}
INLINE void store_some(float *p, wvec x, int32_t left)
{
    _mm512_mask_storeu_ps(p, left >= SPREAD ? 0xFFFF : 0xFF, (__m512)x);
}
INLINE wvec load_whole(const float *p) { return load(p); }
INLINE wvec exponential_of(wvec x) { return (wvec)power_of_two((__m512)x * LOG2_E); }
INLINE wvec larger_of_two(wvec a, wvec b) { return larger(a, b); }
INLINE int any_larger(wvec a, wvec b) { return any_above(a, b); }
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define SECOND(a, b) __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#define FIRST2(a, b) __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define SECOND2(a, b) __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define FIRST4(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define SECOND4(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define ROTATE(x, by) __builtin_shufflevector(x, x, ROTATE_(by))
#define ROTATE_(n)                                                                                                     \
    (n) % 16, (n + 1) % 16, (n + 2) % 16, (n + 3) % 16, (n + 4) % 16, (n + 5) % 16, (n + 6) % 16, (n + 7) % 16,        \
        (n + 8) % 16, (n + 9) % 16, (n + 10) % 16, (n + 11) % 16, (n + 12) % 16, (n + 13) % 16, (n + 14) % 16,         \
        (n + 15) % 16
#else
enum { SPREAD = 8 };
typedef octet wvec;
INLINE wvec load_some(const float *p, int32_t left)
{
    (void)left;
    return load8(p);
}
INLINE void store_some(float *p, wvec x, int32_t left)
{
    (void)left;
    store8(p, x);
}
INLINE wvec load_whole(const float *p) { return load8(p); }
INLINE wvec exponential_of(wvec x) { return exponential8(x); }
INLINE wvec larger_of_two(wvec a, wvec b) { return larger8(a, b); }
INLINE int any_larger(wvec a, wvec b)
{
    const ioctet yes = a > b;
    return (yes[0] | yes[1] | yes[2] | yes[3] | yes[4] | yes[5] | yes[6] | yes[7]) != 0;
}
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
#define SECOND(a, b) __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15)
#define FIRST2(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define SECOND2(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define FIRST4(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define SECOND4(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#define ROTATE(x, by) __builtin_shufflevector(x, x, ROTATE_(by))
#define ROTATE_(n) (n) % 8, (n + 1) % 8, (n + 2) % 8, (n + 3) % 8, (n + 4) % 8, (n + 5) % 8, (n + 6) % 8, (n + 7) % 8
#endif

enum { LONG, WHOLE, HALVES }; /* kinds of rows */
enum { ITEMS = NEAR_BATCH * NEAR_HEADS + 16, AHEAD_PAIRS = 12 };

INLINE wvec all(float x) { return x - (wvec){0}; }
INLINE void keep_whole(float *p, wvec x) { memcpy(p, &x, sizeof x); }

/* Lane i: the sum of x[i], or (8 vectors of 16 lanes) of octet i % 8 of them, low ones in lanes 0 to 7. */
INLINE wvec sums_of_8(wvec x[8])
{
    wvec two[4], four[2];
    UNROLL
    for (int i = 0; i < 4; i++)
        two[i] = FIRST(x[2 * i], x[2 * i + 1]) + SECOND(x[2 * i], x[2 * i + 1]);
    UNROLL
    for (int i = 0; i < 2; i++)
        four[i] = FIRST2(two[2 * i], two[2 * i + 1]) + SECOND2(two[2 * i], two[2 * i + 1]);
    return FIRST4(four[0], four[1]) + SECOND4(four[0], four[1]);
}

INLINE wvec sums_of_all(wvec x[SPREAD])
{
#if defined(__AVX512F__)
    const wvec a = sums_of_8(x), b = sums_of_8(x + 8);
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
#else
    return sums_of_8(x);
#endif
}

/* Lane i holds head i % heads. Every lane gets the largest, or the sum, of its head's lanes. */
INLINE wvec largest_of_head(wvec x, const int heads)
{
#if defined(__AVX512F__)
    if (heads <= 8)
        x = larger_of_two(x, ROTATE(x, 8));
#endif
    if (heads <= 4)
        x = larger_of_two(x, ROTATE(x, 4));
    if (heads <= 2)
        x = larger_of_two(x, ROTATE(x, 2));
    return heads == 1 ? larger_of_two(x, ROTATE(x, 1)) : x;
}
INLINE wvec sum_of_head(wvec x, const int heads)
{
#if defined(__AVX512F__)
    if (heads <= 8)
        x += ROTATE(x, 8);
#endif
    if (heads <= 4)
        x += ROTATE(x, 4);
    if (heads <= 2)
        x += ROTATE(x, 2);
    return heads == 1 ? x + ROTATE(x, 1) : x;
}

/* The rows that a later pair needs. */
INLINE void fetch_row(const float *row, int64_t floats)
{
    for (int64_t i = 0; i < floats; i += 16)
        __builtin_prefetch(row + i);
}

/* s[i][h] = x[h] . rows[keys[i]][h], fetching rows of pairs that come later, and their v on demand; the last pair is
 * repeated up to a multiple of SPREAD scores. */
INLINE void dots(float *s, const near_list *l, const float *x, const float *rows, int64_t stride, int32_t row,
                 const int heads, const int kind, const int fetch_values)
{
    const int together = SPREAD / heads; /* pairs */
    for (int32_t i = 0; i < l->count; i += together) {
        const float *at[SPREAD];
        wvec sum[SPREAD];
        UNROLL
        for (int p = 0; p < together; p++) {
            at[p] = rows + l->keys[i + p < l->count ? i + p : l->count - 1] * stride;
            if (i + p < l->count && i + p + AHEAD_PAIRS < l->ahead) {
                fetch_row(rows + l->keys[i + p + AHEAD_PAIRS] * stride, (int64_t)heads * row);
                if (fetch_values)
                    fetch_row(l->v + l->keys[i + p + AHEAD_PAIRS] * l->v_stride, (int64_t)heads * l->value_row);
            }
        }
#if defined(__AVX512F__)
        if (kind == HALVES) {
            UNROLL
            for (int j = 0; j < SPREAD / 2; j++)
                sum[j] = load_whole(at[2 * j / heads] + 2 * j % heads * 8) * load_whole(x + 2 * j % heads * 8);
            const wvec y = sums_of_8(sum);
            keep_whole(s + i * heads,
                       __builtin_shufflevector(y, y, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
            continue;
        }
#endif
        UNROLL
        for (int j = 0; j < SPREAD; j++)
            sum[j] = (wvec){0};
        for (int32_t d = 0; d < (kind == WHOLE ? SPREAD : row); d += SPREAD) {
            UNROLL
            for (int j = 0; j < SPREAD; j++) {
                const int32_t of = j % heads * (kind == WHOLE ? SPREAD : row) + d;
                sum[j] += kind == WHOLE ? load_whole(at[j / heads] + of) * load_whole(x + of)
                                        : load_some(at[j / heads] + of, row - d) * load_some(x + of, row - d);
            }
        }
        keep_whole(s + i * heads, sums_of_all(sum));
    }
}

/* out[h] += sum over i of factors[i * step][h] rows[tokens[i]][h] */
INLINE void add_rows(float *out, const float *factors, int64_t step, const int64_t *at, const float *rows,
                     int64_t stride, const int32_t *tokens, int32_t count, int32_t row, const int heads, const int kind)
{
    if (kind == LONG) {
        for (int h = 0; h < heads; h++)
            for (int32_t d = 0; d < row; d += 4 * SPREAD) {
                float *to = out + h * row + d;
                wvec sum[4] = {{0}};
                const int vectors = row - d >= 4 * SPREAD ? 4 : (row - d + SPREAD - 1) / SPREAD;
                for (int32_t i = 0; i < count; i++) {
                    const float *from = rows + tokens[i] * stride + h * row + d;
                    const wvec f = all(factors[(at ? at[i] : i) * step + h]);
                    for (int v = 0; v < vectors; v++)
                        sum[v] += f * load_some(from + v * SPREAD, row - d - v * SPREAD);
                }
                for (int v = 0; v < vectors; v++)
                    store_some(to + v * SPREAD, load_some(to + v * SPREAD, row - d - v * SPREAD) + sum[v],
                               row - d - v * SPREAD);
            }
        return;
    }
    const int vectors = kind == HALVES ? heads / 2 : heads;
    wvec sum[NEAR_HEADS];
    UNROLL
    for (int v = 0; v < vectors; v++)
        sum[v] = load_whole(out + v * SPREAD);
    for (int32_t i = 0; i < count; i++) {
        const float *from = rows + tokens[i] * stride, *f = factors + (at ? at[i] : i) * step;
        UNROLL
        for (int v = 0; v < vectors; v++) {
#if defined(__AVX512F__)
            if (kind == HALVES) {
                const __m512 low = _mm512_set1_ps(f[2 * v]), high = _mm512_set1_ps(f[2 * v + 1]);
                sum[v] += (wvec)_mm512_mask_mov_ps(low, 0xFF00, high) * load_whole(from + v * SPREAD);
                continue;
            }
#endif
            sum[v] += all(f[v]) * load_whole(from + v * SPREAD);
        }
    }
    UNROLL
    for (int v = 0; v < vectors; v++)
        keep_whole(out + v * SPREAD, sum[v]);
}

/* Biases of the pairs; -inf where scores are only repeated. */
INLINE int32_t biases(float *bias, const near_list *l, const int heads)
{
    const int32_t items = l->count * heads, all_items = (items + SPREAD - 1) / SPREAD * SPREAD;
    for (int32_t i = 0; i < l->count; i++)
        memcpy(bias + i * heads, l->table + l->codes[i] * heads, (size_t)heads * sizeof *bias);
    for (int32_t i = items; i < all_items; i++)
        bias[i] = -__builtin_inff();
    return all_items;
}

INLINE void forward(const near_list *l, const int heads, const int kind, const int value_kind)
{
    float s[ITEMS], bias[ITEMS];
    dots(s, l, l->q, l->k, l->k_stride, l->row, heads, kind, 1);
    const int32_t items = biases(bias, l, heads);
    const wvec old = load_whole(l->maximum);
    wvec top = old, sum = load_whole(l->sum);
    for (int32_t i = 0; i < items; i += SPREAD) {
        const wvec x = load_whole(s + i) * l->scale + load_whole(bias + i);
        keep_whole(s + i, x);
        top = larger_of_two(x, top);
    }
    top = largest_of_head(top, heads);
    if (!l->first && any_larger(top, old)) {
        float factors[SPREAD];
        keep_whole(factors, exponential_of(old - top));
        sum *= load_whole(factors);
        for (int h = 0; h < heads; h++)
            for (int32_t d = 0; d < l->value_row; d++)
                l->out[h * l->value_row + d] *= factors[h];
    }
    for (int32_t i = 0; i < items; i += SPREAD) {
        const wvec p = exponential_of(load_whole(s + i) - top);
        sum += p;
        keep_whole(s + i, l->keep ? p * load_whole(l->keep + i) : p);
    }
    keep_whole(l->maximum, top);
    keep_whole(l->sum, l->last ? sum_of_head(sum, heads) : sum);
    add_rows(l->out, s, heads, NULL, l->v, l->v_stride, l->keys, l->count, l->value_row, heads, value_kind);
}

INLINE void backward(const near_list *l, const int heads, const int kind, const int value_kind)
{
    float p[ITEMS], ds[ITEMS], bias[ITEMS];
    dots(p, l, l->q, l->k, l->k_stride, l->row, heads, kind, 0);
    dots(ds, l, l->dout, l->v, l->v_stride, l->value_row, heads, value_kind, 0);
    const int32_t items = biases(bias, l, heads);
    const wvec lse = load_whole(l->lse), delta = load_whole(l->delta);
    for (int32_t i = 0; i < items; i += SPREAD) {
        const wvec x = exponential_of((load_whole(p + i) * l->scale + load_whole(bias + i)) - lse);
        const wvec keep = l->keep ? load_whole(l->keep + i) : all(1);
        keep_whole(p + i, x * keep);
        keep_whole(ds + i, x * (load_whole(ds + i) * keep - delta));
    }
    for (int32_t i = 0; i < l->count; i++) {
        memcpy(l->p_ds + 2 * i * heads, p + i * heads, (size_t)heads * sizeof *p);
        memcpy(l->p_ds + (2 * i + 1) * heads, ds + i * heads, (size_t)heads * sizeof *ds);
    }
    if (l->table_sums)
        for (int32_t i = 0; i < l->count; i++)
            for (int h = 0; h < heads; h++)
                l->table_sums[(l->codes[i] * NEAR_SUMS + i % NEAR_SUMS) * heads + h] += ds[i * heads + h];
    if (l->dq)
        add_rows(l->dq, ds, heads, NULL, l->k, l->k_stride, l->keys, l->count, l->row, heads, kind);
}

INLINE void add(const near_sums *a, const int heads, const int kind, const int value_kind)
{
    enum { STEP = 4, DISTANCE = 16 };
    for (int32_t i = 0; i < a->count; i += STEP) {
        const int32_t count = a->count - i < STEP ? a->count - i : STEP;
        for (int32_t j = i + DISTANCE; j < i + DISTANCE + count && j < a->ahead; j++) {
            fetch_row(a->q + a->queries[j] * a->q_stride, heads * a->row);
            fetch_row(a->dout + a->queries[j] * a->dout_stride, heads * a->value_row);
            __builtin_prefetch(a->p_ds + 2 * a->at[j] * heads);
        }
        if (a->dk)
            add_rows(a->dk, a->p_ds + heads, 2 * heads, a->at + i, a->q, a->q_stride, a->queries + i, count, a->row,
                     heads, kind);
        if (a->dv)
            add_rows(a->dv, a->p_ds, 2 * heads, a->at + i, a->dout, a->dout_stride, a->queries + i, count, a->value_row,
                     heads, value_kind);
    }
}

static int kind_of(int32_t row, int32_t heads) { return row == SPREAD ? WHOLE : row == 8 && heads > 1 ? HALVES : LONG; }

/* work(l, heads, kind, kind) with what is usual as constants. */
#define DISPATCH(work, l, row, value_row)                                                                              \
    do {                                                                                                               \
        const int kind = kind_of(row, (l)->heads), value_kind = kind_of(value_row, (l)->heads);                        \
        if (kind == WHOLE && value_kind == WHOLE && (l)->heads == 4)                                                   \
            work(l, 4, WHOLE, WHOLE);                                                                                  \
        else if (kind == WHOLE && value_kind == WHOLE && (l)->heads == 8)                                              \
            work(l, 8, WHOLE, WHOLE);                                                                                  \
        else if (SPREAD == 16 && kind == HALVES && value_kind == HALVES && (l)->heads == 4)                            \
            work(l, 4, HALVES, HALVES);                                                                                \
        else if (SPREAD == 16 && kind == HALVES && value_kind == HALVES && (l)->heads == 8)                            \
            work(l, 8, HALVES, HALVES);                                                                                \
        else if ((l)->heads == 8)                                                                                      \
            work(l, 8, LONG, LONG);                                                                                    \
        else if ((l)->heads == 4)                                                                                      \
            work(l, 4, LONG, LONG);                                                                                    \
        else if ((l)->heads == 2)                                                                                      \
            work(l, 2, LONG, LONG);                                                                                    \
        else                                                                                                           \
            work(l, 1, LONG, LONG);                                                                                    \
    } while (0)

void KERNEL(mg_attn_near_forward)(const near_list *l) { DISPATCH(forward, l, l->row, l->value_row); }
void KERNEL(mg_attn_near_backward)(const near_list *l) { DISPATCH(backward, l, l->row, l->value_row); }
void KERNEL(mg_attn_near_add)(const near_sums *a) { DISPATCH(add, a, a->row, a->value_row); }

void KERNEL(mg_attn_near_delta)(float *delta, const float *out, const float *dout, int32_t row, int32_t heads)
{
    for (int32_t h = 0; h < heads; h++) {
        wvec sum = {0};
        for (int32_t d = 0; d < row; d += SPREAD)
            sum += load_some(out + h * row + d, row - d) * load_some(dout + h * row + d, row - d);
        delta[h] = sum_of_head(sum, 1)[0];
    }
}
