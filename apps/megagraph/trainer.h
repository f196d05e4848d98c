/* trainer.h: what the files of a training share: train.c the whole, train_state.c what is made, saved and loaded,
 * train_step.c one step, train_consistency.c what nodes without a label add to it, train_epoch.c an epoch and its
 * validation.
 *
 * Every rank has all parameters and moments, the same bits: gradients are summed over ranks before the step. Rank 0
 * alone has the log, the outputs of all items, and writes checkpoints. */
#ifndef MEGAGRAPH_APPS_TRAINER_H
#define MEGAGRAPH_APPS_TRAINER_H
#include <megagraph/dp.h>

#include "checkpoint.h"
#include "evaluate.h"
#include "train.h"

typedef struct trainer {
    const mg_training *in;
    const mg_config *config;
    const mg_problem *problem;
    mg_model *model;
    mg_runner runner;
    int64_t floats;
    float *parameters, *gradients, *first, *second, *best; /* [floats] each, one block */
    float *average;    /* over the steps, the last of that block; what is validated. train.average 0: the parameters */
    int64_t kept;      /* floats of the block */
    mg_dp_range *no_decay;
    int64_t no_decay_count;
    mg_checkpoint state;
    mg_comm *comm;                          /* NULL: one rank */
    int ranks, speaks;                      /* speaks: is rank 0, which alone reads and writes files */
    mg_log *log;                            /* rank 0 */
    int64_t *graphs, graph_count;           /* packs: graphs that hold a training item; NULL: all */
    int64_t *eval_graphs, eval_graph_count; /* likewise validation */
    float *doutputs, *taught;               /* [rows][outputs] each, one block; taught: what the averaged weights say */
    int64_t doutputs_room;
    double untrained; /* items of the step, over all ranks, that are no training items */
    float *item_outputs; /* [items][outputs]; rank 0 */
    int64_t *rows;       /* [items] scratch: rows that count */
    double *step_seconds;
    int64_t step_count, step_room;
    double start, saved;   /* clock: when this sitting began, when it last saved */
    double seconds_before; /* of earlier sittings */
    int64_t epochs_before;
    double rate;
    mg_phases phases, all_phases; /* of the epoch that runs, of all that were finished */
    double *reports;              /* [1 + 2 ranks] loss of a step, bytes that each rank sent in it, each rank's peak */
    int skipped_said;
} trainer;

/* --- train_state.c --- */

int mg_trainer_open(trainer *t, const mg_training *in);
int mg_trainer_close(trainer *t);
int mg_trainer_save(trainer *t);              /* rank 0; the others do nothing */
int mg_trainer_is_finished(const trainer *t); /* all epochs are done, or patience is at its end */

/* --- train_step.c --- */

/* The weight of the loss of units [begin, end) of the epoch, over all ranks, and whether any rank was asked to stop. */
int mg_trainer_weigh(double *weight, int *stop, trainer *t, const mg_epoch *epoch, int64_t begin, int64_t end);
/* Those units: one step. */
int mg_trainer_step(trainer *t, const mg_epoch *epoch, int64_t begin, int64_t end, double weight);

/* --- train_consistency.c --- */

/* Before a unit's forward: t->taught = outputs of the averaged weights, without dropout. */
int mg_trainer_teach(trainer *t, const mg_unit *unit);
/* After its loss: adds to t->doutputs what moves the rows that are no training items towards it. */
void mg_trainer_agree(trainer *t, const mg_unit *unit);

/* --- train_epoch.c --- */

/* What is left of the epoch that runs, and validation. */
int mg_trainer_epoch(trainer *t);
/* Outputs of all items that a split of `graphs` (NULL: all) holds, at rank 0. */
int mg_trainer_predict(trainer *t, const float *parameters, const int64_t *graphs, int64_t count);
#endif
