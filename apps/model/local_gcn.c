/* relu(W s + b), s_i = sum over i and its neighbours j of h_j / sqrt((n_i + 1) (n_j + 1)); Kipf and Welling 2017. */
#include "internal.h"

static void gather(const run *r, int64_t layer, const mg_model_lists *lists, float *partial, int64_t begin, int64_t end)
{
    (void)partial;
    r->model->lists->gcn(r->pass->blocks[layer].local, r->pass->normal, r->pass->index.roots, lists, begin, end,
                         r->model->desc.hidden);
}

static void transform_chunk(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const block_places *at = &r->model->blocks[layer];
    const block_kept *kept = &r->pass->blocks[layer];
    int64_t hidden = r->model->desc.hidden, first = begin * hidden;
    float *y = r->pass->local_out + first;
    (void)to;
    mg_model_linear(r, s, y, kept->local + first, rows, at->local_weight, at->local_bias, hidden, hidden);
    r->model->rows->relu(y, kept->positive ? kept->positive + first : NULL, rows * hidden);
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
    const block_kept *kept = &r->pass->blocks[layer];
    int64_t hidden = r->model->desc.hidden, first = begin * hidden;
    float *dy = r->pass->local_out + first;
    r->model->rows->relu_backward(dy, kept->positive + first, rows * hidden);
    mg_model_linear_weight(r, s, to, dy, kept->local + first, rows, at->local_weight, at->local_bias, hidden, hidden);
    mg_model_linear_input(r, s, r->pass->local_scratch + first, 0, dy, rows, at->local_weight, hidden, hidden);
}

static void gather_backward(const run *r, int64_t layer, const mg_model_lists *lists, float *partial, int64_t begin,
                            int64_t end)
{
    (void)layer, (void)partial;
    r->model->lists->gcn(r->pass->dnormal, r->pass->local_scratch, r->pass->index.roots, lists, begin, end,
                         r->model->desc.hidden);
}

static int backward(const run *r, int64_t layer)
{
    const block_places *at = &r->model->blocks[layer];
    mg_model_lists lists = mg_model_index_columns(r);
    mg_model_local_zero_halo(r, r->pass->local_scratch, r->model->desc.hidden);
    int status = mg_model_sweep_sums(r, transform_chunk_backward, layer, r->batch->tokens, at->local_begin,
                                     at->local_end, &r->pass->times.local);
    if (!status)
        mg_model_sweep_entries(r, gather_backward, layer, &lists, 0, &r->pass->times.local);
    return status;
}

const local_kind mg_model_gcn = {forward, backward, 0};
