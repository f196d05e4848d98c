/* Sparse attention: one query with the keys of a list, gathered. Elements of a token are in the lanes, 8 at a time;
 * scores come in eights, by a transposing sum. */
#include "kernel.h"
#include "lanes.h"

void KERNEL(mg_attn_forward_pairs)(const pair_list *l);
void KERNEL(mg_attn_backward_pairs)(const pair_list *l);
void KERNEL(mg_attn_add_rows)(float *x, const float *factors, const float *rows, int32_t row, const int32_t *indices,
                              int32_t count);

/* x[i] with all its lanes summed, in lane i. */
INLINE octet sums_of(const octet x[8])
{
    octet two[4], four[2];
    UNROLL
    for (int i = 0; i < 4; i++)
        two[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                 __builtin_shufflevector(x[2 * i], x[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    UNROLL
    for (int i = 0; i < 2; i++)
        four[i] = __builtin_shufflevector(two[2 * i], two[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                  __builtin_shufflevector(two[2 * i], two[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

/* s[i] = x . rows[keys[i]]; s has room for a multiple of 8, where the last key's is repeated. */
static void dots(float *s, const float *x, const float *rows, int32_t row, const int32_t *keys, int32_t count)
{
    for (int32_t i = 0; i < count; i += 8) {
        const float *at[8];
        octet sum[8];
        UNROLL
        for (int j = 0; j < 8; j++) {
            at[j] = rows + (int64_t)keys[i + j < count ? i + j : count - 1] * row;
            sum[j] = (octet){0};
        }
        for (int32_t d = 0; d < row; d += OCTET) {
            octet q = load8(x + d);
            UNROLL
            for (int j = 0; j < 8; j++)
                sum[j] += q * load8(at[j] + d);
        }
        store8(s + i, sums_of(sum));
    }
}

/* x += sum of p[i] rows[keys[i]] */
static void add_rows(float *x, const float *p, const float *rows, int32_t row, const int32_t *keys, int32_t count)
{
    for (int32_t d = 0; d < row; d += OCTET) {
        octet sum[2] = {load8(x + d), {0}};
        int32_t i = 0;
        for (; i + 2 <= count; i += 2) {
            sum[0] += p[i] * load8(rows + (int64_t)keys[i] * row + d);
            sum[1] += p[i + 1] * load8(rows + (int64_t)keys[i + 1] * row + d);
        }
        if (i < count)
            sum[0] += p[i] * load8(rows + (int64_t)keys[i] * row + d);
        store8(x + d, sum[0] + sum[1]);
    }
}

void KERNEL(mg_attn_forward_pairs)(const pair_list *l)
{
    float s[PAIR_BATCH], top = *l->maximum, sum = 0;
    dots(s, l->q, l->k, l->row, l->keys, l->count);
    for (int32_t i = 0; i < l->count; i++) {
        s[i] += l->bias[i];
        top = s[i] > top ? s[i] : top;
    }
    if (top > *l->maximum) {
        float scale = exponential8(splat8(*l->maximum - top))[0];
        *l->sum *= scale;
        for (int32_t d = 0; d < l->value_row; d++)
            l->out[d] *= scale;
        *l->maximum = top;
    }
    for (int32_t i = 0; i < l->count; i += OCTET)
        store8(s + i, exponential8(load8(s + i) - top));
    for (int32_t i = 0; i < l->count; i++)
        sum += s[i];
    *l->sum += sum;
    if (l->keep)
        for (int32_t i = 0; i < l->count; i++)
            s[i] *= l->keep[i];
    add_rows(l->out, s, l->v, l->value_row, l->keys, l->count);
}

void KERNEL(mg_attn_backward_pairs)(const pair_list *l)
{
    float p[PAIR_BATCH], dp[PAIR_BATCH];
    dots(p, l->q, l->k, l->row, l->keys, l->count);
    dots(dp, l->dout, l->v, l->value_row, l->keys, l->count);
    for (int32_t i = 0; i < l->count; i++)
        p[i] = (p[i] + l->bias[i]) - l->lse;
    for (int32_t i = 0; i < l->count; i += OCTET)
        store8(p + i, exponential8(load8(p + i)));
    for (int32_t i = 0; i < l->count; i++) {
        const float keep = l->keep ? l->keep[i] : 1;
        l->ds[i] = p[i] * (dp[i] * keep - l->delta);
        l->p[i] = p[i] * keep;
    }
    if (l->dq)
        add_rows(l->dq, l->ds, l->k, l->row, l->keys, l->count);
}

void KERNEL(mg_attn_add_rows)(float *x, const float *factors, const float *rows, int32_t row, const int32_t *indices,
                              int32_t count)
{
    add_rows(x, factors, rows, row, indices, count);
}
