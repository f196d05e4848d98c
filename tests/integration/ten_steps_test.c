/* Ten training steps of each model against the numbers of an independent implementation in fp64: torch_reference.py,
 * whose head describes the files. Outputs, the first gradients, every loss and norm, the final parameters; with the
 * plan as near pairs and, where no path goes with a pair, as dense codes. */
#include "model.h"
#include "support/test.h"
#include <megagraph/dp.h>

/* --- a case file: named arrays --- */

typedef struct array {
    const char *name;
    int64_t count;
    double *values;
} array;

typedef struct case_file {
    char *text;
    array arrays[512];
    int count;
} case_file;

static char *read_text(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, TEN_STEPS "/%s.txt", name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is not there", path);
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    rewind(file);
    char *text = malloc((size_t)bytes + 1);
    assert_int_equal(fread(text, 1, (size_t)bytes, file), bytes);
    text[bytes] = 0;
    fclose(file);
    return text;
}

/* name rank sizes values */
static void parse_line(case_file *f, char *line)
{
    array *a = &f->arrays[f->count++];
    assert_true(f->count <= 512);
    a->name = strtok(line, " ");
    int64_t rank = atoll(strtok(NULL, " "));
    a->count = 1;
    for (int64_t r = 0; r < rank; r++)
        a->count *= atoll(strtok(NULL, " "));
    a->values = malloc((size_t)(a->count + 1) * sizeof *a->values);
    for (int64_t i = 0; i < a->count; i++) {
        const char *word = strtok(NULL, " ");
        if (!word)
            fail_msg("%s: value %lld of %lld is not there", a->name, (long long)i, (long long)a->count);
        a->values[i] = strtod(word, NULL);
    }
}

static case_file *read_case(const char *name)
{
    case_file *f = calloc(1, sizeof *f);
    f->text = read_text(name);
    for (char *line = f->text, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = 0;
        if (*line && *line != '#')
            parse_line(f, line);
    }
    return f;
}

static void release_case(case_file *f)
{
    for (int i = 0; i < f->count; i++)
        free(f->arrays[i].values);
    free(f->text);
    free(f);
}

/* The last of a name: laplacian, random_walk and outputs are sizes first and arrays later. */
static const array *maybe(const case_file *f, const char *name)
{
    for (int i = f->count - 1; i >= 0; i--)
        if (!strcmp(f->arrays[i].name, name))
            return &f->arrays[i];
    return NULL;
}

static const array *get(const case_file *f, const char *prefix, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const array *a = maybe(f, full);
    if (!a)
        fail_msg("the case has no %s", full);
    return a;
}

/* The first of a name. */
static double scalar(const case_file *f, const char *name)
{
    for (int i = 0; i < f->count; i++)
        if (!strcmp(f->arrays[i].name, name))
            return f->arrays[i].values[0];
    fail_msg("the case has no %s", name);
    return 0;
}
static int32_t size(const case_file *f, const char *name) { return (int32_t)scalar(f, name); }

/* Copies, NULL where the case has no such array; held by the run until its end. */
typedef struct lent {
    void *blocks[32];
    int count;
} lent;

#define DEFINE_COPY(function, type)                                                                                    \
    static type *function(lent *l, const case_file *f, const char *name)                                               \
    {                                                                                                                  \
        const array *a = maybe(f, name);                                                                               \
        if (!a)                                                                                                        \
            return NULL;                                                                                               \
        type *values = malloc((size_t)(a->count + 1) * sizeof *values);                                                \
        for (int64_t i = 0; i < a->count; i++)                                                                         \
            values[i] = (type)a->values[i];                                                                            \
        return l->blocks[l->count++] = values;                                                                         \
    }
DEFINE_COPY(longs, int64_t)
DEFINE_COPY(ints, int32_t)
DEFINE_COPY(bytes, uint8_t)
DEFINE_COPY(floats, float)

/* --- a run --- */

typedef struct training {
    const case_file *f;
    lent lent;
    mg_model *model;
    mg_graph graph;
    mg_graph_near near;
    mg_graph_paths paths;
    mg_attn_plan *plan;
    mg_model_batch batch;
    mg_model_pass *pass;
    int64_t rows, count; /* output rows; of them in the loss */
    float *parameters, *gradients, *first, *second, *outputs, *doutputs;
} training;

static void make_model(training *t)
{
    const case_file *f = t->f;
    mg_model_desc desc = {.kind = (mg_model_kind)size(f, "kind"),
                          .inputs = size(f, "inputs"),
                          .edge_inputs = size(f, "edge_inputs"),
                          .outputs = size(f, "outputs"),
                          .layers = size(f, "layers"),
                          .hidden = size(f, "hidden"),
                          .heads = size(f, "heads"),
                          .ffn = size(f, "ffn"),
                          .local = (mg_model_local)size(f, "local"),
                          .readout = (mg_model_readout)size(f, "readout"),
                          .codes = size(f, "codes"),
                          .path_steps = size(f, "path_steps"),
                          .degree = size(f, "degree"),
                          .laplacian = size(f, "laplacian"),
                          .random_walk = size(f, "random_walk"),
                          .virtual_token = size(f, "virtual_token")};
    if (mg_model_create(&t->model, &desc))
        fail_msg("%s", mg_model_last_error());
    t->rows = desc.readout == MG_MODEL_NODES ? size(f, "tokens") : size(f, "graphs");
}

static void make_plan(training *t, int dense)
{
    const case_file *f = t->f;
    int64_t tokens = size(f, "tokens");
    mg_attn_map map = {.kind = dense ? MG_ATTN_DENSE : MG_ATTN_NEAR,
                       .queries = tokens,
                       .keys = tokens,
                       .codes = size(f, "codes") ? size(f, "codes") : size(f, "hops") + 3,
                       .far_code = size(f, "far_code"),
                       .mask_far = size(f, "mask_far"),
                       .near_starts = t->near.starts,
                       .near_columns = t->near.columns,
                       .near_codes = t->near.codes,
                       .dense = bytes(&t->lent, f, "dense_codes"),
                       .dense_stride = tokens,
                       .segments = size(f, "graphs"),
                       .query_segments = t->batch.segments};
    if (mg_attn_plan_create(&t->plan, &map))
        fail_msg("%s", mg_attn_last_error());
    t->batch.plan = t->plan;
}

static void make_batch(training *t, int dense)
{
    const case_file *f = t->f;
    lent *l = &t->lent;
    int64_t tokens = size(f, "tokens");
    t->graph = (mg_graph){.nodes = tokens,
                          .edges = get(f, "", "graph_columns")->count,
                          .starts = longs(l, f, "graph_starts"),
                          .columns = ints(l, f, "graph_columns")};
    t->near = (mg_graph_near){.nodes = tokens,
                              .pairs = get(f, "", "near_columns")->count,
                              .starts = longs(l, f, "near_starts"),
                              .columns = ints(l, f, "near_columns"),
                              .codes = bytes(l, f, "near_codes"),
                              .hops = size(f, "hops")};
    t->paths = (mg_graph_paths){
        .pairs = t->near.pairs, .starts = longs(l, f, "path_starts"), .edges = ints(l, f, "path_edges")};
    t->batch = (mg_model_batch){.tokens = tokens,
                                .graphs = size(f, "graphs"),
                                .segments = longs(l, f, "segments"),
                                .features = floats(l, f, "features"),
                                .degrees = ints(l, f, "degrees"),
                                .laplacian = floats(l, f, "laplacian"),
                                .random_walk = floats(l, f, "random_walk"),
                                .graph = &t->graph,
                                .edge_features = floats(l, f, "edge_features"),
                                .near = &t->near,
                                .paths = t->paths.starts ? &t->paths : NULL};
    make_plan(t, dense);
}

static void begin(training *t, const case_file *f, int dense)
{
    *t = (training){.f = f};
    make_model(t);
    make_batch(t, dense);
    if (mg_model_pass_create(&t->pass, t->model, &t->batch, 1))
        fail_msg("%s", mg_model_last_error());
    size_t total = (size_t)mg_model_parameter_count(t->model), outputs = (size_t)(t->rows * size(f, "outputs"));
    float **ranges[] = {&t->parameters, &t->gradients, &t->first, &t->second};
    for (size_t i = 0; i < 4; i++)
        *ranges[i] = calloc(total, sizeof(float));
    t->outputs = calloc(outputs, sizeof(float));
    t->doutputs = calloc(outputs, sizeof(float));
    int64_t parameters;
    const mg_model_parameter *list = mg_model_parameters(t->model, &parameters);
    for (int64_t k = 0; k < parameters; k++) {
        const array *initial = get(f, "initial.", list[k].name);
        assert_int_equal(initial->count, list[k].end - list[k].begin);
        assert_true(list[k].decay == get(f, "decay.", list[k].name)->values[0]);
        for (int64_t i = 0; i < initial->count; i++)
            t->parameters[list[k].begin + i] = (float)initial->values[i];
    }
}

static void end(training *t)
{
    float *ranges[] = {t->parameters, t->gradients, t->first, t->second, t->outputs, t->doutputs};
    for (size_t i = 0; i < 6; i++)
        free(ranges[i]);
    for (int i = 0; i < t->lent.count; i++)
        free(t->lent.blocks[i]);
    mg_model_pass_destroy(t->pass);
    mg_attn_plan_destroy(t->plan);
    mg_model_destroy(t->model);
}

/* Forward, loss and backward; returns the mean loss. */
static double run_step(training *t, int64_t step, const int64_t *rows, int64_t count, const int32_t *labels,
                       const float *targets, const float *class_weights)
{
    mg_model_step now = {.training = 1, .step = (uint32_t)step, .threads = 1};
    mg_model_loss kind = (mg_model_loss)size(t->f, "loss");
    double loss, weight = mg_model_loss_weight(t->model, kind, rows, count, labels, targets, class_weights), again;
    memset(t->gradients, 0, (size_t)mg_model_parameter_count(t->model) * sizeof *t->gradients);
    int status = mg_model_forward(t->model, t->parameters, t->pass, &t->batch, &now, t->outputs);
    if (!status)
        status = mg_model_loss_sum(&loss, &again, t->doutputs, t->model, kind, t->outputs, rows, count, labels, targets,
                                   class_weights, 1 / weight);
    if (!status)
        status = mg_model_backward(t->model, t->parameters, t->gradients, t->pass, &t->batch, &now, t->doutputs);
    if (status)
        fail_msg("%s", mg_model_last_error());
    assert_true(again == weight);
    return loss / weight;
}

static void update(training *t, int64_t step)
{
    const case_file *f = t->f;
    int64_t parameters, total = mg_model_parameter_count(t->model), ranges = 0;
    const mg_model_parameter *list = mg_model_parameters(t->model, &parameters);
    mg_dp_range *no_decay = calloc((size_t)parameters, sizeof *no_decay);
    for (int64_t k = 0; k < parameters; k++)
        if (!list[k].decay)
            no_decay[ranges++] = (mg_dp_range){list[k].begin, list[k].end};
    mg_dp_adamw adamw = {.rate = (float)scalar(f, "rate"),
                         .weight_decay = (float)scalar(f, "weight_decay"),
                         .beta1 = (float)scalar(f, "beta1"),
                         .beta2 = (float)scalar(f, "beta2"),
                         .epsilon = (float)scalar(f, "epsilon"),
                         .no_decay = no_decay,
                         .no_decay_count = ranges};
    double norm = sqrt(mg_dp_square_sum(t->gradients, total)), expected = get(f, "", "norms")->values[step];
    if (!(fabs(norm - expected) <= 1e-4 * expected))
        fail_msg("step %lld: gradient norm %.9g, expected %.9g", (long long)step, norm, expected);
    assert_int_equal(mg_dp_adamw_step(t->parameters, t->first, t->second, t->gradients, total, &adamw, step + 1,
                                      mg_dp_clip_scale(norm, scalar(f, "clip"))),
                     0);
    free(no_decay);
}

/* Each parameter's part of a flat range against the arrays of that prefix. */
static void check_range(const training *t, const char *prefix, const float *range, double tolerance)
{
    int64_t parameters;
    const mg_model_parameter *list = mg_model_parameters(t->model, &parameters);
    double most = 0;
    for (int64_t k = 0; k < parameters; k++) {
        const array *expected = get(t->f, prefix, list[k].name);
        for (int64_t i = 0; i < expected->count; i++)
            most = fmax(most, fabs(expected->values[i]));
    }
    for (int64_t k = 0; k < parameters; k++) {
        const array *expected = get(t->f, prefix, list[k].name);
        double scale = 1e-3 * most;
        for (int64_t i = 0; i < expected->count; i++)
            scale = fmax(scale, fabs(expected->values[i]));
        test_near_scaled(expected->name, range + list[k].begin, expected->values, expected->count, tolerance, scale);
    }
}

static void train(const char *name, int dense)
{
    case_file *f = read_case(name);
    training t;
    begin(&t, f, dense);
    const int64_t *rows = longs(&t.lent, f, "rows");
    const int32_t *labels = ints(&t.lent, f, "labels");
    const float *targets = floats(&t.lent, f, "targets"), *weights = floats(&t.lent, f, "class_weights");
    int64_t count = rows ? get(f, "", "rows")->count : t.rows;
    for (int64_t step = 0; step < 10; step++) {
        double loss = run_step(&t, step, rows, count, labels, targets, weights),
               expected = get(f, "", "losses")->values[step];
        if (step == 0) {
            test_near("outputs", t.outputs, get(f, "", "outputs")->values, get(f, "", "outputs")->count, 1e-5);
            check_range(&t, "gradient.", t.gradients, 5e-5);
        }
        if (!(fabs(loss - expected) <= 5e-6 * fmax(1, fabs(expected))))
            fail_msg("%s, step %lld: loss %.9g, expected %.9g", name, (long long)step, loss, expected);
        update(&t, step);
    }
    check_range(&t, "final.", t.parameters, 5e-5);
    end(&t);
    release_case(f);
}

static void graphormer(void **state)
{
    (void)state;
    train("graphormer", 0);
}

static void gt(void **state)
{
    (void)state;
    train("gt", 0);
    train("gt", 1);
}

static void gps_gcn(void **state)
{
    (void)state;
    train("gps-gcn", 0);
    train("gps-gcn", 1);
}

static void gps_gine(void **state)
{
    (void)state;
    train("gps-gine", 0);
    train("gps-gine", 1);
}

static void gps_gatedgcn(void **state)
{
    (void)state;
    train("gps-gatedgcn", 0);
    train("gps-gatedgcn", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(graphormer), cmocka_unit_test(gt), cmocka_unit_test(gps_gcn),
                                       cmocka_unit_test(gps_gine), cmocka_unit_test(gps_gatedgcn)};
    return cmocka_run_group_tests_name("ten steps against PyTorch", tests, NULL, NULL);
}
