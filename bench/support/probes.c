/* The limits of the machine, measured. */
#include "bench.h"
#include "passes.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static volatile double sink; /* what probes computed must be used */

static double clock_seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_seconds(void) { return clock_seconds(CLOCK_MONOTONIC); }
double bench_time(int threads) { return clock_seconds(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC); }

/* The least exponentials that a bound allows for a flop: those of a processor whose exponential is fast (Zen 5, 16.5
 * G/s at 222 GF/s), so that a slow one here does not flatter fractions of the bound. */
#define LEAST_EXPONENTIALS (16.5 / 222)

enum { READ_BYTES = 256 << 20, PROBES = 7, LEAST_MS = 50 };

typedef struct probe {
    const passes *passes;
    const uint64_t *words;                            /* [READ_BYTES / 8] */
    enum { MULTIPLY_ADDS, BYTES, EXPONENTIALS } what; /* EXPONENTIALS + n: coding n */
    int threads;
} probe;

/* One thread's share of `rounds` rounds; returns how many operations it did. */
static double share(const probe *p, int64_t rounds, int thread, double *computed)
{
    int64_t count = 0;
    if (p->what == MULTIPLY_ADDS)
        *computed = p->passes->multiply_adds(rounds, &count);
    else if (p->what >= EXPONENTIALS)
        *computed = p->passes->exponentials[p->what - EXPONENTIALS](rounds, &count);
    else {
        int64_t words = READ_BYTES / 8 / p->threads;
        uint64_t any = 0;
        for (int64_t r = 0; r < rounds; r++)
            any |= p->passes->read(p->words + thread * words, words);
        *computed = (double)any;
        count = rounds * words * 8;
    }
    return (double)count;
}

/* Operations per second of all threads together. */
static double rate(const probe *p, int64_t rounds, double *took)
{
    double count = 0, computed = 0, before = bench_time(p->threads);
#pragma omp parallel for num_threads(p->threads) schedule(static, 1) reduction(+ : count, computed)
    for (int t = 0; t < p->threads; t++) {
        double mine;
        count += share(p, rounds, t, &mine);
        computed += mine;
    }
    *took = bench_time(p->threads) - before;
    sink = computed;
    return count / *took;
}

static double best(const probe *p)
{
    int64_t rounds = 1;
    double took, most = 0;
    for (rate(p, rounds, &took); took < LEAST_MS * 1e-3; rate(p, rounds, &took))
        rounds *= 2;
    for (int n = 0; n < PROBES; n++) {
        double now = rate(p, rounds, &took);
        most = now > most ? now : most;
    }
    return most;
}

bench_limits bench_probe(int threads)
{
    uint64_t *words = aligned_alloc(4096, READ_BYTES);
    memset(words, 1, READ_BYTES);
    probe p = {bench_passes(), words, MULTIPLY_ADDS, threads};
    bench_limits limits;
    limits.flops = 2 * best(&p);
    limits.exponentials = limits.flops * LEAST_EXPONENTIALS;
    for (int coding = 0; coding < EXPONENTIALS_OF; coding++) {
        p.what = EXPONENTIALS + coding;
        const double now = best(&p);
        limits.exponentials = now > limits.exponentials ? now : limits.exponentials;
    }
    p.what = BYTES;
    limits.bytes = best(&p);
    free(words);
    return limits;
}

double bench_flops(int threads, double seconds)
{
    enum { ROUNDS = 1 << 17 }; /* about a millisecond */
    const probe p = {bench_passes(), NULL, MULTIPLY_ADDS, threads};
    double took, count = 0, begin = bench_seconds(), all = 0;
    for (; all < seconds; all = bench_seconds() - begin)
        count += rate(&p, ROUNDS, &took) * took;
    return 2 * count / all;
}

double bench_bound(const bench_limits *limits, double flops, double exponentials, double bytes)
{
    double compute = flops / limits->flops + exponentials / limits->exponentials, memory = bytes / limits->bytes;
    return compute > memory ? compute : memory;
}
