/* Edge paths: row i of near gives the distances from i; a sweep over its nodes by rising number finds, for each, the lowest
 * node one step nearer that has an edge to it. A path is then read backwards from its end. */
#include "megagraph/graph.h"

#include <string.h>

#include "graph/csr.h"
#include "library.h"
#include "threads.h"

/* What one thread knows of the row it works on; only nodes of the row are set, and unset again after it. */
typedef struct row_scratch {
    uint8_t *distance; /* [nodes] code, or UNSEEN */
    int32_t *from;     /* [nodes] predecessor, -1: none yet */
    int32_t *edge;     /* [nodes] entry of graph->columns that leads from there */
} row_scratch;

enum { UNSEEN = 255 };

static int is_path(const mg_graph_near *near, int64_t pair) { return near->codes[pair] <= near->hops; }

static void row_enter(row_scratch *scratch, const mg_graph_near *near, int64_t row)
{
    for (int64_t p = near->starts[row]; p < near->starts[row + 1]; p++)
        if (is_path(near, p))
            scratch->distance[near->columns[p]] = near->codes[p];
}

static void row_leave(row_scratch *scratch, const mg_graph_near *near, int64_t row)
{
    for (int64_t p = near->starts[row]; p < near->starts[row + 1]; p++) {
        scratch->distance[near->columns[p]] = UNSEEN;
        scratch->from[near->columns[p]] = -1;
    }
}

static void find_predecessors(row_scratch *scratch, const mg_graph *graph, const mg_graph_near *near, int64_t row)
{
    for (int64_t p = near->starts[row]; p < near->starts[row + 1]; p++) {
        int32_t node = near->columns[p];
        if (near->codes[p] >= near->hops)
            continue;
        for (int64_t e = graph->starts[node]; e < graph->starts[node + 1]; e++) {
            int32_t next = graph->columns[e];
            if (scratch->distance[next] == near->codes[p] + 1 && scratch->from[next] < 0) {
                scratch->from[next] = node;
                scratch->edge[next] = (int32_t)e;
            }
        }
    }
}

/* 0, or -1 when a node of the row has no way back to it. */
static int write_row(mg_graph_paths *paths, const row_scratch *scratch, const mg_graph_near *near, int64_t row)
{
    for (int64_t p = near->starts[row]; p < near->starts[row + 1]; p++) {
        int32_t node = near->columns[p];
        for (int64_t step = paths->starts[p + 1] - 1; step >= paths->starts[p]; step--) {
            if (scratch->from[node] < 0)
                return -1;
            paths->edges[step] = scratch->edge[node];
            node = scratch->from[node];
        }
    }
    return 0;
}

static int fill_paths(mg_graph_paths *paths, uint8_t *distances, int32_t *froms, int32_t *edges, const mg_graph *graph,
                      const mg_graph_near *near)
{
    int64_t nodes = near->nodes, wrong_row = nodes;
#pragma omp parallel for schedule(dynamic, 64)
    for (int64_t row = 0; row < nodes; row++) {
        int64_t offset = thread_index() * nodes;
        row_scratch scratch = {distances + offset, froms + offset, edges + offset};
        row_enter(&scratch, near, row);
        find_predecessors(&scratch, graph, near, row);
        if (write_row(paths, &scratch, near, row))
#pragma omp critical(mg_graph_paths_wrong)
            wrong_row = row < wrong_row ? row : wrong_row;
        row_leave(&scratch, near, row);
    }
    if (wrong_row < nodes)
        return fail(-EINVAL, "paths: the distances of row %lld are not those of this graph; make the near pairs from it",
                    (long long)wrong_row);
    return 0;
}

static int allocate_paths(mg_graph_paths **out, const mg_graph_near *near)
{
    mg_graph_paths *paths = *out = allocate_zeroed(1, sizeof *paths);
    if (!paths)
        return -ENOMEM;
    paths->pairs = near->pairs;
    paths->starts = allocate(near->pairs + 1, sizeof *paths->starts);
    if (!paths->starts)
        return -ENOMEM;
    paths->starts[0] = 0;
    for (int64_t p = 0; p < near->pairs; p++)
        paths->starts[p + 1] = paths->starts[p] + (is_path(near, p) ? near->codes[p] : 0);
    paths->steps = paths->starts[near->pairs];
    paths->edges = allocate(paths->steps, sizeof *paths->edges);
    return paths->edges ? 0 : -ENOMEM;
}

int mg_graph_paths_create(mg_graph_paths **out, const mg_graph *graph, const mg_graph_near *near)
{
    *out = NULL;
    if (graph->nodes != near->nodes)
        return fail(-EINVAL, "paths: near pairs of %lld nodes for a graph of %lld", (long long)near->nodes,
                    (long long)graph->nodes);
    if (graph->edges > INT32_MAX)
        return fail(-EOVERFLOW, "paths: %lld edges; paths count edges in 32 bits, at most %d", (long long)graph->edges,
                    INT32_MAX);
    int64_t length = thread_count() * graph->nodes;
    mg_graph_paths *paths = NULL;
    uint8_t *distances = allocate(length, sizeof *distances);
    int32_t *froms = distances ? allocate(length, sizeof *froms) : NULL;
    int32_t *edges = froms ? allocate(length, sizeof *edges) : NULL;
    int status = edges ? allocate_paths(&paths, near) : -ENOMEM;
    if (!status) {
        memset(distances, UNSEEN, (size_t)length);
        memset(froms, -1, (size_t)length * sizeof *froms);
        status = fill_paths(paths, distances, froms, edges, graph, near);
    }
    RELEASE_ALL(distances, froms, edges);
    if (status)
        mg_graph_paths_destroy(paths);
    else
        *out = paths;
    return status;
}

void mg_graph_paths_destroy(mg_graph_paths *paths)
{
    if (paths)
        RELEASE_ALL(paths->starts, paths->edges, paths);
}
