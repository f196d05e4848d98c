/* The graph's neighbour lists as kernels read them, its transposed lists (which have rows of other ranks too), and
 * gcn's roots; made once per graph. */
#include "internal.h"

#include <math.h>
#include <string.h>

/* Entries by column, rows ascending within a column. */
static void transpose(graph_index *index, const mg_graph *graph, int64_t columns)
{
    int64_t *next = index->starts + 1; /* next[c]: where column c's next entry goes; ends as starts[c + 1] */
    memset(index->starts, 0, (size_t)(columns + 1) * sizeof *index->starts);
    for (int64_t e = 0; e < graph->edges; e++)
        if (graph->columns[e] + 1 < columns)
            next[graph->columns[e] + 1]++;
    for (int64_t c = 1; c < columns; c++)
        next[c] += next[c - 1];
    for (int64_t i = 0; i < graph->nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++) {
            int64_t place = next[graph->columns[e]]++;
            index->others[place] = (int32_t)i;
            index->edges[place] = e;
        }
}

static void find_roots(graph_index *index, const mg_graph *graph)
{
    for (int64_t i = 0; i < graph->nodes; i++) {
        int64_t neighbours = 0;
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            neighbours += graph->columns[e] != i;
        index->roots[i] = (float)(1 / sqrt((double)neighbours + 1));
    }
}

int mg_model_index_make(const run *r)
{
    graph_index *index = &r->pass->index;
    const mg_graph *graph = r->batch->graph;
    uint64_t hash = mg_graph_hash(graph);
    if (index->graph == graph && index->hash == hash)
        return 0;
    if (index->starts)
        transpose(index, graph, local_rows(r));
    if (index->roots)
        find_roots(index, graph);
    index->graph = graph;
    index->hash = hash;
    return index->roots ? mg_model_exchange_roots(r) : 0;
}

static mg_model_lists lists_of(const run *r, int64_t rows, const int64_t *starts, const int32_t *others,
                               const int64_t *edges)
{
    const mg_model_desc *desc = &r->model->desc;
    int weighted = r->pass->edge_weight != NULL;
    return (mg_model_lists){
        .rows = rows,
        .starts = starts,
        .others = others,
        .edges = edges,
        .features = weighted ? r->batch->edge_features : NULL,
        .feature_count = weighted ? desc->edge_inputs : 0,
        .weight = r->pass->edge_weight,
    };
}

mg_model_lists mg_model_index_rows(const run *r)
{
    return lists_of(r, r->batch->tokens, r->batch->graph->starts, r->batch->graph->columns, NULL);
}

mg_model_lists mg_model_index_columns(const run *r)
{
    const graph_index *index = &r->pass->index;
    return lists_of(r, local_rows(r), index->starts, index->others, index->edges);
}
