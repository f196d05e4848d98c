/* relu(U h_i + sum_j g_ij V h_j / (sum_j g_ij + 1e-6)), g_ij = sigmoid(A h_i + B h_j + We e_ij); Bresson and Laurent
 * 2017. [A, B, U, V] h is one product; gates are made where they are needed and never stored. Of rows of other ranks h
 * is fetched, which is half of B and V. */
#include "internal.h"

static void project_chunk(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const block_places *at = &r->model->blocks[layer];
    int64_t hidden = r->model->desc.hidden;
    (void)to;
    mg_model_linear(r, s, r->pass->blocks[layer].local + begin * 4 * hidden, r->pass->normal + begin * hidden, rows,
                    at->local_weight, at->local_bias, hidden, 4 * hidden);
}

static void gather(const run *r, int64_t layer, const mg_model_lists *lists, float *partial, int64_t begin, int64_t end)
{
    const block_kept *kept = &r->pass->blocks[layer];
    int64_t hidden = r->model->desc.hidden, first = begin * hidden;
    (void)partial;
    r->model->lists->gated(r->pass->local_out, kept->local, lists, begin, end, hidden);
    r->model->rows->relu(r->pass->local_out + first, kept->positive ? kept->positive + first : NULL,
                         (end - begin) * hidden);
}

static int forward(const run *r, int64_t layer)
{
    mg_model_lists lists = mg_model_index_rows(r);
    int status = mg_model_sweep(r, project_chunk, layer, local_rows(r), &r->pass->times.local);
    if (!status)
        mg_model_sweep_entries(r, gather, layer, &lists, 0, &r->pass->times.local);
    return status;
}

/* Parts of pass->local_scratch. */
typedef struct gradients {
    float *dabuv, *w, *q;
} gradients;

static gradients parts(const run *r)
{
    int64_t size = local_rows(r) * r->model->desc.hidden;
    float *all = r->pass->local_scratch;
    return (gradients){all, all + 4 * size, all + 5 * size};
}

static void rows_backward(const run *r, int64_t layer, const mg_model_lists *lists, float *partial, int64_t begin,
                          int64_t end)
{
    const block_kept *kept = &r->pass->blocks[layer];
    int64_t hidden = r->model->desc.hidden, first = begin * hidden;
    gradients to = parts(r);
    (void)partial;
    r->model->rows->relu_backward(r->pass->local_out + first, kept->positive + first, (end - begin) * hidden);
    r->model->lists->gated_backward_rows(to.dabuv, to.w, to.q, r->pass->local_out, kept->local, lists, begin, end,
                                         hidden);
}

static void columns_backward(const run *r, int64_t layer, const mg_model_lists *lists, float *partial, int64_t begin,
                             int64_t end)
{
    gradients to = parts(r);
    r->model->lists->gated_backward_columns(to.dabuv, partial, to.w, to.q, r->pass->blocks[layer].local, lists, begin,
                                            end, r->model->desc.hidden);
}

static void project_chunk_backward(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const block_places *at = &r->model->blocks[layer];
    int64_t hidden = r->model->desc.hidden;
    const float *dabuv = parts(r).dabuv + begin * 4 * hidden;
    mg_model_linear_weight(r, s, to, dabuv, r->pass->normal + begin * hidden, rows, at->local_weight, at->local_bias,
                           hidden, 4 * hidden);
    mg_model_linear_input(r, s, r->pass->dnormal + begin * hidden, 0, dabuv, rows, at->local_weight, hidden,
                          4 * hidden);
}

static int backward(const run *r, int64_t layer)
{
    const block_places *at = &r->model->blocks[layer];
    mg_model_lists rows = mg_model_index_rows(r), columns = mg_model_index_columns(r);
    mg_model_local_zero_halo(r, parts(r).dabuv, 4 * r->model->desc.hidden); /* of A and U nothing comes from there */
    mg_model_sweep_entries(r, rows_backward, layer, &rows, 0, &r->pass->times.local);
    mg_model_sweep_entries(r, columns_backward, layer, &columns, 1, &r->pass->times.local);
    mg_model_edge_weight_add(r, layer);
    return mg_model_sweep_sums(r, project_chunk_backward, layer, local_rows(r), at->local_begin, at->local_end,
                               &r->pass->times.local);
}

const local_kind mg_model_gatedgcn = {forward, backward, 1};
