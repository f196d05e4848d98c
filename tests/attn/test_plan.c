/* Maps that are wrong, however: refused when the plan is made, with what is wrong in the error line. */
#include "problem.h"

#include <limits.h>

static void refused(const mg_attn_map *map, const char *says)
{
    mg_attn_plan *plan = NULL;
    int status = mg_attn_plan_create(&plan, map);
    if (status != -EINVAL && status != -EOVERFLOW)
        fail_msg("status %d where the error line should say \"%s\"", status, says);
    assert_error_says(says);
}

static void sizes_and_kinds(void **state)
{
    (void)state;
    mg_attn_plan *plan;
    const mg_attn_map good = {.queries = 10, .keys = 12};
    mg_attn_map map = good;
    assert_int_equal(mg_attn_plan_create(&plan, NULL), -EINVAL);
    assert_int_equal(mg_attn_plan_create(NULL, &good), -EINVAL);
    map.queries = -1;
    refused(&map, "queries");
    refused(&map, "-1");
    map = good, map.keys = -3;
    refused(&map, "keys");
    map = good, map.codes = 257;
    refused(&map, "257");
    map = good, map.codes = -1;
    refused(&map, "codes");
    map = good, map.kind = (mg_attn_map_kind)9;
    refused(&map, "kind");
    map = good, map.kind = (mg_attn_map_kind)-1;
    refused(&map, "kind");
    map = good, map.codes = 4, map.far_code = 4, map.mask_far = 1;
    refused(&map, "far_code");
    map = good, map.codes = 4, map.far_code = -1, map.mask_far = 1;
    refused(&map, "far_code");
}

static void ranges(void **state)
{
    (void)state;
    const int64_t wrong[][2] = {{-1, 5},        {0, 11},       {6, 5}, {11, 12}, {5, 0}, {INT64_MAX, INT64_MAX},
                                {INT64_MIN, 3}, {2, INT64_MAX}};
    for (int x = 0; x < 8; x++) {
        mg_attn_map map = {.queries = 10, .keys = 10, .query_begin = wrong[x][0], .query_end = wrong[x][1]};
        refused(&map, "quer");
        map = (mg_attn_map){.queries = 10, .keys = 10, .key_begin = wrong[x][0], .key_end = wrong[x][1]};
        refused(&map, "key");
    }
}

static void segments(void **state)
{
    (void)state;
    const int64_t good[4] = {0, 3, 3, 10}, late[4] = {1, 3, 3, 10}, falls[4] = {0, 5, 3, 10},
                  short_of[4] = {0, 3, 3, 9}, beyond[4] = {0, 3, 3, 11};
    const int64_t *wrong[] = {late, falls, short_of, beyond};
    for (int x = 0; x < 4; x++) {
        mg_attn_map map = {.queries = 10, .keys = 10, .segments = 3, .query_segments = wrong[x]};
        refused(&map, "segment");
        map = (mg_attn_map){.queries = 10, .keys = 10, .segments = 3, .query_segments = good, .key_segments = wrong[x]};
        refused(&map, "segment");
    }
    mg_attn_map map = {
        .queries = 10, .keys = 12, .segments = 3, .query_segments = good}; /* as key segments they end at 10 */
    refused(&map, "segment");
    map = (mg_attn_map){.queries = 10, .keys = 10, .segments = -1, .query_segments = good};
    refused(&map, "segment");
    map = (mg_attn_map){.queries = 10, .keys = 10, .segments = 3};
    refused(&map, "segment");
}

static void dense(void **state)
{
    (void)state;
    uint8_t codes[100] = {0};
    mg_attn_map map = {.kind = MG_ATTN_DENSE, .queries = 10, .keys = 10, .dense_stride = 10};
    refused(&map, "dense");
    map.dense = codes;
    map.dense_stride = 9;
    refused(&map, "dense_stride");
    map.dense_stride = -10;
    refused(&map, "dense_stride");
    map.dense_stride = INT64_MAX;
    refused(&map, "dense_stride");
    codes[73] = 1;
    map.dense_stride = 10;
    refused(&map, "7");
}

/* A code that nobody may read is no error: other segments and ranges may be held in the same bytes. The range is what
 * counts. */
static void codes_outside_the_range_are_not_looked_at(void **state)
{
    (void)state;
    uint8_t codes[100];
    memset(codes, 200, sizeof codes);
    for (int i = 2; i < 8; i++)
        memset(codes + 10 * i + 3, 1, 5);
    mg_attn_map map = {.kind = MG_ATTN_DENSE,
                       .queries = 10,
                       .keys = 10,
                       .codes = 2,
                       .dense = codes,
                       .dense_stride = 10,
                       .query_begin = 2,
                       .query_end = 8,
                       .key_begin = 3,
                       .key_end = 8};
    mg_attn_plan *plan;
    assert_int_equal(mg_attn_plan_create(&plan, &map), 0);
    mg_attn_plan_destroy(plan);
}

static void near_pairs(void **state)
{
    (void)state;
    int64_t starts[5] = {0, 2, 2, 3, 4};
    int32_t columns[4] = {0, 3, 2, 1};
    uint8_t codes[4] = {0, 1, 0, 1};
    const mg_attn_map good = {.kind = MG_ATTN_NEAR,
                              .queries = 4,
                              .keys = 4,
                              .codes = 3,
                              .far_code = 2,
                              .near_starts = starts,
                              .near_columns = columns,
                              .near_codes = codes};
    mg_attn_map map = good;
    mg_attn_plan *plan;
    assert_int_equal(mg_attn_plan_create(&plan, &map), 0);
    mg_attn_plan_destroy(plan);
    map.near_starts = NULL;
    refused(&map, "near_starts");
    map = good, map.near_columns = NULL;
    refused(&map, "near_columns");
    map = good, map.far_code = 3;
    refused(&map, "far_code");
    codes[2] = 3;
    refused(&good, "2");
    codes[2] = 0;
    starts[0] = -1;
    refused(&good, "starts");
    starts[0] = 0;
    starts[3] = 1;
    refused(&good, "2"); /* row 2 ends before it starts */
    starts[3] = INT64_MIN;
    refused(&good, "2");
}

/* The one tile of a 40 x 50 map. */
typedef struct one_tile {
    uint8_t class, constant;
    int64_t offset;
    _Alignas(8) uint8_t payload[4096];
    mg_attn_tiles tiles;
    mg_attn_map map;
} one_tile;

static void tile_make(one_tile *t, int class)
{
    memset(t, 0, sizeof *t);
    t->class = (uint8_t) class;
    t->tiles = (mg_attn_tiles){.tile_rows = 1,
                               .tile_columns = 1,
                               .planes = 2,
                               .classes = &t->class,
                               .constants = &t->constant,
                               .offsets = &t->offset,
                               .payload = t->payload,
                               .payload_bytes = sizeof t->payload};
    t->map = (mg_attn_map){.kind = MG_ATTN_TILES, .queries = 40, .keys = 50, .codes = 4, .tiles = &t->tiles};
}

static void put_patches(one_tile *t, uint16_t count, const uint16_t *positions, const uint8_t *codes)
{
    memcpy(t->payload, &count, 2);
    memcpy(t->payload + 2, positions, 2 * count);
    memcpy(t->payload + 2 + 2 * count, codes, count);
}

static void tile_stores(void **state)
{
    (void)state;
    one_tile t;
    mg_attn_plan *plan;
    for (int class = 0; class < 3; class ++) {
        tile_make(&t, class);
        assert_int_equal(mg_attn_plan_create(&plan, &t.map), 0);
        mg_attn_plan_destroy(plan);
        t.class = 3;
        refused(&t.map, "class");
    }
    tile_make(&t, MG_ATTN_TILE_CONSTANT);
    t.map.tiles = NULL;
    refused(&t.map, "tiles");
    tile_make(&t, MG_ATTN_TILE_CONSTANT);
    t.tiles.tile_rows = 2;
    refused(&t.map, "2");
    tile_make(&t, MG_ATTN_TILE_CONSTANT);
    t.tiles.tile_columns = 0;
    refused(&t.map, "tile");
    for (int planes = 0; planes <= 9; planes += 9) {
        tile_make(&t, MG_ATTN_TILE_PLANES);
        t.tiles.planes = planes;
        refused(&t.map, "planes");
    }
    tile_make(&t, MG_ATTN_TILE_CONSTANT);
    t.constant = 4;
    refused(&t.map, "code 4");
    const char *const names[] = {"classes", "constants", "offsets", "payload"};
    for (int missing = 0; missing < 4; missing++) {
        tile_make(&t, MG_ATTN_TILE_PLANES);
        if (missing == 0)
            t.tiles.classes = NULL;
        else if (missing == 1)
            t.tiles.constants = NULL;
        else if (missing == 2)
            t.tiles.offsets = NULL;
        else
            t.tiles.payload = NULL;
        refused(&t.map, names[missing]);
    }
}

static void tile_offsets(void **state)
{
    (void)state;
    const int64_t wrong[] = {-8, 1, 4, 4096, 4096 - 1016, INT64_MAX - 7, INT64_MIN};
    one_tile t;
    for (int x = 0; x < 7; x++) {
        tile_make(&t, MG_ATTN_TILE_PLANES);
        t.offset = wrong[x];
        refused(&t.map, "tile");
    }
    const int64_t outside[] = {-8, 4, 4096, INT64_MAX - 7};
    for (int x = 0; x < 4; x++) {
        tile_make(&t, MG_ATTN_TILE_PATCH);
        t.offset = outside[x];
        refused(&t.map, "tile");
    }
}

static void tile_patches(void **state)
{
    (void)state;
    static const struct {
        uint16_t count, positions[3];
        uint8_t codes[3];
        const char *says;
    } wrong[] = {
        {3, {5, 4, 9}, {1, 1, 1}, "tile"},    /* descending */
        {3, {5, 5, 9}, {1, 1, 1}, "tile"},    /* twice */
        {3, {5, 7, 4096}, {1, 1, 1}, "tile"}, /* outside the tile */
        {3, {5, 7, 9}, {1, 4, 1}, "code 4"},  /* a code too large */
    };
    one_tile t;
    for (int x = 0; x < 4; x++) {
        tile_make(&t, MG_ATTN_TILE_PATCH);
        put_patches(&t, wrong[x].count, wrong[x].positions, wrong[x].codes);
        refused(&t.map, wrong[x].says);
    }
    for (int count = 4097; count <= 65535; count += 30719) { /* more than a tile, or than the payload, holds */
        uint16_t all = (uint16_t)count;
        tile_make(&t, MG_ATTN_TILE_PATCH);
        memcpy(t.payload, &all, 2);
        refused(&t.map, "tile");
    }
    tile_make(&t, MG_ATTN_TILE_PATCH);
    uint16_t count = 100;
    memcpy(t.payload, &count, 2);
    t.tiles.payload_bytes = 8;
    refused(&t.map, "tile");
}

/* Pairs beyond queries or keys hold anything: 63 is the last column of 64, keys are 50. */
static void tile_garbage_beyond_the_map_is_legal(void **state)
{
    (void)state;
    one_tile t;
    mg_attn_plan *plan;
    tile_make(&t, MG_ATTN_TILE_PATCH);
    put_patches(&t, 3, (const uint16_t[]){63, 64 * 39 + 49, 64 * 40}, (const uint8_t[]){255, 3, 200});
    assert_int_equal(mg_attn_plan_create(&plan, &t.map), 0);
    mg_attn_plan_destroy(plan);
    tile_make(&t, MG_ATTN_TILE_PLANES);
    t.map.codes = 2;
    t.payload[512 + 7] = 0x80; /* plane 1, query 0, key 63: code 2 */
    t.payload[512 + 8 * 40] = 1;
    assert_int_equal(mg_attn_plan_create(&plan, &t.map), 0);
    mg_attn_plan_destroy(plan);
    t.payload[512 + 8 * 39] = 1;
    refused(&t.map, "query 39, key 0");
}

static void streams(void **state)
{
    (void)state;
    mg_attn_map map = {.kind = MG_ATTN_STREAM, .queries = 10, .keys = 10};
    refused(&map, "stream");
    problem *p = problem_make((problem){.kind = MG_ATTN_STREAM});
    encoded *e = map_encode(&map, p);
    map.stream_rows = 100;
    refused(&map, "stream_rows");
    map.stream_rows = -64;
    refused(&map, "stream_rows");
    map_free(e);
    problem_free(p);
}

/* Products that do not fit 64 bits are refused, not wrapped. */
static void sizes_past_64_bits(void **state)
{
    (void)state;
    uint8_t code = 0;
    mg_attn_map map = {
        .kind = MG_ATTN_DENSE, .queries = INT64_MAX / 2, .keys = 4, .dense = &code, .dense_stride = INT64_MAX / 4};
    refused(&map, "");
    map = (mg_attn_map){
        .kind = MG_ATTN_DENSE, .queries = INT64_MAX, .keys = INT64_MAX, .dense = &code, .dense_stride = INT64_MAX};
    refused(&map, "");
}

/* Bytes at random in every field of a small store: refused or accepted, never read outside (the sanitizer looks). */
static void random_stores(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 3000; n++) {
        one_tile t;
        tile_make(&t, (int)(test_random_bits(n, 0) % 3));
        t.constant = (uint8_t)(test_random_bits(n, 1) % 5);
        t.offset = (int64_t)(test_random_bits(n, 2) % 64) * 8;
        int64_t bytes = (int64_t)(test_random_bits(n, 3) % 2048);
        uint8_t *payload = malloc((size_t)bytes + 1);
        for (int64_t x = 0; x < bytes; x++)
            payload[x] = (uint8_t)(test_random_bits(n, (uint64_t)(9 + x)) >> (x % 7 ? 62 : 50));
        t.tiles.payload = payload;
        t.tiles.payload_bytes = bytes;
        mg_attn_plan *plan;
        int status = mg_attn_plan_create(&plan, &t.map);
        assert_true(status == 0 || status == -EINVAL);
        if (!status)
            mg_attn_plan_destroy(plan);
        free(payload);
    }
}

static void random_near_pairs(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 3000; n++) {
        int64_t starts[9] = {0};
        for (int i = 1; i < 9; i++)
            starts[i] = starts[i - 1] + (int64_t)(test_random_bits(n, (uint64_t)i) % 4) -
                        (test_random_bits(n, 100 + (uint64_t)i) % 40 == 0);
        int64_t count = starts[8] > 0 ? starts[8] : 0;
        int32_t *columns = malloc((size_t)count * sizeof *columns + 1);
        uint8_t *codes = malloc((size_t)count + 1);
        for (int64_t e = 0; e < count; e++) {
            columns[e] = (int32_t)(e % 4 * 20 + (int64_t)(test_random_bits(n, 200 + (uint64_t)e) % 21)) - 1;
            codes[e] = (uint8_t)(test_random_bits(n, 300 + (uint64_t)e) % 100 ? 1 : 3);
        }
        mg_attn_map map = {.kind = MG_ATTN_NEAR,
                           .queries = 8,
                           .keys = 79,
                           .codes = 3,
                           .far_code = 2,
                           .mask_far = (int)(n & 1),
                           .near_starts = starts,
                           .near_columns = columns,
                           .near_codes = codes};
        mg_attn_plan *plan;
        int status = mg_attn_plan_create(&plan, &map);
        assert_true(status == 0 || status == -EINVAL);
        if (!status)
            mg_attn_plan_destroy(plan);
        free(columns);
        free(codes);
    }
}

static void destroying_nothing_is_fine(void **state)
{
    (void)state;
    mg_attn_plan_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_and_kinds),
        cmocka_unit_test(ranges),
        cmocka_unit_test(segments),
        cmocka_unit_test(dense),
        cmocka_unit_test(codes_outside_the_range_are_not_looked_at),
        cmocka_unit_test(near_pairs),
        cmocka_unit_test(tile_stores),
        cmocka_unit_test(tile_offsets),
        cmocka_unit_test(tile_patches),
        cmocka_unit_test(tile_garbage_beyond_the_map_is_legal),
        cmocka_unit_test(streams),
        cmocka_unit_test(sizes_past_64_bits),
        cmocka_unit_test(random_stores),
        cmocka_unit_test(random_near_pairs),
        cmocka_unit_test(destroying_nothing_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
