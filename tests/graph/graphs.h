/* Small graphs for the tests of libgraph, and an exit of the test when the library fails. */
#ifndef TESTS_GRAPH_GRAPHS_H
#define TESTS_GRAPH_GRAPHS_H
#include "support/test.h"

#include <megagraph/dataset.h>

#define must(call)                                                                                                     \
    do {                                                                                                               \
        if (call)                                                                                                      \
            fail_msg("%s: %s", #call, mg_graph_last_error());                                                          \
    } while (0)

mg_graph *graph_of(int64_t nodes, int64_t edges, const int64_t *sources, const int64_t *targets, int directed);
/* Each of edges random pairs, self loops and both directions among them. */
mg_graph *random_graph(int64_t nodes, int64_t edges, int directed, uint64_t seed);
mg_graph *path_graph(int64_t nodes);
mg_graph *cycle_graph(int64_t nodes);
mg_graph *star_graph(int64_t nodes);
mg_graph *complete_graph(int64_t nodes);
mg_graph *bipartite_graph(int64_t left, int64_t right);
/* Disjoint union; both are destroyed. */
mg_graph *beside(mg_graph *a, mg_graph *b);
int has_edge(const mg_graph *graph, int64_t source, int64_t target);
void set_threads(int threads); /* without OpenMP: nothing */
#endif
