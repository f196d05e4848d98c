/* The logarithm of a softmax's sum against libm in fp64, on every 97th normal number above 0. */
#include <math.h>

#include "numbers.h"
#include "problem.h"

static void within_its_bound(void **state)
{
    (void)state;
    for (uint32_t bits = 0x00800000; bits < 0x7f800000; bits += 97) {
        float x;
        memcpy(&x, &bits, sizeof x);
        const double exact = log((double)x), error = fabs((double)logarithm(x) - exact);
        if (!(error <= fabs(exact) * 1.2e-7 + 6e-8))
            fail_msg("ln %g is %.9g, not %.9g", (double)x, (double)logarithm(x), exact);
    }
    assert_true(logarithm(1) == 0);
    assert_true(isnan(logarithm(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(within_its_bound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
