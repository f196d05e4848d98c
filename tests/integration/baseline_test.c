/* The field's ways to attend, in the same program: dense equals graphormer, edge and masked dense equal gt. */
#include "integration/ranks_case.h"

static const char graphormer[] = "model.kind=graphormer model.heads=4 model.attention_dropout=0 ",
                  gt[] = "model.kind=gt model.heads=4 model.attention_dropout=0 attention.far=mask "
                         "model.encodings.distance=2 ",
                  gps[] = "model.kind=gps model.local=gatedgcn model.heads=4 model.attention_dropout=0 "
                          "attention.far=mask model.encodings.distance=2 ",
                  odd[] = "model.kind=gt model.heads=4 model.hidden=20 model.attention_dropout=0 attention.far=mask "
                          "model.encodings.distance=1 ",
                  many[] = "model.kind=graphormer model.heads=4 model.attention_dropout=0 model.encodings.distance=20 ";

static void same(const char *model, const char *settings, const char *const *baselines)
{
    static const int counts[] = {1, 2, 4};
    char one[32], name[64], all[512];
    snprintf(one, sizeof one, "%s-ours", model);
    ranks_train(one, "graph.npz", settings, 1);
    for (int b = 0; baselines[b]; b++)
        for (int c = 0; c < 3; c++) {
            snprintf(name, sizeof name, "%s-%s-%d", model, baselines[b], counts[c]);
            snprintf(all, sizeof all, "%s baseline=%s", settings, baselines[b]);
            ranks_train(name, "graph.npz", all, counts[c]);
            ranks_compare(name, one);
        }
}

static void dense_is_graphormer(void **state)
{
    (void)state;
    same("graphormer", graphormer, (const char *const[]){"dense", "dense_rows", NULL});
    same("many", many, (const char *const[]){"dense_rows", NULL}); /* codes that do not fit a register */
}

static void edge_is_gt(void **state)
{
    (void)state;
    same("gt", gt, (const char *const[]){"edge", "edge_rows", "dense", NULL});
    same("gps", gps, (const char *const[]){"edge", "edge_rows", NULL});
    same("odd", odd, (const char *const[]){"edge", "edge_rows", NULL}); /* heads of 5 */
}

static void flash_is_attention_without_bias(void **state)
{
    (void)state;
    ranks_train("plain", "graph.npz", "model.kind=graphormer model.heads=4 model.encodings.distance=0", 1);
    ranks_train("flash", "graph.npz", "model.kind=graphormer model.heads=4 baseline=flash", 2);
    ranks_compare("flash", "plain");
}

static void what_is_held_is_what_it_says(void **state)
{
    (void)state;
    char expected[128];
    snprintf(expected, sizeof expected, "baseline dense needs %d bytes", 150 * 150 * (2 * 4 * (8 + 2) + 1));
    ranks_run(2,
              "train --data graph.npz --out held --set train.epochs=1 model.layers=2 model.dropout=0 %s baseline=dense",
              graphormer);
    program_refuses(expected,
                    "train --data graph.npz --out r --ranks 2 --memory 1700K --set model.layers=8 %s baseline=dense",
                    graphormer);
    json_t *summary = program_json("held/summary.json"), *peaks = json_object_get(summary, "peak_memory_bytes");
    for (size_t r = 0; r < 2; r++)
        assert_true(json_integer_value(json_array_get(peaks, r)) > 150 * 150 * (2 * 4 * (2 + 2) + 1));
    json_decref(summary);
}

/* Bytes over edges of a rank of 2, with 2 heads of 4. */
static long long edge_bytes(int rows, long long pairs, int layers)
{
    enum { HEADS = 2, DIM = 4, NODES = 150 };
    const long long weights = pairs * HEADS, kept = rows ? 1 : 3 * DIM + 1, work = rows ? 1 : 2 * DIM + 1;
    return 4 * (layers * weights * kept + weights * work + 256 * HEADS * 32) + 8 * (NODES + 1) + 8 * pairs;
}

/* How many pairs the refusal names; its bytes must be the formula's. */
static long long refused_pairs(const char *name, int rows)
{
    long long bytes, pairs;
    char part[64];
    snprintf(part, sizeof part, "baseline %s needs ", name);
    program_refuses(part,
                    "train --data graph.npz --out r --ranks 2 --memory 3M --set model.layers=200 "
                    "model.hidden=16 %s baseline=%s",
                    gt, name);
    char *said = program_text("stderr"), *line = strstr(said, part);
    assert_int_equal(sscanf(line + strlen(part), "%lld bytes (%*f GiB) on each rank: %lld", &bytes, &pairs), 2);
    free(said);
    assert_int_equal(bytes, edge_bytes(rows, pairs, 200));
    return pairs;
}

/* The least of the ranks' peaks. */
static long long peak_of(const char *name, int layers)
{
    long long least = INT64_MAX;
    ranks_run(2,
              "train --data graph.npz --out held-%s-%d --set train.epochs=1 model.layers=%d model.hidden=16 "
              "model.dropout=0 %s baseline=%s",
              name, layers, layers, gt, name);
    char path[64];
    snprintf(path, sizeof path, "held-%s-%d/summary.json", name, layers);
    json_t *summary = program_json(path), *peaks = json_object_get(summary, "peak_memory_bytes");
    for (size_t r = 0; r < 2; r++) {
        const long long peak = json_integer_value(json_array_get(peaks, r));
        least = peak < least ? peak : least;
    }
    json_decref(summary);
    return least;
}

/* More layers take what the formula says, and activations. */
static void held_over_edges_is_what_it_says(void **state)
{
    (void)state;
    enum { FEW = 20, MANY = 60, ACTIVATIONS = 100000 }; /* bytes of a layer's at most */
    static const char *const names[] = {"edge", "edge_rows"};
    for (int rows = 0; rows < 2; rows++) {
        const long long pairs = refused_pairs(names[rows], rows);
        const long long more = edge_bytes(rows, pairs, MANY) - edge_bytes(rows, pairs, FEW);
        const long long held = peak_of(names[rows], MANY) - peak_of(names[rows], FEW);
        if (held < more || held > more + (MANY - FEW) * ACTIVATIONS)
            fail_msg("%s: %d layers more held %lld bytes more, of which edges need %lld", names[rows], MANY - FEW, held,
                     more);
    }
}

static void predicts(void **state)
{
    (void)state;
    ranks_run(2, "predict --run graphormer-dense-2 --out dense.npy");
}

static void refused(void **state)
{
    (void)state;
    program_works("generate graphs --out graphs.npz --graphs 20 --nodes 6");
    program_refuses("8 ranks are more than the 4 heads",
                    "train --data graph.npz --out r --ranks 8 --set %s baseline=dense", graphormer);
    program_refuses("parallel.context_method is ring",
                    "train --data graph.npz --out r --ranks 2 --set %s baseline=dense parallel.context_method=ring",
                    graphormer);
    program_refuses("model.attention_dropout is 0.5",
                    "train --data graph.npz --out r --set %s baseline=edge model.attention_dropout=0.5", gt);
    program_refuses("attention.far=mask", "train --data graph.npz --out r --set %s baseline=edge", graphormer);
    program_refuses("needs attention.bias dense",
                    "train --data graph.npz --out r --set %s baseline=dense attention.bias=tiles", graphormer);
    program_refuses("for one whole graph", "train --data graphs.npz --out r --set %s baseline=dense", graphormer);
    program_refuses("there is no attention",
                    "train --data graph.npz --out r --set model.kind=gps model.heads=0 baseline=flash");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_is_graphormer),
        cmocka_unit_test(edge_is_gt),
        cmocka_unit_test(flash_is_attention_without_bias),
        cmocka_unit_test(what_is_held_is_what_it_says),
        cmocka_unit_test(held_over_edges_is_what_it_says),
        cmocka_unit_test(predicts),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, ranks_make_data, program_teardown);
}
