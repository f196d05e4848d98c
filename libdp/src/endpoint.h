/* What the files of comm.h share. From below to above:
 *
 *     piece      bytes that a backend moves in one go, between two ranks of the whole job
 *     backend    a const table: starts pieces, tests them, takes them back, ends the job. comm_threads.c, comm_mpi.c
 *     endpoint   one rank's end of the job: its backend, its requests, what all its groups share
 *     request    a message: one piece; or a header that names its size, and pieces of chunk_bytes
 *     mg_comm    a group: ranks of the job, and a context that keeps its messages from those of other groups
 *
 * match of a piece, 31 bits, so that it fits MPI's tags:
 *
 *      30       21 20  19            0
 *     [ context   | c |     tag       ]    c: 1 for collectives, whose tag is the kind
 */
#ifndef MG_DP_ENDPOINT_H
#define MG_DP_ENDPOINT_H
#include "library.h"
#include "megagraph/comm.h"

#include <stdatomic.h>

enum { TAG_BITS = 20, CONTEXTS = 1024, LINE = 512, SCRATCH_BYTES = 1 << 20, SCRATCH_PER_RANK = 4096 };

typedef struct endpoint endpoint;

typedef struct piece {
    char *data;
    int64_t bytes;   /* to send; room to receive */
    int64_t arrived; /* a receive that is done: the bytes that were sent, also where there were more than fit */
    int peer;        /* rank of the job */
    uint32_t match;
    int sending;
    /* the backend's: */
    atomic_int state;
    int from; /* rank of the job that sends it */
    struct piece *next;
    void *handle;
} piece;

typedef struct backend {
    const char *name;
    /* Starts a piece whose fields above are set. Pieces of one pair and match meet in the order of their start. */
    int (*start)(endpoint *end, piece *piece);
    /* -ECONNRESET: the peer has ended, without a line. */
    int (*test)(endpoint *end, piece *piece, int *done);
    /* Passes time until the piece may be done, at most `seconds`; round counts the calls of one wait. */
    void (*rest)(endpoint *end, piece *piece, int64_t round, double seconds);
    void (*cancel)(endpoint *end, piece *piece); /* its memory is the caller's again; done before or not */
    int (*health)(endpoint *end);                /* 0, or -ECONNABORTED with the line of the rank that failed */
    void (*abort)(endpoint *end, int status, const char *line);
    int (*awaits)(endpoint *end, int rank); /* the rank that another one waits for; -1: none, or not known */
    void (*close)(endpoint *end);
} backend;

struct endpoint {
    const backend *backend;
    void *state; /* the backend's */
    int rank, ranks, contexts;
    int lent;                /* whoever runs this rank closes its whole group */
    mg_comm_options options; /* chunk_bytes is set */
    mg_comm_request *active, *spare;
    mg_comm_request **batch; /* [2 ranks] of a collective */
    int64_t *slices;         /* [ranks + 1] of a collective, in elements */
    char *scratch;
    int64_t scratch_bytes;
    uint8_t free_contexts[CONTEXTS];
    mg_comm_traffic sent;
};

struct mg_comm {
    endpoint *end;
    int rank, size;
    int whole;  /* all ranks of the job */
    int *ranks; /* [size] of the job */
    uint32_t context;
    int64_t collectives;    /* called so far */
    const char *collective; /* the one under way, for lines */
    mg_comm_traffic sent;
};

struct mg_comm_request {
    mg_comm_request *next, **link; /* in active; next alone in spare */
    mg_comm *comm;
    const char *name;  /* of a collective, or NULL */
    int sending, peer; /* rank of the job */
    uint32_t match;
    int64_t bytes;
    int64_t count, done; /* pieces */
    piece *pieces;       /* &one, or [count]: the header first */
    piece one;
    uint64_t header[2];
    int cancelled;
};

typedef enum comm_kind {
    KIND_BARRIER,
    KIND_BROADCAST,
    KIND_ALL_REDUCE,
    KIND_REDUCE_SCATTER,
    KIND_ALL_GATHER,
    KIND_ALL_TO_ALL,
    KIND_SPLIT,
    KIND_AGREE,
    KIND_CHECK
} comm_kind;

/* comm.c: the endpoint's backend, state, rank, ranks and contexts are set; on failure nothing stays allocated. */
int mg_dp_open(mg_comm **out, endpoint *end, const mg_comm_options *options);
void mg_dp_close(mg_comm *comm);  /* the whole job's: what open made, then the backend's close */
void mg_dp_forget(mg_comm *comm); /* what open made */
int mg_dp_check_options(const mg_comm_options *options);

/* message.c: the peer is a rank of the group. */
int mg_dp_start(mg_comm *comm, mg_comm_request **out, int sending, int peer, uint32_t match, void *data, int64_t bytes);
void mg_dp_cancel(endpoint *end, mg_comm_request **request);
/* Takes back all that is under way (of one group, or of all: NULL), so that its memory is the caller's again. */
void mg_dp_surrender(endpoint *end, const mg_comm *comm);
int mg_dp_health(endpoint *end); /* of the job; where it failed, nothing of this rank stays under way */
double mg_dp_now(void);          /* seconds, monotonic */

/* collective.c: as the public ones, without checks of arguments or sequence. */
int mg_dp_gather(mg_comm *comm, comm_kind kind, char *data, const int64_t *starts, int64_t size);
int mg_dp_collect(mg_comm *comm, comm_kind kind, void *items, int64_t size); /* each rank's, at its place, to rank 0 */
int mg_dp_broadcast(mg_comm *comm, comm_kind kind, void *data, int64_t bytes, int root);
int mg_dp_all_reduce(mg_comm *comm, comm_kind kind, void *data, int64_t count, mg_comm_type type,
                     mg_comm_operation operation);
int mg_dp_agree(mg_comm *comm, comm_kind kind, int status, const char *line);

/* What a rank calls; equal on all ranks, or -EPROTO under options.check. */
typedef struct call {
    int32_t kind, type, operation, root; /* -1: none */
    int64_t count;                       /* -1: none; of slices: their sum */
    uint64_t slices;                     /* hash of the slices */
    int64_t number;
} call;
/* check.c: a collective begins. */
int mg_dp_enter(mg_comm *comm, call call);
int mg_dp_leave(mg_comm *comm, int status);

/* reduce.c: out[i] = value 0 op value 1 op ..., in this order; value r is at others + r * stride, but `rank`'s is own,
   which may be out. */
void mg_dp_reduce(char *out, const char *others, int64_t stride, const char *own, int rank, int ranks, int64_t elements,
                  mg_comm_type type, mg_comm_operation operation);
int64_t mg_dp_type_bytes(mg_comm_type type);
#endif
