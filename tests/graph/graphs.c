#include "graph/graphs.h"

#ifdef _OPENMP
#include <omp.h>
#endif

void set_threads(int threads)
{
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

mg_graph *graph_of(int64_t nodes, int64_t edges, const int64_t *sources, const int64_t *targets, int directed)
{
    mg_graph *graph;
    must(mg_graph_create(&graph, &(mg_graph_desc){nodes, edges, sources, targets, directed}, NULL));
    return graph;
}

/* Takes the arrays. */
static mg_graph *finish(int64_t nodes, int64_t edges, int64_t *sources, int64_t *targets, int directed)
{
    mg_graph *graph = graph_of(nodes, edges, sources, targets, directed);
    free(sources);
    free(targets);
    return graph;
}

static int64_t *list(int64_t count) { return calloc((size_t)count + 1, sizeof(int64_t)); }

mg_graph *random_graph(int64_t nodes, int64_t edges, int directed, uint64_t seed)
{
    int64_t *sources = list(edges), *targets = list(edges);
    for (int64_t e = 0; e < edges; e++) {
        sources[e] = (int64_t)(test_random_bits(seed, (uint64_t)(2 * e)) % (uint64_t)nodes);
        targets[e] = (int64_t)(test_random_bits(seed, (uint64_t)(2 * e + 1)) % (uint64_t)nodes);
    }
    return finish(nodes, edges, sources, targets, directed);
}

mg_graph *path_graph(int64_t nodes)
{
    int64_t *sources = list(nodes), *targets = list(nodes);
    for (int64_t i = 0; i + 1 < nodes; i++) {
        sources[i] = i;
        targets[i] = i + 1;
    }
    return finish(nodes, nodes - 1, sources, targets, 0);
}

mg_graph *cycle_graph(int64_t nodes)
{
    int64_t *sources = list(nodes), *targets = list(nodes);
    for (int64_t i = 0; i < nodes; i++) {
        sources[i] = i;
        targets[i] = (i + 1) % nodes;
    }
    return finish(nodes, nodes, sources, targets, 0);
}

mg_graph *bipartite_graph(int64_t left, int64_t right)
{
    int64_t *sources = list(left * right), *targets = list(left * right);
    for (int64_t e = 0; e < left * right; e++) {
        sources[e] = e / right;
        targets[e] = left + e % right;
    }
    return finish(left + right, left * right, sources, targets, 0);
}

mg_graph *star_graph(int64_t nodes) { return bipartite_graph(1, nodes - 1); }

mg_graph *complete_graph(int64_t nodes)
{
    int64_t *sources = list(nodes * nodes), *targets = list(nodes * nodes), edges = 0;
    for (int64_t i = 0; i < nodes; i++)
        for (int64_t j = i + 1; j < nodes; j++) {
            sources[edges] = i;
            targets[edges++] = j;
        }
    return finish(nodes, edges, sources, targets, 0);
}

mg_graph *beside(mg_graph *a, mg_graph *b)
{
    int64_t edges = a->edges + b->edges, to = 0, *sources = list(edges), *targets = list(edges);
    for (int64_t i = 0; i < a->nodes; i++)
        for (int64_t e = a->starts[i]; e < a->starts[i + 1]; e++, to++) {
            sources[to] = i;
            targets[to] = a->columns[e];
        }
    for (int64_t i = 0; i < b->nodes; i++)
        for (int64_t e = b->starts[i]; e < b->starts[i + 1]; e++, to++) {
            sources[to] = a->nodes + i;
            targets[to] = a->nodes + b->columns[e];
        }
    mg_graph *both = finish(a->nodes + b->nodes, edges, sources, targets, 1);
    mg_graph_destroy(a);
    mg_graph_destroy(b);
    return both;
}

int has_edge(const mg_graph *graph, int64_t source, int64_t target)
{
    for (int64_t e = graph->starts[source]; e < graph->starts[source + 1]; e++)
        if (graph->columns[e] == target)
            return 1;
    return 0;
}
