#include "passes.h"

#include <stdlib.h>
#include <string.h>

extern const passes bench_passes_portable, bench_passes_v3, bench_passes_v4;

/* The best, or what MEGAGRAPH_ATTN_BACKEND names: libattn's kernels of an instruction set are measured beside its own
 * limits. */
const passes *bench_passes(void)
{
#ifdef MG_HAVE_X86_VARIANTS
    const char *wanted = getenv("MEGAGRAPH_ATTN_BACKEND");
    const int portable = wanted && !strcmp(wanted, "portable"), v3 = wanted && !strcmp(wanted, "v3");
    if (!portable && !v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
        return &bench_passes_v4;
    if (!portable && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return &bench_passes_v3;
#endif
    return &bench_passes_portable;
}
