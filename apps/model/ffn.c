/* The feed-forward part of some rows: W2 drop(gelu(W1 norm2(x) + b1)) + b2. Nothing of it is kept: what is wide lives
 * in a chunk's scratch, and backward makes it again for one more product. */
#include "internal.h"

/* s->hidden[2] = norm2(middle), s->inside[0] = W1 of it + b1. */
static void up(const run *r, scratch *s, const block_places *at, const float *middle, int64_t rows)
{
    const mg_model_desc *desc = &r->model->desc;
    mg_model_norm(r, s->hidden[2], middle, rows, at->norm2_weight, at->norm2_bias);
    mg_model_linear(r, s, s->inside[0], s->hidden[2], rows, at->up_weight, at->up_bias, desc->hidden, desc->ffn);
}

static void drop_inside(const run *r, float *y, int64_t layer, int64_t begin, int64_t rows)
{
    mg_model_drop(r, y, ids_at(r, begin), rows, 0, r->model->desc.ffn, layer, SITE_INSIDE);
}

void mg_model_ffn_rows(const run *r, scratch *s, int64_t layer, float *y, const float *middle, int64_t begin,
                       int64_t rows)
{
    const block_places *at = &r->model->blocks[layer];
    int64_t hidden = r->model->desc.hidden, inside = r->model->desc.ffn;
    up(r, s, at, middle, rows);
    r->model->rows->gelu(s->inside[0], s->inside[0], rows * inside);
    drop_inside(r, s->inside[0], layer, begin, rows);
    mg_model_linear(r, s, y, s->inside[0], rows, at->down_weight, at->down_bias, inside, hidden);
}

void mg_model_ffn_rows_backward(const run *r, scratch *s, int64_t layer, const sums *to, float *dmiddle,
                                const float *dy, const float *middle, int64_t begin, int64_t rows)
{
    const block_places *at = &r->model->blocks[layer];
    int64_t hidden = r->model->desc.hidden, inside = r->model->desc.ffn;
    float *normal = s->hidden[2], *dnormal = s->hidden[3], *before = s->inside[0], *after = s->inside[1];
    up(r, s, at, middle, rows);
    r->model->rows->gelu(after, before, rows * inside);
    drop_inside(r, after, layer, begin, rows);
    mg_model_linear_weight(r, s, to, dy, after, rows, at->down_weight, at->down_bias, inside, hidden);

    float *dinside = after;
    mg_model_linear_input(r, s, dinside, 0, dy, rows, at->down_weight, inside, hidden);
    drop_inside(r, dinside, layer, begin, rows);
    r->model->rows->gelu_backward(dinside, before, rows * inside);
    mg_model_linear_weight(r, s, to, dinside, normal, rows, at->up_weight, at->up_bias, hidden, inside);
    mg_model_linear_input(r, s, dnormal, 0, dinside, rows, at->up_weight, hidden, inside);
    mg_model_norm_backward(r, to, dmiddle, dnormal, middle, rows, at->norm2_weight, at->norm2_bias);
}
