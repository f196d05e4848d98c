/* shard.h: one graph over many ranks. Its nodes lie in one order, parts after each other; rank r's tokens are the
 * places [first[r], first[r + 1]).
 *
 *     parts    METIS with two constraints, nodes and the pairs that attend; as many as ranks, or as nodes where there
 *              are fewer: the last ranks are then empty. Inside a part as mg_graph_order says. Kept in rank 0's cache
 *     a rank   holds its rows of features, encodings, codes and edges; of the whole only the order, O(nodes). Codes
 *              that are streamed need the graph, O(nodes + edges)
 *
 * A baseline's attention (baseline.h) goes this way on one rank too.
 */
#ifndef MEGAGRAPH_APPS_SHARD_H
#define MEGAGRAPH_APPS_SHARD_H
#include "baseline.h"
#include "prepare.h"

struct mg_shard {
    mg_comm *comm;  /* borrowed */
    int64_t *first; /* [ranks + 1] */
    int32_t *nodes; /* [first[ranks]] the node at each place */
    int64_t segments[2];
    mg_graph lists;              /* this rank's rows of edges, columns as the halo's local rows; empty: not needed */
    mg_graph *whole;             /* in the order of places, where codes are streamed; else NULL */
    mg_attn_context *context;    /* NULL: no attention */
    mg_attn_halo *halo;          /* NULL: no local part */
    mg_model_baseline *baseline; /* NULL: attention is libattn's */
};

/* Settles parallel.context_method. -EINVAL: what many ranks cannot do with this configuration and dataset. */
int mg_shard_resolve(mg_config *config, const mg_dataset *data);

/* This rank's unit of the whole graph. Collective. */
int mg_shard_unit(mg_unit **out, mg_units *units, mg_cache *cache);
void mg_shard_destroy(mg_shard *shard);

/* Rows of every rank to table[node] of rank 0; of the others, table is not used. */
int mg_shard_collect(float *table, const float *rows, int64_t columns, const mg_unit *unit);
#endif
