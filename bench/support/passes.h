/* Vectorised passes, compiled for each instruction set; the best one this processor runs is chosen once. */
#ifndef BENCH_SUPPORT_PASSES_H
#define BENCH_SUPPORT_PASSES_H
#include <stdint.h>

enum { EXPONENTIALS_OF = 3 };
typedef struct passes {
    /* Probes: `rounds` rounds; return what they computed. *count: multiply-adds, or exponentials, done. */
    float (*multiply_adds)(int64_t rounds, int64_t *count);
    float (*exponentials[EXPONENTIALS_OF])(int64_t rounds, int64_t *count); /* in several codings */
    uint64_t (*read)(const uint64_t *words, int64_t count);
    /* Rows of n floats. */
    void (*bias)(float *s, const uint8_t *codes, const float *table, int64_t n); /* s = table[codes] */
    void (*softmax)(float *s, const float *bias, int64_t n);                     /* of s + bias, in place */
    void (*biased_softmax)(float *s, const uint8_t *codes, const float *table,
                           int64_t n); /* of s + table[codes], in place; table has 16 entries at least */
    void (*score_gradient)(float *t, const float *p, float d, int64_t n); /* t = p * (t - d) */
    void (*table_gradient)(float *sums, const float *t, const uint8_t *codes, int32_t code_count,
                           int64_t n); /* sums[code] += t */
    float (*dot)(const float *a, const float *b, int32_t n);
    void (*add)(float *to, const float *from, float factor, int32_t n); /* to += factor * from */
} passes;
const passes *bench_passes(void);

#endif
