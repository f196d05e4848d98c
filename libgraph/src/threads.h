/* The only place of libgraph that asks OpenMP anything; without OpenMP there is one thread. */
#ifndef MG_GRAPH_THREADS_H
#define MG_GRAPH_THREADS_H
#ifdef _OPENMP
#include <omp.h>
static inline int thread_count(void) { return omp_get_max_threads(); }
static inline int thread_index(void) { return omp_get_thread_num(); }
#else
static inline int thread_count(void) { return 1; }
static inline int thread_index(void) { return 0; }
#endif
#endif
