/* Passes: what they hold, use for other batches, memory that fails, batches that are wrong, empty ones. */
#include "model/problem.h"
#include "support/test.h"

static const int64_t large[] = {40, 1, 22, 0}, small[] = {9, 3, 0}, none[] = {0};

static problem_setup setup_of(const int64_t *nodes, mg_model_local local, int virtual_token)
{
    return (problem_setup){.desc = {.kind = MG_MODEL_GPS,
                                    .inputs = 6,
                                    .edge_inputs = 2,
                                    .outputs = 3,
                                    .layers = 2,
                                    .hidden = 12,
                                    .heads = 3,
                                    .ffn = 10,
                                    .local = local,
                                    .codes = 5,
                                    .path_steps = 2,
                                    .degree = 5,
                                    .dropout = 0.3f,
                                    .attention_dropout = 0.3f,
                                    .input_dropout = 0.2f,
                                    .virtual_token = virtual_token,
                                    .readout = virtual_token ? MG_MODEL_VIRTUAL : MG_MODEL_NODES},
                           .map = MAP_NEAR_BIAS,
                           .hops = 2,
                           .nodes = nodes,
                           .degree = 3,
                           .seed = 70};
}

static const mg_model_step step = {.training = 1, .seed = 3, .step = 1, .threads = 2};

/* A smaller batch, and the first again, in the pass of a larger one give the bytes of passes of their own. */
static void reused(void **state)
{
    (void)state;
    for (mg_model_local local = MG_MODEL_LOCAL_GCN; local <= MG_MODEL_LOCAL_GATEDGCN; local++) {
        problem_setup one = setup_of(large, local, 0), two = setup_of(small, local, 0);
        problem *p[2] = {problem_create(&one), problem_create(&two)};
        int64_t floats = mg_model_parameter_count(p[0]->model);
        mg_model_pass *pass;
        assert_int_equal(mg_model_pass_create(&pass, p[0]->model, &p[0]->batch, 1), 0);
        for (int k = 0; k < 3; k++) {
            const problem *q = p[k % 2];
            int64_t outputs = q->rows * 3;
            float *a = calloc((size_t)outputs, sizeof *a), *b = calloc((size_t)outputs, sizeof *b);
            float *da = calloc((size_t)floats, sizeof *da), *db = calloc((size_t)floats, sizeof *db);
            problem_run(q, &step, a, da);
            assert_int_equal(mg_model_forward(p[0]->model, q->parameters, pass, &q->batch, &step, b), 0);
            assert_int_equal(mg_model_backward(p[0]->model, q->parameters, db, pass, &q->batch, &step, q->weights), 0);
            test_same_bytes("outputs", b, a, (size_t)outputs * sizeof *a);
            test_same_bytes("gradients", db, da, (size_t)floats * sizeof *da);
            free(a);
            free(b);
            free(da);
            free(db);
        }
        mg_model_pass_destroy(pass);
        problem_destroy(p[0]);
        problem_destroy(p[1]);
    }
}

/* A pass without training gives the bytes of one with, and the embeddings of the reference. */
static void without_training(void **state)
{
    (void)state;
    problem_setup setup = setup_of(large, MG_MODEL_LOCAL_GATEDGCN, 1);
    problem *p = problem_create(&setup);
    mg_model_step still = {.threads = 1};
    int64_t outputs = p->rows * 3, floats = mg_model_parameter_count(p->model),
            size = p->batch.tokens * setup.desc.hidden;
    float *a = calloc((size_t)outputs, sizeof *a), *b = calloc((size_t)outputs, sizeof *b);
    double *wide = malloc((size_t)floats * sizeof *wide), *unused = malloc((size_t)outputs * sizeof *unused);
    double *expected = malloc((size_t)size * sizeof *expected);
    for (int64_t i = 0; i < floats; i++)
        wide[i] = p->parameters[i];
    reference_forward(p, wide, &still, unused, expected);
    for (int training = 0; training < 2; training++) {
        mg_model_pass *pass;
        assert_int_equal(mg_model_pass_create(&pass, p->model, &p->batch, training), 0);
        assert_int_equal(mg_model_forward(p->model, p->parameters, pass, &p->batch, &still, training ? a : b), 0);
        test_near("embeddings", mg_model_embeddings(pass), expected, size, 2e-5);
        mg_model_times times = mg_model_pass_times(pass);
        assert_true(times.attention > 0 && times.local > 0 && times.dense > 0 && times.other > 0);
        mg_model_pass_destroy(pass);
    }
    test_same_bytes("outputs", b, a, (size_t)outputs * sizeof *a);
    free(a);
    free(b);
    free(wide);
    free(unused);
    free(expected);
    problem_destroy(p);
}

/* Gradients are added to what is there. */
static void accumulated(void **state)
{
    (void)state;
    problem_setup setup = setup_of(small, MG_MODEL_LOCAL_GINE, 1);
    problem *p = problem_create(&setup);
    int64_t floats = mg_model_parameter_count(p->model);
    float outputs[64], *once = calloc((size_t)floats, sizeof *once), *twice = calloc((size_t)floats, sizeof *twice);
    double *expected = malloc((size_t)floats * sizeof *expected);
    problem_run(p, &step, outputs, once);
    problem_run(p, &step, outputs, twice);
    problem_run(p, &step, outputs, twice);
    for (int64_t i = 0; i < floats; i++)
        expected[i] = 2 * (double)once[i];
    test_near("gradients of two runs", twice, expected, floats, 1e-6);
    free(once);
    free(twice);
    free(expected);
    problem_destroy(p);
}

static void empty_batch(void **state)
{
    (void)state;
    for (int readout = 0; readout < 2; readout++) {
        problem_setup setup = setup_of(none, MG_MODEL_LOCAL_GCN, 0);
        setup.desc.path_steps = 0;
        setup.desc.readout = readout ? MG_MODEL_MEAN : MG_MODEL_NODES;
        problem *p = problem_create(&setup);
        assert_int_equal(p->batch.tokens, 0);
        float *gradients = calloc((size_t)mg_model_parameter_count(p->model), sizeof *gradients), outputs[1];
        problem_run(p, &step, outputs, gradients);
        for (int64_t i = 0; i < mg_model_parameter_count(p->model); i++)
            assert_true(gradients[i] == 0);
        free(gradients);
        problem_destroy(p);
    }
}

/* A graph without nodes pools to 0: its output is the bias. */
static void graph_without_nodes(void **state)
{
    (void)state;
    for (mg_model_readout readout = MG_MODEL_MEAN; readout <= MG_MODEL_SUM; readout++) {
        problem_setup setup = setup_of((const int64_t[]){3, 0, 2}, MG_MODEL_LOCAL_GCN, 0);
        setup.graphs = 3;
        setup.desc.readout = readout;
        problem *p = problem_create(&setup);
        float outputs[9];
        problem_run(p, &(mg_model_step){.threads = 1}, outputs, NULL);
        int64_t bias = mg_model_parameter_count(p->model) - 3;
        test_same_bytes("outputs", outputs + 3, p->parameters + bias, 3 * sizeof *outputs);
        problem_destroy(p);
    }
}

/* --- memory --- */

typedef struct fault_context {
    const problem *p;
    int training;
} fault_context;

static int create_and_run(void *context)
{
    const fault_context *f = context;
    const problem *p = f->p;
    mg_model *model;
    mg_model_pass *pass = NULL;
    float *outputs = calloc((size_t)(p->rows * 3), sizeof *outputs);
    float *gradients = calloc((size_t)mg_model_parameter_count(p->model), sizeof *gradients);
    mg_model_step some = step;
    some.training = f->training;
    int status = mg_model_create(&model, &p->setup.desc);
    if (!status)
        status = mg_model_pass_create(&pass, model, &p->batch, f->training);
    some.threads = 4; /* more than create reserved for */
    if (!status)
        status = mg_model_forward(model, p->parameters, pass, &p->batch, &some, outputs);
    if (!status && f->training)
        status = mg_model_backward(model, p->parameters, gradients, pass, &p->batch, &some, p->weights);
    mg_model_pass_destroy(pass);
    mg_model_destroy(model);
    free(outputs);
    free(gradients);
    return status;
}

static void every_allocation(void **state)
{
    (void)state;
    for (mg_model_local local = MG_MODEL_LOCAL_GCN; local <= MG_MODEL_LOCAL_GATEDGCN; local++)
        for (int training = 0; training < 2; training++) {
            problem_setup setup = setup_of(small, local, 1);
            problem *p = problem_create(&setup);
            assert_true(test_every_allocation_fails(mg_model_set_memory_hook, create_and_run,
                                                    &(fault_context){p, training}) > 10);
            problem_destroy(p);
        }
}

static int refuse_all(int64_t bytes) { return bytes > 0; }

static void loss_without_memory(void **state)
{
    (void)state;
    problem_setup setup = setup_of(small, MG_MODEL_LOCAL_GCN, 1);
    problem *p = problem_create(&setup);
    double loss, weight;
    float outputs[64] = {0};
    int32_t labels[64] = {0};
    mg_model_set_memory_hook(refuse_all);
    int status = mg_model_loss_sum(&loss, &weight, NULL, p->model, MG_MODEL_CROSS_ENTROPY, outputs, NULL, 2, labels,
                                   NULL, NULL, 1);
    mg_model_set_memory_hook(NULL);
    assert_int_equal(status, -ENOMEM);
    problem_destroy(p);
}

static int64_t used;
static int count_bytes(int64_t bytes)
{
    used += bytes;
    return 0;
}

/* Graphormer with 4 layers of hidden 64 on as many tokens as tolokers has: far below 100 MB. */
static void memory_of_graphormer(void **state)
{
    (void)state;
    enum { TOKENS = 11758 };
    mg_model *model;
    mg_model_desc desc = {
        .kind = MG_MODEL_GRAPHORMER, .degree = 64, .outputs = 2, .layers = 4, .hidden = 64, .heads = 8, .ffn = 128};
    assert_int_equal(mg_model_create(&model, &desc), 0);
    mg_attn_plan *plan;
    assert_int_equal(
        mg_attn_plan_create(&plan, &(mg_attn_map){.kind = MG_ATTN_NONE, .queries = TOKENS, .keys = TOKENS}), 0);
    int32_t *degrees = calloc(TOKENS, sizeof *degrees);
    mg_model_batch batch = {
        .tokens = TOKENS, .graphs = 1, .segments = (int64_t[]){0, TOKENS}, .degrees = degrees, .plan = plan};
    mg_model_pass *pass;
    used = 0;
    mg_model_set_memory_hook(count_bytes);
    int status = mg_model_pass_create(&pass, model, &batch, 1);
    int64_t bytes = used;
    mg_model_pass_destroy(pass);
    mg_model_set_memory_hook(NULL);
    assert_int_equal(status, 0);
    assert_int_equal(used, 0);
    if (bytes > 90e6)
        fail_msg("graphormer, 4 layers of hidden 64, %d tokens: %.1f MB", TOKENS, (double)bytes / 1e6);
    free(degrees);
    mg_attn_plan_destroy(plan);
    mg_model_destroy(model);
}

/* --- refusals --- */

static void expect(int status, const char *line)
{
    assert_int_equal(status, -EINVAL);
    if (!strstr(mg_model_last_error(), line))
        fail_msg("\"%s\" does not say \"%s\"", mg_model_last_error(), line);
}

static void refuse_batch(const problem *p, mg_model_pass *pass, mg_model_batch batch, const char *line)
{
    float outputs[256];
    expect(mg_model_forward(p->model, p->parameters, pass, &batch, &step, outputs), line);
}

#define CHANGED(field, value) (batch = p->batch, batch.field = (value), batch)

static void wrong_batches(void **state)
{
    (void)state;
    problem_setup setup = setup_of(small, MG_MODEL_LOCAL_GINE, 1);
    setup.desc.laplacian = setup.desc.random_walk = 2;
    problem *p = problem_create(&setup);
    mg_model_pass *pass;
    mg_model_batch batch;
    int64_t tokens = p->batch.tokens;
    assert_int_equal(tokens, 14);
    assert_int_equal(mg_model_pass_create(&pass, p->model, &p->batch, 1), 0);
    refuse_batch(p, pass, CHANGED(tokens, -1), "-1 tokens");
    refuse_batch(p, pass, CHANGED(graphs, -1), "-1 graphs");
    refuse_batch(p, pass, CHANGED(segments, NULL), "segments is not given");
    refuse_batch(p, pass, CHANGED(segments, ((int64_t[]){0, 10, 13})), "segments run from 0 to 13");
    refuse_batch(p, pass, CHANGED(segments, ((int64_t[]){0, 15, 14})), "graph 1 runs from token 15 to 14");
    refuse_batch(p, pass, CHANGED(segments, ((int64_t[]){0, 14, 14})), "graph 1 has no token");
    refuse_batch(p, pass, CHANGED(features, NULL), "features is not given");
    refuse_batch(p, pass, CHANGED(degrees, NULL), "degrees is not given");
    refuse_batch(p, pass, CHANGED(laplacian, NULL), "laplacian is not given");
    refuse_batch(p, pass, CHANGED(random_walk, NULL), "random_walk is not given");
    refuse_batch(p, pass, CHANGED(ids, NULL), "ids is not given");
    refuse_batch(p, pass, CHANGED(graph, NULL), "graph is not given");
    refuse_batch(p, pass, CHANGED(edge_features, NULL), "edge_features is not given");
    refuse_batch(p, pass, CHANGED(plan, NULL), "plan is not given");
    refuse_batch(p, pass, CHANGED(near, NULL), "near or paths is not given");
    refuse_batch(p, pass, CHANGED(paths, NULL), "near or paths is not given");

    int32_t degrees[14] = {[5] = -3};
    refuse_batch(p, pass, CHANGED(degrees, degrees), "token 5 has degree -3");
    mg_graph graph = *p->batch.graph;
    graph.nodes = 13;
    refuse_batch(p, pass, CHANGED(graph, &graph), "the graph has 13 nodes");
    mg_graph_near near = *p->batch.near;
    near.pairs--;
    refuse_batch(p, pass, CHANGED(near, &near), "pairs");
    mg_graph_paths paths = *p->batch.paths;
    int64_t *starts = malloc((size_t)(paths.pairs + 1) * sizeof *starts);
    for (int64_t k = 0; k <= paths.pairs; k++)
        starts[k] = 3 * k;
    paths.starts = starts;
    refuse_batch(p, pass, CHANGED(paths, &paths), "near pair 0 has 3 edges, but path_steps is 2");
    free(starts);
    mg_model_pass_destroy(pass);
    problem_destroy(p);
}

static void wrong_plans(void **state)
{
    (void)state;
    problem_setup setup = setup_of(small, MG_MODEL_LOCAL_GCN, 1);
    problem *p = problem_create(&setup);
    mg_model_pass *pass;
    mg_attn_plan *plan;
    mg_model_batch batch;
    assert_int_equal(mg_model_pass_create(&pass, p->model, &p->batch, 1), 0);
    mg_attn_map map = {.kind = MG_ATTN_NONE, .queries = 13, .keys = 14, .codes = 5};
    assert_int_equal(mg_attn_plan_create(&plan, &map), 0);
    refuse_batch(p, pass, CHANGED(plan, plan), "the plan has 13 queries and 14 keys");
    mg_attn_plan_destroy(plan);
    map.queries = 14;
    assert_int_equal(mg_attn_plan_create(&plan, &map), 0);
    refuse_batch(p, pass, CHANGED(plan, plan), "the plan's map lists 0 pairs");
    mg_attn_plan_destroy(plan);
    map.codes = 6;
    assert_int_equal(mg_attn_plan_create(&plan, &map), 0);
    refuse_batch(p, pass, CHANGED(plan, plan), "the plan's map has 6 codes, but the model's table has 5");
    mg_attn_plan_destroy(plan);
    mg_model_pass_destroy(pass);
    problem_destroy(p);
}

static void wrong_passes(void **state)
{
    (void)state;
    problem_setup one = setup_of(large, MG_MODEL_LOCAL_GCN, 0), two = setup_of(small, MG_MODEL_LOCAL_GCN, 0);
    problem *big = problem_create(&one), *p = problem_create(&two);
    mg_model_pass *pass;
    float outputs[1024], *gradients = calloc((size_t)mg_model_parameter_count(p->model), sizeof *gradients);
    mg_model_step still = {.training = 0};
    assert_int_equal(mg_model_pass_create(&pass, p->model, &p->batch, 0), 0);
    expect(mg_model_forward(p->model, p->parameters, pass, &big->batch, &still, outputs), "pass: made for 12 tokens");
    expect(mg_model_forward(big->model, p->parameters, pass, &p->batch, &still, outputs), "made for another model");
    expect(mg_model_forward(p->model, p->parameters, pass, &p->batch, &step, outputs), "the pass was made without");
    expect(mg_model_backward(p->model, p->parameters, gradients, pass, &p->batch, &still, p->weights), "training on");
    mg_model_pass_destroy(pass);
    free(gradients);
    problem_destroy(big);
    problem_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reused),
        cmocka_unit_test(without_training),
        cmocka_unit_test(accumulated),
        cmocka_unit_test(empty_batch),
        cmocka_unit_test(graph_without_nodes),
        cmocka_unit_test(every_allocation),
        cmocka_unit_test(loss_without_memory),
        cmocka_unit_test(memory_of_graphormer),
        cmocka_unit_test(wrong_batches),
        cmocka_unit_test(wrong_plans),
        cmocka_unit_test(wrong_passes),
    };
    return cmocka_run_group_tests_name("passes", tests, NULL, NULL);
}
