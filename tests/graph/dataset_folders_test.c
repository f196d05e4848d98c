/* TU and OGB folders. */
#include "dataset_files.h"

#include <unistd.h>

/* Two graphs: a path of 2, a path of 3. */
static const char *tu(const char *folder)
{
    char name[64];
    static const char *const files[][2] = {{"A", "1, 2\n2, 1\n3, 4\n4, 3\n4, 5\n5, 4\n"},
                                           {"graph_indicator", "1\n1\n2\n2\n2\n"},
                                           {"graph_labels", "1\n-1\n"}};
    for (int f = 0; f < 3; f++) {
        snprintf(name, sizeof name, "%s/DS_%s.txt", folder, files[f][0]);
        file_text(name, files[f][1]);
    }
    return file_path(folder);
}

static void reads_a_tu_folder(void **state)
{
    (void)state;
    mg_dataset *data = open_plain(tu("tu1"));
    assert_int_equal(data->level, MG_DATASET_GRAPH);
    assert_int_equal(data->items, 2);
    test_same_bytes("segments", data->segments, (int64_t[]){0, 2, 5}, 24);
    test_same_bytes("labels", data->labels, (int32_t[]){1, 0}, 8); /* -1 is a class here */
    assert_string_equal(data->class_names[0], "-1");
    assert_int_equal(data->graph->edges, 6);
    assert_string_equal(data->name, "tu1");
    mg_dataset_close(data);
}

static void reads_every_optional_tu_file(void **state)
{
    (void)state;
    tu("tu2");
    file_text("tu2/DS_node_labels.txt", "5, 0\n7, 0\n5, 1\n6, 0\n5, 0\n");
    file_text("tu2/DS_node_attributes.txt", "0.5\n-1\n2\n3\n4e2\n");
    file_text("tu2/DS_edge_labels.txt", "0\n0\n1\n1\n0\n0\n");
    file_text("tu2/DS_edge_attributes.txt", "10\n10\n11\n11\n12\n12\n");
    file_text("tu2/DS_graph_attributes.txt", "0.25, 1\n, 2\n");
    mg_dataset *data = open_plain(file_path("tu2"));
    assert_int_equal(data->feature_count, 6); /* 5, 6, 7; 0, 1; attribute */
    test_same_bytes("features", data->features, (float[]){1, 0, 0, 1, 0, .5f, 0, 0, 1, 1, 0, -1, 1, 0, 0, 0, 1, 2}, 72);
    int64_t at = entry(data, 3, 2);
    test_same_bytes("edge features", data->edge_features + 3 * at, (float[]){0, 1, 11}, 12);
    story_has(data, "graph_attributes left out");
    assert_int_equal(data->task, MG_DATASET_CLASSIFICATION);
    mg_dataset_close(data);
    data = open_with(file_path("tu2"), &(mg_dataset_desc){.task = MG_DATASET_REGRESSION});
    assert_int_equal(data->target_count, 2);
    assert_true(data->targets[0] == .25f && isnan(data->targets[2]) && data->targets[3] == 2);
    mg_dataset_close(data);
}

static void reads_tu_graphs_without_edges_or_nodes(void **state)
{
    (void)state;
    tu("tu3/raw");
    file_text("tu3/raw/DS_A.txt", "1,2\n2,1\n");
    file_text("tu3/raw/DS_graph_indicator.txt", "1\n1\n2\n4\n");
    file_text("tu3/raw/DS_graph_labels.txt", "0\n1\n0\n1\n0\n");
    mg_dataset *data = open_plain(file_path("tu3"));
    test_same_bytes("segments", data->segments, (int64_t[]){0, 2, 3, 3, 4, 4}, 48);
    story_has(data, "2 without nodes");
    mg_dataset_close(data);
}

static void refuses_bad_tu_by_line(void **state)
{
    (void)state;
    tu("tu4");
    const char *path = file_path("tu4");
    file_text("tu4/DS_graph_indicator.txt", "1\n2\n1\n2\n2\n");
    REFUSE(path, "DS_graph_indicator.txt:3:", "stand together");
    file_text("tu4/DS_graph_indicator.txt", "1\n1\n3\n3\n3\n");
    REFUSE(path, "DS_graph_indicator.txt:3:", "graph 3");
    file_text("tu4/DS_graph_indicator.txt", "1\n1\n2\n2\nx\n");
    REFUSE(path, "DS_graph_indicator.txt:5:", "'x'");
    tu("tu4");
    file_text("tu4/DS_A.txt", "1, 2\n2, 3\n");
    REFUSE(path, "DS_A.txt:2:", "node 2 of graph 1", "node 3 of graph 2");
    file_text("tu4/DS_A.txt", "1, 2\n0, 1\n");
    REFUSE(path, "DS_A.txt:2:", "node 0");
    file_text("tu4/DS_A.txt", "1, 2, 3\n");
    REFUSE(path, "DS_A.txt:1:", "', 3' is left");
    tu("tu4");
    file_text("tu4/DS_node_labels.txt", "1\n1\n1\n");
    REFUSE(path, "DS_node_labels.txt", "3 lines", "5 nodes");
    file_text("tu4/DS_node_labels.txt", "1\n1\n1,2\n1\n1\n");
    REFUSE(path, "DS_node_labels.txt:3:", "2 columns");
    file_text("tu4/DS_node_labels.txt", "1\n\n1\n1\n1\n1\n");
    REFUSE(path, "DS_node_labels.txt:3:", "blank line");
    unlink(file_path("tu4/DS_node_labels.txt"));
    unlink(file_path("tu4/DS_graph_indicator.txt"));
    refuse(path, &(mg_dataset_desc){0}, -ENOENT, (const char *const[]){"DS_graph_indicator.txt", NULL});
    tu("tu4");
    file_text("tu4/OTHER_A.txt", "1, 2\n");
    REFUSE(path, "2 files");
    file_text("nothing/readme", "");
    REFUSE(file_path("nothing"), "neither OGB", "TU");
}

/* --- OGB --- */

static const char *ogb_node(void)
{
    file_gz("arxiv/raw/num-node-list.csv.gz", "4\n");
    file_gz("arxiv/raw/num-edge-list.csv.gz", "3\n");
    file_gz("arxiv/raw/edge.csv.gz", "0,1\n2,1\n3,0\n");
    file_gz("arxiv/raw/node-feat.csv.gz", "1,2\n3,4\n5,6\n7,8\n");
    file_gz("arxiv/raw/node-label.csv.gz", "4\n9\n4\n9\n");
    file_gz("arxiv/split/time/train.csv.gz", "0\n3\n");
    file_gz("arxiv/split/time/valid.csv.gz", "2\n");
    file_gz("arxiv/split/time/test.csv.gz", "1\n");
    return file_path("arxiv");
}

static void reads_a_node_level_ogb_folder(void **state)
{
    (void)state;
    mg_dataset *data = open_plain(ogb_node());
    assert_int_equal(data->level, MG_DATASET_NODE);
    assert_int_equal(data->graph->edges, 6);
    assert_int_equal(data->feature_count, 2); /* whole numbers of nodes stay numbers */
    test_same_bytes("features", data->features, (float[]){1, 2, 3, 4, 5, 6, 7, 8}, 32);
    test_same_bytes("labels", data->labels, (int32_t[]){0, 1, 0, 1}, 16);
    assert_string_equal(data->class_names[1], "9");
    test_same_bytes("split", data->split, (uint8_t[]){1, 3, 2, 1}, 4);
    assert_string_equal(data->name, "arxiv");
    story_has(data, "split: time");
    mg_dataset_close(data);
    data = open_with(file_path("arxiv/raw"), &(mg_dataset_desc){.directed = 1}); /* the folder inside will do */
    assert_int_equal(data->graph->edges, 3);
    assert_int_equal(data->splits, 1);
    assert_string_equal(data->name, "arxiv");
    mg_dataset_close(data);
}

static void reads_a_graph_level_ogb_folder(void **state)
{
    (void)state;
    file_text("mol/raw/num-node-list.csv", "2\n1\n3\n");
    file_text("mol/raw/num-edge-list.csv", "1\n0\n2\n");
    file_text("mol/raw/edge.csv", "0,1\n0,1\n1,2\n");
    file_text("mol/raw/node-feat.csv", "5,0\n5,1\n6,0\n5,0\n8,0\n5,1\n");
    file_text("mol/raw/edge-feat.csv", "0\n1\n0\n");
    file_text("mol/raw/graph-label.csv", "0,1\n,0\n1,\n");
    file_text("mol/split/scaffold/train.csv", "2\n");
    file_text("mol/split/scaffold/valid.csv", "1\n");
    file_text("mol/split/scaffold/test.csv", "0\n");
    mg_dataset *data = open_plain(file_path("mol"));
    assert_int_equal(data->level, MG_DATASET_GRAPH);
    assert_int_equal(data->task, MG_DATASET_MULTILABEL);
    assert_true(data->targets[1] == 1 && isnan(data->targets[2]) && isnan(data->targets[5]));
    assert_int_equal(data->feature_count, 5); /* 5, 6, 8; 0, 1 */
    test_same_bytes("features", data->features + 5, (float[]){1, 0, 0, 0, 1, 0, 1, 0, 1, 0}, 40);
    assert_int_equal(data->edge_feature_count, 2);
    assert_true(has_edge(data, 3, 4) && has_edge(data, 4, 5));
    assert_true(data->edge_features[2 * entry(data, 4, 3) + 1] == 1);
    test_same_bytes("split", data->split, (uint8_t[]){3, 2, 1}, 3);
    mg_dataset_close(data);
}

static void refuses_bad_ogb(void **state)
{
    (void)state;
    const char *path = ogb_node();
    file_gz("arxiv/raw/edge.csv.gz", "0,1\n2,4\n3,0\n");
    REFUSE(path, "edge.csv.gz:2:", "node 4", "0 to 3");
    file_gz("arxiv/raw/edge.csv.gz", "0,1\n2,1\n3,0\n1,1\n");
    REFUSE(path, "edge.csv.gz:4:", "more than the 3");
    file_gz("arxiv/raw/edge.csv.gz", "0,1\n");
    REFUSE(path, "edge.csv.gz", "has 1 edges", "counts 3");
    ogb_node();
    file_gz("arxiv/raw/node-feat.csv.gz", "1,2\n3,4\n5,x\n7,8\n");
    REFUSE(path, "node-feat.csv.gz:3:", "'x'");
    file_gz("arxiv/raw/node-feat.csv.gz", "1,2\n3,4\n");
    REFUSE(path, "node-feat.csv", "2 lines", "4 are needed");
    ogb_node();
    file_gz("arxiv/split/time/test.csv.gz", "3\n");
    REFUSE(path, "test.csv:1:", "item 3", "two parts");
    file_gz("arxiv/split/time/test.csv.gz", "4\n");
    REFUSE(path, "test.csv:1:", "item 4");
    ogb_node();
    file_gz("arxiv/raw/num-node-list.csv.gz", "-1\n");
    REFUSE(path, "num-node-list.csv:1:", "-1");
    file_gz("arxiv/raw/triplet-type-list.csv.gz", "a,b,c\n");
    REFUSE(path, "triplet-type-list");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_a_tu_folder),
                                       cmocka_unit_test(reads_every_optional_tu_file),
                                       cmocka_unit_test(reads_tu_graphs_without_edges_or_nodes),
                                       cmocka_unit_test(refuses_bad_tu_by_line),
                                       cmocka_unit_test(reads_a_node_level_ogb_folder),
                                       cmocka_unit_test(reads_a_graph_level_ogb_folder),
                                       cmocka_unit_test(refuses_bad_ogb)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
