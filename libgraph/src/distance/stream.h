/* Inside of the bit-parallel search that all forms of distances are made from.
 *
 * A search has up to 512 sources, rows [first, first + count) of the code matrix. For each node v, block bit b speaks
 * of the pair (first + b, v): visited[v]                 within D hops planes[v * plane_count + p]  bit p of the
 * distance, where visited; unwritten while visited[v] is all 0 active[v / 64] is not 0 where some of those 64 nodes are
 * visited: only they are read and cleared, so a search costs what it reaches. full[c]: the sources in component c; a
 * node that has them all is done. */
#ifndef MG_GRAPH_STREAM_H
#define MG_GRAPH_STREAM_H
#include "megagraph/graph.h"

enum { BLOCK_SOURCES = 512, CHUNK = 64, MOST_PLANES = 8, LONGEST_PATCH = 64 };

typedef uint64_t bits512 __attribute__((vector_size(64)));

typedef struct mg_graph_search {
    const mg_graph_stream *stream;
    int64_t first, count; /* count 0: nothing searched yet */
    bits512 *visited, *planes, *current, *next, *full;
    int32_t *list, *next_list; /* [nodes + 1] nodes of current and next */
    uint8_t *active;
} mg_graph_search;

/* Where the tiles of one 512-row block go: arrays at its first tile row; rows of tiles lie tile_columns apart. */
typedef struct mg_graph_tile_rows {
    uint8_t *classes, *constants;
    int64_t *offsets; /* measuring: each tile's bytes are written here; filling: read */
    uint8_t *payload; /* NULL: measure */
    int64_t tile_columns;
} mg_graph_tile_rows;

/* Inner loops, compiled per instruction set. Row r below counts from search->first. */
typedef struct mg_graph_kernels {
    const char *name;
    void (*search)(mg_graph_search *search); /* first and count are set */
    void (*codes)(const mg_graph_search *search, int64_t row, int64_t rows, int64_t column, int64_t columns,
                  uint8_t *codes, int64_t stride);
    void (*tiles)(const mg_graph_search *search, const mg_graph_tile_rows *rows);
    void (*near_counts)(const mg_graph_search *search, int64_t *counts);
    void (*near_pairs)(const mg_graph_search *search, int64_t *places, int32_t *columns, uint8_t *codes);
} mg_graph_kernels;

struct mg_graph_stream {
    const mg_graph *graph;  /* borrowed */
    const mg_graph *inward; /* rows list the nodes with an edge to the row's: graph itself where that is symmetric */
    mg_graph *transposed;   /* NULL where graph is symmetric */
    int32_t *component;
    int64_t components;
    int32_t hops, plane_count;
    const mg_graph_kernels *kernels;
    int threads;
    mg_graph_search *searches; /* [threads] */
};

/* The kernels that MEGAGRAPH_GRAPH_BACKEND names, or the best that this processor runs; NULL with the error line set.
 */
const mg_graph_kernels *mg_graph_kernels_choose(void);

/* Searches rows [first, first + count) unless the scratch of `thread` has them already. */
mg_graph_search *mg_graph_stream_search(mg_graph_stream *stream, int thread, int64_t first, int64_t count);

/* -EINVAL unless 1 <= hops <= 253. */
int mg_graph_check_hops(int hops);
#endif
