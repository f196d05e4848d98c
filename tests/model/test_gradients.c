/* Whole models, forward and every gradient, against the fp64 reference and its central differences. */
#include "model/problem.h"
#include "support/test.h"

static const int64_t packed[] = {5, 1, 4, 0}, chained[] = {9, 1, 4, 0};
static const mg_model_step dropping = {.training = 1, .seed = 0x123456789abcdefu, .step = 5, .threads = 1};
static const mg_model_step plain = {.training = 1, .threads = 1};

static double *widened(const problem *p)
{
    int64_t count = mg_model_parameter_count(p->model);
    double *wide = malloc((size_t)count * sizeof *wide);
    for (int64_t i = 0; i < count; i++)
        wide[i] = p->parameters[i];
    return wide;
}

static void check_outputs(const problem *p, const mg_model_step *step, const float *outputs, const double *wide)
{
    int64_t count = p->rows * p->setup.desc.outputs;
    double *expected = malloc((size_t)(count + 1) * sizeof *expected);
    reference_forward(p, wide, step, expected, NULL);
    test_near("outputs", outputs, expected, count, 2e-5);
    free(expected);
}

/* Every parameter by itself. */
static void check_gradients(const problem *p, const mg_model_step *step, const float *gradients, double *wide)
{
    const double h = 1e-5;
    int64_t total = mg_model_parameter_count(p->model), parameters;
    const mg_model_parameter *list = mg_model_parameters(p->model, &parameters);
    double *expected = malloc((size_t)total * sizeof *expected), most = 0;
    for (int64_t i = 0; i < total; i++) {
        double kept = wide[i];
        wide[i] = kept + h;
        expected[i] = reference_loss(p, wide, step) / (2 * h);
        wide[i] = kept - h;
        expected[i] -= reference_loss(p, wide, step) / (2 * h);
        wide[i] = kept;
        most = fmax(most, fabs(expected[i]));
    }
    for (int64_t k = 0; k < parameters; k++) {
        double scale = 1e-3 * most;
        for (int64_t i = list[k].begin; i < list[k].end; i++)
            scale = fmax(scale, fabs(expected[i]));
        test_near_scaled(list[k].name, gradients + list[k].begin, expected + list[k].begin, list[k].end - list[k].begin,
                         1e-4, scale);
    }
    free(expected);
}

static void check_path_lengths(const problem *p)
{
    int64_t longest = 0;
    for (int64_t k = 0; k < p->batch.paths->pairs; k++)
        longest = longest > p->batch.paths->starts[k + 1] - p->batch.paths->starts[k]
                      ? longest
                      : p->batch.paths->starts[k + 1] - p->batch.paths->starts[k];
    assert_int_equal(longest, p->setup.desc.path_steps);
}

static void check(const problem_setup *setup, const mg_model_step *step, int with_gradients)
{
    problem *p = problem_create(setup);
    if (setup->desc.path_steps)
        check_path_lengths(p);
    double *wide = widened(p);
    float *outputs = calloc((size_t)(p->rows * setup->desc.outputs) + 1, sizeof *outputs);
    float *gradients = calloc((size_t)mg_model_parameter_count(p->model), sizeof *gradients);
    problem_run(p, step, outputs, gradients);
    check_outputs(p, step, outputs, wide);
    if (with_gradients)
        check_gradients(p, step, gradients, wide);
    free(wide);
    free(outputs);
    free(gradients);
    problem_destroy(p);
}

/* Outputs without dropout; outputs and gradients with. */
static void check_both(problem_setup *setup)
{
    check(setup, &plain, 0);
    setup->desc.dropout = 0.25f;
    setup->desc.attention_dropout = 0.2f;
    setup->desc.input_dropout = 0.3f;
    check(setup, &dropping, 1);
}

static void graphormer_of_nodes(void **state)
{
    (void)state;
    check_both(&(problem_setup){.desc = {.kind = MG_MODEL_GRAPHORMER,
                                         .inputs = 5,
                                         .outputs = 3,
                                         .layers = 2,
                                         .hidden = 8,
                                         .heads = 2,
                                         .ffn = 12,
                                         .codes = 5,
                                         .degree = 3},
                                .map = MAP_DENSE,
                                .hops = 2,
                                .nodes = packed,
                                .degree = 2,
                                .seed = 1});
}

static void graphormer_of_graphs(void **state)
{
    (void)state;
    check_both(&(problem_setup){.desc = {.kind = MG_MODEL_GRAPHORMER,
                                         .inputs = 4,
                                         .edge_inputs = 2,
                                         .outputs = 2,
                                         .layers = 2,
                                         .hidden = 6,
                                         .heads = 3,
                                         .ffn = 7,
                                         .codes = 5,
                                         .path_steps = 2,
                                         .degree = 3,
                                         .virtual_token = 1,
                                         .readout = MG_MODEL_VIRTUAL},
                                .map = MAP_NEAR_BIAS,
                                .hops = 2,
                                .nodes = chained,
                                .degree = 2,
                                .seed = 2});
}

static void gt_of_nodes(void **state)
{
    (void)state;
    check_both(&(problem_setup){.desc = {.kind = MG_MODEL_GT,
                                         .inputs = 5,
                                         .outputs = 3,
                                         .layers = 2,
                                         .hidden = 8,
                                         .heads = 2,
                                         .ffn = 16,
                                         .laplacian = 3,
                                         .random_walk = 2},
                                .map = MAP_NEAR_MASK,
                                .hops = 1,
                                .nodes = packed,
                                .degree = 2,
                                .directed = 1,
                                .seed = 3});
}

static void gt_of_graphs(void **state)
{
    (void)state;
    check_both(&(problem_setup){.desc = {.kind = MG_MODEL_GT,
                                         .outputs = 2,
                                         .layers = 1,
                                         .hidden = 8,
                                         .heads = 1,
                                         .ffn = 4,
                                         .laplacian = 3,
                                         .codes = 4,
                                         .readout = MG_MODEL_SUM,
                                         .virtual_token = 1},
                                .map = MAP_NEAR_MASK,
                                .hops = 1,
                                .nodes = packed,
                                .degree = 2,
                                .seed = 4});
}

static void gps(mg_model_local local, int64_t edge_inputs, int directed, mg_model_readout readout, int virtual_token)
{
    check_both(&(problem_setup){.desc = {.kind = MG_MODEL_GPS,
                                         .inputs = 5,
                                         .edge_inputs = edge_inputs,
                                         .outputs = 2,
                                         .layers = 2,
                                         .hidden = 8,
                                         .heads = 2,
                                         .ffn = 9,
                                         .local = local,
                                         .codes = 4,
                                         .random_walk = 2,
                                         .readout = readout,
                                         .virtual_token = virtual_token},
                                .map = virtual_token ? MAP_NEAR_BIAS : MAP_NEAR_MASK,
                                .hops = 1,
                                .nodes = packed,
                                .degree = 2,
                                .directed = directed,
                                .seed = 10 + (uint64_t)local});
}

static void gps_gcn(void **state)
{
    (void)state;
    gps(MG_MODEL_LOCAL_GCN, 0, 0, MG_MODEL_NODES, 0);
}

static void gps_gcn_of_graphs(void **state)
{
    (void)state;
    gps(MG_MODEL_LOCAL_GCN, 0, 1, MG_MODEL_MEAN, 1);
}

static void gps_gine(void **state)
{
    (void)state;
    gps(MG_MODEL_LOCAL_GINE, 0, 1, MG_MODEL_NODES, 0);
}

static void gps_gine_with_edges(void **state)
{
    (void)state;
    gps(MG_MODEL_LOCAL_GINE, 3, 1, MG_MODEL_MEAN, 1);
}

static void gps_gatedgcn(void **state)
{
    (void)state;
    gps(MG_MODEL_LOCAL_GATEDGCN, 0, 1, MG_MODEL_SUM, 0);
}

static void gps_gatedgcn_with_edges(void **state)
{
    (void)state;
    gps(MG_MODEL_LOCAL_GATEDGCN, 3, 1, MG_MODEL_VIRTUAL, 1);
}

static void gps_without_dropout(void **state)
{
    (void)state;
    check(&(problem_setup){.desc = {.kind = MG_MODEL_GPS,
                                    .inputs = 3,
                                    .edge_inputs = 1,
                                    .outputs = 2,
                                    .layers = 2,
                                    .hidden = 6,
                                    .heads = 2,
                                    .ffn = 5,
                                    .local = MG_MODEL_LOCAL_GINE,
                                    .codes = 4},
                           .map = MAP_NEAR_BIAS,
                           .hops = 1,
                           .nodes = packed,
                           .degree = 2,
                           .seed = 19},
          &plain, 1);
}

static void messages_alone(void **state)
{
    (void)state;
    check_both(&(problem_setup){
        .desc =
            {.kind = MG_MODEL_GPS, .inputs = 5, .outputs = 2, .layers = 2, .hidden = 7, .local = MG_MODEL_LOCAL_GCN},
        .map = MAP_NEAR_MASK,
        .hops = 1,
        .nodes = packed,
        .degree = 2,
        .seed = 20});
}

static void attention_alone(void **state)
{
    (void)state;
    check_both(&(problem_setup){
        .desc = {.kind = MG_MODEL_GPS, .degree = 4, .outputs = 2, .layers = 1, .hidden = 6, .heads = 2},
        .map = MAP_DENSE,
        .hops = 1,
        .nodes = packed,
        .degree = 2,
        .seed = 21});
}

/* Gains of all three parts, blocks without norms; 2 layers, a virtual token. */
static void gains_and_norms(mg_model_kind kind, mg_model_local local, float gain, mg_model_norms norms,
                            int virtual_token)
{
    check_both(&(problem_setup){.desc = {.kind = kind,
                                         .inputs = 5,
                                         .edge_inputs = virtual_token ? 2 : 0,
                                         .outputs = 2,
                                         .layers = 2,
                                         .hidden = 8,
                                         .heads = 2,
                                         .ffn = 9,
                                         .local = local,
                                         .codes = 4,
                                         .readout = virtual_token ? MG_MODEL_MEAN : MG_MODEL_NODES,
                                         .virtual_token = virtual_token,
                                         .gain = gain,
                                         .norms = norms},
                                .map = MAP_NEAR_BIAS,
                                .hops = 1,
                                .nodes = packed,
                                .degree = 2,
                                .directed = 1,
                                .seed = 30 + (uint64_t)local});
}

static void gains_of_graphormer(void **state)
{
    (void)state;
    gains_and_norms(MG_MODEL_GRAPHORMER, MG_MODEL_LOCAL_NONE, 0.1f, MG_MODEL_NORMS_ALL, 0);
}

static void gains_of_gps(void **state)
{
    (void)state;
    gains_and_norms(MG_MODEL_GPS, MG_MODEL_LOCAL_GCN, 0.1f, MG_MODEL_NORMS_ALL, 0);
    gains_and_norms(MG_MODEL_GPS, MG_MODEL_LOCAL_GINE, 0.1f, MG_MODEL_NORMS_HEAD, 1);
    gains_and_norms(MG_MODEL_GPS, MG_MODEL_LOCAL_GATEDGCN, 0.1f, MG_MODEL_NORMS_HEAD, 1);
}

static void blocks_without_norms(void **state)
{
    (void)state;
    gains_and_norms(MG_MODEL_GRAPHORMER, MG_MODEL_LOCAL_NONE, 0, MG_MODEL_NORMS_HEAD, 1);
    gains_and_norms(MG_MODEL_GPS, MG_MODEL_LOCAL_GCN, 0, MG_MODEL_NORMS_HEAD, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphormer_of_nodes),
        cmocka_unit_test(graphormer_of_graphs),
        cmocka_unit_test(gt_of_nodes),
        cmocka_unit_test(gt_of_graphs),
        cmocka_unit_test(gps_gcn),
        cmocka_unit_test(gps_gcn_of_graphs),
        cmocka_unit_test(gps_gine),
        cmocka_unit_test(gps_gine_with_edges),
        cmocka_unit_test(gps_gatedgcn),
        cmocka_unit_test(gps_gatedgcn_with_edges),
        cmocka_unit_test(gps_without_dropout),
        cmocka_unit_test(messages_alone),
        cmocka_unit_test(attention_alone),
        cmocka_unit_test(gains_of_graphormer),
        cmocka_unit_test(gains_of_gps),
        cmocka_unit_test(blocks_without_norms),
    };
    return cmocka_run_group_tests_name("models and their gradients", tests, NULL, NULL);
}
