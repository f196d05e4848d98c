/* Plans: checking the map, filling in its defaults, creating and describing. */
#include "library.h"
#include "plan.h"

#include <string.h>

static int check_range(const char *what, int64_t count, int64_t begin, int64_t end)
{
    if (count < 0)
        return fail(-EINVAL, "mg_attn_plan_create: %lld %s; give a count that is not negative", (long long)count, what);
    if (begin < 0 || begin > end || end > count)
        return fail(-EINVAL, "mg_attn_plan_create: %s [%lld, %lld) is not a range of the map's %lld", what,
                    (long long)begin, (long long)end, (long long)count);
    if (end - begin > INT32_MAX - TILE)
        return fail(-EOVERFLOW, "mg_attn_plan_create: a range of %lld %s; a plan holds up to %d, so split it",
                    (long long)(end - begin), what, INT32_MAX - TILE);
    return 0;
}

static int check_dense(const mg_attn_map *map)
{
    if (!map->dense && map->queries && map->keys)
        return fail(-EINVAL, "mg_attn_plan_create: a DENSE map needs its codes in `dense`");
    if (map->dense_stride < map->keys)
        return fail(-EINVAL, "mg_attn_plan_create: dense_stride %lld is less than the %lld keys of a row",
                    (long long)map->dense_stride, (long long)map->keys);
    int64_t bytes;
    if (__builtin_mul_overflow(map->queries, map->dense_stride, &bytes))
        return fail(-EOVERFLOW,
                    "mg_attn_plan_create: %lld queries with dense_stride %lld are more bytes than memory can address",
                    (long long)map->queries, (long long)map->dense_stride);
    return 0;
}

/* All starts before any column: a start that falls later says that an earlier one may lie beyond the columns. */
static int check_near_starts(const mg_attn_map *map)
{
    for (int64_t row = 0; row < map->queries; row++) {
        const int64_t begin = map->near_starts[row], end = map->near_starts[row + 1];
        if (begin < 0 || end < begin || end - begin > map->keys)
            return fail(-EINVAL, "near pairs of query %lld: starts go from %lld to %lld, with %lld keys",
                        (long long)row, (long long)begin, (long long)end, (long long)map->keys);
    }
    return 0;
}

static int check_near_row(const mg_attn_map *map, int64_t row)
{
    const int64_t begin = map->near_starts[row], end = map->near_starts[row + 1];
    for (int64_t e = begin; e < end; e++) {
        const int32_t key = map->near_columns[e];
        if (key < 0 || key >= map->keys)
            return fail(-EINVAL, "near pairs of query %lld: key %d is not one of the %lld keys", (long long)row, key,
                        (long long)map->keys);
        if (e > begin && key <= map->near_columns[e - 1])
            return fail(-EINVAL, "near pairs of query %lld: key %d comes after key %d; sort them and drop duplicates",
                        (long long)row, key, map->near_columns[e - 1]);
        if (map->near_codes && map->near_codes[e] >= map->codes)
            return fail(-EINVAL, "near pairs of query %lld: key %d has code %d, but codes go from 0 to %d",
                        (long long)row, key, map->near_codes[e], map->codes - 1);
    }
    return 0;
}

static int check_near(const mg_attn_map *map)
{
    if (!map->near_starts)
        return fail(-EINVAL, "mg_attn_plan_create: a NEAR map needs near_starts");
    int status = check_near_starts(map);
    if (status)
        return status;
    if (!map->near_columns && map->near_starts[map->query_end] > map->near_starts[map->query_begin])
        return fail(-EINVAL, "mg_attn_plan_create: a NEAR map with pairs needs near_columns");
    for (int64_t row = map->query_begin; row < map->query_end && !status; row++)
        status = check_near_row(map, row);
    return status;
}

static int check_store(const mg_attn_map *map)
{
    const mg_attn_tiles *store = map->tiles;
    if (!store)
        return fail(-EINVAL, "mg_attn_plan_create: a TILES map needs `tiles`");
    if (store->tile_rows != tiles_of(map->queries) || store->tile_columns != tiles_of(map->keys))
        return fail(-EINVAL,
                    "mg_attn_plan_create: %lld x %lld tiles for %lld queries x %lld keys; %lld x %lld are needed",
                    (long long)store->tile_rows, (long long)store->tile_columns, (long long)map->queries,
                    (long long)map->keys, (long long)tiles_of(map->queries), (long long)tiles_of(map->keys));
    if (store->tile_rows && store->tile_columns && (!store->classes || !store->constants || !store->offsets))
        return fail(-EINVAL, "mg_attn_plan_create: a TILES map needs classes, constants and offsets");
    if (store->planes < 1 || store->planes > 8 || store->payload_bytes < 0 || (store->payload_bytes && !store->payload))
        return fail(-EINVAL,
                    "mg_attn_plan_create: tiles with %d bit planes and %lld payload bytes%s; planes go from 1 to 8",
                    store->planes, (long long)store->payload_bytes, store->payload ? "" : ", none given");
    return 0;
}

static int check_stream(const mg_attn_map *map)
{
    if (!map->stream)
        return fail(-EINVAL, "mg_attn_plan_create: a STREAM map needs the callback `stream`");
    if (map->stream_rows < 0 || map->stream_rows % TILE)
        return fail(-EINVAL, "mg_attn_plan_create: stream_rows %lld is not a multiple of %d",
                    (long long)map->stream_rows, TILE);
    return 0;
}

static int check_segments(const char *what, const int64_t *segments, int64_t count, int64_t tokens)
{
    for (int64_t s = 0; s <= count; s++)
        if (segments[s] < (s ? segments[s - 1] : 0) || (s == 0 && segments[s]) || (s == count && segments[s] != tokens))
            return fail(-EINVAL, "mg_attn_plan_create: %s_segments[%lld] is %lld; they ascend from 0 to the map's %lld",
                        what, (long long)s, (long long)segments[s], (long long)tokens);
    return 0;
}

static int check_map(mg_attn_map *map)
{
    int status = check_range("queries", map->queries, map->query_begin, map->query_end);
    if (!status)
        status = check_range("keys", map->keys, map->key_begin, map->key_end);
    if (status)
        return status;
    if (map->codes < 1 || map->codes > MG_ATTN_MAX_CODES)
        return fail(-EINVAL, "mg_attn_plan_create: %d codes; 1 to %d are possible", map->codes, MG_ATTN_MAX_CODES);
    if (map->far_code < 0 || map->far_code >= map->codes)
        return fail(-EINVAL, "mg_attn_plan_create: far_code %d is not one of the %d codes", map->far_code, map->codes);
    if (map->segments < 0 || (map->segments && !map->query_segments))
        return fail(-EINVAL, "mg_attn_plan_create: %lld segments%s", (long long)map->segments,
                    map->segments < 0 ? "" : " without query_segments");
    if (map->segments) {
        status = check_segments("query", map->query_segments, map->segments, map->queries);
        if (!status)
            status = check_segments("key", map->key_segments, map->segments, map->keys);
    }
    return status;
}

static int check_kind(const mg_attn_map *map)
{
    switch (map->kind) {
    case MG_ATTN_NONE:
        return 0;
    case MG_ATTN_DENSE:
        return check_dense(map);
    case MG_ATTN_NEAR:
        return check_near(map);
    case MG_ATTN_TILES:
        return check_store(map);
    case MG_ATTN_STREAM:
        return check_stream(map);
    }
    return fail(-EINVAL, "mg_attn_plan_create: %d is no kind of map", (int)map->kind);
}

static void fill_defaults(mg_attn_map *map)
{
    if (!map->codes)
        map->codes = 1;
    if (!map->query_begin && !map->query_end)
        map->query_end = map->queries;
    if (!map->key_begin && !map->key_end)
        map->key_end = map->keys;
    if (!map->key_segments)
        map->key_segments = map->query_segments;
    if (!map->stream_rows)
        map->stream_rows = 512;
    if (!map->segments)
        map->query_segments = map->key_segments = NULL;
}

/* Copies the segments, and finds the keys that each query of the range sees. */
static int keep_segments(mg_attn_plan *plan)
{
    mg_attn_map *map = &plan->map;
    const int64_t count = map->segments + 1;
    if (!map->segments)
        return 0;
    plan->segments = allocate(2 * count, sizeof *plan->segments);
    plan->seen = allocate(2 * plan->queries, sizeof *plan->seen);
    if (!plan->segments || !plan->seen)
        return -ENOMEM;
    memcpy(plan->segments, map->query_segments, (size_t)count * sizeof *plan->segments);
    memcpy(plan->segments + count, map->key_segments, (size_t)count * sizeof *plan->segments);
    map->query_segments = plan->segments;
    map->key_segments = plan->segments + count;
    for (int64_t i = 0, s = 0; i < plan->queries; i++) {
        while (map->query_segments[s + 1] <= map->query_begin + i)
            s++;
        const int64_t begin = larger_of(map->key_segments[s], map->key_begin);
        const int64_t end = larger_of(smaller_of(map->key_segments[s + 1], map->key_end), begin);
        plan->seen[2 * i] = smaller_of(begin, map->key_end) - map->key_begin;
        plan->seen[2 * i + 1] = smaller_of(end, map->key_end) - map->key_begin;
    }
    plan->info.plan_bytes += 2 * (count + plan->queries) * (int64_t)sizeof(int64_t);
    return 0;
}

static void measure(mg_attn_plan *plan)
{
    const mg_attn_map *map = &plan->map;
    plan->queries = map->query_end - map->query_begin;
    plan->keys = map->key_end - map->key_begin;
    plan->tile_rows = tiles_of(plan->queries);
    plan->tile_columns = tiles_of(plan->keys);
    plan->hidden = map->mask_far ? map->far_code : map->codes < MG_ATTN_MAX_CODES ? map->codes : -1;
    plan->entries = plan->hidden == map->codes ? map->codes + 1 : map->codes;
    plan->chunks = mg_attn_chunk_count(
        map->kind == MG_ATTN_STREAM ? mg_attn_plan_band_tile_rows(plan) : plan->tile_rows, plan->tile_columns);
    plan->info.plan_bytes = sizeof *plan;
    if (map->kind == MG_ATTN_TILES) {
        plan->store = *map->tiles;
        plan->map.tiles = &plan->store;
    }
}

int32_t mg_attn_chunk_count(int64_t tile_rows, int64_t tile_columns)
{
    const int64_t tiles = smaller_of(tile_rows, tile_columns);
    return (int32_t)larger_of(1, smaller_of(64, (tiles + 3) / 4));
}

/* Rows whose codes a STREAM call keeps at once: several callbacks' worth, so that threads have work, within 256 MB
   where one callback's rows allow that. */
int64_t mg_attn_plan_band_tile_rows(const mg_attn_plan *plan)
{
    const int64_t rows = plan->map.stream_rows, bytes = rows * (plan->tile_columns * TILE + TILE);
    const int64_t together = larger_of(1, smaller_of(16, (INT64_C(256) << 20) / bytes));
    return smaller_of(together * rows / TILE, plan->tile_rows);
}

int mg_attn_plan_check_map(mg_attn_map *map, const mg_attn_map *given)
{
    *map = *given;
    fill_defaults(map);
    int status = check_map(map);
    return status ? status : check_kind(map);
}

int mg_attn_plan_create(mg_attn_plan **out, const mg_attn_map *given)
{
    if (!out || !given)
        return fail(-EINVAL, "mg_attn_plan_create: %s is NULL", out ? "map" : "out");
    *out = NULL;
    mg_attn_map map;
    int status = mg_attn_plan_check_map(&map, given);
    const attn_backend *backend = status ? NULL : mg_attn_backend_chosen();
    if (!backend)
        return status ? status : -EINVAL;
    mg_attn_plan *plan = allocate_zeroed(1, sizeof *plan);
    if (!plan)
        return -ENOMEM;
    plan->map = map;
    plan->backend = backend;
    measure(plan);
    status = keep_segments(plan);
    if (!status)
        status = mg_attn_plan_list_tiles(plan);
    if (!status)
        status = mg_attn_plan_list_columns(plan);
    if (status) {
        mg_attn_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return 0;
}

void mg_attn_plan_destroy(mg_attn_plan *plan)
{
    if (!plan)
        return;
    void *const blocks[] = {
        plan->segments,        plan->seen,         plan->row_tiles,     plan->tiles,          plan->row_order,
        plan->entry_positions, plan->entry_codes,  plan->entry_offsets, plan->pair_starts,    plan->pair_keys,
        plan->pair_codes,      plan->pair_offsets, plan->column_starts, plan->column_queries, plan->column_pairs};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        release(blocks[i]);
    release(plan);
}

void mg_attn_plan_describe(mg_attn_plan_info *info, const mg_attn_plan *plan)
{
    *info = plan->info;
    info->backend = plan->backend->name;
    info->queries = plan->queries;
    info->keys = plan->keys;
    info->map_pairs = plan->map.kind == MG_ATTN_NEAR ? plan->map.near_starts[plan->map.queries] : 0;
    info->codes = plan->map.codes;
    info->queries = plan->queries;
    info->keys = plan->keys;
    info->map_pairs = plan->map.kind == MG_ATTN_NEAR ? plan->map.near_starts[plan->map.queries] : 0;
    info->codes = plan->map.codes;
}
