/* What all benchmarks share: probes of the machine's limits. */
#ifndef BENCH_SUPPORT_BENCH_H
#define BENCH_SUPPORT_BENCH_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

double bench_seconds(void); /* a clock */
/* The clock of a measurement. On one thread it is that of the processor time of the process, of which other programs
 * take no part; on more it is the time that passes. */
double bench_time(int threads);

/* Limits of the machine on this many threads together: the best of several probes of at least 50 ms each. */
typedef struct bench_limits {
    double flops;        /* fp32 multiply-adds, two flops each, per second */
    double exponentials; /* fp32, to 2e-7, per second: the best of several codings, and at least flops * 16.5 / 222 */
    double bytes;        /* read from 256 MB, per second */
} bench_limits;
bench_limits bench_probe(int threads);
double bench_flops(int threads, double seconds); /* flops per second by multiply-adds, over about this time */

/* The least seconds the work can take: products and exponentials share the cores, and both overlap with memory. */
double bench_bound(const bench_limits *limits, double flops, double exponentials, double bytes);

#ifdef __cplusplus
}
#endif
#endif
