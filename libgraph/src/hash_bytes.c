#include "megagraph/graph.h"

#include <string.h>

#define FIRST 0x9e6c63d0876a68eeu
#define SECOND 0xd1b54a32d192ed03u

/* Folds both halves of the product of a and b over them; keeps a and b in, so a factor of zero loses nothing. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return a ^ b ^ (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* 16 bytes a step; a last, shorter piece is filled with zeros, and the length tells it from real ones. */
uint64_t mg_graph_hash_bytes(uint64_t seed, const void *data, int64_t bytes)
{
    const unsigned char *next = data;
    uint64_t hash = mix(seed ^ FIRST, SECOND), words[2];
    int64_t left = bytes;
    for (; left >= 16; left -= 16, next += 16) {
        memcpy(words, next, 16);
        hash = mix(hash ^ words[0] ^ FIRST, (words[1] ^ SECOND) + (hash << 32 | hash >> 32));
    }
    if (left > 0) {
        memset(words, 0, sizeof words);
        memcpy(words, next, (size_t)left);
        hash = mix(hash ^ words[0] ^ FIRST, (words[1] ^ SECOND) + (hash << 32 | hash >> 32));
    }
    hash = mix(hash ^ (uint64_t)bytes, FIRST);
    return mix(hash ^ hash >> 29, SECOND);
}
