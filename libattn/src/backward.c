/* Backward, in one pass: P is made again once, and dq, dk and dv are summed in place without atomics.
 *
 * Rows of tiles are cut into chunks r, columns into as many chunks c. Step t runs, at once, the tasks (head group, r,
 * c = r + t modulo chunks): in one step no two tasks of a head share a row chunk or a column chunk, so each adds to its
 * own part of dq, dk and dv; between steps threads wait for each other.
 *
 *            c 0 1 2 3
 *        r 0   0 1 2 3
 *          1   3 0 1 2      step in which a task runs
 *          2   2 3 0 1
 *          3   1 2 3 0
 *
 * The chunks depend on sizes alone, so every sum has one order on any number of threads. Table gradients are summed by
 * (head, row chunk) and added at the end. A STREAM map goes band by band, each with its own steps. Gathered pairs come
 * last (gathered.c), a few heads at a time. */
#include "backward.h"
#include "library.h"
#include "parallel.h"

#include <math.h>
#include <string.h>

typedef struct chunk_task {
    call_state *s;
    int64_t row_chunk, row_begin, row_end, column_begin, column_end; /* in tiles */
    int64_t column_chunk;
    int32_t head_begin, head_end;
    scratch w;
} chunk_task;

static int32_t head_groups(const call_state *s) { return (s->call.heads + HEAD_GROUP - 1) / HEAD_GROUP; }

static void store_value_gradients(const call_state *s, const tile_place *place, const float *ds, int32_t head)
{
    const mg_attn_map *map = &s->plan->map;
    const plan_tile *tile = place->tile;
    float *dvalues = s->call.dvalues + head * map->near_starts[map->queries];
    for (int64_t e = tile->entries; e < tile->entries + tile->entry_count; e++) {
        const int position = s->plan->entry_positions[e];
        const int64_t query = map->query_begin + place->row * TILE + position / TILE;
        dvalues[map->near_starts[query] + s->plan->entry_offsets[e]] = ds[position];
    }
}

static void do_tile(const chunk_task *c, const tile_place *place, int32_t head)
{
    const call_state *s = c->s;
    const mg_attn_call *call = &s->call;
    const int32_t dim1 = s->dim1, value_dim = call->value_dim;
    const int64_t key_unit = head * s->keys.tiles + place->tile->column,
                  query_unit = head * s->queries.tiles + place->row;
    const int64_t queries = smaller_of(TILE, s->plan->queries - place->row * TILE);
    const int careful = (s->keys.bad[key_unit] || s->queries.bad[query_unit]) && mg_attn_tile_hides(s, place->tile);
    backward_tile t = {.dim = dim1,
                       .value_dim = value_dim,
                       .bias_element = s->has_bias_element,
                       .query_blocks = (int32_t)((queries + BLOCK - 1) / BLOCK),
                       .row = s->row,
                       .q = part_of(s->queries.tiled[0], query_unit, dim1),
                       .dout = part_of(s->queries.tiled[1], query_unit, value_dim),
                       .lse = s->lse + query_unit * TILE,
                       .delta = s->delta + query_unit * TILE,
                       .k = part_of(s->keys.tiled[0], key_unit, dim1),
                       .v = part_of(s->keys.tiled[1], key_unit, value_dim),
                       .k_rows = part_of(s->keys.rows[0], key_unit, s->row),
                       .keep = c->w.keep ? c->w.keep + dropout_slot(s, head) * PAIRS : NULL,
                       .dq = part_of(s->dq, query_unit, s->row),
                       .dk = part_of(s->dk, key_unit, dim1),
                       .dv = part_of(s->dv, key_unit, value_dim),
                       .ds = c->w.ds};
    t.need_ds = t.dq || t.dk || call->dtable || call->dvalues;
    if (!mg_attn_tile_bias(&t.bias, c->w.bias, s, place, head, careful))
        return;
    if (careful)
        mg_attn_careful_backward(&t, c->w.bias, c->w.careful, s->backend->backward);
    else
        s->backend->backward(&t);
    if (call->dtable)
        s->backend->table(&(table_tile){.ds = t.ds,
                                        .codes = place->codes,
                                        .rows = t.query_blocks * BLOCK,
                                        .present = place->tile->present,
                                        .sums = sums_of(s, head, c->row_chunk)});
    if (call->dvalues && place->tile->entry_count)
        store_value_gradients(s, place, t.ds, head);
}

static void do_tiles_of_row(const chunk_task *c, int64_t row)
{
    const call_state *s = c->s;
    int64_t count, i = 0, end;
    const plan_tile *tiles = mg_attn_band_row(s, row, &count);
    for (end = count; i < end;) {
        const int64_t middle = i + (end - i) / 2;
        if (tiles[middle].column < c->column_begin)
            i = middle + 1;
        else
            end = middle;
    }
    for (; i < count && tiles[i].column < c->column_end; i++) {
        const tile_place place = {.tile = &tiles[i], .row = row, .codes = c->w.codes, .keys_in_lanes = 1};
        if (mg_attn_tile_needs_codes(s, &tiles[i]))
            mg_attn_band_codes(c->w.codes, s, &tiles[i], row);
        for (int32_t head = c->head_begin; head < c->head_end; head++) {
            if (c->w.keep && (head == c->head_begin || dropout_slot(s, head) == 0))
                mg_attn_dropout_tile((float(*)[PAIRS])c->w.keep, s, &place, head);
            do_tile(c, &place, head);
        }
    }
}

static void do_chunk(void *context, int thread, int64_t step, int64_t task)
{
    call_state *s = context;
    const mg_attn_plan *plan = s->plan;
    const int64_t group = task / plan->chunks;
    const int64_t rows = smaller_of(s->band.rows, plan->tile_rows - s->band.first);
    chunk_task c = {.s = s, .row_chunk = task % plan->chunks};
    c.column_chunk = (c.row_chunk + step) % plan->chunks;
    c.row_begin = s->band.first + chunk_begin(rows, plan->chunks, c.row_chunk);
    c.row_end = s->band.first + chunk_begin(rows, plan->chunks, c.row_chunk + 1);
    c.column_begin = chunk_begin(plan->tile_columns, plan->chunks, c.column_chunk);
    c.column_end = chunk_begin(plan->tile_columns, plan->chunks, c.column_chunk + 1);
    c.head_begin = (int32_t)group * HEAD_GROUP;
    c.head_end = (int32_t)smaller_of(c.head_begin + HEAD_GROUP, s->call.heads);
    c.w = mg_attn_call_scratch(s, thread);
    for (int64_t row = c.row_begin; row < c.row_end; row++)
        do_tiles_of_row(&c, row);
}

/* --- before and after --- */

static void zero(float *array, int64_t count)
{
    if (array)
        memset(array, 0, (size_t)count * sizeof *array);
}

/* One head's and one tile column's gradients, and one head's and one tile row's. */
static void zero_gradients(void *context, int thread, int64_t step, int64_t task)
{
    call_state *s = context;
    const int64_t key_units = s->call.heads * s->keys.tiles, query_units = s->call.heads * s->queries.tiles;
    (void)thread, (void)step;
    if (task < query_units)
        zero(part_of(s->dq, task, s->row), s->row * TILE);
    if (task >= key_units)
        return;
    zero(part_of(s->dk, task, s->dim1), s->dim1 * TILE);
    zero(part_of(s->dv, task, s->call.value_dim), s->call.value_dim * TILE);
}

static void zero_value_gradients(const call_state *s)
{
    const mg_attn_map *map = &s->plan->map;
    for (int32_t head = 0; head < s->call.heads; head++) {
        float *dvalues = s->call.dvalues + head * map->near_starts[map->queries];
        for (int64_t row = map->query_begin; row < map->query_end; row++)
            for (int64_t e = map->near_starts[row]; e < map->near_starts[row + 1]; e++)
                if (map->near_columns[e] >= map->key_begin && map->near_columns[e] < map->key_end)
                    dvalues[e] = 0;
    }
}

static void begin(call_state *s)
{
    const mg_attn_call *call = &s->call;
    mg_attn_pack_queries(s);
    mg_attn_parallel(s->threads, 1, call->heads * larger_of(s->keys.tiles, s->queries.tiles), zero_gradients, s);
    if (call->dvalues)
        zero_value_gradients(s);
    if (s->sums)
        memset(s->sums, 0, (size_t)call->heads * (size_t)s->plan->chunks * MG_ATTN_MAX_CODES * sizeof *s->sums);
}

/* Heads whose gradients are stored. */
typedef struct storing {
    call_state *s;
    int32_t head_begin, head_end;
} storing;

static void take_lane(float *row, const float *lanes, int i, int32_t dim)
{
    for (int32_t d = 0; d < dim; d++)
        row[d] = lanes ? lanes[d * TILE + i] : 0;
    for (int32_t d = dim; d < round_up(dim, 8); d++)
        row[d] = 0;
}

static void store_key(const call_state *s, int64_t unit, int i, int64_t token, int32_t head)
{
    const mg_attn_call *call = &s->call;
    const int bf16 = call->type == MG_ATTN_BF16 && !call->gradients_fp32;
    const float *lanes = part_of(s->dk, unit, s->dim1);
    float dk[MG_ATTN_MAX_DIM], dv[MG_ATTN_MAX_DIM],
        dkey_bias = lanes && call->dkey_bias ? lanes[call->dim * TILE + i] : 0;
    take_lane(dk, lanes, i, call->dim);
    take_lane(dv, part_of(s->dv, unit, call->value_dim), i, call->value_dim);
    if (s->has_pairs)
        mg_attn_gathered_key(s, call->dk.data ? dk : NULL, call->dv.data ? dv : NULL,
                             call->dkey_bias ? &dkey_bias : NULL, token + i, head);
    if (call->dk.data)
        mg_attn_store_row(&call->dk, dk, bf16, token + i, head, call->dim);
    if (call->dv.data)
        mg_attn_store_row(&call->dv, dv, bf16, token + i, head, call->value_dim);
    if (call->dkey_bias)
        call->dkey_bias[head * s->plan->keys + token + i] = dkey_bias;
}

static void store_key_gradients(void *context, int thread, int64_t step, int64_t tile)
{
    const storing *heads = context;
    const call_state *s = heads->s;
    const int64_t token = tile * TILE;
    (void)thread, (void)step;
    for (int32_t head = heads->head_begin; head < heads->head_end; head++)
        for (int i = 0; i < smaller_of(TILE, s->plan->keys - token); i++)
            store_key(s, head * s->keys.tiles + tile, i, token, head);
}

static void store_query_gradients(void *context, int thread, int64_t step, int64_t tile)
{
    const call_state *s = context;
    const mg_attn_call *call = &s->call;
    const int64_t token = tile * TILE;
    (void)thread, (void)step;
    for (int32_t head = 0; head < call->heads; head++)
        for (int i = 0; i < smaller_of(TILE, s->plan->queries - token); i++) {
            float row[MG_ATTN_MAX_DIM];
            const float *dq = s->dq + ((head * s->queries.tiles + tile) * TILE + i) * s->row;
            for (int32_t d = 0; d < call->dim; d++)
                row[d] = dq[d] * call->scale;
            mg_attn_store_row(&call->dq, row, call->type == MG_ATTN_BF16 && !call->gradients_fp32, token + i, head,
                              call->dim);
        }
}

static void store_table_gradients(const call_state *s)
{
    const int32_t codes = s->plan->map.codes, chunks = s->plan->chunks;
    for (int32_t head = 0; head < s->call.heads; head++)
        for (int32_t code = 0; code < codes; code++) {
            double sum = 0;
            for (int32_t chunk = 0; chunk < chunks; chunk++)
                sum += s->sums[((int64_t)head * chunks + chunk) * MG_ATTN_MAX_CODES + code];
            s->call.dtable[head * codes + code] = (float)sum;
        }
}

int mg_attn_backward(const mg_attn_plan *plan, const mg_attn_call *call)
{
    if (plan && plan->backend->whole_backward)
        return plan->backend->whole_backward(plan, call);
    call_state s;
    int status = mg_attn_call_begin(&s, plan, call, 1);
    if (status)
        return status;
    begin(&s);
    for (int64_t first = 0; first < plan->tile_rows && s.has_tiles; first += s.band.rows) {
        status = mg_attn_band_load(&s, first);
        if (status)
            return status;
        mg_attn_parallel(s.threads, plan->chunks, (int64_t)plan->chunks * head_groups(&s), do_chunk, &s);
    }
    const int32_t together = s.has_pairs ? HEAD_GROUP : s.call.heads;
    for (int32_t head = 0; head < s.call.heads; head += together) {
        storing heads = {.s = &s, .head_begin = head, .head_end = (int32_t)smaller_of(head + together, s.call.heads)};
        if (s.has_pairs)
            mg_attn_gathered_rows(&s, heads.head_begin, heads.head_end);
        mg_attn_parallel(s.threads, 1, s.keys.tiles, store_key_gradients, &heads);
    }
    if (s.dq)
        mg_attn_parallel(s.threads, 1, s.queries.tiles, store_query_gradients, &s);
    if (s.sums)
        store_table_gradients(&s);
    return 0;
}
