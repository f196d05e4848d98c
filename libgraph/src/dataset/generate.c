#include "megagraph/dataset.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "graph/csr.h"
#include "library.h"
#include "random.h"

/* Normal deviates by Box and Muller; the second of a pair is not used, so each costs the same. */
static double random_normal(random_stream *random)
{
    double radius = sqrt(-2 * log1p(-random_unit(random)));
    return radius * cos(2 * 3.14159265358979323846 * random_unit(random));
}

/* --- stochastic block model --- */

/* Each block has a centre in {-1, 1}^features; a node's features are its block's centre plus noise. */
static void fill_features(float *features, float *centres, const int32_t *labels, int64_t nodes, int blocks,
                          int64_t feature_count, double noise, uint64_t seed)
{
    random_stream random = random_seeded(seed, 3);
    for (int64_t k = 0; k < blocks * feature_count; k++)
        centres[k] = random_bits(&random) >> 63 ? 1 : -1;
    for (int64_t i = 0; i < nodes; i++)
        for (int64_t f = 0; f < feature_count; f++)
            features[i * feature_count + f] =
                (float)(centres[labels[i] * feature_count + f] + noise * random_normal(&random));
}

typedef struct class_name {
    char text[12];
} class_name;

/* Buffers of one generated dataset; all are given back once mg_dataset_create has copied them. */
typedef struct sbm_buffers {
    float *features, *centres;
    int32_t *labels;
    class_name *texts;
    char **names;
    uint8_t *split;
    int64_t segments[2];
} sbm_buffers;

static int sbm_allocate(sbm_buffers *buffers, int64_t nodes, int blocks, int64_t feature_count)
{
    int64_t all, centres;
    if (feature_count < 0 || __builtin_mul_overflow(nodes, feature_count, &all) ||
        __builtin_mul_overflow((int64_t)blocks, feature_count, &centres))
        return fail(-EINVAL, "generate: %lld features", (long long)feature_count);
    buffers->labels = allocate(nodes, sizeof *buffers->labels);
    buffers->features = buffers->labels ? allocate(all, sizeof *buffers->features) : NULL;
    buffers->centres = buffers->features ? allocate(centres, sizeof *buffers->centres) : NULL;
    buffers->texts = buffers->centres ? allocate(blocks, sizeof *buffers->texts) : NULL;
    buffers->names = buffers->texts ? allocate(blocks, sizeof *buffers->names) : NULL;
    buffers->split = buffers->names ? allocate(nodes, sizeof *buffers->split) : NULL;
    return buffers->split ? 0 : -ENOMEM;
}

static int sbm_create(mg_dataset **out, mg_graph *graph, sbm_buffers *buffers, int blocks, int64_t feature_count,
                      double noise, uint64_t seed)
{
    char story[256];
    int64_t nodes = graph->nodes;
    for (int64_t i = 0; i < nodes; i++)
        buffers->labels[i] = (int32_t)(i * blocks / nodes);
    for (int b = 0; b < blocks; b++) {
        snprintf(buffers->texts[b].text, sizeof buffers->texts[b].text, "%d", b);
        buffers->names[b] = buffers->texts[b].text;
    }
    fill_features(buffers->features, buffers->centres, buffers->labels, nodes, blocks, feature_count, noise, seed);
    snprintf(story, sizeof story,
             "generated: stochastic block model, %lld nodes in %d blocks, %lld edges, %lld features with noise %g, "
             "seed %llu\n",
             (long long)nodes, blocks, (long long)graph->edges / 2, (long long)feature_count, noise,
             (unsigned long long)seed);
    buffers->segments[0] = 0;
    buffers->segments[1] = nodes;
    mg_dataset parts = {.name = "sbm",
                        .graph = graph,
                        .graphs = 1,
                        .segments = buffers->segments,
                        .feature_count = feature_count,
                        .features = feature_count ? buffers->features : NULL,
                        .level = MG_DATASET_NODE,
                        .task = MG_DATASET_CLASSIFICATION,
                        .items = nodes,
                        .classes = blocks,
                        .class_names = buffers->names,
                        .labels = buffers->labels,
                        .story = story};
    int status = mg_dataset_split(buffers->split, &parts, 0, 0, seed);
    if (status)
        return status;
    parts.splits = 1;
    parts.split = buffers->split;
    return mg_dataset_create(out, &parts);
}

int mg_dataset_generate_sbm(mg_dataset **out, int64_t nodes, int blocks, double degree_inside, double degree_across,
                            int64_t feature_count, double noise, uint64_t seed)
{
    mg_graph *graph;
    sbm_buffers buffers = {0};
    *out = NULL;
    if (!(noise >= 0))
        return fail(-EINVAL, "generate: noise %g; it is 0 or more", noise);
    int status = mg_graph_generate_sbm(&graph, nodes, blocks, degree_inside, degree_across, seed);
    if (status)
        return status;
    status = sbm_allocate(&buffers, nodes, blocks, feature_count);
    if (!status)
        status = sbm_create(out, graph, &buffers, blocks, feature_count, noise, seed);
    RELEASE_ALL(buffers.labels, buffers.features, buffers.centres, buffers.texts, buffers.names, buffers.split);
    mg_graph_destroy(graph);
    return status;
}

/* --- small graphs: cycles, paths and trees of the same sizes, in turn --- */

enum { CYCLE, PATH, TREE, KINDS };
static char *const kind_names[] = {"cycle", "path", "tree"};

/* Edges of all graphs, with nodes shuffled inside each. */
typedef struct small_graphs {
    int64_t graphs, nodes, edges;
    int64_t *segments;          /* [graphs + 1] */
    int64_t *sources, *targets; /* [nodes] are room enough: no graph has more edges than nodes */
    int64_t *order;             /* [nodes] scratch */
    int32_t *labels;            /* [graphs] */
    float *features;            /* [nodes] */
} small_graphs;

static int64_t kind_of(int64_t g) { return g % KINDS; }

/* Sizes are uniform in [mean / 2, mean * 3 / 2]; a cycle, a path and a tree share each. */
static int choose_sizes(small_graphs *small, int64_t mean_nodes, random_stream *random)
{
    int64_t size = 0, low = mean_nodes / 2 < 4 ? 4 : mean_nodes / 2, high = 2 * mean_nodes - low;
    small->segments[0] = 0;
    for (int64_t g = 0; g < small->graphs; g++) {
        if (kind_of(g) == 0)
            size = low + random_below(random, high - low + 1);
        small->segments[g + 1] = small->segments[g] + size;
        small->labels[g] = (int32_t)kind_of(g);
        if (small->segments[g + 1] > INT32_MAX)
            return fail(-EINVAL, "generate: %lld graphs of %lld nodes; all have at most %d nodes together",
                        (long long)small->graphs, (long long)mean_nodes, INT32_MAX);
    }
    small->nodes = small->segments[small->graphs];
    return 0;
}

/* Node i > 0 hangs on parent(i): a path on i - 1; a tree begins as a star of four, so that it is never a path. */
static int64_t parent_of(int64_t i, int64_t kind, random_stream *random)
{
    if (kind != TREE)
        return i - 1;
    return i < 4 ? 0 : random_below(random, i);
}

static void add_edge(small_graphs *small, int64_t begin, int64_t a, int64_t b)
{
    small->sources[small->edges] = begin + small->order[a];
    small->targets[small->edges++] = begin + small->order[b];
}

static void make_graph(small_graphs *small, int64_t g, random_stream *random)
{
    int64_t begin = small->segments[g], size = small->segments[g + 1] - begin;
    for (int64_t i = 0; i < size; i++) {
        int64_t j = random_below(random, i + 1);
        small->order[i] = small->order[j];
        small->order[j] = i;
    }
    for (int64_t i = 1; i < size; i++)
        add_edge(small, begin, i, parent_of(i, kind_of(g), random));
    if (kind_of(g) == CYCLE)
        add_edge(small, begin, size - 1, 0);
}

static int small_create(mg_dataset **out, small_graphs *small, uint64_t seed)
{
    char story[256];
    mg_graph *graph;
    int status = mg_graph_create(
        &graph,
        &(mg_graph_desc){
            .nodes = small->nodes, .edges = small->edges, .sources = small->sources, .targets = small->targets},
        NULL);
    if (status)
        return status;
    for (int64_t i = 0; i < small->nodes; i++)
        small->features[i] = (float)(graph->starts[i + 1] - graph->starts[i]);
    snprintf(story, sizeof story,
             "generated: %lld graphs (cycles, paths, trees), %lld nodes, %lld edges, degree features, "
             "seed %llu\n",
             (long long)small->graphs, (long long)small->nodes, (long long)small->edges, (unsigned long long)seed);
    status = mg_dataset_create(out, &(mg_dataset){.name = "graphs",
                                                  .graph = graph,
                                                  .graphs = small->graphs,
                                                  .segments = small->segments,
                                                  .feature_count = 1,
                                                  .features = small->features,
                                                  .level = MG_DATASET_GRAPH,
                                                  .task = MG_DATASET_CLASSIFICATION,
                                                  .items = small->graphs,
                                                  .classes = KINDS,
                                                  .class_names = (char **)kind_names,
                                                  .labels = small->labels,
                                                  .story = story});
    mg_graph_destroy(graph);
    return status;
}

static int small_allocate(small_graphs *small)
{
    small->sources = allocate(small->nodes, sizeof *small->sources);
    small->targets = small->sources ? allocate(small->nodes, sizeof *small->targets) : NULL;
    small->order = small->targets ? allocate(small->nodes, sizeof *small->order) : NULL;
    small->features = small->order ? allocate(small->nodes, sizeof *small->features) : NULL;
    return small->features ? 0 : -ENOMEM;
}

int mg_dataset_generate_graphs(mg_dataset **out, int64_t graphs, int64_t mean_nodes, uint64_t seed)
{
    *out = NULL;
    if (graphs < KINDS || mean_nodes < 4 || mean_nodes > INT32_MAX / 2)
        return fail(-EINVAL, "generate: %lld graphs of %lld nodes; there are at least %d, of at least 4 nodes",
                    (long long)graphs, (long long)mean_nodes, KINDS);
    small_graphs small = {.graphs = graphs};
    random_stream random = random_seeded(seed, 4);
    small.segments = allocate(graphs + 1, sizeof *small.segments);
    small.labels = small.segments ? allocate(graphs, sizeof *small.labels) : NULL;
    int status = small.labels ? choose_sizes(&small, mean_nodes, &random) : -ENOMEM;
    if (!status)
        status = small_allocate(&small);
    for (int64_t g = 0; g < graphs && !status; g++)
        make_graph(&small, g, &random);
    if (!status)
        status = small_create(out, &small, seed);
    RELEASE_ALL(small.segments, small.labels, small.sources, small.targets, small.order, small.features);
    return status;
}
