/* What all benchmarks share: probes of the machine's limits, and the two ways attention is done elsewhere. */
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

/* --- attention with scores as matrices: dnnl_sgemm, and vectorised passes over rows ---
 * Unfused is one operation after the other over whole matrices, as frameworks do it: the bias is a matrix, gathered
 * from the table for each head. With `rows` set it is the best that can be made of it: products and passes take so many
 * rows at a time, whose scores stay in the second cache between them, and the bias is looked up in the pass that seeks
 * the maximum. P is kept for backward. Heads are shared out to the threads. */
typedef struct bench_unfused {
    int64_t tokens;
    int64_t rows; /* 0: whole matrices */
    int32_t heads, dim, codes;
    float scale;
    const uint8_t *map;            /* [tokens][tokens] codes */
    const float *table;            /* [heads][codes] */
    const float *q, *k, *v, *dout; /* [token][head][dim] */
    float *out, *dq, *dk, *dv;     /* [token][head][dim] */
    float *dtable;                 /* [heads][codes] */
    float *p;                      /* [heads][tokens][tokens] */
    float *ds;                     /* [threads][tokens][tokens]: bias, then dS */
} bench_unfused;
void bench_unfused_forward(const bench_unfused *a, int threads);
void bench_unfused_backward(const bench_unfused *a, int threads);

/* --- attention by gather and scatter over edges: only listed pairs are seen ---
 * Scores stand per edge and head; softmax is by row; the gradients of keys and values go over the transposed list. */
typedef struct bench_edges {
    int64_t tokens, edges;
    int32_t heads, dim, codes;
    float scale;
    const int64_t *starts;            /* [tokens + 1] by query */
    const int32_t *columns;           /* [edges] keys */
    const uint8_t *edge_codes;        /* [edges] */
    const int64_t *transposed_starts; /* [tokens + 1] by key */
    const int32_t *transposed_rows;   /* [edges] queries */
    const int64_t *transposed_edges;  /* [edges] the edge in the order of `columns` */
    const float *table;               /* [heads][codes] */
    const float *q, *k, *v, *dout;
    float *out, *dq, *dk, *dv, *dtable;
    float *p, *ds;         /* [edges][heads] */
    float *table_partials; /* [threads][heads][codes] */
} bench_edges;
void bench_edges_forward(const bench_edges *a, int threads);
void bench_edges_backward(const bench_edges *a, int threads);
void bench_edges_transpose(int64_t *transposed_starts, int32_t *transposed_rows, int64_t *transposed_edges,
                           int64_t tokens, const int64_t *starts, const int32_t *columns);

#ifdef __cplusplus
}
#endif
#endif
