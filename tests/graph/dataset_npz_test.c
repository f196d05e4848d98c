#define _GNU_SOURCE
/* .npz: kinds and orders of numbers, masks, CSR members, and what is refused. */
#include "dataset_files.h"

#define EDGES MEMBER("edges", "<i8", "(3, 2)", (int64_t[]){0, 1, 1, 2, 2, 3})
#define FOUR MEMBER("node_features", "<f4", "(4, 1)", (float[]){1, 2, 3, 4})
#define BYTES(...)                                                                                                     \
    (unsigned char[]) { __VA_ARGS__ }

static void reads_every_kind_of_number(void **state)
{
    (void)state;
    const file_member kinds[] = {
        MEMBER("node_features", "<f2", "(4, 1)", (uint16_t[]){0x3c00, 0x4000, 0x4200, 0x4400}),
        MEMBER("node_features", "<f4", "(4, 1)", (float[]){1, 2, 3, 4}),
        MEMBER("node_features", "<f8", "(4, 1)", (double[]){1, 2, 3, 4}),
        MEMBER("node_features", "|i1", "(4, 1)", (int8_t[]){1, 2, 3, 4}),
        MEMBER("node_features", "<i2", "(4, 1)", (int16_t[]){1, 2, 3, 4}),
        MEMBER("node_features", "<i4", "(4, 1)", (int32_t[]){1, 2, 3, 4}),
        MEMBER("node_features", "<i8", "(4, 1)", (int64_t[]){1, 2, 3, 4}),
        MEMBER("node_features", "|u1", "(4, 1)", (uint8_t[]){1, 2, 3, 4}),
        MEMBER("node_features", "<u2", "(4, 1)", (uint16_t[]){1, 2, 3, 4}),
        MEMBER("node_features", "<u4", "(4, 1)", (uint32_t[]){1, 2, 3, 4}),
        MEMBER("node_features", "<u8", "(4, 1)", (uint64_t[]){1, 2, 3, 4}),
        MEMBER("node_features", ">i2", "(4, 1)", BYTES(0, 1, 0, 2, 0, 3, 0, 4)),
        MEMBER("node_features", ">f4", "(4, 1)",
               BYTES(0x3f, 0x80, 0, 0, 0x40, 0, 0, 0, 0x40, 0x40, 0, 0, 0x40, 0x80, 0, 0)),
        MEMBER("node_features", ">u8", "(4, 1)",
               BYTES(0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4)),
        MEMBER("node_features", "<f4", "(4,)", (float[]){1, 2, 3, 4})};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        file_member features = kinds[k];
        features.stored = k % 2;
        mg_dataset *data = open_plain(FILE_NPZ("kinds.npz", features, EDGES));
        assert_int_equal(data->feature_count, 1);
        for (int i = 0; i < 4; i++)
            if (data->features[i] != (float)(i + 1))
                fail_msg("%s: value %d is %g", kinds[k].descr, i, (double)data->features[i]);
        mg_dataset_close(data);
    }
}

static void reads_half_precision_extremes(void **state)
{
    (void)state;
    mg_dataset *data = open_plain(FILE_NPZ(
        "half.npz", EDGES, MEMBER("node_features", "<f2", "(4, 1)", (uint16_t[]){0x0001, 0x8400, 0x7bff, 0x8000})));
    assert_true(data->features[0] == 0x1p-24f && data->features[1] == -0x1p-14f && data->features[2] == 65504);
    assert_true(data->features[3] == 0);
    mg_dataset_close(data);
}

static void reads_bool_features_and_fortran_order(void **state)
{
    (void)state;
    file_member features =
        MEMBER("node_features", "<f8", "(4, 3)", (double[]){0, 10, 20, 30, 1, 11, 21, 31, 2, 12, 22, 32});
    features.fortran = 1;
    mg_dataset *data = open_plain(FILE_NPZ("fortran.npz", features, EDGES));
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 3; c++)
            assert_true(data->features[3 * i + c] == (float)(10 * i + c));
    mg_dataset_close(data);
    data = open_plain(FILE_NPZ("bool.npz", EDGES, MEMBER("node_features", "|b1", "(4, 1)", BYTES(1, 0, 1, 0))));
    assert_true(data->features[0] == 1 && data->features[1] == 0);
    mg_dataset_close(data);
}

/* A misspelt name would otherwise mean a seeded split, in silence. */
static void names_members_that_it_does_not_use(void **state)
{
    (void)state;
    mg_dataset *data = open_plain(FILE_NPZ("unused.npz", FOUR, EDGES,
                                           MEMBER("train_maks", "|b1", "(4,)", BYTES(1, 1, 0, 0)),
                                           MEMBER("y", "<i8", "(4,)", (int64_t[]){0, 1, 0, 1})));
    assert_non_null(strstr(data->story, "members not used: train_maks\n"));
    mg_dataset_close(data);
    data = open_plain(FILE_NPZ("all-used.npz", FOUR, EDGES));
    assert_null(strstr(data->story, "not used"));
    mg_dataset_close(data);
}

static void reads_edges_of_both_shapes(void **state)
{
    (void)state;
    mg_dataset *data =
        open_plain(FILE_NPZ("pyg.npz", FOUR, MEMBER("edge_index", "<i4", "(2, 3)", (int32_t[]){0, 1, 2, 1, 2, 3}),
                            MEMBER("edge_features", "<f4", "(3, 2)", (float[]){0, 1, 10, 11, 20, 21})));
    assert_int_equal(data->graph->edges, 6);
    assert_int_equal(data->edge_feature_count, 2);
    /* features follow their edge, into the mirrored entry too */
    assert_true(data->edge_features[2 * entry(data, 1, 2)] == 10 &&
                data->edge_features[2 * entry(data, 2, 1) + 1] == 11);
    assert_true(data->edge_features[2 * entry(data, 3, 2)] == 20);
    story_has(data, "3 were mirrored");
    mg_dataset_close(data);
}

static void keeps_directions_and_loops_when_asked(void **state)
{
    (void)state;
    const char *path =
        FILE_NPZ("loops.npz", FOUR, MEMBER("edges", "<i8", "(5, 2)", (int64_t[]){0, 1, 1, 0, 2, 2, 0, 1, 3, 0}));
    mg_dataset *data = open_with(path, &(mg_dataset_desc){.directed = 1});
    assert_int_equal(data->graph->edges, 4);
    assert_true(has_edge(data, 3, 0) && !has_edge(data, 0, 3));
    story_has(data, "1 duplicates");
    mg_dataset_close(data);
    data = open_plain(path);
    assert_int_equal(data->graph->edges, 5);
    assert_true(has_edge(data, 0, 3) && has_edge(data, 2, 2));
    story_has(data, "1 were mirrored and 1 duplicates merged; 1 self loops, kept");
    mg_dataset_close(data);
}

static void counts_nodes_by_edges_alone(void **state)
{
    (void)state;
    mg_dataset *data = open_plain(FILE_NPZ("bare.npz", EDGES));
    assert_int_equal(data->graph->nodes, 4);
    assert_int_equal(data->task, MG_DATASET_NONE);
    assert_null(data->features);
    story_has(data, "features: none");
    mg_dataset_close(data);
    data = open_plain(FILE_NPZ("none.npz", (file_member){"edges", "<i8", "(0, 2)", "", 0, 0, 0},
                               MEMBER("num_nodes", "<i8", "()", (int64_t[]){0})));
    assert_int_equal(data->graph->nodes, 0);
    mg_dataset_close(data);
}

/* --- splits --- */

#define LABELS MEMBER("node_labels", "<i8", "(4,)", (int64_t[]){0, 1, 0, 1})

static void splits_are(const char *path, int64_t splits, const uint8_t *expected)
{
    mg_dataset *data = open_plain(path);
    assert_int_equal(data->splits, splits);
    test_same_bytes(path, data->split, expected, (size_t)splits * 4);
    mg_dataset_close(data);
}

static void reads_masks_of_every_form(void **state)
{
    (void)state;
    const uint8_t one[] = {1, 2, 3, 0}, two[] = {1, 2, 3, 0, 3, 1, 0, 2};
    splits_are(FILE_NPZ("one.npz", EDGES, LABELS, MEMBER("train_mask", "|b1", "(4,)", BYTES(1, 0, 0, 0)),
                        MEMBER("val_mask", "|b1", "(4,)", BYTES(0, 1, 0, 0)),
                        MEMBER("test_mask", "|b1", "(4,)", BYTES(0, 0, 1, 0))),
               1, one);
    splits_are(FILE_NPZ("two.npz", EDGES, LABELS, MEMBER("train_masks", "|b1", "(2, 4)", BYTES(1, 0, 0, 0, 0, 1, 0, 0)),
                        MEMBER("val_masks", "|b1", "(2, 4)", BYTES(0, 1, 0, 0, 0, 0, 0, 1)),
                        MEMBER("test_masks", "|u1", "(2, 4)", BYTES(0, 0, 1, 0, 1, 0, 0, 0))),
               2, two);
    file_member turned = MEMBER("train_masks", "|b1", "(2, 4)", BYTES(1, 0, 0, 1, 0, 0, 0, 0));
    turned.fortran = 1;
    splits_are(FILE_NPZ("turned.npz", EDGES, LABELS, turned,
                        MEMBER("val_masks", "|b1", "(4, 2)", BYTES(0, 0, 1, 0, 0, 0, 0, 1)),
                        MEMBER("test_masks", "|b1", "(4, 2)", BYTES(0, 1, 0, 0, 1, 0, 0, 0))),
               2, two);
    splits_are(FILE_NPZ("lists.npz", EDGES, LABELS, MEMBER("train_idx", "<i8", "(1,)", (int64_t[]){0}),
                        MEMBER("val_idx", "<i4", "(1,)", (int32_t[]){1}), MEMBER("test_idx", "|u1", "(1,)", BYTES(2))),
               1, one);
    /* integers that could be either are indices where their name says so, or where they are not all 0 and 1 */
    splits_are(FILE_NPZ("masked.npz", EDGES, LABELS, MEMBER("train_masks", "<i8", "(2,)", (int64_t[]){0, 3})), 1,
               (uint8_t[]){1, 0, 0, 1});
    splits_are(FILE_NPZ("named.npz", EDGES, LABELS, MEMBER("train_idx", "<i8", "(4,)", (int64_t[]){0, 1, 1, 0})), 1,
               (uint8_t[]){1, 1, 0, 0});
}

static void takes_unlabelled_items_off_splits(void **state)
{
    (void)state;
    mg_dataset *data = open_plain(FILE_NPZ(
        "off.npz", EDGES, MEMBER("node_labels", "<f4", "(4,)", (float[]){0, NAN, 1, 0}),
        MEMBER("train_mask", "|b1", "(4,)", BYTES(1, 1, 1, 0)), MEMBER("test_mask", "|b1", "(4,)", BYTES(0, 0, 0, 1))));
    test_same_bytes("split", data->split, (uint8_t[]){1, 0, 1, 3}, 4);
    story_has(data, "1 items taken out of it, having no label");
    story_has(data, "no member val_masks");
    mg_dataset_close(data);
}

static void refuses_wrong_splits(void **state)
{
    (void)state;
    REFUSE(FILE_NPZ("s1.npz", EDGES, LABELS, MEMBER("train_mask", "|b1", "(4,)", BYTES(1, 0, 0, 0)),
                    MEMBER("test_mask", "|b1", "(4,)", BYTES(1, 0, 0, 0))),
           "member test_mask", "item 0", "train", "test");
    REFUSE(FILE_NPZ("s2.npz", EDGES, LABELS, MEMBER("train_mask", "|b1", "(3,)", BYTES(1, 0, 0))), "train_mask",
           "3 items", "4");
    REFUSE(FILE_NPZ("s3.npz", EDGES, LABELS, MEMBER("train_idx", "<i8", "(1,)", (int64_t[]){4})), "train_idx", "item 4",
           "0 to 3");
    REFUSE(FILE_NPZ("s4.npz", EDGES, LABELS, MEMBER("train_masks", "|b1", "(1, 4)", BYTES(1, 0, 0, 0)),
                    MEMBER("val_masks", "|b1", "(2, 4)", BYTES(0, 1, 0, 0, 0, 0, 0, 0))),
           "val_masks", "2 splits", "1");
}

/* --- CSR --- */

#define ADJ                                                                                                            \
    MEMBER("adj_indices", "<i4", "(3,)", (int32_t[]){1, 2, 0}),                                                        \
        MEMBER("adj_indptr", "<i4", "(4,)", (int32_t[]){0, 2, 2, 3})

static void reads_csr_members(void **state)
{
    (void)state;
    mg_dataset *data = open_plain(FILE_NPZ(
        "csr.npz", ADJ, MEMBER("adj_data", "<f4", "(3,)", (float[]){1, 2.5, 1}),
        MEMBER("adj_shape", "<i8", "(2,)", (int64_t[]){3, 3}), MEMBER("attr_data", "<f4", "(3,)", (float[]){1, 2, 3}),
        MEMBER("attr_indices", "<i4", "(3,)", (int32_t[]){0, 3, 1}),
        MEMBER("attr_indptr", "<i4", "(4,)", (int32_t[]){0, 2, 2, 3}),
        MEMBER("attr_shape", "<i8", "(2,)", (int64_t[]){3, 5}), MEMBER("labels", "|i1", "(3,)", (int8_t[]){1, 0, 1}),
        MEMBER("class_names", "<U2", "(2,)", (uint32_t[]){'a', 'b', 0xe9, 0}),
        MEMBER("node_names", "|S3", "(3,)", BYTES('x', 0, 0, 'y', 'z', 0, 'u', 'v', 'w'))));
    assert_int_equal(data->graph->edges, 4);
    assert_true(data->edge_features[entry(data, 0, 2)] == 2.5f && data->edge_features[entry(data, 2, 0)] == 1);
    assert_int_equal(data->feature_count, 5);
    const float expected[15] = {1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0};
    test_same_bytes("attr", data->features, expected, sizeof expected);
    assert_string_equal(data->class_names[0], "ab");
    assert_string_equal(data->class_names[1], "\xc3\xa9");
    assert_string_equal(data->node_names[1], "yz");
    assert_string_equal(data->node_names[2], "uvw");
    mg_dataset_close(data);
}

static void refuses_wrong_csr(void **state)
{
    (void)state;
    REFUSE(FILE_NPZ("c1.npz", MEMBER("adj_indices", "<i4", "(1,)", (int32_t[]){1})), "adj_indptr");
    REFUSE(FILE_NPZ("c2.npz", MEMBER("adj_indices", "<i4", "(2,)", (int32_t[]){1, 0}),
                    MEMBER("adj_indptr", "<i4", "(3,)", (int32_t[]){0, 3, 2})),
           "adj_indptr", "row 1");
    REFUSE(FILE_NPZ("c3.npz", MEMBER("adj_indices", "<i4", "(1,)", (int32_t[]){7}),
                    MEMBER("adj_shape", "<i8", "(2,)", (int64_t[]){1, 1}),
                    MEMBER("adj_indptr", "<i4", "(2,)", (int32_t[]){0, 1})),
           "adj_indices", "entry 0 is 7");
    /* a shape that would take terabytes is refused by its numbers, not by running out of memory */
    REFUSE(FILE_NPZ("c4.npz", ADJ, MEMBER("attr_indices", "<i4", "(1,)", (int32_t[]){0}),
                    MEMBER("attr_indptr", "<i4", "(4,)", (int32_t[]){0, 1, 1, 1}),
                    MEMBER("attr_shape", "<i8", "(2,)", (int64_t[]){3, 1000000000000})),
           "attr", "1000000000000", "sparse");
}

/* --- refusals --- */

static void refuses_what_it_cannot_read_by_name(void **state)
{
    (void)state;
    REFUSE(FILE_NPZ("r1.npz", EDGES, MEMBER("node_labels", "|O", "(4,)", "pickle")), "member node_labels",
           "Python objects");
    REFUSE(FILE_NPZ("r2.npz", EDGES, MEMBER("node_features", "<c8", "(4, 1)", (double[]){1, 2, 3, 4})), "node_features",
           "<c8");
    REFUSE(FILE_NPZ("r3.npz", FOUR), "edges");
    REFUSE(FILE_NPZ("r4.npz", FOUR, MEMBER("edges", "<i8", "(1, 2)", (int64_t[]){0, 4})), "edge 0", "4", "0 to 3",
           "from 1");
    REFUSE(FILE_NPZ("r5.npz", FOUR, MEMBER("edges", "<i8", "(1, 2)", (int64_t[]){-1, 0})), "edge 0", "-1");
    REFUSE(FILE_NPZ("r6.npz", FOUR, MEMBER("edges", "<f4", "(1, 2)", (float[]){0, .5f})), "member edges", "element 1");
    REFUSE(FILE_NPZ("r7.npz", EDGES, MEMBER("node_features", "<f4", "(4, 1)", (float[]){1, 2, INFINITY, 4})), "row 2",
           "inf");
    REFUSE(FILE_NPZ("r8.npz", FOUR, EDGES, MEMBER("node_labels", "<i8", "(3,)", (int64_t[]){0, 1, 0})), "node_labels",
           "3 rows", "4");
    REFUSE(FILE_NPZ("r9.npz", FOUR, EDGES, MEMBER("edge_features", "<f4", "(2,)", (float[]){0, 1})), "edge_features",
           "2 rows", "3");
    REFUSE(FILE_NPZ("r10.npz", MEMBER("edges", "<i8", "(3, 3)", (int64_t[9]){0})), "member edges", "[edges, 2]");
    REFUSE(FILE_NPZ("r11.npz", MEMBER("edges", "<i8", "(1000000000, 2)", (int64_t[]){0, 1})), "edges",
           "2000000000 elements");
    REFUSE(FILE_NPZ("r12.npz", MEMBER("edges", "<i8", "(1, 2)", (int64_t[]){0, 2000000000})), "2000000001 nodes");
    REFUSE(FILE_NPZ("r13.npz", EDGES, MEMBER("node_labels", "<i8", "(4,)", (int64_t[]){0, 1, 2, 5}),
                    MEMBER("class_names", "|S1", "(2,)", "a")),
           "class_names");
    REFUSE(FILE_NPZ("r14.npz", EDGES, FOUR, MEMBER("graph_segments", "<i8", "(3,)", (int64_t[]){0, 2, 4})),
           "nodes 1 and 2", "different graphs");
    REFUSE(FILE_NPZ("r15.npz", EDGES, MEMBER("node_labels", "<i8", "(4,)", (int64_t[]){0, 1, 2, 1LL << 60})),
           "node_labels", "2^53");
    REFUSE(file_text("r16.npz", "PK\3\4 no archive"), "r16.npz", "not a readable .npz");
    REFUSE(file_text("r17.npz", "\x93NUMPY"), "r17.npz", "one .npy array");
}

static void refuses_damaged_data(void **state)
{
    (void)state;
    file_member features = FOUR;
    features.stored = 1;
    const char *path = FILE_NPZ("damaged.npz", features, EDGES);
    FILE *file = fopen(path, "r+b");
    char bytes[256];
    size_t length = fread(bytes, 1, sizeof bytes, file);
    const float three = 3;
    char *at = memmem(bytes, length, &three, sizeof three);
    assert_non_null(at);
    fseek(file, at - bytes, SEEK_SET);
    fputc(1, file);
    fclose(file);
    REFUSE(path, "member node_features", "damaged");
    refuse(file_path("missing.npz"), &(mg_dataset_desc){0}, -ENOENT, (const char *const[]){"missing.npz", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_every_kind_of_number),
                                       cmocka_unit_test(reads_half_precision_extremes),
                                       cmocka_unit_test(reads_bool_features_and_fortran_order),
        cmocka_unit_test(names_members_that_it_does_not_use),
        cmocka_unit_test(reads_edges_of_both_shapes),
                                       cmocka_unit_test(keeps_directions_and_loops_when_asked),
                                       cmocka_unit_test(counts_nodes_by_edges_alone),
                                       cmocka_unit_test(reads_masks_of_every_form),
                                       cmocka_unit_test(takes_unlabelled_items_off_splits),
                                       cmocka_unit_test(refuses_wrong_splits),
                                       cmocka_unit_test(reads_csr_members),
                                       cmocka_unit_test(refuses_wrong_csr),
                                       cmocka_unit_test(refuses_what_it_cannot_read_by_name),
                                       cmocka_unit_test(refuses_damaged_data)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
