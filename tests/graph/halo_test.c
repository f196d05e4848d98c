#include "graph/graphs.h"

static void make_parts(int32_t *part_of, int64_t nodes, int32_t parts, uint64_t seed)
{
    for (int64_t i = 0; i < nodes; i++)
        part_of[i] = (int32_t)(test_random_bits(seed, (uint64_t)i) % (uint64_t)parts);
}

/* needed[p][node] by going over all entries. */
static void check_halo(const mg_graph *graph, const int32_t *part_of, int32_t parts)
{
    mg_graph_halo *halo;
    int64_t n = graph->nodes, total = 0;
    must(mg_graph_halo_create(&halo, n, graph->starts, graph->columns, part_of, parts));
    char *needed = calloc((size_t)(parts * n) + 1, 1);
    for (int64_t i = 0; i < n; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            if (part_of[i] != part_of[graph->columns[e]])
                needed[part_of[i] * n + graph->columns[e]] = 1;
    for (int64_t p = 0; p < parts; p++)
        for (int64_t s = 0; s < parts; s++) {
            int64_t at = halo->starts[p * parts + s];
            for (int64_t node = 0; node < n; node++)
                if (part_of[node] == s && needed[p * n + node]) {
                    assert_true(at < halo->starts[p * parts + s + 1]);
                    assert_int_equal(halo->needs[at++], node);
                }
            assert_int_equal(at, halo->starts[p * parts + s + 1]);
            total += at - halo->starts[p * parts + s];
        }
    assert_int_equal(total, halo->starts[parts * parts]);
    free(needed);
    mg_graph_halo_destroy(halo);
}

static void equals_brute_force(void **unused)
{
    (void)unused;
    for (int32_t parts = 1; parts < 9; parts++)
        for (int directed = 0; directed < 2; directed++) {
            int32_t part_of[200];
            mg_graph *graph = random_graph(200, 500, directed, (uint64_t)parts);
            make_parts(part_of, 200, parts, 1);
            check_halo(graph, part_of, parts);
            make_parts(part_of, 200, parts == 1 ? 1 : 2, 2); /* the other parts are empty */
            check_halo(graph, part_of, parts);
            mg_graph_destroy(graph);
        }
    mg_graph *empty = graph_of(0, 0, NULL, NULL, 0);
    check_halo(empty, NULL, 3);
    mg_graph_destroy(empty);
}

static void bad_arguments_are_named(void **unused)
{
    (void)unused;
    mg_graph_halo *halo;
    mg_graph *graph = path_graph(3);
    assert_int_equal(-EINVAL, mg_graph_halo_create(&halo, 3, graph->starts, graph->columns, (int32_t[]){0, 2, 1}, 2));
    assert_string_equal(mg_graph_last_error(), "halo: node 1 is in part 2, but parts are 0 to 1");
    assert_int_equal(-EINVAL,
                     mg_graph_halo_create(&halo, 3, graph->starts, (int32_t[]){1, 0, 7, 1}, (int32_t[]){0, 1, 1}, 2));
    assert_string_equal(mg_graph_last_error(), "halo: entry 2 names node 7, but nodes are 0 to 2");
    assert_int_equal(-EINVAL, mg_graph_halo_create(&halo, 3, graph->starts, graph->columns, NULL, 0));
    assert_null(halo);
    mg_graph_destroy(graph);
}

static int halo_work(void *context)
{
    const mg_graph *graph = context;
    mg_graph_halo *halo;
    int32_t part_of[80];
    make_parts(part_of, 80, 4, 3);
    int status = mg_graph_halo_create(&halo, 80, graph->starts, graph->columns, part_of, 4);
    mg_graph_halo_destroy(halo);
    return status;
}

static void every_allocation_may_fail(void **unused)
{
    (void)unused;
    mg_graph *graph = random_graph(80, 200, 0, 1);
    assert_int_equal(test_every_allocation_fails(mg_graph_set_memory_hook, halo_work, graph), 7);
    mg_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_brute_force),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
