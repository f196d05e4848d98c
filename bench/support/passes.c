#include "passes.h"

extern const passes bench_passes_portable, bench_passes_v3, bench_passes_v4;

const passes *bench_passes(void)
{
#ifdef MG_HAVE_X86_VARIANTS
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
        return &bench_passes_v4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return &bench_passes_v3;
#endif
    return &bench_passes_portable;
}
