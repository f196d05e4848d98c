/* The kernels' exponential and logarithm on an array, compiled once per instruction set like the kernels themselves. */
#include "near_lanes.h"

#define NAME2(name, isa) test_##name##_##isa
#define NAME(name, isa) NAME2(name, isa)

void NAME(exponential, MG_ISA)(float *to, const float *from, int64_t count);
void NAME(logarithm, MG_ISA)(float *to, const float *from, int64_t count);

#if defined(__AVX512F__)
void test_power_of_two_v4(float *to, const float *from, int64_t count);
void test_power_of_two_v4(float *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i += 16)
        _mm512_storeu_ps(to + i, power_of_two(_mm512_loadu_ps(from + i)));
}
#endif

/* count is a multiple of 16. */
void NAME(exponential, MG_ISA)(float *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANES)
        store(to + i, exponential(load(from + i)));
}

void NAME(logarithm, MG_ISA)(float *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i += SPREAD)
        keep_whole(to + i, logarithm(load_whole(from + i)));
}
