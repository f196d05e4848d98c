/* The one place where METIS is called. */
#ifndef MG_GRAPH_METIS_H
#define MG_GRAPH_METIS_H
#include "megagraph/graph.h"

typedef enum mg_graph_metis_method { MG_GRAPH_METIS_RECURSIVE, MG_GRAPH_METIS_KWAY } mg_graph_metis_method;

/* parts_out[nodes]: a part in 0..parts-1 for each node; parts may be empty, and balance is METIS's best effort. graph:
   both directions, no self loops. weights[nodes] (each at least 1) is balanced beside the number of nodes; NULL: nodes
   alone. 2 <= parts <= nodes. One call at a time in the process; the state of rand() is kept. -EOVERFLOW with the
   numbers when the graph is too large for METIS's integers. */
int mg_graph_metis(int32_t *parts_out, const mg_graph *graph, int32_t parts, const int64_t *weights, double imbalance,
                   uint64_t seed, mg_graph_metis_method method);
#endif
