/* train.h: one training run: steps, validation, the best epoch, checkpoints, the log, the summary.
 *
 *     epoch    all units once, train.accumulate of them a step; the gradient of a step is that of the loss summed over
 *              its training items, divided by their global count (weight)
 *     best     the parameters of the epoch with the best validation metric, ties by the lower validation loss; they are
 *              what is tested and what model.safetensors holds. Without validation items: those of the last epoch
 *     resume   from a checkpoint, to the bit: the same steps follow as if the run had never stopped
 *
 * Collective over the ranks of the units.
 */
#ifndef MEGAGRAPH_APPS_TRAIN_H
#define MEGAGRAPH_APPS_TRAIN_H
#include "prepare.h"
#include "problem.h"
#include "run.h"

typedef struct mg_training {
    const char *run;         /* the folder; it exists */
    const mg_config *config; /* resolved, of this run */
    const mg_problem *problem;
    const mg_units *units;
    uint64_t dataset_hash;
    double preprocess_seconds;
    int64_t split;
    const char *title; /* before progress lines: "seed 1: ", or "" */
} mg_training;

/* Trains from the run's checkpoint where there is one. -ECANCELED: stopped by a signal, with a checkpoint saved. */
int mg_train(mg_summary *summary, const mg_training *training);
#endif
