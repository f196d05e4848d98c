/* A problem given to ranks: each makes a context and runs forward and backward on its rows; results are put together as
 * those of one rank. */
#ifndef TESTS_ATTN_CONTEXT_TRIAL_H
#define TESTS_ATTN_CONTEXT_TRIAL_H
#include "megagraph/context.h"
#include "problem.h"
#include "support/port.h"

enum { MOST_RANKS = 8 };

/* How tokens are spread. */
typedef enum spread { EVEN, UNEVEN /* one rank without tokens, one with a single one */, ALL_ON_LAST } spread;

typedef struct trial {
    /* Chosen. */
    const problem *p; /* queries = keys, of any kind; bits DQ, DK, DV, DTABLE, DVALUES of skip count */
    mg_attn_method method;
    int ranks, threads, delay;
    spread spread;
    const uint32_t *ids;
    int keys_kept;
    int64_t fail_at;
    int no_lse; /* forward is not asked for lse; no backward then */

    /* Made. */
    int64_t first[MOST_RANKS + 1];
    result whole; /* no dkey_bias; dtable and dvalues summed over ranks */
    mg_attn_context_info info[MOST_RANKS];
    int64_t forward_bytes[MOST_RANKS], backward_bytes[MOST_RANKS]; /* sent */
    float *dtables[MOST_RANKS], *dvalues[MOST_RANKS];
    int reached; /* fail_at was */
    test_ports *ports;
} trial;

/* 0, or the status of the first rank that failed. */
int trial_run(trial *t);
void trial_free(trial *t);
/* Compares with one rank: error <= tolerance * norm of each result. */
void trial_near(const char *what, const trial *t, const result *expected, double tolerance);
/* The map of the rows [begin, end). *part must live as long. */
encoded *trial_map(mg_attn_map *map, problem *part, const problem *p, int64_t begin, int64_t end);
#endif
