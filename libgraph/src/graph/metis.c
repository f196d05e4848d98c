#define _GNU_SOURCE /* initstate */
#include "metis.h"

#include <metis.h>
#include <pthread.h>
#include <stdlib.h>

#include "csr.h"
#include "library.h"
#include "random.h"

/* Copies in METIS's integers. */
typedef struct metis_graph {
    idx_t *starts, *columns, *weights; /* weights: {1, weight} per node, or NULL */
    idx_t *parts;
} metis_graph;

/* METIS adds weights up in idx_t and searches for good cuts badly where one node outweighs a part: weights are scaled
   to a sum of at most 2^30, never below 1, never above a part's share. What balance this gives is measured with the
   true weights. */
static void scale_weights(idx_t *scaled, const int64_t *weights, int64_t nodes, int32_t parts)
{
    const double limit = (double)(1 << 30);
    double sum = 0;
    for (int64_t i = 0; i < nodes; i++)
        sum += (double)weights[i];
    double scale = sum > limit ? (limit - (double)nodes) / sum : 1, share = sum * scale / parts;
    for (int64_t i = 0; i < nodes; i++) {
        double weight = (double)weights[i] * scale;
        weight = weight < share ? weight : share;
        scaled[2 * i] = 1;
        scaled[2 * i + 1] = weight < 1 ? 1 : (idx_t)weight;
    }
}

static void close_graph(metis_graph *copy) { RELEASE_ALL(copy->starts, copy->columns, copy->weights, copy->parts); }

static int open_graph(metis_graph *copy, const mg_graph *graph, int32_t parts, const int64_t *weights)
{
    int64_t nodes = graph->nodes;
    *copy = (metis_graph){0};
    copy->starts = allocate(nodes + 1, sizeof(idx_t));
    copy->columns = copy->starts ? allocate(graph->edges + 1, sizeof(idx_t)) : NULL; /* METIS reads one even of none */
    copy->parts = copy->columns ? allocate(nodes, sizeof(idx_t)) : NULL;
    copy->weights = copy->parts && weights ? allocate(2 * nodes, sizeof(idx_t)) : NULL;
    if (!copy->parts || (weights && !copy->weights)) {
        close_graph(copy);
        return -ENOMEM;
    }
    for (int64_t i = 0; i <= nodes; i++)
        copy->starts[i] = (idx_t)graph->starts[i];
    for (int64_t e = 0; e < graph->edges; e++)
        copy->columns[e] = graph->columns[e];
    copy->columns[graph->edges] = 0;
    if (weights)
        scale_weights(copy->weights, weights, nodes, parts);
    return 0;
}

static int call(metis_graph *copy, int64_t nodes, int32_t parts, double imbalance, uint64_t seed,
                mg_graph_metis_method method)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    static char random_state[128];
    idx_t options[METIS_NOPTIONS], node_count = (idx_t)nodes, constraints = copy->weights ? 2 : 1, wanted = parts, cut;
    real_t allowed[2] = {(real_t)(1 + imbalance), (real_t)(1 + imbalance)};
    random_stream random = random_seeded(seed, 0);
    METIS_SetDefaultOptions(options);
    options[METIS_OPTION_SEED] = (idx_t)(random_bits(&random) >> 34);
    options[METIS_OPTION_NUMBERING] = 0;
    /* One seed in six cuts half as much again (debian, two parts). Parts are paid for each step, an order is not. */
    options[METIS_OPTION_NCUTS] = copy->weights ? 4 : 1;
    pthread_mutex_lock(&one_at_a_time);
    char *callers_state = initstate(1, random_state, sizeof random_state);
    int status = (method == MG_GRAPH_METIS_KWAY ? METIS_PartGraphKway : METIS_PartGraphRecursive)(
        &node_count, &constraints, copy->starts, copy->columns, copy->weights, NULL, NULL, &wanted, NULL, allowed,
        options, &cut, copy->parts);
    setstate(callers_state);
    pthread_mutex_unlock(&one_at_a_time);
    return status;
}

int mg_graph_metis(int32_t *parts_out, const mg_graph *graph, int32_t parts, const int64_t *weights, double imbalance,
                   uint64_t seed, mg_graph_metis_method method)
{
    metis_graph copy;
    if (graph->nodes >= IDX_MAX || graph->edges >= IDX_MAX)
        return fail(-EOVERFLOW,
                    "partition: %lld nodes and %lld directed edges, but this METIS counts to %lld; cut a coarser graph",
                    (long long)graph->nodes, (long long)graph->edges, (long long)IDX_MAX);
    int status = open_graph(&copy, graph, parts, weights);
    if (status)
        return status;
    int answer = call(&copy, graph->nodes, parts, imbalance, seed, method);
    if (answer == METIS_ERROR_MEMORY)
        status = fail(-ENOMEM, "partition: METIS ran out of memory for %lld nodes and %lld directed edges",
                      (long long)graph->nodes, (long long)graph->edges);
    else if (answer != METIS_OK)
        status = fail(-EIO, "partition: METIS failed with its code %d for %lld nodes, %lld directed edges, %d parts",
                      answer, (long long)graph->nodes, (long long)graph->edges, parts);
    for (int64_t i = 0; !status && i < graph->nodes; i++) {
        if (copy.parts[i] < 0 || copy.parts[i] >= parts)
            status = fail(-EIO, "partition: METIS put node %lld into part %lld of %d", (long long)i,
                          (long long)copy.parts[i], parts);
        else
            parts_out[i] = (int32_t)copy.parts[i];
    }
    close_graph(&copy);
    return status;
}
