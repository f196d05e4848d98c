#include "csr.h"

#include <string.h>

#include "library.h"

void mg_graph_free(void *block) { release(block); }

void mg_graph_destroy(mg_graph *graph)
{
    if (graph)
        RELEASE_ALL(graph->starts, graph->columns, graph);
}

/* --- create ---
 * Entry id e < edges is given edge e; id edges + e is its mirror. Two stable counting sorts, by column and then by row,
 * leave equal entries side by side with the given one first, so the first of a run is the one to keep. */

typedef struct entry_list {
    const mg_graph_desc *desc;
    int64_t count;
} entry_list;

static int64_t entry_row(const entry_list *entries, int64_t id)
{
    const mg_graph_desc *desc = entries->desc;
    return id < desc->edges ? desc->sources[id] : desc->targets[id - desc->edges];
}

static int64_t entry_column(const entry_list *entries, int64_t id)
{
    const mg_graph_desc *desc = entries->desc;
    return id < desc->edges ? desc->targets[id] : desc->sources[id - desc->edges];
}

static int check_desc(const mg_graph_desc *desc)
{
    if (desc->nodes < 0 || desc->nodes > INT32_MAX)
        return fail(-EINVAL, "graph: %lld nodes; a graph has 0 to %d nodes", (long long)desc->nodes, INT32_MAX);
    if (desc->edges < 0 || desc->edges > INT64_MAX / 64)
        return fail(-EINVAL, "graph: %lld edges; the number of edges is wrong", (long long)desc->edges);
    if (desc->edges && (!desc->sources || !desc->targets))
        return fail(-EINVAL, "graph: %lld edges but no sources or no targets", (long long)desc->edges);
    for (int64_t e = 0; e < desc->edges; e++) {
        int64_t source = desc->sources[e], target = desc->targets[e];
        if (source < 0 || source >= desc->nodes || target < 0 || target >= desc->nodes)
            return fail(-EINVAL,
                        "graph: edge %lld is %lld to %lld, but nodes are 0 to %lld; are the ends counted from 1?",
                        (long long)e, (long long)source, (long long)target, (long long)desc->nodes - 1);
    }
    return 0;
}

/* ids_out: ids_in (NULL: 0, 1, ...) sorted stably by key; places: scratch [nodes + 1]. */
static void counting_sort(int64_t *ids_out, const int64_t *ids_in, int64_t *places, const entry_list *entries,
                          int64_t (*key)(const struct entry_list *, int64_t))
{
    int64_t nodes = entries->desc->nodes;
    memset(places, 0, (size_t)(nodes + 1) * sizeof *places);
    for (int64_t k = 0; k < entries->count; k++)
        places[key(entries, k) + 1]++;
    for (int64_t i = 0; i < nodes; i++)
        places[i + 1] += places[i];
    for (int64_t k = 0; k < entries->count; k++) {
        int64_t id = ids_in ? ids_in[k] : k;
        ids_out[places[key(entries, id)]++] = id;
    }
}

/* Keeps the first of each run of equal entries; ids shrinks to the kept. */
static int64_t merge_entries(int64_t *ids, const entry_list *entries, mg_graph_report *report)
{
    int64_t kept = 0, edges = entries->desc->edges;
    for (int64_t k = 0; k < entries->count; k++) {
        int64_t id = ids[k], row = entry_row(entries, id), column = entry_column(entries, id);
        int again = kept && entry_row(entries, ids[kept - 1]) == row && entry_column(entries, ids[kept - 1]) == column;
        if (again) {
            report->duplicates += id < edges;
            continue;
        }
        report->mirrored += id >= edges;
        report->self_loops += row == column;
        ids[kept++] = id;
    }
    return kept;
}

static int find_isolated(mg_graph_report *report, const mg_graph *graph)
{
    uint8_t *touched = allocate_zeroed(graph->nodes, 1);
    if (!touched)
        return -ENOMEM;
    for (int64_t i = 0; i < graph->nodes; i++) {
        int64_t begin = graph->starts[i], end = graph->starts[i + 1];
        if (end - begin > report->largest_degree)
            report->largest_degree = end - begin;
        for (int64_t e = begin; e < end; e++)
            if (graph->columns[e] != i)
                touched[i] = touched[graph->columns[e]] = 1;
    }
    for (int64_t i = 0; i < graph->nodes; i++)
        report->isolated += !touched[i];
    release(touched);
    return 0;
}

static int write_graph(mg_graph **out, int64_t **edge_of, const int64_t *ids, int64_t kept, const entry_list *entries,
                       mg_graph_report *report)
{
    int64_t edges = entries->desc->edges;
    int64_t *origin = edge_of ? allocate(kept, sizeof *origin) : NULL;
    mg_graph *graph = !edge_of || origin ? mg_graph_csr_allocate(entries->desc->nodes, kept) : NULL;
    if (!graph) {
        release(origin);
        return -ENOMEM;
    }
    for (int64_t k = 0; k < kept; k++) {
        graph->starts[entry_row(entries, ids[k]) + 1]++;
        graph->columns[k] = (int32_t)entry_column(entries, ids[k]);
        if (origin)
            origin[k] = ids[k] < edges ? ids[k] : ids[k] - edges;
    }
    for (int64_t i = 0; i < graph->nodes; i++)
        graph->starts[i + 1] += graph->starts[i];
    int status = find_isolated(report, graph);
    if (status) {
        release(origin);
        mg_graph_destroy(graph);
        return status;
    }
    *out = graph;
    if (edge_of)
        *edge_of = origin;
    return 0;
}

int mg_graph_create_with_edges(mg_graph **out, int64_t **edge_of, const mg_graph_desc *desc, mg_graph_report *report)
{
    mg_graph_report found = {0};
    *out = NULL;
    if (edge_of)
        *edge_of = NULL;
    int status = check_desc(desc);
    if (status)
        return status;
    entry_list entries = {desc, desc->directed ? desc->edges : 2 * desc->edges};
    int64_t *by_column = allocate(entries.count, sizeof *by_column);
    int64_t *ids = by_column ? allocate(entries.count, sizeof *ids) : NULL;
    int64_t *places = ids ? allocate(desc->nodes + 1, sizeof *places) : NULL;
    if (places) {
        counting_sort(by_column, NULL, places, &entries, entry_column);
        counting_sort(ids, by_column, places, &entries, entry_row);
        int64_t kept = merge_entries(ids, &entries, &found);
        status = write_graph(out, edge_of, ids, kept, &entries, &found);
    } else {
        status = -ENOMEM;
    }
    RELEASE_ALL(by_column, ids, places);
    if (!status && report)
        *report = found;
    return status;
}

int mg_graph_create(mg_graph **out, const mg_graph_desc *desc, mg_graph_report *report)
{
    return mg_graph_create_with_edges(out, NULL, desc, report);
}

/* --- check --- */

static int check_row(const mg_graph *graph, int64_t row)
{
    for (int64_t e = graph->starts[row]; e < graph->starts[row + 1]; e++) {
        int64_t column = graph->columns[e];
        if (column < 0 || column >= graph->nodes)
            return fail(-EINVAL, "graph: row %lld names node %lld, but nodes are 0 to %lld", (long long)row,
                        (long long)column, (long long)graph->nodes - 1);
        if (e > graph->starts[row] && column <= graph->columns[e - 1])
            return fail(-EINVAL, "graph: row %lld has node %lld after node %d; rows are strictly ascending",
                        (long long)row, (long long)column, graph->columns[e - 1]);
    }
    return 0;
}

int mg_graph_check(const mg_graph *graph)
{
    if (graph->nodes < 0 || graph->nodes > INT32_MAX || graph->edges < 0)
        return fail(-EINVAL, "graph: %lld nodes and %lld edges; nodes are 0 to %d", (long long)graph->nodes,
                    (long long)graph->edges, INT32_MAX);
    if (!graph->starts || (graph->edges && !graph->columns))
        return fail(-EINVAL, "graph: no starts or no columns");
    if (graph->starts[0] != 0 || graph->starts[graph->nodes] != graph->edges)
        return fail(-EINVAL, "graph: starts run from %lld to %lld; they must run from 0 to the %lld edges",
                    (long long)graph->starts[0], (long long)graph->starts[graph->nodes], (long long)graph->edges);
    for (int64_t i = 0; i < graph->nodes; i++)
        if (graph->starts[i + 1] < graph->starts[i] || graph->starts[i + 1] > graph->edges)
            return fail(-EINVAL, "graph: row %lld starts at %lld and ends at %lld, of %lld edges", (long long)i,
                        (long long)graph->starts[i], (long long)graph->starts[i + 1], (long long)graph->edges);
    for (int64_t i = 0; i < graph->nodes; i++) {
        int status = check_row(graph, i);
        if (status)
            return status;
    }
    return 0;
}

/* --- subgraphs --- */

/* places[node] = its index in nodes, or -1. */
static int index_nodes(int32_t *places, const mg_graph *graph, const int32_t *nodes, int64_t count)
{
    memset(places, -1, (size_t)graph->nodes * sizeof *places);
    for (int64_t p = 0; p < count; p++) {
        if (nodes[p] < 0 || nodes[p] >= graph->nodes)
            return fail(-EINVAL, "graph: place %lld of the list holds node %d, but nodes are 0 to %lld", (long long)p,
                        nodes[p], (long long)graph->nodes - 1);
        if (places[nodes[p]] >= 0)
            return fail(-EINVAL, "graph: node %d is in the list twice, at places %d and %lld", nodes[p],
                        places[nodes[p]], (long long)p);
        places[nodes[p]] = (int32_t)p;
    }
    return 0;
}

static int64_t kept_entries(const mg_graph *graph, const int32_t *places, int64_t node)
{
    int64_t kept = 0;
    for (int64_t e = graph->starts[node]; e < graph->starts[node + 1]; e++)
        kept += places[graph->columns[e]] >= 0;
    return kept;
}

static int induce_indexed(mg_graph **out, const mg_graph *graph, const int32_t *places, const int32_t *nodes,
                          int64_t count)
{
    int64_t edges = 0;
    for (int64_t p = 0; p < count; p++)
        edges += kept_entries(graph, places, nodes[p]);
    mg_graph *induced = mg_graph_csr_allocate(count, edges);
    if (!induced)
        return -ENOMEM;
    int64_t to = 0;
    for (int64_t p = 0; p < count; p++) {
        for (int64_t e = graph->starts[nodes[p]]; e < graph->starts[nodes[p] + 1]; e++)
            if (places[graph->columns[e]] >= 0)
                induced->columns[to++] = places[graph->columns[e]];
        induced->starts[p + 1] = to;
    }
    int status = mg_graph_csr_sort_rows(count, induced->starts, induced->columns);
    if (status)
        mg_graph_destroy(induced);
    else
        *out = induced;
    return status;
}

int mg_graph_induce(mg_graph **out, const mg_graph *graph, const int32_t *nodes, int64_t count)
{
    *out = NULL;
    if (count < 0 || count > graph->nodes)
        return fail(-EINVAL, "graph: a list of %lld nodes of a graph of %lld; nodes of a subgraph are distinct",
                    (long long)count, (long long)graph->nodes);
    int32_t *places = allocate(graph->nodes, sizeof *places);
    if (!places)
        return -ENOMEM;
    int status = index_nodes(places, graph, nodes, count);
    if (!status)
        status = induce_indexed(out, graph, places, nodes, count);
    release(places);
    return status;
}

int mg_graph_permute(mg_graph **out, const mg_graph *graph, const int32_t *order)
{
    return mg_graph_induce(out, graph, order, graph->nodes);
}
