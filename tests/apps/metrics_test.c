/* Metrics against closed forms, by hand and by counting all pairs. */
#include "metrics.h"

#include "support/test.h"

static void accuracy_counts_labelled_rows(void **state)
{
    (void)state;
    const float outputs[] = {0, 1, 1, 0, 0.5f, 0.5f, 2, 3};
    assert_true(mg_metrics_accuracy(outputs, (int32_t[]){1, 0, 0, -1}, 4, 2) == 1);
    assert_true(mg_metrics_accuracy(outputs, (int32_t[]){0, 0, 1, 1}, 4, 2) == 0.5); /* a tie is the first class */
    assert_true(isnan(mg_metrics_accuracy(outputs, (int32_t[]){-1, -1, -1, -1}, 4, 2)));
    assert_true(isnan(mg_metrics_accuracy(outputs, NULL, 0, 2)));
}

static void macro_f1_by_hand(void **state)
{
    (void)state;
    /* predicted 0 0 1 2, true 0 1 1 1: F1 of 0: 2/3, of 1: 2/4, of 2: 0 */
    const float outputs[] = {1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1};
    double value = mg_metrics_macro_f1(outputs, (int32_t[]){0, 1, 1, 1}, 4, 3);
    assert_true(fabs(value - (2.0 / 3 + 0.5 + 0) / 3) < 1e-15);
    /* a class that nobody names does not count */
    const float two[] = {1, 0, 0, 0, 1, 0};
    assert_true(mg_metrics_macro_f1(two, (int32_t[]){0, 1}, 2, 3) == 1);
}

/* Share of (positive, negative) pairs in the right order, ties by half. */
static double area_by_pairs(const float *scores, const float *truth, int64_t items)
{
    double right = 0, pairs = 0;
    for (int64_t i = 0; i < items; i++)
        for (int64_t j = 0; j < items; j++)
            if (truth[i] == 1 && truth[j] == 0) {
                pairs++;
                right += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
            }
    return right / pairs;
}

/* Precision at every positive, where all items of one score count together. */
static double precision_by_thresholds(const float *scores, const float *truth, int64_t items)
{
    double sum = 0, positives = 0;
    for (int64_t i = 0; i < items; i++) {
        double above = 0, right = 0;
        for (int64_t j = 0; j < items && truth[i] == 1; j++)
            if (!isnan(truth[j]) && scores[j] >= scores[i]) {
                above++;
                right += truth[j];
            }
        positives += truth[i] == 1;
        sum += truth[i] == 1 ? right / above : 0;
    }
    return sum / positives;
}

static void rankings_equal_all_pairs(void **state)
{
    (void)state;
    enum { ITEMS = 97 };
    float scores[ITEMS], truth[ITEMS];
    for (uint64_t levels = 1; levels <= 64; levels *= 2) { /* few levels: many ties */
        for (uint64_t i = 0; i < ITEMS; i++) {
            scores[i] = (float)(test_random_bits(levels, i) % levels);
            uint64_t kind = test_random_bits(levels + 1000, i) % 5;
            truth[i] = kind == 4 ? NAN : kind == 0;
        }
        assert_true(fabs(mg_metrics_roc_auc(scores, truth, ITEMS) - area_by_pairs(scores, truth, ITEMS)) < 1e-12);
        assert_true(fabs(mg_metrics_average_precision(scores, truth, ITEMS) -
                         precision_by_thresholds(scores, truth, ITEMS)) < 1e-12);
    }
}

static void rankings_by_hand(void **state)
{
    (void)state;
    const float scores[] = {0.1f, 0.4f, 0.35f, 0.8f}, truth[] = {0, 0, 1, 1};
    assert_true(fabs(mg_metrics_roc_auc(scores, truth, 4) - 0.75) < 1e-15);
    assert_true(fabs(mg_metrics_average_precision(scores, truth, 4) - 5.0 / 6) < 1e-15);
    const float same[] = {1, 1, 1, 1};
    assert_true(mg_metrics_roc_auc(same, truth, 4) == 0.5);
    assert_true(mg_metrics_average_precision(same, truth, 4) == 0.5);
}

static void undefined_is_not_a_number(void **state)
{
    (void)state;
    const float scores[] = {1, 2, NAN}, ones[] = {1, 1, 1}, zeros[] = {0, 0, 0}, mixed[] = {0, 1, 1};
    assert_true(isnan(mg_metrics_roc_auc(scores, ones, 2)));
    assert_true(isnan(mg_metrics_roc_auc(scores, zeros, 2)));
    assert_true(isnan(mg_metrics_average_precision(scores, zeros, 2)));
    assert_true(mg_metrics_average_precision(scores, ones, 2) == 1);
    assert_true(isnan(mg_metrics_roc_auc(scores, mixed, 3))); /* a score that is NaN has no rank */
    assert_true(isnan(mg_metrics_roc_auc(scores, mixed, 0)));
    assert_true(isnan(mg_metrics_mae(scores, (float[]){NAN, NAN}, 2, 1)));
}

static void columns_are_averaged_where_defined(void **state)
{
    (void)state;
    /* column 0: perfect; column 1: the wrong way round; column 2: one class only */
    const float scores[] = {0, 1, 0, 1, 0, 0}, truth[] = {0, 0, 1, 1, 1, 1};
    assert_true(mg_metrics_columns(mg_metrics_roc_auc, scores, truth, 2, 3) == 0.5);
}

static void mae_skips_unlabelled(void **state)
{
    (void)state;
    const float outputs[] = {1, 2, 3, 4}, targets[] = {2, NAN, 1, 4};
    assert_true(mg_metrics_mae(outputs, targets, 2, 2) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accuracy_counts_labelled_rows), cmocka_unit_test(macro_f1_by_hand),
        cmocka_unit_test(rankings_equal_all_pairs),      cmocka_unit_test(rankings_by_hand),
        cmocka_unit_test(undefined_is_not_a_number),     cmocka_unit_test(columns_are_averaged_where_defined),
        cmocka_unit_test(mae_skips_unlabelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
