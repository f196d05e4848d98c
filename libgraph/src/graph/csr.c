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

/* Going through all entries row by row, entry (i, j) must find i as the next one in row j. */
static int is_symmetric(const mg_graph *graph, int64_t *places)
{
    memcpy(places, graph->starts, (size_t)graph->nodes * sizeof *places);
    for (int64_t i = 0; i < graph->nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++) {
            int64_t j = graph->columns[e], place = places[j]++;
            if (place >= graph->starts[j + 1] || graph->columns[place] != i)
                return 0;
        }
    return 1;
}

int mg_graph_csr_transposed(mg_graph **out, const mg_graph *graph)
{
    *out = NULL;
    int64_t *places = allocate(graph->nodes, sizeof *places);
    if (!places)
        return -ENOMEM;
    int status = 0;
    if (!is_symmetric(graph, places)) {
        *out = mg_graph_csr_allocate(graph->nodes, graph->edges);
        if (*out)
            mg_graph_csr_transpose((*out)->starts, (*out)->columns, places, graph->nodes, graph->starts,
                                   graph->columns);
        else
            status = -ENOMEM;
    }
    release(places);
    return status;
}

/* Merges row i of the graph and of its transposed, without i itself; returns how many entries. columns NULL: only
 * counts. */
static int64_t merge_rows(int32_t *columns, const mg_graph *graph, const mg_graph *transposed, int64_t i)
{
    int64_t a = graph->starts[i], a_end = graph->starts[i + 1], count = 0;
    int64_t b = transposed->starts[i], b_end = transposed->starts[i + 1];
    while (a < a_end || b < b_end) {
        int32_t from_a = a < a_end ? graph->columns[a] : INT32_MAX,
                from_b = b < b_end ? transposed->columns[b] : INT32_MAX;
        int32_t column = from_a < from_b ? from_a : from_b;
        a += from_a == column;
        b += from_b == column;
        if (column == i)
            continue;
        if (columns)
            columns[count] = column;
        count++;
    }
    return count;
}

static int64_t self_loops(const mg_graph *graph)
{
    int64_t loops = 0;
    for (int64_t i = 0; i < graph->nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            loops += graph->columns[e] == i;
    return loops;
}

int mg_graph_csr_symmetrised(mg_graph **out, int64_t *added, const mg_graph *graph)
{
    mg_graph *transposed;
    *out = NULL;
    int status = mg_graph_csr_transposed(&transposed, graph);
    if (status)
        return status;
    const mg_graph *other = transposed ? transposed : graph;
    int64_t edges = 0;
    for (int64_t i = 0; i < graph->nodes; i++)
        edges += merge_rows(NULL, graph, other, i);
    mg_graph *both = mg_graph_csr_allocate(graph->nodes, edges);
    for (int64_t i = 0; both && i < graph->nodes; i++)
        both->starts[i + 1] = both->starts[i] + merge_rows(both->columns + both->starts[i], graph, other, i);
    mg_graph_destroy(transposed);
    *added = edges - (graph->edges - self_loops(graph));
    *out = both;
    return both ? 0 : -ENOMEM;
}
