/* One rank equals many: ranks_test [MPIRUN], a subset that covers every model, method and local part; with a path of
 * mpirun, ranks are processes. ranks_test only=MODEL [MPIRUN]: one model on every number of ranks; ranks_test list:
 * their names. */
#include "integration/ranks_case.h"

static const char *only;

#define ENCODINGS " model.encodings.degree=16 model.encodings.laplacian=3 model.encodings.random_walk=3"
#define MASKED " attention.far=mask model.encodings.distance=2"

typedef struct model {
    const char *name, *settings, *methods[4];
    int few; /* on 3 ranks only, unless it is alone */
} model;

static const model models[] = {
    {"graphormer", "model.kind=graphormer model.heads=4" ENCODINGS, {"ring", "all_to_all"}, 0},
    {"graphormer-dense", "model.kind=graphormer model.heads=2 attention.bias=dense", {"ring", "all_to_all"}, 1},
    {"graphormer-near", "model.kind=graphormer model.heads=2 attention.bias=near", {"ring", "all_to_all"}, 1},
    {"graphormer-tiles", "model.kind=graphormer model.heads=2 attention.bias=tiles", {"ring", "all_to_all"}, 1},
    {"graphormer-stream", "model.kind=graphormer model.heads=2 attention.bias=stream", {"ring", "all_to_all"}, 1},
    {"graphormer-none", "model.kind=graphormer model.heads=2 model.encodings.distance=0", {"ring", "all_to_all"}, 1},
    {"gt", "model.kind=gt model.heads=4" ENCODINGS, {"halo", "ring", "all_to_all"}, 0},
    {"gt-2", "model.kind=gt model.heads=4 model.encodings.hops=2" MASKED, {"halo", "ring", "all_to_all"}, 1},
    {"gcn", "model.kind=gps model.local=gcn model.heads=4" MASKED, {"halo", "ring", "all_to_all"}, 0},
    {"gine", "model.kind=gps model.local=gine model.heads=4" MASKED, {"halo", "ring", "all_to_all"}, 0},
    {"gated", "model.kind=gps model.local=gatedgcn model.heads=4" MASKED, {"halo", "ring", "all_to_all"}, 0},
    {"gated-far", "model.kind=gps model.local=gatedgcn model.heads=2 attention.far=bias", {"ring", "all_to_all"}, 1},
    {"gine-far", "model.kind=gps model.local=gine model.heads=2 attention.far=bias", {"ring"}, 1},
    {"gine-alone", "model.kind=gps model.local=gine model.heads=0", {"auto"}, 1},
    {"gcn-gains",
     "model.kind=gps model.local=gcn model.heads=4 model.gain=0.1 model.norms=head train.consistency=2 "
     "train.average=0.5" MASKED,
     {"halo", "ring"},
     1},
    {"gine-directed", "model.kind=gps model.local=gine model.heads=2 data.directed=on" MASKED, {"halo"}, 1},
    {"gated-directed", "model.kind=gps model.local=gatedgcn model.heads=2 data.directed=on" MASKED, {"auto"}, 1},
};
enum { MODELS = sizeof models / sizeof *models };

static void check_method(const model *m, const char *method, int ranks)
{
    char name[128], settings[512];
    snprintf(name, sizeof name, "%s-%s-%d", m->name, method, ranks);
    snprintf(settings, sizeof settings, "%s parallel.context_method=%s", m->settings, method);
    ranks_train(name, "graph.npz", settings, ranks);
    ranks_compare(name, m->name);
    if (only)
        printf("    %s is one rank's\n", name), fflush(stdout);
}

static void check_model(const model *m)
{
    static const int every[] = {2, 3, 4, 7, 8, 0}, some[] = {2, 8, 0}, three[] = {3, 0}, processes[] = {2, 3, 0};
    const int *counts = only ? every : *ranks_mpirun ? processes : m->few ? three : some;
    if (*ranks_mpirun && !only && m->few)
        return;
    ranks_train(m->name, "graph.npz", m->settings, 1);
    for (int k = 0; m->methods[k]; k++)
        for (const int *ranks = counts; *ranks; ranks++)
            check_method(m, m->methods[k], *ranks);
}

static void same_as_one_rank(void **state)
{
    (void)state;
    int found = 0;
    for (int m = 0; m < MODELS; m++)
        if (!only || !strcmp(only, models[m].name)) {
            check_model(&models[m]);
            found = 1;
        }
    assert_true(found);
}

/* Three ranks of eight hold nothing, the others one node each. Not gatedgcn: where a node has one neighbour, its gate's
   gradient is what rounding leaves, and Adam makes a whole step of it. */
static void more_ranks_than_nodes(void **state)
{
    (void)state;
    const char *settings[] = {"model.kind=graphormer model.heads=2 data.split=0",
                              "model.kind=gps model.local=gine model.heads=2 attention.far=mask"};
    for (int s = 0; s < 2; s++) {
        char one[32], many[32];
        snprintf(one, sizeof one, "tiny-%d-1", s);
        snprintf(many, sizeof many, "tiny-%d-8", s);
        ranks_train(one, "tiny.npz", settings[s], 1);
        ranks_train(many, "tiny.npz", settings[s], 8);
        ranks_compare(many, one);
    }
}

static const char small[] = "--set model.kind=gps model.local=gatedgcn model.heads=2 model.hidden=16 model.layers=2 "
                            "attention.far=mask train.lr=3e-3 train.schedule=constant";

static void resumed_on_other_ranks(void **state)
{
    (void)state;
    ranks_run(1, "train --data graph.npz --out whole %s train.epochs=10", small);
    ranks_run(2, "train --data graph.npz --out moved %s train.epochs=4", small);
    ranks_run(3, "train --resume moved --set train.epochs=7");
    assert_non_null(strstr(program_said, "on 2 ranks before, now on 3"));
    ranks_run(1, "train --resume moved --set train.epochs=10");
    assert_true(fabs(program_number("moved/summary.json", "validation") -
                     program_number("whole/summary.json", "validation")) < 1e-9);
    assert_int_equal(program_lines("moved/log.jsonl"), program_lines("whole/log.jsonl"));
}

static float *read_npy(const char *path, int64_t *count)
{
    FILE *file = fopen(path, "rb");
    static char bytes[1 << 20];
    size_t length = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    assert_true(length > 128);
    fclose(file);
    *count = (int64_t)(length - 128) / 4;
    float *values = malloc(length);
    memcpy(values, bytes + 128, length - 128);
    return values;
}

static void same_file(const char *a, const char *b)
{
    int64_t count, other;
    float *x = read_npy(a, &count), *y = read_npy(b, &other);
    assert_int_equal(count, other);
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(x[i] - y[i]) <= 1e-4f * (fabsf(y[i]) + 1)))
            fail_msg("%s: value %lld is %g, on one rank %g", a, (long long)i, (double)x[i], (double)y[i]);
    free(x);
    free(y);
}

static void predicted_alike(void **state)
{
    (void)state;
    ranks_run(1, "predict --run whole --out one.npy --embeddings one-e.npy");
    ranks_run(3, "predict --run whole --out three.npy --embeddings three-e.npy");
    same_file("three.npy", "one.npy");
    same_file("three-e.npy", "one-e.npy");
}

static void same_bytes_again(void **state)
{
    (void)state;
    ranks_run(2, "train --data graph.npz --out again-1 --threads 1 %s train.epochs=3", small);
    ranks_run(2, "train --data graph.npz --out again-2 --threads 2 %s train.epochs=3", small);
    assert_true(program_same("again-1/checkpoint/state.safetensors", "again-2/checkpoint/state.safetensors"));
}

static void what_is_written(void **state)
{
    (void)state;
    json_t *summary = program_json("again-1/summary.json"), *peaks = json_object_get(summary, "peak_memory_bytes");
    assert_int_equal(json_integer_value(json_object_get(summary, "ranks")), 2);
    assert_int_equal(json_array_size(peaks), 2);
    assert_true(json_integer_value(json_array_get(peaks, 1)) > 100000);
    assert_true(json_is_number(json_object_get(json_object_get(summary, "phase_seconds"), "reduce")));
    json_decref(summary);
    assert_true(ranks_sent("again-1", 0) > 0 && ranks_sent("again-1", 1) > 0);
    char *plan = program_text("again-1/plan.yaml");
    assert_non_null(strstr(plan, "ranks: 2\n"));
    assert_non_null(strstr(plan, "context: 2, context_method: halo"));
    free(plan);
}

/* Over all ranks: attention as libattn/context.h says, twice the parameters' gradients to and from every other rank. */
static void sent_bytes_are_the_formulas(void **state)
{
    (void)state;
    enum { LAYERS = 2, HIDDEN = 16, HEADS = 4, NODES = 150 };
    const double row = HIDDEN * 4.0, lse = HEADS * 4.0;
    const struct {
        const char *run;
        int ranks;
        double layer; /* bytes per node and layer that all ranks send */
    } cases[] = {
        {"graphormer-ring-2", 2, 6 * row},
        {"graphormer-all_to_all-2", 2, (12 * row + 2 * lse) / 2},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char path[128];
        int others = cases[c].ranks - 1;
        double sent = 0;
        for (int r = 0; r < cases[c].ranks; r++)
            sent += ranks_sent(cases[c].run, r);
        snprintf(path, sizeof path, "%s/summary.json", cases[c].run);
        double expected = others * (LAYERS * NODES * cases[c].layer + 8 * program_number(path, "parameters"));
        if (sent != expected)
            fail_msg("%s: %.0f bytes were sent, the formula says %.0f", cases[c].run, sent, expected);
    }
}

/* Sparse attention sends each boundary row once to each rank that needs it: k and v forward, and their gradients home
 * in backward. Parts are those of `partition`. */
static void halo_sends_boundary_rows(void **state)
{
    enum { LAYERS = 2, HIDDEN = 16, NODES = 150 };
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++) {
        char name[32], path[64];
        int32_t parts[NODES];
        snprintf(name, sizeof name, "boundary-%d", ranks);
        ranks_run(ranks,
                  "train --data graph.npz --out %s --set train.epochs=1 model.kind=gt model.layers=%d model.hidden=%d "
                  "model.heads=4 model.encodings.distance=1 attention.far=mask parallel.context_method=halo",
                  name, LAYERS, HIDDEN);
        program_works("partition graph.npz --parts %d --out parts.csv", ranks);
        FILE *file = fopen("parts.csv", "r");
        assert_non_null(file);
        assert_int_equal(fscanf(file, "id,part"), 0);
        for (int i = 0; i < NODES; i++)
            assert_int_equal(fscanf(file, "%*d,%d", &parts[i]), 1);
        fclose(file);
        double sent = 0, rows = (double)ranks_boundary_rows(parts);
        for (int r = 0; r < ranks; r++)
            sent += ranks_sent(name, r);
        snprintf(path, sizeof path, "%s/summary.json", name);
        const double expected =
            4.0 * rows * LAYERS * HIDDEN * sizeof(float) + 8.0 * (ranks - 1) * program_number(path, "parameters");
        assert_true(rows > 0);
        if (sent != expected)
            fail_msg("%s: %.0f bytes were sent; %.0f boundary rows and the parameters are %.0f", name, sent, rows,
                     expected);
    }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

/* What the system says a process holds, and what it counted itself, of whole matrices over `nodes` nodes. */
static void hold(double *resident, double *counted, int nodes)
{
    char path[64];
    program_works("generate sbm --nodes %d --out sbm-%d.npz", nodes, nodes);
    ranks_run(2,
              "train --data sbm-%d.npz --out held-%d --set train.epochs=1 model.kind=graphormer model.layers=2 "
              "model.heads=8 model.hidden=64 model.attention_dropout=0 baseline=dense",
              nodes, nodes);
    snprintf(path, sizeof path, "held-%d/summary.json", nodes);
    json_t *summary = program_json(path), *peaks = json_object_get(summary, "peak_memory_bytes");
    *resident = json_number_value(json_object_get(summary, "peak_resident_bytes"));
    *counted = fmax(json_number_value(json_array_get(peaks, 0)), json_number_value(json_array_get(peaks, 1)));
    json_decref(summary);
}

/* A small run shows the libraries' share. */
static void resident_is_what_is_counted(void **state)
{
    (void)state;
    double few, few_counted, large, large_counted;
    if (SANITIZED)
        skip();
    hold(&few, &few_counted, 200);
    hold(&large, &large_counted, 1500);
    const double libraries = few - few_counted;
    assert_true(libraries > 0 && libraries < 100e6);
    if (!(fabs(large - libraries - large_counted) <= 0.1 * large_counted))
        fail_msg("%.0f bytes are resident, %.0f of them the libraries'; %.0f were counted", large, libraries,
                 large_counted);
}

/* mpirun's children; the job must end by itself soon after one of them is gone. */
static void killed_ends_the_job(void **state)
{
    (void)state;
    char command[4096];
    snprintf(command, sizeof command,
             "%s --oversubscribe --allow-run-as-root -n 2 " MEGAGRAPH_PROGRAM
             " train --data graph.npz --out killed %s train.epochs=100000 train.patience=0 >stdout 2>stderr & job=$!\n"
             "for i in $(seq 600); do [ -s killed/checkpoint/manifest.json ] && break; sleep 0.05; done\n"
             "kill -9 $(ps -o pid= --ppid $job | tail -1); begun=$(date +%%s)\n"
             "wait $job && exit 1; [ $(($(date +%%s) - begun)) -le 10 ]",
             ranks_mpirun, small);
    assert_int_equal(system(command), 0);
    char *said = program_text("stderr");
    assert_non_null(strstr(said, "(Killed)"));
    free(said);
    ranks_run(1, "predict --run killed --out killed.npy");
}

static void interrupted_goes_on(void **state)
{
    (void)state;
    ranks_run(2, "train --data graph.npz --out long %s train.epochs=60", small);
    assert_int_equal(
        program_interrupted("cut/log.jsonl", 9, "train --data graph.npz --out cut --ranks 2 %s train.epochs=60", small),
        130);
    program_works("train --resume cut");
    assert_true(program_same("cut/checkpoint/state.safetensors", "long/checkpoint/state.safetensors"));
    assert_int_equal(program_lines("cut/log.jsonl"), program_lines("long/log.jsonl"));
}

static void refused(void **state)
{
    (void)state;
    program_works("generate graphs --out graphs.npz --graphs 20 --nodes 6");
    program_refuses("has 20 graphs", "train --data graphs.npz --out r --ranks 2");
    program_refuses("train.clusters is 3", "train --data graph.npz --out r --ranks 2 --set train.clusters=3");
    program_refuses("every node sees all", "train --data graph.npz --out r --ranks 2 --set model.kind=graphormer "
                                           "parallel.context_method=halo");
    program_refuses("needs attention.bias near", "train --data graph.npz --out r --ranks 2 --set model.kind=gt "
                                                 "attention.bias=tiles parallel.context_method=halo");
    program_refuses("edge_path", "train --data graph.npz --out r --ranks 2 --set model.kind=graphormer "
                                 "model.encodings.edge_path=2");
    program_refuses("is none, but there are 2", "train --data graph.npz --out r --ranks 2 --set "
                                                "parallel.context_method=none");
    program_refuses("out of memory", "train --data graph.npz --out r --ranks 3 --memory 2M %s", small);
    program_refuses("lower train.lr",
                    "train --data graph.npz --out far --ranks 3 %s train.lr=1e6 train.clip=0 train.epochs=50", small);
}

static int list(void)
{
    for (int m = 0; m < MODELS; m++)
        puts(models[m].name);
    return 0;
}

int main(int count, char **arguments)
{
    for (int a = 1; a < count; a++)
        if (!strcmp(arguments[a], "list"))
            return list();
        else if (!strncmp(arguments[a], "only=", 5))
            only = arguments[a] + 5;
        else
            ranks_mpirun = arguments[a];
    const struct CMUnitTest one[] = {cmocka_unit_test(same_as_one_rank)};
    if (only)
        return cmocka_run_group_tests_name(only, one, ranks_make_data, program_teardown);
#define BOTH                                                                                                           \
    cmocka_unit_test(same_as_one_rank), cmocka_unit_test(more_ranks_than_nodes),                                       \
        cmocka_unit_test(resumed_on_other_ranks), cmocka_unit_test(predicted_alike),                                   \
        cmocka_unit_test(same_bytes_again), cmocka_unit_test(what_is_written),                                         \
        cmocka_unit_test(sent_bytes_are_the_formulas), cmocka_unit_test(halo_sends_boundary_rows)
    const struct CMUnitTest threads[] = {BOTH, cmocka_unit_test(interrupted_goes_on), cmocka_unit_test(refused)};
    const struct CMUnitTest processes[] = {BOTH, cmocka_unit_test(resident_is_what_is_counted),
                                           cmocka_unit_test(killed_ends_the_job)};
    return *ranks_mpirun ? cmocka_run_group_tests_name("processes", processes, ranks_make_data, program_teardown)
                         : cmocka_run_group_tests_name("threads", threads, ranks_make_data, program_teardown);
}
