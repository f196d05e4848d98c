/* Edge lists and CSV, METIS, Matrix Market, and the files of labels and features beside them. */
#include "dataset_files.h"

/* --- edge lists --- */

static void same_triangle(const char *path)
{
    mg_dataset *data = open_plain(path);
    if (data->graph->nodes != 3 || data->graph->edges != 6)
        fail_msg("%s: %s", path, data->story);
    mg_dataset_close(data);
}

static void reads_separators_comments_and_endings(void **state)
{
    (void)state;
    same_triangle(file_text("a.edges", "0 1\n1 2\n2 0\n"));
    same_triangle(file_text("b.edges", "# comment\n% comment\n\n  0   1 \n1\t \t2\n2 0"));
    same_triangle(file_text("c.csv", "0,1\r\n1, 2\r\n2 ,0\r\n"));
    same_triangle(file_text("d.tsv", "x y\tz\nz\tw, w\nw, w\tx y\n"));
    same_triangle(file_text("e.txt", "\xef\xbb\xbf"
                                     "1;2\n2;3\n3;1"));
    same_triangle(file_text("f.csv", "source,target\n0,1\n1,2\n2,0\n"));
    same_triangle(file_text("g.csv", "\"node, one\",\"b \"\"c\"\"\"\n\"b \"\"c\"\"\",d\nd,\"node, one\"\n"));
    same_triangle(file_gz("h.edges.gz", "0 1\n1 2\n2 0\n"));
    same_triangle(file_text("i.csv", "person_a,person_b,weight\n0,1,.5\n1,2,1\n2,0,2\n"));
}

static void keeps_numbers_that_are_nodes_already(void **state)
{
    (void)state;
    mg_dataset *data = open_plain(file_text("plain.edges", "2 1\n1 0\n3 2\n"));
    assert_null(data->node_names);
    assert_true(has_edge(data, 1, 2) && has_edge(data, 0, 1) && has_edge(data, 2, 3) && !has_edge(data, 0, 2));
    mg_dataset_close(data);
}

static void numbers_nodes_by_ascending_numbers(void **state)
{
    (void)state;
    mg_dataset *data = open_plain(file_text("gaps.edges", "1000000000000 7\n7 -3\n"));
    assert_int_equal(data->graph->nodes, 3);
    assert_string_equal(data->node_names[0], "-3");
    assert_string_equal(data->node_names[1], "7");
    assert_string_equal(data->node_names[2], "1000000000000");
    assert_true(has_edge(data, 0, 1) && has_edge(data, 1, 2) && !has_edge(data, 0, 2));
    story_has(data, "ids kept as names");
    mg_dataset_close(data);
    data = open_plain(file_text("zeros.edges", "007 7\n7 8\n")); /* different names */
    assert_int_equal(data->graph->nodes, 3);
    mg_dataset_close(data);
}

static void reads_weights_and_drops_words_aloud(void **state)
{
    (void)state;
    mg_dataset *data = open_plain(file_text("w.csv", "id1,kind,id2,weight,year\na,x,b,0.5,1999\nb,y,c,-1e3,2001\n"));
    assert_int_equal(data->edge_feature_count, 2);
    assert_string_equal(data->node_names[2], "c");
    assert_true(data->edge_features[2 * entry(data, 2, 1)] == -1000 &&
                data->edge_features[2 * entry(data, 0, 1) + 1] == 1999);
    story_has(data, "the first line is a header");
    story_has(data, "1 columns of words dropped");
    mg_dataset_close(data);
}

static void refuses_bad_edge_lines(void **state)
{
    (void)state;
    REFUSE(file_text("1.edges", "0 1\n\n1\n"), "1.edges:3:", "1 fields");
    REFUSE(file_text("2.edges", "0 1 0.5\n1 2 x\n"), "2.edges:2:", "'x'");
    REFUSE(file_text("3.csv", "0,1\n1,\n"), "3.csv:2:", "empty");
    REFUSE(file_bytes("4.csv", "0,1\n1,\0\n", 8), "4.csv:2:", "NUL");
    REFUSE(file_text("5.edges", "0 1 1e300\n"), "5.edges:1:", "1e300");
    REFUSE(file_text("6.edges", "only\n"), "6.edges:1:", "two ids");
    REFUSE(file_text("7.unknown", "0 1\n"), "7.unknown", "no known format");
    file_gz("8.edges.gz", "0 1\n1 2\n2 3\n3 4\n");
    FILE *file = fopen(file_path("8.edges.gz"), "rb");
    char bytes[256];
    size_t length = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    REFUSE(file_bytes("8.edges.gz", bytes, length - 9), "8.edges.gz", "ends early");
}

static void reads_an_empty_list(void **state)
{
    (void)state;
    mg_dataset *data = open_plain(file_text("empty.edges", "# nothing\n"));
    assert_int_equal(data->graph->nodes, 0);
    mg_dataset_close(data);
}

/* --- labels and features beside a graph --- */

static void reads_labels_and_features_by_id(void **state)
{
    (void)state;
    mg_dataset_desc desc = {.labels = file_text("l.csv", "id,label\r\nc,red\r\na,blue\r\nb,NA\r\nlonely,red\r\n"),
                            .features = file_text("f.csv", "a;1;2\nb;3;4\nlonely;5;6\n")};
    mg_dataset *data = open_with(file_text("side.edges", "a b\nb c\n"), &desc);
    assert_int_equal(data->graph->nodes, 4);
    assert_int_equal(data->classes, 2);
    assert_string_equal(data->class_names[0], "blue");
    test_same_bytes("labels", data->labels, (int32_t[]){0, -1, 1, 1}, 16);
    test_same_bytes("features", data->features, (float[]){1, 2, 3, 4, 0, 0, 5, 6}, 32);
    story_has(data, "1 nodes have no edge");
    story_has(data, "1 nodes are not in");
    mg_dataset_close(data);
    /* with numbers the rows move to where their nodes go */
    desc = (mg_dataset_desc){.labels = file_text("l2.csv", "9,1.5\n5,0.5\n7,2\n"),
                             .features = file_text("f2.csv", "5,50\n7,70\n9,90\n")};
    data = open_with(file_text("side2.edges", "9 5\n5 7\n"), &desc);
    assert_int_equal(data->task, MG_DATASET_REGRESSION);
    test_same_bytes("targets", data->targets, (float[]){.5f, 2, 1.5f}, 12);
    test_same_bytes("features", data->features, (float[]){50, 70, 90}, 12);
    mg_dataset_close(data);
    desc = (mg_dataset_desc){.labels = file_text("l3.csv", "9,x\n5,y\n7,x\n")};
    data = open_with(file_path("side2.edges"), &desc);
    test_same_bytes("labels", data->labels, (int32_t[]){1, 0, 0}, 12);
    mg_dataset_close(data);
}

static void refuses_bad_side_files(void **state)
{
    (void)state;
    const char *graph = file_text("three.graph", "3 2\n2\n1 3\n2\n");
    mg_dataset_desc desc = {.labels = file_text("s1.csv", "id,label\n4,1\n")};
    refuse(graph, &desc, -EINVAL, (const char *const[]){"s1.csv:2:", "'4'", "not a node", NULL});
    desc.labels = file_text("s2.csv", "1,1\n2,0\n1,1\n");
    refuse(graph, &desc, -EINVAL, (const char *const[]){"s2.csv:3:", "line 1", NULL});
    desc.labels = file_text("s3.csv", "1,1,0\n2,0\n");
    refuse(graph, &desc, -EINVAL, (const char *const[]){"s3.csv:2:", "2 columns", NULL});
    desc = (mg_dataset_desc){.features = file_text("s4.csv", "1,1\n2,red\n")};
    refuse(graph, &desc, -EINVAL, (const char *const[]){"s4.csv:2:", "'red'", NULL});
    desc = (mg_dataset_desc){.labels = "/nowhere/labels.csv"};
    refuse(graph, &desc, -ENOENT, (const char *const[]){"/nowhere/labels.csv", NULL});
    refuse(file_text("x.npz", "PK\3\4"), &desc, -EINVAL, (const char *const[]){"npz", "labels", NULL});
}

/* --- METIS --- */

static void reads_metis_with_blank_lines_and_comments(void **state)
{
    (void)state;
    mg_dataset *data = open_plain(file_text("m.graph", "% five nodes\n5 3\n2 3\n1\n% between\n1 5\n\n3\n"));
    assert_int_equal(data->graph->nodes, 5);
    assert_int_equal(data->graph->edges, 6);
    assert_int_equal(data->graph->starts[4] - data->graph->starts[3], 0);
    assert_true(has_edge(data, 2, 4));
    story_has(data, "1 of them isolated");
    mg_dataset_close(data);
}

static void reads_metis_weights(void **state)
{
    (void)state;
    mg_dataset_desc desc = {.labels = file_text("ml.csv", "1,0\n3,1\n")};
    mg_dataset *data = open_with(file_text("mw.graph", "3 2 111 2\n9 1 2 2 0.5\n9 3 4 1 0.5 3 7\n9 5 6 2 7"), &desc);
    assert_int_equal(data->feature_count, 2);
    test_same_bytes("weights", data->features, (float[]){1, 2, 3, 4, 5, 6}, 24);
    assert_true(data->edge_features[entry(data, 1, 2)] == 7 && data->edge_features[entry(data, 1, 0)] == .5f);
    test_same_bytes("labels", data->labels, (int32_t[]){0, -1, 1}, 12);
    story_has(data, "node sizes dropped");
    mg_dataset_close(data);
}

static void refuses_bad_metis(void **state)
{
    (void)state;
    REFUSE(file_text("1.graph", "2 1\n3\n1\n"), "1.graph:2:", "neighbour 3", "1 to 2");
    REFUSE(file_text("2.graph", "2 1\n0\n1\n"), "2.graph:2:", "neighbour 0");
    REFUSE(file_text("3.graph", "2000000000 1\n2\n1\n"), "2000000000 nodes", "2 lines");
    REFUSE(file_text("4.graph", "2 7\n2\n1\n"), "7 edges", "list 2");
    REFUSE(file_text("5.graph", "2 1\n2\n1\n1\n"), "5.graph:4:");
    REFUSE(file_text("6.graph", "2 1\n2\nx\n"), "6.graph:3:", "'x'");
    REFUSE(file_text("7.graph", "2 1 7\n2\n1\n"), "7.graph:1:", "format is 7");
    REFUSE(file_text("8.graph", "2 1 1\n2\n1 1\n"), "8.graph:2:", "weight is missing");
    REFUSE(file_text("9.graph", "% nothing\n"), "9.graph", "empty");
    REFUSE(file_text("10.graph", "two 1\n"), "10.graph:1:", "'two 1'");
}

/* --- Matrix Market --- */

static void reads_matrix_market(void **state)
{
    (void)state;
    mg_dataset *data =
        open_plain(file_text("a.mtx", "%%MatrixMarket matrix coordinate pattern general\n% c\n4 4 2\n1 2\n3 1\n"));
    assert_int_equal(data->graph->nodes, 4);
    assert_int_equal(data->graph->edges, 4);
    assert_int_equal(data->edge_feature_count, 0);
    mg_dataset_close(data);
    const char *path =
        file_text("b.mtx", "%%MatrixMarket matrix coordinate real symmetric\n3 3 3\n2 1 0.5\n3 3 4\n3 2 -1e-2\n");
    data = open_with(path, &(mg_dataset_desc){.directed = 1});
    assert_int_equal(data->graph->edges, 5);
    assert_true(data->edge_features[entry(data, 0, 1)] == .5f && data->edge_features[entry(data, 2, 2)] == 4);
    mg_dataset_close(data);
    path = file_text("c.mtx", "%%matrixmarket MATRIX coordinate integer skew-symmetric\n2 2 1\n2 1 5");
    data = open_plain(path);
    assert_true(data->edge_features[entry(data, 0, 1)] == -5 && data->edge_features[entry(data, 1, 0)] == 5);
    mg_dataset_close(data);
}

static void refuses_bad_matrix_market(void **state)
{
    (void)state;
#define BANNER "%%MatrixMarket matrix coordinate real general\n"
    REFUSE(file_text("1.mtx", "3 3 1\n1 2 1\n"), "1.mtx:1:", "MatrixMarket");
    REFUSE(file_text("2.mtx", BANNER "3 4 1\n1 2 1\n"), "2.mtx:2:", "3 x 4");
    REFUSE(file_text("3.mtx", BANNER "3 3 1\n1 4 1\n"), "3.mtx:3:", "node 4");
    REFUSE(file_text("4.mtx", BANNER "3 3 1\n1 2 1\n1 3 1\n"), "4.mtx:4:", "more than the 1");
    REFUSE(file_text("5.mtx", BANNER "3 3 2\n1 2 1\n"), "5.mtx", "claims 2", "only 1");
    REFUSE(file_text("6.mtx", BANNER "3 3 1\n1 2\n"), "6.mtx:3:", "value is missing");
    REFUSE(file_text("7.mtx", "%%MatrixMarket matrix array real general\n2 2\n"), "7.mtx:1:", "array");
    REFUSE(file_text("8.mtx", "%%MatrixMarket matrix coordinate complex general\n"), "8.mtx:1:", "complex");
    REFUSE(file_text("9.mtx", BANNER "2000000000 2000000000 0\n"), "9.mtx", "2000000000 nodes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_separators_comments_and_endings),
                                       cmocka_unit_test(keeps_numbers_that_are_nodes_already),
                                       cmocka_unit_test(numbers_nodes_by_ascending_numbers),
                                       cmocka_unit_test(reads_weights_and_drops_words_aloud),
                                       cmocka_unit_test(refuses_bad_edge_lines),
                                       cmocka_unit_test(reads_an_empty_list),
                                       cmocka_unit_test(reads_labels_and_features_by_id),
                                       cmocka_unit_test(refuses_bad_side_files),
                                       cmocka_unit_test(reads_metis_with_blank_lines_and_comments),
                                       cmocka_unit_test(reads_metis_weights),
                                       cmocka_unit_test(refuses_bad_metis),
                                       cmocka_unit_test(reads_matrix_market),
                                       cmocka_unit_test(refuses_bad_matrix_market)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
