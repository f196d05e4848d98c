#include "support/test.h"

#include <megagraph/dp.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { COUNT = 40009, STEPS = 60 }; /* more than two chunks, and an odd rest */

static void use_threads(int threads)
{
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

typedef struct state {
    float parameters[COUNT], first[COUNT], second[COUNT], gradients[COUNT];
} state;

static state *state_create(void)
{
    state *s = calloc(1, sizeof *s);
    test_fill(s->parameters, COUNT, 1, 1);
    return s;
}

/* Gradients of every size from 1e-6 to 1, some 0. */
static void make_gradients(float *gradients, int step)
{
    for (int i = 0; i < COUNT; i++) {
        float size = powf(10, (float)(i % 7) - 6);
        gradients[i] = i % 11 == 0 ? 0 : size * test_random((uint64_t)step + 10, (uint64_t)i);
    }
}

/* Touching, crossing the borders of chunks, empty, one element, to the end. */
static const mg_dp_range ranges[] = {{0, 3}, {3, 17}, {20, 20}, {16000, 16400}, {32767, 32768}, {40000, COUNT}};
static const mg_dp_adamw settings = {.rate = 1e-2f,
                                     .weight_decay = 0.1f,
                                     .l2 = 0.01f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.999f,
                                     .epsilon = 1e-8f,
                                     .no_decay = ranges,
                                     .no_decay_count = 6};

static int decays(int64_t i)
{
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        if (i >= ranges[r].begin && i < ranges[r].end)
            return 0;
    return 1;
}

/* Algorithm 2 of the paper, one line a quantity, in fp64. */
static void reference_step(double *p, double *m, double *v, const float *gradients, int step, double scale)
{
    double beta1 = settings.beta1, beta2 = settings.beta2;
    for (int i = 0; i < COUNT; i++) {
        double g = scale * gradients[i] + (decays(i) ? settings.l2 * p[i] : 0);
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        double m_hat = m[i] / (1 - pow(beta1, step)), v_hat = v[i] / (1 - pow(beta2, step));
        double decay = decays(i) ? settings.weight_decay : 0;
        p[i] -= settings.rate * (m_hat / (sqrt(v_hat) + settings.epsilon) + decay * p[i]);
    }
}

static void equals_fp64_over_many_steps(void **unused)
{
    (void)unused;
    state *s = state_create();
    double *p = calloc(COUNT, 8), *m = calloc(COUNT, 8), *v = calloc(COUNT, 8);
    for (int i = 0; i < COUNT; i++)
        p[i] = s->parameters[i];
    for (int step = 1; step <= STEPS; step++) {
        make_gradients(s->gradients, step);
        assert_int_equal(
            0, mg_dp_adamw_step(s->parameters, s->first, s->second, s->gradients, COUNT, &settings, step, 0.5));
        reference_step(p, m, v, s->gradients, step, 0.5);
    }
    test_near("parameters", s->parameters, p, COUNT, 2e-6);
    test_near("first moments", s->first, m, COUNT, 1e-6);
    test_near("second moments", s->second, v, COUNT, 1e-5);
    free(p), free(m), free(v), free(s);
}

static state *run_with_threads(int threads)
{
    state *s = state_create();
    use_threads(threads);
    for (int step = 1; step <= 3; step++) {
        make_gradients(s->gradients, step);
        double scale = mg_dp_clip_scale(sqrt(mg_dp_square_sum(s->gradients, COUNT)), 1);
        assert_int_equal(
            0, mg_dp_adamw_step(s->parameters, s->first, s->second, s->gradients, COUNT, &settings, step, scale));
    }
    return s;
}

static void same_bytes_for_any_threads(void **unused)
{
    (void)unused;
    state *one = run_with_threads(1);
    for (int threads = 2; threads <= 7; threads++) {
        state *many = run_with_threads(threads);
        test_same_bytes("state", many, one, sizeof *one);
        free(many);
    }
    free(one);
}

static void square_sum_is_exact_and_keeps_nan(void **unused)
{
    (void)unused;
    state *s = state_create();
    for (int64_t count = 0; count < 40; count++) {
        double sum = 0;
        for (int64_t i = 0; i < count; i++)
            sum += (double)s->parameters[i] * s->parameters[i];
        assert_true(fabs(mg_dp_square_sum(s->parameters, count) - sum) <= 1e-15 * sum);
    }
    double sum = 0;
    for (int64_t i = 0; i < COUNT; i++)
        sum += (double)s->parameters[i] * s->parameters[i];
    assert_true(fabs(mg_dp_square_sum(s->parameters, COUNT) - sum) <= 1e-12 * sum);
    s->parameters[7] = 2e38f; /* its square is beyond fp32 */
    assert_true(mg_dp_square_sum(s->parameters, COUNT) > 3.9e76);
    s->parameters[COUNT - 1] = INFINITY;
    assert_true(isinf(mg_dp_square_sum(s->parameters, COUNT)));
    s->parameters[20000] = NAN;
    assert_true(isnan(mg_dp_square_sum(s->parameters, COUNT)));
    free(s);
}

static void nan_stays(void **unused)
{
    (void)unused;
    state *s = state_create();
    make_gradients(s->gradients, 1);
    s->gradients[100] = NAN;
    assert_int_equal(0, mg_dp_adamw_step(s->parameters, s->first, s->second, s->gradients, COUNT, &settings, 1, 1));
    assert_true(isnan(s->parameters[100]));
    assert_false(isnan(s->parameters[99]) || isnan(s->parameters[101]));
    assert_int_equal(0, mg_dp_adamw_step(s->parameters, s->first, s->second, s->gradients, COUNT, &settings, 2, NAN));
    assert_true(isnan(s->parameters[0]) && isnan(s->parameters[COUNT - 1]));
    free(s);
}

static void clip_scale_closed_form(void **unused)
{
    (void)unused;
    assert_true(mg_dp_clip_scale(4, 2) == 0.5);
    assert_true(mg_dp_clip_scale(2, 2) == 1);
    assert_true(mg_dp_clip_scale(1, 2) == 1);
    assert_true(mg_dp_clip_scale(0, 2) == 1);
    assert_true(mg_dp_clip_scale(1e9, 0) == 1);
    assert_true(mg_dp_clip_scale(INFINITY, 1) == 0);
    assert_true(isnan(mg_dp_clip_scale(NAN, 1)));
}

static void refused(const char *line, mg_dp_adamw adamw, int64_t count, int64_t step)
{
    float p[4] = {1, 2, 3, 4}, m[4] = {0}, v[4] = {0}, g[4] = {1, 1, 1, 1}, same[4] = {1, 2, 3, 4};
    assert_int_equal(-EINVAL, mg_dp_adamw_step(p, m, v, g, count, &adamw, step, 1));
    assert_string_equal(mg_dp_last_error(), line);
    test_same_bytes("parameters", p, same, sizeof p);
}

static void bad_arguments_are_named(void **unused)
{
    (void)unused;
    mg_dp_range outside = {2, 5}, crossing[] = {{0, 2}, {1, 3}}, backwards = {3, 2};
    refused("adamw: step 0; steps count from 1", (mg_dp_adamw){0}, 4, 0);
    refused("adamw: -1 parameters", (mg_dp_adamw){0}, -1, 1);
    refused("adamw: range 0 without decay is [2, 5); ranges ascend, are disjoint and lie in [0, 4)",
            (mg_dp_adamw){.no_decay = &outside, .no_decay_count = 1}, 4, 1);
    refused("adamw: range 1 without decay is [1, 3); ranges ascend, are disjoint and lie in [0, 4)",
            (mg_dp_adamw){.no_decay = crossing, .no_decay_count = 2}, 4, 1);
    refused("adamw: range 0 without decay is [3, 2); ranges ascend, are disjoint and lie in [0, 4)",
            (mg_dp_adamw){.no_decay = &backwards, .no_decay_count = 1}, 4, 1);
    refused("adamw: 1 ranges without decay, but no ranges are given", (mg_dp_adamw){.no_decay_count = 1}, 4, 1);
    refused("adamw: beta1 1, beta2 0; both lie in [0, 1)", (mg_dp_adamw){.beta1 = 1}, 4, 1);
    refused("adamw: rate -1, epsilon 0, weight decay 0, l2 0; none is negative, NaN or infinite", (mg_dp_adamw){.rate = -1},
            4, 1);
}

static void nothing_is_a_step_too(void **unused)
{
    (void)unused;
    assert_int_equal(0, mg_dp_adamw_step(NULL, NULL, NULL, NULL, 0, &(mg_dp_adamw){0}, 1, 1));
    assert_true(mg_dp_square_sum(NULL, 0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_fp64_over_many_steps),
        cmocka_unit_test(same_bytes_for_any_threads),
        cmocka_unit_test(square_sum_is_exact_and_keeps_nan),
        cmocka_unit_test(nan_stays),
        cmocka_unit_test(clip_scale_closed_form),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(nothing_is_a_step_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
