/* One graph and one stream used by many threads at once; partitions that must wait for each other; error lines and the
 * memory hook of each thread. Labelled for the thread sanitizer. */
#include "graph/graphs.h"

#include <megagraph/graph.h>
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 3, NODES = 700, HOPS = 4 };

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* --- a stream --- */

typedef struct sharing {
    mg_graph_stream *stream;
    uint8_t *codes[THREADS]; /* [NODES][NODES] */
} sharing;

/* All blocks of rows, from a place of its own on, each in two pieces of columns; the blocks of a thread overlap those
   of the others. */
static void write_all(void *context, int thread)
{
    sharing *s = context;
    int64_t rows = 90 + 70 * thread, blocks = (NODES + rows - 1) / rows, middle = 300 + thread;
    for (int64_t b = 0; b < blocks * ROUNDS; b++) {
        int64_t q0 = (b + thread) % blocks * rows, nq = smaller(rows, NODES - q0);
        uint8_t *to = s->codes[thread] + q0 * NODES;
        must(mg_graph_stream_codes(s->stream, thread, q0, nq, 0, middle, to, NODES));
        must(mg_graph_stream_codes(s->stream, thread, q0, nq, middle, NODES - middle, to + middle, NODES));
    }
}

static void one_stream_on_many_threads(void **state)
{
    (void)state;
    mg_graph *graph = random_graph(NODES, 3 * NODES, 1, 5);
    mg_graph_stream *alone;
    uint8_t *expected = malloc(NODES * NODES);
    sharing s;
    must(mg_graph_stream_create(&alone, graph, HOPS, 1));
    must(mg_graph_stream_codes(alone, 0, 0, NODES, 0, NODES, expected, NODES));
    mg_graph_stream_destroy(alone);
    must(mg_graph_stream_create(&s.stream, graph, HOPS, THREADS));
    for (int t = 0; t < THREADS; t++)
        s.codes[t] = calloc(NODES, NODES);
    test_at_once(THREADS, write_all, &s);
    for (int t = 0; t < THREADS; t++) {
        test_same_bytes("codes of a thread", s.codes[t], expected, NODES * NODES);
        free(s.codes[t]);
    }
    mg_graph_stream_destroy(s.stream);
    mg_graph_destroy(graph);
    free(expected);
}

/* --- all that is made from a graph --- */

typedef struct products {
    mg_graph_near *near;
    mg_graph_tiles *tiles;
    mg_graph_paths *paths;
    mg_graph *permuted;
    uint8_t *dense;         /* [NODES][NODES] */
    float *walk, *spectrum; /* [NODES][COLUMNS] */
    int32_t *order, *component;
    uint64_t hash;
} products;

enum { COLUMNS = 3 };

typedef struct making {
    const mg_graph *graph;
    products made[THREADS];
} making;

static void make(products *p, const mg_graph *graph)
{
    int64_t components;
    *p = (products){.dense = malloc(NODES * NODES),
                    .walk = malloc(NODES * COLUMNS * sizeof(float)),
                    .spectrum = malloc(NODES * COLUMNS * sizeof(float)),
                    .order = malloc(NODES * sizeof(int32_t)),
                    .component = malloc(NODES * sizeof(int32_t))};
    must(mg_graph_near_create(&p->near, graph, 2));
    must(mg_graph_tiles_create(&p->tiles, graph, HOPS, 0, NODES));
    must(mg_graph_paths_create(&p->paths, graph, p->near));
    must(mg_graph_dense_codes(p->dense, NODES, graph, HOPS, 0, NODES));
    must(mg_graph_random_walk(p->walk, COLUMNS, graph));
    must(mg_graph_laplacian(p->spectrum, COLUMNS, graph));
    must(mg_graph_order(p->order, NULL, graph, MG_GRAPH_ORDER_AUTO, HOPS));
    must(mg_graph_permute(&p->permuted, graph, p->order));
    must(mg_graph_components(p->component, &components, graph));
    p->hash = mg_graph_hash(graph);
}

static void make_own(void *context, int thread)
{
    making *m = context;
    make(&m->made[thread], m->graph);
}

static void give_back(products *p)
{
    mg_graph_near_destroy(p->near);
    mg_graph_tiles_destroy(p->tiles);
    mg_graph_paths_destroy(p->paths);
    mg_graph_destroy(p->permuted);
    void *blocks[] = {p->dense, p->walk, p->spectrum, p->order, p->component};
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        free(blocks[b]);
}

static void same_lists(const char *what, const int64_t *starts, const int64_t *expected_starts, int64_t rows,
                       const int32_t *list, const int32_t *expected_list)
{
    test_same_bytes(what, starts, expected_starts, (size_t)(rows + 1) * sizeof *starts);
    test_same_bytes(what, list, expected_list, (size_t)starts[rows] * sizeof *list);
}

static void same_products(const products *p, const products *expected)
{
    const mg_graph_tiles *tiles = p->tiles;
    size_t count = (size_t)(tiles->tile_rows * tiles->tile_columns);
    same_lists("near", p->near->starts, expected->near->starts, NODES, p->near->columns, expected->near->columns);
    test_same_bytes("near codes", p->near->codes, expected->near->codes, (size_t)p->near->pairs);
    same_lists("paths", p->paths->starts, expected->paths->starts, p->near->pairs, p->paths->edges,
               expected->paths->edges);
    same_lists("permuted", p->permuted->starts, expected->permuted->starts, NODES, p->permuted->columns,
               expected->permuted->columns);
    test_same_bytes("tile classes", tiles->classes, expected->tiles->classes, count);
    test_same_bytes("tile constants", tiles->constants, expected->tiles->constants, count);
    assert_int_equal(tiles->payload_bytes, expected->tiles->payload_bytes);
    test_same_bytes("tile payload", tiles->payload, expected->tiles->payload, (size_t)tiles->payload_bytes);
    test_same_bytes("dense", p->dense, expected->dense, NODES * NODES);
    test_same_bytes("random walk", p->walk, expected->walk, NODES * COLUMNS * sizeof(float));
    test_same_bytes("laplacian", p->spectrum, expected->spectrum, NODES * COLUMNS * sizeof(float));
    test_same_bytes("order", p->order, expected->order, NODES * sizeof(int32_t));
    test_same_bytes("components", p->component, expected->component, NODES * sizeof(int32_t));
    assert_true(p->hash == expected->hash);
}

static void one_graph_on_many_threads(void **state)
{
    (void)state;
    mg_graph *graph = random_graph(NODES, NODES, 0, 6);
    making m = {.graph = graph};
    products expected;
    make(&expected, graph);
    test_at_once(THREADS, make_own, &m);
    for (int t = 0; t < THREADS; t++) {
        same_products(&m.made[t], &expected);
        give_back(&m.made[t]);
    }
    give_back(&expected);
    mg_graph_destroy(graph);
}

/* --- partitions: METIS draws from the random numbers of the process, so two at once that do not wait differ --- */

typedef struct cutting {
    const mg_graph *graph;
    int32_t parts[THREADS][ROUNDS][NODES];
} cutting;

static void cut(int32_t parts[NODES], const mg_graph *graph, int thread, int round)
{
    mg_graph_partition_report report;
    mg_graph_partition_desc desc = {.parts = 4 + thread, .seed = (uint64_t)round};
    must(mg_graph_partition(parts, &report, graph, &desc));
}

static void cut_own(void *context, int thread)
{
    cutting *c = context;
    for (int round = 0; round < ROUNDS; round++)
        cut(c->parts[thread][round], c->graph, thread, round);
}

static void partitions_wait_for_each_other(void **state)
{
    (void)state;
    mg_graph *graph = random_graph(NODES, 2 * NODES, 0, 7);
    cutting *c = calloc(1, sizeof *c);
    int32_t expected[NODES];
    c->graph = graph;
    test_at_once(THREADS, cut_own, c);
    for (int t = 0; t < THREADS; t++)
        for (int round = 0; round < ROUNDS; round++) {
            cut(expected, graph, t, round);
            test_same_bytes("parts", c->parts[t][round], expected, sizeof expected);
        }
    free(c);
    mg_graph_destroy(graph);
}

/* --- the error line --- */

static void error_says(int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    if (!strstr(mg_graph_last_error(), text))
        fail_msg("the error line is \"%s\" and does not say %s", mg_graph_last_error(), text);
}

static int create_wrong(int64_t source)
{
    mg_graph *graph;
    return mg_graph_create(&graph, &(mg_graph_desc){2, 1, (int64_t[]){source}, (int64_t[]){0}, 0}, NULL);
}

static void go_wrong(void *context, int thread)
{
    pthread_barrier_t *all_failed = context;
    assert_int_equal(create_wrong(1000 + thread), -EINVAL);
    pthread_barrier_wait(all_failed);
    error_says(1000 + thread);
}

static void error_lines_are_per_thread(void **state)
{
    (void)state;
    pthread_barrier_t all_failed;
    assert_int_equal(create_wrong(999), -EINVAL);
    assert_int_equal(pthread_barrier_init(&all_failed, NULL, THREADS), 0);
    test_at_once(THREADS, go_wrong, &all_failed);
    pthread_barrier_destroy(&all_failed);
    error_says(999);
}

/* --- the memory hook --- */

static _Atomic int64_t outstanding, obtained;

static int counting_hook(int64_t bytes)
{
    atomic_fetch_add(&outstanding, bytes);
    atomic_fetch_add(&obtained, bytes > 0);
    return 0;
}

static void make_graphs(void *context, int thread)
{
    (void)context, (void)thread;
    for (int round = 0; round < ROUNDS; round++)
        mg_graph_destroy(cycle_graph(100));
}

static void one_hook_on_many_threads(void **state)
{
    (void)state;
    mg_graph_set_memory_hook(counting_hook);
    make_graphs(NULL, 0);
    int64_t of_one = atomic_load(&obtained);
    assert_true(of_one > 0);
    test_at_once(THREADS, make_graphs, NULL);
    mg_graph_set_memory_hook(NULL);
    assert_int_equal(atomic_load(&obtained), of_one * (1 + THREADS));
    assert_int_equal(atomic_load(&outstanding), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stream_on_many_threads),     cmocka_unit_test(one_graph_on_many_threads),
        cmocka_unit_test(partitions_wait_for_each_other), cmocka_unit_test(error_lines_are_per_thread),
        cmocka_unit_test(one_hook_on_many_threads),
    };
    return cmocka_run_group_tests_name("graphs from many threads", tests, NULL, NULL);
}
