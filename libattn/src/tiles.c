/* One tile of the map: its codes as bytes, and what they are like. */
#include "library.h"
#include "plan.h"

#include <string.h>

uint64_t mg_attn_present_bit(int32_t code) { return UINT64_C(1) << (code < 63 ? code : 63); }

static int queries_of(const mg_attn_plan *plan, int64_t tile_row)
{
    return (int)smaller_of(TILE, plan->queries - tile_row * TILE);
}

/* Keys [*begin, *end) of the tile that query `row` of it may see by segment. */
static void seen_in_tile(const mg_attn_plan *plan, int64_t tile_row, int64_t column, int row, int *begin, int *end)
{
    int64_t first, last;
    seen_keys(plan, tile_row * TILE + row, &first, &last);
    *begin = (int)larger_of(0, smaller_of(TILE, first - column * TILE));
    *end = (int)larger_of(*begin, smaller_of(TILE, last - column * TILE));
}

int mg_attn_tile_overlap(const mg_attn_plan *plan, int64_t tile_row, int64_t column, uint8_t *cut)
{
    const int rows = queries_of(plan, tile_row);
    int overlap = 0;
    if (!plan->seen) {
        overlap = rows * (int)smaller_of(TILE, plan->keys - column * TILE);
    } else {
        for (int row = 0; row < rows; row++) {
            int begin, end;
            seen_in_tile(plan, tile_row, column, row, &begin, &end);
            overlap += end - begin;
        }
    }
    *cut = overlap != rows * TILE;
    return overlap;
}

void mg_attn_row_columns(const mg_attn_plan *plan, int64_t tile_row, int64_t *begin, int64_t *end)
{
    int64_t first = plan->keys, last = 0;
    for (int row = 0; row < queries_of(plan, tile_row); row++) {
        int64_t b, e;
        seen_keys(plan, tile_row * TILE + row, &b, &e);
        if (b < e) {
            first = smaller_of(first, b);
            last = larger_of(last, e);
        }
        if (!plan->seen)
            break;
    }
    *begin = first / TILE;
    *end = larger_of(*begin, tiles_of(last));
}

/* --- the tile store --- */

static void expand_stored(uint8_t out[PAIRS], const mg_attn_plan *plan, int64_t t)
{
    const mg_attn_tiles *store = &plan->store;
    const uint8_t *payload = store->payload + store->offsets[t];
    if (store->classes[t] == MG_ATTN_TILE_PLANES) {
        plan->backend->expand_planes(out, (const uint64_t *)(const void *)payload, store->planes);
        return;
    }
    memset(out, store->constants[t], PAIRS);
    if (store->classes[t] == MG_ATTN_TILE_PATCH) {
        const uint16_t count = *(const uint16_t *)(const void *)payload;
        const uint16_t *positions = (const uint16_t *)(const void *)payload + 1;
        const uint8_t *codes = (const uint8_t *)(positions + count);
        for (int i = 0; i < count; i++)
            out[positions[i]] = codes[i];
    }
}

/* Calls for the up to four stored tiles below a tile of the plan. */
typedef struct stored_part {
    int64_t tile;
    int from_row, from_key, to_row, to_key, rows, keys;
} stored_part;

static int stored_parts(stored_part parts[4], const mg_attn_plan *plan, int64_t tile_row, int64_t column)
{
    const int64_t q0 = plan->map.query_begin + tile_row * TILE, k0 = plan->map.key_begin + column * TILE;
    const int64_t q1 = smaller_of(q0 + TILE, plan->map.query_end), k1 = smaller_of(k0 + TILE, plan->map.key_end);
    int count = 0;
    for (int64_t row = q0 / TILE; row * TILE < q1; row++)
        for (int64_t col = k0 / TILE; col * TILE < k1; col++) {
            const int64_t q = larger_of(q0, row * TILE), k = larger_of(k0, col * TILE);
            parts[count++] = (stored_part){.tile = row * plan->store.tile_columns + col,
                                           .from_row = (int)(q - row * TILE),
                                           .from_key = (int)(k - col * TILE),
                                           .to_row = (int)(q - q0),
                                           .to_key = (int)(k - k0),
                                           .rows = (int)(smaller_of(q1, (row + 1) * TILE) - q),
                                           .keys = (int)(smaller_of(k1, (col + 1) * TILE) - k)};
        }
    return count;
}

static void read_store(uint8_t out[PAIRS], const mg_attn_plan *plan, int64_t tile_row, int64_t column)
{
    stored_part parts[4];
    const int count = stored_parts(parts, plan, tile_row, column);
    if (plan->map.query_begin % TILE == 0 && plan->map.key_begin % TILE == 0) {
        expand_stored(out, plan, parts[0].tile);
        return;
    }
    memset(out, 0, PAIRS);
    for (int i = 0; i < count; i++) {
        const stored_part *p = &parts[i];
        uint8_t whole[PAIRS];
        expand_stored(whole, plan, p->tile);
        for (int row = 0; row < p->rows; row++)
            memcpy(out + (p->to_row + row) * TILE + p->to_key, whole + (p->from_row + row) * TILE + p->from_key,
                   (size_t)p->keys);
    }
}

static int check_patch(const mg_attn_tiles *store, int64_t t, int64_t left)
{
    const uint8_t *payload = store->payload + store->offsets[t];
    uint16_t count = 0, last = 0;
    if (left >= 2)
        memcpy(&count, payload, sizeof count);
    if (left < 2 || left < 2 + 3 * (int64_t)count)
        return fail(-EINVAL, "tile %lld: a patch of %d pairs at %lld leaves the payload of %lld bytes", (long long)t,
                    count, (long long)store->offsets[t], (long long)store->payload_bytes);
    for (int i = 0; i < count; i++) {
        uint16_t position;
        memcpy(&position, payload + 2 + 2 * i, sizeof position);
        if (position >= PAIRS || (i && position <= last))
            return fail(-EINVAL, "tile %lld: patch position %d comes after %d; they ascend below %d", (long long)t,
                        position, last, PAIRS);
        last = position;
    }
    return 0;
}

static int check_stored(const mg_attn_tiles *store, int64_t t)
{
    const int64_t offset = store->offsets[t], left = store->payload_bytes - offset;
    if (store->classes[t] == MG_ATTN_TILE_CONSTANT)
        return 0;
    if (store->classes[t] > MG_ATTN_TILE_PLANES)
        return fail(-EINVAL, "tile %lld: %d is no class of a tile", (long long)t, store->classes[t]);
    if (offset < 0 || offset % 8 || left < 0)
        return fail(-EINVAL, "tile %lld: offset %lld is not a multiple of 8 within the payload of %lld bytes",
                    (long long)t, (long long)offset, (long long)store->payload_bytes);
    if (store->classes[t] == MG_ATTN_TILE_PATCH)
        return check_patch(store, t, left);
    if (left < store->planes * TILE * (int64_t)sizeof(uint64_t))
        return fail(-EINVAL, "tile %lld: %d bit planes at %lld leave the payload of %lld bytes", (long long)t,
                    store->planes, (long long)offset, (long long)store->payload_bytes);
    return 0;
}

/* 0, or -EINVAL; *constant is the one code of all stored tiles below this tile, or -1. */
static int look_at_store(const mg_attn_plan *plan, int64_t tile_row, int64_t column, int *constant)
{
    stored_part parts[4];
    const int count = stored_parts(parts, plan, tile_row, column);
    for (int i = 0; i < count; i++) {
        const int64_t t = parts[i].tile;
        int status = check_stored(&plan->store, t);
        if (status)
            return status;
        const int code = plan->store.classes[t] == MG_ATTN_TILE_CONSTANT ? plan->store.constants[t] : -1;
        *constant = i && *constant != code ? -1 : code;
    }
    return 0;
}

/* --- any kind --- */

static void hide_unseen(uint8_t out[PAIRS], const mg_attn_plan *plan, int64_t tile_row, int64_t column)
{
    for (int row = 0; row < queries_of(plan, tile_row) && plan->hidden >= 0; row++) {
        int begin, end;
        seen_in_tile(plan, tile_row, column, row, &begin, &end);
        memset(out + row * TILE, plan->hidden, (size_t)begin);
        memset(out + row * TILE + end, plan->hidden, (size_t)(TILE - end));
    }
}

/* Of bytes in memory: the dense map or a band. Keys beyond the last are not read. */
static void read_bytes(uint8_t out[PAIRS], const mg_attn_plan *plan, int64_t tile_row, int64_t column,
                       const uint8_t *codes, int64_t stride)
{
    const int rows = queries_of(plan, tile_row), keys = (int)smaller_of(TILE, plan->keys - column * TILE);
    if (keys < TILE)
        memset(out, 0, PAIRS);
    for (int row = 0; row < rows; row++)
        if (keys == TILE)
            memcpy(out + row * TILE, codes + row * stride + column * TILE, TILE);
        else
            memcpy(out + row * TILE, codes + row * stride + column * TILE, (size_t)keys);
}

void mg_attn_tile_codes(uint8_t out[PAIRS], const mg_attn_plan *plan, const plan_tile *tile, int64_t tile_row,
                        const uint8_t *codes, int64_t stride)
{
    if (tile->class == CLASS_CONSTANT || plan->map.kind == MG_ATTN_NEAR)
        memset(out, tile->code, PAIRS);
    else if (plan->map.kind == MG_ATTN_TILES)
        read_store(out, plan, tile_row, tile->column);
    else
        read_bytes(out, plan, tile_row, tile->column, codes, stride);
    if (tile->class != CLASS_CONSTANT)
        for (int64_t e = tile->entries; e < tile->entries + tile->entry_count; e++)
            out[plan->entry_positions[e]] = plan->entry_codes[e];
    const int rows = queries_of(plan, tile_row); /* a stored tile holds anything beyond the last query */
    memset(out + rows * TILE, 0, (size_t)(TILE - rows) * TILE);
    if (tile->cut)
        hide_unseen(out, plan, tile_row, tile->column);
}

/* Marks the codes of seen pairs in flags; returns how many have the code `counted`. */
static int flag_codes(uint8_t flags[256], const uint8_t codes[PAIRS], const mg_attn_plan *plan, int64_t tile_row,
                      int64_t column, int counted)
{
    int count = 0;
    memset(flags, 0, 256);
    for (int row = 0; row < queries_of(plan, tile_row); row++) {
        const uint8_t *c = codes + row * TILE;
        int begin, end;
        seen_in_tile(plan, tile_row, column, row, &begin, &end);
        for (int key = begin; key < end; key++)
            flags[c[key]] = 1;
        for (int key = begin; key < end; key++)
            count += c[key] == counted;
    }
    return count;
}

static int wrong_code(const uint8_t codes[PAIRS], const mg_attn_plan *plan, int64_t tile_row, int64_t column)
{
    const mg_attn_map *map = &plan->map;
    for (int at = 0; at < queries_of(plan, tile_row) * TILE; at++) {
        int begin, end;
        seen_in_tile(plan, tile_row, column, at / TILE, &begin, &end);
        if (at % TILE < begin || at % TILE >= end || codes[at] < map->codes)
            continue;
        const int64_t query = map->query_begin + tile_row * TILE + at / TILE;
        const int64_t key = map->key_begin + column * TILE + at % TILE;
        if (map->kind == MG_ATTN_TILES)
            return fail(-EINVAL, "tile %lld: query %lld, key %lld has code %d, but codes go from 0 to %d",
                        (long long)(query / TILE * plan->store.tile_columns + key / TILE), (long long)query,
                        (long long)key, codes[at], map->codes - 1);
        return fail(-EINVAL, "query %lld, key %lld has code %d, but codes go from 0 to %d", (long long)query,
                    (long long)key, codes[at], map->codes - 1);
    }
    return 0;
}

/* Whether all bytes of a whole tile are one code, without looking at each. */
static int constant_bytes(const uint8_t *codes, int64_t stride)
{
    uint8_t differs = 0;
    for (int row = 0; row < TILE && !differs; row++)
        for (int key = 0; key < TILE; key++)
            differs |= codes[row * stride + key] ^ codes[0];
    return differs ? -1 : codes[0];
}

int mg_attn_tile_look(plan_tile *tile, uint8_t out[PAIRS], const mg_attn_plan *plan, int64_t tile_row, int32_t column,
                      const uint8_t *codes, int64_t stride)
{
    const mg_attn_map *map = &plan->map;
    const int counted = map->mask_far ? map->far_code : -1;
    uint8_t flags[256];
    int constant = -1, far = 0, present = 0;
    *tile = (plan_tile){.column = column, .class = CLASS_CODES};
    const int overlap = mg_attn_tile_overlap(plan, tile_row, column, &tile->cut);
    if (!overlap)
        return 0;
    if (map->kind == MG_ATTN_NONE)
        constant = 0;
    else if (map->kind == MG_ATTN_TILES && look_at_store(plan, tile_row, column, &constant))
        return -EINVAL;
    else if (map->kind != MG_ATTN_TILES && !tile->cut && queries_of(plan, tile_row) == TILE)
        constant = constant_bytes(codes + column * TILE, stride);
    if (constant >= 0) {
        memset(flags, 0, sizeof flags);
        flags[constant] = 1;
        far = constant == counted ? overlap : 0;
    } else {
        mg_attn_tile_codes(out, plan, &(plan_tile){.column = column, .class = CLASS_CODES}, tile_row, codes, stride);
        far = flag_codes(flags, out, plan, tile_row, column, counted);
    }
    for (int c = 0; c < 256; c++) {
        if (flags[c] && c >= map->codes) {
            if (constant >= 0)
                memset(out, constant, PAIRS);
            return wrong_code(out, plan, tile_row, column);
        }
        if (flags[c]) {
            tile->present |= c == counted ? 0 : mg_attn_present_bit(c);
            tile->code = (uint8_t)c;
            present++;
        }
    }
    if (present == 1)
        tile->class = CLASS_CONSTANT;
    else if (tile->cut)
        hide_unseen(out, plan, tile_row, column);
    return overlap - far;
}
