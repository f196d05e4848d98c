/* Return probabilities of random walks, exactly, for blocks of sources at once.
 *
 * With P = D^-1 A, column s of P^t is kept as y_t[i] = (P^t)[i][s], the sources of a block side by side; nodes from
 * which no source is reached in t steps are left out. The diagonal entry y_t[s] is the answer. On symmetric graphs
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
    uint8_t *active; /* [threads][2][nodes], all 0 between blocks */
    int32_t *lists;  /* [threads][2][nodes] */
} walk_work;

/* y of one step: rows of nodes that are not active are not written. */
typedef struct walk_state {
    float *values;   /* [nodes][SOURCES] */
    uint8_t *active; /* [nodes] */
    int32_t *list;   /* [count] the active nodes */
    int64_t count;
} walk_state;

/* One block of sources, first .. first + width - 1. */
typedef struct walk_block {
    const walk_work *work;
    int64_t first;
    int width;
    walk_state now, before;
} walk_block;

static double degree_of(const mg_graph *graph, int64_t node)
{
    return (double)(graph->starts[node + 1] - graph->starts[node]);
}

static void activate(walk_state *state, int64_t node)
{
    if (!state->active[node]) {
        state->active[node] = 1;
        state->list[state->count++] = (int32_t)node;
    }
}

static void deactivate_all(walk_state *state)
{
    for (int64_t k = 0; k < state->count; k++)
        state->active[state->list[k]] = 0;
    state->count = 0;
}

static void block_start(walk_block *block)
{
    for (int s = 0; s < block->width; s++) {
        int64_t source = block->first + s;
        activate(&block->now, source);
        memset(block->now.values + source * SOURCES, 0, SOURCES * sizeof(float));
        block->now.values[source * SOURCES + s] = 1;
    }
}

/* Where many are active, they are listed in the order of memory. */
static void mark_next(walk_block *block)
{
    const mg_graph *incoming = block->work->incoming;
    walk_state *now = &block->now;
    for (int64_t k = 0; k < block->before.count; k++) {
        int64_t j = block->before.list[k];
        for (int64_t e = incoming->starts[j]; e < incoming->starts[j + 1]; e++)
            activate(now, incoming->columns[e]);
    }
    if (now->count < incoming->nodes / 8)
        return;
    now->count = 0;
    for (int64_t i = 0; i < incoming->nodes; i++)
        if (now->active[i])
            now->list[now->count++] = (int32_t)i;
}

/* The row of `node` now = the mean of the rows before that its edges lead to. */
static void step_node(const walk_block *block, int64_t node)
{
    const mg_graph *graph = block->work->graph;
    float sums[SOURCES] = {0};
    for (int64_t e = graph->starts[node]; e < graph->starts[node + 1]; e++) {
        int64_t column = graph->columns[e];
        if (!block->before.active[column])
            continue;
        const float *from = block->before.values + column * SOURCES;
        for (int s = 0; s < SOURCES; s++)
            sums[s] += from[s];
    }
    float *to = block->now.values + node * SOURCES, share = (float)(1 / degree_of(graph, node));
    for (int s = 0; s < SOURCES; s++)
        to[s] = share * sums[s];
}

static void block_step(walk_block *block)
{
    walk_state now = block->now;
    block->now = block->before;
    block->before = now;
    deactivate_all(&block->now);
    mark_next(block);
    for (int64_t k = 0; k < block->now.count; k++)
        step_node(block, block->now.list[k]);
}

static void write_diagonal(const walk_block *block, int step)
{
    for (int s = 0; s < block->width; s++) {
        int64_t source = block->first + s;
        float back = block->now.active[source] ? block->now.values[source * SOURCES + s] : 0;
        block->work->encodings[source * block->work->count + step - 1] = back;
    }
}

/* The sum of degree * y_a * y_b over nodes where both are active, for every source. */
static void write_product(const walk_block *block, int step, const walk_state *other)
{
    const mg_graph *graph = block->work->graph;
    double sums[SOURCES] = {0};
    for (int64_t k = 0; k < block->now.count; k++) {
        int64_t i = block->now.list[k];
        if (!other->active[i])
            continue;
        const float *a = block->now.values + i * SOURCES, *b = other->values + i * SOURCES;
        double degree = degree_of(graph, i);
        for (int s = 0; s < SOURCES; s++)
            sums[s] += degree * ((double)a[s] * b[s]);
    }
    for (int s = 0; s < block->width; s++) {
        double degree = degree_of(graph, block->first + s);
        block->work->encodings[(block->first + s) * block->work->count + step - 1] =
            degree > 0 ? (float)(sums[s] / degree) : 0;
    }
}

static void walk_symmetric(walk_block *block)
{
    int count = block->work->count;
    for (int half = 1; 2 * half - 1 <= count; half++) {
        block_step(block);
        write_product(block, 2 * half - 1, &block->before);
        if (2 * half <= count)
            write_product(block, 2 * half, &block->now);
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
    int64_t now = thread * 2 * nodes, before = now + nodes;
    walk_block block = {work,
                        first,
                        left < SOURCES ? (int)left : SOURCES,
                        {work->values + now * SOURCES, work->active + now, work->lists + now, 0},
                        {work->values + before * SOURCES, work->active + before, work->lists + before, 0}};
    block_start(&block);
    if (work->incoming == work->graph)
        walk_symmetric(&block);
    else
        walk_directed(&block);
    deactivate_all(&block.now);
    deactivate_all(&block.before);
}

static int walk(walk_work *work)
{
    int64_t nodes = work->graph->nodes, tasks = (nodes + SOURCES - 1) / SOURCES;
    work->threads = mg_graph_threads(tasks);
    work->values = allocate(work->threads * 2 * nodes * SOURCES, sizeof *work->values);
    work->active = work->values ? allocate_zeroed(work->threads * 2 * nodes, sizeof *work->active) : NULL;
    work->lists = work->active ? allocate(work->threads * 2 * nodes, sizeof *work->lists) : NULL;
    if (work->lists)
        mg_graph_parallel(work->threads, tasks, walk_task, work);
    int status = work->lists ? 0 : -ENOMEM;
    RELEASE_ALL(work->values, work->active, work->lists);
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
    walk_work work = {
        .encodings = encodings, .count = count, .graph = graph, .incoming = transposed ? transposed : graph};
    status = walk(&work);
    mg_graph_destroy(transposed);
    return status;
}
