#include "model/problem.h"
#include "support/test.h"

static void *zeros(int64_t count, size_t size) { return calloc((size_t)(count ? count : 1), size); }

static double uniform(uint64_t seed, uint64_t index) { return (test_random(seed, index) + 1) / 2; }

/* --- tokens and the graph --- */

static void make_segments(problem *p)
{
    const problem_setup *s = &p->setup;
    int64_t *segments = zeros(s->graphs + 1, sizeof *segments);
    for (int64_t g = 0; g < s->graphs; g++)
        segments[g + 1] = segments[g] + s->nodes[g] + (s->desc.virtual_token != 0);
    p->batch.segments = segments;
    p->batch.graphs = s->graphs;
    p->batch.tokens = segments[s->graphs];
}

/* Random edges inside each graph, none at its first node when it has more than three; a self loop now and then. */
static void make_graph(problem *p)
{
    const problem_setup *s = &p->setup;
    int64_t most = 0, edges = 0;
    for (int64_t g = 0; g < s->graphs; g++)
        most += s->nodes[g] * s->nodes[g];
    int64_t *sources = zeros(most, sizeof *sources), *targets = zeros(most, sizeof *targets);
    for (int64_t g = 0; g < s->graphs; g++) {
        int64_t first = p->batch.segments[g], nodes = s->nodes[g];
        for (int64_t i = 0; i < nodes; i++)
            for (int64_t j = s->directed ? 0 : i; j < nodes; j++) {
                double chance = i == j ? 0.1 : s->degree / (double)nodes;
                if ((nodes > 3 && (i == 0 || j == 0)) ||
                    uniform(s->seed + 1, (uint64_t)((first + i) * 65536 + j)) >= chance)
                    continue;
                sources[edges] = first + i;
                targets[edges++] = first + j;
            }
    }
    mg_graph *graph;
    assert_int_equal(mg_graph_create(&graph,
                                     &(mg_graph_desc){.nodes = p->batch.tokens,
                                                      .edges = edges,
                                                      .sources = sources,
                                                      .targets = targets,
                                                      .directed = s->directed},
                                     NULL),
                     0);
    p->batch.graph = graph;
    free(sources);
    free(targets);
}

static float *random_floats(int64_t count, uint64_t seed, float scale)
{
    float *values = zeros(count, sizeof *values);
    test_fill(values, count, seed, scale);
    return values;
}

static void make_inputs(problem *p)
{
    const mg_model_desc *desc = &p->setup.desc;
    int64_t tokens = p->batch.tokens, seed = (int64_t)p->setup.seed;
    uint32_t *ids = zeros(tokens, sizeof *ids);
    int32_t *degrees = zeros(tokens, sizeof *degrees);
    float *features = random_floats(tokens * desc->inputs, (uint64_t)seed + 2, 1);
    for (int64_t i = 0; i < tokens; i++) {
        ids[i] = (uint32_t)(7 * i + 3);
        degrees[i] = (int32_t)(p->batch.graph->starts[i + 1] - p->batch.graph->starts[i]);
    }
    for (int64_t g = 0; desc->virtual_token && g < p->batch.graphs; g++) { /* not read */
        degrees[p->batch.segments[g + 1] - 1] = -1;
        for (int64_t c = 0; c < desc->inputs; c++)
            features[(p->batch.segments[g + 1] - 1) * desc->inputs + c] = NAN;
    }
    p->batch.ids = ids;
    p->batch.degrees = degrees;
    p->batch.features = features;
    p->batch.laplacian = random_floats(tokens * desc->laplacian, (uint64_t)seed + 3, 1);
    p->batch.random_walk = random_floats(tokens * desc->random_walk, (uint64_t)seed + 4, 1);
    p->batch.edge_features = random_floats(p->batch.graph->edges * desc->edge_inputs, (uint64_t)seed + 5, 1);
}

/* --- pairs --- */

/* Shortest paths between all tokens, hops + 1 where longer. */
static int *all_distances(const problem *p)
{
    int64_t n = p->batch.tokens;
    int far = p->setup.hops + 1, *distance = zeros(n * n, sizeof *distance);
    for (int64_t i = 0; i < n * n; i++)
        distance[i] = i / n == i % n ? 0 : far;
    for (int round = 1; round <= p->setup.hops; round++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t e = p->batch.graph->starts[i]; e < p->batch.graph->starts[i + 1]; e++)
                for (int64_t j = 0; j < n; j++) {
                    int through = distance[p->batch.graph->columns[e] * n + j] + 1;
                    if (through < distance[i * n + j])
                        distance[i * n + j] = through;
                }
    return distance;
}

static int64_t graph_of(const problem *p, int64_t token)
{
    int64_t g = 0;
    while (p->batch.segments[g + 1] <= token)
        g++;
    return g;
}

static int is_virtual(const problem *p, int64_t token)
{
    return p->setup.desc.virtual_token && token == p->batch.segments[graph_of(p, token) + 1] - 1;
}

static void make_codes(problem *p, const int *distance)
{
    int64_t n = p->batch.tokens;
    int hops = p->setup.hops;
    p->codes = zeros(n * n, 1);
    p->seen = zeros(n * n, 1);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            int code = is_virtual(p, i) || is_virtual(p, j) ? hops + 2 : distance[i * n + j];
            p->codes[i * n + j] = (uint8_t)code;
            p->seen[i * n + j] =
                graph_of(p, i) == graph_of(p, j) && (p->setup.map != MAP_NEAR_MASK || code != hops + 1);
        }
}

/* Pairs that are not far, with their codes and paths. */
static void make_near(problem *p, const int *distance)
{
    int64_t n = p->batch.tokens, hops = p->setup.hops;
    mg_graph_near *near = zeros(1, sizeof *near);
    mg_graph_paths *paths = zeros(1, sizeof *paths);
    near->nodes = n;
    near->hops = (int32_t)hops;
    near->starts = zeros(n + 1, sizeof *near->starts);
    near->columns = zeros(n * n, sizeof *near->columns);
    near->codes = zeros(n * n, 1);
    paths->starts = zeros(n * n + 1, sizeof *paths->starts);
    paths->edges = zeros(n * n * hops, sizeof *paths->edges);
    p->pair_of = zeros(n * n, sizeof *p->pair_of);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
            p->pair_of[i * n + j] = -1;
            if (graph_of(p, i) != graph_of(p, j) || p->codes[i * n + j] == hops + 1)
                continue;
            p->pair_of[i * n + j] = near->pairs;
            near->columns[near->pairs] = (int32_t)j;
            near->codes[near->pairs++] = p->codes[i * n + j];
            for (int64_t at = i; p->codes[i * n + j] <= hops && at != j;) {
                int64_t e = p->batch.graph->starts[at];
                while (distance[p->batch.graph->columns[e] * n + j] != distance[at * n + j] - 1)
                    e++;
                paths->edges[paths->steps++] = (int32_t)e;
                at = p->batch.graph->columns[e];
            }
            paths->starts[near->pairs] = paths->steps;
        }
        near->starts[i + 1] = near->pairs;
    }
    paths->pairs = near->pairs;
    p->batch.near = near;
    p->batch.paths = paths;
}

static void make_plan(problem *p)
{
    mg_attn_map map = {.queries = p->batch.tokens,
                       .keys = p->batch.tokens,
                       .codes = p->setup.desc.codes,
                       .far_code = p->setup.hops + 1,
                       .segments = p->batch.graphs,
                       .query_segments = p->batch.segments};
    if (!map.codes)
        map.codes = p->setup.hops + 3;
    if (p->setup.map == MAP_DENSE) {
        map.kind = MG_ATTN_DENSE;
        map.dense = p->codes;
        map.dense_stride = p->batch.tokens;
    } else {
        map.kind = MG_ATTN_NEAR;
        map.mask_far = p->setup.map == MAP_NEAR_MASK;
        map.near_starts = p->batch.near->starts;
        map.near_columns = p->batch.near->columns;
        map.near_codes = p->batch.near->codes;
    }
    int status = mg_attn_plan_create(&p->plan, &map);
    if (status)
        fail_msg("plan: %s", mg_attn_last_error());
    p->batch.plan = p->plan;
}

/* --- all of it --- */

static problem *start(const problem_setup *setup)
{
    static int64_t serial;
    problem *p = zeros(1, sizeof *p);
    p->serial = ++serial;
    p->setup = *setup;
    for (const int64_t *nodes = setup->nodes; !setup->graphs && *nodes; nodes++)
        p->setup.graphs++;
    int status = mg_model_create(&p->model, &setup->desc);
    if (status)
        fail_msg("model: %s", mg_model_last_error());
    make_segments(p);
    return p;
}

static void finish(problem *p)
{
    int *distance = all_distances(p);
    make_codes(p, distance);
    make_near(p, distance);
    free(distance);
    make_plan(p);
    p->rows = p->setup.desc.readout == MG_MODEL_NODES ? p->batch.tokens : p->batch.graphs;
    p->weights = random_floats(p->rows * p->setup.desc.outputs, p->setup.seed + 6, 1);
    p->parameters = random_floats(mg_model_parameter_count(p->model), p->setup.seed + 7, 0.5f);
}

problem *problem_create(const problem_setup *setup)
{
    problem *p = start(setup);
    make_graph(p);
    make_inputs(p);
    finish(p);
    return p;
}

static void random_order(const problem *p, int32_t *order)
{
    for (int64_t t = 0; t < p->batch.tokens; t++)
        order[t] = (int32_t)t;
    for (int64_t g = 0; g < p->batch.graphs; g++)
        for (int64_t k = p->setup.nodes[g] - 1; k > 0; k--) {
            int64_t other = (int64_t)(test_random_bits(99, (uint64_t)(g * 65536 + k)) % (uint64_t)(k + 1));
            int32_t *a = order + p->batch.segments[g] + k, *b = order + p->batch.segments[g] + other, kept = *a;
            *a = *b;
            *b = kept;
        }
}

static int64_t entry_of(const mg_graph *graph, int64_t i, int64_t j)
{
    int64_t e = graph->starts[i];
    while (graph->columns[e] != j)
        e++;
    return e;
}

/* Rows of `columns` floats in the new order. */
static float *reordered(const float *rows, int64_t columns, const int32_t *order, int64_t count)
{
    float *to = zeros(count * columns, sizeof *to);
    for (int64_t t = 0; t < count; t++)
        memcpy(to + t * columns, rows + order[t] * columns, (size_t)columns * sizeof *to);
    return to;
}

problem *problem_permuted(const problem *p, int32_t *order)
{
    const mg_model_desc *desc = &p->setup.desc;
    problem *q = start(&p->setup);
    int64_t tokens = p->batch.tokens;
    uint32_t *ids = zeros(tokens, sizeof *ids);
    int32_t *degrees = zeros(tokens, sizeof *degrees);
    mg_graph *graph;
    random_order(p, order);
    assert_int_equal(mg_graph_permute(&graph, p->batch.graph, order), 0);
    for (int64_t t = 0; t < tokens; t++) {
        ids[t] = p->batch.ids[order[t]];
        degrees[t] = p->batch.degrees[order[t]];
    }
    float *edges = zeros(graph->edges * desc->edge_inputs, sizeof *edges);
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            for (int64_t f = 0; f < desc->edge_inputs; f++)
                edges[e * desc->edge_inputs + f] =
                    p->batch.edge_features[entry_of(p->batch.graph, order[i], order[graph->columns[e]]) *
                                               desc->edge_inputs +
                                           f];
    q->batch.graph = graph;
    q->batch.ids = ids;
    q->batch.degrees = degrees;
    q->batch.edge_features = edges;
    q->batch.features = reordered(p->batch.features, desc->inputs, order, tokens);
    q->batch.laplacian = reordered(p->batch.laplacian, desc->laplacian, order, tokens);
    q->batch.random_walk = reordered(p->batch.random_walk, desc->random_walk, order, tokens);
    finish(q);
    if (desc->readout == MG_MODEL_NODES) {
        float *weights = reordered(p->weights, desc->outputs, order, tokens);
        free(q->weights);
        q->weights = weights;
    }
    return q;
}

void problem_destroy(problem *p)
{
    mg_attn_plan_destroy(p->plan);
    mg_model_destroy(p->model);
    mg_graph_destroy((mg_graph *)p->batch.graph);
    free(p->batch.near->starts);
    free(p->batch.near->columns);
    free(p->batch.near->codes);
    free((void *)p->batch.near);
    free(p->batch.paths->starts);
    free(p->batch.paths->edges);
    free((void *)p->batch.paths);
    free((void *)p->batch.segments);
    free((void *)p->batch.ids);
    free((void *)p->batch.degrees);
    free((void *)p->batch.features);
    free((void *)p->batch.laplacian);
    free((void *)p->batch.random_walk);
    free((void *)p->batch.edge_features);
    free(p->codes);
    free(p->pair_of);
    free(p->seen);
    free(p->parameters);
    free(p->weights);
    free(p);
}

void problem_run(const problem *p, const mg_model_step *step, float *outputs, float *gradients)
{
    mg_model_pass *pass;
    int status = mg_model_pass_create(&pass, p->model, &p->batch, gradients != NULL);
    if (!status)
        status = mg_model_forward(p->model, p->parameters, pass, &p->batch, step, outputs);
    if (!status && gradients)
        status = mg_model_backward(p->model, p->parameters, gradients, pass, &p->batch, step, p->weights);
    if (status)
        fail_msg("model: %d: %s", status, mg_model_last_error());
    mg_model_pass_destroy(pass);
}
