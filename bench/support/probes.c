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

enum { READ_BYTES = 256 << 20, PROBES = 7, LEAST_MS = 50 };

typedef struct probe {
    const passes *passes;
    const uint64_t *words; /* [READ_BYTES / 8] */
    int what;              /* 0 multiply-adds, 1 exponentials, 2 bytes */
    int threads;
} probe;

/* One thread's share of `rounds` rounds; returns how many operations it did. */
static double share(const probe *p, int64_t rounds, int thread, double *computed)
{
    int64_t count = 0;
    if (p->what == 0)
        *computed = p->passes->multiply_adds(rounds, &count);
    else if (p->what == 1)
        *computed = p->passes->exponentials(rounds, &count);
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
    probe p = {bench_passes(), words, 0, threads};
    bench_limits limits;
    limits.flops = 2 * best(&p);
    p.what = 1;
    limits.exponentials = best(&p);
    p.what = 2;
    limits.bytes = best(&p);
    free(words);
    return limits;
}

double bench_bound(const bench_limits *limits, double flops, double exponentials, double bytes)
{
    double compute = flops / limits->flops + exponentials / limits->exponentials, memory = bytes / limits->bytes;
    return compute > memory ? compute : memory;
}
