/* Tiles where a token is not finite and some pairs are hidden. Slow, rare. */
#include "kernel.h"

#include <math.h>
#include <string.h>

int64_t mg_attn_careful_floats(int32_t dim, int32_t value_dim, int32_t row)
{
    return (int64_t)TILE * (2 * dim + 2 * value_dim + row + 2) + PAIRS;
}

/* Element d of a token is at first + d * step. */
typedef struct layout {
    int first, step;
} layout;
static layout in_lanes(int token) { return (layout){token, TILE}; }
static layout in_halves(int token, int32_t dim) { return (layout){(int)half_lane(token, dim), HALF}; }
static layout in_blocks(int token, int32_t dim) { return (layout){token / BLOCK * dim * BLOCK + token % BLOCK, BLOCK}; }

static int finite_token(const float *x, layout l, int32_t dim)
{
    float sum = 0;
    for (int32_t d = 0; d < dim; d++)
        sum += x[l.first + d * l.step] * 0;
    return sum == 0;
}

static void zero_token(float *x, layout l, int32_t dim)
{
    for (int32_t d = 0; d < dim; d++)
        x[l.first + d * l.step] = 0;
}

static float dot(const float *x, layout lx, const float *y, layout ly, int32_t dim)
{
    float sum = 0;
    for (int32_t d = 0; d < dim; d++)
        sum += x[lx.first + d * lx.step] * y[ly.first + d * ly.step];
    return sum;
}

static void add_token(float *x, layout lx, float factor, const float *y, layout ly, int32_t dim)
{
    for (int32_t d = 0; d < dim; d++)
        x[lx.first + d * lx.step] += factor * y[ly.first + d * ly.step];
}

/* Of a score less the maximum. */
static float power(float score, int log2_scores) { return log2_scores ? exp2f(score) : expf(score); }

static float *copy_of(float **room, const float *x, int64_t count)
{
    float *copy = *room;
    memcpy(copy, x, (size_t)count * sizeof *copy);
    *room += count;
    return copy;
}

/* --- forward: lanes are queries --- */

static void add_pair(const forward_tile *t, int lane, int key, float bias)
{
    float *maximum = t->maximum + lane, *limit = t->limit + lane, *sum = t->sum + lane;
    const float score = bias + dot(t->q, in_lanes(lane), t->k, in_blocks(key, t->dim), t->dim);
    if (score > *limit) {
        const float scale = *limit == -INFINITY ? 0 : power(*maximum - score, t->log2_scores);
        *maximum = score;
        *limit = score + 20;
        *sum *= scale;
        for (int32_t d = 0; d < t->value_dim; d++)
            t->out[d * TILE + lane] *= scale;
    }
    const float p = power(score - *maximum, t->log2_scores);
    *sum += p;
    add_token(t->out, in_lanes(lane), t->keep ? p * t->keep[key * TILE + lane] : p, t->v, in_blocks(key, t->value_dim),
              t->value_dim);
}

void mg_attn_careful_forward(const forward_tile *t, float *bias, float *room, void (*kernel)(const forward_tile *))
{
    forward_tile clean = *t;
    const int32_t elements = t->dim - t->bias_element;
    float *k = copy_of(&room, t->k, (int64_t)t->dim * TILE), *v = copy_of(&room, t->v, (int64_t)t->value_dim * TILE);
    for (int key = 0; key < t->key_blocks * BLOCK; key++) {
        const layout in_k = in_blocks(key, t->dim), in_v = in_blocks(key, t->value_dim);
        if (finite_token(t->k, in_k, elements) && finite_token(t->v, in_v, t->value_dim))
            continue;
        const float element = t->bias_element ? t->k[in_k.first + elements * BLOCK] : 0;
        for (int lane = 0; lane < TILE; lane++) {
            const float one = bias[key * TILE + lane];
            if (lane < t->lanes && one != -INFINITY && element != -INFINITY)
                add_pair(t, lane, key, one);
            bias[key * TILE + lane] = -INFINITY;
        }
        zero_token(k, in_k, t->dim);
        zero_token(v, in_v, t->value_dim);
    }
    clean.k = k;
    clean.v = v;
    kernel(&clean);
}

/* --- backward: lanes are keys --- */

/* Returns dS. */
static float add_gradients(const backward_tile *t, int query, int lane, float bias)
{
    const float keep = t->keep ? t->keep[query * TILE + lane] : 1;
    const layout key = in_halves(lane, t->dim), value = in_halves(lane, t->value_dim), in_q = in_blocks(query, t->dim), in_dout = in_blocks(query, t->value_dim);
    const float unit = t->log2_scores ? (float)M_LOG2E : 1;
    const float p = power(bias + dot(t->k, key, t->q, in_q, t->dim) - t->lse[query] * unit, t->log2_scores);
    if (t->dv)
        add_token(t->dv, value, p * keep, t->dout, in_dout, t->value_dim);
    if (!t->need_ds)
        return 0;
    const float ds = p * (dot(t->v, value, t->dout, in_dout, t->value_dim) * keep - t->delta[query]);
    if (t->dk)
        add_token(t->dk, key, ds, t->q, in_q, t->dim);
    if (t->dq)
        add_token(t->dq, (layout){query * t->row, 1}, ds, t->k_rows, (layout){lane * t->row, 1}, t->row);
    return ds;
}

static uint64_t bad_keys(const backward_tile *t)
{
    uint64_t bad = 0;
    for (int lane = 0; lane < TILE; lane++)
        if (!finite_token(t->k, in_halves(lane, t->dim), t->dim - t->bias_element) ||
            !finite_token(t->v, in_halves(lane, t->value_dim), t->value_dim))
            bad |= UINT64_C(1) << lane;
    return bad;
}

static uint64_t bad_queries(const backward_tile *t)
{
    uint64_t bad = 0;
    for (int query = 0; query < t->query_blocks * BLOCK; query++)
        if (!finite_token(t->q, in_blocks(query, t->dim), t->dim) || isnan(t->lse[query]) ||
            !isfinite(t->delta[query]) || !finite_token(t->dout, in_blocks(query, t->value_dim), t->value_dim))
            bad |= UINT64_C(1) << query;
    return bad;
}

/* The bad tokens' pairs that are seen; dS of each, 0 elsewhere, to ds. All their pairs are hidden afterwards. */
static void add_bad_pairs(const backward_tile *t, float *bias, float *ds, uint64_t keys, uint64_t queries)
{
    for (int at = 0; at < PAIRS; at++) {
        const int query = at / TILE, lane = at % TILE;
        float *mine = ds + half_lane(lane, TILE) + query * HALF;
        *mine = 0;
        if (!(queries >> query & 1) && !(keys >> lane & 1))
            continue;
        const float element = t->bias_element ? t->k[half_lane(lane, t->dim) + (t->dim - 1) * HALF] : 0;
        if (query < t->query_blocks * BLOCK && bias[at] != -INFINITY && element != -INFINITY &&
            t->lse[query] != INFINITY)
            *mine = add_gradients(t, query, lane, bias[at]);
        bias[at] = -INFINITY;
    }
}

void mg_attn_careful_backward(const backward_tile *t, float *bias, float *room, void (*kernel)(const backward_tile *))
{
    backward_tile clean = *t;
    clean.table = NULL;
    const uint64_t keys = bad_keys(t), queries = bad_queries(t);
    float *ds = room;
    add_bad_pairs(t, bias, ds, keys, queries);
    room += PAIRS;
    float *k = copy_of(&room, t->k, (int64_t)t->dim * TILE), *v = copy_of(&room, t->v, (int64_t)t->value_dim * TILE);
    float *q = copy_of(&room, t->q, (int64_t)t->dim * TILE),
          *dout = copy_of(&room, t->dout, (int64_t)t->value_dim * TILE);
    float *lse = copy_of(&room, t->lse, TILE), *delta = copy_of(&room, t->delta, TILE);
    float *k_rows = t->k_rows ? copy_of(&room, t->k_rows, (int64_t)t->row * TILE) : NULL;
    for (int token = 0; token < TILE; token++) {
        if (keys >> token & 1) {
            zero_token(k, in_halves(token, t->dim), t->dim);
            zero_token(v, in_halves(token, t->value_dim), t->value_dim);
            if (k_rows)
                zero_token(k_rows, (layout){token * t->row, 1}, t->row);
        }
        if (queries >> token & 1) {
            zero_token(q, in_blocks(token, t->dim), t->dim);
            zero_token(dout, in_blocks(token, t->value_dim), t->value_dim);
            lse[token] = INFINITY;
            delta[token] = 0;
        }
    }
    clean.k = k, clean.v = v, clean.q = q, clean.dout = dout, clean.lse = lse, clean.delta = delta,
    clean.k_rows = k_rows;
    kernel(&clean);
    for (int at = 0; at < PAIRS && t->need_ds; at++)
        if (at / HALF % TILE < t->query_blocks * BLOCK)
            t->ds[at] += ds[at];
}
