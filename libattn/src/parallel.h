/* Threads: the one place that knows OpenMP. */
#ifndef MG_ATTN_PARALLEL_H
#define MG_ATTN_PARALLEL_H
#include <stdint.h>

/* 0: OpenMP's default. At least 1. */
int mg_attn_threads(int wanted);

/* work(context, thread, step, task) for all tasks of step 0, then all of step 1, ...; tasks of one step run at once in
   any order on threads 0..threads-1. */
void mg_attn_parallel(int threads, int64_t steps, int64_t tasks,
                      void (*work)(void *context, int thread, int64_t step, int64_t task), void *context);

/* From now on call(context) runs after each task that the calling thread itself does, in any mg_attn_parallel it calls;
   NULL: nothing. So messages move between tiles. */
void mg_attn_parallel_between(void (*call)(void *context), void *context);

#endif
