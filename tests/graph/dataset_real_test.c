/* Real files, with the counts that their README tells; Debian's archive. */
#include "dataset_files.h"

typedef struct real {
    const char *file;
    int64_t nodes, undirected, features, classes, items, splits;
} real;

static mg_dataset *expect(const real *set)
{
    mg_dataset *data = open_plain(test_data(set->file));
    assert_int_equal(data->graph->nodes, set->nodes);
    assert_int_equal(data->graph->edges, 2 * set->undirected);
    assert_int_equal(data->feature_count, set->features);
    assert_int_equal(data->classes, set->classes);
    assert_int_equal(data->items, set->items);
    assert_int_equal(data->splits, set->splits);
    return data;
}

static void counts_are(const mg_dataset *data, int64_t train, int64_t validation, int64_t test)
{
    int64_t counts[4] = {0};
    for (int64_t i = 0; i < data->items; i++)
        counts[data->split[i]]++;
    assert_int_equal(counts[MG_DATASET_TRAIN], train);
    assert_int_equal(counts[MG_DATASET_VALIDATION], validation);
    assert_int_equal(counts[MG_DATASET_TEST], test);
}

static void cora(void **state)
{
    (void)state;
    mg_dataset *data = expect(&(real){"cora.npz", 2708, 5278, 1433, 7, 2708, 1});
    counts_are(data, 140, 500, 1000);
    mg_dataset_close(data);
}

static void cora_as_csr(void **state)
{
    (void)state;
    mg_dataset *data = expect(&(real){"cora_csr.npz", 2708, 5278, 1433, 7, 2708, 0});
    assert_string_equal(data->class_names[0], "Case_Based");
    assert_string_equal(data->class_names[6], "Theory");
    assert_non_null(data->node_names);
    double sum = 0;
    for (int64_t i = 0; i < data->items * data->feature_count; i++)
        sum += data->features[i];
    assert_true(sum == 49216);
    mg_dataset_close(data);
}

static void chameleon(void **state)
{
    (void)state;
    mg_dataset_close(expect(&(real){"chameleon_filtered.npz", 890, 8854, 2325, 5, 890, 10}));
}

static void minesweeper(void **state)
{
    (void)state;
    mg_dataset_close(expect(&(real){"minesweeper.npz", 10000, 39402, 7, 2, 10000, 10}));
}

static void tolokers(void **state)
{
    (void)state;
    mg_dataset_close(expect(&(real){"tolokers.npz", 11758, 519000, 10, 2, 11758, 10}));
}

static void debian(void **state)
{
    (void)state;
    mg_dataset *data = expect(&(real){"debian.npz", 63681, 275767, 128, 58, 63681, 1});
    story_has(data, "largest degree 21841");
    mg_dataset_close(data);
}

static void mutag(void **state)
{
    (void)state;
    mg_dataset *data = expect(&(real){"MUTAG", 3371, 3721, 7, 2, 188, 0});
    assert_int_equal(data->level, MG_DATASET_GRAPH);
    mg_dataset_close(data);
}

static void proteins(void **state)
{
    (void)state;
    mg_dataset_close(expect(&(real){"PROTEINS", 43471, 81044, 3, 2, 1113, 0}));
}

static void mesh(void **state)
{
    (void)state;
    mg_dataset_close(expect(&(real){"4elt.graph", 15606, 45878, 0, 0, 15606, 0}));
}

/* --- Debian's archive --- */

static const char archive[] = "Package: zlib\nSection: universe/libs\nDescription: Compression library\n"
                              "Depends: libc (>= 2.3), base:any | absent [amd64],\n  tool\n\n"
                              "Package: libc\nVersion: 2\nSection: libs\nDescription: the C library\n\n"
                              "Package: libc\nVersion: 1\nSection: admin\nDepends: tool\n\n"
                              "Package: base\nSection: admin\nPre-Depends: libc, base\nSuggests: zlib\n\n"
                              "Package: tool\nSection: \nRecommends: zlib | virtual";

static void imports_an_archive(void **state)
{
    (void)state;
    mg_dataset *data = NULL;
    assert_int_equal(mg_dataset_import_debian(&data, archive, sizeof archive - 1), 0);
    const char *const names[] = {"base", "libc", "tool", "zlib"};
    for (int i = 0; i < 4; i++)
        assert_string_equal(data->node_names[i], names[i]);
    assert_int_equal(data->graph->edges, 8);
    assert_true(has_edge(data, 3, 1) && has_edge(data, 3, 0) && has_edge(data, 3, 2) && has_edge(data, 0, 1));
    test_same_bytes("labels", data->labels, (int32_t[]){0, 1, -1, 1}, 16);
    assert_string_equal(data->class_names[1], "libs");
    assert_int_equal(data->feature_count, 128);
    int shared = 0, set = 0;
    for (int f = 0; f < 128; f++) {
        set += data->features[128 + f] != 0;
        shared += data->features[128 + f] != 0 && data->features[3 * 128 + f] != 0;
    }
    assert_in_range(set, 3, 4);    /* "the", "library"; "C" is too short a word */
    assert_in_range(shared, 2, 4); /* "library" */
    assert_int_equal(data->splits, 1);
    story_has(data, "4 packages; 1 paragraphs dropped");
    story_has(data, "2 on names that are no package (virtual ones), 1 of a package on itself");
    mg_dataset_close(data);
    assert_int_equal(mg_dataset_import_debian(&data, "nothing", 7), -EINVAL);
    assert_non_null(strstr(mg_dataset_last_error(), "dumpavail"));
    assert_null(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cora),      cmocka_unit_test(cora_as_csr),
                                       cmocka_unit_test(chameleon), cmocka_unit_test(minesweeper),
                                       cmocka_unit_test(tolokers),  cmocka_unit_test(debian),
                                       cmocka_unit_test(mutag),     cmocka_unit_test(proteins),
                                       cmocka_unit_test(mesh),      cmocka_unit_test(imports_an_archive)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
