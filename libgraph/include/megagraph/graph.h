/* megagraph/graph.h: graphs, their partition, node order, distances and encodings.
 *
 * A graph is CSR: row i lists the nodes that i has edges to. Undirected graphs store both directions. Rows are strictly
 * ascending (no duplicate edges); self loops are kept as given.
 *
 *     mg_graph *graph;
 *     mg_graph_create(&graph, &(mg_graph_desc){.nodes = 3, .edges = 2, .sources = (int64_t[]){0, 1},
 *                                              .targets = (int64_t[]){1, 2}}, NULL);
 *     mg_graph_near *near;
 *     mg_graph_near_create(&near, graph, 2);       // pairs within 2 hops, with their distance codes
 *     mg_graph_near_destroy(near);
 *     mg_graph_destroy(graph);
 *
 * Words: hops = D, the distance cap. Code of a pair (i, j): 0 when i = j, d = the length of the shortest path from i to j
 * for d in 1..D, D+1 ("far") when longer or unreachable. D+2 ("virtual") belongs to virtual tokens, which libgraph's
 * batches add and nothing else here knows. 1 <= D <= 253.
 * Distances follow the rows (i to j along edges); on undirected graphs they are symmetric.
 *
 * Status: 0 or a negative <errno.h> value; mg_graph_last_error() then holds one line with the values.
 * Memory: X_create allocates, X_destroy gives back (NULL is fine). Fields of created structs are read-only for callers.
 * Threads: OpenMP's default number; results are the same, to the byte, for any number. Objects are read-only once made.
 */
#ifndef MEGAGRAPH_GRAPH_H
#define MEGAGRAPH_GRAPH_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#define MG_GRAPH_API __attribute__((visibility("default")))
#else
#define MG_GRAPH_API
#endif

MG_GRAPH_API const char *mg_graph_last_error(void);
MG_GRAPH_API void mg_graph_set_memory_hook(int (*hook)(int64_t bytes)); /* as in megagraph/attn.h */

/* --- graphs --- */

typedef struct mg_graph {
    int64_t nodes, edges; /* edges: entries of columns; an undirected edge counts twice */
    int64_t *starts;      /* [nodes + 1] */
    int32_t *columns;     /* [edges] */
} mg_graph;

typedef struct mg_graph_desc {
    int64_t nodes, edges;
    const int64_t *sources, *targets; /* [edges], 0-based */
    int directed;                     /* 0: each edge is mirrored. Duplicates are merged either way */
} mg_graph_desc;

typedef struct mg_graph_report {
    int64_t mirrored;   /* entries added because only the other direction was given */
    int64_t duplicates; /* given edges merged into another */
    int64_t self_loops;
    int64_t isolated;   /* nodes with no edge in or out but self loops */
    int64_t largest_degree;
} mg_graph_report;

/* -EINVAL: an end out of range (the edge is named). edge_of, unless NULL, is set to a new array [graph->edges]: the given
   edge (its first, where merged; the mirrored one's) that each entry came from; give it back with mg_graph_free. */
MG_GRAPH_API int mg_graph_create(mg_graph **out, const mg_graph_desc *desc, mg_graph_report *report);
MG_GRAPH_API int mg_graph_create_with_edges(mg_graph **out, int64_t **edge_of, const mg_graph_desc *desc,
                                            mg_graph_report *report);
MG_GRAPH_API void mg_graph_destroy(mg_graph *graph);
MG_GRAPH_API void mg_graph_free(void *block); /* arrays that functions of this library return by themselves */

/* Checks a CSR that a caller built: starts monotone from 0, columns in range and strictly ascending. The row is named. */
MG_GRAPH_API int mg_graph_check(const mg_graph *graph);

/* New graph whose node p is old node order[p] (order: a permutation, else -EINVAL). */
MG_GRAPH_API int mg_graph_permute(mg_graph **out, const mg_graph *graph, const int32_t *order);
/* Subgraph induced by nodes[count] (distinct), in that order. */
MG_GRAPH_API int mg_graph_induce(mg_graph **out, const mg_graph *graph, const int32_t *nodes, int64_t count);
/* Weakly connected components: component[nodes] numbered by falling size (ties: lowest node first); *count components. */
MG_GRAPH_API int mg_graph_components(int32_t *component, int64_t *count, const mg_graph *graph);
/* Content hash (nodes, edges, starts, columns), for caches and checkpoints. */
MG_GRAPH_API uint64_t mg_graph_hash(const mg_graph *graph);

/* --- partition (METIS, hardened) --- */

#define MG_GRAPH_IMBALANCE 0.01 /* each step waits for the largest part */

typedef struct mg_graph_partition_desc {
    int32_t parts;               /* 1 <= parts <= nodes, else -EINVAL */
    const int64_t *node_weights; /* [nodes] second constraint to balance (attended pairs); NULL: degree + 1 */
    double imbalance;            /* allowed above the mean, 0: MG_GRAPH_IMBALANCE */
    uint64_t seed;
} mg_graph_partition_desc;

typedef struct mg_graph_partition_report {
    int64_t cut;                           /* edges (undirected, self loops aside) between parts, counted by us */
    double node_balance, weight_balance;   /* largest part over the mean */
    int64_t mirrored;                      /* edges added to the private symmetric copy */
    int64_t repaired;                      /* nodes moved into parts that METIS left empty */
    int64_t components;
} mg_graph_partition_report;

/* parts_out[nodes]: the part of each node. Every part has a node. Not concurrent with itself (METIS is serialised). */
MG_GRAPH_API int mg_graph_partition(int32_t *parts_out, mg_graph_partition_report *report, const mg_graph *graph,
                                    const mg_graph_partition_desc *desc);

/* --- node order: near pairs together, so that tiles of codes are constant --- */

typedef enum mg_graph_order_kind {
    MG_GRAPH_ORDER_AUTO,     /* the best of the next three by sampling 64 x 64 tiles of codes */
    MG_GRAPH_ORDER_GIVEN,
    MG_GRAPH_ORDER_LANDMARK, /* giant component by capped distances to the 8 largest hubs, small components last */
    MG_GRAPH_ORDER_PARTS,    /* METIS parts of about 256 nodes, reverse Cuthill-McKee inside */
    MG_GRAPH_ORDER_LISTS     /* the best of the three where neighbours are listed and gathered, not kept in tiles: by the rows
                                that windows of 256 nodes name; hops does not matter */
} mg_graph_order_kind;

/* order[p] = node at place p. *chosen (unless NULL): what AUTO or LISTS took. */
MG_GRAPH_API int mg_graph_order(int32_t *order, mg_graph_order_kind *chosen, const mg_graph *graph,
                                mg_graph_order_kind kind, int hops);

/* --- distances --- */

/* Pairs with code <= D as CSR, rows ascending, the node itself included. O(near pairs) memory. */
typedef struct mg_graph_near {
    int64_t nodes, pairs;
    int64_t *starts;  /* [nodes + 1] */
    int32_t *columns; /* [pairs] */
    uint8_t *codes;   /* [pairs] 0..D */
    int32_t hops;
} mg_graph_near;
MG_GRAPH_API int mg_graph_near_create(mg_graph_near **out, const mg_graph *graph, int hops);
/* Of rows [row_begin, row_end) alone: nodes is their number, list 0 is row_begin's; columns are of the whole graph. */
MG_GRAPH_API int mg_graph_near_create_rows(mg_graph_near **out, const mg_graph *graph, int hops, int64_t row_begin,
                                           int64_t row_end);
MG_GRAPH_API void mg_graph_near_destroy(mg_graph_near *near);

/* Bit-parallel breadth-first search (Then et al. 2014, "The more the merrier", section 3), 512 sources at once. Holds
   scratch for `threads` concurrent calls (0: OpenMP's default), each about 64 bytes x nodes x (3 + planes). The graph is
   borrowed. The environment's MEGAGRAPH_GRAPH_BACKEND (portable, v3, v4) overrides the choice of instructions. */
typedef struct mg_graph_stream mg_graph_stream;
MG_GRAPH_API int mg_graph_stream_create(mg_graph_stream **out, const mg_graph *graph, int hops, int threads);
MG_GRAPH_API void mg_graph_stream_destroy(mg_graph_stream *stream);
/* Codes of rows [q0, q0+nq) x columns [k0, k0+nk) to codes[(i-q0) * stride + (j-k0)]; `thread` picks the scratch. Its
   signature is that of mg_attn_stream_codes (context: the stream). Cheapest with nq = 512: a call for rows that the last
   call with the same `thread` searched (other keys, or fewer rows) does not search again. */
MG_GRAPH_API int mg_graph_stream_codes(void *stream, int thread, int64_t q0, int64_t nq, int64_t k0, int64_t nk,
                                       uint8_t *codes, int64_t stride);

/* Dense codes of rows [row_begin, row_end): codes[(i - row_begin) * stride + j], stride >= nodes. */
MG_GRAPH_API int mg_graph_dense_codes(uint8_t *codes, int64_t stride, const mg_graph *graph, int hops,
                                      int64_t row_begin, int64_t row_end);

/* Codes by tile: the fields and payload of mg_attn_tiles (megagraph/attn.h draws them). Rows: queries [row_begin, row_end),
   columns: all nodes. */
typedef struct mg_graph_tiles {
    int64_t tile_rows, tile_columns;
    int32_t planes;
    const uint8_t *classes, *constants; /* [tile_rows * tile_columns] */
    const int64_t *offsets;
    const uint8_t *payload;
    int64_t payload_bytes;
} mg_graph_tiles;
enum { MG_GRAPH_TILE_CONSTANT, MG_GRAPH_TILE_PATCH, MG_GRAPH_TILE_PLANES };
MG_GRAPH_API int mg_graph_tiles_create(mg_graph_tiles **out, const mg_graph *graph, int hops, int64_t row_begin,
                                       int64_t row_end);
MG_GRAPH_API void mg_graph_tiles_destroy(mg_graph_tiles *tiles);
MG_GRAPH_API int64_t mg_graph_tiles_bytes(const mg_graph_tiles *tiles); /* of all its arrays */

/* Edges of one shortest path per near pair, the same one every time (the lowest predecessor): for pair p of near,
   edges[starts[p] .. starts[p+1]) are entries of graph->columns from i to j; empty where i = j and for pairs with a virtual
   token (codes above D). O(near pairs x D) memory. -EINVAL: near was not made from this graph. */
typedef struct mg_graph_paths {
    int64_t pairs, steps;
    int64_t *starts; /* [pairs + 1] */
    int32_t *edges;  /* [steps]; -EOVERFLOW when the graph has more than 2^31 - 1 edges */
} mg_graph_paths;
MG_GRAPH_API int mg_graph_paths_create(mg_graph_paths **out, const mg_graph *graph, const mg_graph_near *near);
MG_GRAPH_API void mg_graph_paths_destroy(mg_graph_paths *paths);

/* --- encodings, row-major, one row per node --- */

/* Entries of each row, self loops aside. */
MG_GRAPH_API int mg_graph_degrees(int32_t *degrees, const mg_graph *graph);
/* The `count` non-trivial eigenvectors of smallest eigenvalue of I - D^-1/2 A D^-1/2 of the symmetrised graph, self loops
   aside, for each connected component by itself, unit length within it; sign: the entry of largest magnitude (ties, within
   1e-5 of it: the first) is positive. Zeros where a component has too few nodes. encodings[nodes][count]. (Dwivedi and
   Bresson 2021, section 2.2.) -EIO with ARPACK's code when it fails. ARPACK is serialised. The bytes are the same every time
   with the same BLAS; one that splits its sums by its own number of threads may change the last digits. */
MG_GRAPH_API int mg_graph_laplacian(float *encodings, int count, const mg_graph *graph);
/* Probability that a random walk along the rows, self loops too, is back at its start after 1..count steps (Dwivedi et al.
   2022, section 3.2); nodes without edges: 0. Exact, by blocks of 32 sources; encodings[nodes][count]. Time O(count x nodes x
   edges), half of it on symmetric graphs, less where few nodes are reached; 266 bytes x nodes of memory per thread. */
MG_GRAPH_API int mg_graph_random_walk(float *encodings, int count, const mg_graph *graph);
/* own * X + (1 - own) / hops * sum of T^t X over t = 1..hops, T = D^-1/2 (A + I) D^-1/2, D_ii = degree + 1, self loops of the
   graph aside: features smoothed without forgetting where they were (Zhu and Koniusz 2021, equation 9). features and
   averages, which may not overlap: [nodes][columns]. Time O(hops x (nodes + edges) x columns); 512 bytes x nodes of memory. */
MG_GRAPH_API int mg_graph_average(float *averages, const float *features, int64_t columns, const mg_graph *graph, int hops,
                                  double own);

/* --- generators --- */

/* Stochastic block model: `blocks` equal blocks; node n is in block n * blocks / nodes. Mean degrees inside and across. */
MG_GRAPH_API int mg_graph_generate_sbm(mg_graph **out, int64_t nodes, int blocks, double degree_inside,
                                       double degree_across, uint64_t seed);
/* R-MAT (Chakrabarti et al. 2004) with a, b, c = 0.57, 0.19, 0.19: `edges` distinct undirected edges, shuffled nodes. */
MG_GRAPH_API int mg_graph_generate_rmat(mg_graph **out, int64_t nodes, int64_t edges, uint64_t seed);
MG_GRAPH_API int mg_graph_generate_grid(mg_graph **out, int64_t rows, int64_t columns);

/* --- halos --- */

/* For a partition into `parts`: which rows of other parts each part's near pairs (or edges, near->columns = graph->columns)
   look at. needs[starts[p * parts + s] .. starts[p * parts + s + 1]): nodes of part s that part p needs, ascending. */
typedef struct mg_graph_halo {
    int32_t parts;
    int64_t *starts; /* [parts * parts + 1] */
    int32_t *needs;
} mg_graph_halo;
MG_GRAPH_API int mg_graph_halo_create(mg_graph_halo **out, int64_t nodes, const int64_t *starts, const int32_t *columns,
                                      const int32_t *part_of, int32_t parts);
MG_GRAPH_API void mg_graph_halo_destroy(mg_graph_halo *halo);

/* --- caches: blobs keyed by content and parameters --- */

typedef struct mg_graph_cache mg_graph_cache;
/* folder NULL: $XDG_CACHE_HOME/megagraph, or ~/.cache/megagraph; made when missing. */
MG_GRAPH_API int mg_graph_cache_open(mg_graph_cache **out, const char *folder);
MG_GRAPH_API void mg_graph_cache_close(mg_graph_cache *cache);
/* 0 and the payload (give back with mg_graph_free), or -ENOENT: not there, or damaged, or of another key (then removed and
   said in mg_graph_last_error). name: what it is ("order"); key: hash of all that it depends on. */
MG_GRAPH_API int mg_graph_cache_get(void **data, int64_t *bytes, mg_graph_cache *cache, const char *name, uint64_t key);
/* Written aside, checksummed, renamed. -ENOSPC and the like: the line says the path; nothing half-written stays. */
MG_GRAPH_API int mg_graph_cache_put(mg_graph_cache *cache, const char *name, uint64_t key, const void *data,
                                    int64_t bytes);
/* 64-bit hash of bytes, chained by seed. */
MG_GRAPH_API uint64_t mg_graph_hash_bytes(uint64_t seed, const void *data, int64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
