/* Sums, largest and smallest over ranks, element by element, always in the order of the sources. */
#include "endpoint.h"

#include <string.h>

enum { STRIP = 512 };

int64_t mg_dp_type_bytes(mg_comm_type type)
{
    static const int64_t bytes[] = {
        [MG_COMM_FP32] = 4, [MG_COMM_FP64] = 8, [MG_COMM_INT32] = 4, [MG_COMM_INT64] = 8, [MG_COMM_BYTE] = 1};
    return (unsigned)type <= MG_COMM_BYTE ? bytes[type] : 0;
}

/* Integers are added as unsigned, so that overflow wraps instead of being undefined. */
#define SUM(a, b) ((a) + (b))
/* NaN stays, whichever side it is on. */
#define MAX(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define MIN(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))

#define DEFINE(name, type, operation)                                                                                  \
    static void name(char *into, const char *from, int64_t count)                                                      \
    {                                                                                                                  \
        type *restrict a = (type *)into;                                                                               \
        const type *restrict b = (const type *)from;                                                                   \
        for (int64_t i = 0; i < count; i++)                                                                            \
            a[i] = operation(a[i], b[i]);                                                                              \
    }
DEFINE(sum_fp32, float, SUM)
DEFINE(max_fp32, float, MAX)
DEFINE(min_fp32, float, MIN)
DEFINE(sum_fp64, double, SUM)
DEFINE(max_fp64, double, MAX)
DEFINE(min_fp64, double, MIN)
DEFINE(sum_int32, uint32_t, SUM)
DEFINE(max_int32, int32_t, MAX)
DEFINE(min_int32, int32_t, MIN)
DEFINE(sum_int64, uint64_t, SUM)
DEFINE(max_int64, int64_t, MAX)
DEFINE(min_int64, int64_t, MIN)
DEFINE(max_byte, uint8_t, MAX)
DEFINE(min_byte, uint8_t, MIN)

static void (*const operations[][3])(char *into, const char *from, int64_t count) = {
    [MG_COMM_FP32] = {sum_fp32, max_fp32, min_fp32},     [MG_COMM_FP64] = {sum_fp64, max_fp64, min_fp64},
    [MG_COMM_INT32] = {sum_int32, max_int32, min_int32}, [MG_COMM_INT64] = {sum_int64, max_int64, min_int64},
    [MG_COMM_BYTE] = {NULL, max_byte, min_byte},
};

void mg_dp_reduce(char *out, const char *others, int64_t stride, const char *own, int rank, int ranks, int64_t elements,
                  mg_comm_type type, mg_comm_operation operation)
{
    _Alignas(64) char strip[STRIP * 8];
    int64_t size = mg_dp_type_bytes(type);
    for (int64_t first = 0; first < elements; first += STRIP) {
        int64_t length = elements - first < STRIP ? elements - first : STRIP, at = first * size;
        memcpy(strip, rank == 0 ? own + at : others + at, (size_t)(length * size));
        for (int r = 1; r < ranks; r++)
            operations[type][operation](strip, r == rank ? own + at : others + r * stride + at, length);
        memcpy(out + at, strip, (size_t)(length * size));
    }
}
