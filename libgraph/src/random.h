/* Repeatable random numbers: splitmix64, a counter that steps by the golden ratio and is then mixed. */
#ifndef MG_GRAPH_RANDOM_H
#define MG_GRAPH_RANDOM_H
#include <stdint.h>

typedef struct random_stream {
    uint64_t counter;
} random_stream;

static inline uint64_t random_bits(random_stream *random)
{
    uint64_t z = random->counter += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Streams of different (seed, salt) have nothing in common. */
static inline random_stream random_seeded(uint64_t seed, uint64_t salt)
{
    random_stream random = {seed};
    random.counter = random_bits(&random) ^ salt * 0xd1342543de82ef95u;
    random.counter = random_bits(&random);
    return random;
}

/* 0 <= result < 1 */
static inline double random_unit(random_stream *random) { return (double)(random_bits(random) >> 11) * 0x1p-53; }

/* 0 <= result < count; the bias is below count / 2^64. */
static inline int64_t random_below(random_stream *random, int64_t count)
{
    return (int64_t)((unsigned __int128)random_bits(random) * (uint64_t)count >> 64);
}
#endif
