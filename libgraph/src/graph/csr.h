/* CSR arrays as the files of libgraph pass them among themselves. */
#ifndef MG_GRAPH_CSR_H
#define MG_GRAPH_CSR_H
#include "megagraph/graph.h"

/* Obtains a graph whose arrays are not yet written. NULL with the error line set. */
mg_graph *mg_graph_csr_allocate(int64_t nodes, int64_t edges);

/* Rows of the transposed matrix come out ascending, whatever the order inside the given rows. places: scratch
   [nodes], ends as t_starts[1..]. */
void mg_graph_csr_transpose(int64_t *t_starts, int32_t *t_columns, int64_t *places, int64_t nodes,
                            const int64_t *starts, const int32_t *columns);

/* Sorts every row of an unsorted CSR, in time O(nodes + edges). */
int mg_graph_csr_sort_rows(int64_t nodes, const int64_t *starts, int32_t *columns);

/* *out: the transposed graph, or NULL when the graph is symmetric (found without making the transposed). */
int mg_graph_csr_transposed(mg_graph **out, const mg_graph *graph);

/* *out: the graph with every edge in both directions and no self loops. *added: entries that the graph lacked. */
int mg_graph_csr_symmetrised(mg_graph **out, int64_t *added, const mg_graph *graph);

/* Scratch that a function frees in one place: every pointer is released, NULL or not. */
void mg_graph_release_all(int count, void *const *blocks);
#define RELEASE_ALL(...) mg_graph_release_all(sizeof((void *[]){__VA_ARGS__}) / sizeof(void *), (void *[]){__VA_ARGS__})
#endif
