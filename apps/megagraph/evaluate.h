/* evaluate.h: the model run over units: one pass of activations for all of them, outputs by item. */
#ifndef MEGAGRAPH_APPS_EVALUATE_H
#define MEGAGRAPH_APPS_EVALUATE_H
#include "prepare.h"

typedef struct mg_runner {
    const mg_model *model; /* borrowed */
    int training;          /* passes keep what a backward needs */
    int threads;
    mg_model_pass *pass;
    int64_t tokens, graphs, edges, pairs; /* the pass is made for */
    float *outputs;                       /* [rows][outputs] of the last forward */
    int64_t outputs_room;
} mg_runner;

/* Makes the pass fit the unit. */
int mg_runner_fit(mg_runner *runner, const mg_unit *unit, int64_t outputs);
void mg_runner_clear(mg_runner *runner);

/* Without dropout over all units of the epoch: outputs [items][outputs] (raw), rows of other items are left alone;
   embeddings [items][hidden], hidden 0: not wanted (the pass's tokens; graph level: the mean over the graph's nodes, or
   the virtual token). Many ranks: collective, and both are rank 0's. -ECANCELED when a stop is wanted (one rank). */
int mg_evaluate(float *outputs, float *embeddings, mg_runner *runner, const float *parameters, const mg_epoch *epoch,
                int64_t output_count, int64_t hidden);
#endif
