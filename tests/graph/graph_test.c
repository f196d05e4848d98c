/* CSR from edge lists, checks, subgraphs, components. */
#include "graph/graphs.h"

static void assert_row(const mg_graph *graph, int64_t row, const int32_t *columns, int64_t count)
{
    assert_int_equal(graph->starts[row + 1] - graph->starts[row], count);
    for (int64_t k = 0; k < count; k++)
        assert_int_equal(graph->columns[graph->starts[row] + k], columns[k]);
}

#define assert_row_is(graph, row, ...)                                                                                 \
    assert_row(graph, row, (int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void edges_become_rows(void **state)
{
    (void)state;
    int64_t sources[] = {0, 1, 1, 3, 3, 2, 1}, targets[] = {1, 0, 2, 3, 1, 1, 2}, *edge_of;
    mg_graph_desc desc = {.nodes = 6, .edges = 7, .sources = sources, .targets = targets};
    mg_graph_report report;
    mg_graph *graph;
    must(mg_graph_create_with_edges(&graph, &edge_of, &desc, &report));
    must(mg_graph_check(graph));
    assert_int_equal(graph->edges, 7);
    assert_row_is(graph, 0, 1);
    assert_row_is(graph, 1, 0, 2, 3);
    assert_row_is(graph, 2, 1);
    assert_row_is(graph, 3, 1, 3);
    assert_row(graph, 5, NULL, 0);
    int64_t expected[] = {0, 1, 2, 4, 5, 4, 3}; /* 1 to 3 is the mirror of edge 4 */
    test_same_bytes("edge_of", edge_of, expected, sizeof expected);
    assert_int_equal(report.mirrored, 1);
    assert_int_equal(report.duplicates, 1);
    assert_int_equal(report.self_loops, 1);
    assert_int_equal(report.isolated, 2);
    assert_int_equal(report.largest_degree, 3);
    mg_graph_free(edge_of);
    mg_graph_destroy(graph);
    desc.directed = 1;
    must(mg_graph_create(&graph, &desc, &report));
    assert_int_equal(graph->edges, 6);
    assert_row_is(graph, 1, 0, 2);
    assert_int_equal(report.mirrored, 0);
    assert_int_equal(report.duplicates, 1);
    mg_graph_destroy(graph);
}

static void wrong_descriptions_are_refused(void **state)
{
    (void)state;
    int64_t ends[] = {0, 1, -1}, fine[] = {0, 0, 0};
    mg_graph *graph;
    mg_graph_desc wrong[] = {{.nodes = -1},
                             {.nodes = (int64_t)INT32_MAX + 1},
                             {.nodes = 2, .edges = -1},
                             {.nodes = 2, .edges = INT64_MAX, .sources = ends, .targets = ends},
                             {.nodes = 2, .edges = 1},
                             {.nodes = 1, .edges = 2, .sources = fine, .targets = ends},
                             {.nodes = 2, .edges = 3, .sources = ends, .targets = fine}};
    for (int k = 0; k < 7; k++) {
        assert_int_equal(mg_graph_create(&graph, &wrong[k], NULL), -EINVAL);
        assert_null(graph);
    }
    assert_non_null(strstr(mg_graph_last_error(), "edge 2 is -1 to 0"));
}

static void check_names_the_row(void **state)
{
    (void)state;
    int64_t starts[] = {0, 2, 2, 3};
    int32_t columns[] = {1, 2, 0};
    mg_graph graph = {3, 3, starts, columns};
    must(mg_graph_check(&graph));
    columns[2] = 3;
    assert_int_equal(mg_graph_check(&graph), -EINVAL);
    assert_non_null(strstr(mg_graph_last_error(), "row 2 names node 3"));
    columns[2] = -1;
    assert_int_equal(mg_graph_check(&graph), -EINVAL);
    columns[2] = 0;
    columns[1] = 1;
    assert_int_equal(mg_graph_check(&graph), -EINVAL);
    assert_non_null(strstr(mg_graph_last_error(), "row 0 has node 1 after node 1"));
    columns[1] = 2;
    for (int k = 0; k < 4; k++) {
        int64_t kept = starts[k];
        starts[k] = k == 3 ? 2 : 7;
        assert_int_equal(mg_graph_check(&graph), -EINVAL);
        starts[k] = kept;
    }
    starts[1] = -1;
    assert_int_equal(mg_graph_check(&graph), -EINVAL);
    assert_non_null(strstr(mg_graph_last_error(), "row 0"));
}

static void permuted_graph_has_the_same_edges(void **state)
{
    (void)state;
    for (int directed = 0; directed < 2; directed++) {
        mg_graph *graph = random_graph(60, 300, directed, 4), *permuted;
        int32_t order[60];
        for (int32_t i = 0; i < 60; i++)
            order[i] = (i * 7 + 3) % 60;
        must(mg_graph_permute(&permuted, graph, order));
        must(mg_graph_check(permuted));
        assert_int_equal(permuted->edges, graph->edges);
        for (int64_t p = 0; p < 60; p++)
            for (int64_t q = 0; q < 60; q++)
                assert_int_equal(has_edge(permuted, p, q), has_edge(graph, order[p], order[q]));
        mg_graph_destroy(permuted);
        order[5] = order[6];
        assert_int_equal(mg_graph_permute(&permuted, graph, order), -EINVAL);
        order[5] = 60;
        assert_int_equal(mg_graph_permute(&permuted, graph, order), -EINVAL);
        mg_graph_destroy(graph);
    }
}

static void induced_graph_keeps_the_order_of_its_nodes(void **state)
{
    (void)state;
    mg_graph *graph = random_graph(50, 250, 1, 8), *induced;
    int32_t nodes[] = {40, 3, 17, 9, 8, 22, 0};
    must(mg_graph_induce(&induced, graph, nodes, 7));
    must(mg_graph_check(induced));
    for (int64_t p = 0; p < 7; p++)
        for (int64_t q = 0; q < 7; q++)
            assert_int_equal(has_edge(induced, p, q), has_edge(graph, nodes[p], nodes[q]));
    mg_graph_destroy(induced);
    must(mg_graph_induce(&induced, graph, nodes, 0));
    assert_int_equal(induced->nodes, 0);
    mg_graph_destroy(induced);
    nodes[3] = 40;
    assert_int_equal(mg_graph_induce(&induced, graph, nodes, 7), -EINVAL);
    assert_non_null(strstr(mg_graph_last_error(), "node 40 is in the list twice, at places 0 and 3"));
    assert_int_equal(mg_graph_induce(&induced, graph, nodes, 51), -EINVAL);
    mg_graph_destroy(graph);
}

static void components_are_numbered_by_size(void **state)
{
    (void)state;
    /* 5 - 3, 0 alone, 1 - 2 - 6 (2 to 1 and 2 to 6: joined against the edges' directions), 4 - 7 */
    mg_graph *graph = graph_of(8, 4, (int64_t[]){5, 2, 2, 7}, (int64_t[]){3, 1, 6, 4}, 1);
    int32_t component[8], expected[] = {3, 0, 0, 1, 2, 1, 0, 2};
    int64_t count;
    must(mg_graph_components(component, &count, graph));
    assert_int_equal(count, 4);
    test_same_bytes("components", component, expected, sizeof expected);
    mg_graph_destroy(graph);
    graph = graph_of(0, 0, NULL, NULL, 0);
    must(mg_graph_components(component, &count, graph));
    assert_int_equal(count, 0);
    mg_graph_destroy(graph);
}

static void hash_sees_every_part(void **state)
{
    (void)state;
    mg_graph *graph = random_graph(20, 40, 0, 1), *same = random_graph(20, 40, 0, 1);
    uint64_t hash = mg_graph_hash(graph);
    assert_true(hash == mg_graph_hash(same));
    same->columns[3] ^= 1;
    assert_true(hash != mg_graph_hash(same));
    same->columns[3] ^= 1;
    same->starts[4]++;
    assert_true(hash != mg_graph_hash(same));
    mg_graph_destroy(graph);
    mg_graph_destroy(same);
}

static int whole_life(void *context)
{
    (void)context;
    mg_graph *graph, *other = NULL;
    int64_t *edge_of, count, sources[] = {0, 1, 2, 3}, targets[] = {1, 2, 0, 3};
    int32_t order[] = {3, 1, 2, 0, 4}, component[5];
    mg_graph_desc desc = {.nodes = 5, .edges = 4, .sources = sources, .targets = targets};
    int status = mg_graph_create_with_edges(&graph, &edge_of, &desc, NULL);
    if (status)
        return status;
    status = mg_graph_permute(&other, graph, order);
    if (!status)
        status = mg_graph_components(component, &count, graph);
    mg_graph_free(edge_of);
    mg_graph_destroy(other);
    mg_graph_destroy(graph);
    return status;
}

static void survives_any_allocation_failing(void **state)
{
    (void)state;
    assert_true(test_every_allocation_fails(mg_graph_set_memory_hook, whole_life, NULL) > 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_become_rows),
        cmocka_unit_test(wrong_descriptions_are_refused),
        cmocka_unit_test(check_names_the_row),
        cmocka_unit_test(permuted_graph_has_the_same_edges),
        cmocka_unit_test(induced_graph_keeps_the_order_of_its_nodes),
        cmocka_unit_test(components_are_numbered_by_size),
        cmocka_unit_test(hash_sees_every_part),
        cmocka_unit_test(survives_any_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
