#include "support/test.h"

#include <megagraph/dp.h>

static const double pi = 3.14159265358979323846;

static void warmup_rises_linearly(void **unused)
{
    (void)unused;
    for (int schedule = MG_DP_CONSTANT; schedule <= MG_DP_COSINE; schedule++)
        for (int64_t step = 0; step < 10; step++)
            assert_true(fabs(mg_dp_schedule_rate((mg_dp_schedule)schedule, 3, step, 10, 110) -
                             0.3 * (double)(step + 1)) < 1e-12);
}

static void after_warmup_each_has_its_form(void **unused)
{
    (void)unused;
    for (int64_t step = 10; step <= 110; step++) {
        double way = (double)(step - 10) / 100;
        assert_true(mg_dp_schedule_rate(MG_DP_CONSTANT, 3, step, 10, 110) == 3);
        assert_true(fabs(mg_dp_schedule_rate(MG_DP_LINEAR, 3, step, 10, 110) - 3 * (1 - way)) < 1e-12);
        assert_true(fabs(mg_dp_schedule_rate(MG_DP_COSINE, 3, step, 10, 110) - 1.5 * (1 + cos(pi * way))) < 1e-12);
    }
}

static void the_end_is_zero_and_stays(void **unused)
{
    (void)unused;
    for (int64_t step = 110; step < 120; step++) {
        assert_true(mg_dp_schedule_rate(MG_DP_LINEAR, 3, step, 10, 110) == 0);
        assert_true(mg_dp_schedule_rate(MG_DP_COSINE, 3, step, 10, 110) == 0);
    }
}

static void no_warmup_and_nothing_but_warmup(void **unused)
{
    (void)unused;
    assert_true(mg_dp_schedule_rate(MG_DP_LINEAR, 3, 0, 0, 4) == 3);
    assert_true(mg_dp_schedule_rate(MG_DP_COSINE, 3, 0, 0, 0) == 0);
    assert_true(mg_dp_schedule_rate(MG_DP_LINEAR, 3, 4, 5, 5) == 3);
    assert_true(mg_dp_schedule_rate(MG_DP_LINEAR, 3, 5, 5, 5) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_rises_linearly),
        cmocka_unit_test(after_warmup_each_has_its_form),
        cmocka_unit_test(the_end_is_zero_and_stays),
        cmocka_unit_test(no_warmup_and_nothing_but_warmup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
