/* checkpoint.h: a training run on disk, in RUN/checkpoint:
 *
 *     model.safetensors   the parameters to use (of the best epoch so far), by the names of apps/model/model.h;
 *                         regression also targets.mean and targets.deviation
 *     state.safetensors   to go on: the current parameters by the same names, and optimizer.first.NAME,
 *                         optimizer.second.NAME; average.NAME where the weights are averaged
 *     manifest.json       written last: where the run stands, and the size and checksum of the two files
 *
 * Written to checkpoint.new, synced, then checkpoint becomes checkpoint.old, checkpoint.new becomes checkpoint, and
 * checkpoint.old is removed: killed at any moment, the old or the new one loads (where checkpoint is missing, .old is
 * read). Nothing in it depends on the number of ranks.
 */
#ifndef MEGAGRAPH_APPS_CHECKPOINT_H
#define MEGAGRAPH_APPS_CHECKPOINT_H
#include "model.h"

typedef struct mg_checkpoint {
    int64_t step, epoch, position;   /* steps made, epochs finished, units done in the epoch that runs */
    double epoch_loss, epoch_weight; /* sums of the epoch that runs */
    int64_t best_epoch;              /* -1: none yet */
    double best_value, best_loss;    /* on validation; NaN: none */
    double seconds;                  /* spent training, all sittings together */
    int64_t log_bytes;               /* of log.jsonl when it was written */
    int finished;                    /* stopped by patience or at the last epoch */
    uint64_t config_hash, dataset_hash;
    int64_t inputs, edge_inputs, outputs, classes;
    char **class_names; /* [classes]; load: owned by the checkpoint; save: borrowed */
    char folder[4200];  /* load: which of the folders was read */
} mg_checkpoint;

/* Flat ranges of the model's parameters. load: those that are NULL are not read. */
typedef struct mg_checkpoint_arrays {
    const mg_model *model;
    float *best, *current, *first, *second;
    float *average; /* NULL: none */
    float *target_mean, *target_deviation; /* [targets] */
    int64_t targets;                       /* 0: not regression */
} mg_checkpoint_arrays;

/* After an error the checkpoint that was there before is untouched. */
int mg_checkpoint_save(const char *run, const mg_checkpoint *state, const mg_checkpoint_arrays *arrays);
/* The manifest, with the sizes and checksums of the files checked. -ENOENT: the run has no checkpoint; one that
   lacks a file is -EINVAL. */
int mg_checkpoint_open(mg_checkpoint *state, const char *run);
int mg_checkpoint_read(const mg_checkpoint *state, const mg_checkpoint_arrays *arrays);
void mg_checkpoint_clear(mg_checkpoint *state);
/* The manifest's text, as hostile input meets it. */
int mg_checkpoint_parse(mg_checkpoint *state, const char *name, const char *text, int64_t bytes);
#endif
