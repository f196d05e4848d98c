#include "metrics.h"

#include <math.h>
#include <stdlib.h>

#include "app.h"

static int64_t largest(const float *row, int64_t count)
{
    int64_t best = 0;
    for (int64_t c = 1; c < count; c++)
        if (row[c] > row[best])
            best = c;
    return best;
}

double mg_metrics_accuracy(const float *outputs, const int32_t *labels, int64_t items, int64_t classes)
{
    int64_t right = 0, all = 0;
    for (int64_t i = 0; i < items; i++) {
        if (labels[i] < 0)
            continue;
        all++;
        right += largest(outputs + i * classes, classes) == labels[i];
    }
    return all ? (double)right / (double)all : NAN;
}

double mg_metrics_macro_f1(const float *outputs, const int32_t *labels, int64_t items, int64_t classes)
{
    /* counts[3][classes]: true, predicted, both */
    int64_t *counts = allocate_zeroed(3 * classes, sizeof *counts), named = 0;
    double sum = 0;
    if (!counts)
        return NAN;
    for (int64_t i = 0; i < items; i++) {
        if (labels[i] < 0)
            continue;
        int64_t predicted = largest(outputs + i * classes, classes);
        counts[labels[i]]++;
        counts[classes + predicted]++;
        counts[2 * classes + predicted] += predicted == labels[i];
    }
    for (int64_t c = 0; c < classes; c++) {
        int64_t both = counts[c] + counts[classes + c]; /* 2 TP + FP + FN */
        named += both > 0;
        sum += both ? 2.0 * (double)counts[2 * classes + c] / (double)both : 0;
    }
    release(counts);
    return named ? sum / (double)named : NAN;
}

/* A labelled item: scores fall along the sorted array. */
typedef struct scored {
    float score;
    int truth;
} scored;

static int by_falling_score(const void *a, const void *b)
{
    float x = ((const scored *)a)->score, y = ((const scored *)b)->score;
    return (x < y) - (x > y);
}

/* Labelled items by falling score; NULL: none, no memory, or a score that is NaN. */
static scored *sort_labelled(int64_t *count, int64_t *positives, const float *scores, const float *truth, int64_t items)
{
    scored *sorted = allocate(items, sizeof *sorted);
    *count = *positives = 0;
    for (int64_t i = 0; sorted && i < items; i++) {
        if (isnan(truth[i]))
            continue;
        if (isnan(scores[i])) {
            release(sorted);
            return NULL;
        }
        sorted[(*count)++] = (scored){scores[i], truth[i] > 0.5f};
        *positives += truth[i] > 0.5f;
    }
    if (sorted)
        qsort(sorted, (size_t)*count, sizeof *sorted, by_falling_score);
    return sorted;
}

double mg_metrics_roc_auc(const float *scores, const float *truth, int64_t items)
{
    int64_t count, positives;
    scored *sorted = sort_labelled(&count, &positives, scores, truth, items);
    double area = 0, above = 0; /* positives above the current score */
    for (int64_t begin = 0, end; sorted && begin < count; begin = end) {
        int64_t same = 0;
        for (end = begin; end < count && sorted[end].score == sorted[begin].score; end++)
            same += sorted[end].truth;
        area += (double)(end - begin - same) * (above + (double)same / 2);
        above += (double)same;
    }
    int defined = sorted && positives && positives < count;
    release(sorted);
    return defined ? area / ((double)positives * (double)(count - positives)) : NAN;
}

double mg_metrics_average_precision(const float *scores, const float *truth, int64_t items)
{
    int64_t count, positives, above = 0;
    scored *sorted = sort_labelled(&count, &positives, scores, truth, items);
    double sum = 0;
    for (int64_t begin = 0, end; sorted && begin < count; begin = end) {
        int64_t same = 0;
        for (end = begin; end < count && sorted[end].score == sorted[begin].score; end++)
            same += sorted[end].truth;
        above += same;
        sum += (double)same * (double)above / (double)end;
    }
    int defined = sorted && positives;
    release(sorted);
    return defined ? sum / (double)positives : NAN;
}

double mg_metrics_mae(const float *outputs, const float *targets, int64_t items, int64_t columns)
{
    double sum = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < items * columns; i++) {
        if (isnan(targets[i]))
            continue;
        sum += fabs((double)outputs[i] - (double)targets[i]);
        count++;
    }
    return count ? sum / (double)count : NAN;
}

double mg_metrics_columns(double (*metric)(const float *scores, const float *truth, int64_t items), const float *scores,
                          const float *truth, int64_t items, int64_t columns)
{
    float *column = allocate(2 * items, sizeof *column);
    double sum = 0;
    int64_t defined = 0;
    for (int64_t c = 0; column && c < columns; c++) {
        for (int64_t i = 0; i < items; i++) {
            column[i] = scores[i * columns + c];
            column[items + i] = truth[i * columns + c];
        }
        double value = metric(column, column + items, items);
        defined += !isnan(value);
        sum += isnan(value) ? 0 : value;
    }
    release(column);
    return defined ? sum / (double)defined : NAN;
}
