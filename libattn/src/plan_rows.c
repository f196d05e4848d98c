/* Lists the tiles of a plan row by row, each with its class. Near pairs are sorted into tiles a row of tiles at a time,
 * and where far pairs are masked only tiles that hold near pairs are ever looked at. */
#include "library.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

/* Where far pairs are masked, a tile with at most so many seen pairs is gathered by pair: a choice, see README.md. So
   are all, where at most one pair in TILED would be left in tiles: a plan of pairs alone is done by token
   (near_call.c). */
enum { GATHER_PAIRS = 768, PATCH_PAIRS = 512, TILED = 8 };

/* A pair on its way into its tile or into the gathered pairs. */
typedef struct item {
    int32_t column, offset;
    uint16_t position;
    uint8_t code;
} item;

typedef struct lister {
    mg_attn_plan *plan;
    int gather_pairs; /* a tile with at most so many is gathered */
    int64_t tile_count, tile_capacity, entry_count, entry_capacity, pair_capacity;
    /* Of one row of tiles: */
    item *near, *sorted; /* near pairs by row, and by tile */
    int64_t near_count, near_capacity, sorted_capacity;
    int64_t *starts;  /* [tile_columns + 1]: pairs of a column's tile in `sorted`; zero between rows */
    int32_t *touched; /* [tile_columns] columns with near pairs, ascending */
    int64_t touched_count;
    item *gathered;
    int64_t gathered_count, gathered_capacity;
    int64_t *work; /* [tile_rows] */
} lister;

static int grow(void *array, int64_t *capacity, int64_t needed, size_t size)
{
    void *block, *larger;
    memcpy(&block, array, sizeof block);
    if (needed <= *capacity)
        return 0;
    const int64_t wanted = larger_of(needed, *capacity + *capacity / 2 + 256);
    larger = reallocate(block, wanted, size);
    if (!larger)
        return -ENOMEM;
    memcpy(array, &larger, sizeof larger);
    *capacity = wanted;
    return 0;
}

/* Three arrays of one length. */
static int grow_entries(lister *l, int64_t more)
{
    mg_attn_plan *plan = l->plan;
    int64_t a = l->entry_capacity, b = a, c = a;
    if (grow(&plan->entry_positions, &a, l->entry_count + more, sizeof *plan->entry_positions) ||
        grow(&plan->entry_codes, &b, l->entry_count + more, sizeof *plan->entry_codes) ||
        grow(&plan->entry_offsets, &c, l->entry_count + more, sizeof *plan->entry_offsets))
        return -ENOMEM;
    l->entry_capacity = a;
    return 0;
}

static int grow_pairs(lister *l, int64_t more)
{
    mg_attn_plan *plan = l->plan;
    int64_t a = l->pair_capacity, b = a, c = a;
    more += more ? NEAR_PAD : 0;
    if (grow(&plan->pair_keys, &a, plan->pairs + more, sizeof *plan->pair_keys) ||
        grow(&plan->pair_codes, &b, plan->pairs + more, sizeof *plan->pair_codes) ||
        (plan->map.kind == MG_ATTN_NEAR &&
         grow(&plan->pair_offsets, &c, plan->pairs + more, sizeof *plan->pair_offsets)))
        return -ENOMEM;
    l->pair_capacity = a;
    return 0;
}

static int add_tile(lister *l, int64_t tile_row, const plan_tile *tile)
{
    mg_attn_plan *plan = l->plan;
    if (grow(&plan->tiles, &l->tile_capacity, l->tile_count + 1, sizeof *plan->tiles))
        return -ENOMEM;
    plan->tiles[l->tile_count++] = *tile;
    l->work[tile_row] += PAIRS;
    plan->info.tiles_constant += tile->class == CLASS_CONSTANT;
    plan->info.tiles_patch += tile->class == CLASS_PATCH;
    plan->info.tiles_codes += tile->class == CLASS_CODES;
    return 0;
}

static int gather(lister *l, item one)
{
    if (grow(&l->gathered, &l->gathered_capacity, l->gathered_count + 1, sizeof *l->gathered))
        return -ENOMEM;
    l->gathered[l->gathered_count++] = one;
    return 0;
}

/* Moves the gathered pairs of a row of tiles, which are in order of tiles, to the plan in order of queries. */
static int end_row(lister *l, int64_t tile_row)
{
    mg_attn_plan *plan = l->plan;
    int64_t next[TILE + 1] = {0};
    if (grow_pairs(l, l->gathered_count))
        return -ENOMEM;
    for (int64_t i = 0; i < l->gathered_count; i++)
        next[l->gathered[i].position / TILE + 1]++;
    for (int row = 0; row < TILE; row++)
        next[row + 1] += next[row];
    for (int row = 0; row < TILE && tile_row * TILE + row < plan->queries; row++)
        plan->pair_starts[tile_row * TILE + row + 1] = plan->pairs + next[row + 1];
    for (int64_t i = 0; i < l->gathered_count; i++) {
        const item *one = &l->gathered[i];
        const int64_t at = plan->pairs + next[one->position / TILE]++;
        plan->pair_keys[at] = one->column * TILE + one->position % TILE;
        plan->pair_codes[at] = one->code;
        plan->pair_code_end = (int32_t)larger_of(plan->pair_code_end, one->code + 1);
        if (plan->pair_offsets)
            plan->pair_offsets[at] = one->offset;
    }
    plan->pairs += l->gathered_count;
    l->work[tile_row] += 8 * l->gathered_count;
    l->gathered_count = 0;
    plan->row_tiles[tile_row + 1] = l->tile_count;
    return 0;
}

/* --- kinds whose codes are seen as bytes --- */

static int gather_bytes(lister *l, int64_t tile_row, const plan_tile *tile, const uint8_t codes[PAIRS])
{
    const mg_attn_plan *plan = l->plan;
    const int rows = (int)smaller_of(TILE, plan->queries - tile_row * TILE);
    uint8_t bytes[PAIRS];
    if (tile->class == CLASS_CONSTANT) {
        mg_attn_tile_codes(bytes, plan, tile, tile_row, NULL, 0);
        codes = bytes;
    }
    for (int at = 0; at < rows * TILE; at++)
        if (codes[at] != plan->hidden)
            if (gather(l, (item){.column = tile->column, .position = (uint16_t)at, .code = codes[at]}))
                return -ENOMEM;
    return 0;
}

static int list_bytes(lister *l, int64_t tile_row)
{
    mg_attn_plan *plan = l->plan;
    const mg_attn_map *map = &plan->map;
    const uint8_t *codes = map->dense;
    int64_t begin, end;
    mg_attn_row_columns(plan, tile_row, &begin, &end);
    if (codes)
        codes += (map->query_begin + tile_row * TILE) * map->dense_stride + map->key_begin;
    for (int64_t column = begin; column < end; column++) {
        plan_tile tile;
        uint8_t bytes[PAIRS];
        int status = mg_attn_tile_look(&tile, bytes, plan, tile_row, (int32_t)column, codes, map->dense_stride);
        if (status <= 0) {
            if (status)
                return status;
            continue;
        }
        plan->info.seen_pairs += status;
        if (map->mask_far && status <= l->gather_pairs) {
            plan->info.tiles_pairs++;
            status = gather_bytes(l, tile_row, &tile, bytes);
        } else {
            status = add_tile(l, tile_row, &tile);
        }
        if (status)
            return status;
    }
    return 0;
}

/* --- near pairs --- */

static int64_t first_at_least(const int32_t *columns, int64_t begin, int64_t end, int64_t key)
{
    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (columns[middle] < key)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/* The seen pairs of one query, by key. Masked ones are left out. */
static int read_near_query(lister *l, int64_t query)
{
    const mg_attn_plan *plan = l->plan;
    const mg_attn_map *map = &plan->map;
    const int64_t row = map->query_begin + query, first = map->near_starts[row], end = map->near_starts[row + 1];
    int64_t key_begin, key_end;
    seen_keys(plan, query, &key_begin, &key_end);
    for (int64_t e = first_at_least(map->near_columns, first, end, map->key_begin + key_begin); e < end; e++) {
        const int64_t key = map->near_columns[e] - map->key_begin;
        const uint8_t code = map->near_codes ? map->near_codes[e] : 0;
        if (key >= key_end)
            break;
        if (map->mask_far && code == map->far_code)
            continue;
        if (grow(&l->near, &l->near_capacity, l->near_count + 1, sizeof *l->near))
            return -ENOMEM;
        l->near[l->near_count++] = (item){.column = (int32_t)(key / TILE),
                                          .offset = (int32_t)(e - first),
                                          .position = (uint16_t)(query % TILE * TILE + key % TILE),
                                          .code = code};
        if (!l->starts[key / TILE]++)
            l->touched[l->touched_count++] = (int32_t)(key / TILE);
    }
    return 0;
}

static int ascending(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts l->near into l->sorted by column; afterwards starts[column] is where the column's pairs end. */
static int sort_near(lister *l)
{
    int64_t at = 0;
    if (grow(&l->sorted, &l->sorted_capacity, l->near_count, sizeof *l->sorted))
        return -ENOMEM;
    qsort(l->touched, (size_t)l->touched_count, sizeof *l->touched, ascending);
    for (int64_t i = 0; i < l->touched_count; i++) {
        const int64_t count = l->starts[l->touched[i]];
        l->starts[l->touched[i]] = at;
        at += count;
    }
    for (int64_t i = 0; i < l->near_count; i++)
        l->sorted[l->starts[l->near[i].column]++] = l->near[i];
    return 0;
}

static int add_entries(lister *l, plan_tile *tile, const item *items, int64_t count)
{
    mg_attn_plan *plan = l->plan;
    if (grow_entries(l, count))
        return -ENOMEM;
    tile->entries = l->entry_count;
    tile->entry_count = (int32_t)count;
    for (int64_t i = 0; i < count; i++, l->entry_count++) {
        plan->entry_positions[l->entry_count] = items[i].position;
        plan->entry_codes[l->entry_count] = items[i].code;
        plan->entry_offsets[l->entry_count] = items[i].offset;
    }
    return 0;
}

static int list_near_tile(lister *l, int64_t tile_row, int32_t column, const item *items, int64_t count)
{
    mg_attn_plan *plan = l->plan;
    const mg_attn_map *map = &plan->map;
    plan_tile tile = {.column = column, .code = (uint8_t)map->far_code};
    const int overlap = mg_attn_tile_overlap(plan, tile_row, column, &tile.cut);
    const int64_t seen = map->mask_far ? count : overlap;
    int status = 0;
    if (!seen)
        return 0;
    plan->info.seen_pairs += seen;
    if (map->mask_far && seen <= l->gather_pairs) {
        plan->info.tiles_pairs++;
        for (int64_t i = 0; i < count && !status; i++)
            status = gather(l, items[i]);
        return status;
    }
    uint8_t flags[256] = {0};
    int present = 0;
    for (int64_t i = 0; i < count; i++)
        flags[items[i].code] = 1;
    flags[map->far_code] |= !map->mask_far && count < overlap;
    for (int c = 0; c < map->codes; c++)
        if (flags[c]) {
            tile.present |= mg_attn_present_bit(c);
            present++;
        }
    tile.class = count <= PATCH_PAIRS ? CLASS_PATCH : CLASS_CODES;
    if (present == 1 && seen == overlap) {
        tile.class = CLASS_CONSTANT;
        tile.code = count ? items[0].code : tile.code;
    }
    status = add_entries(l, &tile, items, count);
    return status ? status : add_tile(l, tile_row, &tile);
}

static int list_near(lister *l, int64_t tile_row)
{
    const mg_attn_plan *plan = l->plan;
    const int64_t last = smaller_of((tile_row + 1) * TILE, plan->queries);
    int64_t begin = 0, end, from = 0;
    int status = 0;
    for (int64_t query = tile_row * TILE; query < last && !status; query++)
        status = read_near_query(l, query);
    if (!status)
        status = sort_near(l);
    if (plan->map.mask_far)
        end = l->touched_count;
    else
        mg_attn_row_columns(plan, tile_row, &begin, &end);
    for (int64_t i = begin; i < end && !status; i++) {
        const int32_t column = plan->map.mask_far ? l->touched[i] : (int32_t)i;
        const int64_t to = larger_of(from, l->starts[column]);
        status = list_near_tile(l, tile_row, column, l->sorted + from, to - from);
        from = to;
    }
    for (int64_t i = 0; i < l->touched_count; i++)
        l->starts[l->touched[i]] = 0;
    l->near_count = l->touched_count = 0;
    return status;
}

/* --- the plan --- */

typedef struct row_work {
    int64_t work;
    int32_t row;
} row_work;

static int most_work_first(const void *a, const void *b)
{
    const row_work *x = a, *y = b;
    return x->work != y->work ? (x->work < y->work ? 1 : -1) : x->row - y->row;
}

/* Rows that could be waited for at the end go first; the others as tokens lie, since neighbours read the same keys. */
static int order_rows(lister *l)
{
    enum { SHARES = 256 };
    mg_attn_plan *plan = l->plan;
    int64_t total = 0;
    row_work *rows = allocate(plan->tile_rows, sizeof *rows);
    plan->row_order = allocate(plan->tile_rows, sizeof *plan->row_order);
    if (!rows || !plan->row_order) {
        release(rows);
        return -ENOMEM;
    }
    for (int64_t i = 0; i < plan->tile_rows; i++)
        total += l->work[i];
    for (int64_t i = 0; i < plan->tile_rows; i++)
        rows[i] = (row_work){.work = l->work[i] > total / SHARES ? l->work[i] : 0, .row = (int32_t)i};
    qsort(rows, (size_t)plan->tile_rows, sizeof *rows, most_work_first);
    for (int64_t i = 0; i < plan->tile_rows; i++)
        plan->row_order[i] = rows[i].row;
    release(rows);
    return 0;
}

static int shrink(mg_attn_plan *plan, void *array, int64_t capacity, int64_t count, size_t size)
{
    void *block, *smaller;
    memcpy(&block, array, sizeof block);
    plan->info.plan_bytes += count * (int64_t)size;
    if (!block || capacity == count)
        return 0;
    smaller = reallocate(block, count, size);
    if (!smaller)
        return -ENOMEM;
    memcpy(array, &smaller, sizeof smaller);
    return 0;
}

static int shrink_all(lister *l)
{
    mg_attn_plan *plan = l->plan;
    const int64_t entries = l->entry_count, capacity = l->entry_capacity, room = l->pair_capacity,
                  pairs = plan->pairs ? plan->pairs + NEAR_PAD : 0;
    plan->info.plan_bytes += (plan->tile_rows + 1 + plan->queries + 1) * (int64_t)sizeof(int64_t);
    plan->info.plan_bytes += plan->tile_rows * (int64_t)sizeof *plan->row_order;
    if (shrink(plan, &plan->tiles, l->tile_capacity, l->tile_count, sizeof *plan->tiles) ||
        shrink(plan, &plan->entry_positions, capacity, entries, sizeof *plan->entry_positions) ||
        shrink(plan, &plan->entry_codes, capacity, entries, sizeof *plan->entry_codes) ||
        shrink(plan, &plan->entry_offsets, capacity, entries, sizeof *plan->entry_offsets) ||
        shrink(plan, &plan->pair_keys, room, pairs, sizeof *plan->pair_keys) ||
        shrink(plan, &plan->pair_codes, room, pairs, sizeof *plan->pair_codes) ||
        (plan->pair_offsets && shrink(plan, &plan->pair_offsets, room, pairs, sizeof *plan->pair_offsets)))
        return -ENOMEM;
    if (plan->pairs) {
        memset(plan->pair_keys + plan->pairs, 0, NEAR_PAD * sizeof *plan->pair_keys);
        memset(plan->pair_codes + plan->pairs, 0, NEAR_PAD);
    }
    return 0;
}

static int list_all(lister *l, int gather_pairs)
{
    mg_attn_plan *plan = l->plan;
    mg_attn_plan_info *info = &plan->info;
    int status = 0;
    l->gather_pairs = gather_pairs;
    l->tile_count = l->entry_count = plan->pairs = plan->pair_code_end = 0;
    info->seen_pairs = info->tiles_constant = info->tiles_patch = info->tiles_codes = info->tiles_pairs = 0;
    memset(l->work, 0, (size_t)plan->tile_rows * sizeof *l->work);
    for (int64_t row = 0; row < plan->tile_rows && !status; row++) {
        status = plan->map.kind == MG_ATTN_NEAR ? list_near(l, row) : list_bytes(l, row);
        if (!status)
            status = end_row(l, row);
    }
    return status;
}

static int list_rows(lister *l)
{
    const mg_attn_plan *plan = l->plan;
    int status = list_all(l, GATHER_PAIRS);
    const int64_t tiled = plan->info.seen_pairs - plan->pairs;
    if (!status && plan->pairs && tiled && tiled * TILED <= plan->info.seen_pairs)
        status = list_all(l, PAIRS);
    if (!status)
        status = order_rows(l);
    return status ? status : shrink_all(l);
}

int mg_attn_plan_list_tiles(mg_attn_plan *plan)
{
    mg_attn_plan_info *info = &plan->info;
    if (plan->map.kind == MG_ATTN_STREAM) {
        info->seen_pairs = info->tiles_skip = info->tiles_constant = info->tiles_patch = -1;
        info->tiles_codes = info->tiles_pairs = -1;
        return 0;
    }
    lister l = {.plan = plan};
    plan->row_tiles = allocate_zeroed(plan->tile_rows + 1, sizeof *plan->row_tiles);
    plan->pair_starts = allocate_zeroed(plan->queries + 1, sizeof *plan->pair_starts);
    l.starts = allocate_zeroed(plan->tile_columns + 1, sizeof *l.starts);
    l.touched = allocate(plan->tile_columns, sizeof *l.touched);
    l.work = allocate_zeroed(plan->tile_rows, sizeof *l.work);
    int status = plan->row_tiles && plan->pair_starts && l.starts && l.touched && l.work ? 0 : -ENOMEM;
    if (!status)
        status = list_rows(&l);
    void *const scratch[] = {l.near, l.sorted, l.starts, l.touched, l.gathered, l.work};
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++)
        release(scratch[i]);
    info->tiles_skip = plan->tile_rows * plan->tile_columns - info->tiles_constant - info->tiles_patch -
                       info->tiles_codes - info->tiles_pairs;
    return status;
}
