/* What METIS does with awkward input, row by row, and what we answer: a valid partition, counted by us, or one clear
 * line. */
#include "graph/graphs.h"

#include <signal.h>

typedef struct counted {
    int64_t cut;
    double node_balance, weight_balance;
    int64_t smallest;
} counted;

/* Counts anew from the parts. weights NULL: degree in the symmetrised graph, without self loops, + 1. */
static counted count(const mg_graph *graph, const int32_t *part_of, int32_t parts, const int64_t *weights)
{
    int64_t nodes = graph->nodes, *sizes = calloc((size_t)parts, sizeof *sizes);
    int64_t *degrees = calloc((size_t)nodes, sizeof *degrees);
    double *weight = calloc((size_t)parts, sizeof *weight), total = 0;
    counted found = {0, 0, 0, nodes};
    for (int64_t i = 0; i < nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++) {
            int64_t j = graph->columns[e], first = i < j || !has_edge(graph, j, i);
            if (i == j || !first)
                continue; /* a pair of nodes is looked at once */
            degrees[i]++;
            degrees[j]++;
            found.cut += part_of[i] != part_of[j];
        }
    for (int64_t i = 0; i < nodes; i++) {
        double own = weights ? (double)weights[i] : (double)degrees[i] + 1;
        assert_in_range(part_of[i], 0, parts - 1);
        sizes[part_of[i]]++;
        weight[part_of[i]] += own;
        total += own;
    }
    for (int32_t p = 0; p < parts; p++) {
        found.node_balance = fmax(found.node_balance, (double)sizes[p] * parts / (double)nodes);
        found.weight_balance = fmax(found.weight_balance, weight[p] * parts / total);
        found.smallest = sizes[p] < found.smallest ? sizes[p] : found.smallest;
    }
    free(sizes);
    free(degrees);
    free(weight);
    return found;
}

/* Partitions, checks the report against a count of our own, and that no part is empty. */
static mg_graph_partition_report cut_up(const mg_graph *graph, int32_t parts, const int64_t *weights)
{
    mg_graph_partition_report report;
    int32_t *part_of = malloc((size_t)graph->nodes * sizeof *part_of);
    mg_graph_partition_desc desc = {.parts = parts, .node_weights = weights, .seed = 7};
    memset(part_of, -1, (size_t)graph->nodes * sizeof *part_of);
    must(mg_graph_partition(part_of, &report, graph, &desc));
    counted found = count(graph, part_of, parts, weights);
    assert_int_equal(report.cut, found.cut);
    assert_true(fabs(report.node_balance - found.node_balance) < 1e-9);
    assert_true(fabs(report.weight_balance - found.weight_balance) < 1e-9);
    assert_true(found.smallest > 0);
    free(part_of);
    return report;
}

static void one_part(void **state)
{
    (void)state;
    mg_graph *graph = path_graph(10);
    mg_graph_partition_report report = cut_up(graph, 1, NULL);
    assert_int_equal(report.cut, 0);
    assert_true(report.node_balance == 1 && report.weight_balance == 1);
    mg_graph_destroy(graph);
}

static void directed_graph_is_symmetrised(void **state)
{
    (void)state;
    mg_graph *graph = graph_of(6, 6, (int64_t[]){0, 1, 2, 3, 4, 1}, (int64_t[]){1, 2, 3, 4, 5, 0}, 1);
    mg_graph_partition_report report = cut_up(graph, 2, NULL);
    assert_int_equal(report.mirrored, 4); /* 0 to 1 had its mirror */
    assert_int_equal(report.cut, 1);
    mg_graph_destroy(graph);
    graph = random_graph(200, 800, 1, 2);
    cut_up(graph, 5, NULL);
    mg_graph_destroy(graph);
}

static void ends_counted_from_one_are_named(void **state)
{
    (void)state;
    mg_graph *graph;
    mg_graph_desc desc = {.nodes = 3, .edges = 2, .sources = (int64_t[]){1, 2}, .targets = (int64_t[]){2, 3}};
    assert_int_equal(mg_graph_create(&graph, &desc, NULL), -EINVAL);
    assert_non_null(strstr(mg_graph_last_error(), "edge 1 is 2 to 3"));
}

static void duplicates_and_self_loops_do_not_count(void **state)
{
    (void)state;
    int64_t sources[] = {0, 0, 0, 1, 2, 2, 3, 3, 1, 1}, targets[] = {1, 1, 0, 2, 3, 3, 3, 2, 1, 0};
    mg_graph *graph = graph_of(4, 10, sources, targets, 0);
    assert_int_equal(cut_up(graph, 2, NULL).cut, 1);
    mg_graph_destroy(graph);
}

static void impossible_parts_are_refused(void **state)
{
    (void)state;
    mg_graph *graph = path_graph(3), *none = graph_of(0, 0, NULL, NULL, 0);
    int32_t part_of[3];
    for (int k = 0; k < 4; k++) {
        mg_graph_partition_desc desc = {.parts = (int32_t[]){4, 0, -1, INT32_MAX}[k]};
        assert_int_equal(mg_graph_partition(part_of, NULL, graph, &desc), -EINVAL);
    }
    assert_non_null(strstr(mg_graph_last_error(), "3 nodes"));
    assert_int_equal(mg_graph_partition(part_of, NULL, none, &(mg_graph_partition_desc){.parts = 1}), -EINVAL);
    for (int k = 0; k < 2; k++) {
        mg_graph_partition_desc desc = {.parts = 2, .imbalance = (double[]){-1, NAN}[k]};
        assert_int_equal(mg_graph_partition(part_of, NULL, graph, &desc), -EINVAL);
    }
    mg_graph_destroy(graph);
    mg_graph_destroy(none);
}

static void no_part_is_empty_however_many(void **state)
{
    (void)state;
    mg_graph *graphs[] = {path_graph(16), star_graph(17), complete_graph(16), graph_of(16, 0, NULL, NULL, 0),
                          random_graph(40, 60, 0, 5)};
    for (int k = 0; k < 5; k++) {
        for (int32_t parts = 1; parts <= graphs[k]->nodes; parts++)
            cut_up(graphs[k], parts, NULL);
        mg_graph_destroy(graphs[k]);
    }
}

static void components_are_reported(void **state)
{
    (void)state;
    mg_graph *graph = beside(path_graph(30), beside(complete_graph(20), graph_of(14, 0, NULL, NULL, 0)));
    for (int32_t parts = 2; parts < 20; parts += 3)
        assert_int_equal(cut_up(graph, parts, NULL).components, 16);
    mg_graph_destroy(graph);
}

static void no_edges(void **state)
{
    (void)state;
    mg_graph *one = graph_of(1, 0, NULL, NULL, 0), *many = graph_of(1000, 0, NULL, NULL, 0);
    assert_int_equal(cut_up(one, 1, NULL).cut, 0);
    mg_graph_partition_report report = cut_up(many, 4, NULL);
    assert_int_equal(report.cut, 0);
    assert_true(report.node_balance < 1.05);
    mg_graph_destroy(one);
    mg_graph_destroy(many);
}

static void huge_weights_are_balanced(void **state)
{
    (void)state;
    mg_graph *graph;
    must(mg_graph_generate_grid(&graph, 20, 20));
    int64_t weights[400];
    for (int64_t i = 0; i < 400; i++)
        weights[i] = INT64_C(1) << 52; /* their sum is past 2^60, in METIS's integers past 2^31 */
    mg_graph_partition_report report = cut_up(graph, 4, weights);
    assert_true(report.node_balance < 1.05 && report.weight_balance < 1.05);
    for (int64_t i = 0; i < 400; i++)
        weights[i] = i < 200 ? 100000000 : 300000000;
    assert_true(cut_up(graph, 4, weights).weight_balance < 1.1);
    mg_graph_destroy(graph);
}

static void weights_below_one_are_refused(void **state)
{
    (void)state;
    mg_graph *graph = path_graph(4);
    int32_t part_of[4];
    mg_graph_partition_desc desc = {.parts = 2, .node_weights = (int64_t[]){1, 2, 0, 1}};
    assert_int_equal(mg_graph_partition(part_of, NULL, graph, &desc), -EINVAL);
    assert_non_null(strstr(mg_graph_last_error(), "node 2 has weight 0"));
    desc.node_weights = (int64_t[]){-5, 2, 1, 1};
    assert_int_equal(mg_graph_partition(part_of, NULL, graph, &desc), -EINVAL);
    mg_graph_destroy(graph);
}

static void extreme_weights_survive(void **state)
{
    (void)state;
    mg_graph *graph;
    must(mg_graph_generate_grid(&graph, 12, 12));
    int64_t weights[144];
    for (int64_t i = 0; i < 144; i++)
        weights[i] = i == 70 ? INT64_C(1) << 60 : 1;
    cut_up(graph, 3, weights);
    for (int64_t i = 0; i < 144; i++)
        weights[i] = i % 2 ? 1 : INT64_C(1) << (i % 60);
    for (int32_t parts = 2; parts < 30; parts += 9)
        cut_up(graph, parts, weights);
    mg_graph_destroy(graph);
}

static void seeds_and_rand(void **state)
{
    (void)state;
    mg_graph *graph = random_graph(300, 900, 0, 21);
    int32_t first[300], second[300];
    srand(5);
    int expected = rand();
    srand(5);
    must(mg_graph_partition(first, NULL, graph, &(mg_graph_partition_desc){.parts = 4, .seed = 1}));
    assert_int_equal(rand(), expected);
    must(mg_graph_partition(second, NULL, graph, &(mg_graph_partition_desc){.parts = 4, .seed = 1}));
    test_same_bytes("parts", second, first, sizeof first);
    must(mg_graph_partition(second, NULL, graph, &(mg_graph_partition_desc){.parts = 4, .seed = 0}));
    assert_true(memcmp(first, second, sizeof first) != 0);
    mg_graph_destroy(graph);
}

static void signal_handlers_are_kept(void **state)
{
    (void)state;
    mg_graph *graph = random_graph(100, 300, 0, 1);
    void (*before)(int) = signal(SIGTERM, SIG_IGN);
    cut_up(graph, 3, NULL);
    assert_true(signal(SIGTERM, before) == SIG_IGN);
    mg_graph_destroy(graph);
}

static void power_law_is_balanced_both_ways(void **state)
{
    (void)state;
    mg_graph *graph;
    must(mg_graph_generate_rmat(&graph, 2000, 8000, 3));
    mg_graph_partition_report report = cut_up(graph, 8, NULL);
    assert_true(report.node_balance < 1.06);
    assert_true(report.weight_balance < 1.06);
    assert_true(report.cut < 8000);
    mg_graph_destroy(graph);
}

/* Bisection's two levels add up. */
static void balance_is_what_the_header_says(void **state)
{
    (void)state;
    mg_graph *graph;
    must(mg_graph_generate_rmat(&graph, 20000, 80000, 3));
    mg_graph_partition_report report = cut_up(graph, 4, NULL);
    assert_true(fmax(report.node_balance, report.weight_balance) < 1 + 2 * MG_GRAPH_IMBALANCE);
    mg_graph_destroy(graph);
}

static void a_grid_is_cut_well(void **state)
{
    (void)state;
    mg_graph *graph;
    must(mg_graph_generate_grid(&graph, 30, 30));
    mg_graph_partition_report report = cut_up(graph, 4, NULL);
    assert_true(report.cut <= 90); /* straight lines: 60 */
    assert_true(report.node_balance < 1.04 && report.weight_balance < 1.04);
    mg_graph_destroy(graph);
}

static void every_kind_of_graph(void **state)
{
    (void)state;
    mg_graph *graphs[] = {path_graph(100),
                          star_graph(100),
                          complete_graph(60),
                          beside(path_graph(50), cycle_graph(50)),
                          graph_of(100, 0, NULL, NULL, 0),
                          random_graph(100, 90, 1, 3),
                          bipartite_graph(10, 90)};
    for (int k = 0; k < 7; k++) {
        for (int32_t parts = 2; parts < 12; parts++)
            cut_up(graphs[k], parts, NULL);
        mg_graph_destroy(graphs[k]);
    }
}

static int partition_once(void *context)
{
    int32_t part_of[16];
    return mg_graph_partition(part_of, NULL, context, &(mg_graph_partition_desc){.parts = 13});
}

static void survives_any_allocation_failing(void **state)
{
    (void)state;
    mg_graph *graph = random_graph(16, 30, 1, 6);
    assert_true(test_every_allocation_fails(mg_graph_set_memory_hook, partition_once, graph) > 10);
    mg_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_part),
        cmocka_unit_test(directed_graph_is_symmetrised),
        cmocka_unit_test(ends_counted_from_one_are_named),
        cmocka_unit_test(duplicates_and_self_loops_do_not_count),
        cmocka_unit_test(impossible_parts_are_refused),
        cmocka_unit_test(no_part_is_empty_however_many),
        cmocka_unit_test(components_are_reported),
        cmocka_unit_test(no_edges),
        cmocka_unit_test(huge_weights_are_balanced),
        cmocka_unit_test(weights_below_one_are_refused),
        cmocka_unit_test(extreme_weights_survive),
        cmocka_unit_test(seeds_and_rand),
        cmocka_unit_test(signal_handlers_are_kept),
        cmocka_unit_test(power_law_is_balanced_both_ways),
        cmocka_unit_test(balance_is_what_the_header_says),
        cmocka_unit_test(a_grid_is_cut_well),
        cmocka_unit_test(every_kind_of_graph),
        cmocka_unit_test(survives_any_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
