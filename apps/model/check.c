/* What a description and a batch must be like; each refusal names the field and the value. */
#include "internal.h"

#define MOST 0x7fffffff

static int check_range(const char *field, int64_t value, int64_t least, int64_t most)
{
    if (value < least || value > most)
        return fail(-EINVAL, "model: %s is %lld; it is %lld to %lld", field, (long long)value, (long long)least,
                    (long long)most);
    return 0;
}

static int check_probability(const char *field, float value)
{
    if (!(value >= 0 && value < 1))
        return fail(-EINVAL, "model: %s is %g; it is a probability from 0 to below 1", field, (double)value);
    return 0;
}

static int check_sizes(const mg_model_desc *desc)
{
    const struct {
        const char *field;
        int64_t value, least, most;
    } sizes[] = {
        {"kind", (int64_t)desc->kind, MG_MODEL_GRAPHORMER, MG_MODEL_GPS},
        {"local", (int64_t)desc->local, MG_MODEL_LOCAL_NONE, MG_MODEL_LOCAL_GATEDGCN},
        {"readout", (int64_t)desc->readout, MG_MODEL_NODES, MG_MODEL_VIRTUAL},
        {"norms", (int64_t)desc->norms, MG_MODEL_NORMS_ALL, MG_MODEL_NORMS_HEAD},
        {"inputs", desc->inputs, 0, MOST},
        {"edge_inputs", desc->edge_inputs, 0, MOST},
        {"outputs", desc->outputs, 1, MOST},
        {"layers", desc->layers, 1, 65535},
        {"hidden", desc->hidden, 1, 1 << 20},
        {"heads", desc->heads, 0, desc->hidden},
        {"ffn", desc->ffn, 0, MOST},
        {"codes", desc->codes, 0, MG_ATTN_MAX_CODES},
        {"path_steps", desc->path_steps, 0, 255},
        {"degree", desc->degree, 0, MOST},
        {"laplacian", desc->laplacian, 0, MOST},
        {"random_walk", desc->random_walk, 0, MOST},
    };
    int status = 0;
    for (size_t i = 0; !status && i < sizeof sizes / sizeof *sizes; i++)
        status = check_range(sizes[i].field, sizes[i].value, sizes[i].least, sizes[i].most);
    return status;
}

static int check_attention(const mg_model_desc *desc)
{
    if (!desc->heads && desc->kind != MG_MODEL_GPS)
        return fail(-EINVAL, "model: heads is 0; only gps can go without attention");
    if (!desc->heads && desc->local == MG_MODEL_LOCAL_NONE)
        return fail(-EINVAL, "model: heads is 0 and local is none: blocks would see no other token");
    if (!desc->heads && (desc->codes || desc->path_steps))
        return fail(-EINVAL, "model: codes is %d and path_steps is %d, but heads is 0: there is no attention to bias",
                    desc->codes, desc->path_steps);
    if (desc->heads && desc->hidden % desc->heads)
        return fail(-EINVAL, "model: hidden is %d; it must be a multiple of heads, %d", desc->hidden, desc->heads);
    if (desc->heads && desc->hidden / desc->heads > MG_ATTN_MAX_DIM)
        return fail(-EINVAL, "model: hidden / heads is %d; a head has at most %d columns: take more heads",
                    desc->hidden / desc->heads, MG_ATTN_MAX_DIM);
    if (desc->path_steps && !desc->edge_inputs)
        return fail(-EINVAL, "model: path_steps is %d but edge_inputs is 0: edge paths need edge features",
                    desc->path_steps);
    return 0;
}

static int check_parts(const mg_model_desc *desc)
{
    if (desc->local != MG_MODEL_LOCAL_NONE && desc->kind != MG_MODEL_GPS)
        return fail(-EINVAL, "model: local is %d; only gps has a local part", (int)desc->local);
    if (desc->readout == MG_MODEL_VIRTUAL && !desc->virtual_token)
        return fail(-EINVAL, "model: readout is virtual but virtual_token is 0");
    if (!desc->inputs && !desc->degree && !desc->laplacian && !desc->random_walk)
        return fail(-EINVAL, "model: inputs, degree, laplacian and random_walk are all 0: nothing tells tokens apart");
    return 0;
}

int mg_model_check_desc(const mg_model_desc *desc)
{
    int status = check_sizes(desc);
    if (!status)
        status = check_attention(desc);
    if (!status)
        status = check_parts(desc);
    if (!status)
        status = check_probability("dropout", desc->dropout);
    if (!status)
        status = check_probability("attention_dropout", desc->attention_dropout);
    if (!status)
        status = check_probability("input_dropout", desc->input_dropout);
    if (!status && !(desc->gain >= 0 && desc->gain <= 1))
        status = fail(-EINVAL, "model: gain is %g; it is 0, for none, to 1", (double)desc->gain);
    return status;
}

/* --- batches --- */

static int check_segments(const mg_model_desc *desc, const mg_model_batch *batch)
{
    if (batch->tokens < 0 || batch->tokens > MOST || batch->graphs < 0 || batch->graphs > batch->tokens + MOST)
        return fail(-EINVAL, "batch: %lld tokens, %lld graphs; a batch has 0 to %d tokens", (long long)batch->tokens,
                    (long long)batch->graphs, MOST);
    if (!batch->segments)
        return fail(-EINVAL, "batch: segments is not given");
    if (batch->segments[0] != 0 || batch->segments[batch->graphs] != batch->tokens)
        return fail(-EINVAL, "batch: segments run from %lld to %lld; they must run from 0 to the %lld tokens",
                    (long long)batch->segments[0], (long long)batch->segments[batch->graphs], (long long)batch->tokens);
    for (int64_t g = 0; g < batch->graphs; g++) {
        int64_t size = batch->segments[g + 1] - batch->segments[g];
        if (size < 0)
            return fail(-EINVAL, "batch: graph %lld runs from token %lld to %lld; segments must ascend", (long long)g,
                        (long long)batch->segments[g], (long long)batch->segments[g + 1]);
        if (!size && desc->virtual_token)
            return fail(-EINVAL, "batch: graph %lld has no token, but its last is the virtual one", (long long)g);
    }
    return 0;
}

static int check_inputs(const mg_model_desc *desc, const mg_model_batch *batch)
{
    const struct {
        const char *field;
        const void *data;
        int64_t size;
    } inputs[] = {
        {"features", batch->features, desc->inputs},
        {"degrees", batch->degrees, desc->degree},
        {"laplacian", batch->laplacian, desc->laplacian},
        {"random_walk", batch->random_walk, desc->random_walk},
    };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (inputs[i].size && !inputs[i].data && batch->tokens)
            return fail(-EINVAL, "batch: %s is not given, but the model has %lld", inputs[i].field,
                        (long long)inputs[i].size);
    for (int64_t g = 0; desc->degree && g < batch->graphs; g++)
        for (int64_t i = batch->segments[g]; i < batch->segments[g + 1] - (desc->virtual_token != 0); i++)
            if (batch->degrees[i] < 0)
                return fail(-EINVAL, "batch: token %lld has degree %d", (long long)i, batch->degrees[i]);
    return 0;
}

static int check_graph(const mg_model_desc *desc, const mg_model_batch *batch)
{
    int edges = desc->edge_inputs &&
                (desc->path_steps || desc->local == MG_MODEL_LOCAL_GINE || desc->local == MG_MODEL_LOCAL_GATEDGCN);
    if ((desc->local != MG_MODEL_LOCAL_NONE || edges) && !batch->graph)
        return fail(-EINVAL, "batch: graph is not given, but the model looks at edges");
    if (batch->graph && desc->local != MG_MODEL_LOCAL_NONE && batch->graph->nodes != batch->tokens)
        return fail(-EINVAL, "batch: the graph has %lld nodes, but there are %lld tokens",
                    (long long)batch->graph->nodes, (long long)batch->tokens);
    if (edges && batch->graph->edges && !batch->edge_features)
        return fail(-EINVAL, "batch: edge_features is not given, but the model has edge_inputs %lld",
                    (long long)desc->edge_inputs);
    return 0;
}

static int check_paths(const mg_model_desc *desc, const mg_model_batch *batch)
{
    const mg_graph_paths *paths = batch->paths;
    if (!batch->near || !paths)
        return fail(-EINVAL, "batch: near or paths is not given, but the model has path_steps %d", desc->path_steps);
    if (batch->near->nodes != batch->tokens || paths->pairs != batch->near->pairs)
        return fail(-EINVAL, "batch: near has %lld nodes and %lld pairs, paths %lld pairs, for %lld tokens",
                    (long long)batch->near->nodes, (long long)batch->near->pairs, (long long)paths->pairs,
                    (long long)batch->tokens);
    for (int64_t p = 0; p < paths->pairs; p++) {
        int64_t steps = paths->starts[p + 1] - paths->starts[p];
        if (steps < 0 || steps > desc->path_steps)
            return fail(-EINVAL, "batch: the path of near pair %lld has %lld edges, but path_steps is %d", (long long)p,
                        (long long)steps, desc->path_steps);
    }
    return 0;
}

static int check_plan(const mg_model_desc *desc, const mg_model_batch *batch)
{
    mg_attn_plan_info info;
    if (!batch->plan && !batch->context)
        return fail(-EINVAL, "batch: plan is not given, but the model has attention");
    if (batch->plan && batch->context)
        return fail(-EINVAL, "batch: plan and context are given; attention goes by one of them");
    if (batch->context)
        return 0;
    mg_attn_plan_describe(&info, batch->plan);
    if (info.queries != batch->tokens || info.keys != batch->tokens)
        return fail(-EINVAL, "batch: the plan has %lld queries and %lld keys, but there are %lld tokens",
                    (long long)info.queries, (long long)info.keys, (long long)batch->tokens);
    if (desc->codes && info.codes != desc->codes)
        return fail(-EINVAL, "batch: the plan's map has %d codes, but the model's table has %d", info.codes,
                    desc->codes);
    if (desc->path_steps && info.map_pairs != batch->near->pairs)
        return fail(-EINVAL, "batch: the plan's map lists %lld pairs, but near has %lld", (long long)info.map_pairs,
                    (long long)batch->near->pairs);
    return 0;
}

/* Of a graph over many ranks. */
static int check_shard(const mg_model_desc *desc, const mg_model_batch *batch)
{
    if (desc->readout != MG_MODEL_NODES || desc->virtual_token || desc->path_steps)
        return fail(
            -EINVAL,
            "batch: context or halo is given, but readout is %d, virtual_token %d, path_steps %d; all must be 0",
            (int)desc->readout, desc->virtual_token, desc->path_steps);
    if (desc->local != MG_MODEL_LOCAL_NONE && !batch->halo)
        return fail(-EINVAL, "batch: context is given and halo is not, but the model has a local part");
    return 0;
}

int mg_model_check_batch(const mg_model *model, const mg_model_batch *batch)
{
    const mg_model_desc *desc = &model->desc;
    int status = check_segments(desc, batch);
    if (!status)
        status = check_inputs(desc, batch);
    if (!status)
        status = check_graph(desc, batch);
    if (!status && (batch->context || batch->halo))
        status = check_shard(desc, batch);
    if (!status && desc->path_steps)
        status = check_paths(desc, batch);
    if (!status && desc->heads)
        status = check_plan(desc, batch);
    return status;
}
