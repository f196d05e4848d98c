/* Labels to classes or targets, splits by seed and folds, datasets from memory. */
#include "dataset_files.h"

#define EDGES MEMBER("edges", "<i8", "(2, 2)", (int64_t[]){0, 1, 2, 3})

static mg_dataset *labelled(const file_member labels, mg_dataset_task task)
{
    return open_with(FILE_NPZ("labels.npz", EDGES, labels), &(mg_dataset_desc){.task = task});
}

static void are_classes(const file_member labels, const int32_t *expected, int64_t classes, const char *last)
{
    mg_dataset *data = labelled(labels, MG_DATASET_NONE);
    assert_int_equal(data->task, MG_DATASET_CLASSIFICATION);
    assert_int_equal(data->classes, classes);
    test_same_bytes(labels.descr, data->labels, expected, 16);
    assert_string_equal(data->class_names[classes - 1], last);
    mg_dataset_close(data);
}

static void maps_labels_to_classes(void **state)
{
    (void)state;
    are_classes((file_member)MEMBER("node_labels", "<i8", "(4,)", (int64_t[]){0, 1, 2, 1}), (int32_t[]){0, 1, 2, 1}, 3,
                "2");
    are_classes((file_member)MEMBER("node_labels", "<i4", "(4,)", (int32_t[]){1, 2, 3, 2}), (int32_t[]){0, 1, 2, 1}, 3,
                "3");
    are_classes((file_member)MEMBER("node_labels", "<i2", "(4, 1)", (int16_t[]){10, -7, 300, 10}),
                (int32_t[]){1, 0, 2, 1}, 3, "300");
    are_classes((file_member)MEMBER("node_labels", "<i8", "(4,)", (int64_t[]){5, -1, 7, 5}), (int32_t[]){0, -1, 1, 0},
                2, "7");
    are_classes((file_member)MEMBER("node_labels", "|i1", "(4,)", (int8_t[]){-1, 1, 1, -1}), (int32_t[]){0, 1, 1, 0}, 2,
                "1");
    are_classes((file_member)MEMBER("node_labels", "<f8", "(4,)", (double[]){2, NAN, -0., 0}), (int32_t[]){1, -1, 0, 0},
                2, "2");
    are_classes((file_member)MEMBER("node_labels", "|S2", "(4,)",
                                    "b\0"
                                    "a\0"
                                    "\0\0"
                                    "b"),
                (int32_t[]){1, 0, -1, 1}, 2, "b");
}

static void maps_numbers_to_targets(void **state)
{
    (void)state;
    mg_dataset *data =
        labelled((file_member)MEMBER("node_labels", "<f4", "(4,)", (float[]){.5f, NAN, -1, 3}), MG_DATASET_NONE);
    assert_int_equal(data->task, MG_DATASET_REGRESSION);
    assert_true(data->targets[0] == .5f && isnan(data->targets[1]) && data->targets[2] == -1);
    mg_dataset_close(data);
    data = labelled((file_member)MEMBER("node_labels", "<f4", "(4, 2)", (float[]){1, 0, NAN, 1, 0, 0, 1, 1}),
                    MG_DATASET_NONE);
    assert_int_equal(data->task, MG_DATASET_MULTILABEL);
    assert_int_equal(data->target_count, 2);
    mg_dataset_close(data);
    data = labelled((file_member)MEMBER("node_labels", "<i4", "(4, 2)", (int32_t[]){1, 0, 2, 1, 0, 0, 1, 1}),
                    MG_DATASET_NONE);
    assert_int_equal(data->task, MG_DATASET_REGRESSION);
    mg_dataset_close(data);
    data = labelled((file_member)MEMBER("node_labels", "<i4", "(4,)", (int32_t[]){1, 0, 0, 1}), MG_DATASET_REGRESSION);
    assert_int_equal(data->task, MG_DATASET_REGRESSION);
    mg_dataset_close(data);
    data = labelled((file_member)MEMBER("node_labels", "<i4", "(4,)", (int32_t[]){1, 0, 0, 1}), MG_DATASET_MULTILABEL);
    assert_int_equal(data->target_count, 1);
    mg_dataset_close(data);
}

static void refuses_labels_that_do_not_fit_the_task(void **state)
{
    (void)state;
    const char *path = FILE_NPZ("bad.npz", EDGES, MEMBER("node_labels", "<f4", "(4,)", (float[]){1, 0, .5f, 1}));
    refuse(path, &(mg_dataset_desc){.task = MG_DATASET_CLASSIFICATION}, -EINVAL,
           (const char *const[]){"node_labels", "item 2", "0.5", NULL});
    refuse(path, &(mg_dataset_desc){.task = MG_DATASET_MULTILABEL}, -EINVAL,
           (const char *const[]){"item 2", "0.5", NULL});
    refuse(FILE_NPZ("bad2.npz", EDGES), &(mg_dataset_desc){.task = MG_DATASET_REGRESSION}, -EINVAL,
           (const char *const[]){"no labels", NULL});
    refuse(FILE_NPZ("bad3.npz", EDGES, MEMBER("node_labels", "<f4", "(4,)", (float[]){1, 0, INFINITY, 1})),
           &(mg_dataset_desc){0}, -EINVAL, (const char *const[]){"item 2", "inf", NULL});
    refuse(FILE_NPZ("bad4.npz", EDGES, MEMBER("node_labels", "|S1", "(4,)", "aba")),
           &(mg_dataset_desc){.task = MG_DATASET_REGRESSION}, -EINVAL, (const char *const[]){"words", NULL});
    refuse(path, &(mg_dataset_desc){.format = "csv"}, -EINVAL, (const char *const[]){"'csv'", "npz, ogb", NULL});
}

static void one_class_and_no_label_are_fine(void **state)
{
    (void)state;
    are_classes((file_member)MEMBER("node_labels", "<i8", "(4,)", (int64_t[]){3, 3, 3, 3}), (int32_t[]){0, 0, 0, 0}, 1,
                "3");
    mg_dataset *data =
        labelled((file_member)MEMBER("node_labels", "<f4", "(4,)", (float[]){NAN, NAN, NAN, NAN}), MG_DATASET_NONE);
    assert_int_equal(data->task, MG_DATASET_NONE);
    story_has(data, "none of 4 items has one");
    mg_dataset_close(data);
}

/* --- splits --- */

/* A graph of `nodes` without edges; labels i % classes, but every seventh item has none. */
static mg_dataset *many(int64_t nodes, int32_t classes)
{
    static int64_t starts[1001];
    static int32_t labels[1000];
    static char *names[] = {"a", "b", "c", "d", "e"};
    for (int64_t i = 0; i < nodes; i++)
        labels[i] = i % 7 == 3 ? -1 : (int32_t)(i % classes);
    mg_graph graph = {nodes, 0, starts, (int32_t[]){0}};
    mg_dataset *data = NULL;
    assert_int_equal(mg_dataset_create(&data, &(mg_dataset){.graph = &graph,
                                                            .task = MG_DATASET_CLASSIFICATION,
                                                            .classes = classes,
                                                            .class_names = names,
                                                            .labels = labels}),
                     0);
    return data;
}

static void splits_by_seed_are_stratified(void **state)
{
    (void)state;
    mg_dataset *data = many(700, 3);
    uint8_t split[700], again[700], other[700];
    assert_int_equal(mg_dataset_split(split, data, 0, 0, 1), 0);
    assert_int_equal(mg_dataset_split(again, data, 0, 0, 1), 0);
    test_same_bytes("same seed", split, again, 700);
    assert_int_equal(mg_dataset_split(other, data, 0, 0, 2), 0);
    assert_true(memcmp(split, other, 700) != 0);
    assert_int_equal(mg_dataset_split(other, data, 1, 0, 1), 0);
    assert_true(memcmp(split, other, 700) != 0);
    int counts[3][4] = {{0}};
    for (int i = 0; i < 700; i++) {
        assert_true((split[i] == MG_DATASET_UNUSED) == (data->labels[i] < 0));
        if (data->labels[i] >= 0)
            counts[data->labels[i]][split[i]]++;
    }
    for (int c = 0; c < 3; c++) {
        int all = counts[c][1] + counts[c][2] + counts[c][3];
        assert_int_equal(counts[c][2], (2 * all + 5) / 10);
        assert_int_equal(counts[c][3], (2 * all + 5) / 10);
    }
    mg_dataset_close(data);
}

static void folds_partition_the_items(void **state)
{
    (void)state;
    mg_dataset *data = many(703, 4);
    static uint8_t split[703];
    int tested[703] = {0};
    for (int fold = 0; fold < 10; fold++) {
        int per_class[4] = {0}, counts[4] = {0};
        assert_int_equal(mg_dataset_split(split, data, fold, 10, 5), 0);
        for (int i = 0; i < 703; i++) {
            counts[split[i]]++;
            if (split[i] == MG_DATASET_TEST) {
                tested[i]++;
                per_class[data->labels[i]]++;
            }
        }
        assert_in_range(counts[MG_DATASET_TEST], 60, 61);
        assert_in_range(counts[MG_DATASET_VALIDATION], 54, 55);
        for (int c = 0; c < 4; c++)
            assert_in_range(per_class[c], 14, 16);
    }
    for (int i = 0; i < 703; i++)
        assert_int_equal(tested[i], data->labels[i] >= 0);
    mg_dataset_close(data);
}

static void refuses_splits_that_are_not_there(void **state)
{
    (void)state;
    uint8_t split[1000];
    mg_dataset *data = many(20, 2);
    assert_int_equal(mg_dataset_split(split, data, 0, 1, 0), -EINVAL);
    assert_int_equal(mg_dataset_split(split, data, 0, 19, 0), -EINVAL);
    assert_non_null(strstr(mg_dataset_last_error(), "19 folds"));
    assert_int_equal(mg_dataset_split(split, data, 5, 5, 0), -EINVAL);
    assert_int_equal(mg_dataset_split(split, data, -1, 0, 0), -EINVAL);
    mg_dataset_close(data);
    data = open_plain(FILE_NPZ("masked.npz", EDGES, MEMBER("node_labels", "<i8", "(4,)", (int64_t[]){0, 1, 0, 1}),
                               MEMBER("train_masks", "|b1", "(2, 4)", (uint8_t[]){1, 0, 0, 0, 0, 0, 1, 0})));
    assert_int_equal(mg_dataset_split(split, data, 1, 0, 0), 0);
    test_same_bytes("row 1", split, (uint8_t[]){0, 0, 1, 0}, 4);
    assert_int_equal(mg_dataset_split(split, data, 2, 0, 0), -EINVAL);
    assert_non_null(strstr(mg_dataset_last_error(), "splits 0 to 1"));
    mg_dataset_close(data);
}

/* --- from memory --- */

static void refuses_wrong_parts(void **state)
{
    (void)state;
    mg_graph graph = {2, 2, (int64_t[]){0, 1, 2}, (int32_t[]){1, 0}};
    float nan[] = {0, NAN};
    const struct {
        mg_dataset parts;
        const char *line;
    } wrong[] = {
        {{.graph = NULL}, "needs a graph"},
        {{.graph = &graph, .feature_count = 1}, "node features"},
        {{.graph = &graph, .feature_count = 1, .features = nan}, "row 1"},
        {{.graph = &graph, .edge_feature_count = 1, .edge_features = nan}, "edge features"},
        {{.graph = &graph, .graphs = 2, .segments = (int64_t[]){0, 1, 2}}, "different graphs"},
        {{.graph = &graph, .graphs = 2, .segments = (int64_t[]){0, 3, 2}}, "graph 0"},
        {{.graph = &graph, .graphs = 1, .segments = (int64_t[]){0, 1}}, "segments"},
        {{.graph = &graph,
          .task = MG_DATASET_CLASSIFICATION,
          .labels = (int32_t[]){0, 1},
          .classes = 1,
          .class_names = (char *[]){"a"}},
         "item 1"},
        {{.graph = &graph, .task = MG_DATASET_CLASSIFICATION}, "needs labels"},
        {{.graph = &graph, .labels = (int32_t[]){0, 1}}, "labels or targets"},
        {{.graph = &graph, .task = MG_DATASET_REGRESSION, .targets = nan}, "target_count is 0"},
        {{.graph = &graph, .task = MG_DATASET_MULTILABEL, .target_count = 1, .targets = (float[]){0, 2}}, "item 1"},
        {{.graph = &graph, .splits = 1, .split = (uint8_t[]){0, 4}}, "split 0 has 4"},
        {{.graph = &graph, .items = 3}, "3 items"},
        {{.graph = &graph, .node_names = (char *[]){"a", NULL}}, "node 1 has no name"},
        {{.graph = &(mg_graph){2, 1, (int64_t[]){0, 1, 1}, (int32_t[]){2}}}, "node 2"}};
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        mg_dataset *data = NULL;
        assert_int_equal(mg_dataset_create(&data, &wrong[w].parts), -EINVAL);
        assert_null(data);
        if (!strstr(mg_dataset_last_error(), wrong[w].line))
            fail_msg("the line should say '%s': %s", wrong[w].line, mg_dataset_last_error());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(maps_labels_to_classes),
                                       cmocka_unit_test(maps_numbers_to_targets),
                                       cmocka_unit_test(refuses_labels_that_do_not_fit_the_task),
                                       cmocka_unit_test(one_class_and_no_label_are_fine),
                                       cmocka_unit_test(splits_by_seed_are_stratified),
                                       cmocka_unit_test(folds_partition_the_items),
                                       cmocka_unit_test(refuses_splits_that_are_not_there),
                                       cmocka_unit_test(refuses_wrong_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
