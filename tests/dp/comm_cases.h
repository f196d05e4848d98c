/* What ranks must be able to do, whatever they are: each case runs on the ranks of one group, as threads
 * (comm_threads_test.c) and as processes (comm_mpi_test.c). Results are compared byte by byte with plain loops that add
 * in rank order, so the two kinds of ranks have the same bits. */
#ifndef TESTS_DP_COMM_CASES_H
#define TESTS_DP_COMM_CASES_H
#include <megagraph/comm.h>

#include "support/test.h"

typedef struct comm_case {
    const char *name;
    int (*work)(mg_comm *comm, void *context); /* context: the chunk_bytes in use */
} comm_case;

extern const comm_case comm_cases[];
extern const int comm_case_count;

/* Ends a case: aborts all its ranks with a line. */
int comm_complain(mg_comm *comm, const char *file, int line, const char *what);
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return comm_complain(comm, __FILE__, __LINE__, #condition);                                                \
    } while (0)
#endif
