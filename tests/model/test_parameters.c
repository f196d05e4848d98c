/* The flat range: names, shapes, no holes; initial values that depend on the seed and the name alone. */
#include "model.h"
#include "support/test.h"

static mg_model *make(const mg_model_desc *desc)
{
    mg_model *model;
    if (mg_model_create(&model, desc))
        fail_msg("%s", mg_model_last_error());
    return model;
}

static const mg_model_desc full = {.kind = MG_MODEL_GPS,
                                   .inputs = 3,
                                   .edge_inputs = 2,
                                   .outputs = 5,
                                   .layers = 2,
                                   .hidden = 8,
                                   .heads = 2,
                                   .ffn = 12,
                                   .local = MG_MODEL_LOCAL_GINE,
                                   .codes = 4,
                                   .path_steps = 3,
                                   .degree = 6,
                                   .laplacian = 2,
                                   .random_walk = 4,
                                   .virtual_token = 1};

static void check_list(const mg_model *model, const char *const *expected)
{
    int64_t count, at = 0;
    const mg_model_parameter *list = mg_model_parameters(model, &count);
    for (int64_t k = 0; k < count; k++) {
        char text[128];
        int64_t floats = 1;
        for (int r = 0; r < list[k].rank; r++)
            floats *= list[k].shape[r];
        for (int r = list[k].rank; r < 3; r++)
            assert_int_equal(list[k].shape[r], 0);
        snprintf(text, sizeof text, "%s %d %lld %lld %lld%s", list[k].name, list[k].rank, (long long)list[k].shape[0],
                 (long long)list[k].shape[1], (long long)list[k].shape[2], list[k].decay ? " decay" : "");
        assert_non_null(expected[k]);
        assert_string_equal(text, expected[k]);
        assert_int_equal(list[k].begin, at);
        assert_int_equal(list[k].end, at + floats);
        at += floats;
    }
    assert_null(expected[count]);
    assert_int_equal(mg_model_parameter_count(model), at);
}

static void names_and_shapes(void **state)
{
    (void)state;
    static const char *const expected[] = {"embedding.input.weight 2 8 3 0 decay",
                                           "embedding.input.bias 1 8 0 0",
                                           "embedding.degree 2 6 8 0",
                                           "embedding.laplacian.weight 2 8 2 0 decay",
                                           "embedding.random_walk.weight 2 8 4 0 decay",
                                           "embedding.virtual 1 8 0 0",
#define BLOCK(l)                                                                                                       \
    "blocks." l ".norm1.weight 1 8 0 0", "blocks." l ".norm1.bias 1 8 0 0",                                            \
        "blocks." l ".attention.qkv.weight 2 24 8 0 decay", "blocks." l ".attention.qkv.bias 1 24 0 0",                \
        "blocks." l ".attention.out.weight 2 8 8 0 decay", "blocks." l ".attention.out.bias 1 8 0 0",                  \
        "blocks." l ".attention.table 2 2 4 0", "blocks." l ".attention.path 3 3 2 2",                                 \
        "blocks." l ".local.eps 1 1 0 0", "blocks." l ".local.edge.weight 2 8 2 0 decay",                              \
        "blocks." l ".local.up.weight 2 8 8 0 decay", "blocks." l ".local.up.bias 1 8 0 0",                            \
        "blocks." l ".local.down.weight 2 8 8 0 decay", "blocks." l ".local.down.bias 1 8 0 0",                        \
        "blocks." l ".norm2.weight 1 8 0 0", "blocks." l ".norm2.bias 1 8 0 0",                                        \
        "blocks." l ".ffn.up.weight 2 12 8 0 decay", "blocks." l ".ffn.up.bias 1 12 0 0",                              \
        "blocks." l ".ffn.down.weight 2 8 12 0 decay", "blocks." l ".ffn.down.bias 1 8 0 0"
                                           BLOCK("0"),
                                           BLOCK("1"),
                                           "head.norm.weight 1 8 0 0",
                                           "head.norm.bias 1 8 0 0",
                                           "head.weight 2 5 8 0 decay",
                                           "head.bias 1 5 0 0",
                                           NULL};
    mg_model *model = make(&full);
    check_list(model, expected);
    mg_model_destroy(model);
}

static void absent_when_empty(void **state)
{
    (void)state;
    static const char *const expected[] = {"embedding.degree 2 3 4 0",
                                           "blocks.0.norm1.weight 1 4 0 0",
                                           "blocks.0.norm1.bias 1 4 0 0",
                                           "blocks.0.local.weight 2 16 4 0 decay",
                                           "blocks.0.local.bias 1 16 0 0",
                                           "head.norm.weight 1 4 0 0",
                                           "head.norm.bias 1 4 0 0",
                                           "head.weight 2 1 4 0 decay",
                                           "head.bias 1 1 0 0",
                                           NULL};
    mg_model *model = make(&(mg_model_desc){
        .kind = MG_MODEL_GPS, .outputs = 1, .layers = 1, .hidden = 4, .local = MG_MODEL_LOCAL_GATEDGCN, .degree = 3});
    check_list(model, expected);
    mg_model_destroy(model);
}

static void gains_and_no_norms(void **state)
{
    (void)state;
    static const char *const expected[] = {"embedding.degree 2 3 4 0",
                                           "blocks.0.attention.qkv.weight 2 12 4 0 decay",
                                           "blocks.0.attention.qkv.bias 1 12 0 0",
                                           "blocks.0.attention.out.weight 2 4 4 0 decay",
                                           "blocks.0.attention.out.bias 1 4 0 0",
                                           "blocks.0.local.weight 2 4 4 0 decay",
                                           "blocks.0.local.bias 1 4 0 0",
                                           "blocks.0.attention.gain 1 4 0 0",
                                           "blocks.0.local.gain 1 4 0 0",
                                           "head.norm.weight 1 4 0 0",
                                           "head.norm.bias 1 4 0 0",
                                           "head.weight 2 1 4 0 decay",
                                           "head.bias 1 1 0 0",
                                           NULL};
    mg_model *model = make(&(mg_model_desc){.kind = MG_MODEL_GPS,
                                            .outputs = 1,
                                            .layers = 1,
                                            .hidden = 4,
                                            .heads = 2,
                                            .local = MG_MODEL_LOCAL_GCN,
                                            .degree = 3,
                                            .gain = 0.25f,
                                            .norms = MG_MODEL_NORMS_HEAD});
    check_list(model, expected);
    int64_t floats = mg_model_parameter_count(model), count;
    const mg_model_parameter *list = mg_model_parameters(model, &count);
    float *values = malloc((size_t)floats * sizeof *values);
    mg_model_initialise(model, values, 3);
    for (int64_t i = list[7].begin; i < list[8].end; i++)
        assert_true(values[i] == 0.25f);
    free(values);
    mg_model_destroy(model);
}

static const mg_model_parameter *find(const mg_model *model, const char *name)
{
    int64_t count;
    const mg_model_parameter *list = mg_model_parameters(model, &count);
    for (int64_t k = 0; k < count; k++)
        if (!strcmp(list[k].name, name))
            return &list[k];
    fail_msg("no parameter %s", name);
    return NULL;
}

static void initial_values(void **state)
{
    (void)state;
    mg_model *model = make(&full);
    int64_t floats = mg_model_parameter_count(model), count;
    float *values = malloc((size_t)floats * sizeof *values);
    const mg_model_parameter *list = mg_model_parameters(model, &count);
    mg_model_initialise(model, values, 7);
    for (int64_t k = 0; k < count; k++) {
        double bound = 0, most = 0, sum = 0, n = (double)(list[k].end - list[k].begin);
        int fixed =
            !list[k].decay && strcmp(list[k].name, "embedding.degree") && strcmp(list[k].name, "embedding.virtual");
        for (int64_t i = list[k].begin; i < list[k].end; i++) {
            most = fmax(most, fabs(values[i]));
            sum += values[i];
        }
        if (fixed) {
            int one = strstr(list[k].name, "norm") && strstr(list[k].name, ".weight");
            assert_true(most == one && sum == one * n);
            continue;
        }
        bound = list[k].decay ? sqrt(6. / (double)(list[k].shape[0] + list[k].shape[1])) : 0.05;
        assert_true(most <= bound && most > (n < 20 ? 0.4 : 0.85) * bound);
        assert_true(fabs(sum) < 3 * bound * sqrt(n / 3));
    }
    free(values);
    mg_model_destroy(model);
}

/* Another depth, width of the ffn or part leaves a parameter's values alone; another seed does not. */
static void initial_values_by_name(void **state)
{
    (void)state;
    mg_model_desc other = full;
    other.layers = 1;
    other.ffn = 0;
    other.laplacian = 0;
    mg_model *a = make(&full), *b = make(&other);
    float *x = malloc((size_t)mg_model_parameter_count(a) * sizeof *x);
    float *y = malloc((size_t)mg_model_parameter_count(b) * sizeof *y);
    mg_model_initialise(a, x, 7);
    mg_model_initialise(b, y, 7);
    const char *name = "blocks.0.local.down.weight";
    size_t bytes = 64 * sizeof *x;
    test_same_bytes(name, x + find(a, name)->begin, y + find(b, name)->begin, bytes);
    assert_memory_not_equal(x + find(a, name)->begin, x + find(a, "blocks.1.local.down.weight")->begin, bytes);
    mg_model_initialise(b, y, 8);
    assert_memory_not_equal(x + find(a, name)->begin, y + find(b, name)->begin, bytes);
    free(x);
    free(y);
    mg_model_destroy(a);
    mg_model_destroy(b);
}

static void refuse(mg_model_desc desc, int status, const char *line)
{
    mg_model *model;
    assert_int_equal(mg_model_create(&model, &desc), status);
    assert_null(model);
    if (!strstr(mg_model_last_error(), line))
        fail_msg("\"%s\" does not say \"%s\"", mg_model_last_error(), line);
}

static mg_model_desc with(size_t offset, size_t size, int64_t value)
{
    mg_model_desc desc = full;
    int32_t narrow = (int32_t)value;
    memcpy((char *)&desc + offset, size == 8 ? (const void *)&value : (const void *)&narrow, size);
    return desc;
}
#define WITH(field, value) with(offsetof(mg_model_desc, field), sizeof full.field, value)

static void wrong_descriptions(void **state)
{
    (void)state;
    refuse(WITH(kind, 3), -EINVAL, "kind is 3");
    refuse(WITH(local, 4), -EINVAL, "local is 4");
    refuse(WITH(readout, 9), -EINVAL, "readout is 9");
    refuse(WITH(norms, 2), -EINVAL, "norms is 2");
    refuse(WITH(inputs, -1), -EINVAL, "inputs is -1");
    refuse(WITH(edge_inputs, -2), -EINVAL, "edge_inputs is -2");
    refuse(WITH(outputs, 0), -EINVAL, "outputs is 0");
    refuse(WITH(layers, 0), -EINVAL, "layers is 0");
    refuse(WITH(hidden, 0), -EINVAL, "hidden is 0");
    refuse(WITH(hidden, 9), -EINVAL, "hidden is 9; it must be a multiple of heads, 2");
    refuse(WITH(hidden, 1024), -EINVAL, "hidden / heads is 512");
    refuse(WITH(heads, -1), -EINVAL, "heads is -1");
    refuse(WITH(heads, 0), -EINVAL, "no attention to bias");
    refuse(WITH(ffn, -1), -EINVAL, "ffn is -1");
    refuse(WITH(codes, 257), -EINVAL, "codes is 257");
    refuse(WITH(path_steps, 256), -EINVAL, "path_steps is 256");
    refuse(WITH(edge_inputs, 0), -EINVAL, "edge paths need edge features");
    refuse(WITH(degree, -1), -EINVAL, "degree is -1");
    refuse(WITH(laplacian, -1), -EINVAL, "laplacian is -1");
    refuse(WITH(random_walk, -1), -EINVAL, "random_walk is -1");
    refuse(WITH(kind, MG_MODEL_GT), -EINVAL, "only gps has a local part");

    mg_model_desc desc = full;
    desc.dropout = 1;
    refuse(desc, -EINVAL, "model: dropout is 1");
    desc = full;
    desc.attention_dropout = -0.5f;
    refuse(desc, -EINVAL, "attention_dropout is -0.5");
    desc = full;
    desc.input_dropout = NAN;
    refuse(desc, -EINVAL, "input_dropout is nan");
    desc = full;
    desc.gain = NAN;
    refuse(desc, -EINVAL, "gain is nan");
    desc.gain = -0.1f;
    refuse(desc, -EINVAL, "gain is -0.1");
    desc = full;
    desc.readout = MG_MODEL_VIRTUAL;
    desc.virtual_token = 0;
    refuse(desc, -EINVAL, "readout is virtual");
    desc = full;
    desc.inputs = desc.degree = desc.laplacian = desc.random_walk = 0;
    refuse(desc, -EINVAL, "nothing tells tokens apart");
    desc = full;
    desc.heads = desc.codes = desc.path_steps = 0;
    desc.kind = MG_MODEL_GT;
    refuse(desc, -EINVAL, "only gps can go without attention");
    desc.kind = MG_MODEL_GPS;
    desc.local = MG_MODEL_LOCAL_NONE;
    refuse(desc, -EINVAL, "no other token");
    desc = full;
    desc.layers = 65535;
    desc.hidden = desc.heads = 1 << 20;
    desc.ffn = 0x7fffffff;
    refuse(desc, -EOVERFLOW, "more parameters");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_shapes),   cmocka_unit_test(absent_when_empty),
        cmocka_unit_test(initial_values),     cmocka_unit_test(initial_values_by_name),
        cmocka_unit_test(gains_and_no_norms), cmocka_unit_test(wrong_descriptions),
    };
    return cmocka_run_group_tests_name("parameters", tests, NULL, NULL);
}
