/* The probes in plain C with vector extensions; this file is compiled once per instruction set. */
#include "passes.h"

#include "../../apps/model/kernels/powers.h"

/* --- probes --- */

/* A value the compiler must take as it is, in a register: keeps a probe's loop from being folded. */
#if defined(__AVX512F__)
#define KEEP(x) __asm__ volatile("" : "+v"(x))
#elif defined(__x86_64__)
#define KEEP(x) __asm__ volatile("" : "+x"(x))
#elif defined(__aarch64__)
#define KEEP(x) __asm__ volatile("" : "+w"(x))
#else
#define KEEP(x) __asm__ volatile("" : "+m"(x))
#endif

/* Twelve sums hide the latency of a multiply-add on any processor, and fit 16 registers; an array would go to memory.
 */
#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static float multiply_adds(int64_t rounds, int64_t *count)
{
    vec a = splat(1e-3f), b = splat(0.999f), all = splat(0);
    KEEP(a);
    KEEP(b);
#define BEGIN(c) vec s##c = splat((float)c);
#define STEP(c) s##c = s##c * b + a;
#define END(c) all += s##c;
    TWELVE(BEGIN)
    for (int64_t r = 0; r < rounds; r++) {
        TWELVE(STEP)
    }
    TWELVE(END)
    *count = rounds * 12 * LANES;
    return total(all);
}

#define COPY(c)                                                                                                        \
    vec y##c = x;                                                                                                      \
    KEEP(y##c);
#define USE(c) KEEP(y##c);
#define EXPONENTIALS(name, power)                                                                                      \
    static float name(int64_t rounds, int64_t *count)                                                                  \
    {                                                                                                                  \
        vec x = splat(-1.5f);                                                                                          \
        for (int64_t r = 0; r < rounds; r++) {                                                                         \
            KEEP(x);                                                                                                   \
            TWELVE(COPY)                                                                                               \
            y0 = power(y0), y1 = power(y1), y2 = power(y2), y3 = power(y3), y4 = power(y4), y5 = power(y5);            \
            y6 = power(y6), y7 = power(y7), y8 = power(y8), y9 = power(y9), y10 = power(y10), y11 = power(y11);        \
            TWELVE(USE)                                                                                                \
        }                                                                                                              \
        *count = rounds * 12 * LANES;                                                                                  \
        return total(x);                                                                                               \
    }
EXPONENTIALS(exponentials_by_integers, power_by_integers)
EXPONENTIALS(exponentials_by_rounding, power_by_rounding)
EXPONENTIALS(exponentials_by_reducing, power_by_reducing)

static uint64_t read_words(const uint64_t *words, int64_t count)
{
    typedef uint64_t wvec __attribute__((vector_size(LANES * 4)));
    enum { PER = LANES / 2 };
    wvec any = {0}, x0, x1, x2, x3;
    for (int64_t i = 0; i + 4 * PER <= count; i += 4 * PER) {
        memcpy(&x0, words + i, sizeof x0);
        memcpy(&x1, words + i + PER, sizeof x1);
        memcpy(&x2, words + i + 2 * PER, sizeof x2);
        memcpy(&x3, words + i + 3 * PER, sizeof x3);
        any |= (x0 | x1) | (x2 | x3);
    }
    uint64_t total = 0;
    for (int i = 0; i < PER; i++)
        total |= any[i];
    return total;
}

#define NAME2(isa) bench_passes_##isa
#define NAME(isa) NAME2(isa)
extern const passes NAME(MG_ISA);
const passes NAME(MG_ISA) = {
    .multiply_adds = multiply_adds,
    .exponentials = {exponentials_by_integers, exponentials_by_rounding, exponentials_by_reducing},
    .read = read_words,
};
