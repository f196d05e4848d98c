/* ranks_case.h: runs of the program on one rank and on many, and how far they are apart. */
#ifndef TESTS_INTEGRATION_RANKS_CASE_H
#define TESTS_INTEGRATION_RANKS_CASE_H
#include "apps/program.h"

/* mpirun, where ranks are to be processes; "": threads. */
extern const char *ranks_mpirun;

/* graph.npz: 150 nodes of 3 classes, features of nodes and edges, directed edges (which data.directed off mirrors), an
   isolated node and a self loop. tiny.npz: 5 nodes. */
int ranks_make_data(void **state);

/* megagraph on so many ranks; fails unless it ends with 0. */
void ranks_run(int ranks, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Runs NAME: one epoch, whose gradients stay in NAME-first/, resumed until ten are done. settings: of --set. */
void ranks_train(const char *name, const char *data, const char *settings, int ranks);
/* Fails unless the first step's gradients agree to 1e-5 of their norm, and ten losses to 1e-5. */
void ranks_compare(const char *name, const char *reference);
/* Bytes that rank r sent in the last step. */
double ranks_sent(const char *name, int rank);
/* Rows of graph.npz that parts of its 150 nodes need from each other: distinct nodes of others beside a part's own. */
int64_t ranks_boundary_rows(const int32_t *parts);
#endif
