/* What a plan holds: the map with every default filled in, and its tiles.
 *
 * Queries, keys, tiles and pairs below are those of the plan's range, counted from its begin, unless a name says map.
 *
 *     row_tiles [tile_rows + 1] -> tiles: those of a row that are not skipped, columns ascending
 *                                  tile of a NEAR map -> entries: its near pairs, positions ascending
 *     pair_starts [queries + 1] -> pairs: those of tiles with so few that gathering is cheaper (far pairs masked)
 *     column_starts [keys + 1] -> column_queries, column_pairs: the same pairs by key, for backward
 */
#ifndef MG_ATTN_PLAN_H
#define MG_ATTN_PLAN_H
#include "kernel.h"

typedef enum tile_class { CLASS_CONSTANT, CLASS_PATCH, CLASS_CODES } tile_class;

typedef struct plan_tile {
    int32_t column;
    uint8_t class;
    uint8_t code; /* CONSTANT: of all seen pairs. NEAR: of the pairs that are not entries */
    uint8_t cut;  /* some pairs are hidden by segments or lie beyond the last key */
    int32_t entry_count;
    int64_t entries;  /* NEAR: first entry */
    uint64_t present; /* codes of seen pairs, as in table_tile */
} plan_tile;

struct mg_attn_plan {
    /* A copy with defaults filled in: codes >= 1; 0 <= query_begin <= query_end <= queries and the same for keys;
       segments 0 and both arrays NULL, or both arrays set (owned by the plan); `tiles` points to a copy of the struct
       (arrays borrowed); stream_rows > 0. near_codes may be NULL: all 0. */
    mg_attn_map map;
    mg_attn_tiles store;
    int64_t *segments; /* both arrays of the map */
    const attn_backend *backend;

    int64_t queries, keys, tile_rows, tile_columns;
    int32_t hidden;  /* the code that hides a pair: far_code where it is masked, else one more than the codes; -1: none
                        is free */
    int32_t entries; /* of a table: the codes, and the hidden one */
    int64_t *seen;   /* [queries][2] first key, end of keys that segments let a query see; NULL: all */

    int64_t *row_tiles;
    plan_tile *tiles;
    int32_t *row_order;        /* [tile_rows] those with much work first, then as they lie */
    uint16_t *entry_positions; /* query in tile * 64 + key in tile */
    uint8_t *entry_codes;
    int32_t *entry_offsets; /* from near_starts of the query */

    int64_t *pair_starts;
    int32_t *pair_keys; /* and NEAR_PAD zeros behind, as kernels read vectors; pair_codes too */
    uint8_t *pair_codes;
    int32_t *pair_offsets;                 /* NEAR, as above */
    int64_t *column_starts, *column_pairs; /* column_pairs: index in pair_keys */
    int32_t *column_queries;

    int32_t chunks;        /* row chunks and column chunks of backward, see chunk_begin */
    int64_t pairs;         /* gathered ones */
    int32_t pair_code_end; /* above the codes they have */
    mg_attn_plan_info info;
};

/* Copies a map with its defaults filled in; -EINVAL or -EOVERFLOW where it is wrong, but for codes outside lists. */
int mg_attn_plan_check_map(mg_attn_map *map, const mg_attn_map *given);

/* STREAM has its tiles made for one band of rows at a time: as many rows as stream_rows asks for, several times. */
int64_t mg_attn_plan_band_tile_rows(const mg_attn_plan *plan);

/* How many chunks rows and columns are cut into: by size alone, so that sums have one order on any number of threads.
 */
int32_t mg_attn_chunk_count(int64_t tile_rows, int64_t tile_columns);
static inline int64_t chunk_begin(int64_t tiles, int32_t chunks, int64_t chunk) { return tiles * chunk / chunks; }

static inline int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger_of(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t tiles_of(int64_t tokens) { return tokens / TILE + (tokens % TILE != 0); }

/* Keys of the plan that segments let a query see: [begin, end). */
static inline void seen_keys(const mg_attn_plan *plan, int64_t query, int64_t *begin, int64_t *end)
{
    *begin = plan->seen ? plan->seen[2 * query] : 0;
    *end = plan->seen ? plan->seen[2 * query + 1] : plan->keys;
}

/* --- tiles.c: looking at tiles --- */

/* Codes of one tile, query-major, for the tiles of a list: hidden pairs have plan->hidden where that is not -1; rows
   beyond the last query have any code below plan->entries. `codes` points to query 0, key 0 of the tile's row: of the
   dense map or of a stream's band, with its stride. */
void mg_attn_tile_codes(uint8_t out[PAIRS], const mg_attn_plan *plan, const plan_tile *tile, int64_t tile_row,
                        const uint8_t *codes, int64_t stride);

/* Looks at tile (tile_row, column) of all kinds but NEAR; returns how many pairs are seen, or -EINVAL for a wrong code.
   Leaves its codes in out, as mg_attn_tile_codes does, unless all pairs of it have one code. */
int mg_attn_tile_look(plan_tile *tile, uint8_t out[PAIRS], const mg_attn_plan *plan, int64_t tile_row, int32_t column,
                      const uint8_t *codes, int64_t stride);
/* Pairs of the tile that segments let be seen; *cut as in plan_tile. */
int mg_attn_tile_overlap(const mg_attn_plan *plan, int64_t tile_row, int64_t column, uint8_t *cut);
/* Columns [begin, end) of tiles that hold pairs that segments let be seen. */
void mg_attn_row_columns(const mg_attn_plan *plan, int64_t tile_row, int64_t *begin, int64_t *end);
uint64_t mg_attn_present_bit(int32_t code);

/* --- plan_rows.c: listing them --- */
int mg_attn_plan_list_tiles(mg_attn_plan *plan);

/* --- plan_columns.c --- */
int mg_attn_plan_list_columns(mg_attn_plan *plan);

#endif
