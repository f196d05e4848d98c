/* Chooses the kernels of this processor. */
#include "kernels.h"

#include <stddef.h>

static const mg_model_kernels all[] = {
#ifdef MG_HAVE_X86_VARIANTS
    {"v4", &mg_model_rows_v4, &mg_model_lists_v4, &mg_model_pairs_v4, &mg_model_edges_v4},
    {"v3", &mg_model_rows_v3, &mg_model_lists_v3, &mg_model_pairs_v3, &mg_model_edges_v3},
#endif
    {"portable", &mg_model_rows_portable, &mg_model_lists_portable, &mg_model_pairs_portable, &mg_model_edges_portable},
};
enum { ALL = sizeof all / sizeof *all };

#ifdef MG_HAVE_X86_VARIANTS
/* How many of the best tables this processor does not run. */
static int first_that_runs(void)
{
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    int v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    return v3 ? !v4 : 2;
}
#else
static int first_that_runs(void) { return 0; }
#endif

const mg_model_kernels *mg_model_kernels_list(int *count)
{
    int first = first_that_runs();
    *count = ALL - first;
    return all + first;
}
