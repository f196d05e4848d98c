/* Return probabilities of random walks, exactly, for blocks of sources at once.
 *
 * With P = D^-1 A, column s of P^t is kept as y_t[i] = (P^t)[i][s], the sources of a block side by side; nodes that no source
 * reaches in t steps are left out ("active" marks the others). The diagonal entry y_t[s] is the answer. On symmetric graphs
 * degree[s] (P^t)[s][i] = degree[i] (P^t)[i][s], so half of the steps tell everything:
 *
 *     (P^(a+b))[s][s] = sum_i degree[i] / degree[s] * y_a[i] * y_b[i]
 */
#include "megagraph/graph.h"

#include <string.h>

#include "graph/csr.h"
#include "graph/parallel.h"
#include "library.h"

enum { SOURCES = 32 };

typedef struct walk_work {
    float *encodings;
    int count;
    const mg_graph *graph;
    const mg_graph *incoming; /* the transposed graph; the graph itself when symmetric */
    int threads;
    float *values;   /* [threads][2][nodes][SOURCES] y of this step and of the one before */
    uint8_t *active; /* [threads][2][nodes] */
} walk_work;

/* One block of sources, first .. first + width - 1. */
typedef struct walk_block {
    const walk_work *work;
    int64_t first;
    int width;
    float *values, *before; /* [nodes][SOURCES] */
    uint8_t *active, *active_before;
} walk_block;

static double degree_of(const mg_graph *graph, int64_t node) { return (double)(graph->starts[node + 1] - graph->starts[node]); }

static void block_start(const walk_block *block)
{
    memset(block->active, 0, (size_t)block->work->graph->nodes);
    for (int s = 0; s < block->width; s++) {
        int64_t source = block->first + s;
        block->active[source] = 1;
        memset(block->values + source * SOURCES, 0, SOURCES * sizeof(float));
        block->values[source * SOURCES + s] = 1;
    }
}

static void mark_next(const walk_block *block)
{
    const mg_graph *incoming = block->work->incoming;
    memset(block->active, 0, (size_t)incoming->nodes);
    for (int64_t j = 0; j < incoming->nodes; j++)
        if (block->active_before[j])
            for (int64_t e = incoming->starts[j]; e < incoming->starts[j + 1]; e++)
                block->active[incoming->columns[e]] = 1;
}

/* values[node] = mean of before over the row of the node. */
static void step_node(const walk_block *block, int64_t node)
{
    const mg_graph *graph = block->work->graph;
    float sums[SOURCES] = {0};
    for (int64_t e = graph->starts[node]; e < graph->starts[node + 1]; e++) {
        int64_t column = graph->columns[e];
        if (!block->active_before[column])
            continue;
        const float *from = block->before + column * SOURCES;
        for (int s = 0; s < SOURCES; s++)
            sums[s] += from[s];
    }
    float *to = block->values + node * SOURCES, share = (float)(1 / degree_of(graph, node));
    for (int s = 0; s < SOURCES; s++)
        to[s] = share * sums[s];
}

static void block_step(walk_block *block)
{
    float *values = block->values;
    uint8_t *active = block->active;
    block->values = block->before;
    block->before = values;
    block->active = block->active_before;
    block->active_before = active;
    mark_next(block);
    for (int64_t i = 0; i < block->work->graph->nodes; i++)
        if (block->active[i])
            step_node(block, i);
}

static void write_diagonal(const walk_block *block, int step)
{
    for (int s = 0; s < block->width; s++) {
        int64_t source = block->first + s;
        float back = block->active[source] ? block->values[source * SOURCES + s] : 0;
        block->work->encodings[source * block->work->count + step - 1] = back;
    }
}

/* The sum of degree * y_a * y_b over nodes where both are active, for every source. */
static void write_product(const walk_block *block, int step, const float *other, const uint8_t *other_active)
{
    const mg_graph *graph = block->work->graph;
    double sums[SOURCES] = {0};
    for (int64_t i = 0; i < graph->nodes; i++) {
        if (!block->active[i] || !other_active[i])
            continue;
        const float *a = block->values + i * SOURCES, *b = other + i * SOURCES;
        double degree = degree_of(graph, i);
        for (int s = 0; s < SOURCES; s++)
            sums[s] += degree * ((double)a[s] * b[s]);
    }
    for (int s = 0; s < block->width; s++) {
        double degree = degree_of(graph, block->first + s);
        block->work->encodings[(block->first + s) * block->work->count + step - 1] = degree > 0 ? (float)(sums[s] / degree) : 0;
    }
}

static void walk_symmetric(walk_block *block)
{
    int count = block->work->count;
    for (int half = 1; 2 * half - 1 <= count; half++) {
        block_step(block);
        write_product(block, 2 * half - 1, block->before, block->active_before);
        if (2 * half <= count)
            write_product(block, 2 * half, block->values, block->active);
    }
}

static void walk_directed(walk_block *block)
{
    for (int step = 1; step <= block->work->count; step++) {
        block_step(block);
        write_diagonal(block, step);
    }
}

static void walk_task(void *context, int thread, int64_t task)
{
    const walk_work *work = context;
    int64_t nodes = work->graph->nodes, first = task * SOURCES, left = nodes - first;
    float *values = work->values + thread * 2 * nodes * SOURCES;
    uint8_t *active = work->active + thread * 2 * nodes;
    walk_block block = {work, first, left < SOURCES ? (int)left : SOURCES, values, values + nodes * SOURCES, active,
                        active + nodes};
    block_start(&block);
    if (work->incoming == work->graph)
        walk_symmetric(&block);
    else
        walk_directed(&block);
}

static int walk(walk_work *work)
{
    int64_t nodes = work->graph->nodes, tasks = (nodes + SOURCES - 1) / SOURCES;
    work->threads = mg_graph_threads(tasks);
    work->values = allocate(work->threads * 2 * nodes * SOURCES, sizeof *work->values);
    work->active = work->values ? allocate(work->threads * 2 * nodes, sizeof *work->active) : NULL;
    if (work->active)
        mg_graph_parallel(work->threads, tasks, walk_task, work);
    int status = work->active ? 0 : -ENOMEM;
    RELEASE_ALL(work->values, work->active);
    return status;
}

int mg_graph_random_walk(float *encodings, int count, const mg_graph *graph)
{
    mg_graph *transposed;
    if (count < 0)
        return fail(-EINVAL, "random walk: %d steps", count);
    if (!count)
        return 0;
    int status = mg_graph_csr_transposed(&transposed, graph);
    if (status)
        return status;
    walk_work work = {.encodings = encodings, .count = count, .graph = graph, .incoming = transposed ? transposed : graph};
    status = walk(&work);
    mg_graph_destroy(transposed);
    return status;
}
