/* The kernels' exponential and logarithm against libm in fp64, on each instruction set that this processor runs. */
#include "problem.h"

#include <float.h>

typedef void array_function(float *to, const float *from, int64_t count);
array_function test_exponential_portable, test_exponential_v3, test_exponential_v4;
array_function test_logarithm_portable, test_logarithm_v3, test_logarithm_v4;

typedef struct functions {
    const char *backend;
    array_function *exponential, *logarithm;
} functions;

static const functions all[] = {{"portable", test_exponential_portable, test_logarithm_portable},
#ifdef MG_HAVE_X86_VARIANTS
                                {"v3", test_exponential_v3, test_logarithm_v3},
                                {"v4", test_exponential_v4, test_logarithm_v4}
#endif
};

static void on_each(void (*test)(const functions *of))
{
    for (const char *const *backend = tiled_backends(); *backend; backend++)
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            if (!strcmp(*backend, all[i].backend))
                test(&all[i]);
}

/* x log2 e is rounded once, and so is log2 e: 6e-8 and 1.3e-8 of x; the rest is 2.2e-7. */
static double allowed(float x) { return 2.4e-7 + fabs((double)x) * 7.4e-8; }

enum { AT_ONCE = 1 << 16 };

static void compare(const functions *of)
{
    static float x[AT_ONCE], y[AT_ONCE];
    for (int64_t block = 0; block < 24; block++) {
        for (int64_t i = 0; i < AT_ONCE; i++) {
            double share = ((double)(block * AT_ONCE + i) + 0.5) / (24. * AT_ONCE);
            x[i] = (float)(i % 4 ? -87.3 + share * 175.6
                                 : ldexp(i % 8 ? -1 : 1, -(int)(block + i / 8 % 30))); /* and powers of two */
        }
        of->exponential(y, x, AT_ONCE);
        for (int64_t i = 0; i < AT_ONCE; i++) {
            double expected = exp((double)x[i]);
            if (!(fabs((double)y[i] - expected) <= allowed(x[i]) * expected))
                fail_msg("%s: exp(%.9g) is %.9g, expected %.9g", of->backend, (double)x[i], (double)y[i], expected);
        }
    }
}

static void edges(const functions *of)
{
    const float x[16] = {0,     -0.f, -INFINITY, -88.2f, -1e4f,   -3.4e38f, NAN,  INFINITY,
                         3e38f, 89,   -87.9f,    1e-38f, -1e-38f, -87.5f,   -104, -200};
    float y[16];
    of->exponential(y, x, 16);
    assert_true(y[0] == 1 && y[1] == 1 && y[11] == 1 && y[12] == 1);
    for (int i = 2; i <= 5; i++)
        if (y[i] != 0)
            fail_msg("%s: exp(%g) is %g", of->backend, (double)x[i], (double)y[i]);
    assert_true(isnan(y[6]));
    assert_true(y[7] == INFINITY && y[8] == INFINITY && y[9] == INFINITY);
    assert_true(y[10] >= 0 && y[10] < 1.2e-38f && y[13] >= 0 && y[13] < 1.2e-38f && y[14] == 0 && y[15] == 0);
}

/* Every 97th normal number above 0. */
static void compare_logarithm(const functions *of)
{
    static float x[AT_ONCE], y[AT_ONCE];
    for (int64_t bits = 0x00800000; bits < 0x7f800000; bits += 97 * AT_ONCE) {
        for (int64_t i = 0; i < AT_ONCE; i++) {
            const uint32_t word = (uint32_t)(bits + 97 * i < 0x7f800000 ? bits + 97 * i : 0x3f800000);
            memcpy(&x[i], &word, sizeof word);
        }
        of->logarithm(y, x, AT_ONCE);
        for (int64_t i = 0; i < AT_ONCE; i++) {
            const double exact = log((double)x[i]), error = fabs((double)y[i] - exact);
            if (!(error <= fabs(exact) * 1.2e-7 + 6e-8))
                fail_msg("%s: ln %g is %.9g, not %.9g", of->backend, (double)x[i], (double)y[i], exact);
        }
    }
    const float edges[16] = {1, NAN};
    of->logarithm(y, edges, 16);
    assert_true(y[0] == 0 && isnan(y[1]));
}

/* A probability is never above 1. */
static void never_above_one(const functions *of)
{
    float x[4096], y[4096];
    for (int i = 0; i < 4096; i++)
        x[i] = -(float)i * 0x1p-26f;
    of->exponential(y, x, 4096);
    for (int i = 0; i < 4096; i++)
        if (!(y[i] <= 1))
            fail_msg("%s: exp(%g) is %.9g", of->backend, (double)x[i], (double)y[i]);
}

#ifdef MG_HAVE_X86_VARIANTS
void test_power_of_two_v4(float *to, const float *from, int64_t count);

/* 2^y of the hand-written kernels: nothing is clamped, so every float is an argument. One in 1021 of them, and all
 * whose result is normal in steps of 2^-16. */
static void power_of_two_of_any_float(const char *backend)
{
    static float y[AT_ONCE], p[AT_ONCE];
    double worst = 0;
    if (strcmp(backend, "v4"))
        return;
    for (int64_t block = 0; block < 65 + 254; block++) {
        for (int64_t i = 0; i < AT_ONCE; i++) {
            const uint32_t bits = (uint32_t)((block * AT_ONCE + i) * 1021);
            memcpy(&y[i], &bits, sizeof bits);
            if (block >= 65)
                y[i] = (float)(block - 65 - 126) + (float)i * 0x1p-16f;
        }
        test_power_of_two_v4(p, y, AT_ONCE);
        for (int64_t i = 0; i < AT_ONCE; i++) {
            const double expected = exp2((double)y[i]);
            if (isnan(y[i])          ? !isnan(p[i])
                : expected > FLT_MAX ? !(p[i] >= FLT_MAX * (1 - 2e-7))
                : expected < FLT_MIN ? !(fabs((double)p[i] - expected) <= 1.5e-45 + 2e-7 * expected)
                                     : !(fabs((double)p[i] / expected - 1) <= 2e-7))
                fail_msg("2^%.9g is %.9g, expected %.9g", (double)y[i], (double)p[i], expected);
            if (expected >= FLT_MIN && expected < FLT_MAX && fabs((double)p[i] / expected - 1) > worst)
                worst = fabs((double)p[i] / expected - 1);
        }
    }
    const float edges[16] = {0,    -0.f, -INFINITY, INFINITY, -FLT_MAX, FLT_MAX, -1e-30f, 1e-30f,
                             -126, -149, -150,      127,      128,      NAN,     -1,      1};
    test_power_of_two_v4(p, edges, 16);
    assert_true(p[2] == 0 && p[3] == INFINITY && p[4] == 0 && p[5] == INFINITY && p[10] <= 1.5e-45f && isnan(p[13]));
    print_message("largest relative error of 2^y: %.3g\n", worst);
}

static void power_of_two_is_within_its_bound(void **state)
{
    (void)state;
    for (const char *const *backend = tiled_backends(); *backend; backend++)
        power_of_two_of_any_float(*backend);
}
#endif

static void error_is_within_its_bound(void **state)
{
    (void)state;
    on_each(compare);
}
static void zero_infinities_and_nan(void **state)
{
    (void)state;
    on_each(edges);
}
static void at_most_one_for_what_is_at_most_zero(void **state)
{
    (void)state;
    on_each(never_above_one);
}

static void logarithm_is_within_its_bound(void **state)
{
    (void)state;
    on_each(compare_logarithm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_is_within_its_bound),
#ifdef MG_HAVE_X86_VARIANTS
        cmocka_unit_test(power_of_two_is_within_its_bound),
#endif
        cmocka_unit_test(zero_infinities_and_nan),          cmocka_unit_test(at_most_one_for_what_is_at_most_zero),
        cmocka_unit_test(logarithm_is_within_its_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
