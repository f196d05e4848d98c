/* Sparse attention: some queries, or keys, with their listed tokens, for 1, 2, 4 or 8 heads at once, whose elements lie
 * side by side in a token's row. In products with rows, elements are in the lanes:
 *
 *     1, 2, 4  so many vectors are a head   (row = SPREAD, ...)
 *     halves   a vector has 2 heads         (row = 8, SPREAD 16)
 *     any      a head has some vectors      (the last may be half full)
 *
 * Scores stand pair by pair, heads side by side, and come SPREAD at once by a transposing sum, whatever their queries.
 * What is a query's own (maximum, sum, exponentials) goes by vectors from its first score; the lanes beyond its last
 * hold what follows and is written again by its owner, so stores go forward, never in place. */
#include "kernel.h"
#include "near_lanes.h"

#include <float.h>
#include <math.h>

void KERNEL(mg_attn_near_forward)(const near_list *l);
void KERNEL(mg_attn_near_backward)(const near_list *l);
void KERNEL(mg_attn_near_delta)(const near_delta *d);
void KERNEL(mg_attn_near_add)(const near_sums *a);

enum { ANY = 0, HALVES = -1 }; /* kinds of rows; else the vectors of a head */
enum { ITEMS = NEAR_BATCH * NEAR_HEADS + NEAR_PAD, AHEAD_PAIRS = 64, AHEAD_TOKENS = 64, AHEAD_KEYS = 4, FEW_CODES = 4 };
#define ALIGNED __attribute__((aligned(64)))

/* The rows that a later pair needs, to the second cache: fetched to the first they took longer on Zen 4 (README.md). */
INLINE void fetch_row(const float *row, int32_t floats)
{
    UNROLL
    for (int32_t i = 0; i < floats; i += 16)
        __builtin_prefetch(row + i, 0, 2);
}

/* Pairs of rows whose products are wanted: x[i] and rows + at[i] * stride; both lists go on for SPREAD more. */
typedef struct row_pairs {
    const float *x[NEAR_BATCH + SPREAD];
    const int32_t *at;
    int32_t count;
} row_pairs;
typedef int64_t addresses __attribute__((vector_size(64)));

/* x of each pair: its query's row. */
INLINE void set_queries(row_pairs *p, const near_list *l, const float *x, int64_t stride)
{
    for (int32_t j = 0; j < l->queries; j++) {
        const addresses row = (int64_t)(x + j * stride) - (addresses){0};
        for (int32_t i = l->starts[j]; i < l->starts[j + 1]; i += 8)
            memcpy(p->x + i, &row, sizeof row);
    }
    for (int i = 0; i < SPREAD; i++)
        p->x[l->count + i] = x;
}

/* Floats of a token, in a constant where they are one. */
INLINE int32_t width_of(int32_t row, const int heads, const int kind)
{
    return heads * (kind > 0 ? kind * SPREAD : kind == HALVES ? 8 : row);
}

/* Rows of the `together` pairs that come AHEAD_PAIRS after the pair of these keys. Each walk fetches what it reads
 * itself: lines come slower than they can be asked for, and are waited for while the walk computes. */
INLINE void fetch_ahead(const float *rows, int64_t stride, const int32_t *keys, const int together, int32_t width)
{
    UNROLL
    for (int p = 0; p < together; p++)
        fetch_row(rows + keys[p + AHEAD_PAIRS] * stride, width);
}

/* Rows that the next batch will read or write, if it has as many queries as this one. */
INLINE void fetch_next(const float *rows, int64_t stride, int32_t queries, int32_t width)
{
    for (int32_t j = queries; j < 2 * queries; j++)
        fetch_row(rows + j * stride, width);
}

/* Of pairs i and on. In registers where the whole table is; else a load for a pair, or for each score. */
INLINE wvec biases_of(const near_list *l, int32_t i, const int heads, const int small, lookup_table table)
{
    (void)table, (void)small;
    if (l->bias)
        return load_whole(l->bias + i * heads);
    const uint8_t *codes = l->codes + i;
    const wivec lanes = LANE_NUMBERS, at = codes_of(codes, heads) * heads + (lanes & (heads - 1));
#if defined(__AVX512F__)
    if (small)
        return (wvec)_mm512_permutex2var_ps(table.low, (__m512i)at, table.high);
    if (heads == 8)
        return (wvec)_mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(l->table + codes[0] * 8)),
                                        _mm256_loadu_ps(l->table + codes[1] * 8), 1);
    return (wvec)_mm512_i32gather_ps((__m512i)at, l->table, 4);
#elif defined(__AVX2__)
    if (heads == 8)
        return load8(l->table + codes[0] * 8);
    return (wvec)_mm256_i32gather_ps(l->table, (__m256i)at, 4);
#else
    wvec x;
    for (int h = 0; h < SPREAD; h++)
        x[h] = l->table[at[h]];
    return x;
#endif
}

/* x[i][h] . rows[at[i]][h] of the pairs of a vector. */
INLINE wvec products(const float *const *x, const int32_t *at, const float *rows, int64_t stride, int32_t row,
                     const int heads, const int kind)
{
    const float *b[SPREAD];
    wvec sum[SPREAD];
    for (int j = 0; j < SPREAD / heads; j++)
        b[j] = rows + at[j] * stride;
#if defined(__AVX512F__)
    if (kind == HALVES) {
        UNROLL
        for (int j = 0; j < SPREAD / 2; j++)
            sum[j] =
                load_whole(b[2 * j / heads] + 2 * j % heads * 8) * load_whole(x[2 * j / heads] + 2 * j % heads * 8);
        const wvec y = sums_of_8(sum);
        return __builtin_shufflevector(y, y, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    }
#endif
    UNROLL
    for (int j = 0; j < SPREAD; j++)
        sum[j] = (wvec){0};
    for (int32_t d = 0; d < (kind > 0 ? kind * SPREAD : row); d += SPREAD) {
        UNROLL
        for (int j = 0; j < SPREAD; j++) {
            const int32_t of = j % heads * (kind > 0 ? kind * SPREAD : row) + d;
            sum[j] += kind > 0 ? load_whole(x[j / heads] + of) * load_whole(b[j / heads] + of)
                               : load_some(x[j / heads] + of, row - d) * load_some(b[j / heads] + of, row - d);
        }
    }
    return sums_of_all(sum);
}

/* y[i][h] = scale q . k + bias of all pairs, up to a multiple of SPREAD; the rows that come next are fetched. */
INLINE void scores(float *y, const near_list *l, row_pairs *p, const int heads, const int kind)
{
    const int together = SPREAD / heads, small = SPREAD == 16 && l->code_count * heads <= 32;
    lookup_table table = {0};
    p->at = l->keys, p->count = l->count;
    set_queries(p, l, l->q, l->q_stride);
#if defined(__AVX512F__)
    const int entries = l->code_count * heads;
    if (small) {
        table.low = _mm512_maskz_loadu_ps((__mmask16)_bzhi_u32(0xFFFF, entries < 16 ? entries : 16), l->table);
        table.high =
            _mm512_maskz_loadu_ps((__mmask16)_bzhi_u32(0xFFFF, entries > 16 ? entries - 16 : 0), l->table + 16);
    }
#endif
    for (int32_t i = 0; i < l->count; i += together) {
        if (i + together + AHEAD_PAIRS <= l->ahead)
            fetch_ahead(l->k, l->k_stride, l->keys + i, together, width_of(l->row, heads, kind));
        const wvec s = products(p->x + i, p->at + i, l->k, l->k_stride, l->row, heads, kind);
        keep_whole(y + i * heads, s * l->scale + biases_of(l, i, heads, small, table));
    }
}

/* s[i][h] = x[i][h] . rows[at[i]][h], up to a multiple of SPREAD scores; rows of pairs up to `ahead` are fetched. */
INLINE void dots(float *s, const row_pairs *p, const float *rows, int64_t stride, int64_t ahead, int32_t row,
                 const int heads, const int kind)
{
    const int together = SPREAD / heads;
    for (int32_t i = 0; i < p->count; i += together) {
        if (i + together + AHEAD_PAIRS <= ahead)
            fetch_ahead(rows, stride, p->at + i, together, width_of(row, heads, kind));
        keep_whole(s + i * heads, products(p->x + i, p->at + i, rows, stride, row, heads, kind));
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
    if (r->at)
        __builtin_prefetch(factors_of(r, i + AHEAD_TOKENS), 0, 2);
}

/* What vector v of a row is multiplied by. */
INLINE wvec factor_of(const float *f, int v, const int heads, const int kind)
{
#if defined(__AVX512F__)
    if (kind == HALVES) {
        const __m512 all_heads =
            heads == 8 ? _mm512_castps256_ps512(_mm256_loadu_ps(f)) : _mm512_castps128_ps512(_mm_loadu_ps(f));
        return (wvec)_mm512_permutexvar_ps((__m512i)((wivec)LANE_NUMBERS / 8 + 2 * v), all_heads);
    }
#endif
    (void)heads;
    return all(f[kind > 1 ? v / kind : v]);
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

/* out[h] = old[h] out[h] + new[h] (sum of factors[h] rows[h]); old NULL: 0, then out may go past the cache */
INLINE void add_rows(float *out, const float *old, const float *new, const weighted_rows *r, int32_t row,
                     const int heads, const int kind, const int past)
{
    const int vectors = width_of(row, heads, kind) / SPREAD;
    wvec sum[MOST_VECTORS];
    if (kind == ANY) {
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
            sum[v] += factor_of(f, v, heads, kind) * load_whole(from + v * SPREAD);
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        wvec x = sum[v] * factor_of(new, v, heads, kind);
        if (old)
            x += load_whole(out + v * SPREAD) * factor_of(old, v, heads, kind);
        keep_result(out + v * SPREAD, x, past && !old);
    }
}

/* exp(y - top) of a query's scores to p, also times what is kept; the sum of each lane */
INLINE wvec probabilities(float *p, float *kept, const float *y, wvec top, const float *keep, int32_t from, int32_t to)
{
    wvec sum = {0};
    for (int32_t i = from; i < to; i += SPREAD) {
        const wvec e = only(exponential_of(load_whole(y + i) - top), to - i, (wvec){0});
        sum += e;
        keep_whole(p + i, e);
        if (keep)
            keep_whole(kept + i, e * load_whole(keep + i));
    }
    return sum;
}

INLINE void forward(const near_list *l, const int heads, const int kind)
{
    float a[ITEMS] ALIGNED, b[ITEMS] ALIGNED, c[ITEMS] ALIGNED;
    row_pairs pairs;
    scores(a, l, &pairs, heads, kind);
    for (int32_t j = 0; j < l->queries; j++) {
        const int32_t from = l->starts[j] * heads, to = l->starts[j + 1] * heads;
        const wvec before = l->first ? all(-FLT_MAX) : repeat(l->maximum, heads);
        float old[SPREAD], new[SPREAD];
        wvec top = before, was = {0}, sum;
        for (int32_t i = from; i < to; i += SPREAD)
            top = larger_of_both(only(load_whole(a + i), to - i, before), top);
        top = largest_of_pairs(top, heads);
        sum = sum_of_pairs(probabilities(b, c, a, top, l->keep, from, to), heads);
        if (!l->first) {
            was = exponential_of(before - top);
            sum += repeat(l->sum, heads) * was;
        }
        keep_heads(l->maximum + j * heads, top, heads);
        keep_heads(l->sum + j * heads, sum, heads);
        const wvec share = l->last ? (wvec)((wivec)(1 / sum) & (sum != (wvec){0})) : all(1);
        keep_whole(new, share);
        keep_whole(old, was * share);
        const weighted_rows rows = {.factors = (l->keep ? c : b) + from,
                                    .step = heads,
                                    .rows = l->v,
                                    .stride = l->v_stride,
                                    .tokens = l->keys + l->starts[j],
                                    .count = l->starts[j + 1] - l->starts[j],
                                    .ahead = l->ahead - l->starts[j]};
        add_rows(l->out + j * l->out_stride, l->first ? NULL : old, new, &rows, l->value_row, heads, kind,
                 l->rows_past);
    }
    for (int32_t i = 0; i < l->queries * heads && l->last && l->log_sums; i += SPREAD) {
        const wvec sum = load_whole(l->sum + i), log_sum = load_whole(l->maximum + i) + logarithm(sum);
        const wivec none = sum == (wvec){0};
        keep_whole(l->log_sums + i, (wvec)(((wivec)log_sum & ~none) | ((wivec)all(-INFINITY) & none)));
    }
}

INLINE void keep_pair(float *to, const float *p, const float *ds, const int heads)
{
    memcpy(to, p, (size_t)heads * sizeof *to);
    memcpy(to + heads, ds, (size_t)heads * sizeof *to);
}

/* to [pairs][2][heads], not beyond; past the cache from the first whole line on */
INLINE void keep_both(float *to, const float *p, const float *ds, int32_t pairs, const int heads, const int past)
{
    const float *const end = p + pairs * heads;
#if defined(__AVX512F__)
    const wivec lanes = LANE_NUMBERS;
    const wivec low = lanes / heads % 2 * 16 + lanes / (2 * heads) * heads + (lanes & (heads - 1)), high = low + 8;
    for (; p < end && past && (uintptr_t)to % 64; p += heads, ds += heads, to += 2 * heads)
        keep_pair(to, p, ds, heads);
    for (; p + SPREAD <= end; p += SPREAD, ds += SPREAD, to += 2 * SPREAD) {
        const __m512 x = (__m512)load_whole(p), y = (__m512)load_whole(ds);
        keep_result(to, (wvec)_mm512_permutex2var_ps(x, (__m512i)low, y), past);
        keep_result(to + SPREAD, (wvec)_mm512_permutex2var_ps(x, (__m512i)high, y), past);
    }
#endif
    (void)past;
    for (; p < end; p += heads, ds += heads, to += 2 * heads)
        keep_pair(to, p, ds, heads);
}

INLINE void backward(const near_list *l, const int heads, const int kind)
{
    float a[ITEMS] ALIGNED, b[ITEMS] ALIGNED, p[ITEMS] ALIGNED, ds[ITEMS] ALIGNED, new[SPREAD];
    const float one[NEAR_HEADS] = {1, 1, 1, 1, 1, 1, 1, 1};
    const int few = l->table_sums && l->code_count <= FEW_CODES;
    const int p_ds_past = l->p_ds_past && SPREAD == 16, dq_past = l->rows_past && kind != ANY;
    row_pairs pairs;
    wvec of_code[FEW_CODES];
    UNROLL
    for (int code = 0; code < FEW_CODES; code++)
        of_code[code] = (wvec){0};
    fetch_next(l->q, l->q_stride, l->queries, width_of(l->row, heads, kind));
    fetch_next(l->dout, l->dout_stride, l->queries, width_of(l->value_row, heads, kind));
    if (l->dq && !dq_past)
        fetch_next(l->dq, l->dq_stride, l->queries, width_of(l->row, heads, kind));
    if (!p_ds_past)
        fetch_next(l->p_ds, 2 * heads, l->count, 2 * heads);
    scores(a, l, &pairs, heads, kind);
    set_queries(&pairs, l, l->dout, l->dout_stride);
    dots(b, &pairs, l->v, l->v_stride, l->ahead, l->value_row, heads, kind);
    keep_whole(new, all(l->scale));
    for (int32_t j = 0; j < l->queries; j++) {
        const int32_t from = l->starts[j] * heads, to = l->starts[j + 1] * heads;
        const wvec lse = repeat(l->lse + j * heads, heads), delta = repeat(l->delta + j * heads, heads);
        for (int32_t i = from; i < to; i += SPREAD) {
            const wvec keep = l->keep ? load_whole(l->keep + i) : all(1);
            const wvec e = exponential_of(load_whole(a + i) - lse);
            const wvec d = only(e * (load_whole(b + i) * keep - delta), to - i, (wvec){0});
            keep_whole(p + i, e * keep);
            keep_whole(ds + i, d);
            if (!few)
                continue;
            const wivec codes = codes_of(l->codes + i / heads, heads);
            UNROLL
            for (int code = 0; code < FEW_CODES; code++)
                of_code[code] = add_of_code(of_code[code], codes, code, d);
        }
    }
    for (int32_t j = 0; j < l->queries && l->dq; j++) {
        const weighted_rows rows = {.factors = ds + l->starts[j] * heads,
                                    .step = heads,
                                    .rows = l->k,
                                    .stride = l->k_stride,
                                    .tokens = l->keys + l->starts[j],
                                    .count = l->starts[j + 1] - l->starts[j]};
        add_rows(l->dq + j * l->dq_stride, l->add ? one : NULL, new, &rows, l->row, heads, kind, dq_past);
    }
    keep_both(l->p_ds, p, ds, l->count, heads, p_ds_past);
    UNROLL
    for (int code = 0; code < FEW_CODES; code++)
        if (few && code < l->code_count)
            keep_whole(l->table_sums + code * NEAR_SUMS, load_whole(l->table_sums + code * NEAR_SUMS) + of_code[code]);
    for (int32_t i = 0; i < l->count && l->table_sums && !few; i++) {
        float *sum = l->table_sums + l->codes[i] * NEAR_SUMS + i % (NEAR_SUMS / NEAR_HEADS) * heads;
        UNROLL
        for (int h = 0; h < heads; h++)
            sum[h] += ds[i * heads + h];
    }
}

INLINE void delta(const near_delta *d, const int heads, const int kind)
{
    int32_t at[NEAR_BATCH + SPREAD];
    row_pairs pairs = {.at = at, .count = d->queries};
    float sums[ITEMS] ALIGNED;
    for (int32_t j = 0; j < d->queries + SPREAD; j++) {
        at[j] = j < d->queries ? j : 0;
        pairs.x[j] = d->out + at[j] * d->out_stride;
    }
    fetch_next(d->out, d->out_stride, d->queries, width_of(d->value_row, heads, kind));
    dots(sums, &pairs, d->dout, d->dout_stride, 0, d->value_row, heads, kind);
    memcpy(d->delta, sums, (size_t)(d->queries * heads) * sizeof *sums);
}

/* Both sums of a key at once: short lists are walked once. */
INLINE void add_to_both(float *dk, float *dv, const float *old, const near_sums *a, int64_t from, int64_t to,
                        const int heads, const int kind)
{
    const int vectors = width_of(0, heads, kind) / SPREAD;
    wvec k[MOST_VECTORS], v[MOST_VECTORS];
    UNROLL
    for (int i = 0; i < vectors; i++)
        k[i] = v[i] = (wvec){0};
    for (int64_t at = from; at < to; at++) {
        const float *p = a->p_ds + 2 * heads * a->at[at], *q = a->q + a->queries[at] * a->q_stride,
                    *dout = a->dout + a->queries[at] * a->dout_stride;
        if (at + AHEAD_TOKENS < a->ahead) {
            const int64_t token = a->queries[at + AHEAD_TOKENS];
            fetch_row(a->q + token * a->q_stride, vectors * SPREAD);
            fetch_row(a->dout + token * a->dout_stride, vectors * SPREAD);
            __builtin_prefetch(a->p_ds + 2 * heads * a->at[at + AHEAD_TOKENS], 0, 2);
        }
        UNROLL
        for (int i = 0; i < vectors; i++) {
            v[i] += factor_of(p, i, heads, kind) * load_whole(dout + i * SPREAD);
            k[i] += factor_of(p + heads, i, heads, kind) * load_whole(q + i * SPREAD);
        }
    }
    UNROLL
    for (int i = 0; i < vectors; i++) {
        k[i] *= a->scale;
        keep_result(dv + i * SPREAD, old ? v[i] + load_whole(dv + i * SPREAD) : v[i], a->rows_past && !old);
        keep_result(dk + i * SPREAD, old ? k[i] + load_whole(dk + i * SPREAD) : k[i], a->rows_past && !old);
    }
}

INLINE void add(const near_sums *a, const int heads, const int kind)
{
    float scale[NEAR_HEADS];
    const int past = a->rows_past && kind != ANY;
    const float one[NEAR_HEADS] = {1, 1, 1, 1, 1, 1, 1, 1};
    store8(scale, splat8(a->scale));
    for (int32_t j = 0; j < a->keys; j++) {
        const int64_t from = a->starts[j], to = a->starts[j + 1];
        if (a->dk && !past)
            fetch_row(a->dk + (j + AHEAD_KEYS) * a->dk_stride, width_of(a->row, heads, kind));
        if (a->dv && !past)
            fetch_row(a->dv + (j + AHEAD_KEYS) * a->dv_stride, width_of(a->value_row, heads, kind));
        if (kind != ANY && width_of(0, heads, kind) <= MOST_VECTORS / 2 * SPREAD && a->dk && a->dv) {
            add_to_both(a->dk + j * a->dk_stride, a->dv + j * a->dv_stride, a->add ? one : NULL, a, from, to, heads,
                        kind);
            continue;
        }
        weighted_rows rows = {.factors = a->p_ds,
                              .at = a->at + from,
                              .step = 2 * heads,
                              .rows = a->dout,
                              .stride = a->dout_stride,
                              .tokens = a->queries + from,
                              .count = to - from,
                              .ahead = a->ahead - from};
        if (a->dv)
            add_rows(a->dv + j * a->dv_stride, a->add ? one : NULL, one, &rows, a->value_row, heads, kind, past);
        rows.factors += heads;
        rows.rows = a->q;
        rows.stride = a->q_stride;
        if (a->dk)
            add_rows(a->dk + j * a->dk_stride, a->add ? one : NULL, scale, &rows, a->row, heads, kind, past);
    }
}

/* Of q, k and of v, which are ANY where they are not the same. */
static int kind_of(int32_t row, int32_t value_row, int32_t heads)
{
    if (row != value_row || heads == 1)
        return ANY;
    if (SPREAD == 16 && row == 8)
        return HALVES;
    const int vectors = row / SPREAD, one = row % SPREAD == 0 && (vectors == 1 || vectors == 2 || vectors == 4);
    return one && heads * vectors <= MOST_VECTORS ? vectors : ANY;
}

/* work(l, heads, kind) with what is usual as constants. */
#define DISPATCH(work, l, row, value_row)                                                                              \
    do {                                                                                                               \
        const int kind = kind_of(row, value_row, (l)->heads), heads = (l)->heads;                                      \
        if (heads == 8 && kind == 1)                                                                                   \
            work(l, 8, 1);                                                                                             \
        else if (heads == 4 && kind == 1)                                                                              \
            work(l, 4, 1);                                                                                             \
        else if (heads == 8 && kind == HALVES)                                                                         \
            work(l, 8, HALVES);                                                                                        \
        else if (heads == 4 && kind == HALVES)                                                                         \
            work(l, 4, HALVES);                                                                                        \
        else if (MOST_VECTORS == 16 && heads == 8 && kind == 2)                                                        \
            work(l, 8, 2);                                                                                             \
        else if (heads == 4 && kind == 2)                                                                              \
            work(l, 4, 2);                                                                                             \
        else if (heads == 2 && kind == 4)                                                                              \
            work(l, 2, 4);                                                                                             \
        else if (heads == 8)                                                                                           \
            work(l, 8, ANY);                                                                                           \
        else if (heads == 4)                                                                                           \
            work(l, 4, ANY);                                                                                           \
        else if (heads == 2)                                                                                           \
            work(l, 2, ANY);                                                                                           \
        else                                                                                                           \
            work(l, 1, ANY);                                                                                           \
    } while (0)

void KERNEL(mg_attn_near_forward)(const near_list *l) { DISPATCH(forward, l, l->row, l->value_row); }
void KERNEL(mg_attn_near_backward)(const near_list *l) { DISPATCH(backward, l, l->row, l->value_row); }
void KERNEL(mg_attn_near_add)(const near_sums *a) { DISPATCH(add, a, a->row, a->value_row); }

void KERNEL(mg_attn_near_delta)(const near_delta *d) { DISPATCH(delta, d, d->value_row, d->value_row); }
