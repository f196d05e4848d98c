#include "graph/graphs.h"

/* Graphs of 3, 0, 1, 4 and 2 nodes as one union: a path, nothing, a lone node, a cycle, a lone pair with a self loop.
 */
static mg_dataset *five_graphs(void)
{
    static const int64_t sources[] = {0, 1, 4, 5, 6, 7, 8}, targets[] = {1, 2, 5, 6, 7, 4, 8};
    int64_t segments[] = {0, 3, 3, 4, 8, 10};
    mg_graph *graph = graph_of(10, 7, sources, targets, 0);
    mg_dataset *data;
    must(mg_dataset_create(
        &data,
        &(mg_dataset){
            .name = "five", .graph = graph, .graphs = 5, .segments = segments, .level = MG_DATASET_GRAPH, .items = 5}));
    mg_graph_destroy(graph);
    return data;
}

static mg_dataset *one_graph(mg_graph *graph)
{
    int64_t segments[] = {0, graph->nodes};
    mg_dataset *data;
    must(mg_dataset_create(
        &data, &(mg_dataset){.name = "one", .graph = graph, .graphs = 1, .segments = segments, .items = graph->nodes}));
    mg_graph_destroy(graph);
    return data;
}

/* All that a batch says, against the dataset. */
static void check_batch(const mg_dataset_batch *batch, const mg_dataset *data)
{
    const mg_graph *whole = data->graph;
    must(mg_graph_check(batch->graph));
    assert_true(batch->graph->nodes == batch->tokens && batch->graph->edges == batch->edges);
    assert_int_equal(batch->segments[batch->graphs], batch->tokens);
    for (int64_t g = 0; g < batch->graphs; g++)
        for (int64_t t = batch->segments[g]; t < batch->segments[g + 1]; t++) {
            int64_t node = batch->nodes[t], begin = batch->graph->starts[t], end = batch->graph->starts[t + 1],
                    inside = 0;
            if (node < 0) {
                assert_true(t == batch->segments[g + 1] - 1 && begin == end);
                assert_int_equal(batch->ids[t], whole->nodes + batch->items[g]);
                continue;
            }
            assert_int_equal(batch->ids[t], node);
            for (int64_t e = begin; e < end; e++) {
                int64_t entry = batch->dataset_edges[e], column = batch->graph->columns[e];
                assert_true(entry >= whole->starts[node] && entry < whole->starts[node + 1]);
                assert_int_equal(whole->columns[entry], batch->nodes[column]);
                assert_true(column >= batch->segments[g] && column < batch->segments[g + 1]);
            }
            for (int64_t u = batch->segments[g]; u < batch->segments[g + 1]; u++)
                inside += batch->nodes[u] >= 0 && has_edge(whole, node, batch->nodes[u]);
            assert_int_equal(end - begin, inside);
        }
}

static void graphs_are_packed_in_order(void **unused)
{
    (void)unused;
    static const int64_t items[] = {3, 1, 0, 4, 0, 2};
    mg_dataset *data = five_graphs();
    for (int virtual_token = 0; virtual_token < 2; virtual_token++) {
        mg_dataset_batch *batch;
        must(mg_dataset_pack(&batch, data, items, 6, virtual_token));
        check_batch(batch, data);
        assert_int_equal(batch->tokens, 4 + 0 + 3 + 2 + 3 + 1 + 6 * virtual_token);
        for (int64_t g = 0; g < 6; g++) {
            int64_t begin = data->segments[items[g]], size = data->segments[items[g] + 1] - begin;
            assert_int_equal(batch->items[g], items[g]);
            assert_int_equal(batch->segments[g + 1] - batch->segments[g], size + virtual_token);
            for (int64_t i = 0; i < size; i++)
                assert_int_equal(batch->nodes[batch->segments[g] + i], begin + i);
        }
        mg_dataset_batch_destroy(batch);
        must(mg_dataset_pack(&batch, data, items, 0, virtual_token));
        check_batch(batch, data);
        assert_int_equal(batch->tokens, 0);
        mg_dataset_batch_destroy(batch);
        must(mg_dataset_pack(&batch, data, items + 1, 1, virtual_token)); /* the empty graph */
        check_batch(batch, data);
        assert_int_equal(batch->tokens, virtual_token);
        mg_dataset_batch_destroy(batch);
    }
    mg_dataset_close(data);
}

static void clusters_are_induced(void **unused)
{
    (void)unused;
    for (int directed = 0; directed < 2; directed++) {
        mg_dataset *data = one_graph(random_graph(60, 200, directed, 3));
        int64_t all[60], shuffled[60];
        int32_t nodes[60];
        for (int64_t i = 0; i < 60; i++)
            all[i] = i;
        mg_dataset_shuffle(shuffled, all, 60, 1, 1);
        for (int64_t count = 0; count <= 60; count += 15) {
            mg_dataset_batch *batch;
            for (int64_t i = 0; i < count; i++)
                nodes[i] = (int32_t)shuffled[i];
            must(mg_dataset_pack_nodes(&batch, data, nodes, count));
            check_batch(batch, data);
            assert_true(batch->tokens == count && batch->graphs == 1 && !batch->items);
            for (int64_t i = 0; i < count; i++)
                assert_int_equal(batch->nodes[i], nodes[i]);
            mg_dataset_batch_destroy(batch);
        }
        mg_dataset_close(data);
    }
}

static int code_of(const mg_graph_near *near, int64_t i, int64_t j)
{
    int code = -1;
    for (int64_t p = near->starts[i]; p < near->starts[i + 1]; p++)
        if (near->columns[p] == j)
            code = code < 0 ? near->codes[p] : 1000;
    return code;
}

static int is_virtual(const mg_dataset_batch *batch, int64_t token) { return batch->nodes[token] < 0; }

static void check_near(const mg_dataset_batch *batch, int hops)
{
    mg_graph_near *near, *plain;
    must(mg_dataset_batch_near(&near, batch, hops));
    must(mg_graph_near_create(&plain, batch->graph, hops));
    assert_true(near->nodes == batch->tokens && near->hops == hops && near->starts[near->nodes] == near->pairs);
    for (int64_t g = 0; g < batch->graphs; g++)
        for (int64_t i = batch->segments[g]; i < batch->segments[g + 1]; i++) {
            for (int64_t j = 0; j < batch->tokens; j++) {
                int same_graph = j >= batch->segments[g] && j < batch->segments[g + 1];
                int expected = code_of(plain, i, j);
                if (same_graph && i != j && (is_virtual(batch, i) || is_virtual(batch, j)))
                    expected = hops + 2;
                assert_int_equal(code_of(near, i, j), expected);
            }
            for (int64_t p = near->starts[i] + 1; p < near->starts[i + 1]; p++)
                assert_true(near->columns[p - 1] < near->columns[p]);
        }
    mg_graph_near_destroy(near);
    mg_graph_near_destroy(plain);
}

static void virtual_tokens_see_their_graph(void **unused)
{
    (void)unused;
    static const int64_t items[] = {1, 3, 1, 0, 4, 2};
    mg_dataset *data = five_graphs();
    for (int virtual_token = 0; virtual_token < 2; virtual_token++)
        for (int64_t count = 0; count <= 6; count++)
            for (int hops = 1; hops < 4; hops++) {
                mg_dataset_batch *batch;
                must(mg_dataset_pack(&batch, data, items, count, virtual_token));
                check_near(batch, hops);
                mg_dataset_batch_destroy(batch);
            }
    mg_dataset_close(data);
}

/* Pairs with a virtual token have no path, the others have theirs. */
static void paths_pass_virtual_tokens_by(void **unused)
{
    (void)unused;
    static const int64_t items[] = {0, 3};
    mg_dataset *data = five_graphs();
    mg_dataset_batch *batch;
    mg_graph_near *near;
    mg_graph_paths *paths;
    must(mg_dataset_pack(&batch, data, items, 2, 1));
    must(mg_dataset_batch_near(&near, batch, 2));
    must(mg_graph_paths_create(&paths, batch->graph, near));
    for (int64_t p = 0; p < near->pairs; p++)
        assert_int_equal(paths->starts[p + 1] - paths->starts[p], near->codes[p] == 4 ? 0 : near->codes[p]);
    mg_graph_paths_destroy(paths);
    mg_graph_near_destroy(near);
    mg_dataset_batch_destroy(batch);
    mg_dataset_close(data);
}

static void shuffles_are_permutations(void **unused)
{
    (void)unused;
    int64_t items[100], one[100], again[100], other[100], first[10] = {0};
    for (int64_t i = 0; i < 100; i++)
        items[i] = 1000 + i;
    mg_dataset_shuffle(one, items, 100, 5, 0);
    mg_dataset_shuffle(again, items, 100, 5, 0);
    test_same_bytes("order", again, one, sizeof one);
    mg_dataset_shuffle(other, items, 100, 5, 1);
    assert_memory_not_equal(other, one, sizeof one);
    mg_dataset_shuffle(other, items, 100, 6, 0);
    assert_memory_not_equal(other, one, sizeof one);
    for (int64_t i = 0; i < 100; i++) {
        int found = 0;
        for (int64_t j = 0; j < 100; j++)
            found += one[j] == items[i];
        assert_int_equal(found, 1);
    }
    for (int64_t epoch = 0; epoch < 10000; epoch++) { /* every item comes first as often */
        mg_dataset_shuffle(one, items, 10, 1, epoch);
        first[one[0] - 1000]++;
    }
    for (int i = 0; i < 10; i++)
        assert_true(first[i] > 850 && first[i] < 1150);
    mg_dataset_shuffle(NULL, NULL, 0, 1, 1);
}

static void bad_arguments_are_named(void **unused)
{
    (void)unused;
    mg_dataset *five = five_graphs(), *one = one_graph(path_graph(4));
    mg_dataset_batch *batch;
    assert_int_equal(-EINVAL, mg_dataset_pack(&batch, five, (int64_t[]){0, 5}, 2, 0));
    assert_string_equal(mg_graph_last_error(), "batch: item 1 is graph 5, but graphs are 0 to 4");
    assert_int_equal(-EINVAL, mg_dataset_pack(&batch, five, NULL, -1, 0));
    assert_int_equal(-EINVAL, mg_dataset_pack_nodes(&batch, five, (int32_t[]){0}, 1));
    assert_string_equal(mg_graph_last_error(), "batch: clusters are cut from one graph, and this dataset has 5");
    assert_int_equal(-EINVAL, mg_dataset_pack_nodes(&batch, one, (int32_t[]){0, 4}, 2));
    assert_string_equal(mg_graph_last_error(), "batch: place 1 holds node 4, but nodes are 0 to 3");
    assert_int_equal(-EINVAL, mg_dataset_pack_nodes(&batch, one, (int32_t[]){2, 1, 2}, 3));
    assert_string_equal(mg_graph_last_error(), "batch: node 2 is there twice, at places 0 and 2");
    assert_int_equal(-EINVAL, mg_dataset_pack_nodes(&batch, one, NULL, 5));
    assert_null(batch);
    mg_dataset_close(five);
    mg_dataset_close(one);
}

static int pack_work(void *context)
{
    static const int64_t items[] = {0, 3, 4};
    mg_dataset_batch *batch;
    mg_graph_near *near = NULL;
    int status = mg_dataset_pack(&batch, context, items, 3, 1);
    if (!status)
        status = mg_dataset_batch_near(&near, batch, 2);
    mg_graph_near_destroy(near);
    mg_dataset_batch_destroy(batch);
    return status;
}

static int cluster_work(void *context)
{
    mg_dataset_batch *batch;
    int status = mg_dataset_pack_nodes(&batch, context, (int32_t[]){5, 0, 1, 2}, 4);
    mg_dataset_batch_destroy(batch);
    return status;
}

static void every_allocation_may_fail(void **unused)
{
    (void)unused;
    mg_dataset *five = five_graphs(), *one = one_graph(path_graph(9));
    assert_true(test_every_allocation_fails(mg_graph_set_memory_hook, pack_work, five) > 12);
    assert_true(test_every_allocation_fails(mg_graph_set_memory_hook, cluster_work, one) > 8);
    mg_dataset_close(five);
    mg_dataset_close(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_are_packed_in_order),     cmocka_unit_test(clusters_are_induced),
        cmocka_unit_test(virtual_tokens_see_their_graph), cmocka_unit_test(paths_pass_virtual_tokens_by),
        cmocka_unit_test(shuffles_are_permutations),      cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
