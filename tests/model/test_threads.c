/* Equal bytes for any number of threads, on enough tokens for many chunks, groups and ranges; and the gradients of such
 * a size against fp64 along random directions. */
#include "model/problem.h"
#include "support/test.h"

static const int64_t large[] = {420, 1, 37, 290, 0}, medium[] = {262, 1, 9, 0};

static problem_setup setup_of(mg_model_kind kind, mg_model_local local, const int64_t *nodes)
{
    return (problem_setup){.desc = {.kind = kind,
                                    .inputs = 21,
                                    .edge_inputs = 2,
                                    .outputs = 3,
                                    .layers = 2,
                                    .hidden = 20,
                                    .heads = 2,
                                    .ffn = 36,
                                    .local = local,
                                    .degree = 6,
                                    .laplacian = 3,
                                    .dropout = 0.2f,
                                    .attention_dropout = 0.1f,
                                    .input_dropout = 0.1f,
                                    .codes = 4},
                           .map = MAP_NEAR_MASK,
                           .hops = 1,
                           .nodes = nodes,
                           .degree = 5,
                           .directed = 1,
                           .seed = 30 + (uint64_t)local};
}

typedef struct result {
    float *outputs, *gradients;
    size_t output_bytes, gradient_bytes;
} result;

static result run_on(const problem *p, int threads)
{
    mg_model_step step = {.training = 1, .seed = 9, .step = 2, .threads = threads};
    int64_t outputs = p->rows * p->setup.desc.outputs, gradients = mg_model_parameter_count(p->model);
    result r = {calloc((size_t)outputs, sizeof(float)), calloc((size_t)gradients, sizeof(float)),
                (size_t)outputs * sizeof(float), (size_t)gradients * sizeof(float)};
    problem_run(p, &step, r.outputs, r.gradients);
    return r;
}

static void release_result(result r)
{
    free(r.outputs);
    free(r.gradients);
}

static void check_threads(const problem_setup *setup)
{
    problem *p = problem_create(setup);
    result one = run_on(p, 1);
    for (int threads = 2; threads <= 4; threads++) {
        result more = run_on(p, threads);
        test_same_bytes("outputs", more.outputs, one.outputs, one.output_bytes);
        test_same_bytes("gradients", more.gradients, one.gradients, one.gradient_bytes);
        release_result(more);
    }
    release_result(one);
    problem_destroy(p);
}

/* The gradient of each parameter times a random direction, by central differences. */
static void check_directions(const problem_setup *setup)
{
    const double h = 1e-5;
    problem *p = problem_create(setup);
    mg_model_step step = {.training = 1, .seed = 9, .step = 2};
    int64_t total = mg_model_parameter_count(p->model), parameters;
    const mg_model_parameter *list = mg_model_parameters(p->model, &parameters);
    double *moved = malloc((size_t)total * sizeof *moved);
    result r = run_on(p, 2);
    for (int64_t i = 0; i < total; i++)
        moved[i] = p->parameters[i];
    for (int64_t k = 0; k < parameters; k++) {
        double along = 0, expected = 0, square = 0;
        for (int side = 1; side >= -1; side -= 2) {
            for (int64_t i = list[k].begin; i < list[k].end; i++)
                moved[i] = p->parameters[i] + side * h * (double)test_random(77, (uint64_t)i);
            expected += side * reference_loss(p, moved, &step) / (2 * h);
        }
        for (int64_t i = list[k].begin; i < list[k].end; i++) {
            along += r.gradients[i] * (double)test_random(77, (uint64_t)i);
            square += (double)r.gradients[i] * r.gradients[i];
            moved[i] = p->parameters[i];
        }
        if (!(fabs(along - expected) <= 1e-3 * fmax(sqrt(square), 1e-2)))
            fail_msg("%s: %.9g along a direction, expected %.9g, of a gradient of length %.3g", list[k].name, along,
                     expected, sqrt(square));
    }
    free(moved);
    release_result(r);
    problem_destroy(p);
}

static void graphormer_threads(void **state)
{
    (void)state;
    problem_setup setup = setup_of(MG_MODEL_GRAPHORMER, MG_MODEL_LOCAL_NONE, large);
    setup.map = MAP_DENSE;
    check_threads(&setup);
}

static void gt_threads(void **state)
{
    (void)state;
    problem_setup setup = setup_of(MG_MODEL_GT, MG_MODEL_LOCAL_NONE, large);
    setup.desc.path_steps = 1;
    check_threads(&setup);
}

static void local_threads(void **state)
{
    (void)state;
    for (mg_model_local local = MG_MODEL_LOCAL_GCN; local <= MG_MODEL_LOCAL_GATEDGCN; local++) {
        problem_setup setup = setup_of(MG_MODEL_GPS, local, large);
        setup.desc.readout = MG_MODEL_MEAN;
        setup.desc.virtual_token = 1;
        check_threads(&setup);
    }
}

/* Products so long that oneDNN could split their sums over threads. */
static void long_products(void **state)
{
    (void)state;
    problem_setup setup = setup_of(MG_MODEL_GT, MG_MODEL_LOCAL_NONE, (const int64_t[]){290, 0});
    setup.desc.inputs = 6000;
    setup.desc.input_dropout = 0;
    setup.desc.layers = 1;
    check_threads(&setup);
}

static void many_chunks(void **state)
{
    (void)state;
    for (mg_model_local local = MG_MODEL_LOCAL_NONE; local <= MG_MODEL_LOCAL_GATEDGCN; local++) {
        problem_setup setup = setup_of(local ? MG_MODEL_GPS : MG_MODEL_GT, local, medium);
        setup.desc.layers = 1;
        check_directions(&setup);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphormer_threads), cmocka_unit_test(gt_threads),  cmocka_unit_test(local_threads),
        cmocka_unit_test(long_products),      cmocka_unit_test(many_chunks),
    };
    return cmocka_run_group_tests_name("threads and chunks", tests, NULL, NULL);
}
