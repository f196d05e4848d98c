#include "baseline.h"

#include "app.h"
#include "memory.h"
#include "model.h"
#include "progress.h"
#include "ranks.h"

static const char *name_of(const mg_config *config)
{
    static const char *const names[] = {"none", "dense", "dense_rows", "flash", "edge", "edge_rows"};
    return names[config->baseline];
}

static int has_edges(const mg_config *config)
{
    return config->baseline == MG_BASELINE_EDGE || config->baseline == MG_BASELINE_EDGE_ROWS;
}

int mg_baseline_is_engine(const mg_config *config) { return config->baseline && config->baseline != MG_BASELINE_FLASH; }

/* --- settling --- */

static int settle_flash(mg_config *config)
{
    config->model.encodings.distance = config->model.encodings.edge_path = 0;
    config->attention.far = MG_FAR_BIAS;
    mg_progress_say("note: baseline flash is attention without bias over all pairs: another model, with losses of its "
                    "own");
    return 0;
}

static int settle_storage(mg_config *config)
{
    int edge = has_edges(config);
    mg_bias storage = edge ? MG_BIAS_NEAR : MG_BIAS_DENSE;
    if (edge && config->attention.far != MG_FAR_MASK)
        return fail(-EINVAL, "baseline %s sees near pairs alone, but attention.far is bias: set attention.far=mask",
                    name_of(config));
    if (config->attention.bias != MG_BIAS_AUTO && config->attention.bias != (int32_t)storage)
        return fail(-EINVAL, "baseline %s needs attention.bias %s; it is %s", name_of(config), edge ? "near" : "dense",
                    mg_options_word(config, "attention.bias"));
    config->attention.bias = (int32_t)storage;
    return 0;
}

int mg_baseline_resolve(mg_config *config, const mg_dataset *data)
{
    if (!config->baseline)
        return 0;
    if (!config->model.heads)
        return fail(-EINVAL, "baseline is %s, but model.heads is 0: there is no attention", name_of(config));
    if (!mg_baseline_is_engine(config))
        return settle_flash(config);
    if (data->graphs > 1 || data->level == MG_DATASET_GRAPH || config->train.clusters > 1)
        return fail(-EINVAL, "baseline %s is for one whole graph, but there are %lld graphs, %lld clusters",
                    name_of(config), (long long)data->graphs, (long long)config->train.clusters);
    if (config->model.attention_dropout > 0)
        return fail(-EINVAL, "baseline %s has no attention dropout; model.attention_dropout is %g: set it to 0",
                    name_of(config), config->model.attention_dropout);
    if (!config->model.encodings.distance || config->model.encodings.edge_path)
        return fail(-EINVAL,
                    "baseline %s needs a bias by distance and none by paths; model.encodings.distance is %lld, "
                    "edge_path %lld",
                    name_of(config), (long long)config->model.encodings.distance,
                    (long long)config->model.encodings.edge_path);
    return settle_storage(config);
}

int mg_baseline_method(mg_config *config)
{
    int32_t *method = &config->parallel.context_method;
    if (config->parallel.ranks == 1)
        return 0;
    if (*method == MG_METHOD_AUTO)
        *method = MG_METHOD_ALL_TO_ALL;
    if (*method != MG_METHOD_ALL_TO_ALL)
        return fail(-EINVAL, "baseline is %s, which shares heads out; parallel.context_method is %s: take all_to_all",
                    name_of(config), mg_options_word(config, "parallel.context_method"));
    if (config->parallel.ranks > config->model.heads)
        return fail(-EINVAL, "baseline is %s, which shares heads out: %lld ranks are more than the %lld heads",
                    name_of(config), (long long)config->parallel.ranks, (long long)config->model.heads);
    return 0;
}

/* --- memory --- */

static mg_model_baseline_desc describe(const mg_config *config, int64_t heads)
{
    static const mg_model_baseline_kind kinds[] = {[MG_BASELINE_DENSE] = MG_MODEL_BASELINE_DENSE,
                                                   [MG_BASELINE_DENSE_ROWS] = MG_MODEL_BASELINE_DENSE_ROWS,
                                                   [MG_BASELINE_EDGE] = MG_MODEL_BASELINE_EDGE,
                                                   [MG_BASELINE_EDGE_ROWS] = MG_MODEL_BASELINE_EDGE_ROWS};
    return (mg_model_baseline_desc){.kind = kinds[config->baseline],
                                    .heads = (int32_t)heads,
                                    .dim = (int32_t)(config->model.hidden / config->model.heads),
                                    .layers = (int32_t)config->model.layers};
}

static int refuse_bytes(const mg_config *config, int64_t heads, int64_t nodes, int64_t pairs, double codes, int local)
{
    mg_model_baseline_desc desc = describe(config, heads);
    double bytes = mg_model_baseline_bytes(&desc, nodes, pairs, (int)config->threads) + codes;
    int64_t most = config->memory ? config->memory - mg_memory_held() : mg_memory_machine() / 10 * 7 / local;
    if (bytes <= (double)most)
        return 0;
    return fail(-ENOMEM,
                "baseline %s needs %.0f bytes (%.1f GiB) on each rank: %lld pairs of %lld nodes, %lld heads, %lld "
                "layers; %s: %.1f GiB",
                name_of(config), bytes, bytes / 0x1p30, (long long)pairs, (long long)nodes, (long long)heads,
                (long long)config->model.layers, config->memory ? "--memory leaves" : "of the machine a rank may have",
                (double)most / 0x1p30);
}

int mg_baseline_check(const mg_config *config, const mg_dataset *data, int local)
{
    int64_t nodes = data->graph->nodes, ranks = config->parallel.ranks, pairs = nodes * nodes;
    if (!mg_baseline_is_engine(config) || has_edges(config))
        return 0;
    return refuse_bytes(config, (config->model.heads + ranks - 1) / ranks, nodes, pairs, (double)pairs, local);
}

int mg_baseline_create(mg_model_baseline **out, const mg_config *config, const mg_attn_map *map, int rank, int ranks)
{
    int64_t heads = config->model.heads, own = heads * (rank + 1) / ranks - heads * rank / ranks;
    mg_model_baseline_desc desc = describe(config, own);
    desc.map = map;
    int status =
        has_edges(config) ? refuse_bytes(config, own, map->queries, map->near_starts[map->queries], 0, ranks) : 0;
    return status ? status : relay(mg_model_baseline_create(out, &desc), mg_model_last_error());
}
