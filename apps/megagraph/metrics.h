/* metrics.h: figures of merit of predictions against what is true. Fractions, not percent. Rows are items.
 * Undefined (no item, one class only, ...) is NaN, never a number that looks like a result.
 */
#ifndef MEGAGRAPH_APPS_METRICS_H
#define MEGAGRAPH_APPS_METRICS_H
#include <stdint.h>

/* Share of labelled items (label >= 0) whose largest output (ties: the first) is their label. */
double mg_metrics_accuracy(const float *outputs, const int32_t *labels, int64_t items, int64_t classes);
/* Mean over the classes that labels or predictions name of 2 TP / (2 TP + FP + FN). */
double mg_metrics_macro_f1(const float *outputs, const int32_t *labels, int64_t items, int64_t classes);
/* Area under the receiver operating characteristic: the share of (positive, negative) pairs that the scores order
   right, ties by half. truth: 1, 0; NaN unlabelled. O(n log n). NaN: -ENOMEM or one class only. */
double mg_metrics_roc_auc(const float *scores, const float *truth, int64_t items);
/* Sum over distinct score thresholds, falling, of (recall - recall before) x precision. */
double mg_metrics_average_precision(const float *scores, const float *truth, int64_t items);
/* Mean |output - target| over the values that are labelled. */
double mg_metrics_mae(const float *outputs, const float *targets, int64_t items, int64_t columns);
/* Mean of roc_auc (or average precision) over the columns where it is defined. */
double mg_metrics_columns(double (*metric)(const float *scores, const float *truth, int64_t items), const float *scores,
                          const float *truth, int64_t items, int64_t columns);
#endif
