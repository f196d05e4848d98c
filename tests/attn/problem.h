/* One attention problem with all its arrays, made from a few choices, and run on a backend. The codes are always held
 * dense; the map of the chosen kind is encoded from them at each run, so a test may edit any array in between. */
#ifndef TESTS_ATTN_PROBLEM_H
#define TESTS_ATTN_PROBLEM_H
#include "megagraph/attn.h"
#include "support/test.h"

/* What a problem has. */
enum {
    TABLE = 1,
    VALUES = 2, /* NEAR only */
    KEY_BIAS = 4,
    DROPOUT = 8,
    DLSE = 16,
    SEGMENTS = 32, /* five, one empty, of unequal length */
    BF16 = 64,
    OUT_FP32 = 128,
    GRADIENTS_FP32 = 256
};

/* What its codes look like. */
typedef enum pattern {
    MIXED,    /* by tile: constant (any code), constant with exceptions, or random; 0 on the diagonal */
    RANDOM,   /* uniform */
    BAND,     /* far but for a band around the diagonal and a few others; some rows all far */
    ONE_CODE, /* all 0 */
} pattern;

/* How a tensor lies in memory: elements before the first, after each head, after each token. */
typedef struct layout {
    int64_t lead, head_pad, token_pad;
    int head_major;
} layout;

/* Results by name; [token][head][dim], [head][query], [head][code], [head][map query][map key], [head][key]. */
enum { OUT, LSE, DQ, DK, DV, DTABLE, DVALUES, DKEY_BIAS, RESULTS };
typedef struct result {
    float *of[RESULTS]; /* NULL: not asked for */
    int64_t count[RESULTS];
} result;

typedef struct problem {
    /* Chosen; 0 is the value in brackets. */
    int64_t queries, keys;                              /* of the map (100, queries) */
    int32_t heads, dim, value_dim, codes;               /* (2, 16, dim, 8) */
    mg_attn_map_kind kind;                              /* (NONE) */
    pattern pattern;                                    /* (MIXED) */
    int mask_far;                                       /* pairs of the last code are not seen (seen) */
    unsigned with;                                      /* (nothing) */
    uint64_t seed;                                      /* (0) */
    float scale;                                        /* (1 / sqrt(dim)) */
    int64_t query_begin, query_end, key_begin, key_end; /* used part of the map (all) */
    layout in, out, dout_in;                            /* of q k v; of out and gradients; of dout (packed) */
    int64_t dense_pad;                                  /* bytes added to each dense row (0) */
    int64_t stream_rows;                                /* (0) */
    unsigned skip;                                      /* bits 1 << DQ ...: results not asked for (0) */
    const result *whole;                                /* backward: lse and out of all keys of the map (own) */
    const uint32_t *query_ids, *key_ids;                /* dropout, by map index (NULL) */

    /* Made. */
    uint8_t *codes_of;  /* [queries][keys] */
    float *q, *k, *v;   /* [token][head][dim] of the whole map; representable in bf16 with BF16 */
    float *dout, *dlse; /* [query][head][value_dim], [head][query] */
    float *table;       /* [head][code] */
    float *values;      /* [head][query][key] */
    float *key_bias;    /* [head][key] */
    int64_t query_segments[6], key_segments[6];
    mg_attn_dropout dropout;
} problem;

problem *problem_make(problem wanted);
void problem_free(problem *p);

/* Runs forward, then backward, on one backend. Whatever is not written stays NaN in the result; writing outside an
   output, or past the workspace, fails the test. threads 0: 1. */
void problem_run(result *r, const problem *p, const char *backend, int threads);
void result_free(result *r);
/* The same on a plan of this problem and its map that is there already; from any thread. */
void problem_run_on(result *r, const problem *p, const mg_attn_plan *plan, const mg_attn_map *map, const char *backend,
                    int threads);

/* The plan of a problem alone; its arrays live in *map until map_free. */
typedef struct encoded encoded;
encoded *map_encode(mg_attn_map *map, const problem *p);
void map_free(encoded *e);
int64_t stream_calls(const encoded *e); /* so far */
/* Each plan of `backend`, asserted to succeed. */
mg_attn_plan *plan_make(const mg_attn_map *map, const char *backend);

/* Fails unless each result is near (largest error <= tolerance * max(largest expected value, 1e-2; for dtable, the sum
   of very many, 3e-2 x rows)) or the same in every bit. `what` and the backend are in the message. */
void result_near(const char *what, const result *actual, const result *expected, double tolerance);
void result_same(const char *what, const result *actual, const result *expected);
/* Runs the problem on every tiled backend and compares with the reference. */
void compare_backends(const char *what, const problem *p, double tolerance);

/* Those this machine runs, NULL at the end. */
const char *const *tiled_backends(void);
const char *const *all_backends(void); /* and "reference" */

int64_t plan_queries(const problem *p);
int64_t plan_keys(const problem *p);
int pair_seen(const problem *p, int64_t query, int64_t key); /* map indices; by segments and mask_far */
float round_bf16(float x);

/* The message of the last error holds this text. */
void assert_error_says(const char *text);
#endif
