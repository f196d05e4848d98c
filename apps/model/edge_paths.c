/* Graphormer's edge encoding: what the edges along a pair's path add to its score, the mean over the steps of one inner
 * product each. Pairs go by ranges; each range sums its own gradient of the path weights. Weights and their gradients
 * are here [steps][inputs][heads], so that heads are the inner loop. */
#include "internal.h"

#include <string.h>

static int64_t weight_floats(const mg_model_desc *desc)
{
    return (int64_t)desc->path_steps * desc->edge_inputs * desc->heads;
}

/* Where the parameter has what stands at s, k, h here. */
static int64_t place_of(const mg_model_desc *desc, int64_t s, int64_t k, int64_t h)
{
    return (s * desc->heads + h) * desc->edge_inputs + k;
}

static void load_weight(const run *r, int64_t layer)
{
    const mg_model_desc *desc = &r->model->desc;
    const float *weight = r->parameters + r->model->blocks[layer].path;
    float *to = r->pass->path_weight;
    for (int64_t s = 0; s < desc->path_steps; s++)
        for (int64_t k = 0; k < desc->edge_inputs; k++)
            for (int64_t h = 0; h < desc->heads; h++)
                *to++ = weight[place_of(desc, s, k, h)];
}

typedef struct pair_path {
    const int32_t *edges;
    int64_t steps;
} pair_path;

static pair_path path_of(const run *r, int64_t pair)
{
    const mg_graph_paths *paths = r->batch->paths;
    return (pair_path){paths->edges + paths->starts[pair], paths->starts[pair + 1] - paths->starts[pair]};
}

static int64_t range_begin(const run *r, int64_t range) { return range * r->batch->near->pairs / PAIR_RANGES; }

static void values_range(const run *r, scratch *s, int64_t layer, int64_t range)
{
    const mg_model_desc *desc = &r->model->desc;
    int64_t heads = desc->heads, inputs = desc->edge_inputs, pairs = r->batch->near->pairs;
    float *sum = s->hidden[0];
    (void)layer;
    for (int64_t p = range_begin(r, range); p < range_begin(r, range + 1); p++) {
        pair_path path = path_of(r, p);
        memset(sum, 0, (size_t)heads * sizeof *sum);
        for (int64_t step = 0; step < path.steps; step++)
            for (int64_t k = 0; k < inputs; k++)
                r->model->rows->add_scaled(sum, r->pass->path_weight + (step * inputs + k) * heads,
                                           r->batch->edge_features[path.edges[step] * inputs + k], heads);
        for (int64_t h = 0; h < heads; h++)
            r->pass->values[h * pairs + p] = path.steps ? sum[h] / (float)path.steps : 0;
    }
}

void mg_model_path_values(const run *r, int64_t layer)
{
    if (!r->model->desc.path_steps)
        return;
    load_weight(r, layer);
    mg_model_sweep_ranges(r, values_range, layer, PAIR_RANGES);
}

static void gradient_range(const run *r, scratch *s, int64_t layer, int64_t range)
{
    const mg_model_desc *desc = &r->model->desc;
    int64_t heads = desc->heads, inputs = desc->edge_inputs, pairs = r->batch->near->pairs;
    float *share = s->hidden[0], *sum = r->pass->path_partials + range * weight_floats(desc);
    (void)layer;
    memset(sum, 0, (size_t)weight_floats(desc) * sizeof *sum);
    for (int64_t p = range_begin(r, range); p < range_begin(r, range + 1); p++) {
        pair_path path = path_of(r, p);
        for (int64_t h = 0; h < heads && path.steps; h++)
            share[h] = r->pass->dvalues[h * pairs + p] / (float)path.steps;
        for (int64_t step = 0; step < path.steps; step++)
            for (int64_t k = 0; k < inputs; k++)
                r->model->rows->add_scaled(sum + (step * inputs + k) * heads, share,
                                           r->batch->edge_features[path.edges[step] * inputs + k], heads);
    }
}

void mg_model_path_values_backward(const run *r, int64_t layer)
{
    const mg_model_desc *desc = &r->model->desc;
    float *to = r->gradients + r->model->blocks[layer].path, *sum = r->pass->path_partials;
    if (!desc->path_steps)
        return;
    mg_model_sweep_ranges(r, gradient_range, layer, PAIR_RANGES);
    for (int64_t range = 1; range < PAIR_RANGES; range++)
        r->model->rows->add(sum, sum + range * weight_floats(desc), weight_floats(desc));
    for (int64_t s = 0; s < desc->path_steps; s++)
        for (int64_t k = 0; k < desc->edge_inputs; k++)
            for (int64_t h = 0; h < desc->heads; h++)
                to[place_of(desc, s, k, h)] += *sum++;
}
