/* encode.h: what is computed once from the graph of a dataset and looked up for every batch: degrees, spectral and walk
 * encodings, node order, clusters. Kept in the cache by the graph's content and the parameters.
 */
#ifndef MEGAGRAPH_APPS_ENCODE_H
#define MEGAGRAPH_APPS_ENCODE_H
#include <megagraph/dataset.h>

#include "options.h"
#include "ranks.h"

/* The cache, opened once; a folder that cannot be written gives a note and no cache. folder NULL: the standard place.
 * Of several ranks, rank 0 looks up, computes and keeps, and the others are told; calls are then collective.
 */
typedef struct mg_cache {
    mg_graph_cache *cache; /* NULL: none */
    mg_comm *comm;
} mg_cache;
void mg_encode_open_cache(mg_cache *cache, const char *folder, mg_comm *comm);
void mg_encode_close_cache(mg_cache *cache);
/* What this rank's cache holds, when it has the right size: not 0. */
int mg_encode_find(void *data, int64_t bytes, const mg_cache *cache, const char *name, uint64_t key);
void mg_encode_keep(mg_cache *cache, const char *name, uint64_t key, const void *data, int64_t bytes);

typedef struct mg_encodings {
    int32_t *degrees;   /* [nodes] */
    float *features;    /* [nodes][feature_count] normalised and averaged over hops, or NULL: the dataset's own */
    float *laplacian;   /* [nodes][config.laplacian] or NULL */
    float *random_walk; /* [nodes][config.random_walk] or NULL */
} mg_encodings;
int mg_encode_create(mg_encodings *out, const mg_dataset *data, const mg_config *config, mg_cache *cache);
void mg_encode_clear(mg_encodings *encodings);

/* order[nodes], as mg_graph_order (auto). */
/* How a graph's nodes are ordered for this model. */
mg_graph_order_kind mg_encode_order_kind(const mg_config *config);
int mg_encode_order(int32_t *order, const mg_graph *graph, const mg_config *config, mg_cache *cache);
/* parts[nodes], as mg_graph_partition; *cut: edges between parts. */
int mg_encode_clusters(int32_t *parts, int64_t *cut, const mg_graph *graph, int32_t clusters, uint64_t seed,
                       mg_cache *cache);

/* Share of all pairs with code <= d, for d = 0..hops, by sampling at most 1024 rows; exact for smaller graphs. */
int mg_encode_near_shares(double *shares, const mg_graph *graph, int hops);
#endif
