/* The four forms of distances against one queue per node, on every kind of graph, by every backend. */
#include "graph/graphs.h"

typedef struct named_graph {
    const char *name;
    mg_graph *graph;
} named_graph;

enum { MOST_SHAPES = 24 };

static int64_t list_shapes(named_graph *shapes)
{
    int64_t n = 0;
    mg_graph *grid, *rmat;
    must(mg_graph_generate_grid(&grid, 17, 31));
    must(mg_graph_generate_rmat(&rmat, 700, 3000, 5));
    shapes[n++] = (named_graph){"no nodes", graph_of(0, 0, NULL, NULL, 0)};
    shapes[n++] = (named_graph){"one node", graph_of(1, 0, NULL, NULL, 0)};
    shapes[n++] = (named_graph){"one node with a loop", graph_of(1, 1, (int64_t[]){0}, (int64_t[]){0}, 0)};
    shapes[n++] = (named_graph){"isolated", graph_of(520, 0, NULL, NULL, 0)};
    shapes[n++] = (named_graph){"path of 65", path_graph(65)};
    shapes[n++] = (named_graph){"path of 600", path_graph(600)};
    shapes[n++] = (named_graph){"star", star_graph(513)};
    shapes[n++] = (named_graph){"complete", complete_graph(130)};
    shapes[n++] = (named_graph){"grid", grid};
    shapes[n++] = (named_graph){"power law", rmat};
    shapes[n++] = (named_graph){"two components", beside(path_graph(100), random_graph(450, 900, 0, 3))};
    shapes[n++] =
        (named_graph){"three components", beside(cycle_graph(64), beside(star_graph(64), complete_graph(64)))};
    shapes[n++] = (named_graph){"random 511", random_graph(511, 700, 0, 11)};
    shapes[n++] = (named_graph){"random 512", random_graph(512, 1500, 0, 12)};
    shapes[n++] = (named_graph){"random 513", random_graph(513, 600, 0, 13)};
    shapes[n++] = (named_graph){"dense random", random_graph(200, 4000, 0, 14)};
    shapes[n++] = (named_graph){"random 1100", random_graph(1100, 1300, 0, 15)};
    shapes[n++] = (named_graph){"directed", random_graph(600, 1400, 1, 16)};
    shapes[n++] = (named_graph){"directed dense", random_graph(130, 3000, 1, 17)};
    shapes[n++] = (named_graph){"directed path", graph_of(4, 3, (int64_t[]){3, 1, 0}, (int64_t[]){1, 0, 2}, 1)};
    return n;
}

static void destroy_shapes(named_graph *shapes, int64_t count)
{
    for (int64_t n = 0; n < count; n++)
        mg_graph_destroy(shapes[n].graph);
}

/* Codes by a queue per node. */
static uint8_t *reference_codes(const mg_graph *graph, int hops)
{
    int64_t nodes = graph->nodes, *queue = calloc((size_t)nodes + 1, sizeof *queue);
    uint8_t *codes = malloc((size_t)(nodes * nodes) + 1);
    memset(codes, hops + 1, (size_t)(nodes * nodes));
    for (int64_t i = 0; i < nodes; i++) {
        uint8_t *row = codes + i * nodes;
        int64_t head = 0, tail = 1;
        queue[0] = i;
        row[i] = 0;
        while (head < tail) {
            int64_t node = queue[head++];
            for (int64_t e = graph->starts[node]; row[node] < hops && e < graph->starts[node + 1]; e++) {
                int64_t to = graph->columns[e];
                if (row[to] == hops + 1) {
                    row[to] = (uint8_t)(row[node] + 1);
                    queue[tail++] = to;
                }
            }
        }
    }
    free(queue);
    return codes;
}

static void check_dense(const char *name, const mg_graph *graph, int hops, const uint8_t *expected)
{
    int64_t nodes = graph->nodes, begin = nodes / 3, end = nodes - nodes / 5, stride = nodes + 7;
    uint8_t *codes = malloc((size_t)(nodes * stride) + 1);
    memset(codes, 0xee, (size_t)(nodes * stride));
    must(mg_graph_dense_codes(codes, nodes, graph, hops, 0, nodes));
    test_same_bytes(name, codes, expected, (size_t)(nodes * nodes));
    memset(codes, 0xee, (size_t)(nodes * stride));
    must(mg_graph_dense_codes(codes, stride, graph, hops, begin, end));
    for (int64_t i = begin; i < end; i++) {
        test_same_bytes(name, codes + (i - begin) * stride, expected + i * nodes, (size_t)nodes);
        for (int64_t j = nodes; j < stride; j++)
            assert_int_equal(codes[(i - begin) * stride + j], 0xee);
    }
    free(codes);
}

/* Some rows alone are those rows of the whole. */
static void check_near_rows(const mg_graph_near *whole, const mg_graph *graph, int64_t begin, int64_t end)
{
    mg_graph_near *near;
    must(mg_graph_near_create_rows(&near, graph, whole->hops, begin, end));
    assert_int_equal(near->nodes, end - begin);
    for (int64_t i = begin; i <= end; i++)
        assert_int_equal(near->starts[i - begin], whole->starts[i] - whole->starts[begin]);
    assert_int_equal(near->pairs, whole->starts[end] - whole->starts[begin]);
    test_same_bytes("columns", near->columns, whole->columns + whole->starts[begin],
                    (size_t)near->pairs * sizeof(int32_t));
    test_same_bytes("codes", near->codes, whole->codes + whole->starts[begin], (size_t)near->pairs);
    mg_graph_near_destroy(near);
}

static void check_near(const char *name, const mg_graph *graph, int hops, const uint8_t *expected)
{
    mg_graph_near *near;
    must(mg_graph_near_create(&near, graph, hops));
    assert_int_equal(near->nodes, graph->nodes);
    assert_int_equal(near->hops, hops);
    int64_t pair = 0;
    for (int64_t i = 0; i < graph->nodes; i++) {
        assert_int_equal(near->starts[i], pair);
        for (int64_t j = 0; j < graph->nodes; j++) {
            int code = expected[i * graph->nodes + j];
            if (code > hops)
                continue;
            if (pair >= near->pairs || near->columns[pair] != j || near->codes[pair] != code)
                fail_msg("%s, %d hops: near pair %lld should be (%lld, %lld) with code %d", name, hops, (long long)pair,
                         (long long)i, (long long)j, code);
            pair++;
        }
    }
    assert_int_equal(near->starts[graph->nodes], pair);
    assert_int_equal(near->pairs, pair);
    check_near_rows(near, graph, graph->nodes / 3, graph->nodes - graph->nodes / 4);
    check_near_rows(near, graph, graph->nodes / 2, graph->nodes / 2);
    mg_graph_near_destroy(near);
}

static void decode_tile(uint8_t *codes, const mg_graph_tiles *tiles, int64_t t)
{
    const uint8_t *payload = tiles->payload + tiles->offsets[t];
    memset(codes, tiles->constants[t], 64 * 64);
    if (tiles->classes[t] == MG_GRAPH_TILE_PATCH) {
        const uint16_t *words = (const uint16_t *)payload;
        for (int k = 0; k < words[0]; k++)
            codes[words[1 + k]] = payload[2 + 2 * words[0] + k];
    } else if (tiles->classes[t] == MG_GRAPH_TILE_PLANES) {
        const uint64_t *words = (const uint64_t *)payload;
        memset(codes, 0, 64 * 64);
        for (int k = 0; k < tiles->planes * 64; k++)
            for (int c = 0; c < 64; c++)
                codes[k % 64 * 64 + c] |= (uint8_t)((words[k] >> c & 1) << k / 64);
    }
}

/* Constants are codes, patches ascend, payloads do not overlap. */
static void check_layout(const mg_graph_tiles *tiles, int hops)
{
    int64_t end = 0;
    for (int64_t t = 0; t < tiles->tile_rows * tiles->tile_columns; t++) {
        assert_in_range(tiles->classes[t], 0, 2);
        assert_in_range(tiles->constants[t], 0, hops + 1);
        if (tiles->classes[t] == MG_GRAPH_TILE_CONSTANT)
            continue;
        assert_int_equal(tiles->offsets[t], end);
        const uint16_t *words = (const uint16_t *)(tiles->payload + end);
        for (int k = 1; tiles->classes[t] == MG_GRAPH_TILE_PATCH && k < words[0]; k++)
            assert_true(words[k] < words[k + 1]);
        end += tiles->classes[t] == MG_GRAPH_TILE_PATCH ? (2 + 3 * words[0] + 7) / 8 * 8 : tiles->planes * 512;
    }
    assert_int_equal(tiles->payload_bytes, end);
    assert_int_equal(mg_graph_tiles_bytes(tiles), end + tiles->tile_rows * tiles->tile_columns * 10);
}

static void check_tiles(const char *name, const mg_graph *graph, int hops, const uint8_t *expected, int64_t begin,
                        int64_t end)
{
    mg_graph_tiles *tiles;
    must(mg_graph_tiles_create(&tiles, graph, hops, begin, end));
    assert_int_equal(tiles->tile_rows, (end - begin + 63) / 64);
    assert_int_equal(tiles->tile_columns, (graph->nodes + 63) / 64);
    check_layout(tiles, hops);
    for (int64_t t = 0; t < tiles->tile_rows * tiles->tile_columns; t++) {
        uint8_t codes[64 * 64];
        int64_t i = begin + t / tiles->tile_columns * 64, j = t % tiles->tile_columns * 64;
        decode_tile(codes, tiles, t);
        for (int64_t r = 0; r < 64 && i + r < end; r++)
            test_same_bytes(name, codes + r * 64, expected + (i + r) * graph->nodes + j,
                            (size_t)(graph->nodes - j < 64 ? graph->nodes - j : 64));
    }
    mg_graph_tiles_destroy(tiles);
}

/* Row blocks of this size, cut into key ranges of that size: the same rows follow each other, the keys differ. */
static void check_stream(const char *name, const mg_graph *graph, int hops, const uint8_t *expected, int64_t rows,
                         int64_t keys)
{
    mg_graph_stream *stream;
    int64_t nodes = graph->nodes, stride = keys + 3;
    uint8_t *codes = malloc((size_t)(rows * stride));
    must(mg_graph_stream_create(&stream, graph, hops, 2));
    for (int64_t q0 = 0; q0 < nodes; q0 += rows)
        for (int64_t k0 = 0; k0 < nodes; k0 += keys) {
            int64_t nq = nodes - q0 < rows ? nodes - q0 : rows, nk = nodes - k0 < keys ? nodes - k0 : keys;
            must(mg_graph_stream_codes(stream, (int)(q0 / rows % 2), q0, nq, k0, nk, codes, stride));
            for (int64_t i = 0; i < nq; i++)
                test_same_bytes(name, codes + i * stride, expected + (q0 + i) * nodes + k0, (size_t)nk);
        }
    mg_graph_stream_destroy(stream);
    free(codes);
}

static void check_all(const named_graph *shape, int hops)
{
    const mg_graph *graph = shape->graph;
    uint8_t *expected = reference_codes(graph, hops);
    check_dense(shape->name, graph, hops, expected);
    check_near(shape->name, graph, hops, expected);
    check_tiles(shape->name, graph, hops, expected, 0, graph->nodes);
    check_tiles(shape->name, graph, hops, expected, graph->nodes / 3, graph->nodes - graph->nodes / 5);
    check_stream(shape->name, graph, hops, expected, 512, 97);
    check_stream(shape->name, graph, hops, expected, 50, 300);
    check_stream(shape->name, graph, hops, expected, 1000, 1000);
    free(expected);
}

static void check_shapes(const int *hops, int count)
{
    named_graph shapes[MOST_SHAPES];
    int64_t shape_count = list_shapes(shapes);
    for (int64_t n = 0; n < shape_count; n++)
        for (int h = 0; h < count; h++)
            check_all(&shapes[n], hops[h]);
    destroy_shapes(shapes, shape_count);
}

static void agrees_with_a_queue_per_node(void **state)
{
    (void)state;
    check_shapes((int[]){1, 2, 3, 5, 8}, 5);
}

/* 0 where this processor lacks the backend. */
static int use_backend(const char *name)
{
    mg_graph *graph = path_graph(2);
    mg_graph_stream *stream;
    setenv("MEGAGRAPH_GRAPH_BACKEND", name, 1);
    int status = mg_graph_stream_create(&stream, graph, 2, 1);
    mg_graph_stream_destroy(stream);
    mg_graph_destroy(graph);
    return !status;
}

static void agrees_by_every_backend(void **state)
{
    (void)state;
    const char *names[] = {"portable", "v3", "v4"};
    for (int n = 0; n < 3; n++) {
        if (use_backend(names[n]))
            check_shapes((int[]){1, 4}, 2);
        else
            print_message("backend %s: not for this processor\n", names[n]);
    }
    assert_false(use_backend("abacus"));
    assert_non_null(strstr(mg_graph_last_error(), "abacus"));
    unsetenv("MEGAGRAPH_GRAPH_BACKEND");
}

static void agrees_at_all_depths(void **state)
{
    (void)state;
    named_graph shapes[] = {{"path of 300", path_graph(300)},
                            {"sparse", random_graph(300, 330, 0, 4)},
                            {"sparse directed", random_graph(300, 420, 1, 8)}};
    for (int n = 0; n < 3; n++) {
        for (int hops = 1; hops <= 20; hops++)
            check_all(&shapes[n], hops);
        check_all(&shapes[n], 127);
        check_all(&shapes[n], 253);
    }
    destroy_shapes(shapes, 3);
}

/* Large enough to be written past the caches, and to hold patches of every length. */
static void large_blocks_agree(void **state)
{
    (void)state;
    mg_graph *graph;
    must(mg_graph_generate_rmat(&graph, 9000, 20000, 2));
    uint8_t *codes = aligned_alloc(64, 512 * 9024), *row = malloc(9000);
    mg_graph_stream *stream;
    must(mg_graph_stream_create(&stream, graph, 3, 1));
    must(mg_graph_stream_codes(stream, 0, 4000, 512, 0, 9000, codes, 9024));
    for (int64_t i = 0; i < 512; i++) {
        must(mg_graph_stream_codes(stream, 0, 4000 + i, 1, 0, 9000, row, 9000));
        test_same_bytes("row", codes + i * 9024, row, 9000);
    }
    mg_graph_stream_destroy(stream);
    mg_graph_destroy(graph);
    free(codes);
    free(row);
}

/* Codes 3, 5 and far (6) a third each: every bit has a majority, 7, which is no code; the tile is so small that it is a
 * patch. */
static void a_patch_is_constant_on_a_code(void **state)
{
    (void)state;
    int64_t sources[39], targets[39];
    for (int64_t i = 1; i < 40; i++) {
        sources[i - 1] = i <= 2 ? i - 1 : i <= 20 ? 2 : i == 21 ? 3 : 21;
        targets[i - 1] = i;
    }
    mg_graph *graph = graph_of(58, 39, sources, targets, 0);
    uint8_t *expected = reference_codes(graph, 5);
    check_tiles("thirds", graph, 5, expected, 0, 1);
    free(expected);
    mg_graph_destroy(graph);
}

static void same_bytes_for_any_threads(void **state)
{
    (void)state;
    mg_graph *graph;
    must(mg_graph_generate_rmat(&graph, 2100, 6000, 9));
    mg_graph_tiles *first = NULL, *tiles;
    mg_graph_near *first_near = NULL, *near;
    for (int threads = 1; threads <= 4; threads++) {
        set_threads(threads);
        must(mg_graph_tiles_create(&tiles, graph, 3, 5, 2077));
        must(mg_graph_near_create(&near, graph, 3));
        if (threads == 1) {
            first = tiles;
            first_near = near;
            continue;
        }
        int64_t count = tiles->tile_rows * tiles->tile_columns;
        assert_int_equal(tiles->payload_bytes, first->payload_bytes);
        test_same_bytes("payload", tiles->payload, first->payload, (size_t)tiles->payload_bytes);
        test_same_bytes("classes", tiles->classes, first->classes, (size_t)count);
        test_same_bytes("constants", tiles->constants, first->constants, (size_t)count);
        test_same_bytes("offsets", tiles->offsets, first->offsets, (size_t)count * sizeof(int64_t));
        assert_int_equal(near->pairs, first_near->pairs);
        test_same_bytes("columns", near->columns, first_near->columns, (size_t)near->pairs * sizeof(int32_t));
        test_same_bytes("codes", near->codes, first_near->codes, (size_t)near->pairs);
        mg_graph_tiles_destroy(tiles);
        mg_graph_near_destroy(near);
    }
    mg_graph_tiles_destroy(first);
    mg_graph_near_destroy(first_near);
    mg_graph_destroy(graph);
}

static int all_forms(void *context)
{
    const mg_graph *graph = context;
    mg_graph_near *near;
    mg_graph_tiles *tiles;
    mg_graph_stream *stream;
    uint8_t codes[30 * 30];
    int status = mg_graph_near_create(&near, graph, 1);
    mg_graph_near_destroy(near);
    if (!status) {
        status = mg_graph_near_create(&near, graph, 2);
        mg_graph_near_destroy(near);
    }
    if (!status) {
        status = mg_graph_tiles_create(&tiles, graph, 2, 0, 30);
        mg_graph_tiles_destroy(tiles);
    }
    if (!status)
        status = mg_graph_dense_codes(codes, 30, graph, 2, 0, 30);
    if (!status) {
        status = mg_graph_stream_create(&stream, graph, 2, 3);
        mg_graph_stream_destroy(stream);
    }
    return status;
}

static void survives_any_allocation_failing(void **state)
{
    (void)state;
    for (int directed = 0; directed < 2; directed++) {
        mg_graph *graph = random_graph(30, 40, directed, 6);
        assert_true(test_every_allocation_fails(mg_graph_set_memory_hook, all_forms, graph) > 40);
        mg_graph_destroy(graph);
    }
}

static void refuses_what_is_out_of_range(void **state)
{
    (void)state;
    mg_graph *graph = path_graph(10);
    mg_graph_near *near;
    mg_graph_tiles *tiles;
    mg_graph_stream *stream;
    uint8_t codes[100];
    for (int k = 0; k < 3; k++) {
        int hops = (int[]){0, -1, 254}[k];
        assert_int_equal(mg_graph_near_create(&near, graph, hops), -EINVAL);
        assert_int_equal(mg_graph_tiles_create(&tiles, graph, hops, 0, 10), -EINVAL);
        assert_int_equal(mg_graph_stream_create(&stream, graph, hops, 1), -EINVAL);
        assert_int_equal(mg_graph_dense_codes(codes, 10, graph, hops, 0, 10), -EINVAL);
    }
    assert_int_equal(mg_graph_dense_codes(codes, 9, graph, 2, 0, 10), -EINVAL);
    assert_int_equal(mg_graph_dense_codes(codes, 10, graph, 2, 3, 11), -EINVAL);
    assert_int_equal(mg_graph_tiles_create(&tiles, graph, 2, 5, 4), -EINVAL);
    must(mg_graph_stream_create(&stream, graph, 2, 1));
    assert_int_equal(mg_graph_stream_codes(stream, 1, 0, 1, 0, 10, codes, 10), -EINVAL);
    assert_int_equal(mg_graph_stream_codes(stream, 0, 9, 2, 0, 10, codes, 10), -EINVAL);
    assert_int_equal(mg_graph_stream_codes(stream, 0, 0, 1, 1, 10, codes, 10), -EINVAL);
    assert_int_equal(mg_graph_stream_codes(stream, 0, 0, 2, 0, 10, codes, 9), -EINVAL);
    mg_graph_stream_destroy(stream);
    mg_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_queue_per_node),
        cmocka_unit_test(agrees_by_every_backend),
        cmocka_unit_test(agrees_at_all_depths),
        cmocka_unit_test(large_blocks_agree),
        cmocka_unit_test(a_patch_is_constant_on_a_code),
        cmocka_unit_test(same_bytes_for_any_threads),
        cmocka_unit_test(survives_any_allocation_failing),
        cmocka_unit_test(refuses_what_is_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
