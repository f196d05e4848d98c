/* Backward, in one pass: P is made again once, and dq, dk and dv are summed in place without atomics.
 *
 * Rows of tiles are cut into chunks r, columns into as many chunks c. Step t runs, at once, the tasks (head group, r,
 * c = r + t modulo chunks): in one step no two tasks of a head share a row chunk or a column chunk, so each adds to its own
 * part of dq, dk and dv; between steps threads wait for each other.
 *
 *            c 0 1 2 3
 *        r 0   0 1 2 3
 *          1   3 0 1 2      step in which a task runs
 *          2   2 3 0 1
 *          3   1 2 3 0
 *
 * The chunks depend on sizes alone, so every sum has one order on any number of threads. Table gradients are summed by
 * (head, row chunk) and added at the end. A STREAM map goes band by band, each with its own steps. */
#include "call.h"
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

static float *part_of(float *array, int64_t unit, int32_t dim) { return array ? array + unit * dim * TILE : NULL; }

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

static double *sums_of(const chunk_task *c, int32_t head)
{
    return c->s->sums + (head * (int64_t)c->s->plan->chunks + c->row_chunk) * MG_ATTN_MAX_CODES;
}

static void do_tile(const chunk_task *c, const tile_place *place, int32_t head)
{
    const call_state *s = c->s;
    const mg_attn_call *call = &s->call;
    const int32_t dim1 = s->dim1, value_dim = call->value_dim;
    const int64_t key_unit = head * s->keys.tiles + place->tile->column, query_unit = head * s->queries.tiles + place->row;
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
                                        .sums = sums_of(c, head)});
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

/* --- gathered pairs --- */

typedef struct pair_batch {
    int32_t keys[PAIR_BATCH];
    int64_t at[PAIR_BATCH]; /* in the plan's pairs */
    float bias[PAIR_BATCH], keep[PAIR_BATCH], ds[PAIR_BATCH];
} pair_batch;

static void end_batch(const chunk_task *c, const pair_batch *b, int32_t count, int64_t query, int32_t head)
{
    call_state *s = c->s;
    const mg_attn_plan *plan = s->plan;
    const mg_attn_map *map = &plan->map;
    for (int32_t i = 0; i < count && s->call.dtable; i++)
        sums_of(c, head)[plan->pair_codes[b->at[i]]] += b->ds[i];
    for (int32_t i = 0; i < count && s->call.dkey_bias; i++)
        s->call.dkey_bias[head * plan->keys + b->keys[i]] += b->ds[i];
    if (s->call.dvalues) {
        float *dvalues = s->call.dvalues + head * map->near_starts[map->queries] + map->near_starts[map->query_begin + query];
        for (int32_t i = 0; i < count; i++)
            dvalues[plan->pair_offsets[b->at[i]]] = b->ds[i];
    }
}

static void do_run(const chunk_task *c, const pair_run *run, int32_t head)
{
    call_state *s = c->s;
    pair_batch b;
    const int64_t query_row = head * s->queries.tiles * TILE + run->query, key_rows = head * s->keys.tiles * TILE;
    pair_list l = {.row = s->row,
                   .value_row = s->value_row,
                   .keys = b.keys,
                   .bias = b.bias,
                   .keep = s->call.dropout.probability > 0 ? b.keep : NULL,
                   .q = s->queries.rows[0] + query_row * s->row,
                   .k = s->keys.rows[0] + key_rows * s->row,
                   .v = s->keys.rows[1] + key_rows * s->value_row,
                   .dout = s->queries.rows[1] + query_row * s->value_row,
                   .lse = s->lse[query_row],
                   .delta = s->delta[query_row],
                   .dq = s->dq ? s->dq + query_row * s->row : NULL,
                   .dk = s->dk_rows ? s->dk_rows + key_rows * s->row : NULL,
                   .dv = s->dv_rows ? s->dv_rows + key_rows * s->value_row : NULL,
                   .ds = b.ds};
    if (l.lse == INFINITY)
        return;
    for (int64_t at = run->first; at < run->first + run->count;) {
        for (l.count = 0; at < run->first + run->count && l.count < PAIR_BATCH; at++) {
            const float bias = mg_attn_pair_bias(s, run->query, at, head);
            if (bias == -INFINITY)
                continue;
            b.keys[l.count] = s->plan->pair_keys[at];
            b.at[l.count] = at;
            b.bias[l.count] = bias;
            if (l.keep)
                b.keep[l.count] = mg_attn_dropout_pair(s, run->query, b.keys[l.count], head);
            l.count++;
        }
        if (l.count)
            s->backend->backward_pairs(&l);
        end_batch(c, &b, l.count, run->query, head);
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
    for (int64_t row = c.row_begin; row < c.row_end && s->has_tiles; row++)
        do_tiles_of_row(&c, row);
    if (!s->has_pairs)
        return;
    const int64_t bucket = c.row_chunk * plan->chunks + c.column_chunk;
    for (int32_t head = c.head_begin; head < c.head_end; head++)
        for (int64_t i = plan->run_starts[bucket]; i < plan->run_starts[bucket + 1]; i++)
            do_run(&c, &plan->runs[i], head);
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
    zero(part_of(s->dk_rows, task, s->row), s->row * TILE);
    zero(part_of(s->dv_rows, task, s->value_row), s->value_row * TILE);
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
    if (call->dkey_bias)
        memset(call->dkey_bias, 0, (size_t)(call->heads * s->plan->keys) * sizeof(float));
    if (s->sums)
        memset(s->sums, 0, (size_t)call->heads * (size_t)s->plan->chunks * MG_ATTN_MAX_CODES * sizeof *s->sums);
}

/* lanes [dim][64] of token i, plus its row. Either may be NULL. */
static void store_key(const call_state *s, const mg_attn_tensor *to, const float *lanes, const float *rows, int i,
                      int64_t token, int32_t head, int32_t dim)
{
    float row[MG_ATTN_MAX_DIM];
    for (int32_t d = 0; d < dim; d++)
        row[d] = (lanes ? lanes[d * TILE + i] : 0) + (rows ? rows[d] : 0);
    mg_attn_store_row(to, row, s->call.type == MG_ATTN_BF16 && !s->call.gradients_fp32, token, head, dim);
}

static void store_key_gradients(void *context, int thread, int64_t step, int64_t task)
{
    const call_state *s = context;
    const mg_attn_call *call = &s->call;
    const int32_t head = (int32_t)(task / s->keys.tiles);
    const int64_t token = task % s->keys.tiles * TILE;
    const float *dk = part_of(s->dk, task, s->dim1), *dv = part_of(s->dv, task, call->value_dim);
    const float *dk_rows = part_of(s->dk_rows, task, s->row), *dv_rows = part_of(s->dv_rows, task, s->value_row);
    (void)thread, (void)step;
    for (int i = 0; i < smaller_of(TILE, s->plan->keys - token); i++) {
        if (call->dk.data)
            store_key(s, &call->dk, dk, dk_rows ? dk_rows + i * s->row : NULL, i, token + i, head, call->dim);
        if (call->dv.data)
            store_key(s, &call->dv, dv, dv_rows ? dv_rows + i * s->value_row : NULL, i, token + i, head, call->value_dim);
        if (call->dkey_bias && dk)
            call->dkey_bias[head * s->plan->keys + token + i] += dk[call->dim * TILE + i];
    }
}

static void store_query_gradients(void *context, int thread, int64_t step, int64_t task)
{
    const call_state *s = context;
    const int32_t head = (int32_t)(task / s->queries.tiles);
    const int64_t token = task % s->queries.tiles * TILE;
    (void)thread, (void)step;
    for (int i = 0; i < smaller_of(TILE, s->plan->queries - token); i++) {
        float row[MG_ATTN_MAX_DIM];
        const float *dq = s->dq + (task * TILE + i) * s->row;
        for (int32_t d = 0; d < s->call.dim; d++)
            row[d] = dq[d] * s->call.scale;
        mg_attn_store_row(&s->call.dq, row, s->call.type == MG_ATTN_BF16 && !s->call.gradients_fp32, token + i, head,
                          s->call.dim);
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
    for (int64_t first = 0; first < plan->tile_rows; first += s.band.rows) {
        status = mg_attn_band_load(&s, first);
        if (status)
            return status;
        mg_attn_parallel(s.threads, plan->chunks, (int64_t)plan->chunks * head_groups(&s), do_chunk, &s);
    }
    mg_attn_parallel(s.threads, 1, s.call.heads * s.keys.tiles, store_key_gradients, &s);
    if (s.dq)
        mg_attn_parallel(s.threads, 1, s.call.heads * s.queries.tiles, store_query_gradients, &s);
    if (s.sums)
        store_table_gradients(&s);
    return 0;
}
