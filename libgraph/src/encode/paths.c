/* Edge paths: row i of near gives the distances from i; a sweep over its nodes by rising number finds, for each, the
 * lowest node one step nearer that has an edge to it. A path is then read backwards from its end. */
#include "megagraph/graph.h"

#include <string.h>

#include "graph/csr.h"
#include "graph/parallel.h"
#include "library.h"

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

enum { TASK_ROWS = 64 };

typedef struct paths_work {
    mg_graph_paths *paths;
    const mg_graph *graph;
    const mg_graph_near *near;
    int threads;
    uint8_t *distances; /* [threads][nodes] */
    int32_t *froms, *edges;
    int64_t *wrong; /* [threads] a row whose distances are not the graph's, or -1 */
} paths_work;

static void fill_rows(void *context, int thread, int64_t task)
{
    const paths_work *work = context;
    int64_t nodes = work->graph->nodes, offset = thread * nodes;
    int64_t begin = task * TASK_ROWS, end = begin + TASK_ROWS < nodes ? begin + TASK_ROWS : nodes;
    row_scratch scratch = {work->distances + offset, work->froms + offset, work->edges + offset};
    for (int64_t row = begin; row < end; row++) {
        row_enter(&scratch, work->near, row);
        find_predecessors(&scratch, work->graph, work->near, row);
        if (write_row(work->paths, &scratch, work->near, row))
            work->wrong[thread] = row;
        row_leave(&scratch, work->near, row);
    }
}

static int fill_paths(paths_work *work)
{
    int64_t nodes = work->graph->nodes, length = work->threads * nodes;
    memset(work->distances, UNSEEN, (size_t)length);
    memset(work->froms, -1, (size_t)length * sizeof *work->froms);
    memset(work->wrong, -1, (size_t)work->threads * sizeof *work->wrong);
    mg_graph_parallel(work->threads, (nodes + TASK_ROWS - 1) / TASK_ROWS, fill_rows, work);
    for (int t = 0; t < work->threads; t++)
        if (work->wrong[t] >= 0)
            return fail(-EINVAL,
                        "paths: the distances of row %lld are not those of this graph; make the near pairs from it",
                        (long long)work->wrong[t]);
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
    paths_work work = {.graph = graph, .near = near, .threads = mg_graph_threads(graph->nodes / TASK_ROWS + 1)};
    int64_t length = work.threads * graph->nodes;
    work.distances = allocate(length, sizeof *work.distances);
    work.froms = work.distances ? allocate(length, sizeof *work.froms) : NULL;
    work.edges = work.froms ? allocate(length, sizeof *work.edges) : NULL;
    work.wrong = work.edges ? allocate(work.threads, sizeof *work.wrong) : NULL;
    int status = work.wrong ? allocate_paths(&work.paths, near) : -ENOMEM;
    if (!status)
        status = fill_paths(&work);
    RELEASE_ALL(work.distances, work.froms, work.edges, work.wrong);
    if (status)
        mg_graph_paths_destroy(work.paths);
    else
        *out = work.paths;
    return status;
}

void mg_graph_paths_destroy(mg_graph_paths *paths)
{
    if (paths)
        RELEASE_ALL(paths->starts, paths->edges, paths);
}
