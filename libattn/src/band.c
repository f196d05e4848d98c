/* The rows of tiles that a call has at hand: lists from the plan, or, of a STREAM map, a band of rows whose codes the
 * callback has written, looked at tile by tile. */
#include "call.h"
#include "library.h"
#include "parallel.h"

static void write_codes(void *context, int thread, int64_t step, int64_t task)
{
    call_state *s = context;
    const mg_attn_map *map = &s->plan->map;
    const int64_t row = task * map->stream_rows; /* of the band */
    const int64_t query = s->band.first * TILE + row;
    const int64_t rows = smaller_of(map->stream_rows, smaller_of(s->band.rows * TILE - row, s->plan->queries - query));
    (void)step;
    const int status = map->stream(map->stream_context, thread, map->query_begin + query, rows, map->key_begin,
                                   s->plan->keys, s->band.codes + row * s->band.stride, s->band.stride);
    if (status)
        atomic_store(&s->status, status);
}

static void look_at_row(void *context, int thread, int64_t step, int64_t task)
{
    call_state *s = context;
    int64_t begin, end;
    (void)thread, (void)step;
    s->band.counts[task] = 0;
    mg_attn_row_columns(s->plan, s->band.first + task, &begin, &end);
    for (int64_t column = begin; column < end; column++) {
        plan_tile *tile = s->band.tiles + task * s->plan->tile_columns + s->band.counts[task];
        uint8_t codes[PAIRS];
        const int seen = mg_attn_tile_look(tile, codes, s->plan, s->band.first + task, (int32_t)column,
                                           s->band.codes + task * TILE * s->band.stride, s->band.stride);
        if (seen < 0)
            atomic_store(&s->status, seen);
        else if (seen)
            s->band.counts[task]++;
    }
}

/* The error line is of the thread that found the error: it is found again here, by the caller's thread. */
static int say_wrong_code(call_state *s, int64_t rows)
{
    for (int64_t task = 0; task < rows; task++)
        look_at_row(s, 0, 0, task);
    return atomic_load(&s->status);
}

int mg_attn_band_load(call_state *s, int64_t first)
{
    const mg_attn_map *map = &s->plan->map;
    s->band.first = first;
    if (map->kind != MG_ATTN_STREAM || !s->plan->keys)
        return 0;
    const int64_t rows = smaller_of(s->band.rows, s->plan->tile_rows - first), each = map->stream_rows / TILE;
    mg_attn_parallel(s->threads, 1, (rows + each - 1) / each, write_codes, s);
    if (atomic_load(&s->status))
        return fail(-ECANCELED, "the stream of codes returned %d within queries [%lld, %lld)", atomic_load(&s->status),
                    (long long)(map->query_begin + first * TILE),
                    (long long)(map->query_begin + smaller_of((first + rows) * TILE, s->plan->queries)));
    mg_attn_parallel(s->threads, 1, rows, look_at_row, s);
    return atomic_load(&s->status) ? say_wrong_code(s, rows) : 0;
}

const plan_tile *mg_attn_band_row(const call_state *s, int64_t tile_row, int64_t *count)
{
    const mg_attn_plan *plan = s->plan;
    if (plan->map.kind == MG_ATTN_STREAM) {
        *count = plan->keys ? s->band.counts[tile_row - s->band.first] : 0;
        return s->band.tiles + (tile_row - s->band.first) * plan->tile_columns;
    }
    *count = plan->row_tiles[tile_row + 1] - plan->row_tiles[tile_row];
    return plan->tiles + plan->row_tiles[tile_row];
}

const uint8_t *mg_attn_band_memory(const call_state *s, const plan_tile *tile, int64_t tile_row, int64_t *stride)
{
    const mg_attn_plan *plan = s->plan;
    const mg_attn_map *map = &plan->map;
    if (tile->class == CLASS_CONSTANT || tile->cut || tile->entry_count || (tile_row + 1) * TILE > plan->queries)
        return NULL;
    if (map->kind == MG_ATTN_STREAM) {
        *stride = s->band.stride;
        return s->band.codes + (tile_row - s->band.first) * TILE * *stride + (int64_t)tile->column * TILE;
    }
    if (map->kind != MG_ATTN_DENSE)
        return NULL;
    *stride = map->dense_stride;
    return map->dense + (map->query_begin + tile_row * TILE) * *stride + map->key_begin + (int64_t)tile->column * TILE;
}

void mg_attn_band_codes(uint8_t out[PAIRS], const call_state *s, const plan_tile *tile, int64_t tile_row)
{
    const mg_attn_map *map = &s->plan->map;
    const uint8_t *codes = NULL;
    int64_t stride = 0;
    if (map->kind == MG_ATTN_STREAM) {
        stride = s->band.stride;
        codes = s->band.codes + (tile_row - s->band.first) * TILE * stride;
    } else if (map->kind == MG_ATTN_DENSE) {
        stride = map->dense_stride;
        codes = map->dense + (map->query_begin + tile_row * TILE) * stride + map->key_begin;
    }
    mg_attn_tile_codes(out, s->plan, tile, tile_row, codes, stride);
}
