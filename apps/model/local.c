/* The local part: messages over the edges of the graph, beside attention. Shares the edge projection and leaves virtual
 * tokens without one. */
#include "internal.h"

#include <string.h>

static const local_kind *kind_of(const run *r)
{
    static const local_kind *const kinds[] = {
        [MG_MODEL_LOCAL_GCN] = &mg_model_gcn,
        [MG_MODEL_LOCAL_GINE] = &mg_model_gine,
        [MG_MODEL_LOCAL_GATEDGCN] = &mg_model_gatedgcn,
    };
    return kinds[r->model->desc.local];
}

static void load_edge_weight(const run *r, int64_t layer)
{
    int64_t hidden = r->model->desc.hidden, inputs = r->model->desc.edge_inputs;
    const float *weight = parameter(r, r->model->blocks[layer].local_edge);
    for (int64_t f = 0; weight && f < inputs; f++)
        for (int64_t c = 0; c < hidden; c++)
            r->pass->edge_weight[f * hidden + c] = weight[c * inputs + f];
}

void mg_model_edge_weight_add(const run *r, int64_t layer)
{
    int64_t hidden = r->model->desc.hidden, inputs = r->model->desc.edge_inputs;
    if (r->model->blocks[layer].local_edge < 0)
        return;
    float *to = r->gradients + r->model->blocks[layer].local_edge;
    for (int64_t f = 0; f < inputs; f++)
        for (int64_t c = 0; c < hidden; c++)
            to[c * inputs + f] += r->pass->entry_partials[f * hidden + c];
}

int mg_model_local_forward(const run *r, int64_t layer)
{
    load_edge_weight(r, layer);
    int status = kind_of(r)->forward(r, layer);
    mg_model_zero_virtual(r, r->pass->local_out, 0, r->batch->tokens, r->model->desc.hidden);
    return status;
}

/* Rows of other ranks take no part in what follows the messages: their rows of `y` ([local rows][columns]) become 0. */
void mg_model_local_zero_halo(const run *r, float *y, int64_t columns)
{
    int64_t own = r->batch->tokens;
    memset(y + own * columns, 0, (size_t)((local_rows(r) - own) * columns) * sizeof *y);
}

int mg_model_local_backward(const run *r, int64_t layer)
{
    load_edge_weight(r, layer);
    return kind_of(r)->backward(r, layer);
}

int mg_model_local_reads_normal(const run *r)
{
    return r->model->desc.local != MG_MODEL_LOCAL_NONE && kind_of(r)->reads_normal;
}
