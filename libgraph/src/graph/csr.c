#include "csr.h"

#include <string.h>

#include "library.h"

void mg_graph_release_all(int count, void *const *blocks)
{
    for (int i = 0; i < count; i++)
        release(blocks[i]);
}

mg_graph *mg_graph_csr_allocate(int64_t nodes, int64_t edges)
{
    mg_graph *graph = allocate_zeroed(1, sizeof *graph);
    if (!graph)
        return NULL;
    graph->nodes = nodes;
    graph->edges = edges;
    graph->starts = allocate_zeroed(nodes + 1, sizeof *graph->starts);
    graph->columns = graph->starts ? allocate(edges, sizeof *graph->columns) : NULL;
    if (!graph->columns) {
        mg_graph_destroy(graph);
        return NULL;
    }
    return graph;
}

void mg_graph_csr_transpose(int64_t *t_starts, int32_t *t_columns, int64_t *places, int64_t nodes,
                            const int64_t *starts, const int32_t *columns)
{
    memset(t_starts, 0, (size_t)(nodes + 1) * sizeof *t_starts);
    for (int64_t e = 0; e < starts[nodes]; e++)
        t_starts[columns[e] + 1]++;
    for (int64_t i = 0; i < nodes; i++)
        t_starts[i + 1] += t_starts[i];
    memcpy(places, t_starts, (size_t)nodes * sizeof *places);
    for (int64_t i = 0; i < nodes; i++)
        for (int64_t e = starts[i]; e < starts[i + 1]; e++)
            t_columns[places[columns[e]]++] = (int32_t)i;
}

int mg_graph_csr_sort_rows(int64_t nodes, const int64_t *starts, int32_t *columns)
{
    int64_t *t_starts = allocate(nodes + 1, sizeof *t_starts);
    int64_t *places = t_starts ? allocate(nodes, sizeof *places) : NULL;
    int32_t *t_columns = places ? allocate(starts[nodes], sizeof *t_columns) : NULL;
    if (t_columns) {
        mg_graph_csr_transpose(t_starts, t_columns, places, nodes, starts, columns);
        memcpy(places, starts, (size_t)nodes * sizeof *places);
        for (int64_t j = 0; j < nodes; j++)
            for (int64_t e = t_starts[j]; e < t_starts[j + 1]; e++)
                columns[places[t_columns[e]]++] = (int32_t)j;
    }
    int status = t_columns ? 0 : -ENOMEM;
    RELEASE_ALL(t_starts, places, t_columns);
    return status;
}

int mg_graph_csr_transposed(mg_graph **out, const mg_graph *graph)
{
    *out = NULL;
    mg_graph *transposed = mg_graph_csr_allocate(graph->nodes, graph->edges);
    int64_t *places = transposed ? allocate(graph->nodes, sizeof *places) : NULL;
    if (!places) {
        mg_graph_destroy(transposed);
        return -ENOMEM;
    }
    mg_graph_csr_transpose(transposed->starts, transposed->columns, places, graph->nodes, graph->starts,
                           graph->columns);
    release(places);
    int same = !memcmp(transposed->starts, graph->starts, (size_t)(graph->nodes + 1) * sizeof(int64_t)) &&
               !memcmp(transposed->columns, graph->columns, (size_t)graph->edges * sizeof(int32_t));
    if (same)
        mg_graph_destroy(transposed);
    else
        *out = transposed;
    return 0;
}
