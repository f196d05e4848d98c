/* Maps of every kind from dense codes. */
#include "problem.h"

#include <stdatomic.h>

enum { T = MG_ATTN_TILE };

struct encoded {
    uint8_t *dense, *near_codes, *classes, *constants, *payload;
    int64_t *near_starts, *offsets;
    int32_t *near_columns;
    mg_attn_tiles tiles;
    const problem *p;
    _Atomic int64_t calls, wrong;
};

int64_t stream_calls(const encoded *e) { return atomic_load(&e->calls); }

static uint8_t code_of(const problem *p, int64_t i, int64_t j) { return p->codes_of[i * p->keys + j]; }

static void encode_dense(mg_attn_map *map, encoded *e, const problem *p)
{
    int64_t stride = p->keys + p->dense_pad;
    e->dense = malloc((size_t)(p->queries * stride) + 1);
    memset(e->dense, 0xee, (size_t)(p->queries * stride));
    for (int64_t i = 0; i < p->queries; i++)
        memcpy(e->dense + i * stride, p->codes_of + i * p->keys, (size_t)p->keys);
    map->dense = e->dense;
    map->dense_stride = stride;
}

static void encode_near(mg_attn_map *map, encoded *e, const problem *p)
{
    int64_t count = 0;
    e->near_starts = malloc((size_t)(p->queries + 1) * sizeof *e->near_starts);
    for (int64_t i = 0; i < p->queries * p->keys; i++)
        count += p->codes_of[i] != p->codes - 1;
    e->near_columns = malloc((size_t)count * sizeof *e->near_columns + 1);
    e->near_codes = malloc((size_t)count + 1);
    count = e->near_starts[0] = 0;
    for (int64_t i = 0; i < p->queries; i++) {
        for (int64_t j = 0; j < p->keys; j++)
            if (code_of(p, i, j) != p->codes - 1) {
                e->near_columns[count] = (int32_t)j;
                e->near_codes[count++] = code_of(p, i, j);
            }
        e->near_starts[i + 1] = count;
    }
    map->near_starts = e->near_starts;
    map->near_columns = e->near_columns;
    map->near_codes = e->near_codes;
}

/* The codes of a tile, with garbage beyond the map; returns whether all pairs of the map in it are equal. */
static int tile_codes(uint8_t codes[T * T], const problem *p, int64_t tile_row, int64_t tile_column)
{
    int first = code_of(p, tile_row * T, tile_column * T), equal = 1;
    for (int r = 0; r < T; r++)
        for (int c = 0; c < T; c++) {
            int64_t i = tile_row * T + r, j = tile_column * T + c;
            int inside = i < p->queries && j < p->keys;
            codes[r * T + c] = inside ? code_of(p, i, j) : (uint8_t)test_random_bits(7, (uint64_t)(i * 4099 + j));
            equal &= !inside || codes[r * T + c] == first;
        }
    return equal;
}

static int64_t put_patch(uint8_t *payload, const uint8_t codes[T * T], uint8_t constant)
{
    uint16_t count = 0;
    for (int x = 0; x < T * T; x++)
        count = (uint16_t)(count + (codes[x] != constant));
    uint8_t *position = payload + 2, *code = payload + 2 + 2 * count;
    memcpy(payload, &count, 2);
    for (int x = 0; x < T * T; x++)
        if (codes[x] != constant) {
            uint16_t place = (uint16_t)x;
            memcpy(position, &place, 2);
            position += 2;
            *code++ = codes[x];
        }
    return (2 + 3 * count + 7) / 8 * 8;
}

static int64_t put_planes(uint8_t *payload, const uint8_t codes[T * T], int planes)
{
    for (int p = 0; p < planes; p++)
        for (int r = 0; r < T; r++) {
            uint64_t word = 0;
            for (int c = 0; c < T; c++)
                word |= (uint64_t)(codes[r * T + c] >> p & 1) << c;
            memcpy(payload + 8 * (p * T + r), &word, 8);
        }
    return 8 * T * planes;
}

/* Any class that can hold a tile is used for it, by turns. */
static void encode_tiles(mg_attn_map *map, encoded *e, const problem *p)
{
    mg_attn_tiles *tiles = &e->tiles;
    tiles->tile_rows = (p->queries + T - 1) / T;
    tiles->tile_columns = (p->keys + T - 1) / T;
    tiles->planes = 1;
    while (1 << tiles->planes < p->codes)
        tiles->planes++;
    int64_t count = tiles->tile_rows * tiles->tile_columns;
    e->classes = malloc((size_t)count + 1);
    e->constants = malloc((size_t)count + 1);
    e->offsets = malloc((size_t)count * sizeof *e->offsets + 1);
    e->payload = malloc((size_t)count * (2 + 3 * T * T + 8) + 8);
    for (int64_t t = 0; t < count; t++) {
        uint8_t codes[T * T];
        uint64_t turn = test_random_bits(p->seed + 5, (uint64_t)t);
        int equal = tile_codes(codes, p, t / tiles->tile_columns, t % tiles->tile_columns);
        int class = (int)(turn % 3);
        uint8_t constant = turn >> 8 & 1 ? codes[0] : (uint8_t)((turn >> 16) % (uint64_t)p->codes);
        if (class == MG_ATTN_TILE_CONSTANT)
            class = equal ? MG_ATTN_TILE_CONSTANT : MG_ATTN_TILE_PATCH, constant = codes[0];
        e->classes[t] = (uint8_t) class;
        e->constants[t] = class == MG_ATTN_TILE_PLANES ? 0xab : constant;
        e->offsets[t] = tiles->payload_bytes;
        if (class == MG_ATTN_TILE_PATCH)
            tiles->payload_bytes += put_patch(e->payload + tiles->payload_bytes, codes, constant);
        else if (class == MG_ATTN_TILE_PLANES)
            tiles->payload_bytes += put_planes(e->payload + tiles->payload_bytes, codes, tiles->planes);
    }
    e->payload = realloc(e->payload, (size_t)tiles->payload_bytes + 1); /* so that reading on is seen */
    tiles->classes = e->classes;
    tiles->constants = e->constants;
    tiles->offsets = e->offsets;
    tiles->payload = e->payload;
    map->tiles = tiles;
}

static int write_codes(void *context, int thread, int64_t q0, int64_t nq, int64_t k0, int64_t nk, uint8_t *codes,
                       int64_t stride)
{
    encoded *e = context;
    const problem *p = e->p;
    int64_t qe = q0 + nq, ke = k0 + nk;
    atomic_fetch_add(&e->calls, 1);
    if (thread < 0 || nq < 1 || nk < 1 || stride < nk || q0 < p->query_begin || k0 < p->key_begin ||
        qe > p->query_begin + plan_queries(p) || ke > p->key_begin + plan_keys(p)) {
        atomic_fetch_add(&e->wrong, 1);
        return 1;
    }
    for (int64_t i = q0; i < qe; i++)
        memcpy(codes + (i - q0) * stride, p->codes_of + i * p->keys + k0, (size_t)nk);
    return 0;
}

encoded *map_encode(mg_attn_map *map, const problem *p)
{
    encoded *e = calloc(1, sizeof *e);
    e->p = p;
    *map = (mg_attn_map){.kind = p->kind,
                         .queries = p->queries,
                         .keys = p->keys,
                         .codes = p->codes,
                         .far_code = p->codes - 1,
                         .mask_far = p->mask_far,
                         .query_begin = p->query_begin,
                         .query_end = p->query_end,
                         .key_begin = p->key_begin,
                         .key_end = p->key_end};
    if (p->with & SEGMENTS) {
        map->segments = 5;
        map->query_segments = p->query_segments;
        map->key_segments = p->key_segments;
    }
    if (p->kind == MG_ATTN_DENSE)
        encode_dense(map, e, p);
    else if (p->kind == MG_ATTN_NEAR)
        encode_near(map, e, p);
    else if (p->kind == MG_ATTN_TILES)
        encode_tiles(map, e, p);
    else if (p->kind == MG_ATTN_STREAM) {
        map->stream = write_codes;
        map->stream_context = e;
        map->stream_rows = p->stream_rows;
    }
    return e;
}

void map_free(encoded *e)
{
    int64_t wrong = atomic_load(&e->wrong);
    free(e->dense);
    free(e->near_codes);
    free(e->near_starts);
    free(e->near_columns);
    free(e->classes);
    free(e->constants);
    free(e->offsets);
    free(e->payload);
    free(e);
    assert_int_equal(wrong, 0); /* the stream was asked for pairs outside the plan */
}
