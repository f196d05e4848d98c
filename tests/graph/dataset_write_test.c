/* What is written comes back, appears whole or not at all, and says why when it cannot be. */
#define _GNU_SOURCE
#include "dataset_files.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void same_strings(char *const *a, char *const *b, int64_t count)
{
    assert_int_equal(a == NULL, b == NULL);
    for (int64_t i = 0; a && i < count; i++)
        assert_string_equal(a[i], b[i]);
}

static void same_block(const char *what, const void *a, const void *b, int64_t count, size_t size)
{
    assert_int_equal(a == NULL, b == NULL);
    if (a)
        test_same_bytes(what, b, a, (size_t)count * size);
}

static void comes_back(const mg_dataset *parts)
{
    mg_dataset *data = NULL;
    if (mg_dataset_create(&data, parts))
        fail_msg("%s", mg_dataset_last_error());
    const char *path = file_path("again.npz");
    if (mg_dataset_write_npz(data, path))
        fail_msg("%s", mg_dataset_last_error());
    mg_dataset *again = open_plain(path);
    assert_true(mg_graph_hash(again->graph) == mg_graph_hash(data->graph));
    assert_int_equal(again->graphs, data->graphs);
    same_block("segments", data->segments, again->segments, data->graphs + 1, 8);
    assert_int_equal(again->feature_count, data->feature_count);
    same_block("features", data->features, again->features, data->graph->nodes * data->feature_count, 4);
    assert_int_equal(again->edge_feature_count, data->edge_feature_count);
    same_block("edge features", data->edge_features, again->edge_features,
               data->graph->edges * data->edge_feature_count, 4);
    assert_int_equal(again->level, data->level);
    assert_int_equal(again->task, data->task);
    assert_int_equal(again->classes, data->classes);
    same_block("labels", data->labels, again->labels, data->items, 4);
    same_strings(data->class_names, again->class_names, data->classes);
    assert_int_equal(again->target_count, data->target_count);
    same_block("targets", data->targets, again->targets, data->items * data->target_count, 4);
    assert_int_equal(again->splits, data->splits);
    same_block("split", data->split, again->split, data->items * data->splits, 1);
    same_strings(data->node_names, again->node_names, data->graph->nodes);
    mg_dataset_close(data);
    mg_dataset_close(again);
}

/* A path 0-1-2 and a pair 3-4, in both directions. */
static mg_graph path_and_pair = {5, 6, (int64_t[]){0, 1, 3, 4, 5, 6}, (int32_t[]){1, 0, 2, 1, 4, 3}};
static mg_graph one_way = {3, 3, (int64_t[]){0, 2, 3, 3}, (int32_t[]){0, 2, 2}};

static void everything_comes_back(void **state)
{
    (void)state;
    comes_back(&(mg_dataset){.graph = &path_and_pair});
    comes_back(&(mg_dataset){.graph = &one_way}); /* not made undirected when read */
    comes_back(&(mg_dataset){.graph = &(mg_graph){0, 0, (int64_t[]){0}, (int32_t[]){0}}});
    comes_back(&(mg_dataset){.graph = &path_and_pair,
                             .feature_count = 2,
                             .features = (float[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 1e-40f},
                             .edge_feature_count = 1,
                             .edge_features = (float[]){1, 1, 2, 2, 3, 3},
                             .task = MG_DATASET_CLASSIFICATION,
                             .labels = (int32_t[]){0, 2, -1, 0, 2},
                             .classes = 3,
                             .class_names = (char *[]){"red", "10", "bl\xc3\xbc"},
                             .splits = 2,
                             .split = (uint8_t[]){1, 2, 0, 3, 1, 3, 3, 0, 1, 2},
                             .node_names = (char *[]){"a", "a longer name", "", "x,y", "5"}});
    /* features that differ by direction */
    comes_back(
        &(mg_dataset){.graph = &path_and_pair, .edge_feature_count = 1, .edge_features = (float[]){1, 2, 3, 4, 5, 6}});
    comes_back(&(mg_dataset){.graph = &path_and_pair,
                             .task = MG_DATASET_REGRESSION,
                             .target_count = 2,
                             .targets = (float[]){0, 1, 1, 0, NAN, 1, 0, 0, 1, 1}});
    comes_back(&(mg_dataset){.graph = &path_and_pair,
                             .task = MG_DATASET_MULTILABEL,
                             .target_count = 1,
                             .targets = (float[]){0, 1, NAN, 0, 1}});
    comes_back(&(mg_dataset){.graph = &path_and_pair,
                             .task = MG_DATASET_REGRESSION,
                             .target_count = 1,
                             .targets = (float[]){NAN, NAN, NAN, NAN, NAN}});
}

static void sets_of_graphs_come_back(void **state)
{
    (void)state;
    const mg_dataset two = {
        .graph = &path_and_pair, .graphs = 3, .segments = (int64_t[]){0, 3, 3, 5}, .level = MG_DATASET_GRAPH};
    mg_dataset set = two;
    comes_back(&set);
    set.task = MG_DATASET_CLASSIFICATION;
    set.labels = (int32_t[]){1, 0, -1};
    set.classes = 2;
    set.class_names = (char *[]){"-1", "1"};
    set.splits = 1;
    set.split = (uint8_t[]){1, 3, 0};
    comes_back(&set);
    set = two;
    set.task = MG_DATASET_REGRESSION;
    set.target_count = 1;
    set.targets = (float[]){.5f, 1, -1};
    comes_back(&set);
    set = two; /* many graphs whose nodes have the labels */
    set.level = MG_DATASET_NODE;
    set.task = MG_DATASET_MULTILABEL;
    set.target_count = 1;
    set.targets = (float[]){0, 1, 1, 0, NAN};
    comes_back(&set);
}

static void writes_npy(void **state)
{
    (void)state;
    const char *path = file_path("values.npy");
    assert_int_equal(mg_dataset_write_npy(path, (float[]){1, 2, 3, 4, 5, 6}, 2, 3), 0);
    FILE *file = fopen(path, "rb");
    char bytes[512];
    size_t length = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    size_t header = (size_t)(unsigned char)bytes[8] + 256 * (size_t)(unsigned char)bytes[9] + 10;
    test_same_bytes("magic", bytes, "\x93NUMPY\x01\x00", 8);
    assert_int_equal(header % 64, 0);
    assert_int_equal(length, header + 24);
    assert_non_null(strstr(bytes + 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"));
    assert_int_equal(bytes[header - 1], '\n');
    test_same_bytes("values", bytes + header, (float[]){1, 2, 3, 4, 5, 6}, 24);
    assert_int_equal(mg_dataset_write_npy(path, NULL, -1, 3), -EINVAL);
    assert_int_equal(mg_dataset_write_npy(path, NULL, 0, 3), 0);
}

static void full_disk(const char *path, int status, int expected)
{
    assert_int_equal(status, expected);
    if (!strstr(mg_dataset_last_error(), path))
        fail_msg("the line should name %s: %s", path, mg_dataset_last_error());
}

static void says_when_the_disk_is_full(void **state)
{
    (void)state;
    mg_dataset *data = NULL;
    float values[] = {1, 2};
    struct stat status;
    assert_int_equal(mg_dataset_create(&data, &(mg_dataset){.graph = &path_and_pair}), 0);
    full_disk("/dev/full", mg_dataset_write_npz(data, "/dev/full"), -ENOSPC);
    full_disk("/dev/full", mg_dataset_write_npy("/dev/full", values, 1, 2), -ENOSPC);
    assert_int_equal(stat("/dev/full", &status), 0);
    assert_true(S_ISCHR(status.st_mode)); /* it was not replaced */
    full_disk("/nowhere/x.npz", mg_dataset_write_npz(data, "/nowhere/x.npz"), -ENOENT);
    full_disk("/nowhere/x.npy", mg_dataset_write_npy("/nowhere/x.npy", values, 1, 2), -ENOENT);
    mg_dataset_close(data);
}

static void nothing_half_written_stays(void **state)
{
    (void)state;
    static float values[1 << 16];
    test_fill(values, 1 << 16, 1, 1);
    mg_dataset *data = NULL;
    mg_graph graph = {1, 0, (int64_t[]){0, 0}, (int32_t[]){0}};
    assert_int_equal(
        mg_dataset_create(&data, &(mg_dataset){.graph = &graph, .feature_count = 1 << 16, .features = values}), 0);
    const char *old = file_text("kept.npz", "the old file"), *new = file_path("new.npy");
    int before = file_count();
    struct rlimit limit, small;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    small = limit;
    small.rlim_cur = 40000;
    setrlimit(RLIMIT_FSIZE, &small);
    int wrote_npz = mg_dataset_write_npz(data, old);
    char line[512];
    snprintf(line, sizeof line, "%s", mg_dataset_last_error());
    int wrote_npy = mg_dataset_write_npy(new, values, 1, 1 << 16);
    setrlimit(RLIMIT_FSIZE, &limit);
    assert_int_equal(wrote_npz, -EFBIG);
    assert_non_null(strstr(line, old));
    full_disk(new, wrote_npy, -EFBIG);
    assert_int_equal(file_count(), before);
    FILE *file = fopen(old, "rb");
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    assert_string_equal(line, "the old file");
    mg_dataset_close(data);
}

static void files_have_the_usual_rights(void **state)
{
    (void)state;
    mg_dataset *data = NULL;
    struct stat status;
    mode_t mask = umask(027);
    const char *path = file_path("rights.npz");
    assert_int_equal(mg_dataset_create(&data, &(mg_dataset){.graph = &path_and_pair}), 0);
    assert_int_equal(mg_dataset_write_npz(data, path), 0);
    umask(mask);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0640);
    mg_dataset_close(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(everything_comes_back),
                                       cmocka_unit_test(sets_of_graphs_come_back),
                                       cmocka_unit_test(writes_npy),
                                       cmocka_unit_test(says_when_the_disk_is_full),
                                       cmocka_unit_test(nothing_half_written_stays),
                                       cmocka_unit_test(files_have_the_usual_rights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
