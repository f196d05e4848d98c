/* megagraph/comm.h: ranks, and what they say to each other. A rank is a thread of this process or an MPI process; the
 * program cannot tell which, and results are the same bits either way.
 *
 *     static int work(mg_comm *comm, void *context)
 *     {
 *         float sum[2] = {1, (float)mg_comm_rank(comm)};
 *         return mg_comm_all_reduce(comm, sum, 2, MG_COMM_FP32, MG_COMM_SUM);
 *     }
 *     int status = mg_comm_run_threads(4, NULL, work, NULL);
 *
 * Every message is nonblocking underneath and cut into chunks, so counts are 64-bit and no order of sends and receives
 * that names the same messages on both sides can deadlock. Collectives are made of such messages, in an order that
 * depends on the number of ranks alone: a sum adds the ranks' values in rank order and every rank gets the same bits.
 *
 * Failure: a rank that fails calls mg_comm_abort() with one line; every other rank's current or next call then returns
 * -ECONNABORTED, with that line and the rank in mg_dp_last_error(). Who waits for a rank that has ended without a word
 * gets -ECONNRESET, and the rank's name. A process that is killed, or exits before it closes, ends the whole MPI job.
 * After any of these, and after a collective that failed (but for refused arguments), abort and close are all that is left.
 * A rank with messages under way calls mg_comm_abort() before it frees their memory; a call that returned -ECONNABORTED
 * has given all of it back already.
 * Status: 0 or a negative <errno.h> value. Lines name ranks of the whole job, also those of a group's calls.
 * Threads: a communicator and its groups belong to their rank's thread (MPI: funneled). Rank threads may run OpenMP.
 * Memory: a rank takes 1 MiB (4 KiB a rank, where that is more) at the start, for reductions; split and the largest
 * number of messages at one time take a little. Messages between threads are copied once, straight from sender to
 * receiver.
 */
#ifndef MEGAGRAPH_COMM_H
#define MEGAGRAPH_COMM_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#ifndef MG_DP_API
#if defined(__GNUC__)
#define MG_DP_API __attribute__((visibility("default")))
#else
#define MG_DP_API
#endif
#endif

MG_DP_API const char *mg_dp_last_error(void); /* this thread's last error, one line; owned by the library */

typedef struct mg_comm mg_comm; /* a group of ranks, as one of them sees it */

/* Zero is the default of each field. All ranks of a job give the same chunk_bytes and check. */
typedef struct mg_comm_options {
    int64_t chunk_bytes; /* largest message sent in one piece, at most 1 GiB; 0: 256 MiB. Tests use 1024 */
    int check;           /* not 0: before each collective all ranks compare its name, count, type and number; a mismatch is
                            -EPROTO and the line says what each of two ranks called */
    double late_seconds; /* a rank for which others wait longer is named by warn(), once per wait, and whom it waits for
                            itself; 0: never */
    void (*warn)(void *context, const char *line); /* called in the thread of the rank that waits */
    void *context;       /* of warn */
} mg_comm_options;

/* --- groups --- */

/* Runs work(comm, context) on `ranks` ranks, each a thread of this process, and waits for them. A rank that returns a
   status other than 0 aborts the others, with its mg_dp_last_error() where it has one: where another library failed, call
   mg_comm_abort() with that one's line. Returns the first failure, and its line in mg_dp_last_error() of the caller.
   -EINVAL: ranks < 1. */
MG_DP_API int mg_comm_run_threads(int ranks, const mg_comm_options *options, int (*work)(mg_comm *comm, void *context),
                                  void *context);

/* Whether this process was started as one of several (two or more) by mpirun, srun or the like. */
MG_DP_API int mg_comm_under_mpi(void);
/* All processes of the MPI job. -ENOSYS: built without MPI. Rank 0 warns, through options->warn, where fewer cores are
   allowed than `threads` (mpirun binds a rank to one core by default) and where ranks x threads exceed a machine's cores; 0
   threads: it does not look. close ends MPI; it waits until all ranks close, and tells those that wait for this one. */
MG_DP_API int mg_comm_open_mpi(mg_comm **out, int threads, const mg_comm_options *options);
/* Ends what open_mpi or split made; what run_threads made, it ends itself. Of all groups before that of all ranks. NULL is
   fine. */
MG_DP_API void mg_comm_close(mg_comm *comm);

MG_DP_API int mg_comm_rank(const mg_comm *comm); /* 0..size-1 */
MG_DP_API int mg_comm_size(const mg_comm *comm);
MG_DP_API const char *mg_comm_backend(const mg_comm *comm); /* "threads", "mpi" */
/* The ranks that give the same color, ordered by key, then rank. color < 0: *out is NULL. Collective. A rank has room for
   1023 groups at a time: -ENOSPC. */
MG_DP_API int mg_comm_split(mg_comm **out, mg_comm *comm, int color, int key);

/* --- messages --- */

typedef struct mg_comm_request mg_comm_request;
/* Messages of one pair of ranks with one tag (0..2^20-1) arrive in the order they were sent, and the receiver names their
   exact size: another one is -EMSGSIZE, with both. The memory is the library's until test or wait says done or fails;
   these then free the request and set it to NULL. send and receive never wait; to wait for a send may take until its receive
   is there. wait_all that fails takes back the messages it has not come to. */
MG_DP_API int mg_comm_send(mg_comm *comm, mg_comm_request **out, int to, int tag, const void *data, int64_t bytes);
MG_DP_API int mg_comm_receive(mg_comm *comm, mg_comm_request **out, int from, int tag, void *data, int64_t bytes);
MG_DP_API int mg_comm_test(mg_comm *comm, mg_comm_request **request, int *done); /* also makes others progress */
MG_DP_API int mg_comm_wait(mg_comm *comm, mg_comm_request **request);            /* NULL: done */
MG_DP_API int mg_comm_wait_all(mg_comm *comm, mg_comm_request **requests, int64_t count);

/* --- collectives: every rank of the group calls them, in the same order --- */

typedef enum mg_comm_type { MG_COMM_FP32, MG_COMM_FP64, MG_COMM_INT32, MG_COMM_INT64, MG_COMM_BYTE } mg_comm_type;
typedef enum mg_comm_operation { MG_COMM_SUM, MG_COMM_MAX, MG_COMM_MIN } mg_comm_operation;

MG_DP_API int mg_comm_barrier(mg_comm *comm);
MG_DP_API int mg_comm_broadcast(mg_comm *comm, void *data, int64_t count, mg_comm_type type, int root);
/* In place. Each rank reduces a slice and the slices are gathered: 2 (size - 1) / size of the data sent per rank. Sums of
   integers wrap; bytes have no sum (-EINVAL). NaN stays NaN, in max and min too. */
MG_DP_API int mg_comm_all_reduce(mg_comm *comm, void *data, int64_t count, mg_comm_type type,
                                 mg_comm_operation operation);
/* data: slice r has counts[r] elements, slices in rank order; on return this rank's slice, at its place, is reduced and the
   others hold anything. */
MG_DP_API int mg_comm_reduce_scatter(mg_comm *comm, void *data, const int64_t *counts, mg_comm_type type,
                                     mg_comm_operation operation);
/* data likewise: this rank's slice is read at its place, the others' are written. */
MG_DP_API int mg_comm_all_gather(mg_comm *comm, void *data, const int64_t *counts, mg_comm_type type);
/* Slices in rank order on both sides; sizes must agree with what the others send, -EMSGSIZE otherwise. */
MG_DP_API int mg_comm_all_to_all(mg_comm *comm, const void *send, const int64_t *send_counts, void *receive,
                                 const int64_t *receive_counts, mg_comm_type type);

/* --- failing together --- */

/* Agrees on how a phase ended: every rank gives its status and, where it is not 0, its line. All get 0, or the status of the
   lowest rank that failed, with "rank R: its line" as mg_dp_last_error(). Collective, also for ranks that failed. */
MG_DP_API int mg_comm_agree(mg_comm *comm, int status, const char *line);
/* Ends the whole job at once, from any rank and without the others' help: threads are told, and the first abort counts; MPI
   processes are ended with exit status 1 after "rank R: line" went to stderr, and the call does not return. */
MG_DP_API void mg_comm_abort(mg_comm *comm, int status, const char *line);

/* What this rank has sent to others through this communicator, pieces of collectives and of the check included; through
   that of all ranks: through its groups too. For logs and formulas. */
typedef struct mg_comm_traffic {
    int64_t messages, bytes;
} mg_comm_traffic;
MG_DP_API mg_comm_traffic mg_comm_sent(const mg_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
