#include "bias.h"

#include "app.h"
#include "memory.h"
#include "threads.h"

static const int64_t dense_most = 64LL << 20, tiles_most = 1LL << 30;

static int hops(const mg_config *config) { return (int)config->model.encodings.distance; }

int32_t mg_bias_codes(const mg_config *config)
{
    return hops(config) ? hops(config) + 2 + (config->model.virtual_token == MG_SWITCH_ON) : 0;
}

static int64_t most_memory(const mg_config *config)
{
    return config->memory ? config->memory - mg_memory_held() : mg_memory_machine() / 10 * 7;
}

static int refuse_bytes(const mg_config *config, const char *what, double bytes)
{
    if (bytes <= (double)most_memory(config))
        return 0;
    return fail(-ENOMEM,
                "%s of model.encodings.distance %d would take %s, %s are left: lower the distance, or set "
                "attention.bias to tiles or stream",
                what, hops(config), mg_memory_text((int64_t)bytes), mg_memory_text(most_memory(config)));
}

int mg_bias_check_packs(mg_config *config)
{
    if (config->attention.bias != MG_BIAS_AUTO && config->attention.bias != MG_BIAS_NEAR)
        return fail(-EINVAL, "attention.bias is %s; packs of graphs have near",
                    mg_options_word(config, "attention.bias"));
    config->attention.bias = MG_BIAS_NEAR;
    return 0;
}

/* The storage that auto means, by the share of near pairs. */
static mg_bias choose_by_bytes(const mg_config *config, double pairs, double all)
{
    int masked = config->attention.far == MG_FAR_MASK;
    if (config->model.encodings.edge_path || pairs < all / 20 || (masked && 5 * pairs < all))
        return MG_BIAS_NEAR;
    return all <= (double)dense_most ? MG_BIAS_DENSE : MG_BIAS_TILES;
}

int mg_bias_choose(mg_bias *storage, const mg_graph *graph, const mg_config *config, int shares, int masked)
{
    double near[256], all = (double)graph->nodes * (double)graph->nodes;
    int automatic = config->attention.bias == MG_BIAS_AUTO, status = 0;
    *storage = (mg_bias)config->attention.bias;
    if (!hops(config))
        return 0;
    if (config->model.encodings.edge_path && !automatic && *storage != MG_BIAS_NEAR)
        return fail(-EINVAL, "attention.bias is %s, but model.encodings.edge_path needs near",
                    mg_options_word(config, "attention.bias"));
    if (automatic || *storage == MG_BIAS_NEAR) {
        status = mg_encode_near_shares(near, graph, hops(config));
        if (!status && automatic)
            *storage = masked ? MG_BIAS_NEAR : choose_by_bytes(config, near[hops(config)] * all, all);
    }
    if (!status && *storage == MG_BIAS_NEAR)
        status = refuse_bytes(config, "the near pairs", 5 * near[hops(config)] * all / shares);
    if (!status && *storage == MG_BIAS_DENSE)
        status = refuse_bytes(config, "dense codes", all / shares);
    return status;
}

/* --- holding --- */

typedef struct row_range {
    const mg_graph *graph;
    int64_t begin, end;
} row_range;

static int hold_near(mg_unit *unit, mg_attn_map *map, const mg_config *config, row_range rows)
{
    int status = unit->batch ? mg_dataset_batch_near(&unit->near, unit->batch, hops(config))
                             : mg_graph_near_create_rows(&unit->near, rows.graph, hops(config), rows.begin, rows.end);
    if (!status && config->model.encodings.edge_path)
        status = mg_graph_paths_create(&unit->paths, rows.graph, unit->near);
    if (status)
        return relay(status, mg_graph_last_error());
    map->kind = MG_ATTN_NEAR;
    map->near_starts = unit->near->starts;
    map->near_columns = unit->near->columns;
    map->near_codes = unit->near->codes;
    return 0;
}

static int hold_dense(mg_unit *unit, mg_attn_map *map, const mg_config *config, row_range rows)
{
    int64_t stride = rows.graph->nodes;
    map->kind = MG_ATTN_DENSE;
    map->dense = unit->dense = allocate((rows.end - rows.begin) * stride, 1);
    map->dense_stride = stride;
    if (!unit->dense)
        return -ENOMEM;
    return relay(mg_graph_dense_codes(unit->dense, stride, rows.graph, hops(config), rows.begin, rows.end),
                 mg_graph_last_error());
}

static int stream_codes(void *context, int thread, int64_t q0, int64_t nq, int64_t k0, int64_t nk, uint8_t *codes,
                        int64_t stride)
{
    const mg_unit *unit = context;
    return mg_graph_stream_codes(unit->stream, thread, unit->stream_begin + q0, nq, k0, nk, codes, stride);
}

static int hold_stream(mg_unit *unit, mg_attn_map *map, const mg_config *config, row_range rows)
{
    int status = mg_graph_stream_create(&unit->stream, rows.graph, hops(config), mg_threads_count());
    unit->stream_begin = rows.begin;
    map->kind = MG_ATTN_STREAM;
    map->stream = stream_codes;
    map->stream_context = unit;
    map->stream_rows = 512;
    return relay(status, mg_graph_last_error());
}

static int hold_tiles(mg_unit *unit, mg_attn_map *map, const mg_config *config, row_range rows)
{
    int automatic = config->attention.bias == MG_BIAS_AUTO;
    int64_t most = most_memory(config) < tiles_most ? most_memory(config) : tiles_most;
    int status = mg_graph_tiles_create(&unit->tiles, rows.graph, hops(config), rows.begin, rows.end);
    if (automatic && (status == -ENOMEM || (!status && mg_graph_tiles_bytes(unit->tiles) > most))) {
        mg_graph_tiles_destroy(unit->tiles);
        unit->tiles = NULL;
        return hold_stream(unit, map, config, rows);
    }
    if (status)
        return relay(status, mg_graph_last_error());
    const mg_graph_tiles *tiles = unit->tiles;
    unit->tile_fields = (mg_attn_tiles){.tile_rows = tiles->tile_rows,
                                        .tile_columns = tiles->tile_columns,
                                        .planes = tiles->planes,
                                        .classes = tiles->classes,
                                        .constants = tiles->constants,
                                        .offsets = tiles->offsets,
                                        .payload = tiles->payload,
                                        .payload_bytes = tiles->payload_bytes};
    map->kind = MG_ATTN_TILES;
    map->tiles = &unit->tile_fields;
    return 0;
}

int mg_bias_hold(mg_attn_map *map, mg_unit *unit, mg_bias *storage, const mg_config *config, const mg_graph *graph,
                 int64_t begin, int64_t end)
{
    static int (*const holds[])(mg_unit *, mg_attn_map *, const mg_config *,
                                row_range) = {[MG_BIAS_DENSE] = hold_dense,
                                              [MG_BIAS_NEAR] = hold_near,
                                              [MG_BIAS_TILES] = hold_tiles,
                                              [MG_BIAS_STREAM] = hold_stream};
    *map = (mg_attn_map){.kind = MG_ATTN_NONE,
                         .queries = end - begin,
                         .keys = graph->nodes,
                         .codes = hops(config) ? mg_bias_codes(config) : 1,
                         .far_code = hops(config) ? hops(config) + 1 : 0,
                         .mask_far = config->attention.far == MG_FAR_MASK};
    int status = hops(config) ? holds[*storage](unit, map, config, (row_range){graph, begin, end}) : 0;
    if (map->kind == MG_ATTN_STREAM)
        *storage = MG_BIAS_STREAM;
    return status;
}

void mg_bias_clear(mg_unit *unit)
{
    mg_graph_near_destroy(unit->near);
    mg_graph_paths_destroy(unit->paths);
    mg_graph_tiles_destroy(unit->tiles);
    mg_graph_stream_destroy(unit->stream);
    release(unit->dense);
    unit->near = NULL;
    unit->paths = NULL;
    unit->tiles = NULL;
    unit->stream = NULL;
    unit->dense = NULL;
}

int mg_bias_plan(mg_unit *unit, mg_bias *storage, const mg_config *config)
{
    const mg_dataset_batch *batch = unit->batch;
    mg_attn_map map;
    int status = mg_bias_hold(&map, unit, storage, config, batch->graph, 0, batch->tokens);
    map.segments = batch->graphs;
    map.query_segments = batch->segments;
    return status ? status : relay(mg_attn_plan_create(&unit->plan, &map), mg_attn_last_error());
}
