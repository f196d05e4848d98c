/* The order of tokens does not matter, with dropout on; nor do strangers in the batch. */
#include "model/problem.h"
#include "support/test.h"

static const int64_t packed[] = {30, 1, 12, 0};
static const mg_model_step step = {.training = 1, .seed = 77, .step = 3, .threads = 1};

static void check_rows(const char *what, const float *actual, const float *expected, const int32_t *order, int64_t rows,
                       int64_t columns)
{
    double *wanted = malloc((size_t)(rows * columns) * sizeof *wanted);
    for (int64_t k = 0; k < rows; k++)
        for (int64_t c = 0; c < columns; c++)
            wanted[k * columns + c] = expected[(order ? order[k] : k) * columns + c];
    test_near(what, actual, wanted, rows * columns, 2e-5);
    free(wanted);
}

static void check_order(const problem_setup *setup)
{
    problem *p = problem_create(setup);
    int64_t outputs = p->rows * setup->desc.outputs, total = mg_model_parameter_count(p->model);
    int32_t *order = calloc((size_t)p->batch.tokens, sizeof *order);
    problem *q = problem_permuted(p, order);
    float *a = calloc((size_t)outputs, sizeof *a), *b = calloc((size_t)outputs, sizeof *b);
    float *da = calloc((size_t)total, sizeof *da), *db = calloc((size_t)total, sizeof *db);
    problem_run(p, &step, a, da);
    problem_run(q, &step, b, db);
    int nodes = setup->desc.readout == MG_MODEL_NODES;
    check_rows("outputs", b, a, nodes ? order : NULL, p->rows, setup->desc.outputs);
    check_rows("gradients", db, da, NULL, 1, total);
    free(a);
    free(b);
    free(da);
    free(db);
    free(order);
    problem_destroy(p);
    problem_destroy(q);
}

static problem_setup setup_of(mg_model_kind kind, mg_model_local local, mg_model_readout readout, int virtual_token)
{
    return (problem_setup){.desc = {.kind = kind,
                                    .inputs = 6,
                                    .edge_inputs = local ? 2 : 0,
                                    .outputs = 3,
                                    .layers = 2,
                                    .hidden = 12,
                                    .heads = 3,
                                    .ffn = 10,
                                    .local = local,
                                    .codes = 5,
                                    .degree = 5,
                                    .laplacian = 2,
                                    .random_walk = 2,
                                    .dropout = 0.3f,
                                    .attention_dropout = 0.3f,
                                    .input_dropout = 0.2f,
                                    .readout = readout,
                                    .virtual_token = virtual_token},
                           .map = kind == MG_MODEL_GRAPHORMER ? MAP_DENSE : MAP_NEAR_MASK,
                           .hops = 2,
                           .nodes = packed,
                           .degree = 3,
                           .directed = 1,
                           .seed = 50};
}

static void nodes(void **state)
{
    (void)state;
    problem_setup setup = setup_of(MG_MODEL_GRAPHORMER, MG_MODEL_LOCAL_NONE, MG_MODEL_NODES, 0);
    check_order(&setup);
    for (mg_model_local local = MG_MODEL_LOCAL_GCN; local <= MG_MODEL_LOCAL_GATEDGCN; local++) {
        setup = setup_of(MG_MODEL_GPS, local, MG_MODEL_NODES, 0);
        check_order(&setup);
    }
}

static void graphs(void **state)
{
    (void)state;
    for (mg_model_readout readout = MG_MODEL_MEAN; readout <= MG_MODEL_VIRTUAL; readout++) {
        problem_setup setup = setup_of(MG_MODEL_GPS, MG_MODEL_LOCAL_GINE, readout, 1);
        check_order(&setup);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nodes), cmocka_unit_test(graphs)};
    return cmocka_run_group_tests_name("order of tokens", tests, NULL, NULL);
}
