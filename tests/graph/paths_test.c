#include "graph/graphs.h"

/* Each path leads from i to j over edges of the graph, in as many steps as the code says, the lowest predecessor each.
 */
static void check_paths(const mg_graph *graph, int hops)
{
    mg_graph_near *near;
    mg_graph_paths *paths;
    must(mg_graph_near_create(&near, graph, hops));
    must(mg_graph_paths_create(&paths, graph, near));
    int32_t *source_of = malloc((size_t)graph->edges * sizeof *source_of + 1);
    uint8_t *row = malloc((size_t)graph->nodes + 1);
    for (int64_t i = 0; i < graph->nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            source_of[e] = (int32_t)i;
    assert_int_equal(paths->pairs, near->pairs);
    for (int64_t i = 0; i < graph->nodes; i++) {
        memset(row, 255, (size_t)graph->nodes);
        for (int64_t p = near->starts[i]; p < near->starts[i + 1]; p++)
            row[near->columns[p]] = near->codes[p];
        for (int64_t p = near->starts[i]; p < near->starts[i + 1]; p++) {
            int64_t at = i;
            assert_int_equal(paths->starts[p + 1] - paths->starts[p], near->codes[p]);
            for (int64_t s = paths->starts[p]; s < paths->starts[p + 1]; s++) {
                assert_int_equal(source_of[paths->edges[s]], at);
                at = graph->columns[paths->edges[s]];
                for (int32_t lower = 0; lower < source_of[paths->edges[s]]; lower++)
                    assert_false(row[lower] == s - paths->starts[p] && has_edge(graph, lower, at));
            }
            assert_int_equal(at, near->columns[p]);
        }
    }
    assert_int_equal(paths->steps, paths->starts[paths->pairs]);
    free(source_of);
    free(row);
    mg_graph_paths_destroy(paths);
    mg_graph_near_destroy(near);
}

static void paths_are_shortest_and_lowest(void **unused)
{
    (void)unused;
    for (int directed = 0; directed < 2; directed++)
        for (int hops = 1; hops < 6; hops++) {
            mg_graph *graph = random_graph(150, 350, directed, (uint64_t)hops);
            check_paths(graph, hops);
            mg_graph_destroy(graph);
        }
    mg_graph *graphs[] = {graph_of(0, 0, NULL, NULL, 0), graph_of(3, 0, NULL, NULL, 0), path_graph(80),
                          complete_graph(20)};
    for (int g = 0; g < 4; g++) {
        check_paths(graphs[g], 253);
        mg_graph_destroy(graphs[g]);
    }
}

static void same_bytes_for_any_threads(void **unused)
{
    (void)unused;
    mg_graph *graph = random_graph(1000, 3000, 0, 9);
    mg_graph_near *near;
    mg_graph_paths *one, *many;
    must(mg_graph_near_create(&near, graph, 4));
    set_threads(1);
    must(mg_graph_paths_create(&one, graph, near));
    for (int threads = 2; threads < 5; threads++) {
        set_threads(threads);
        must(mg_graph_paths_create(&many, graph, near));
        test_same_bytes("edges", many->edges, one->edges, (size_t)one->steps * sizeof *one->edges);
        mg_graph_paths_destroy(many);
    }
    mg_graph_paths_destroy(one);
    mg_graph_near_destroy(near);
    mg_graph_destroy(graph);
}

static void distances_of_another_graph_are_refused(void **unused)
{
    (void)unused;
    mg_graph *graph = path_graph(10), *other = graph_of(10, 0, NULL, NULL, 0), *smaller = path_graph(9);
    mg_graph_near *near;
    mg_graph_paths *paths;
    must(mg_graph_near_create(&near, graph, 3));
    assert_int_equal(-EINVAL, mg_graph_paths_create(&paths, smaller, near));
    assert_string_equal(mg_graph_last_error(), "paths: near pairs of 10 nodes for a graph of 9");
    assert_int_equal(-EINVAL, mg_graph_paths_create(&paths, other, near));
    assert_non_null(strstr(mg_graph_last_error(), "are not those of this graph"));
    assert_null(paths);
    mg_graph_near_destroy(near);
    mg_graph_destroy(graph);
    mg_graph_destroy(other);
    mg_graph_destroy(smaller);
}

typedef struct fault_context {
    mg_graph *graph;
    mg_graph_near *near;
} fault_context;

static int paths_work(void *context)
{
    fault_context *c = context;
    mg_graph_paths *paths;
    int status = mg_graph_paths_create(&paths, c->graph, c->near);
    mg_graph_paths_destroy(paths);
    return status;
}

static void every_allocation_may_fail(void **unused)
{
    (void)unused;
    fault_context c = {.graph = random_graph(100, 300, 0, 2)};
    must(mg_graph_near_create(&c.near, c.graph, 3));
    assert_true(test_every_allocation_fails(mg_graph_set_memory_hook, paths_work, &c) >= 7);
    mg_graph_near_destroy(c.near);
    mg_graph_destroy(c.graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_are_shortest_and_lowest),
        cmocka_unit_test(same_bytes_for_any_threads),
        cmocka_unit_test(distances_of_another_graph_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
