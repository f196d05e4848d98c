/* The last norm and the outputs: per token, or per graph from its virtual token's row, the mean or the sum of its
 * nodes'. */
#include "internal.h"

#include <string.h>

/* --- readout: one row per graph --- */

typedef struct node_range {
    int64_t begin, end; /* the tokens that a graph's row is made of */
} node_range;

static node_range pooled_tokens(const run *r, int64_t graph)
{
    const mg_model_desc *desc = &r->model->desc;
    node_range range = {r->batch->segments[graph], r->batch->segments[graph + 1]};
    if (desc->readout == MG_MODEL_VIRTUAL)
        range.begin = range.end - 1;
    else if (desc->virtual_token)
        range.end--;
    return range;
}

/* What each of them counts. */
static float share_of(const run *r, node_range range)
{
    return r->model->desc.readout == MG_MODEL_MEAN && range.end > range.begin ? 1 / (float)(range.end - range.begin)
                                                                              : 1;
}

/* A graph's dropout goes by the lowest id of those tokens, so that their order does not matter. */
static uint32_t graph_id(const run *r, int64_t graph)
{
    node_range range = pooled_tokens(r, graph);
    uint32_t id = range.begin < range.end ? r->batch->ids[range.begin] : 0;
    for (int64_t i = range.begin; i < range.end; i++)
        id = r->batch->ids[i] < id ? r->batch->ids[i] : id;
    return id;
}

static void drop_graphs(const run *r, float *y, int64_t begin, int64_t rows)
{
    uint32_t ids[CHUNK];
    if (!mg_model_drops(r, SITE_HEAD))
        return;
    for (int64_t g = 0; g < rows; g++)
        ids[g] = graph_id(r, begin + g);
    mg_model_drop(r, y, ids, rows, 0, r->model->desc.hidden, 0, SITE_HEAD);
}

static void pool_chunk(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    int64_t hidden = r->model->desc.hidden;
    (void)s, (void)layer, (void)to;
    for (int64_t g = begin; g < begin + rows; g++) {
        node_range range = pooled_tokens(r, g);
        float *sum = r->pass->pooled + g * hidden, share = share_of(r, range);
        memset(sum, 0, (size_t)hidden * sizeof *sum);
        for (int64_t i = range.begin; i < range.end; i++)
            r->model->rows->add(sum, r->pass->embeddings + i * hidden, hidden);
        for (int64_t c = 0; c < hidden; c++)
            sum[c] *= share;
    }
    drop_graphs(r, r->pass->pooled + begin * hidden, begin, rows);
}

/* --- forward --- */

static void norm_chunk(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const head_places *at = &r->model->head;
    int64_t hidden = r->model->desc.hidden;
    (void)s, (void)layer, (void)to;
    r->model->rows->norm(r->pass->embeddings + begin * hidden, r->pass->last + begin * hidden,
                         r->parameters + at->norm_weight, r->parameters + at->norm_bias, rows, hidden);
}

/* Rows that the output map reads: dropped out. */
static const float *head_rows(const run *r, scratch *s, int64_t begin, int64_t rows)
{
    int64_t hidden = r->model->desc.hidden;
    if (r->model->desc.readout != MG_MODEL_NODES)
        return r->pass->pooled + begin * hidden;
    if (!mg_model_drops(r, SITE_HEAD))
        return r->pass->embeddings + begin * hidden;
    memcpy(s->hidden[0], r->pass->embeddings + begin * hidden, (size_t)(rows * hidden) * sizeof(float));
    mg_model_drop(r, s->hidden[0], ids_at(r, begin), rows, 0, hidden, 0, SITE_HEAD);
    return s->hidden[0];
}

static void output_chunk(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const mg_model_desc *desc = &r->model->desc;
    (void)layer, (void)to;
    mg_model_linear(r, s, r->pass->outputs + begin * desc->outputs, head_rows(r, s, begin, rows), rows,
                    r->model->head.weight, r->model->head.bias, desc->hidden, desc->outputs);
}

static int64_t output_rows(const run *r)
{
    return r->model->desc.readout == MG_MODEL_NODES ? r->batch->tokens : r->batch->graphs;
}

int mg_model_head_forward(const run *r, float *outputs)
{
    double *seconds = &r->pass->times.other;
    r->pass->outputs = outputs;
    int status = mg_model_sweep(r, norm_chunk, 0, r->batch->tokens, seconds);
    if (!status && r->model->desc.readout != MG_MODEL_NODES)
        status = mg_model_sweep(r, pool_chunk, 0, r->batch->graphs, seconds);
    return status ? status : mg_model_sweep(r, output_chunk, 0, output_rows(r), seconds);
}

/* --- backward --- */

/* From the outputs' gradients to those of embeddings (node level, into pass->dx) or pooled rows. */
static void output_chunk_backward(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const mg_model_desc *desc = &r->model->desc;
    const head_places *at = &r->model->head;
    int nodes = desc->readout == MG_MODEL_NODES;
    int64_t hidden = desc->hidden;
    const float *dout = r->pass->doutputs + begin * desc->outputs;
    float *dy = (nodes ? r->pass->dx : r->pass->dpooled) + begin * hidden;
    (void)layer;
    mg_model_linear_weight(r, s, to, dout, head_rows(r, s, begin, rows), rows, at->weight, at->bias, hidden,
                           desc->outputs);
    mg_model_linear_input(r, s, dy, 0, dout, rows, at->weight, hidden, desc->outputs);
    if (nodes)
        mg_model_drop(r, dy, ids_at(r, begin), rows, 0, hidden, 0, SITE_HEAD);
    else
        drop_graphs(r, dy, begin, rows);
}

/* Embeddings' gradients of some tokens, from their graphs' rows. */
static void spread_rows(const run *r, float *dy, int64_t begin, int64_t rows)
{
    int64_t hidden = r->model->desc.hidden, end = begin + rows;
    memset(dy, 0, (size_t)(rows * hidden) * sizeof *dy);
    for (int64_t g = mg_model_graph_at(r->batch, begin); g < r->batch->graphs && r->batch->segments[g] < end; g++) {
        node_range range = pooled_tokens(r, g);
        float share = share_of(r, range);
        for (int64_t i = range.begin > begin ? range.begin : begin; i < range.end && i < end; i++)
            r->model->rows->add_scaled(dy + (i - begin) * hidden, r->pass->dpooled + g * hidden, share, hidden);
    }
}

static void norm_chunk_backward(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const head_places *at = &r->model->head;
    int64_t hidden = r->model->desc.hidden;
    float *dx = r->pass->dx + begin * hidden, *dy = s->hidden[0];
    size_t bytes = (size_t)(rows * hidden) * sizeof *dx;
    (void)layer;
    if (r->model->desc.readout == MG_MODEL_NODES)
        memcpy(dy, dx, bytes);
    else
        spread_rows(r, dy, begin, rows);
    memset(dx, 0, bytes);
    r->model->rows->norm_backward(dx, sum_of(to, at->norm_weight), sum_of(to, at->norm_bias), dy,
                                  r->pass->last + begin * hidden, r->parameters + at->norm_weight, rows, hidden);
}

int mg_model_head_backward(const run *r, const float *doutputs)
{
    const head_places *at = &r->model->head;
    double *seconds = &r->pass->times.other;
    r->pass->doutputs = doutputs;
    int status = mg_model_sweep_sums(r, output_chunk_backward, 0, output_rows(r), at->weight, at->end, seconds);
    return status ? status
                  : mg_model_sweep_sums(r, norm_chunk_backward, 0, r->batch->tokens, at->begin, at->weight, seconds);
}
