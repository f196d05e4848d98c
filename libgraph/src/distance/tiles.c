/* The tile store, in two passes over the blocks of 512 rows: the first classes and measures tiles, the second writes
 * them to their places. Searching twice costs less than holding the payload twice. */
#include "stream.h"

#include "graph/csr.h"
#include "graph/parallel.h"
#include "library.h"

typedef struct tile_store {
    mg_graph_tiles tiles; /* first: what callers see */
    uint8_t *classes, *constants, *payload;
    int64_t *offsets;
} tile_store;

typedef struct tile_work {
    mg_graph_stream *stream;
    tile_store *store;
    int64_t row_begin, row_end;
} tile_work;

static void tile_block(void *context, int thread, int64_t block)
{
    tile_work *work = context;
    tile_store *store = work->store;
    int64_t first = work->row_begin + block * BLOCK_SOURCES, left = work->row_end - first;
    int64_t at = block * (BLOCK_SOURCES / CHUNK) * store->tiles.tile_columns;
    mg_graph_tile_rows rows = {store->classes + at, store->constants + at, store->offsets + at, store->payload,
                               store->tiles.tile_columns};
    const mg_graph_search *search =
        mg_graph_stream_search(work->stream, thread, first, left < BLOCK_SOURCES ? left : BLOCK_SOURCES);
    work->stream->kernels->tiles(search, &rows);
}

/* Turns the tiles' bytes into offsets; returns their sum. */
static int64_t place_tiles(tile_store *store)
{
    int64_t count = store->tiles.tile_rows * store->tiles.tile_columns, total = 0;
    for (int64_t t = 0; t < count; t++) {
        int64_t bytes = store->offsets[t];
        store->offsets[t] = total;
        total += bytes;
    }
    return total;
}

static int fill_store(tile_store *store, const mg_graph *graph, int hops, int64_t row_begin, int64_t row_end)
{
    int64_t blocks = (row_end - row_begin + BLOCK_SOURCES - 1) / BLOCK_SOURCES;
    int threads = mg_graph_threads(blocks);
    tile_work work = {NULL, store, row_begin, row_end};
    int status = mg_graph_stream_create(&work.stream, graph, hops, threads);
    if (!status) {
        store->tiles.planes = work.stream->plane_count;
        mg_graph_parallel(threads, blocks, tile_block, &work);
        store->tiles.payload_bytes = place_tiles(store);
        store->payload = allocate(store->tiles.payload_bytes, 1);
        if (store->payload)
            mg_graph_parallel(threads, blocks, tile_block, &work);
        else
            status = -ENOMEM;
    }
    mg_graph_stream_destroy(work.stream);
    return status;
}

int mg_graph_tiles_create(mg_graph_tiles **out, const mg_graph *graph, int hops, int64_t row_begin, int64_t row_end)
{
    *out = NULL;
    if (row_begin < 0 || row_begin > row_end || row_end > graph->nodes)
        return fail(-EINVAL, "tiles: rows %lld to %lld of %lld nodes", (long long)row_begin, (long long)row_end,
                    (long long)graph->nodes);
    tile_store *store = allocate_zeroed(1, sizeof *store);
    if (!store)
        return -ENOMEM;
    mg_graph_tiles *tiles = &store->tiles;
    tiles->tile_rows = (row_end - row_begin + CHUNK - 1) / CHUNK;
    tiles->tile_columns = (graph->nodes + CHUNK - 1) / CHUNK;
    int64_t count = tiles->tile_rows * tiles->tile_columns; /* below 2^50 */
    store->classes = allocate(count, 1);
    store->constants = store->classes ? allocate(count, 1) : NULL;
    store->offsets = store->constants ? allocate(count, sizeof(int64_t)) : NULL;
    int status = store->offsets ? fill_store(store, graph, hops, row_begin, row_end) : -ENOMEM;
    if (status) {
        mg_graph_tiles_destroy(tiles);
        return status;
    }
    tiles->classes = store->classes;
    tiles->constants = store->constants;
    tiles->offsets = store->offsets;
    tiles->payload = store->payload;
    *out = tiles;
    return 0;
}

void mg_graph_tiles_destroy(mg_graph_tiles *tiles)
{
    tile_store *store = (tile_store *)tiles;
    if (store)
        RELEASE_ALL(store->classes, store->constants, store->payload, store->offsets, store);
}

int64_t mg_graph_tiles_bytes(const mg_graph_tiles *tiles)
{
    return tiles->tile_rows * tiles->tile_columns * (2 + (int64_t)sizeof(int64_t)) + tiles->payload_bytes;
}
