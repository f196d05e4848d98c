#include "parallel.h"

#ifdef _OPENMP
#include <omp.h>
#endif

int mg_graph_threads(int64_t tasks)
{
#ifdef _OPENMP
    int64_t threads = omp_get_max_threads();
#else
    int64_t threads = 1;
#endif
    return (int)(tasks < 1 ? 1 : tasks < threads ? tasks : threads);
}

void mg_graph_parallel(int threads, int64_t tasks, void (*task)(void *context, int thread, int64_t t), void *context)
{
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t t = 0; t < tasks; t++)
            task(context, omp_get_thread_num(), t);
        return;
    }
#endif
    (void)threads;
    for (int64_t t = 0; t < tasks; t++)
        task(context, 0, t);
}
