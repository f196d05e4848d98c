/* Losses: sums, weights and gradients against the textbook formulas in fp64. */
#include "model.h"
#include "support/test.h"

enum { ROWS = 9, OUTPUTS = 5 };

static mg_model *make_model(int64_t outputs)
{
    mg_model *model;
    assert_int_equal(
        mg_model_create(
            &model,
            &(mg_model_desc){
                .kind = MG_MODEL_GT, .inputs = 1, .outputs = outputs, .layers = 1, .hidden = 4, .heads = 1}),
        0);
    return model;
}

typedef struct data {
    float outputs[ROWS * OUTPUTS], targets[ROWS * OUTPUTS], weights[2 * OUTPUTS];
    int32_t labels[ROWS];
    int64_t rows[4];
} data;

static data make_data(void)
{
    data d = {.rows = {7, 2, 3, 0}};
    test_fill(d.outputs, ROWS * OUTPUTS, 1, 4);
    for (int k = 0; k < ROWS; k++)
        d.labels[k] = k % 4 == 3 ? -1 : k % OUTPUTS;
    for (int i = 0; i < ROWS * OUTPUTS; i++)
        d.targets[i] = i % 7 == 2 ? NAN : (float)(i % 3 == 0);
    for (int i = 0; i < 2 * OUTPUTS; i++)
        d.weights[i] = 0.5f + (float)i / 4;
    d.outputs[7 * OUTPUTS] = 60; /* overflows a careless softmax or logistic at larger scales */
    d.outputs[2 * OUTPUTS] = -90;
    return d;
}

static double expected_row(mg_model_loss kind, const data *d, const float *class_weights, int64_t row, double *gradient,
                           double *weight)
{
    const float *x = d->outputs + row * OUTPUTS;
    double loss = 0, sum = 0;
    for (int o = 0; o < OUTPUTS; o++)
        gradient[o] = 0;
    if (kind == MG_MODEL_CROSS_ENTROPY) {
        int32_t label = d->labels[row];
        if (label < 0)
            return 0;
        double w = class_weights ? class_weights[label] : 1;
        for (int o = 0; o < OUTPUTS; o++)
            sum += exp((double)x[o] - x[label]);
        for (int o = 0; o < OUTPUTS; o++)
            gradient[o] = w * (exp((double)x[o] - x[label]) / sum - (o == label));
        *weight += w;
        return w * log(sum);
    }
    for (int o = 0; o < OUTPUTS; o++) {
        double target = d->targets[row * OUTPUTS + o], w = 1;
        if (isnan(target))
            continue;
        if (kind == MG_MODEL_BINARY) {
            w = class_weights ? class_weights[2 * o + (target == 1)] : 1;
            loss += w * (target == 1 ? log1p(exp(-(double)x[o])) : log1p(exp((double)x[o])));
            gradient[o] = w * (1 / (1 + exp(-(double)x[o])) - target);
        } else {
            loss += fabs(x[o] - target);
            gradient[o] = x[o] > target ? 1 : x[o] < target ? -1 : 0;
        }
        *weight += w;
    }
    return loss;
}

static void check(mg_model_loss kind, int weighted, int chosen)
{
    data d = make_data();
    mg_model *model = make_model(OUTPUTS);
    const float *class_weights = weighted ? d.weights : NULL;
    const int64_t *rows = chosen ? d.rows : NULL;
    int64_t count = chosen ? 4 : ROWS;
    double loss, weight, expected_loss = 0, expected_weight = 0, scale = 0.25;
    double expected[ROWS * OUTPUTS] = {0};
    float gradient[ROWS * OUTPUTS] = {0};
    for (int64_t k = 0; k < count; k++) {
        int64_t row = rows ? rows[k] : k;
        expected_loss += expected_row(kind, &d, class_weights, row, expected + row * OUTPUTS, &expected_weight);
    }
    for (int i = 0; i < ROWS * OUTPUTS; i++)
        expected[i] *= scale;
    assert_int_equal(mg_model_loss_sum(&loss, &weight, gradient, model, kind, d.outputs, rows, count, d.labels,
                                       d.targets, class_weights, scale),
                     0);
    assert_true(fabs(loss - expected_loss) <= 1e-6 * expected_loss);
    assert_true(weight == expected_weight);
    assert_true(mg_model_loss_weight(model, kind, rows, count, d.labels, d.targets, class_weights) == expected_weight);
    test_near("gradient", gradient, expected, ROWS * OUTPUTS, 1e-6);

    double alone;
    assert_int_equal(mg_model_loss_sum(&alone, &weight, NULL, model, kind, d.outputs, rows, count, d.labels, d.targets,
                                       class_weights, scale),
                     0);
    assert_true(alone == loss);
    mg_model_destroy(model);
}

static void cross_entropy(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++)
        check(MG_MODEL_CROSS_ENTROPY, k & 1, k >> 1);
}

static void binary(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++)
        check(MG_MODEL_BINARY, k & 1, k >> 1);
}

static void absolute(void **state)
{
    (void)state;
    check(MG_MODEL_ABSOLUTE, 0, 0);
    check(MG_MODEL_ABSOLUTE, 0, 1);
}

static void no_rows(void **state)
{
    (void)state;
    mg_model *model = make_model(OUTPUTS);
    double loss = 1, weight = 1;
    for (mg_model_loss kind = MG_MODEL_CROSS_ENTROPY; kind <= MG_MODEL_ABSOLUTE; kind++) {
        assert_int_equal(mg_model_loss_sum(&loss, &weight, NULL, model, kind, NULL, NULL, 0, NULL, NULL, NULL, 1), 0);
        assert_true(loss == 0 && weight == 0);
    }
    mg_model_destroy(model);
}

/* A NaN output makes the loss NaN, not silence. */
static void nan_output(void **state)
{
    (void)state;
    mg_model *model = make_model(OUTPUTS);
    for (mg_model_loss kind = MG_MODEL_CROSS_ENTROPY; kind <= MG_MODEL_ABSOLUTE; kind++) {
        data d = make_data();
        double loss, weight;
        d.outputs[1] = NAN;
        assert_int_equal(
            mg_model_loss_sum(&loss, &weight, NULL, model, kind, d.outputs, NULL, ROWS, d.labels, d.targets, NULL, 1),
            0);
        assert_true(isnan(loss));
    }
    mg_model_destroy(model);
}

static void refuse(mg_model_loss kind, const data *d, const float *class_weights, int64_t count, const char *line)
{
    mg_model *model = make_model(OUTPUTS);
    double loss, weight;
    assert_int_equal(mg_model_loss_sum(&loss, &weight, NULL, model, kind, d->outputs, NULL, count, d->labels,
                                       d->targets, class_weights, 1),
                     -EINVAL);
    if (!strstr(mg_model_last_error(), line))
        fail_msg("\"%s\" does not say \"%s\"", mg_model_last_error(), line);
    mg_model_destroy(model);
}

static void wrong_values(void **state)
{
    (void)state;
    data d = make_data();
    refuse((mg_model_loss)7, &d, NULL, ROWS, "kind 7");
    refuse(MG_MODEL_CROSS_ENTROPY, &d, NULL, -1, "-1 rows");
    refuse(MG_MODEL_ABSOLUTE, &d, d.weights, ROWS, "no classes");
    d.labels[4] = OUTPUTS;
    refuse(MG_MODEL_CROSS_ENTROPY, &d, NULL, ROWS, "row 4 has label 5");
    d.labels[4] = -2;
    refuse(MG_MODEL_CROSS_ENTROPY, &d, NULL, ROWS, "row 4 has label -2");
    d.targets[2 * OUTPUTS + 3] = 0.5f;
    refuse(MG_MODEL_BINARY, &d, NULL, ROWS, "row 2, output 3 has target 0.5");
    mg_model *model = make_model(OUTPUTS);
    double loss, weight;
    assert_int_equal(
        mg_model_loss_sum(&loss, &weight, NULL, model, MG_MODEL_BINARY, d.outputs, NULL, ROWS, d.labels, NULL, NULL, 1),
        -EINVAL);
    assert_int_equal(mg_model_loss_sum(&loss, &weight, NULL, model, MG_MODEL_CROSS_ENTROPY, d.outputs, NULL, ROWS, NULL,
                                       d.targets, NULL, 1),
                     -EINVAL);
    mg_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy), cmocka_unit_test(binary),     cmocka_unit_test(absolute),
        cmocka_unit_test(no_rows),       cmocka_unit_test(nan_output), cmocka_unit_test(wrong_values),
    };
    return cmocka_run_group_tests_name("losses", tests, NULL, NULL);
}
