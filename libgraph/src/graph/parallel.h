/* The one place where libgraph meets OpenMP. */
#ifndef MG_GRAPH_PARALLEL_H
#define MG_GRAPH_PARALLEL_H
#include <stdint.h>

/* OpenMP's default number of threads for `tasks` tasks, no more than one a task; 1 without OpenMP. */
int mg_graph_threads(int64_t tasks);

/* task(context, thread, t) for t in 0..tasks-1, thread in 0..threads-1, in any order. */
void mg_graph_parallel(int threads, int64_t tasks, void (*task)(void *context, int thread, int64_t t), void *context);
#endif
