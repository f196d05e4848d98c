/* Probes as passes of vectors, compiled for each instruction set; the best one this processor runs is chosen once. */
#ifndef BENCH_SUPPORT_PASSES_H
#define BENCH_SUPPORT_PASSES_H
#include <stdint.h>

enum { EXPONENTIALS_OF = 3 };
typedef struct passes {
    /* `rounds` rounds; return what they computed. *count: multiply-adds, or exponentials, done. */
    float (*multiply_adds)(int64_t rounds, int64_t *count);
    float (*exponentials[EXPONENTIALS_OF])(int64_t rounds, int64_t *count); /* in several codings */
    uint64_t (*read)(const uint64_t *words, int64_t count);
} passes;
const passes *bench_passes(void);

#endif
