/* Kernels on lists of neighbours. Each works on one row and `blocks` vectors of columns at a time, whose sums stay in
 * registers while the list runs by; what an edge needs (projection of its features, gate) is made again and never
 * stored. */
#include "../kernels.h"
#include "lanes.h"

/* Runs call with (c, n, blocks): columns [c, c + n), first `most` whole vectors at a time, then one by one. */
#define BY_COLUMNS(columns, most, call)                                                                                \
    do {                                                                                                               \
        int64_t c = 0;                                                                                                 \
        for (; (columns)-c >= (most)*LANES; c += (most)*LANES)                                                         \
            call(c, (most)*LANES, most);                                                                               \
        for (; c < (columns); c += LANES)                                                                              \
            call(c, (columns)-c, 1);                                                                                   \
    } while (0)

INLINE const float *features_of(const mg_model_lists *lists, int64_t entry)
{
    int64_t edge = lists->edges ? lists->edges[entry] : entry;
    return lists->features + edge * lists->feature_count;
}

/* x += We e in the columns from c on. */
INLINE void add_features(vec *x, const mg_model_lists *lists, const float *features, int64_t columns, int64_t c,
                         int64_t n, int blocks)
{
    for (int64_t f = 0; f < lists->feature_count; f++)
        UNROLL
    for (int b = 0; b < blocks; b++)
        x[b] += features[f] * load_some(lists->weight + f * columns + c + b * LANES, n - b * LANES);
}

/* dWe += d e^T */
INLINE void add_weight_gradient(float *dweight, const vec *d, const mg_model_lists *lists, const float *features,
                                int64_t columns, int64_t c, int64_t n, int blocks)
{
    for (int64_t f = 0; f < lists->feature_count; f++)
        UNROLL
    for (int b = 0; b < blocks; b++) {
        float *to = dweight + f * columns + c + b * LANES;
        store_some(to, load_some(to, n - b * LANES) + features[f] * d[b], n - b * LANES);
    }
}

/* --- gcn --- */

INLINE void gcn_block(float *y, const float *x, const float *roots, const mg_model_lists *lists, int64_t i,
                      int64_t columns, int64_t c, int64_t n, int blocks)
{
    vec sum[4];
    float own = roots[i];
    UNROLL
    for (int b = 0; b < blocks; b++)
        sum[b] = own * load_some(x + i * columns + c + b * LANES, n - b * LANES);
    for (int64_t e = lists->starts[i]; e < lists->starts[i + 1]; e++) {
        int64_t j = lists->others[e];
        if (j == i)
            continue;
        float root = roots[j];
        UNROLL
        for (int b = 0; b < blocks; b++)
            sum[b] += root * load_some(x + j * columns + c + b * LANES, n - b * LANES);
    }
    UNROLL
    for (int b = 0; b < blocks; b++)
        store_some(y + i * columns + c + b * LANES, own * sum[b], n - b * LANES);
}

static void gcn(float *y, const float *x, const float *roots, const mg_model_lists *lists, int64_t begin, int64_t end,
                int64_t columns)
{
#define CALL(c, n, blocks) gcn_block(y, x, roots, lists, i, columns, c, n, blocks)
    for (int64_t i = begin; i < end; i++)
        BY_COLUMNS(columns, 4, CALL);
#undef CALL
}

/* --- gine --- */

INLINE void gine_block(float *u, const float *h, float self, const mg_model_lists *lists, int64_t i, int64_t columns,
                       int64_t c, int64_t n, int blocks)
{
    vec sum[4], message[4];
    UNROLL
    for (int b = 0; b < blocks; b++)
        sum[b] = self * load_some(h + i * columns + c + b * LANES, n - b * LANES);
    for (int64_t e = lists->starts[i]; e < lists->starts[i + 1]; e++) {
        const float *from = h + lists->others[e] * columns + c;
        UNROLL
        for (int b = 0; b < blocks; b++)
            message[b] = load_some(from + b * LANES, n - b * LANES);
        if (lists->features)
            add_features(message, lists, features_of(lists, e), columns, c, n, blocks);
        UNROLL
        for (int b = 0; b < blocks; b++)
            sum[b] += positive(message[b]);
    }
    UNROLL
    for (int b = 0; b < blocks; b++)
        store_some(u + i * columns + c + b * LANES, sum[b], n - b * LANES);
}

static void gine(float *u, const float *h, float self, const mg_model_lists *lists, int64_t begin, int64_t end,
                 int64_t columns)
{
#define CALL(c, n, blocks) gine_block(u, h, self, lists, i, columns, c, n, blocks)
    for (int64_t i = begin; i < end; i++)
        BY_COLUMNS(columns, 4, CALL);
#undef CALL
}

INLINE vec gine_backward_block(float *dh, float *dweight, const float *du, const float *h, float self,
                               const mg_model_lists *lists, int64_t j, int64_t columns, int64_t c, int64_t n,
                               int blocks)
{
    vec sum[4], own[4], d[4], message[4], along = splat(0);
    UNROLL
    for (int b = 0; b < blocks; b++) {
        vec dj = load_some(du + j * columns + c + b * LANES, n - b * LANES);
        own[b] = load_some(h + j * columns + c + b * LANES, n - b * LANES);
        sum[b] = self * dj;
        along += own[b] * dj;
    }
    for (int64_t e = lists->starts[j]; e < lists->starts[j + 1]; e++) {
        const float *from = du + lists->others[e] * columns + c;
        UNROLL
        for (int b = 0; b < blocks; b++)
            message[b] = own[b];
        if (lists->features)
            add_features(message, lists, features_of(lists, e), columns, c, n, blocks);
        UNROLL
        for (int b = 0; b < blocks; b++) {
            d[b] = where_positive(message[b], load_some(from + b * LANES, n - b * LANES));
            sum[b] += d[b];
        }
        if (lists->features)
            add_weight_gradient(dweight, d, lists, features_of(lists, e), columns, c, n, blocks);
    }
    UNROLL
    for (int b = 0; b < blocks; b++)
        store_some(dh + j * columns + c + b * LANES, sum[b], n - b * LANES);
    return along;
}

static float gine_backward(float *dh, float *dweight, const float *du, const float *h, float self,
                           const mg_model_lists *lists, int64_t begin, int64_t end, int64_t columns)
{
    vec along = splat(0);
#define CALL(c, n, blocks) along += gine_backward_block(dh, dweight, du, h, self, lists, j, columns, c, n, blocks)
    for (int64_t j = begin; j < end; j++)
        BY_COLUMNS(columns, 4, CALL);
#undef CALL
    return total(along);
}

/* --- gatedgcn: parts A, B, U, V of a row of abuv follow each other --- */

static const float gate_floor = 1e-6f;

/* g = sigmoid(A_i + B_j + We e), of which one end is given and the other is read. */
INLINE void gates(vec *g, const vec *given, const float *other, const mg_model_lists *lists, int64_t entry,
                  int64_t columns, int64_t c, int64_t n, int blocks)
{
    UNROLL
    for (int b = 0; b < blocks; b++)
        g[b] = given[b] + load_some(other + c + b * LANES, n - b * LANES);
    if (lists->features)
        add_features(g, lists, features_of(lists, entry), columns, c, n, blocks);
    UNROLL
    for (int b = 0; b < blocks; b++)
        g[b] = sigmoid(g[b]);
}

INLINE void gated_block(float *y, const float *abuv, const mg_model_lists *lists, int64_t i, int64_t columns, int64_t c,
                        int64_t n, int blocks)
{
    const float *own = abuv + 4 * i * columns + c;
    vec a[2], g[2], sum[2], weighted[2];
    UNROLL
    for (int b = 0; b < blocks; b++) {
        a[b] = load_some(own + b * LANES, n - b * LANES);
        sum[b] = weighted[b] = splat(0);
    }
    for (int64_t e = lists->starts[i]; e < lists->starts[i + 1]; e++) {
        const float *other = abuv + 4 * lists->others[e] * columns;
        gates(g, a, other + columns, lists, e, columns, c, n, blocks);
        UNROLL
        for (int b = 0; b < blocks; b++) {
            sum[b] += g[b];
            weighted[b] += g[b] * load_some(other + 3 * columns + c + b * LANES, n - b * LANES);
        }
    }
    UNROLL
    for (int b = 0; b < blocks; b++)
        store_some(y + i * columns + c + b * LANES,
                   load_some(own + 2 * columns + b * LANES, n - b * LANES) + weighted[b] / (sum[b] + gate_floor),
                   n - b * LANES);
}

static void gated(float *y, const float *abuv, const mg_model_lists *lists, int64_t begin, int64_t end, int64_t columns)
{
#define CALL(c, n, blocks) gated_block(y, abuv, lists, i, columns, c, n, blocks)
    for (int64_t i = begin; i < end; i++)
        BY_COLUMNS(columns, 2, CALL);
#undef CALL
}

/* With N = sum g V, D = sum g + floor, q = N / D, w = dy / D:  dA = sum w (V - q) g (1 - g) = w (sum V g (1 - g) - q
 * sum g (1 - g)), so that one run over the list is enough. */
INLINE void gated_rows_block(float *dabuv, float *w, float *q, const float *dy, const float *abuv,
                             const mg_model_lists *lists, int64_t i, int64_t columns, int64_t c, int64_t n, int blocks)
{
    vec a[2], g[2], sum[2], weighted[2], slope[2], slope_weighted[2];
    UNROLL
    for (int b = 0; b < blocks; b++) {
        a[b] = load_some(abuv + 4 * i * columns + c + b * LANES, n - b * LANES);
        sum[b] = weighted[b] = slope[b] = slope_weighted[b] = splat(0);
    }
    for (int64_t e = lists->starts[i]; e < lists->starts[i + 1]; e++) {
        const float *other = abuv + 4 * lists->others[e] * columns;
        gates(g, a, other + columns, lists, e, columns, c, n, blocks);
        UNROLL
        for (int b = 0; b < blocks; b++) {
            vec v = load_some(other + 3 * columns + c + b * LANES, n - b * LANES), s = g[b] * (1 - g[b]);
            sum[b] += g[b];
            weighted[b] += g[b] * v;
            slope[b] += s;
            slope_weighted[b] += s * v;
        }
    }
    UNROLL
    for (int b = 0; b < blocks; b++) {
        int64_t at = i * columns + c + b * LANES, from = n - b * LANES;
        float *to = dabuv + 4 * i * columns + c + b * LANES;
        vec d = load_some(dy + at, from), share = d / (sum[b] + gate_floor);
        vec quotient = weighted[b] / (sum[b] + gate_floor);
        store_some(w + at, share, from);
        store_some(q + at, quotient, from);
        store_some(to, share * (slope_weighted[b] - quotient * slope[b]), from);
        store_some(to + 2 * columns, d, from);
    }
}

static void gated_backward_rows(float *dabuv, float *w, float *q, const float *dy, const float *abuv,
                                const mg_model_lists *lists, int64_t begin, int64_t end, int64_t columns)
{
#define CALL(c, n, blocks) gated_rows_block(dabuv, w, q, dy, abuv, lists, i, columns, c, n, blocks)
    for (int64_t i = begin; i < end; i++)
        BY_COLUMNS(columns, 2, CALL);
#undef CALL
}

INLINE void gated_columns_block(float *dabuv, float *dweight, const float *w, const float *q, const float *abuv,
                                const mg_model_lists *lists, int64_t j, int64_t columns, int64_t c, int64_t n,
                                int blocks)
{
    vec own[2], v[2], g[2], d[2], db[2], dv[2];
    UNROLL
    for (int b = 0; b < blocks; b++) {
        own[b] = load_some(abuv + (4 * j + 1) * columns + c + b * LANES, n - b * LANES);
        v[b] = load_some(abuv + (4 * j + 3) * columns + c + b * LANES, n - b * LANES);
        db[b] = dv[b] = splat(0);
    }
    for (int64_t e = lists->starts[j]; e < lists->starts[j + 1]; e++) {
        int64_t i = lists->others[e], at = i * columns + c;
        gates(g, own, abuv + 4 * i * columns, lists, e, columns, c, n, blocks);
        UNROLL
        for (int b = 0; b < blocks; b++) {
            vec share = load_some(w + at + b * LANES, n - b * LANES) * g[b];
            dv[b] += share;
            d[b] = share * (1 - g[b]) * (v[b] - load_some(q + at + b * LANES, n - b * LANES));
            db[b] += d[b];
        }
        if (lists->features)
            add_weight_gradient(dweight, d, lists, features_of(lists, e), columns, c, n, blocks);
    }
    UNROLL
    for (int b = 0; b < blocks; b++) {
        store_some(dabuv + (4 * j + 1) * columns + c + b * LANES, db[b], n - b * LANES);
        store_some(dabuv + (4 * j + 3) * columns + c + b * LANES, dv[b], n - b * LANES);
    }
}

static void gated_backward_columns(float *dabuv, float *dweight, const float *w, const float *q, const float *abuv,
                                   const mg_model_lists *lists, int64_t begin, int64_t end, int64_t columns)
{
#define CALL(c, n, blocks) gated_columns_block(dabuv, dweight, w, q, abuv, lists, j, columns, c, n, blocks)
    for (int64_t j = begin; j < end; j++)
        BY_COLUMNS(columns, 2, CALL);
#undef CALL
}

const mg_model_list_kernels MG_JOIN(mg_model_lists, MG_ISA) = {
    .gcn = gcn,
    .gine = gine,
    .gine_backward = gine_backward,
    .gated = gated,
    .gated_backward_rows = gated_backward_rows,
    .gated_backward_columns = gated_backward_columns,
};
