/* W2 relu(W1 u + b1) + b2, u_i = (1 + eps) h_i + sum over neighbours j of relu(h_j + We e_ij); Hu et al. 2020. */
#include "internal.h"

static float self_weight(const run *r, int64_t layer) { return 1 + r->parameters[r->model->blocks[layer].local_eps]; }

static void gather(const run *r, int64_t layer, const mg_model_lists *lists, float *partial, int64_t begin, int64_t end)
{
    (void)partial;
    r->model->lists->gine(r->pass->blocks[layer].local, r->pass->normal, self_weight(r, layer), lists, begin, end,
                          r->model->desc.hidden);
}

/* relu(W1 u + b1) of some rows. */
static float *inner_rows(const run *r, scratch *s, int64_t layer, int64_t begin, int64_t rows)
{
    const block_places *at = &r->model->blocks[layer];
    int64_t hidden = r->model->desc.hidden;
    float *inner = s->hidden[0];
    mg_model_linear(r, s, inner, r->pass->blocks[layer].local + begin * hidden, rows, at->local_up_weight,
                    at->local_up_bias, hidden, hidden);
    r->model->rows->relu(inner, NULL, rows * hidden);
    return inner;
}

static void transform_chunk(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const block_places *at = &r->model->blocks[layer];
    int64_t hidden = r->model->desc.hidden;
    (void)to;
    mg_model_linear(r, s, r->pass->local_out + begin * hidden, inner_rows(r, s, layer, begin, rows), rows,
                    at->local_down_weight, at->local_down_bias, hidden, hidden);
}

static int forward(const run *r, int64_t layer)
{
    mg_model_lists lists = mg_model_index_rows(r);
    mg_model_sweep_entries(r, gather, layer, &lists, 0, &r->pass->times.local);
    return mg_model_sweep(r, transform_chunk, layer, r->batch->tokens, &r->pass->times.local);
}

static void transform_chunk_backward(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin,
                                     int64_t rows)
{
    const block_places *at = &r->model->blocks[layer];
    int64_t hidden = r->model->desc.hidden, first = begin * hidden;
    const float *dy = r->pass->local_out + first, *inner = inner_rows(r, s, layer, begin, rows);
    float *dinner = s->hidden[1];
    mg_model_linear_weight(r, s, to, dy, inner, rows, at->local_down_weight, at->local_down_bias, hidden, hidden);
    mg_model_linear_input(r, s, dinner, 0, dy, rows, at->local_down_weight, hidden, hidden);
    r->model->rows->relu_backward_by(dinner, inner, rows * hidden);
    mg_model_linear_weight(r, s, to, dinner, r->pass->blocks[layer].local + first, rows, at->local_up_weight,
                           at->local_up_bias, hidden, hidden);
    mg_model_linear_input(r, s, r->pass->local_scratch + first, 0, dinner, rows, at->local_up_weight, hidden, hidden);
}

static void gather_backward(const run *r, int64_t layer, const mg_model_lists *lists, float *partial, int64_t begin,
                            int64_t end)
{
    partial[r->pass->entry_floats - 1] =
        r->model->lists->gine_backward(r->pass->dnormal, partial, r->pass->local_scratch, r->pass->normal,
                                       self_weight(r, layer), lists, begin, end, r->model->desc.hidden);
}

static int backward(const run *r, int64_t layer)
{
    const block_places *at = &r->model->blocks[layer];
    mg_model_lists lists = mg_model_index_columns(r);
    mg_model_local_zero_halo(r, r->pass->local_scratch, r->model->desc.hidden);
    int status = mg_model_sweep_sums(r, transform_chunk_backward, layer, r->batch->tokens, at->local_begin,
                                     at->local_end, &r->pass->times.local);
    if (status)
        return status;
    mg_model_sweep_entries(r, gather_backward, layer, &lists, 1, &r->pass->times.local);
    mg_model_edge_weight_add(r, layer);
    r->gradients[at->local_eps] += r->pass->entry_partials[r->pass->entry_floats - 1];
    return 0;
}

const local_kind mg_model_gine = {forward, backward, 1};
