/* The n-th allocation fails, for every n, in each reader and writer: -ENOMEM, and nothing is lost or left behind. */
#include "dataset_files.h"

typedef struct work {
    const char *path;
    mg_dataset_desc desc;
    const mg_dataset *data;
} work;

static int opens(void *context)
{
    const work *what = context;
    mg_dataset *data = NULL;
    int status = mg_dataset_open(&data, what->path, &what->desc);
    mg_dataset_close(data);
    return status;
}

static void every_fault(int (*work_of)(void *), work *what, int64_t least)
{
    int64_t tried = test_every_allocation_fails(mg_graph_set_memory_hook, work_of, what);
    if (tried < least)
        fail_msg("%s: only %lld allocations", what->path, (long long)tried);
}

#define EDGES MEMBER("edges", "<i8", "(3, 2)", (int64_t[]){0, 1, 1, 2, 2, 3})

static void npz(void **state)
{
    (void)state;
    every_fault(
        opens,
        &(work){.path = FILE_NPZ("a.npz", EDGES, MEMBER("node_features", "<f4", "(4, 1)", (float[]){1, 2, 3, 4}),
                                 MEMBER("edge_features", "<f4", "(3,)", (float[]){1, 2, 3}),
                                 MEMBER("node_labels", "<i8", "(4,)", (int64_t[]){0, 1, 0, 1}),
                                 MEMBER("class_names", "|S1", "(2,)", (char[]){'a', 'b'}),
                                 MEMBER("train_mask", "|b1", "(4,)", (uint8_t[]){1, 0, 0, 0}))},
        20);
    every_fault(opens,
                &(work){.path = FILE_NPZ("b.npz", MEMBER("adj_indices", "<i4", "(2,)", (int32_t[]){1, 0}),
                                         MEMBER("adj_data", "<i4", "(2,)", (int32_t[]){1, 7}),
                                         MEMBER("adj_indptr", "<i4", "(3,)", (int32_t[]){0, 1, 2}),
                                         MEMBER("attr_indices", "<i4", "(1,)", (int32_t[]){1}),
                                         MEMBER("attr_indptr", "<i4", "(3,)", (int32_t[]){0, 1, 1}),
                                         MEMBER("labels", "|S1", "(2,)", (char[]){'a', 'b'}))},
                20);
    every_fault(opens,
                &(work){.path = FILE_NPZ("c.npz", EDGES, MEMBER("graph_segments", "<i8", "(2,)", (int64_t[]){0, 4}),
                                         MEMBER("graph_targets", "<f4", "(1, 2)", (float[]){.5f, 1}))},
                15);
}

static void text(void **state)
{
    (void)state;
    const char *labels = file_text("l.csv", "2,x\n1,y\n3,x\n"), *features = file_text("f.csv", "1,1\n2,2\n3,3\n");
    every_fault(opens,
                &(work){file_text("a.graph", "3 2 11\n1 2 5\n1 1 5 3 6\n1 2 6\n"),
                        {.labels = labels, .features = features},
                        NULL},
                30);
    every_fault(opens,
                &(work){file_text("a.mtx", "%%MatrixMarket matrix coordinate real symmetric\n3 3 1\n2 1 1\n"),
                        {.labels = labels},
                        NULL},
                20);
    every_fault(opens, &(work){file_text("a.edges", "1 3 .5\n2 3 1\n"), {.labels = labels, .features = features}, NULL},
                30);
    every_fault(opens, &(work){file_text("b.csv", "source,target\na,b\nb,c\n"), {0}, NULL}, 15);
}

static void folders(void **state)
{
    (void)state;
    file_text("tu/DS_A.txt", "1,2\n2,1\n");
    file_text("tu/DS_graph_indicator.txt", "1\n1\n2\n");
    file_text("tu/DS_graph_labels.txt", "1\n2\n");
    file_text("tu/DS_graph_attributes.txt", "1\n2\n");
    file_text("tu/DS_node_labels.txt", "1\n2\n1\n");
    file_text("tu/DS_node_attributes.txt", "1\n2\n1\n");
    file_text("tu/DS_edge_attributes.txt", "1\n2\n");
    every_fault(opens, &(work){.path = file_path("tu")}, 40);
    file_text("ogb/raw/num-node-list.csv", "2\n1\n");
    file_text("ogb/raw/num-edge-list.csv", "1\n0\n");
    file_text("ogb/raw/edge.csv", "0,1\n");
    file_text("ogb/raw/node-feat.csv", "5\n5\n6\n");
    file_text("ogb/raw/edge-feat.csv", "0.5\n");
    file_text("ogb/raw/graph-label.csv", "0\n1\n");
    file_text("ogb/split/x/train.csv", "0\n");
    file_text("ogb/split/x/valid.csv", "1\n");
    file_text("ogb/split/x/test.csv", "");
    every_fault(opens, &(work){.path = file_path("ogb")}, 40);
}

static int imports(void *context)
{
    static const char dump[] =
        "Package: a\nSection: x\nDepends: b\nDescription: some words\n\nPackage: b\nSection: y\n";
    mg_dataset *data = NULL;
    (void)context;
    int status = mg_dataset_import_debian(&data, dump, sizeof dump - 1);
    mg_dataset_close(data);
    return status;
}

static int writes(void *context)
{
    const work *what = context;
    return mg_dataset_write_npz(what->data, what->path);
}

static int writes_values(void *context) { return mg_dataset_write_npy(((work *)context)->path, (float[]){1, 2}, 1, 2); }

static int splits(void *context)
{
    uint8_t split[8];
    return mg_dataset_split(split, ((work *)context)->data, 0, 0, 1);
}

static int creates(void *context)
{
    mg_dataset *data = NULL;
    int status = mg_dataset_create(&data, ((work *)context)->data);
    mg_dataset_close(data);
    return status;
}

static void writers_and_makers(void **state)
{
    (void)state;
    every_fault(imports, &(work){.path = "debian"}, 20);
    work what = {file_path("out.npz"), {0}, open_plain(file_path("a.edges"))};
    every_fault(creates, &what, 7);
    mg_dataset_close((mg_dataset *)what.data);
    what.data = open_plain(FILE_NPZ("d.npz", EDGES, MEMBER("node_labels", "<i8", "(4,)", (int64_t[]){0, 1, 0, 1})));
    every_fault(splits, &what, 3);
    int before = file_count();
    every_fault(writes, &what, 5);
    assert_int_equal(file_count(), before + 1); /* out.npz itself */
    what.path = file_path("out.npy");
    every_fault(writes_values, &what, 1);
    mg_dataset_close((mg_dataset *)what.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(npz), cmocka_unit_test(text), cmocka_unit_test(folders),
                                       cmocka_unit_test(writers_and_makers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
