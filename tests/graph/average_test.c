#include "graph/graphs.h"

#include <math.h>

/* The definition, with T as a matrix. */
static double *dense_average(const float *features, int columns, const mg_graph *graph, int hops, double own)
{
    int64_t n = graph->nodes;
    double *t = calloc((size_t)(n * n), 8), *now = calloc((size_t)(n * columns), 8), *next = calloc((size_t)(n * columns), 8);
    double *sum = calloc((size_t)(n * columns), 8), *degree = calloc((size_t)n, 8);
    for (int64_t i = 0; i < n; i++) {
        t[i * n + i] = degree[i] = 1;
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            if (graph->columns[e] != i)
                degree[i] += t[i * n + graph->columns[e]] = 1;
    }
    for (int64_t k = 0; k < n * columns; k++)
        sum[k] = own * (now[k] = (double)features[k]);
    for (int hop = 0; hop < hops; hop++) {
        for (int64_t i = 0; i < n; i++)
            for (int c = 0; c < columns; c++) {
                double value = 0;
                for (int64_t j = 0; j < n; j++)
                    value += t[i * n + j] / sqrt(degree[i] * degree[j]) * now[j * columns + c];
                next[i * columns + c] = value;
                sum[i * columns + c] += (1 - own) / hops * value;
            }
        memcpy(now, next, (size_t)(n * columns) * 8);
    }
    free(t);
    free(now);
    free(next);
    free(degree);
    return sum;
}

static void check_average(const char *what, mg_graph *graph, int columns, int hops, double own)
{
    int64_t count = graph->nodes * columns;
    float *features = malloc((size_t)count * 4), *averages = malloc((size_t)count * 4);
    for (int64_t k = 0; k < count; k++)
        features[k] = (float)((k * 37 + k / 11) % 101) / 50 - 1;
    must(mg_graph_average(averages, features, columns, graph, hops, own));
    double *expected = dense_average(features, columns, graph, hops, own);
    test_near_scaled(what, averages, expected, count, 1e-6, 1);
    free(features);
    free(averages);
    free(expected);
    mg_graph_destroy(graph);
}

static void equals_powers_of_the_matrix(void **unused)
{
    (void)unused;
    check_average("one column", random_graph(60, 100, 0, 1), 1, 3, 0.1);
    check_average("a slab and a bit", random_graph(70, 200, 0, 2), 67, 8, 0.05);
    check_average("two slabs, directed", random_graph(50, 120, 1, 3), 128, 2, 0);
    check_average("own alone", path_graph(30), 5, 4, 1);
    check_average("star", star_graph(40), 3, 5, 0.5);
    check_average("self loops", graph_of(4, 5, (int64_t[]){0, 0, 0, 1, 3}, (int64_t[]){0, 1, 2, 1, 3}, 0), 2, 3, 0.1);
    check_average("isolated", graph_of(5, 1, (int64_t[]){0}, (int64_t[]){1}, 0), 2, 6, 0.1);
    check_average("several tasks", random_graph(600, 900, 0, 5), 9, 4, 0.1);
}

static void same_bytes_for_any_threads(void **unused)
{
    (void)unused;
    enum { N = 900, COLUMNS = 70 };
    static float features[N * COLUMNS], one[N * COLUMNS], many[N * COLUMNS];
    mg_graph *graph = random_graph(N, 3000, 0, 4);
    for (int k = 0; k < N * COLUMNS; k++)
        features[k] = (float)(k % 97) / 7;
    set_threads(1);
    must(mg_graph_average(one, features, COLUMNS, graph, 5, 0.1));
    for (int threads = 2; threads < 5; threads++) {
        set_threads(threads);
        must(mg_graph_average(many, features, COLUMNS, graph, 5, 0.1));
        test_same_bytes("averages", many, one, sizeof one);
    }
    mg_graph_destroy(graph);
}

static float from[100 * 4], to[100 * 4];
static int average_work(void *graph) { return mg_graph_average(to, from, 4, graph, 3, 0.1); }

static void bad_empty_and_faults(void **unused)
{
    (void)unused;
    mg_graph *empty = graph_of(0, 0, NULL, NULL, 0), *graph = random_graph(100, 200, 0, 6);
    must(mg_graph_average(NULL, NULL, 4, empty, 2, 0.1));
    must(mg_graph_average(NULL, NULL, 0, graph, 2, 0.1));
    assert_int_equal(-EINVAL, mg_graph_average(to, from, 4, graph, 0, 0.1));
    assert_int_equal(-EINVAL, mg_graph_average(to, from, 4, graph, 2, (double)NAN));
    assert_string_equal(mg_graph_last_error(),
                        "averages over 2 hops of 4 columns with a share of nan: at least 1 hop, a share in 0..1");
    assert_true(test_every_allocation_fails(mg_graph_set_memory_hook, average_work, graph) >= 2);
    mg_graph_destroy(empty);
    mg_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_powers_of_the_matrix),
        cmocka_unit_test(same_bytes_for_any_threads),
        cmocka_unit_test(bad_empty_and_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
