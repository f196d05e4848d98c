/* The table of kernels, best first, and its choice at run time. */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#include "library.h"

#define DECLARE(isa)                                                                                                   \
    void mg_graph_search_##isa(mg_graph_search *search);                                                               \
    void mg_graph_codes_##isa(const mg_graph_search *, int64_t, int64_t, int64_t, int64_t, uint8_t *, int64_t);        \
    void mg_graph_tiles_##isa(const mg_graph_search *, const mg_graph_tile_rows *);                                    \
    void mg_graph_near_counts_##isa(const mg_graph_search *, int64_t *);                                               \
    void mg_graph_near_pairs_##isa(const mg_graph_search *, int64_t *, int32_t *, uint8_t *)

#define KERNELS(isa)                                                                                                   \
    {                                                                                                                  \
        .name = #isa, .search = mg_graph_search_##isa, .codes = mg_graph_codes_##isa, .tiles = mg_graph_tiles_##isa,   \
        .near_counts = mg_graph_near_counts_##isa, .near_pairs = mg_graph_near_pairs_##isa                             \
    }

DECLARE(portable);
#ifdef MG_HAVE_X86_VARIANTS
DECLARE(v3);
DECLARE(v4);
#endif

static const mg_graph_kernels table[] = {
#ifdef MG_HAVE_X86_VARIANTS
    KERNELS(v4),
    KERNELS(v3),
#endif
    KERNELS(portable),
};

enum { KERNEL_COUNT = sizeof table / sizeof *table };

static int runs_here(const mg_graph_kernels *kernels)
{
#ifdef MG_HAVE_X86_VARIANTS
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
             __builtin_cpu_supports("fma") && __builtin_cpu_supports("popcnt");
    int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    if (!strcmp(kernels->name, "v4"))
        return v4;
    if (!strcmp(kernels->name, "v3"))
        return v3;
#endif
    (void)kernels;
    return 1;
}

const mg_graph_kernels *mg_graph_kernels_choose(void)
{
    const char *wanted = getenv("MEGAGRAPH_GRAPH_BACKEND");
    for (int k = 0; k < KERNEL_COUNT; k++)
        if (runs_here(&table[k]) && (!wanted || !strcmp(wanted, table[k].name)))
            return &table[k];
    fail(-EINVAL,
         "MEGAGRAPH_GRAPH_BACKEND=%s: not known or not for this processor; portable always is, unset takes the best",
         wanted);
    return NULL;
}
