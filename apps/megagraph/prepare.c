#include "prepare.h"

#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "baseline.h"
#include "bias.h"
#include "progress.h"
#include "shard.h"

mg_model_desc mg_prepare_model(const mg_config *config, int64_t inputs, int64_t edge_inputs, int64_t outputs)
{
    static const mg_model_readout readouts[] = {MG_MODEL_NODES, MG_MODEL_MEAN, MG_MODEL_SUM, MG_MODEL_VIRTUAL};
    int has_virtual = config->model.virtual_token == MG_SWITCH_ON;
    return (mg_model_desc){.kind = (mg_model_kind)config->model.kind,
                           .inputs = inputs,
                           .edge_inputs = edge_inputs,
                           .outputs = outputs,
                           .layers = (int32_t)config->model.layers,
                           .hidden = (int32_t)config->model.hidden,
                           .heads = (int32_t)config->model.heads,
                           .ffn = config->model.ffn,
                           .local = (mg_model_local)(config->model.local - MG_LOCAL_NONE),
                           .readout = readouts[config->model.readout],
                           .dropout = (float)config->model.dropout,
                           .attention_dropout = (float)config->model.attention_dropout,
                           .input_dropout = (float)config->model.input_dropout,
                           .codes = mg_bias_codes(config),
                           .path_steps = (int32_t)config->model.encodings.edge_path,
                           .degree = (int32_t)config->model.encodings.degree,
                           .laplacian = (int32_t)config->model.encodings.laplacian,
                           .random_walk = (int32_t)config->model.encodings.random_walk,
                           .virtual_token = has_virtual,
                           .gain = (float)config->model.gain,
                           .norms = (mg_model_norms)config->model.norms};
}

/* --- one unit --- */

void mg_unit_destroy(mg_unit *unit)
{
    if (!unit)
        return;
    mg_attn_plan_destroy(unit->plan);
    mg_shard_destroy(unit->shard);
    mg_bias_clear(unit);
    mg_dataset_batch_destroy(unit->batch);
    void *const blocks[] = {unit->features,      unit->laplacian, unit->random_walk,
                            unit->edge_features, unit->degrees,   unit->row_items};
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        release(blocks[b]);
    release(unit);
}

/* Rows `places` of a table; places < 0 give zeros. */
static int gather(float **out, const float *table, int64_t columns, const int64_t *places, int64_t rows)
{
    if (!table || !columns)
        return 0;
    if (!(*out = allocate(rows * columns, sizeof(float))))
        return -ENOMEM;
    for (int64_t r = 0; r < rows; r++) {
        float *row = *out + r * columns;
        if (places[r] < 0)
            memset(row, 0, (size_t)columns * sizeof *row);
        else
            memcpy(row, table + places[r] * columns, (size_t)columns * sizeof *row);
    }
    return 0;
}

int mg_unit_gather(mg_unit *unit, const mg_units *units, const int64_t *nodes, int64_t count)
{
    const mg_dataset *data = units->data;
    const mg_encodings *encodings = &units->encodings;
    const float *features = encodings->features ? encodings->features : data->features;
    int status = gather(&unit->features, features, data->feature_count, nodes, count);
    if (!status)
        status = gather(&unit->laplacian, encodings->laplacian, units->config.model.encodings.laplacian, nodes, count);
    if (!status)
        status =
            gather(&unit->random_walk, encodings->random_walk, units->config.model.encodings.random_walk, nodes, count);
    unit->degrees = status ? NULL : allocate_zeroed(count, sizeof(int32_t));
    for (int64_t t = 0; unit->degrees && t < count; t++)
        if (nodes[t] >= 0)
            unit->degrees[t] = encodings->degrees[nodes[t]];
    return status ? status : unit->degrees ? 0 : -ENOMEM;
}

static int gather_all(mg_unit *unit, const mg_units *units)
{
    const mg_dataset *data = units->data;
    const mg_dataset_batch *batch = unit->batch;
    int status = mg_unit_gather(unit, units, batch->nodes, batch->tokens);
    return status ? status
                  : gather(&unit->edge_features, data->edge_features, data->edge_feature_count, batch->dataset_edges,
                           batch->edges);
}

static int map_rows(mg_unit *unit, const mg_dataset *data)
{
    const mg_dataset_batch *batch = unit->batch;
    unit->rows = data->level == MG_DATASET_NODE ? batch->tokens : batch->graphs;
    unit->row_items = allocate(unit->rows, sizeof(int64_t));
    if (unit->row_items)
        memcpy(unit->row_items, data->level == MG_DATASET_NODE ? batch->nodes : batch->items,
               (size_t)unit->rows * sizeof(int64_t));
    return unit->row_items ? 0 : -ENOMEM;
}

static void show(mg_unit *unit)
{
    const mg_dataset_batch *batch = unit->batch;
    unit->view = (mg_model_batch){.tokens = batch->tokens,
                                  .graphs = batch->graphs,
                                  .segments = batch->segments,
                                  .ids = batch->ids,
                                  .features = unit->features,
                                  .degrees = unit->degrees,
                                  .laplacian = unit->laplacian,
                                  .random_walk = unit->random_walk,
                                  .graph = batch->graph,
                                  .edge_features = unit->edge_features,
                                  .plan = unit->plan,
                                  .near = unit->near,
                                  .paths = unit->paths};
}

/* Takes the batch. */
static int unit_create(mg_unit **out, const mg_units *units, mg_bias *storage, mg_dataset_batch *batch)
{
    mg_unit *unit = allocate_zeroed(1, sizeof *unit);
    *out = NULL;
    if (!unit) {
        mg_dataset_batch_destroy(batch);
        return -ENOMEM;
    }
    unit->batch = batch;
    int status = map_rows(unit, units->data);
    if (!status)
        status = gather_all(unit, units);
    if (!status)
        status = mg_bias_plan(unit, storage, &units->config);
    if (status) {
        mg_unit_destroy(unit);
        return status;
    }
    show(unit);
    *out = unit;
    return 0;
}

/* --- fixed units: the whole graph, or clusters --- */

/* A unit of nodes[count], put in a good order first. */
static int unit_of_nodes(mg_unit **out, mg_units *units, int32_t *nodes, int64_t count, mg_cache *cache)
{
    mg_graph *part = NULL;
    mg_dataset_batch *batch = NULL;
    int32_t *order = allocate(count, 2 * sizeof *order), *ordered = order ? order + count : NULL;
    int status = order ? 0 : -ENOMEM;
    if (!status)
        status = relay(mg_graph_induce(&part, units->data->graph, nodes, count), mg_graph_last_error());
    if (!status)
        status = mg_encode_order(order, part, &units->config, cache);
    for (int64_t p = 0; p < count && !status; p++)
        ordered[p] = nodes[order[p]];
    mg_graph_destroy(part);
    if (!status)
        status = relay(mg_dataset_pack_nodes(&batch, units->data, ordered, count), mg_dataset_last_error());
    release(order);
    if (status)
        return status;
    mg_bias storage;
    status = mg_bias_choose(&storage, batch->graph, &units->config, 1, 0);
    if (status) {
        mg_dataset_batch_destroy(batch);
        return status;
    }
    status = unit_create(out, units, &storage, batch);
    units->config.attention.bias = (int32_t)storage; /* the first cluster decides for all */
    return status;
}

/* Nodes by part: nodes[begin[p] .. begin[p + 1]). */
static void sort_by_part(int32_t *sorted, int64_t *begin, const int32_t *parts, int64_t nodes, int64_t count)
{
    memset(begin, 0, (size_t)(count + 2) * sizeof *begin);
    for (int64_t i = 0; i < nodes; i++)
        begin[parts[i] + 2]++;
    for (int64_t p = 1; p < count + 2; p++)
        begin[p] += begin[p - 1];
    for (int64_t i = 0; i < nodes; i++)
        sorted[begin[parts[i] + 1]++] = (int32_t)i;
}

static int cut_clusters(int32_t *parts, const mg_units *units, mg_cache *cache)
{
    const mg_graph *graph = units->data->graph;
    int64_t cut;
    if (units->fixed_count == 1) {
        memset(parts, 0, (size_t)graph->nodes * sizeof *parts);
        return 0;
    }
    int status =
        mg_encode_clusters(parts, &cut, graph, (int32_t)units->fixed_count, (uint64_t)units->config.seed, cache);
    if (!status && cut)
        mg_progress_say("note: %lld of %lld edges run between the %lld clusters and are not seen", (long long)cut,
                        (long long)graph->edges, (long long)units->fixed_count);
    return status;
}

static int create_fixed(mg_units *units, mg_cache *cache)
{
    int64_t nodes = units->data->graph->nodes, count = units->fixed_count;
    int32_t *parts = allocate(nodes, 2 * sizeof *parts), *sorted = parts ? parts + nodes : NULL;
    int64_t *begin = allocate(count + 2, sizeof *begin);
    units->fixed = allocate_zeroed(count, sizeof *units->fixed);
    int status = parts && begin && units->fixed ? cut_clusters(parts, units, cache) : -ENOMEM;
    if (!status)
        sort_by_part(sorted, begin, parts, nodes, count);
    for (int64_t c = 0; c < count && !status; c++)
        status = unit_of_nodes(&units->fixed[c], units, sorted + begin[c], begin[c + 1] - begin[c], cache);
    release(parts);
    release(begin);
    return status;
}

static int create_shard(mg_units *units, mg_cache *cache)
{
    units->fixed = allocate_zeroed(1, sizeof *units->fixed);
    return units->fixed ? mg_shard_unit(&units->fixed[0], units, cache) : -ENOMEM;
}

int mg_units_create(mg_units **out, const mg_dataset *data, mg_config *config, mg_cache *cache)
{
    double start = mg_progress_seconds();
    mg_units *units = allocate_zeroed(1, sizeof *units);
    *out = NULL;
    if (!units)
        return -ENOMEM;
    units->data = data;
    units->config = *config;
    units->comm = cache->comm;
    int packs = data->graphs > 1 || data->level == MG_DATASET_GRAPH;
    units->fixed_count = packs ? 0 : config->train.clusters > 1 ? config->train.clusters : 1;
    int status = packs ? mg_bias_check_packs(&units->config) : 0;
    int shards = units->comm || mg_baseline_is_engine(config);
    if (!status && shards)
        status = mg_shard_resolve(&units->config, data);
    if (status)
        mg_ranks_alike(status);
    if (!status)
        status = mg_encode_create(&units->encodings, data, config, cache);
    if (!status && shards)
        status = create_shard(units, cache);
    else if (!status && units->fixed_count)
        status = create_fixed(units, cache);
    if (status) {
        mg_units_destroy(units);
        return status;
    }
    if (units->fixed_count)
        mg_encode_clear(&units->encodings);
    config->attention.bias = units->config.attention.bias;
    config->parallel.context_method = units->config.parallel.context_method;
    units->seconds = mg_progress_seconds() - start;
    *out = units;
    return 0;
}

void mg_units_own_features(const mg_units *units, mg_dataset *data)
{
    if (!units->fixed_count)
        return;
    mg_graph_free(data->features);
    mg_graph_free(data->edge_features);
    data->features = data->edge_features = NULL;
}

void mg_units_destroy(mg_units *units)
{
    if (!units)
        return;
    for (int64_t c = 0; units->fixed && c < units->fixed_count; c++)
        mg_unit_destroy(units->fixed[c]);
    release(units->fixed);
    mg_encode_clear(&units->encodings);
    release(units);
}

/* --- epochs --- */

int mg_epoch_create(mg_epoch *epoch, const mg_units *units, const int64_t *graphs, int64_t count, int shuffle,
                    uint64_t seed, int64_t number)
{
    int64_t things = units->fixed_count ? units->fixed_count : graphs ? count : units->data->graphs;
    int64_t per_unit = units->fixed_count ? 1 : units->config.train.batch_graphs;
    int64_t *given = allocate(things, sizeof *given);
    *epoch = (mg_epoch){.units = units,
                        .graphs = things,
                        .per_unit = per_unit,
                        .count = (things + per_unit - 1) / per_unit,
                        .order = allocate(things, sizeof *given)};
    if (!given || !epoch->order) {
        release(given);
        mg_epoch_clear(epoch);
        return -ENOMEM;
    }
    for (int64_t g = 0; g < things; g++)
        given[g] = graphs && !units->fixed_count ? graphs[g] : g;
    if (shuffle)
        mg_dataset_shuffle(epoch->order, given, things, seed, number);
    else
        memcpy(epoch->order, given, (size_t)things * sizeof *given);
    release(given);
    return 0;
}

void mg_epoch_clear(mg_epoch *epoch)
{
    release(epoch->order);
    *epoch = (mg_epoch){0};
}

static int64_t graphs_of(const mg_epoch *epoch, int64_t k)
{
    int64_t left = epoch->graphs - k * epoch->per_unit;
    return left < epoch->per_unit ? left : epoch->per_unit;
}

int mg_epoch_take(mg_unit **out, const mg_epoch *epoch, int64_t k)
{
    const mg_units *units = epoch->units;
    *out = NULL;
    if (units->fixed_count) {
        *out = units->fixed[epoch->order[k]];
        return 0;
    }
    mg_bias storage = MG_BIAS_NEAR;
    mg_dataset_batch *batch;
    int status = mg_dataset_pack(&batch, units->data, epoch->order + k * epoch->per_unit, graphs_of(epoch, k),
                                 units->config.model.virtual_token == MG_SWITCH_ON);
    return status ? relay(status, mg_dataset_last_error()) : unit_create(out, units, &storage, batch);
}

void mg_epoch_return(const mg_epoch *epoch, mg_unit *unit)
{
    if (!epoch->units->fixed_count)
        mg_unit_destroy(unit);
}

void mg_epoch_items(const mg_epoch *epoch, int64_t k, void (*visit)(void *context, int64_t item), void *context)
{
    const mg_units *units = epoch->units;
    if (units->fixed_count) {
        const mg_unit *unit = units->fixed[epoch->order[k]];
        for (int64_t r = 0; r < unit->rows; r++)
            visit(context, unit->row_items[r]);
        return;
    }
    for (int64_t g = 0; g < graphs_of(epoch, k); g++) {
        int64_t graph = epoch->order[k * epoch->per_unit + g];
        if (units->data->level == MG_DATASET_GRAPH)
            visit(context, graph);
        else
            for (int64_t i = units->data->segments[graph]; i < units->data->segments[graph + 1]; i++)
                visit(context, i);
    }
}
