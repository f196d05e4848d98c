/* Features averaged over hops, some columns at a time so that the two buffers stay small. */
#include "megagraph/graph.h"

#include <math.h>
#include <string.h>

#include "graph/parallel.h"
#include "library.h"

enum { COLUMNS = 64, ROWS = 256 }; /* columns at a time, rows of a task */

typedef struct average_work {
    const mg_graph *graph;
    const float *features;
    float *averages;
    const float *roots; /* [nodes] 1 / sqrt(neighbours + 1) */
    float *now, *next;  /* [nodes][COLUMNS] */
    int64_t columns, first, width;
    float share, own; /* of each hop, of the features themselves */
} average_work;

static float *row_of(float *rows, int64_t node) { return rows + node * COLUMNS; }

/* next_i = sum over i and its neighbours j of now_j / sqrt((n_i + 1) (n_j + 1)) */
static void step_row(const average_work *w, int64_t i)
{
    const mg_graph *graph = w->graph;
    float *to = row_of(w->next, i), root = w->roots[i];
    for (int64_t c = 0; c < w->width; c++)
        to[c] = root * row_of(w->now, i)[c];
    for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++) {
        int64_t j = graph->columns[e];
        const float *from = row_of(w->now, j);
        for (int64_t c = 0; c < w->width && j != i; c++)
            to[c] += w->roots[j] * from[c];
    }
    for (int64_t c = 0; c < w->width; c++)
        to[c] *= root;
}

static void hop_task(void *context, int thread, int64_t task)
{
    const average_work *w = context;
    int64_t begin = task * ROWS, end = begin + ROWS < w->graph->nodes ? begin + ROWS : w->graph->nodes;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        float *to = w->averages + i * w->columns + w->first;
        step_row(w, i);
        for (int64_t c = 0; c < w->width; c++)
            to[c] += w->share * row_of(w->next, i)[c];
    }
}

static void start(average_work *w)
{
    for (int64_t i = 0; i < w->graph->nodes; i++) {
        const float *from = w->features + i * w->columns + w->first;
        float *to = w->averages + i * w->columns + w->first;
        memcpy(row_of(w->now, i), from, (size_t)w->width * sizeof(float));
        for (int64_t c = 0; c < w->width; c++)
            to[c] = w->own * from[c];
    }
}

static void find_roots(float *roots, const mg_graph *graph)
{
    for (int64_t i = 0; i < graph->nodes; i++) {
        int64_t neighbours = 0;
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            neighbours += graph->columns[e] != i;
        roots[i] = (float)(1 / sqrt((double)neighbours + 1));
    }
}

int mg_graph_average(float *averages, const float *features, int64_t columns, const mg_graph *graph, int hops,
                     double own)
{
    int64_t nodes = graph->nodes, tasks = (nodes + ROWS - 1) / ROWS;
    if (columns < 0 || hops < 1 || !(own >= 0 && own <= 1))
        return fail(-EINVAL, "averages over %d hops of %lld columns with a share of %g: at least 1 hop, a share in 0..1",
                    hops, (long long)columns, own);
    if (!nodes || !columns)
        return 0;
    float *roots = allocate(nodes, sizeof *roots), *rows = allocate(nodes, 2 * COLUMNS * sizeof *rows);
    int status = roots && rows ? 0 : -ENOMEM;
    if (!status)
        find_roots(roots, graph);
    for (int64_t first = 0; !status && first < columns; first += COLUMNS) {
        average_work work = {graph, features, averages, roots, rows, rows + nodes * COLUMNS, columns, first,
                             columns - first < COLUMNS ? columns - first : COLUMNS, (float)((1 - own) / hops), (float)own};
        start(&work);
        for (int hop = 0; hop < hops; hop++) {
            float *now = work.now;
            mg_graph_parallel(mg_graph_threads(tasks), tasks, hop_task, &work);
            work.now = work.next;
            work.next = now;
        }
    }
    release(roots);
    release(rows);
    return status;
}
