#include "graph/graphs.h"

/* Diagonals of the powers of D^-1 A, as matrices. */
static double *dense_walk(const mg_graph *graph, int count)
{
    int64_t n = graph->nodes;
    double *p = calloc((size_t)(n * n), 8), *power = calloc((size_t)(n * n), 8), *next = calloc((size_t)(n * n), 8);
    double *back = calloc((size_t)(n * count), 8);
    for (int64_t i = 0; i < n; i++) {
        power[i * n + i] = 1;
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            p[i * n + graph->columns[e]] = 1. / (double)(graph->starts[i + 1] - graph->starts[i]);
    }
    for (int step = 0; step < count; step++) {
        memset(next, 0, (size_t)(n * n) * 8);
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < n; k++)
                for (int64_t j = 0; j < n; j++)
                    next[i * n + j] += power[i * n + k] * p[k * n + j];
        memcpy(power, next, (size_t)(n * n) * 8);
        for (int64_t i = 0; i < n; i++)
            back[i * count + step] = power[i * n + i];
    }
    free(p);
    free(power);
    free(next);
    return back;
}

static void check_walk(const char *what, mg_graph *graph, int count)
{
    float *back = malloc((size_t)(graph->nodes * count) * sizeof *back);
    double *expected = dense_walk(graph, count);
    must(mg_graph_random_walk(back, count, graph));
    test_near_scaled(what, back, expected, graph->nodes * count, 1e-6, 1);
    for (int64_t i = 0; i < graph->nodes * count; i++)
        if (expected[i] == 0)
            assert_true(back[i] == 0);
    free(back);
    free(expected);
    mg_graph_destroy(graph);
}

static void equals_powers_of_the_matrix(void **unused)
{
    (void)unused;
    for (int count = 1; count <= 9; count++) {
        check_walk("undirected", random_graph(70, 110, 0, (uint64_t)count), count);
        check_walk("directed", random_graph(70, 140, 1, (uint64_t)count), count);
    }
    check_walk("path", path_graph(40), 16);
    check_walk("odd cycle", cycle_graph(33), 20);
    check_walk("star", star_graph(50), 7);
    check_walk("complete", complete_graph(32), 5);
    check_walk("isolated and others", beside(graph_of(5, 1, (int64_t[]){0}, (int64_t[]){0}, 0), cycle_graph(3)), 6);
}

static void same_bytes_for_any_threads(void **unused)
{
    (void)unused;
    enum { N = 500, COUNT = 12 };
    static float one[N * COUNT], many[N * COUNT];
    mg_graph *graph = random_graph(N, 1200, 0, 4);
    set_threads(1);
    must(mg_graph_random_walk(one, COUNT, graph));
    for (int threads = 2; threads < 5; threads++) {
        set_threads(threads);
        must(mg_graph_random_walk(many, COUNT, graph));
        test_same_bytes("walks", many, one, sizeof one);
    }
    mg_graph_destroy(graph);
}

static void degrees_leave_self_loops_aside(void **unused)
{
    (void)unused;
    int32_t degrees[4];
    mg_graph *graph = graph_of(4, 5, (int64_t[]){0, 0, 0, 1, 3}, (int64_t[]){0, 1, 2, 1, 3}, 0);
    must(mg_graph_degrees(degrees, graph));
    assert_true(degrees[0] == 2 && degrees[1] == 1 && degrees[2] == 1 && degrees[3] == 0);
    mg_graph_destroy(graph);
}

static float faulty[100 * 4];
static int walk_work(void *graph) { return mg_graph_random_walk(faulty, 4, graph); }

static void bad_empty_and_faults(void **unused)
{
    (void)unused;
    mg_graph *empty = graph_of(0, 0, NULL, NULL, 0), *directed = random_graph(100, 200, 1, 6);
    must(mg_graph_random_walk(NULL, 4, empty));
    assert_int_equal(-EINVAL, mg_graph_random_walk(NULL, -3, empty));
    assert_string_equal(mg_graph_last_error(), "random walk: -3 steps");
    assert_true(test_every_allocation_fails(mg_graph_set_memory_hook, walk_work, directed) >= 3);
    mg_graph_destroy(empty);
    mg_graph_destroy(directed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_powers_of_the_matrix),
        cmocka_unit_test(same_bytes_for_any_threads),
        cmocka_unit_test(degrees_leave_self_loops_aside),
        cmocka_unit_test(bad_empty_and_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
