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
 * A chunk is some 4 tiles wide, so that a task's tokens stay in the second cache; a longer one is done in cells of 4 x
 * 4 tiles, row by row. Where there are more threads than tasks, the tiles of a cell's antidiagonal are tasks of their
 * own, one antidiagonal after the other: every sum keeps its order.
 *
 * The chunks depend on sizes alone, so every sum has one order on any number of threads. Table gradients are summed by
 * (head, row of tiles) and added at the end. A STREAM map goes band by band, each with its own steps. Listed pairs come
 * last (near_call.c), and store what tiles gave with what they add. */
#include "backward.h"
#include "library.h"
#include "near_call.h"
#include "parallel.h"

#include <math.h>
#include <string.h>

typedef struct chunk_task {
    call_state *s;
    int64_t row_begin, row_end, column_begin, column_end; /* in tiles */
    int64_t next_row, next_column; /* where this thread's next task may begin, whose codes are fetched */
    int32_t head_begin, head_end;
    scratch w;
} chunk_task;

/* Masks are made for all heads that share words. */
static int32_t heads_of_task(const call_state *s) { return s->call.dropout.probability > 0 ? MASK_HEADS : HEAD_GROUP; }
static int32_t head_groups(const call_state *s) { return (s->call.heads + heads_of_task(s) - 1) / heads_of_task(s); }

static void store_value_gradients(const call_state *s, const tile_place *place, const float *ds, int32_t head)
{
    const mg_attn_map *map = &s->plan->map;
    const plan_tile *tile = place->tile;
    float *dvalues = s->call.dvalues + head * map->near_starts[map->queries];
    for (int64_t e = tile->entries; e < tile->entries + tile->entry_count; e++) {
        const int position = s->plan->entry_positions[e];
        const int64_t query = map->query_begin + place->row * TILE + position / TILE;
        dvalues[map->near_starts[query] + s->plan->entry_offsets[e]] =
            ds[half_lane(position % TILE, TILE) + position / TILE * HALF];
    }
}

/* The codes of this tile's place in the next task. */
static const uint8_t *codes_ahead(const chunk_task *c, const tile_place *place)
{
    const mg_attn_map *map = &c->s->plan->map;
    const int64_t row = c->next_row + place->row - c->row_begin,
                  column = c->next_column + place->tile->column - c->column_begin;
    if (map->kind != MG_ATTN_DENSE || row >= c->s->plan->queries / TILE || column >= c->s->plan->tile_columns)
        return NULL;
    return map->dense + (map->query_begin + row * TILE) * map->dense_stride + map->key_begin + column * TILE;
}

/* `next` and its head: what is done after this, to be fetched meanwhile; its tile is NULL where nothing is known.
   Returns 0 where all pairs are hidden. */
static int do_lanes_tile(const chunk_task *c, const tile_place *place, int32_t head, const tile_place *next,
                         int32_t next_head, table_tile *table)
{
    const call_state *s = c->s;
    const mg_attn_call *call = &s->call;
    const int32_t dim1 = s->dim1, value_dim = call->value_dim, k_rows = s->paired ? TILE / 2 : TILE;
    const int64_t key_unit = head * s->keys.tiles + place->tile->column,
                  query_unit = head * s->queries.tiles + place->row;
    const int64_t queries = smaller_of(TILE, s->plan->queries - place->row * TILE);
    const int careful = (s->keys.bad[key_unit] || s->queries.bad[query_unit]) && mg_attn_tile_hides(s, place->tile);
    backward_tile t = {.dim = dim1,
                       .value_dim = value_dim,
                       .bias_element = s->has_bias_element,
                       .query_blocks = (int32_t)((queries + BLOCK - 1) / BLOCK),
                       .row = s->row,
                       .q = s->queries.tiled[0] + query_unit * s->queries.tile_floats[0],
                       .dout = s->queries.tiled[1] + query_unit * s->queries.tile_floats[1],
                       .scale = call->scale * s->score_unit,
                       .log2_scores = s->score_unit != 1,
                       .lse = s->lse + query_unit * TILE,
                       .delta = s->delta + query_unit * TILE,
                       .k = s->keys.tiled[0] + key_unit * s->keys.tile_floats[0],
                       .v = s->keys.tiled[1] + key_unit * s->keys.tile_floats[1],
                       .k_rows = s->keys.rows ? s->keys.rows + key_unit * s->row * k_rows : NULL,
                       .keep = c->w.keep ? c->w.keep + dropout_slot(s, head) * PAIRS : NULL,
                       .dq = part_of(s->dq, query_unit, s->dq_row),
                       .dk = part_of(s->dk, key_unit, dim1),
                       .dv = part_of(s->dv, key_unit, value_dim),
                       .ds = c->w.ds,
                       .table = call->dtable ? table : NULL,
                       .half_pipes = mg_attn_half_pipes()};
    t.sum_q = s->paired ? s->turned[0] + query_unit * dim1 * (TILE / 2) : t.q;
    t.sum_dout = s->paired ? s->turned[1] + query_unit * value_dim * (TILE / 2) : t.dout;
    t.store_ds = call->dtable || call->dvalues;
    t.need_ds = t.dq || t.dk || t.store_ds;
    if (head == c->head_begin) {
        t.codes_ahead = codes_ahead(c, place);
        t.codes_stride = s->plan->map.dense_stride;
    }
    if (next->tile) {
        const int64_t keys = next_head * s->keys.tiles + next->tile->column,
                      queries_ahead = next_head * s->queries.tiles + next->row;
        const float *const ahead[AHEAD] = {s->keys.tiled[0] + keys * s->keys.tile_floats[0],
                                           s->keys.tiled[1] + keys * s->keys.tile_floats[1],
                                           part_of(s->dk, keys, dim1),
                                           part_of(s->dv, keys, value_dim),
                                           s->keys.rows ? s->keys.rows + keys * s->row * k_rows : NULL,
                                           s->queries.tiled[0] + queries_ahead * s->queries.tile_floats[0],
                                           s->queries.tiled[1] + queries_ahead * s->queries.tile_floats[1],
                                           part_of(s->dq, queries_ahead, s->row)};
        memcpy(t.ahead, ahead, sizeof ahead);
    }
    if (!mg_attn_tile_bias(&t.bias, c->w.bias, s, place, head, careful))
        return 0;
    if (careful)
        mg_attn_careful_backward(&t, c->w.bias, c->w.careful, s->backend->backward);
    else
        (s->paired ? s->backend->paired_backward : s->backend->backward)(&t);
    return 1;
}

static void do_tile(const chunk_task *c, const tile_place *place, int32_t head, const tile_place *next,
                    int32_t next_head)
{
    const call_state *s = c->s;
    const mg_attn_call *call = &s->call;
    table_tile table = {.ds = c->w.ds,
                        .codes = place->codes,
                        .rows = round_up((int32_t)smaller_of(TILE, s->plan->queries - place->row * TILE), BLOCK),
                        .present = place->tile->present,
                        .one = __builtin_popcountll(place->tile->present) == 1,
                        .entries = s->entries,
                        .sums = call->dtable ? sums_of(s, head, place->row - s->band.first) : NULL};
    if (s->bf16 ? mg_attn_bf16_backward_tile(s, &c->w, place, head)
                : do_lanes_tile(c, place, head, next, next_head, &table)) {
        if (call->dtable && table.present)
            s->backend->table(&table);
        if (call->dvalues && place->tile->entry_count)
            store_value_gradients(s, place, c->w.ds, head);
    }
}

/* --- a cell: the tiles of at most 4 rows and 4 columns --- */

typedef struct cell {
    int64_t row, column;
    int rows, columns;
    const plan_tile *tiles[CELL][CELL]; /* NULL: skipped */
    int64_t next;                       /* column of the first tile of these rows that is right of the cell */
} cell;

static const plan_tile *first_of_row(const call_state *s, int64_t row, int64_t column, const plan_tile **end)
{
    int64_t count, i = 0, after;
    const plan_tile *tiles = mg_attn_band_row(s, row, &count);
    for (after = count; column && i < after;) {
        const int64_t middle = i + (after - i) / 2;
        if (tiles[middle].column < column)
            i = middle + 1;
        else
            after = middle;
    }
    *end = tiles + count;
    return tiles + i;
}

/* Cell (a, b) of a task; returns whether it has tiles. */
static int find_cell(cell *of, const chunk_task *c, int64_t a, int64_t b)
{
    int found = 0;
    of->row = c->row_begin + a * CELL;
    of->column = c->column_begin + b * CELL;
    of->rows = (int)smaller_of(CELL, c->row_end - of->row);
    of->columns = (int)smaller_of(CELL, c->column_end - of->column);
    of->next = c->column_end;
    memset(of->tiles, 0, sizeof of->tiles);
    for (int i = 0; i < of->rows; i++) {
        const plan_tile *end, *tile = first_of_row(c->s, of->row + i, of->column, &end);
        for (; tile < end && tile->column < of->column + of->columns; tile++, found = 1)
            of->tiles[i][tile->column - of->column] = tile;
        if (tile < end)
            of->next = smaller_of(of->next, tile->column);
    }
    return found;
}

static void do_heads(const chunk_task *c, const tile_place *place)
{
    const tile_place none = {0};
    for (int32_t head = c->head_begin; head < c->head_end; head++) {
        if (c->w.keep && (head == c->head_begin || dropout_slot(c->s, head) == 0))
            mg_attn_dropout_tile((float(*)[PAIRS])c->w.keep, c->s, place, head);
        do_tile(c, place, head, head + 1 < c->head_end ? place : &none, head + 1);
    }
}

/* The tile of row i and column j, its codes in their slot. */
static int place_of(tile_place *place, const chunk_task *c, const cell *of, int i, int j)
{
    if (i >= of->rows || j < 0 || j >= of->columns || !of->tiles[i][j])
        return 0;
    *place = (tile_place){
        .tile = of->tiles[i][j], .row = of->row + i, .codes = c->w.codes + (i * CELL + j) * PAIRS, .keys_in_lanes = 1};
    return 1;
}

static void load_codes(const chunk_task *c, const tile_place *place)
{
    uint8_t *codes = (uint8_t *)place->codes;
    if (!mg_attn_tile_needs_codes(c->s, place->tile))
        return;
    mg_attn_band_codes(codes, c->s, place->tile, place->row);
    if (c->s->bf16)
        c->s->backend->bf16_order_codes(codes);
}

/* Head by head, so that one head's tokens stay in cache; with dropout tile by tile, whose masks are made for all. */
static void do_cell(const chunk_task *c, const cell *of)
{
    tile_place places[CELL * CELL + 1] = {0};
    int count = 0;
    for (int at = 0; at < CELL * CELL; at++)
        if (place_of(&places[count], c, of, at / CELL, at % CELL)) {
            load_codes(c, &places[count]);
            count++;
        }
    for (int at = 0; at < count && c->w.keep; at++)
        do_heads(c, &places[at]);
    for (int32_t head = c->head_begin; head < c->head_end && !c->w.keep; head++)
        for (int at = 0; at < count; at++) {
            const int last = at + 1 == count, none = last && head + 1 == c->head_end;
            do_tile(c, &places[at], head, &places[none ? CELL * CELL : last ? 0 : at + 1], head + last);
        }
}

/* --- tasks --- */

enum { DIAGONALS = 2 * CELL - 1 };

/* Cells of the largest chunk: rows and columns of them. */
static void count_cells(int64_t cells[2], const call_state *s)
{
    const int64_t chunks = s->plan->chunks, widest = chunks * CELL;
    cells[0] = (smaller_of(s->band.rows, s->plan->tile_rows) + widest - 1) / widest;
    cells[1] = (s->plan->tile_columns + widest - 1) / widest;
}

static chunk_task task_of(call_state *s, int thread, int64_t step, int64_t task)
{
    const mg_attn_plan *plan = s->plan;
    const int64_t group = task / plan->chunks, r = task % plan->chunks, column = (r + step) % plan->chunks;
    const int64_t next = (r + 1) % plan->chunks, next_column = (next + step) % plan->chunks;
    const int64_t rows = smaller_of(s->band.rows, plan->tile_rows - s->band.first);
    const int32_t heads = heads_of_task(s);
    return (chunk_task){.s = s,
                        .row_begin = s->band.first + chunk_begin(rows, plan->chunks, r),
                        .row_end = s->band.first + chunk_begin(rows, plan->chunks, r + 1),
                        .column_begin = chunk_begin(plan->tile_columns, plan->chunks, column),
                        .column_end = chunk_begin(plan->tile_columns, plan->chunks, column + 1),
                        .next_row = s->band.first + chunk_begin(rows, plan->chunks, next),
                        .next_column = chunk_begin(plan->tile_columns, plan->chunks, next_column),
                        .head_begin = (int32_t)group * heads,
                        .head_end = (int32_t)smaller_of((group + 1) * heads, s->call.heads),
                        .w = mg_attn_call_scratch(s, thread)};
}

static void begin_matrix_tiles(const call_state *s)
{
    if (s->bf16)
        s->backend->bf16_begin();
}
static void end_matrix_tiles(const call_state *s)
{
    if (s->bf16)
        s->backend->bf16_end();
}

static void do_chunk(void *context, int thread, int64_t step, int64_t task)
{
    const chunk_task c = task_of(context, thread, step, task);
    cell of;
    begin_matrix_tiles(c.s);
    for (int64_t a = 0; c.row_begin + a * CELL < c.row_end; a++)
        for (int64_t b = 0; c.column_begin + b * CELL < c.column_end;
             b = of.next == c.column_end ? INT64_MAX / CELL - c.column_end : (of.next - c.column_begin) / CELL)
            if (find_cell(&of, &c, a, b))
                do_cell(&c, &of);
    end_matrix_tiles(c.s);
}

/* One tile of a chunk, for many threads: step is (chunk step, cell, antidiagonal), task (task, row in the cell). */
static void do_one_tile(void *context, int thread, int64_t step, int64_t task)
{
    int64_t cells[2];
    count_cells(cells, context);
    const int64_t each = cells[0] * cells[1], at = step / DIAGONALS % each;
    const chunk_task c = task_of(context, thread, step / DIAGONALS / each, task / CELL);
    const int i = (int)(task % CELL), j = (int)(step % DIAGONALS) - i;
    tile_place place;
    cell of;
    if (!find_cell(&of, &c, at / cells[1], at % cells[1]) || !place_of(&place, &c, &of, i, j))
        return;
    load_codes(&c, &place);
    begin_matrix_tiles(c.s);
    do_heads(&c, &place);
    end_matrix_tiles(c.s);
}

static void do_band(call_state *s)
{
    const int64_t chunks = s->plan->chunks, tasks = chunks * head_groups(s);
    int64_t cells[2];
    count_cells(cells, s);
    if (s->threads * 2 <= tasks || s->threads == 1)
        mg_attn_parallel(s->threads, chunks, tasks, do_chunk, s);
    else
        mg_attn_parallel(s->threads, chunks * cells[0] * cells[1] * DIAGONALS, tasks * CELL, do_one_tile, s);
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
        zero(part_of(s->dq, task, s->dq_row), s->dq_row * TILE);
    if (task >= key_units)
        return;
    zero(part_of(s->dk, task, s->dk_rows), s->dk_rows * TILE);
    zero(part_of(s->dv, task, s->dv_rows), s->dv_rows * TILE);
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
    if (s->sums)
        memset(s->sums, 0, (size_t)(call->heads * s->sum_rows * s->sum_row) * sizeof *s->sums);
    if (call->dvalues)
        zero_value_gradients(s);
    if (!s->has_tiles)
        return;
    if (!s->bf16 && !s->paired)
        mg_attn_pack_queries(s);
    mg_attn_parallel(s->threads, 1, call->heads * larger_of(s->keys.tiles, s->queries.tiles), zero_gradients, s);
}

void mg_attn_tile_gradient(float *row, const call_state *s, gradient which, int64_t token, int32_t head)
{
    const int lane = (int)(token % TILE);
    if (which == GRADIENT_Q) {
        const float *dq = s->dq + (head * s->queries.tiles * TILE + token) * s->dq_row;
        for (int32_t d = 0; d < s->row; d++)
            row[d] = dq[d] * s->call.scale;
        return;
    }
    const int of_k = which == GRADIENT_K;
    const int32_t dim = of_k ? s->call.dim : s->call.value_dim, rows = of_k ? s->dk_rows : s->dv_rows;
    const float *lanes = part_of(of_k ? s->dk : s->dv, head * s->keys.tiles + token / TILE, rows);
    /* In fp32 the queries have been scaled, and more than is right. */
    const float scale = !of_k ? 1 : s->bf16 || s->paired ? s->call.scale : 1 / s->score_unit;
    if (s->bf16)
        lanes += lane % 4 * rows * 16 + lane / 4;
    else
        lanes += half_lane(lane, rows);
    for (int32_t d = 0; d < dim; d++)
        row[d] = lanes[d * (s->bf16 ? 16 : HALF)] * scale;
    for (int32_t d = dim; d < round_up(dim, 8); d++)
        row[d] = 0;
}

float mg_attn_tile_key_bias(const call_state *s, int64_t key, int32_t head)
{
    const float *lanes = part_of(s->dk, head * s->keys.tiles + key / TILE, s->dim1);
    return lanes[half_lane((int)(key % TILE), s->dim1) + s->call.dim * HALF];
}

static void store_gradient(const call_state *s, gradient which, int64_t token, int32_t head)
{
    const mg_attn_call *call = &s->call;
    const mg_attn_tensor *to = which == GRADIENT_Q ? &call->dq : which == GRADIENT_K ? &call->dk : &call->dv;
    float row[MG_ATTN_MAX_DIM];
    if (!to->data)
        return;
    mg_attn_tile_gradient(row, s, which, token, head);
    mg_attn_store_row(to, row, call->type == MG_ATTN_BF16 && !call->gradients_fp32, token, head,
                      which == GRADIENT_V ? call->value_dim : call->dim);
}

static void store_gradients(void *context, int thread, int64_t step, int64_t tile)
{
    const call_state *s = context;
    const mg_attn_plan *plan = s->plan;
    (void)thread, (void)step;
    for (int32_t head = 0; head < s->call.heads; head++)
        for (int64_t token = tile * TILE; token < (tile + 1) * TILE; token++) {
            if (token < plan->queries)
                store_gradient(s, GRADIENT_Q, token, head);
            if (token >= plan->keys)
                continue;
            store_gradient(s, GRADIENT_K, token, head);
            store_gradient(s, GRADIENT_V, token, head);
            if (s->call.dkey_bias)
                s->call.dkey_bias[head * plan->keys + token] = mg_attn_tile_key_bias(s, token, head);
        }
}

static void store_table_gradients(const call_state *s)
{
    const int32_t codes = s->plan->map.codes;
    for (int32_t head = 0; head < s->call.heads; head++)
        for (int32_t code = 0; code < codes; code++) {
            double sum = 0;
            for (int64_t row = 0; row < s->sum_rows; row++)
                sum += sums_of(s, head, row)[code];
            s->call.dtable[head * codes + code] = (float)sum;
        }
}

static int tell(const last_keys *last) { return last ? last->then(last->context) : 0; }

int mg_attn_backward_last_first(const mg_attn_plan *plan, const mg_attn_call *call, const last_keys *last)
{
    call_state s;
    int status;
    if (plan && plan->backend->whole_backward) {
        status = plan->backend->whole_backward(plan, call);
        return status ? status : tell(last);
    }
    status = mg_attn_call_begin(&s, plan, call, 1);
    if (status)
        return status;
    begin(&s);
    for (int64_t first = 0; first < plan->tile_rows && s.has_tiles; first += s.band.rows) {
        status = mg_attn_band_load(&s, first);
        if (status)
            return status;
        do_band(&s);
    }
    if (s.has_pairs) {
        status = mg_attn_near_backward(&s, last);
    } else {
        mg_attn_parallel(s.threads, 1, larger_of(plan->tile_rows, plan->tile_columns), store_gradients, &s);
        status = tell(last);
    }
    if (s.sums)
        store_table_gradients(&s);
    return status;
}

int mg_attn_backward(const mg_attn_plan *plan, const mg_attn_call *call)
{
    return mg_attn_backward_last_first(plan, call, NULL);
}
