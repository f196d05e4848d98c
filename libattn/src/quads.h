/* Turning tokens' elements by four, with vectors that every instruction set has. */
#ifndef MG_ATTN_QUADS_H
#define MG_ATTN_QUADS_H
#include <string.h>

typedef float quad __attribute__((vector_size(16)));

static inline quad load_quad(const float *from)
{
    quad x;
    memcpy(&x, from, sizeof x);
    return x;
}
static inline void store_quad(float *to, quad x) { memcpy(to, &x, sizeof x); }

static inline void transpose_quads(quad x[4])
{
    const quad a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5), b = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    const quad c = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7), d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    x[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    x[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    x[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    x[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

#endif
