/* Training and predicting from end to end: what is left in RUN, in which order answers come, and every kind of task and
 * batch. */
#include <megagraph/dataset.h>
#include <sys/stat.h>

#include "program.h"

static const char small[] = "--set model.hidden=16 model.layers=1 model.heads=2";

static void make_sbm(void)
{
    struct stat info;
    if (stat("sbm.npz", &info))
        program_works("generate sbm --out sbm.npz --nodes 200 --blocks 4 --features 8 --noise 0.5");
}

static void makes_a_run(void **state)
{
    (void)state;
    static const char *const files[] = {"config.yaml",
                                        "plan.yaml",
                                        "log.jsonl",
                                        "summary.json",
                                        "checkpoint/manifest.json",
                                        "checkpoint/model.safetensors",
                                        "checkpoint/state.safetensors"};
    static const char *const keys[] = {"metric",
                                       "test",
                                       "validation",
                                       "best_epoch",
                                       "epochs",
                                       "parameters",
                                       "step_seconds_median",
                                       "preprocess_seconds",
                                       "total_seconds",
                                       "ranks",
                                       "peak_memory_bytes",
                                       "predicted_step_seconds",
                                       "predicted_memory_bytes"};
    struct stat info;
    char path[100];
    make_sbm();
    program_works("train --data sbm.npz --out first %s train.epochs=12", small);
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        snprintf(path, sizeof path, "first/%s", files[f]);
        if (stat(path, &info) || !info.st_size)
            fail_msg("%s is not there", path);
    }
    json_t *summary = program_json("first/summary.json");
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        if (!json_object_get(summary, keys[k]))
            fail_msg("summary.json has no %s", keys[k]);
    json_decref(summary);
    assert_true(program_number("first/summary.json", "test") > 0.8);
    assert_int_equal(program_lines("first/log.jsonl"), 24); /* a line a step and a line an epoch */
    program_works("train --config first/config.yaml --out again");
    assert_true(program_same("first/checkpoint/state.safetensors", "again/checkpoint/state.safetensors"));
}

/* Node p of shuffled.npz is node 77 p mod 200 of sbm.npz, whose node n is of class n * 4 / 200: the order that training
   prefers is then another than the file's. */
static int64_t node_of(int64_t place) { return 77 * place % 200; }

static void write_shuffled(void)
{
    mg_dataset *data, *shuffled;
    int32_t order[200], labels[200];
    float features[200][8];
    uint8_t split[200];
    assert_int_equal(mg_dataset_open(&data, "sbm.npz", &(mg_dataset_desc){0}), 0);
    for (int64_t p = 0; p < 200; p++) {
        order[p] = (int32_t)node_of(p);
        labels[p] = data->labels[node_of(p)];
        split[p] = data->split[node_of(p)];
        memcpy(features[p], data->features + 8 * node_of(p), sizeof features[p]);
    }
    mg_dataset parts = *data;
    parts.labels = labels;
    parts.split = split;
    parts.features = features[0];
    assert_int_equal(mg_graph_permute(&parts.graph, data->graph, order), 0);
    assert_int_equal(mg_dataset_create(&shuffled, &parts), 0);
    assert_int_equal(mg_dataset_write_npz(shuffled, "shuffled.npz"), 0);
    mg_graph_destroy(parts.graph);
    mg_dataset_close(shuffled);
    mg_dataset_close(data);
}

static void predicts_in_the_order_of_the_input(void **state)
{
    (void)state;
    char line[1024];
    int right = 0, rows = 0, id, class;
    double test;
    make_sbm();
    write_shuffled();
    program_works("train --data shuffled.npz --out shuffled %s train.epochs=12", small);
    program_works("predict --run shuffled --out p.csv --embeddings e.npy");
    assert_int_equal(sscanf(program_said, "test accuracy %lf", &test), 1);
    assert_true(fabs(test - program_number("shuffled/summary.json", "test")) < 1e-6);
    FILE *file = fopen("p.csv", "r");
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(line, "id,class,0,1,2,3\n");
    for (; fgets(line, sizeof line, file); rows++) {
        assert_int_equal(sscanf(line, "%d,%d,", &id, &class), 2);
        assert_int_equal(id, rows);
        right += class == node_of(rows) * 4 / 200;
    }
    fclose(file);
    assert_int_equal(rows, 200);
    assert_true(right > 160);
    char *header = program_text("e.npy");
    assert_non_null(strstr(header + 10, "(200, 16)"));
    free(header);
    program_works("predict --run shuffled --out p.npy --data sbm.npz");
    assert_non_null(strstr(program_said, "test accuracy"));
}

/* One step from the same start: bias as dense codes, near pairs, tiles and a stream is the same bias. */
static void every_storage_gives_the_same_loss(void **state)
{
    (void)state;
    static const char *const forms[] = {"dense", "near", "tiles", "stream"};
    double losses[4];
    char path[64];
    make_sbm();
    for (int f = 0; f < 4; f++) {
        program_works("train --data sbm.npz --out form-%s %s train.epochs=2 attention.bias=%s attention.far=bias",
                      forms[f], small, forms[f]);
        snprintf(path, sizeof path, "form-%s/log.jsonl", forms[f]);
        char *text = program_text(path), *last = strstr(text, "{\"step\":2");
        assert_non_null(last);
        assert_int_equal(sscanf(strstr(last, "\"loss\":"), "\"loss\":%lf", &losses[f]), 1);
        free(text);
        assert_true(fabs(losses[f] - losses[0]) < 1e-5 * losses[0]);
    }
}

static void threads_do_not_change_a_bit(void **state)
{
    (void)state;
    make_sbm();
    program_works("train --data sbm.npz --out one --threads 1 %s train.epochs=3", small);
    program_works("train --data sbm.npz --out three --threads 3 %s train.epochs=3", small);
    assert_true(program_same("one/checkpoint/state.safetensors", "three/checkpoint/state.safetensors"));
}

static void several_seeds_are_averaged(void **state)
{
    (void)state;
    make_sbm();
    program_works("train --data sbm.npz --out seeds --seeds 3 %s train.epochs=4 seed=5", small);
    double a = program_number("seeds/seed-5/summary.json", "test"),
           b = program_number("seeds/seed-6/summary.json", "test"),
           c = program_number("seeds/seed-7/summary.json", "test"), mean = (a + b + c) / 3;
    double deviation = sqrt(((a - mean) * (a - mean) + (b - mean) * (b - mean) + (c - mean) * (c - mean)) / 2);
    assert_true(fabs(program_number("seeds/summary.json", "test") - mean) < 1e-9);
    assert_true(fabs(program_number("seeds/summary.json", "test_deviation") - deviation) < 1e-9);
    assert_true(fabs(program_number("seeds/summary.json", "test_standard_error") - deviation / sqrt(3)) < 1e-9);
    program_works("train --config seeds/seed-6/config.yaml --out six");
    assert_true(program_same("six/checkpoint/state.safetensors", "seeds/seed-6/checkpoint/state.safetensors"));
    program_refuses("seed-0", "predict --run seeds --out p.csv");
}

static void folds_take_turns(void **state)
{
    (void)state;
    make_sbm();
    program_works("train --data sbm.npz --out folds %s train.epochs=2 data.folds=3", small);
    json_t *summary = program_json("folds/summary.json");
    assert_int_equal(json_object_size(json_object_get(summary, "runs")), 3);
    json_decref(summary);
    program_works("train --data sbm.npz --out fold-1 %s train.epochs=2 data.folds=3 data.fold=1", small);
    assert_true(program_same("folds/fold-1/checkpoint/state.safetensors", "fold-1/checkpoint/state.safetensors"));
}

static void clusters_make_a_step_each(void **state)
{
    (void)state;
    make_sbm();
    program_works("train --data sbm.npz --out clusters %s train.epochs=6 train.clusters=4", small);
    assert_non_null(strstr(program_said, "edges run between the 4 clusters"));
    assert_true(program_number("clusters/summary.json", "steps") == 24);
    program_works("train --data sbm.npz --out gathered %s train.epochs=6 train.clusters=4 train.accumulate=3", small);
    assert_true(program_number("gathered/summary.json", "steps") == 12);
    program_works("predict --run clusters --out clusters.csv");
}

/* Without dropout, the gradient of all clusters at once does not depend on how many make a micro-batch: the first loss
   is the mean over all training nodes either way. */
static void accumulated_loss_is_the_global_mean(void **state)
{
    (void)state;
    double first, sum = 0;
    make_sbm();
    const char *still =
        "model.dropout=0 model.attention_dropout=0 model.input_dropout=0 train.epochs=1 train.clusters=4";
    program_works("train --data sbm.npz --out all-at-once %s %s train.accumulate=4", small, still);
    program_works("train --data sbm.npz --out one-by-one %s %s train.lr=0", small, still);
    char *text = program_text("all-at-once/log.jsonl");
    assert_int_equal(sscanf(strstr(text, "\"loss\":"), "\"loss\":%lf", &first), 1);
    free(text);
    text = program_text("one-by-one/log.jsonl");
    char *epoch = strstr(text, "{\"epoch\"");
    assert_non_null(epoch);
    assert_int_equal(sscanf(strstr(epoch, "\"loss\":"), "\"loss\":%lf", &sum), 1);
    free(text);
    assert_true(fabs(first - sum) < 1e-6 * first);
}

static void classifies_graphs(void **state)
{
    (void)state;
    program_works("generate graphs --out graphs.npz --graphs 60 --nodes 8");
    static const char *const kinds[] = {"gps", "graphormer", "gt"};
    char path[64];
    double test;
    for (int k = 0; k < 3; k++) {
        program_works("train --data graphs.npz --out graphs-%s %s model.kind=%s train.epochs=4 train.batch_graphs=16",
                      kinds[k], small, kinds[k]);
        program_works("predict --run graphs-%s --out graphs.csv --embeddings graphs-e.csv", kinds[k]);
        assert_int_equal(sscanf(program_said, "test accuracy %lf", &test), 1);
        snprintf(path, sizeof path, "graphs-%s/summary.json", kinds[k]);
        assert_true(fabs(test - program_number(path, "test")) < 1e-6);
        assert_int_equal(program_lines("graphs.csv"), 61);
        assert_int_equal(program_lines("graphs-e.csv"), 61);
    }
}

/* Paths of 3 to 6 nodes with two target columns: kind 0 regression (length, NaN at times), kind 1 multilabel. */
static void write_paths(const char *file, int multilabel)
{
    enum { GRAPHS = 60, MOST = 6 * GRAPHS };
    int64_t sources[MOST], targets[MOST], segments[GRAPHS + 1] = {0}, edges = 0;
    float values[GRAPHS][2], features[MOST];
    uint8_t split[GRAPHS];
    mg_graph *graph;
    mg_dataset *data;
    for (int64_t g = 0; g < GRAPHS; g++) {
        int64_t nodes = 3 + g % 4, begin = segments[g];
        segments[g + 1] = begin + nodes;
        for (int64_t i = 0; i + 1 < nodes; i++, edges++) {
            sources[edges] = begin + i;
            targets[edges] = begin + i + 1;
        }
        for (int64_t i = 0; i < nodes; i++)
            features[begin + i] = test_random(9, (uint64_t)(begin + i));
        values[g][0] = multilabel ? nodes > 4 : 100 + 10 * (float)nodes;
        values[g][1] = g % 5 == 0 ? NAN : multilabel ? nodes % 2 : (float)(nodes % 2) - 0.5f;
        split[g] = g % 5 == 4 ? MG_DATASET_TEST : g % 5 == 3 ? MG_DATASET_VALIDATION : MG_DATASET_TRAIN;
    }
    assert_int_equal(
        mg_graph_create(
            &graph, &(mg_graph_desc){.nodes = segments[GRAPHS], .edges = edges, .sources = sources, .targets = targets},
            NULL),
        0);
    mg_dataset parts = {.name = (char *)"paths",
                        .graph = graph,
                        .graphs = GRAPHS,
                        .segments = segments,
                        .feature_count = 1,
                        .features = features,
                        .level = MG_DATASET_GRAPH,
                        .task = multilabel ? MG_DATASET_MULTILABEL : MG_DATASET_REGRESSION,
                        .items = GRAPHS,
                        .target_count = 2,
                        .targets = values[0],
                        .splits = 1,
                        .split = split};
    if (mg_dataset_create(&data, &parts) || mg_dataset_write_npz(data, file))
        fail_msg("%s", mg_dataset_last_error());
    mg_dataset_close(data);
    mg_graph_destroy(graph);
}

static void regression_in_the_targets_own_units(void **state)
{
    (void)state;
    double test, value;
    char line[256];
    write_paths("regression.npz", 0);
    program_works("train --data regression.npz --out regression %s train.epochs=40 train.batch_graphs=9 train.lr=0.01 "
                  "model.readout=sum",
                  small);
    assert_true(program_number("regression/summary.json", "test") < 6); /* the spread is 11 */
    program_works("predict --run regression --out r.csv");
    assert_int_equal(sscanf(program_said, "test mae %lf", &test), 1);
    assert_true(fabs(test - program_number("regression/summary.json", "test")) < 1e-5);
    FILE *file = fopen("r.csv", "r");
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(line, "id,target_0,target_1\n");
    assert_non_null(fgets(line, sizeof line, file));
    assert_int_equal(sscanf(line, "0,%lf", &value), 1);
    fclose(file);
    assert_true(value > 100 && value < 170);
}

static void multilabel_with_gaps(void **state)
{
    (void)state;
    write_paths("multilabel.npz", 1);
    program_works("train --data multilabel.npz --out multilabel %s train.epochs=10 model.readout=sum train.lr=0.01",
                  small);
    json_t *summary = program_json("multilabel/summary.json");
    assert_string_equal(json_string_value(json_object_get(summary, "metric")), "average_precision");
    json_decref(summary);
    assert_true(program_number("multilabel/summary.json", "test") > 0.5);
    program_works("predict --run multilabel --out m.csv");
    program_works("train --data multilabel.npz --out multilabel-auc %s train.epochs=2 metric=roc_auc", small);
}

static void looks_and_cuts(void **state)
{
    (void)state;
    make_sbm();
    program_works("info sbm.npz");
    assert_non_null(strstr(program_said, "components"));
    program_works("partition sbm.npz --parts 4 --out parts.csv");
    assert_int_equal(program_lines("parts.csv"), 201);
    program_works("generate grid --nodes 50 --out grid.npz");
    program_works("info grid.npz");
    program_works("generate rmat --nodes 64 --edges 200 --out rmat.npz");
    FILE *file = fopen("list.txt", "w");
    fputs("a b\nb c\nc a\nc d\n", file);
    fclose(file);
    file = fopen("labels.csv", "w");
    fputs("id,label\na,x\nb,x\nc,y\nd,y\n", file);
    fclose(file);
    program_works("import edges list.txt --labels labels.csv --out list.npz");
    program_works("info list.npz");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makes_a_run),
        cmocka_unit_test(predicts_in_the_order_of_the_input),
        cmocka_unit_test(every_storage_gives_the_same_loss),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(several_seeds_are_averaged),
        cmocka_unit_test(folds_take_turns),
        cmocka_unit_test(clusters_make_a_step_each),
        cmocka_unit_test(accumulated_loss_is_the_global_mean),
        cmocka_unit_test(classifies_graphs),
        cmocka_unit_test(regression_in_the_targets_own_units),
        cmocka_unit_test(multilabel_with_gaps),
        cmocka_unit_test(looks_and_cuts),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
