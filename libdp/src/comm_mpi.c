/* Ranks as processes of an MPI job. Pieces are nonblocking sends and receives on a communicator of our own; on a second
 * one ranks tell each other, while they wait, what no message says:
 *
 *     ENDED             this rank has closed its end: who still waits for it learns that it waits in vain
 *     ASK, ANSWER r     for the line about a late rank: whom do you wait for? A rank that computes does not answer
 *
 * Ranks that are killed, or exit without closing, are mpirun's: it ends the job. */
#define _GNU_SOURCE
#include "endpoint.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RUNNING, DONE };
enum { ENDED, ASK, ANSWER };
enum { NOTES = 64 };
static const double spin_seconds = 2e-5, yield_seconds = 1e-3, nap_seconds = 5e-5;
static const double grace_seconds = 1;    /* for messages that a rank sent before it ended */
static const double answer_seconds = 0.1; /* a rank that waits looks for questions far more often */

typedef struct note {
    int said[2];
    MPI_Request request;
} note;

typedef struct process {
    endpoint end;
    MPI_Comm messages, notes;
    int started_mpi;
    int awaited; /* the rank that this one waits for, while it waits */
    double rest_began;
    double *ended; /* [ranks] when the rank was known to have ended, or 0 */
    int answers, answer_of, answer;
    int heard[2];
    MPI_Request hearing;
    note saying[NOTES];
    int next_note;
} process;

_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a piece keeps its MPI_Request in a pointer");

static MPI_Request request_of(const piece *p)
{
    MPI_Request request;
    memcpy(&request, &p->handle, sizeof request);
    return request;
}

static void keep_request(piece *p, MPI_Request request) { memcpy(&p->handle, &request, sizeof request); }

static int mpi_failed(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return fail(-EIO, "MPI: %s: %.400s", what, text);
}

static void sleep_seconds(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&t, NULL);
}

/* --- notes --- */

static void say(process *me, int to, int kind, int value)
{
    note *n = &me->saying[me->next_note++ % NOTES];
    int free_now = 1;
    if (n->request != MPI_REQUEST_NULL && MPI_Test(&n->request, &free_now, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return;
    if (!free_now)
        return; /* a rank that does not listen: it will not miss an answer */
    n->said[0] = kind;
    n->said[1] = value;
    MPI_Isend(n->said, 2, MPI_INT, to, 0, me->notes, &n->request);
}

static void listen(process *me) { MPI_Irecv(me->heard, 2, MPI_INT, MPI_ANY_SOURCE, 0, me->notes, &me->hearing); }

static void hear(process *me)
{
    int arrived = 1;
    for (;;) {
        MPI_Status status;
        if (MPI_Test(&me->hearing, &arrived, &status) != MPI_SUCCESS || !arrived)
            return;
        if (me->heard[0] == ENDED) {
            me->ended[status.MPI_SOURCE] = mg_dp_now();
        } else if (me->heard[0] == ASK) {
            say(me, status.MPI_SOURCE, ANSWER, me->awaited);
        } else {
            me->answers++;
            me->answer_of = status.MPI_SOURCE;
            me->answer = me->heard[1];
        }
        listen(me);
    }
}

static int awaits(endpoint *end, int rank)
{
    process *me = end->state;
    double until = mg_dp_now() + answer_seconds;
    int answers = me->answers;
    say(me, rank, ASK, 0);
    while (mg_dp_now() < until) {
        hear(me);
        if (me->answers != answers && me->answer_of == rank)
            return me->answer;
        sleep_seconds(1e-3);
    }
    return -1;
}

/* --- pieces --- */

static int start(endpoint *end, piece *p)
{
    process *me = end->state;
    MPI_Request request;
    int tag = (int)p->match, bytes = (int)p->bytes;
    int code = p->sending ? MPI_Isend(p->data, bytes, MPI_BYTE, p->peer, tag, me->messages, &request)
                          : MPI_Irecv(p->data, bytes, MPI_BYTE, p->peer, tag, me->messages, &request);
    if (code != MPI_SUCCESS)
        return mpi_failed(code, p->sending ? "send" : "receive");
    keep_request(p, request);
    atomic_store_explicit(&p->state, RUNNING, memory_order_relaxed);
    return 0;
}

/* A receive has ended: how much was sent. MPI need not say how much did not fit; Open MPI does. */
static int64_t arrived_bytes(const piece *p, int code, const MPI_Status *status)
{
    int count = 0;
    MPI_Get_count(status, MPI_BYTE, &count);
    return code != MPI_SUCCESS && count <= p->bytes ? p->bytes + 1 : count;
}

static int has_ended(process *me, int rank)
{
    return me->ended[rank] > 0 && mg_dp_now() > me->ended[rank] + grace_seconds;
}

static int test(endpoint *end, piece *p, int *done)
{
    process *me = end->state;
    MPI_Request request = request_of(p);
    MPI_Status status;
    int code = MPI_Test(&request, done, &status), kind = MPI_SUCCESS;
    keep_request(p, request);
    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE && !p->sending)
        *done = 1;
    else if (code != MPI_SUCCESS)
        return mpi_failed(code, p->sending ? "send" : "receive");
    if (*done) {
        atomic_store_explicit(&p->state, DONE, memory_order_relaxed);
        p->arrived = p->sending ? p->bytes : arrived_bytes(p, code, &status);
    }
    return !*done && has_ended(me, p->peer) ? -ECONNRESET : 0;
}

/* Spins, then lets others have the core, then sleeps: MPI itself would spin for ever. Rounds do not tell the time:
   where ranks are more than cores, each MPI_Test gives the core away. */
static void rest(endpoint *end, piece *p, int64_t round, double seconds)
{
    process *me = end->state;
    double now = mg_dp_now();
    me->awaited = p->peer;
    if (round == 0)
        me->rest_began = now;
    if (now < me->rest_began + spin_seconds)
        return;
    int sleepy = now > me->rest_began + yield_seconds;
    if (sleepy || round % 64 == 0)
        hear(me);
    if (sleepy)
        sleep_seconds(seconds < nap_seconds ? seconds : nap_seconds);
    else
        sched_yield();
}

/* MPI cannot take back a send: what is not done by now is left to it. */
static void cancel(endpoint *end, piece *p)
{
    (void)end;
    if (atomic_load_explicit(&p->state, memory_order_relaxed) == DONE)
        return;
    MPI_Request request = request_of(p);
    int done = 0;
    if (!p->sending) {
        MPI_Cancel(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
        MPI_Request_free(&request);
    }
    atomic_store_explicit(&p->state, DONE, memory_order_relaxed);
}

static int health(endpoint *end)
{
    (void)end;
    return 0;
}

static void abort_job(endpoint *end, int status, const char *line)
{
    char text[LINE + 32];
    (void)status;
    int length = snprintf(text, sizeof text, "rank %d: %s\n", end->rank, line);
    length = length < (int)sizeof text ? length : (int)sizeof text - 1;
    if (write(STDERR_FILENO, text, (size_t)length) == length)
        sleep_seconds(0.05); /* mpirun forwards it before it hears of the end */
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* --- the end of the job --- */

static void stop_mpi(process *me)
{
    if (me->messages != MPI_COMM_NULL)
        MPI_Comm_free(&me->messages);
    if (me->notes != MPI_COMM_NULL)
        MPI_Comm_free(&me->notes);
    if (me->started_mpi)
        MPI_Finalize();
}

static int all_have_ended(const process *me)
{
    for (int r = 0; r < me->end.ranks; r++)
        if (r != me->end.rank && !(me->ended[r] > 0))
            return 0;
    return 1;
}

/* Tells all and waits for all. MPI_Finalize alone would wait for ranks that wait for this one, in silence. */
static void close_end(endpoint *end)
{
    process *me = end->state;
    me->awaited = -1;
    for (int r = 0; r < end->ranks; r++) {
        if (r == end->rank)
            continue;
        note *n = &me->saying[me->next_note++ % NOTES];
        MPI_Wait(&n->request, MPI_STATUS_IGNORE);
        n->said[0] = ENDED;
        MPI_Isend(n->said, 2, MPI_INT, r, 0, me->notes, &n->request);
    }
    for (hear(me); !all_have_ended(me); hear(me))
        sleep_seconds(nap_seconds);
    for (int n = 0; n < NOTES; n++)
        MPI_Wait(&me->saying[n].request, MPI_STATUS_IGNORE);
    MPI_Cancel(&me->hearing);
    MPI_Wait(&me->hearing, MPI_STATUS_IGNORE);
    stop_mpi(me);
    release(me->ended);
    release(me);
}

static const backend mpi = {.name = "mpi",
                            .start = start,
                            .test = test,
                            .rest = rest,
                            .cancel = cancel,
                            .health = health,
                            .abort = abort_job,
                            .awaits = awaits,
                            .close = close_end};

/* --- the begin of the job --- */

static int start_mpi(process *me)
{
    int running = 0, provided = 0, code;
    MPI_Initialized(&running);
    if (!running && (code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided)) != MPI_SUCCESS)
        return mpi_failed(code, "start");
    me->started_mpi = !running;
    MPI_Query_thread(&provided);
    if (provided < MPI_THREAD_FUNNELED)
        return fail(-ENOTSUP, "MPI: this one allows no threads (level %d, MPI_THREAD_FUNNELED is %d)", provided,
                    MPI_THREAD_FUNNELED);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if ((code = MPI_Comm_dup(MPI_COMM_WORLD, &me->messages)) != MPI_SUCCESS ||
        (code = MPI_Comm_dup(MPI_COMM_WORLD, &me->notes)) != MPI_SUCCESS)
        return mpi_failed(code, "duplicate the communicator");
    MPI_Comm_set_errhandler(me->messages, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(me->notes, MPI_ERRORS_RETURN);
    MPI_Comm_rank(me->messages, &me->end.rank);
    MPI_Comm_size(me->messages, &me->end.ranks);
    return 0;
}

static int count_contexts(const process *me)
{
    int *largest = NULL, found = 0;
    MPI_Comm_get_attr(me->messages, MPI_TAG_UB, &largest, &found);
    int64_t contexts = found ? ((int64_t)*largest + 1) >> (TAG_BITS + 1) : 0;
    return contexts < CONTEXTS ? (int)contexts : CONTEXTS;
}

static int open_end(mg_comm **out, process *me, const mg_comm_options *options)
{
    me->end.backend = &mpi;
    me->end.state = me;
    me->end.contexts = count_contexts(me);
    if (me->end.contexts < 1)
        return fail(-ENOTSUP, "MPI: tags of this one end below %d, and groups need more", 1 << (TAG_BITS + 1));
    me->ended = allocate_zeroed(me->end.ranks, sizeof *me->ended);
    return me->ended ? mg_dp_open(out, &me->end, options) : -ENOMEM;
}

/* What the ranks tell each other at the start. */
typedef struct introduction {
    int64_t chunk_bytes, check, cores, threads, neighbours; /* neighbours: ranks on its machine */
} introduction;

static introduction introduce(const process *me, int threads)
{
    cpu_set_t set;
    MPI_Comm machine;
    int neighbours = 1;
    if (MPI_Comm_split_type(me->messages, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine) == MPI_SUCCESS) {
        MPI_Comm_size(machine, &neighbours);
        MPI_Comm_free(&machine);
    }
    return (introduction){.chunk_bytes = me->end.options.chunk_bytes,
                          .check = me->end.options.check != 0,
                          .cores = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set),
                          .threads = threads,
                          .neighbours = neighbours};
}

static void warn_of_cores(const endpoint *end, const introduction *all)
{
    char line[LINE];
    int64_t threads = all[0].threads, online = sysconf(_SC_NPROCESSORS_ONLN), few = 0;
    int first = -1;
    for (int r = end->ranks - 1; r >= 0; r--)
        if (all[r].cores < all[r].threads) {
            few++;
            first = r;
        }
    if (few)
        snprintf(line, sizeof line,
                 "rank %d%s may use %lld core%s for %lld threads: start mpirun with --bind-to none, or with --map-by "
                 "slot:PE=%lld",
                 first, few > 1 ? " and others" : "", (long long)all[first].cores, all[first].cores > 1 ? "s" : "",
                 (long long)all[first].threads, (long long)all[first].threads);
    else if (threads * all[0].neighbours > online)
        snprintf(line, sizeof line,
                 "%lld ranks of %lld thread%s share %lld core%s of one machine: it works, but slowly, and times mean "
                 "little",
                 (long long)all[0].neighbours, (long long)threads, threads > 1 ? "s" : "", (long long)online,
                 online > 1 ? "s" : "");
    else
        return;
    end->options.warn(end->options.context, line);
}

static int meet(mg_comm *comm, introduction own)
{
    endpoint *end = comm->end;
    introduction *all = (introduction *)end->scratch;
    for (int r = 0; r <= end->ranks; r++)
        end->slices[r] = r;
    all[end->rank] = own;
    int status = mg_dp_gather(comm, KIND_CHECK, (char *)all, end->slices, sizeof *all);
    for (int r = 1; r < end->ranks && !status; r++)
        if (all[r].chunk_bytes != all[0].chunk_bytes || all[r].check != all[0].check)
            status = fail(-EINVAL,
                          "ranks have different options: chunk_bytes %lld and check %lld on rank 0, %lld and %lld on "
                          "rank %d",
                          (long long)all[0].chunk_bytes, (long long)all[0].check, (long long)all[r].chunk_bytes,
                          (long long)all[r].check, r);
    if (!status && end->rank == 0 && end->options.warn)
        warn_of_cores(end, all);
    return status;
}

/* The lowest status of all ranks, so that all fail alike. */
static int agree_to_open(const process *me, int status)
{
    int lowest = status;
    int code = MPI_Allreduce(&status, &lowest, 1, MPI_INT, MPI_MIN, me->notes);
    if (status || (code == MPI_SUCCESS && !lowest))
        return status;
    return code == MPI_SUCCESS ? fail(lowest, "another rank could not open: %s", strerror(-lowest))
                               : mpi_failed(code, "agree");
}

int mg_comm_open_mpi(mg_comm **out, int threads, const mg_comm_options *options)
{
    *out = NULL;
    if (threads < 0)
        return fail(-EINVAL, "%d threads of a rank", threads);
    int status = mg_dp_check_options(options);
    process *me = status ? NULL : allocate_zeroed(1, sizeof *me);
    if (!me)
        return status ? status : -ENOMEM;
    me->messages = me->notes = MPI_COMM_NULL;
    for (int n = 0; n < NOTES; n++)
        me->saying[n].request = MPI_REQUEST_NULL;
    mg_comm *comm = NULL;
    status = start_mpi(me);
    if (!status) {
        status = open_end(&comm, me, options);
        status = agree_to_open(me, status);
    }
    if (status) {
        stop_mpi(me);
        release(me->ended);
        if (comm)
            mg_dp_forget(comm);
        release(me);
        return status;
    }
    listen(me);
    status = meet(comm, introduce(me, threads));
    if (status)
        mg_comm_close(comm);
    else
        *out = comm;
    return status;
}
