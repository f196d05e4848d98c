/* Every order is a permutation, the same one every time, and AUTO takes the one whose tiles are smallest, or at 1 hop
 * the one whose rows gather least. */
#include "graph/graphs.h"

static const mg_graph_order_kind kinds[] = {MG_GRAPH_ORDER_AUTO, MG_GRAPH_ORDER_GIVEN, MG_GRAPH_ORDER_LANDMARK,
                                            MG_GRAPH_ORDER_PARTS};

static int64_t tile_bytes(const mg_graph *graph, const int32_t *order, int hops)
{
    mg_graph *permuted;
    mg_graph_tiles *tiles;
    must(mg_graph_permute(&permuted, graph, order)); /* refuses what is not a permutation */
    must(mg_graph_tiles_create(&tiles, permuted, hops, 0, graph->nodes));
    int64_t bytes = tiles->payload_bytes;
    mg_graph_tiles_destroy(tiles);
    mg_graph_destroy(permuted);
    return bytes;
}

static void check_orders(mg_graph *graph, int hops)
{
    size_t bytes = (size_t)graph->nodes * sizeof(int32_t);
    int32_t *order = malloc(bytes + 1), *again = malloc(bytes + 1);
    for (int k = 0; k < 4; k++) {
        mg_graph_order_kind chosen = MG_GRAPH_ORDER_AUTO;
        memset(order, -1, bytes);
        set_threads(1);
        must(mg_graph_order(order, &chosen, graph, kinds[k], hops));
        assert_true(k == 0 ? chosen != MG_GRAPH_ORDER_AUTO : chosen == kinds[k]);
        tile_bytes(graph, order, hops);
        set_threads(3);
        must(mg_graph_order(again, NULL, graph, kinds[k], hops));
        test_same_bytes("order", again, order, bytes);
    }
    free(order);
    free(again);
    mg_graph_destroy(graph);
}

static void every_order_is_a_permutation(void **state)
{
    (void)state;
    mg_graph *grid, *rmat;
    must(mg_graph_generate_grid(&grid, 25, 25));
    must(mg_graph_generate_rmat(&rmat, 1000, 3000, 5));
    check_orders(grid, 2);
    check_orders(rmat, 3);
    check_orders(graph_of(0, 0, NULL, NULL, 0), 2);
    check_orders(graph_of(1, 1, (int64_t[]){0}, (int64_t[]){0}, 0), 2);
    check_orders(graph_of(700, 0, NULL, NULL, 0), 2);
    check_orders(path_graph(600), 3);
    check_orders(star_graph(600), 2);
    check_orders(complete_graph(100), 2);
    check_orders(beside(random_graph(400, 700, 0, 2), beside(path_graph(300), cycle_graph(5))), 2);
    check_orders(random_graph(500, 900, 1, 3), 2);
}

static void given_is_given(void **state)
{
    (void)state;
    mg_graph *graph = random_graph(90, 200, 0, 2);
    int32_t order[90];
    must(mg_graph_order(order, NULL, graph, MG_GRAPH_ORDER_GIVEN, 1));
    for (int32_t i = 0; i < 90; i++)
        assert_int_equal(order[i], i);
    mg_graph_destroy(graph);
}

/* A grid whose nodes were shuffled: cutting it into patches must bring neighbours together again. */
static void parts_order_a_shuffled_mesh(void **state)
{
    (void)state;
    mg_graph *grid, *graph;
    int32_t shuffle[1600], order[1600];
    must(mg_graph_generate_grid(&grid, 40, 40));
    for (int32_t i = 0; i < 1600; i++)
        shuffle[i] = (int32_t)(i * INT64_C(1009) % 1600);
    must(mg_graph_permute(&graph, grid, shuffle));
    must(mg_graph_order(order, NULL, graph, MG_GRAPH_ORDER_GIVEN, 2));
    int64_t given = tile_bytes(graph, order, 2);
    must(mg_graph_order(order, NULL, graph, MG_GRAPH_ORDER_PARTS, 2));
    assert_true(tile_bytes(graph, order, 2) < given);
    mg_graph_destroy(graph);
    mg_graph_destroy(grid);
}

/* At most 16 blocks of 512 rows: all of them are sampled, so the choice is exactly the smallest. */
static void auto_takes_the_smallest(void **state)
{
    (void)state;
    mg_graph *graph;
    int32_t *order = malloc(3000 * sizeof *order);
    int64_t bytes[4];
    must(mg_graph_generate_rmat(&graph, 3000, 9000, 1));
    for (int k = 0; k < 4; k++) {
        must(mg_graph_order(order, NULL, graph, kinds[k], 3));
        bytes[k] = tile_bytes(graph, order, 3);
    }
    for (int k = 1; k < 4; k++)
        assert_true(bytes[0] <= bytes[k]);
    assert_true(bytes[0] < bytes[1]);
    free(order);
    mg_graph_destroy(graph);
}

/* Distinct columns of windows of 256 rows. */
static int64_t gathered_rows(const mg_graph *graph, const int32_t *order)
{
    mg_graph *permuted;
    int64_t rows = 0;
    must(mg_graph_permute(&permuted, graph, order));
    for (int64_t window = 0; window < graph->nodes; window += 256)
        for (int64_t column = 0; column < graph->nodes; column++) {
            int named = 0;
            for (int64_t i = window; i < window + 256 && i < graph->nodes; i++)
                for (int64_t e = permuted->starts[i]; e < permuted->starts[i + 1]; e++)
                    named |= permuted->columns[e] == column;
            rows += named;
        }
    mg_graph_destroy(permuted);
    return rows;
}

static void lists_gather_least(void **state)
{
    (void)state;
    mg_graph *grid, *graphs[2];
    int32_t order[1100], shuffle[1024];
    must(mg_graph_generate_rmat(&graphs[0], 1100, 3000, 2)); /* whose tiles at 1 hop choose otherwise */
    must(mg_graph_generate_grid(&grid, 32, 32));
    for (int32_t i = 0; i < 1024; i++)
        shuffle[i] = (int32_t)(i * INT64_C(601) % 1024);
    must(mg_graph_permute(&graphs[1], grid, shuffle));
    for (int g = 0; g < 2; g++) {
        int64_t rows[4];
        for (int k = 0; k < 4; k++) {
            must(mg_graph_order(order, NULL, graphs[g], k ? kinds[k] : MG_GRAPH_ORDER_LISTS, 1));
            rows[k] = gathered_rows(graphs[g], order);
        }
        for (int k = 1; k < 4; k++)
            assert_true(rows[0] <= rows[k]);
        assert_true(rows[0] < rows[1]);
        mg_graph_destroy(graphs[g]);
    }
    mg_graph_destroy(grid);
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    mg_graph *graph = path_graph(5);
    int32_t order[5];
    assert_int_equal(mg_graph_order(order, NULL, graph, MG_GRAPH_ORDER_AUTO, 0), -EINVAL);
    assert_int_equal(mg_graph_order(order, NULL, graph, (mg_graph_order_kind)5, 2), -EINVAL);
    mg_graph_destroy(graph);
}

static int order_once(void *context)
{
    int32_t order[600];
    const int status = mg_graph_order(order, NULL, context, MG_GRAPH_ORDER_AUTO, 2);
    return status ? status : mg_graph_order(order, NULL, context, MG_GRAPH_ORDER_LISTS, 1);
}

static void survives_any_allocation_failing(void **state)
{
    (void)state;
    mg_graph *graph = beside(random_graph(290, 900, 1, 3), path_graph(10));
    assert_true(test_every_allocation_fails(mg_graph_set_memory_hook, order_once, graph) > 60);
    mg_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_is_a_permutation),
        cmocka_unit_test(given_is_given),
        cmocka_unit_test(parts_order_a_shuffled_mesh),
        cmocka_unit_test(auto_takes_the_smallest),
        cmocka_unit_test(lists_gather_least),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(survives_any_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
