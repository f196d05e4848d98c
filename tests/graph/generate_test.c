#include "graph/graphs.h"

static void count_degrees(double *inside, double *across, const mg_graph *graph, int blocks)
{
    *inside = *across = 0;
    for (int64_t i = 0; i < graph->nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            if (i * blocks / graph->nodes == graph->columns[e] * blocks / graph->nodes)
                *inside += 1. / (double)graph->nodes;
            else
                *across += 1. / (double)graph->nodes;
}

static void sbm_has_its_degrees(void **unused)
{
    (void)unused;
    static const struct {
        int64_t nodes;
        int blocks;
        double inside, across;
    } cases[] = {{20000, 5, 12, 3}, {20001, 7, 0, 8}, {9999, 100, 20, 0}, {5000, 1, 6, 0}, {3000, 3000, 0, 4}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        mg_graph *graph;
        double inside, across;
        must(mg_graph_generate_sbm(&graph, cases[c].nodes, cases[c].blocks, cases[c].inside, cases[c].across, c));
        must(mg_graph_check(graph));
        count_degrees(&inside, &across, graph, cases[c].blocks);
        double error =
            6 * sqrt(2 / (double)cases[c].nodes); /* six deviations of a mean of Poisson-like degrees, by sqrt degree */
        assert_true(fabs(inside - cases[c].inside) <= error * sqrt(cases[c].inside));
        assert_true(fabs(across - cases[c].across) <= error * sqrt(cases[c].across));
        mg_graph_destroy(graph);
    }
}

static void sbm_full_blocks_are_cliques(void **unused)
{
    (void)unused;
    mg_graph *graph;
    must(mg_graph_generate_sbm(&graph, 30, 3, 9, 20, 1));
    assert_int_equal(graph->edges, 30 * 29);
    mg_graph_destroy(graph);
    must(mg_graph_generate_sbm(&graph, 30, 3, 9, 0, 1));
    assert_int_equal(graph->edges, 30 * 9);
    mg_graph_destroy(graph);
}

static void rmat_has_its_edges_and_hubs(void **unused)
{
    (void)unused;
    mg_graph *graph;
    int32_t degrees[3000], largest = 0;
    must(mg_graph_generate_rmat(&graph, 3000, 24000, 5));
    must(mg_graph_check(graph));
    assert_int_equal(graph->nodes, 3000);
    assert_int_equal(graph->edges, 48000);
    must(mg_graph_degrees(degrees, graph));
    for (int i = 0; i < 3000; i++) {
        assert_false(has_edge(graph, i, i));
        largest = degrees[i] > largest ? degrees[i] : largest;
    }
    assert_true(largest > 10 * 16); /* the mean is 16 */
    mg_graph_destroy(graph);
}

static void grid_has_its_edges(void **unused)
{
    (void)unused;
    mg_graph *graph;
    must(mg_graph_generate_grid(&graph, 4, 7));
    assert_int_equal(graph->nodes, 28);
    assert_int_equal(graph->edges, 2 * (4 * 6 + 3 * 7));
    for (int64_t r = 0; r < 4; r++)
        for (int64_t c = 0; c < 7; c++) {
            assert_int_equal(has_edge(graph, r * 7 + c, r * 7 + c + 1), c < 6);
            assert_int_equal(r < 3 && has_edge(graph, r * 7 + c, r * 7 + c + 7), r < 3);
        }
    mg_graph_destroy(graph);
    must(mg_graph_generate_grid(&graph, 0, 7));
    assert_int_equal(graph->nodes, 0);
    mg_graph_destroy(graph);
    must(mg_graph_generate_grid(&graph, 3, 1));
    assert_int_equal(graph->edges, 4);
    mg_graph_destroy(graph);
}

static void seeds_decide(void **unused)
{
    (void)unused;
    mg_graph *a, *b, *c;
    must(mg_graph_generate_sbm(&a, 500, 4, 6, 2, 7));
    must(mg_graph_generate_sbm(&b, 500, 4, 6, 2, 7));
    must(mg_graph_generate_sbm(&c, 500, 4, 6, 2, 8));
    assert_true(mg_graph_hash(a) == mg_graph_hash(b) && mg_graph_hash(a) != mg_graph_hash(c));
    mg_graph_destroy(a);
    mg_graph_destroy(b);
    mg_graph_destroy(c);
    must(mg_graph_generate_rmat(&a, 500, 900, 7));
    must(mg_graph_generate_rmat(&b, 500, 900, 7));
    must(mg_graph_generate_rmat(&c, 500, 900, 8));
    assert_true(mg_graph_hash(a) == mg_graph_hash(b) && mg_graph_hash(a) != mg_graph_hash(c));
    mg_graph_destroy(a);
    mg_graph_destroy(b);
    mg_graph_destroy(c);
}

static void refused(const char *line, int status)
{
    assert_int_equal(-EINVAL, status);
    assert_string_equal(mg_graph_last_error(), line);
}

static void bad_arguments_are_named(void **unused)
{
    (void)unused;
    mg_graph *graph;
    refused("generate: 0 blocks of 10 nodes; every block has a node", mg_graph_generate_sbm(&graph, 10, 0, 1, 1, 0));
    refused("generate: 11 blocks of 10 nodes; every block has a node", mg_graph_generate_sbm(&graph, 10, 11, 1, 1, 0));
    refused("generate: a mean degree of 5 inside blocks of 5 nodes; it is 0 to 4",
            mg_graph_generate_sbm(&graph, 10, 2, 5, 1, 0));
    refused("generate: a mean degree of 6 to other blocks; it is 0 to 5",
            mg_graph_generate_sbm(&graph, 10, 2, 1, 6, 0));
    refused("generate: a mean degree of nan to other blocks; it is 0 to 5",
            mg_graph_generate_sbm(&graph, 10, 2, 1, NAN, 0));
    refused("generate: -1 nodes; a graph has 0 to 2147483647 nodes", mg_graph_generate_rmat(&graph, -1, 0, 0));
    refused("generate: 46 edges; 10 nodes have 0 to 45", mg_graph_generate_rmat(&graph, 10, 46, 0));
    refused("generate: 4950 distinct edges of 100 nodes: R-MAT repeats itself before that; take fewer",
            mg_graph_generate_rmat(&graph, 100, 4950, 0));
    refused("generate: a grid of 65536 x 65536; a graph has at most 2147483647 nodes",
            mg_graph_generate_grid(&graph, 65536, 65536));
    assert_null(graph);
}

/* --- datasets --- */

static void sbm_dataset(void **unused)
{
    (void)unused;
    mg_dataset *data;
    int64_t sizes[4] = {0};
    must(mg_dataset_generate_sbm(&data, 1000, 4, 8, 2, 16, 0.5, 3));
    assert_true(data->items == 1000 && data->classes == 4 && data->feature_count == 16 && data->splits == 1);
    for (int64_t i = 0; i < 1000; i++) {
        assert_int_equal(data->labels[i], i / 250);
        sizes[data->split[i]]++;
    }
    assert_true(sizes[MG_DATASET_TRAIN] == 600 && sizes[MG_DATASET_VALIDATION] == 200 && sizes[MG_DATASET_TEST] == 200);
    double sums[4][16] = {{0}}, squares = 0; /* centres are +-1, noise 0.5 around them */
    for (int64_t i = 0; i < 1000; i++)
        for (int f = 0; f < 16; f++)
            sums[i / 250][f] += data->features[i * 16 + f] / 250;
    for (int64_t i = 0; i < 1000; i++)
        for (int f = 0; f < 16; f++)
            squares += pow(data->features[i * 16 + f] - sums[i / 250][f], 2) / 16000;
    for (int k = 0; k < 64; k++)
        assert_true(fabs(fabs(sums[k / 16][k % 16]) - 1) < 0.2);
    assert_true(fabs(sqrt(squares) - 0.5) < 0.02);
    assert_non_null(strstr(data->story, "1000 nodes in 4 blocks"));
    mg_dataset_close(data);
    assert_int_equal(-EINVAL, mg_dataset_generate_sbm(&data, 1000, 4, 8, 2, 16, -1, 3));
    assert_int_equal(-EINVAL, mg_dataset_generate_sbm(&data, 1000, 4, 8, 2, -1, 1, 3));
    must(mg_dataset_generate_sbm(&data, 50, 2, 3, 1, 0, 0, 3));
    assert_null(data->features);
    mg_dataset_close(data);
}

/* A cycle has all degrees 2; a path two ends and no fork; a tree a fork; all are connected. */
static void graphs_dataset(void **unused)
{
    (void)unused;
    mg_dataset *data;
    must(mg_dataset_generate_graphs(&data, 90, 12, 3));
    assert_true(data->graphs == 90 && data->items == 90 && data->classes == 3 && data->level == MG_DATASET_GRAPH);
    int64_t components, total = data->graph->nodes;
    int32_t *component = malloc((size_t)total * sizeof *component);
    must(mg_graph_components(component, &components, data->graph));
    assert_int_equal(components, 90);
    for (int64_t g = 0; g < 90; g++) {
        int ends = 0, forks = 0;
        for (int64_t i = data->segments[g]; i < data->segments[g + 1]; i++) {
            ends += data->features[i] == 1;
            forks += data->features[i] > 2;
        }
        int label = forks ? 2 : ends ? 1 : 0;
        assert_int_equal(data->labels[g], label);
        assert_string_equal(data->class_names[label], label == 0 ? "cycle" : label == 1 ? "path" : "tree");
        assert_int_equal(ends == 2 && !forks, label == 1);
        assert_int_equal(data->segments[g + 1] - data->segments[g],
                         data->segments[g / 3 * 3 + 1] - data->segments[g / 3 * 3]);
    }
    assert_true(labs((long)(total - 90 * 12)) < 90 * 3);
    free(component);
    mg_dataset_close(data);
    assert_int_equal(-EINVAL, mg_dataset_generate_graphs(&data, 2, 12, 3));
    assert_int_equal(-EINVAL, mg_dataset_generate_graphs(&data, 9, 3, 3));
}

static int generate_work(void *kind)
{
    mg_graph *graph = NULL;
    mg_dataset *data = NULL;
    int status = 0;
    if (*(int *)kind == 0)
        status = mg_graph_generate_sbm(&graph, 100, 4, 6, 2, 7);
    else if (*(int *)kind == 1)
        status = mg_graph_generate_rmat(&graph, 100, 300, 7);
    else if (*(int *)kind == 2)
        status = mg_graph_generate_grid(&graph, 9, 9);
    else if (*(int *)kind == 3)
        status = mg_dataset_generate_sbm(&data, 60, 3, 4, 1, 4, 0.5, 1);
    else
        status = mg_dataset_generate_graphs(&data, 6, 5, 1);
    mg_graph_destroy(graph);
    mg_dataset_close(data);
    return status;
}

static void every_allocation_may_fail(void **unused)
{
    (void)unused;
    for (int kind = 0; kind < 5; kind++)
        assert_true(test_every_allocation_fails(mg_graph_set_memory_hook, generate_work, &kind) > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sbm_has_its_degrees),
        cmocka_unit_test(sbm_full_blocks_are_cliques),
        cmocka_unit_test(rmat_has_its_edges_and_hubs),
        cmocka_unit_test(grid_has_its_edges),
        cmocka_unit_test(seeds_decide),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(sbm_dataset),
        cmocka_unit_test(graphs_dataset),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
