/* Sparse attention: some queries, or keys, with their listed tokens, for 1, 2, 4 or 8 heads at once, whose elements lie
 * side by side in a token's row. In products with rows, elements are in the lanes:
 *
 *     whole    a head has 1 vector       (row = SPREAD)
 *     halves   a vector has 2 heads      (row = 8, SPREAD 16)
 *     long     a head has some vectors   (the last may be half full)
 *
 * Scores stand pair by pair, heads side by side, and come SPREAD at once by a transposing sum. Exponentials too know no
 * queries; what is a query's own (bias, maximum, sum) goes pair by pair as an octet of `heads` lanes. The lanes beyond
 * hold the pairs that follow: what is stored there is written again by them, so stores go forward, never in place. */
#include "kernel.h"
#include "lanes.h"

#include <float.h>

void KERNEL(mg_attn_near_forward)(const near_list *l);
void KERNEL(mg_attn_near_backward)(const near_list *l);
void KERNEL(mg_attn_near_delta)(const near_delta *d);
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
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define SECOND(a, b) __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#define FIRST2(a, b) __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define SECOND2(a, b) __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define FIRST4(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define SECOND4(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
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
#define FIRST(a, b) __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
#define SECOND(a, b) __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15)
#define FIRST2(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define SECOND2(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define FIRST4(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define SECOND4(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#endif

enum { LONG, WHOLE, HALVES }; /* kinds of rows */
enum { ITEMS = NEAR_BATCH * NEAR_HEADS + NEAR_PAD, AHEAD_PAIRS = 12, AHEAD_TOKENS = 16 };

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

/* The rows that a later pair needs. */
INLINE void fetch_row(const float *row, int64_t floats)
{
    for (int64_t i = 0; i < floats; i += 16)
        __builtin_prefetch(row + i);
}

/* Pairs of rows whose products are wanted: x[i] and rows + at[i] * stride; both lists go on for SPREAD more. */
typedef struct row_pairs {
    const float *x[NEAR_BATCH + SPREAD];
    int32_t at[NEAR_BATCH + SPREAD];
    int32_t count;
} row_pairs;

/* x of each pair: its query's row. */
INLINE void set_queries(row_pairs *p, const near_list *l, const float *x, int64_t stride)
{
    for (int32_t j = 0; j < l->queries; j++)
        for (int32_t i = l->starts[j]; i < l->starts[j + 1]; i++)
            p->x[i] = x + j * stride;
    for (int i = 0; i < SPREAD; i++)
        p->x[l->count + i] = x;
}

INLINE void set_keys(row_pairs *p, const near_list *l)
{
    p->count = l->count;
    memcpy(p->at, l->keys, (size_t)l->count * sizeof *p->at);
    for (int i = 0; i < SPREAD; i++)
        p->at[l->count + i] = l->count ? l->keys[0] : 0;
}

/* k and v of the `together` pairs that come AHEAD_PAIRS after pair i. */
INLINE void fetch_ahead(const near_list *l, int32_t i, const int together, const int heads)
{
    if (i + together + AHEAD_PAIRS > l->ahead)
        return;
    UNROLL
    for (int p = 0; p < together; p++) {
        const int64_t key = l->keys[i + p + AHEAD_PAIRS];
        fetch_row(l->k + key * l->k_stride, (int64_t)heads * l->row);
        fetch_row(l->v + key * l->v_stride, (int64_t)heads * l->value_row);
    }
}

/* s[i][h] = x[i][h] . rows[at[i]][h], up to a multiple of SPREAD scores; fetches what `ahead` names, unless NULL. */
INLINE void dots(float *s, const row_pairs *p, const float *rows, int64_t stride, int32_t row, const int heads,
                 const int kind, const near_list *ahead)
{
    const int together = SPREAD / heads; /* pairs */
    for (int32_t i = 0; i < p->count; i += together) {
        const float *a[SPREAD], *b[SPREAD];
        wvec sum[SPREAD];
        if (ahead)
            fetch_ahead(ahead, i, together, heads);
        UNROLL
        for (int j = 0; j < together; j++) {
            a[j] = p->x[i + j];
            b[j] = rows + p->at[i + j] * stride;
        }
#if defined(__AVX512F__)
        if (kind == HALVES) {
            UNROLL
            for (int j = 0; j < SPREAD / 2; j++)
                sum[j] =
                    load_whole(b[2 * j / heads] + 2 * j % heads * 8) * load_whole(a[2 * j / heads] + 2 * j % heads * 8);
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
                sum[j] += kind == WHOLE ? load_whole(a[j / heads] + of) * load_whole(b[j / heads] + of)
                                        : load_some(a[j / heads] + of, row - d) * load_some(b[j / heads] + of, row - d);
            }
        }
        keep_whole(s + i * heads, sums_of_all(sum));
    }
}

/* Tokens of a list with a factor for each head, to be added up. */
typedef struct weighted_rows {
    const float *factors; /* [][step] */
    const int64_t *at;    /* of the factors, or NULL: side by side */
    int64_t step;
    const float *rows;
    int64_t stride;
    const int32_t *tokens;
    int64_t count, ahead; /* tokens up to `ahead` come next and are fetched */
} weighted_rows;

INLINE const float *factors_of(const weighted_rows *r, int64_t i)
{
    return r->factors + (r->at ? r->at[i] : i) * r->step;
}
/* `floats` of the row, from d on, that comes AHEAD_TOKENS after row i, and its factors. */
INLINE void fetch_token(const weighted_rows *r, int64_t i, int32_t d, int64_t floats)
{
    if (i + AHEAD_TOKENS >= r->ahead)
        return;
    fetch_row(r->rows + r->tokens[i + AHEAD_TOKENS] * r->stride + d, floats);
    __builtin_prefetch(factors_of(r, i + AHEAD_TOKENS));
}

/* What a vector of a whole or half row is multiplied by. */
INLINE wvec factor_of(const float *f, int v, const int kind)
{
#if defined(__AVX512F__)
    if (kind == HALVES)
        return (wvec)_mm512_mask_mov_ps(_mm512_set1_ps(f[2 * v]), 0xFF00, _mm512_set1_ps(f[2 * v + 1]));
#endif
    (void)kind;
    return all(f[v]);
}

INLINE void add_long_rows(float *out, const float *old, const float *new, const weighted_rows *r, int32_t row,
                          const int heads)
{
    enum { VECTORS = 4 };
    for (int h = 0; h < heads; h++)
        for (int32_t d = 0; d < row; d += VECTORS * SPREAD) {
            const int vectors = row - d >= VECTORS * SPREAD ? VECTORS : (row - d + SPREAD - 1) / SPREAD;
            float *to = out + h * row + d;
            wvec sum[VECTORS] = {{0}};
            for (int64_t i = 0; i < r->count; i++) {
                const float *from = r->rows + r->tokens[i] * r->stride + h * row + d;
                fetch_token(r, i, h * row + d, row - d < VECTORS * SPREAD ? row - d : VECTORS * SPREAD);
                const wvec f = all(factors_of(r, i)[h]);
                for (int v = 0; v < vectors; v++)
                    sum[v] += f * load_some(from + v * SPREAD, row - d - v * SPREAD);
            }
            for (int v = 0; v < vectors; v++) {
                const int32_t left = row - d - v * SPREAD;
                wvec x = sum[v] * new[h];
                if (old)
                    x += load_some(to + v * SPREAD, left) * old[h];
                store_some(to + v * SPREAD, x, left);
            }
        }
}

/* out[h] = old[h] out[h] + new[h] (sum of factors[h] rows[h]); old NULL: 0 */
INLINE void add_rows(float *out, const float *old, const float *new, const weighted_rows *r, int32_t row,
                     const int heads, const int kind)
{
    const int vectors = kind == HALVES ? heads / 2 : heads;
    wvec sum[NEAR_HEADS];
    if (kind == LONG) {
        add_long_rows(out, old, new, r, row, heads);
        return;
    }
    UNROLL
    for (int v = 0; v < vectors; v++)
        sum[v] = (wvec){0};
    for (int64_t i = 0; i < r->count; i++) {
        const float *from = r->rows + r->tokens[i] * r->stride, *f = factors_of(r, i);
        fetch_token(r, i, 0, vectors * SPREAD);
        UNROLL
        for (int v = 0; v < vectors; v++)
            sum[v] += factor_of(f, v, kind) * load_whole(from + v * SPREAD);
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        wvec x = sum[v] * factor_of(new, v, kind);
        if (old)
            x += load_whole(out + v * SPREAD) * factor_of(old, v, kind);
        keep_whole(out + v * SPREAD, x);
    }
}

INLINE octet bias_of(const near_list *l, int32_t i, const int heads)
{
    return load8(l->bias ? l->bias + i * heads : l->table + l->codes[i] * heads);
}

INLINE void forward(const near_list *l, const int heads, const int kind, const int value_kind)
{
    float a[ITEMS], b[ITEMS], old[NEAR_HEADS], new[NEAR_HEADS];
    row_pairs pairs;
    set_keys(&pairs, l);
    set_queries(&pairs, l, l->q, l->q_stride);
    dots(a, &pairs, l->k, l->k_stride, l->row, heads, kind, l);
    for (int32_t j = 0; j < l->queries; j++) {
        const octet before = l->first ? splat8(-FLT_MAX) : load8(l->maximum + j * heads);
        octet top = before;
        for (int32_t i = l->starts[j]; i < l->starts[j + 1]; i++) {
            const octet x = load8(a + i * heads) * l->scale + bias_of(l, i, heads);
            store8(b + i * heads, x);
            top = larger8(x, top);
        }
        store8(l->maximum + j * heads, top);
        store8(old, exponential8(before - top));
    }
    for (int32_t j = 0; j < l->queries; j++)
        for (int32_t i = l->starts[j]; i < l->starts[j + 1]; i++)
            store8(a + i * heads, load8(b + i * heads) - load8(l->maximum + j * heads));
    for (int32_t i = 0; i < l->count * heads; i += SPREAD)
        keep_whole(b + i, exponential_of(load_whole(a + i)));
    for (int32_t i = 0; i < l->count * heads && l->keep; i += SPREAD)
        keep_whole(a + i, load_whole(b + i) * load_whole(l->keep + i));
    for (int32_t j = 0; j < l->queries; j++) {
        octet sum = l->first ? splat8(0) : load8(l->sum) * load8(old);
        for (int32_t i = l->starts[j]; i < l->starts[j + 1]; i++)
            sum += load8(b + i * heads);
        store8(l->sum + j * heads, sum);
        const octet share = l->last ? (octet)((ioctet)(1 / sum) & (sum != splat8(0))) : splat8(1);
        store8(new, share);
        store8(old, load8(old) * share);
        const weighted_rows rows = {.factors = (l->keep ? a : b) + l->starts[j] * heads,
                                    .step = heads,
                                    .rows = l->v,
                                    .stride = l->v_stride,
                                    .tokens = l->keys + l->starts[j],
                                    .count = l->starts[j + 1] - l->starts[j]};
        add_rows(l->out + j * l->out_stride, l->first ? NULL : old, new, &rows, l->value_row, heads, value_kind);
    }
}

INLINE void backward(const near_list *l, const int heads, const int kind, const int value_kind)
{
    float a[ITEMS], b[ITEMS], p_ds[2 * ITEMS], new[NEAR_HEADS];
    const float one[NEAR_HEADS] = {1, 1, 1, 1, 1, 1, 1, 1};
    row_pairs pairs;
    set_keys(&pairs, l);
    set_queries(&pairs, l, l->q, l->q_stride);
    dots(a, &pairs, l->k, l->k_stride, l->row, heads, kind, l);
    for (int32_t j = 0; j < l->queries; j++)
        for (int32_t i = l->starts[j]; i < l->starts[j + 1]; i++)
            store8(b + i * heads, (load8(a + i * heads) * l->scale + bias_of(l, i, heads)) - load8(l->lse + j * heads));
    set_queries(&pairs, l, l->dout, l->dout_stride);
    dots(a, &pairs, l->v, l->v_stride, l->value_row, heads, value_kind, NULL);
    for (int32_t i = 0; i < l->count * heads; i += SPREAD)
        keep_whole(b + i, exponential_of(load_whole(b + i)));
    for (int32_t j = 0; j < l->queries; j++)
        for (int32_t i = l->starts[j]; i < l->starts[j + 1]; i++) {
            const octet keep = l->keep ? load8(l->keep + i * heads) : splat8(1), p = load8(b + i * heads);
            const octet ds = p * (load8(a + i * heads) * keep - load8(l->delta + j * heads));
            store8(p_ds + 2 * i * heads, p * keep);
            store8(p_ds + (2 * i + 1) * heads, ds);
            if (l->table_sums) {
                float *sum = l->table_sums + (l->codes[i] * NEAR_SUMS + i % NEAR_SUMS) * NEAR_HEADS;
                store8(sum, load8(sum) + ds);
            }
        }
    memcpy(l->p_ds, p_ds, (size_t)(2 * l->count * heads) * sizeof *p_ds);
    store8(new, splat8(l->scale));
    for (int32_t j = 0; j < l->queries && l->dq; j++) {
        const weighted_rows rows = {.factors = p_ds + (2 * l->starts[j] + 1) * heads,
                                    .step = 2 * heads,
                                    .rows = l->k,
                                    .stride = l->k_stride,
                                    .tokens = l->keys + l->starts[j],
                                    .count = l->starts[j + 1] - l->starts[j]};
        add_rows(l->dq + j * l->dq_stride, l->add ? one : NULL, new, &rows, l->row, heads, kind);
    }
}

INLINE void delta(const near_delta *d, const int heads, const int kind, const int value_kind)
{
    row_pairs pairs = {.count = d->queries};
    float sums[ITEMS];
    (void)value_kind;
    for (int32_t j = 0; j < d->queries + SPREAD; j++) {
        pairs.at[j] = j < d->queries ? j : 0;
        pairs.x[j] = d->out + pairs.at[j] * d->out_stride;
    }
    dots(sums, &pairs, d->dout, d->dout_stride, d->value_row, heads, kind, NULL);
    memcpy(d->delta, sums, (size_t)(d->queries * heads) * sizeof *sums);
}

INLINE void add(const near_sums *a, const int heads, const int kind, const int value_kind)
{
    float scale[NEAR_HEADS];
    const float one[NEAR_HEADS] = {1, 1, 1, 1, 1, 1, 1, 1};
    store8(scale, splat8(a->scale));
    for (int32_t j = 0; j < a->keys; j++) {
        const int64_t from = a->starts[j], to = a->starts[j + 1];
        weighted_rows rows = {.factors = a->p_ds,
                              .at = a->at + from,
                              .step = 2 * heads,
                              .rows = a->dout,
                              .stride = a->dout_stride,
                              .tokens = a->queries + from,
                              .count = to - from,
                              .ahead = a->ahead - from};
        if (a->dv)
            add_rows(a->dv + j * a->dv_stride, a->add ? one : NULL, one, &rows, a->value_row, heads, value_kind);
        rows.factors += heads;
        rows.rows = a->q;
        rows.stride = a->q_stride;
        if (a->dk)
            add_rows(a->dk + j * a->dk_stride, a->add ? one : NULL, scale, &rows, a->row, heads, kind);
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

void KERNEL(mg_attn_near_delta)(const near_delta *d) { DISPATCH(delta, d, d->value_row, d->value_row); }
