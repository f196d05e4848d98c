/* Small models over small packed graphs, everything that a model looks at made by hand: for the tests of apps/model. */
#ifndef TESTS_MODEL_PROBLEM_H
#define TESTS_MODEL_PROBLEM_H
#include "model.h"

typedef enum problem_map { MAP_DENSE, MAP_NEAR_BIAS, MAP_NEAR_MASK } problem_map;

typedef struct problem_setup {
    mg_model_desc desc;
    problem_map map;
    int hops;
    const int64_t *nodes; /* [graphs] nodes of each, virtual token aside; 0-terminated when graphs is 0 */
    int64_t graphs;
    double degree; /* mean; nodes are left without edges now and then */
    int directed;
    uint64_t seed;
} problem_setup;

typedef struct problem {
    int64_t serial; /* no two problems have the same */
    problem_setup setup;
    mg_model *model;
    mg_model_batch batch;
    mg_attn_plan *plan;
    int64_t rows; /* of outputs */
    /* all pairs [tokens][tokens]: */
    uint8_t *codes;
    int64_t *pair_of; /* near pair, or -1 */
    uint8_t *seen;
    float *parameters; /* random, all of them */
    float *weights;    /* [rows][outputs]: the loss is their sum with the outputs */
} problem;

problem *problem_create(const problem_setup *setup);
void problem_destroy(problem *p);
/* The same problem with each graph's nodes in another order: token t is the other's token order[t] (written; [tokens]).
   Not for edge paths, which depend on the order. */
problem *problem_permuted(const problem *p, int32_t *order);

/* Outputs (and gradients when not NULL) of the model under test. */
void problem_run(const problem *p, const mg_model_step *step, float *outputs, float *gradients);

/* The formulas of model.h in fp64, one token after the other; reference.c. embeddings may be NULL. */
void reference_forward(const problem *p, const double *parameters, const mg_model_step *step, double *outputs,
                       double *embeddings);
/* Sum of weights x outputs. */
double reference_loss(const problem *p, const double *parameters, const mg_model_step *step);

#endif
