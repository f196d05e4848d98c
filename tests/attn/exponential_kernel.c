/* The kernels' exponential on an array, compiled once per instruction set like the kernels themselves. */
#include "lanes.h"

#define NAME2(isa) test_exponential_##isa
#define NAME(isa) NAME2(isa)

void NAME(MG_ISA)(float *to, const float *from, int64_t count);

#if defined(__AVX512F__)
#include "forward_v4.h"

void test_power_of_two_v4(float *to, const float *from, int64_t count);
void test_power_of_two_v4(float *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i += 16)
        _mm512_storeu_ps(to + i, power_of_two(_mm512_loadu_ps(from + i)));
}
#endif

/* count is a multiple of 16. */
void NAME(MG_ISA)(float *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANES)
        store(to + i, exponential(load(from + i)));
}
