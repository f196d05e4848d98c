#include "threads.h"

#ifdef _OPENMP
#include <omp.h>

void mg_threads_set(int threads)
{
    if (threads > 0)
        omp_set_num_threads(threads);
}

int mg_threads_count(void) { return omp_get_max_threads(); }

#else

void mg_threads_set(int threads) { (void)threads; }

int mg_threads_count(void) { return 1; }

#endif
