#include "parallel.h"

#ifdef _OPENMP
#include <omp.h>
static int own_thread(void) { return omp_get_thread_num(); }
static int default_threads(void) { return omp_get_max_threads(); }
#else
static int own_thread(void) { return 0; }
static int default_threads(void) { return 1; }
#endif

int mg_attn_threads(int wanted)
{
    const int threads = wanted > 0 ? wanted : default_threads();
    return threads > 0 ? threads : 1;
}

static _Thread_local struct {
    void (*call)(void *context);
    void *context;
} between;

void mg_attn_parallel_between(void (*call)(void *context), void *context)
{
    between.call = call;
    between.context = context;
}

void mg_attn_parallel(int threads, int64_t steps, int64_t tasks,
                      void (*work)(void *context, int thread, int64_t step, int64_t task), void *context)
{
    if (threads > tasks)
        threads = tasks > 1 ? (int)tasks : 1;
#pragma omp parallel num_threads(threads)
    for (int64_t step = 0; step < steps; step++) {
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++) {
            work(context, own_thread(), step, task);
            if (between.call)
                between.call(between.context);
        }
    }
}
