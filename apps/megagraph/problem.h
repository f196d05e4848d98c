/* problem.h: a dataset as something to learn: which task and metric, which items train, validate and test, what the
 * loss compares with. Items are nodes or graphs.
 */
#ifndef MEGAGRAPH_APPS_PROBLEM_H
#define MEGAGRAPH_APPS_PROBLEM_H
#include <megagraph/dataset.h>

#include "model.h"
#include "options.h"

/* Opens data.path as data.* and task say. */
int mg_problem_open(mg_dataset **out, const mg_config *config);
/* Everything the result depends on: graph, features, labels, splits. */
uint64_t mg_problem_hash(const mg_dataset *data);
/* Number of splits (or folds) that data.split (data.fold) may name. */
int64_t mg_problem_splits(const mg_dataset *data, const mg_config *config);

typedef struct mg_problem {
    const mg_dataset *data; /* borrowed */
    mg_task task;
    mg_metric metric;
    mg_model_loss loss;
    int64_t outputs;
    uint8_t *split;          /* [items] MG_DATASET_TRAIN, ... */
    int64_t counts[4];       /* items by split */
    int32_t *labels;         /* classification: [items], the data's, in this problem's numbers of classes; else NULL */
    float *targets;          /* [items][outputs] as the loss sees them: standardised for regression; else NULL */
    float *mean, *deviation; /* regression: [outputs] of the training targets; else NULL */
    float *class_weights;    /* [outputs] or NULL */
} mg_problem;

/* config is resolved (task, metric). split: which split or fold. Says what a person should know (classes missing from
 * training). */
int mg_problem_create(mg_problem **out, const mg_dataset *data, const mg_config *config, int64_t split);
/* For predictions of a trained run: classes are those of the run, by name (labels of other names count as unlabelled),
   mean and deviation [outputs] are those of the run (regression) or NULL. split < 0: all labelled items are test. */
int mg_problem_create_trained(mg_problem **out, const mg_dataset *data, const mg_config *config, int64_t split,
                              int64_t outputs, char *const *class_names, int64_t classes, const float *mean,
                              const float *deviation);
void mg_problem_destroy(mg_problem *problem);

/* Of a row of outputs, in place. */
void mg_problem_softmax(float *row, int64_t count);

/* Metric over the items of one split (MG_DATASET_TEST, ...). outputs: [items][outputs] of the model, raw. NaN:
 * undefined. */
double mg_problem_score(const mg_problem *problem, mg_metric metric, const float *outputs, int which);
/* Raw outputs to what a person reads, in place: probabilities, or targets in their own units. */
void mg_problem_finish(const mg_problem *problem, float *outputs, int64_t rows);
int mg_problem_better(mg_metric metric, double value, double than); /* NaN is worse than all */
#endif
