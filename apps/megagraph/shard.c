#include "shard.h"

#include <string.h>

#include "app.h"
#include "bias.h"
#include "progress.h"

/* --- what many ranks can do --- */

static int resolve_method(mg_config *config)
{
    int32_t *method = &config->parallel.context_method;
    int masked = config->attention.far == MG_FAR_MASK;
    int near = config->attention.bias == MG_BIAS_AUTO || config->attention.bias == MG_BIAS_NEAR;
    if (config->baseline)
        return mg_baseline_method(config);
    if (*method == MG_METHOD_AUTO)
        *method = masked && near ? MG_METHOD_HALO : MG_METHOD_RING;
    if (*method == MG_METHOD_HALO && !masked)
        return fail(-EINVAL, "parallel.context_method is halo, which fetches the few nodes that a rank sees, but "
                             "attention.far is bias: every node sees all; take ring or all_to_all");
    if (*method == MG_METHOD_HALO && !near)
        return fail(-EINVAL, "parallel.context_method is halo, which needs attention.bias near; it is %s",
                    mg_options_word(config, "attention.bias"));
    return 0;
}

int mg_shard_resolve(mg_config *config, const mg_dataset *data)
{
    long long ranks = (long long)config->parallel.ranks;
    if (data->graphs > 1 || data->level == MG_DATASET_GRAPH)
        return fail(-EINVAL, "%s has %lld graphs; %lld ranks can share one large graph, many graphs train on one rank",
                    data->name, (long long)data->graphs, ranks);
    if (config->train.clusters > 1)
        return fail(-EINVAL, "train.clusters is %lld, which is for one rank; %lld ranks share the whole graph",
                    (long long)config->train.clusters, ranks);
    if (config->model.encodings.edge_path)
        return fail(-EINVAL,
                    "model.encodings.edge_path is %lld, which is for one rank: the paths depend on the order of nodes, "
                    "that on the %lld ranks",
                    (long long)config->model.encodings.edge_path, ranks);
    int status = mg_baseline_check(config, data, (int)config->parallel.ranks);
    return status ? status : resolve_method(config);
}

/* --- the order --- */

/* Pairs that each node attends to, rows shared out; NULL: the same for all. */
static int count_pairs(int64_t **out, const mg_graph *graph, const mg_config *config, mg_comm *comm)
{
    enum { ROWS = 2048 };
    int hops = (int)config->model.encodings.distance, ranks = mg_ranks_count(comm), status = 0;
    int64_t nodes = graph->nodes, rank = mg_ranks_rank(comm), end = (rank + 1) * nodes / ranks;
    *out = NULL;
    if (config->attention.far != MG_FAR_MASK || hops < 2)
        return 0; /* all, or the degree and one */
    if (!(*out = allocate_zeroed(nodes, sizeof **out)))
        return -ENOMEM;
    for (int64_t begin = rank * nodes / ranks; begin < end && !status; begin += ROWS) {
        mg_graph_near *near;
        int64_t rows = end - begin < ROWS ? end - begin : ROWS;
        status = relay(mg_graph_near_create_rows(&near, graph, hops, begin, begin + rows), mg_graph_last_error());
        for (int64_t i = 0; i < rows && !status; i++)
            (*out)[begin + i] = near->starts[i + 1] - near->starts[i];
        if (!status)
            mg_graph_near_destroy(near);
    }
    return status ? status : mg_ranks_sum(comm, *out, nodes, MG_COMM_INT64);
}

static int cut(int32_t *parts, const mg_graph *graph, const mg_config *config, mg_comm *comm)
{
    int64_t *pairs, ranks = mg_ranks_count(comm);
    mg_graph_partition_report report;
    mg_graph_partition_desc desc = {.parts = (int32_t)(ranks < graph->nodes ? ranks : graph->nodes)};
    int status = count_pairs(&pairs, graph, config, comm);
    desc.node_weights = pairs;
    if (!status && mg_ranks_rank(comm) == 0)
        status = relay(mg_graph_partition(parts, &report, graph, &desc), mg_graph_last_error());
    release(pairs);
    status = mg_ranks_agree(comm, status);
    return status ? status : mg_ranks_broadcast(comm, parts, graph->nodes, MG_COMM_INT32);
}

/* first and nodes by part, nodes of a part as in the dataset. */
static void sort_parts(mg_shard *shard, const int32_t *parts, int64_t nodes, int ranks)
{
    int64_t *next = shard->first + 1; /* ends as first[r + 1] */
    memset(shard->first, 0, (size_t)(ranks + 1) * sizeof *shard->first);
    for (int64_t i = 0; i < nodes; i++)
        if (parts[i] + 1 < ranks)
            next[parts[i] + 1]++;
    for (int r = 1; r < ranks; r++)
        next[r] += next[r - 1];
    for (int64_t i = 0; i < nodes; i++)
        shard->nodes[next[parts[i]]++] = (int32_t)i;
}

/* This rank's part in a good order, then everybody's. */
static int order_parts(mg_shard *shard, const mg_graph *graph, const mg_config *config, mg_cache *cache)
{
    int ranks = mg_ranks_count(shard->comm), rank = mg_ranks_rank(shard->comm);
    int64_t count = shard->first[rank + 1] - shard->first[rank], *counts = allocate(ranks, sizeof *counts);
    int32_t *own = shard->nodes + shard->first[rank], *order = allocate(count, 2 * sizeof *order);
    mg_graph *part = NULL;
    int status = counts && order ? 0 : -ENOMEM;
    if (!status && count)
        status = relay(mg_graph_induce(&part, graph, own, count), mg_graph_last_error());
    if (!status && count)
        status = mg_encode_order(order, part, config, cache);
    for (int64_t p = 0; p < count && !status; p++)
        order[count + p] = own[order[p]];
    if (!status)
        memcpy(own, order + count, (size_t)count * sizeof *own);
    for (int r = 0; r < ranks && !status; r++)
        counts[r] = shard->first[r + 1] - shard->first[r];
    mg_graph_destroy(part);
    release(order);
    if (!status)
        status = mg_ranks_gather(shard->comm, shard->nodes, counts, MG_COMM_INT32);
    release(counts);
    return status;
}

/* Where all see all, each rank has as many whole rows of tiles: no tile of codes lies across two ranks, and nobody has
 * more to attend to than others. Nodes at the borders then go with the next part. */
static void share_tiles(mg_shard *shard, const mg_config *config)
{
    enum { TILE = 64, FEW = 8 };
    int ranks = mg_ranks_count(shard->comm);
    int64_t nodes = shard->first[ranks], tiles = (nodes + TILE - 1) / TILE;
    if (config->attention.far == MG_FAR_MASK || !config->model.heads || tiles < FEW * ranks)
        return;
    for (int r = 1; r < ranks; r++)
        shard->first[r] = tiles * r / ranks * TILE;
}

static uint64_t order_key(const mg_graph *graph, const mg_config *config, int ranks)
{
    int64_t depends[] = {ranks, config->model.encodings.distance, config->attention.far, mg_encode_order_kind(config),
                         (int64_t)(MG_GRAPH_IMBALANCE * 1000)};
    return mg_graph_hash_bytes(mg_graph_hash(graph), depends, sizeof depends);
}

/* shard->first and shard->nodes, one block. */
static int find_order(mg_shard *shard, const mg_graph *graph, const mg_config *config, mg_cache *cache)
{
    int ranks = mg_ranks_count(shard->comm);
    int64_t nodes = graph->nodes, bytes = (ranks + 1) * (int64_t)sizeof(int64_t) + nodes * (int64_t)sizeof(int32_t);
    uint64_t key = order_key(graph, config, ranks);
    shard->first = allocate(bytes, 1);
    int32_t *parts = allocate(nodes, sizeof *parts);
    if (!shard->first || !parts) {
        release(parts);
        return -ENOMEM;
    }
    shard->nodes = (int32_t *)(shard->first + ranks + 1);
    int32_t found = mg_encode_find(shard->first, bytes, cache, "shards", key);
    int status = mg_ranks_broadcast(shard->comm, &found, 1, MG_COMM_INT32);
    if (!status && found) {
        release(parts);
        status = mg_ranks_broadcast(shard->comm, shard->first, bytes, MG_COMM_BYTE);
        if (!status)
            share_tiles(shard, config);
        return status;
    }
    if (!status)
        status = cut(parts, graph, config, shard->comm);
    if (!status)
        sort_parts(shard, parts, nodes, ranks);
    release(parts);
    if (!status)
        status = order_parts(shard, graph, config, cache);
    if (status)
        return status;
    mg_encode_keep(cache, "shards", key, shard->first, bytes);
    share_tiles(shard, config);
    return 0;
}

/* --- edges --- */

/* Where node's row names `column`. */
static int64_t entry_of(const mg_graph *graph, int64_t node, int32_t column)
{
    int64_t low = graph->starts[node], high = graph->starts[node + 1];
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (graph->columns[middle] < column)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int gather_edge_features(mg_unit *unit, const mg_dataset *data, const mg_graph *whole)
{
    const mg_shard *shard = unit->shard;
    int64_t columns = data->edge_feature_count, begin = shard->first[mg_ranks_rank(shard->comm)];
    if (!columns)
        return 0;
    float *to = unit->edge_features = allocate(shard->lists.edges * columns, sizeof *to);
    if (!to)
        return -ENOMEM;
    for (int64_t i = begin; i < begin + shard->lists.nodes; i++)
        for (int64_t e = whole->starts[i]; e < whole->starts[i + 1]; e++, to += columns) {
            int64_t entry = entry_of(data->graph, shard->nodes[i], shard->nodes[whole->columns[e]]);
            memcpy(to, data->edge_features + entry * columns, (size_t)columns * sizeof *to);
        }
    return 0;
}

/* This rank's lists, and whose rows they name. */
static int take_lists(mg_unit *unit, const mg_units *units, const mg_graph *whole)
{
    mg_shard *shard = unit->shard;
    mg_attn_port port = mg_ranks_port(shard->comm);
    int64_t begin = shard->first[port.rank], rows = shard->first[port.rank + 1] - begin;
    int64_t edge = whole->starts[begin], edges = whole->starts[begin + rows] - edge;
    mg_graph *lists = &shard->lists;
    *lists = (mg_graph){.nodes = rows,
                        .edges = edges,
                        .starts = allocate(rows + 1, sizeof *lists->starts),
                        .columns = allocate(edges, sizeof *lists->columns)};
    if (!lists->starts || !lists->columns)
        return -ENOMEM;
    for (int64_t i = 0; i <= rows; i++)
        lists->starts[i] = whole->starts[begin + i] - edge;
    int status = relay(mg_attn_halo_create(&shard->halo, &port, shard->first, lists->starts, whole->columns + edge),
                       mg_attn_last_error());
    if (!status)
        mg_attn_halo_localise(lists->columns, shard->halo, lists->starts, whole->columns + edge);
    return status ? status : gather_edge_features(unit, units->data, whole);
}

/* --- codes --- */

/* Where one rank's tiles are too many, all stream. */
static int hold_codes(mg_attn_map *map, mg_unit *unit, mg_bias *storage, mg_config *config, const mg_graph *whole,
                      mg_attn_grid grid)
{
    const mg_shard *shard = unit->shard;
    int64_t begin, end, held;
    mg_attn_context_rows(&begin, &end, grid, shard->first, mg_ranks_rank(shard->comm));
    int status = mg_bias_hold(map, unit, storage, config, whole, begin, end);
    held = *storage;
    status = mg_ranks_agree(shard->comm, status);
    if (!status)
        status = mg_ranks_most(shard->comm, &held, 1);
    if (status || held == (int64_t)*storage)
        return status;
    mg_bias_clear(unit);
    *storage = (mg_bias)held;
    return mg_bias_hold(map, unit, storage, config, whole, begin, end);
}

static int plan(mg_unit *unit, mg_units *units, const mg_graph *whole)
{
    static const mg_attn_method methods[] = {
        [MG_METHOD_RING] = MG_ATTN_RING, [MG_METHOD_ALL_TO_ALL] = MG_ATTN_ALL_TO_ALL, [MG_METHOD_HALO] = MG_ATTN_HALO};
    mg_shard *shard = unit->shard;
    mg_config *config = &units->config;
    mg_attn_map map;
    mg_attn_engine engine = {0};
    mg_bias storage;
    mg_attn_context_desc desc = {.method = methods[config->parallel.context_method],
                                 .heads = (int32_t)config->model.heads,
                                 .port = mg_ranks_port(shard->comm),
                                 .first = shard->first,
                                 .map = &map,
                                 .ids = (const uint32_t *)shard->nodes,
                                 .keys_kept = mg_model_keeps_keys(config->model.kind)};
    mg_attn_grid grid = mg_attn_grid_of(desc.method, desc.port.ranks, desc.heads);
    int status = mg_bias_choose(&storage, whole, config, grid.along, desc.method == MG_ATTN_HALO);
    if (!status)
        status = hold_codes(&map, unit, &storage, config, whole, grid);
    if (!status && mg_baseline_is_engine(config)) {
        status = mg_baseline_create(&shard->baseline, config, &map, desc.port.rank, desc.port.ranks);
        status = mg_ranks_agree(shard->comm, status);
        engine = status ? engine : mg_model_baseline_engine(shard->baseline);
        desc.engine = &engine;
    }
    if (!status)
        status = relay(mg_attn_context_create(&shard->context, &desc), mg_attn_last_error());
    config->attention.bias = (int32_t)storage;
    return status;
}

/* --- the unit --- */

static int take_rows(mg_unit *unit, const mg_units *units)
{
    const mg_shard *shard = unit->shard;
    int rank = mg_ranks_rank(shard->comm);
    int64_t begin = shard->first[rank];
    unit->rows = shard->first[rank + 1] - begin;
    if (!(unit->row_items = allocate(unit->rows, sizeof(int64_t))))
        return -ENOMEM;
    for (int64_t r = 0; r < unit->rows; r++)
        unit->row_items[r] = shard->nodes[begin + r];
    return mg_unit_gather(unit, units, unit->row_items, unit->rows);
}

static void show(mg_unit *unit)
{
    mg_shard *shard = unit->shard;
    shard->segments[1] = unit->rows;
    unit->view = (mg_model_batch){.tokens = unit->rows,
                                  .graphs = 1,
                                  .segments = shard->segments,
                                  .ids = (const uint32_t *)shard->nodes + shard->first[mg_ranks_rank(shard->comm)],
                                  .features = unit->features,
                                  .degrees = unit->degrees,
                                  .laplacian = unit->laplacian,
                                  .random_walk = unit->random_walk,
                                  .graph = shard->halo ? &shard->lists : NULL,
                                  .edge_features = unit->edge_features,
                                  .context = shard->context,
                                  .halo = shard->halo};
}

static int fill(mg_unit *unit, mg_units *units, mg_cache *cache)
{
    mg_shard *shard = unit->shard;
    const mg_graph *given = units->data->graph;
    int status = find_order(shard, given, &units->config, cache);
    if (!status)
        status = relay(mg_graph_permute(&shard->whole, given, shard->nodes), mg_graph_last_error());
    if (!status)
        status = take_rows(unit, units);
    status = mg_ranks_agree(shard->comm, status);
    if (!status && units->config.model.local > MG_LOCAL_NONE)
        status = take_lists(unit, units, shard->whole);
    if (!status && units->config.model.heads)
        status = plan(unit, units, shard->whole);
    if (!status && !unit->stream) {
        mg_graph_destroy(shard->whole);
        shard->whole = NULL;
    }
    return status;
}

int mg_shard_unit(mg_unit **out, mg_units *units, mg_cache *cache)
{
    mg_unit *unit = allocate_zeroed(1, sizeof *unit);
    *out = NULL;
    if (unit)
        unit->shard = allocate_zeroed(1, sizeof *unit->shard);
    int status = unit && unit->shard ? 0 : -ENOMEM;
    if (!status) {
        unit->shard->comm = units->comm;
        status = fill(unit, units, cache);
    }
    if (status) {
        mg_unit_destroy(unit);
        return status;
    }
    show(unit);
    *out = unit;
    return 0;
}

void mg_shard_destroy(mg_shard *shard)
{
    if (!shard)
        return;
    mg_attn_context_destroy(shard->context);
    mg_model_baseline_destroy(shard->baseline);
    mg_attn_halo_destroy(shard->halo);
    mg_graph_destroy(shard->whole);
    release(shard->lists.starts);
    release(shard->lists.columns);
    release(shard->first); /* nodes too */
    release(shard);
}

/* --- back in the dataset's order --- */

typedef struct collection {
    const mg_shard *shard;
    float *table, *rows;
    int64_t columns;
} collection;

static void put_rows(float *table, const float *rows, int64_t columns, const mg_shard *shard, int rank)
{
    for (int64_t i = shard->first[rank]; i < shard->first[rank + 1]; i++, rows += columns)
        memcpy(table + shard->nodes[i] * columns, rows, (size_t)columns * sizeof *rows);
}

static void take(void *context, int rank)
{
    const collection *c = context;
    put_rows(c->table, c->rows, c->columns, c->shard, rank);
}

int mg_shard_collect(float *table, const float *rows, int64_t columns, const mg_unit *unit)
{
    const mg_shard *shard = unit->shard;
    int ranks = mg_ranks_count(shard->comm), rank = mg_ranks_rank(shard->comm);
    int64_t most = 0, *bytes = allocate(ranks, sizeof *bytes);
    for (int r = 0; bytes && r < ranks; r++) {
        bytes[r] = (shard->first[r + 1] - shard->first[r]) * columns * (int64_t)sizeof *rows;
        most = bytes[r] > most ? bytes[r] : most;
    }
    collection c = {shard, table, rank || !bytes ? NULL : allocate(most, 1), columns};
    int status = bytes && (rank || c.rows) ? 0 : -ENOMEM;
    if (!status && !rank)
        put_rows(table, rows, columns, shard, 0);
    if (!status)
        status = mg_ranks_collect(shard->comm, rank ? (float *)(uintptr_t)rows : c.rows, bytes, take, &c);
    release(c.rows);
    release(bytes);
    return status;
}
