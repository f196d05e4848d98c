/* Tiles where a key or a query is not finite and some pairs are hidden, pair by pair: a hidden pair is passed over, where
 * a kernel would multiply by 0 and get NaN. Plain C, slow, rare. */
#include "kernel.h"

#include <math.h>

static const float *block_element(const float *blocks, int32_t dim, int token)
{
    return blocks + (int64_t)(token / BLOCK) * dim * BLOCK + token % BLOCK;
}

/* Sum over d of lanes[d][lane] * blocks[d] of a token. */
static float dot(const float *lanes, int lane, const float *blocks, int32_t dim, int token)
{
    const float *x = block_element(blocks, dim, token);
    float sum = 0;
    for (int32_t d = 0; d < dim; d++)
        sum += lanes[d * TILE + lane] * x[d * BLOCK];
    return sum;
}

static void add_key(const forward_tile *t, int lane, int key, float score)
{
    float *maximum = t->maximum + lane, *limit = t->limit + lane, *sum = t->sum + lane;
    const float *v = block_element(t->v, t->value_dim, key);
    if (score > *limit) {
        const float scale = *limit == -INFINITY ? 0 : expf(*maximum - score);
        *maximum = score;
        *limit = score + 20;
        *sum *= scale;
        for (int32_t d = 0; d < t->value_dim; d++)
            t->out[d * TILE + lane] *= scale;
    }
    float p = expf(score - *maximum);
    *sum += p;
    if (t->keep)
        p *= t->keep[key * TILE + lane];
    for (int32_t d = 0; d < t->value_dim; d++)
        t->out[d * TILE + lane] += p * v[d * BLOCK];
}

void mg_attn_careful_forward(const forward_tile *t)
{
    for (int lane = 0; lane < t->lanes; lane++)
        for (int key = 0; key < t->key_blocks * BLOCK; key++) {
            const float bias = t->bias.tile[key * TILE + lane];
            const float element = t->bias_element ? block_element(t->k, t->dim, key)[(t->dim - 1) * BLOCK] : 0;
            if (bias != -INFINITY && element != -INFINITY)
                add_key(t, lane, key, bias + dot(t->q, lane, t->k, t->dim, key));
        }
}

static void add_lane(float *lanes, int lane, float p, const float *x, int32_t dim)
{
    for (int32_t d = 0; d < dim; d++)
        lanes[d * TILE + lane] += p * x[d * BLOCK];
}

static float gradient(const backward_tile *t, int query, int lane)
{
    const int at = query * TILE + lane;
    const float keep = t->keep ? t->keep[at] : 1;
    const float *q = block_element(t->q, t->dim, query), *dout = block_element(t->dout, t->value_dim, query);
    const float p = expf(t->bias.tile[at] + dot(t->k, lane, t->q, t->dim, query) - t->lse[query]);
    if (t->dv)
        add_lane(t->dv, lane, p * keep, dout, t->value_dim);
    if (!t->need_ds)
        return 0;
    const float ds = p * (dot(t->v, lane, t->dout, t->value_dim, query) * keep - t->delta[query]);
    if (t->dk)
        add_lane(t->dk, lane, ds, q, t->dim);
    for (int32_t d = 0; d < t->row && t->dq; d++)
        t->dq[(int64_t)query * t->row + d] += ds * t->k_rows[(int64_t)lane * t->row + d];
    return ds;
}

void mg_attn_careful_backward(const backward_tile *t)
{
    for (int query = 0; query < t->query_blocks * BLOCK; query++)
        for (int lane = 0; lane < TILE; lane++) {
            const float bias = t->bias.tile[query * TILE + lane];
            const float element = t->bias_element ? t->k[(t->dim - 1) * TILE + lane] : 0;
            const int seen = bias != -INFINITY && element != -INFINITY && t->lse[query] != INFINITY;
            t->ds[query * TILE + lane] = seen ? gradient(t, query, lane) : 0;
        }
}
