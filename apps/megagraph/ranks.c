#include "ranks.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "memory.h"
#include "progress.h"
#include "threads.h"

int mg_ranks_rank(const mg_comm *comm) { return comm ? mg_comm_rank(comm) : 0; }

int mg_ranks_count(const mg_comm *comm) { return comm ? mg_comm_size(comm) : 1; }

/* --- how many --- */

/* A number that the launcher left in the environment; 0: none. */
static int launched(const char *const *names, size_t count)
{
    for (size_t n = 0; n < count; n++) {
        const char *text = getenv(names[n]);
        int value = text ? atoi(text) : 0;
        if (value > 0)
            return value;
    }
    return 0;
}

int mg_ranks_speaks(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    return !mg_comm_under_mpi() || launched(names, sizeof names / sizeof *names) == 0;
}

static int processes(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    return mg_comm_under_mpi() ? launched(names, sizeof names / sizeof *names) : 0;
}

int mg_ranks_resolve(mg_config *config, const char *flag)
{
    int64_t *ranks = &config->parallel.ranks, *context = &config->parallel.context, started = processes();
    int status = flag ? mg_options_set(config, "--ranks", "parallel.ranks", flag) : 0;
    if (status)
        return status;
    if (started > 0 && *ranks != MG_AUTO && *ranks != started)
        return fail(-EINVAL, "%lld ranks are asked for, but mpirun started %lld processes", (long long)*ranks,
                    (long long)started);
    if (started > MG_RANKS_MOST)
        return fail(-EINVAL, "mpirun started %lld processes; at most %d ranks are possible", (long long)started,
                    MG_RANKS_MOST);
    if (*ranks == MG_AUTO)
        *ranks = started ? started : 1;
    if (*context != MG_AUTO && *context != *ranks)
        return fail(-EINVAL, "parallel.context is %lld, but there are %lld ranks: give --ranks %lld, or mpirun -n %lld",
                    (long long)*context, (long long)*ranks, (long long)*context, (long long)*context);
    *context = *ranks;
    if (*ranks == 1 && config->parallel.context_method == MG_METHOD_AUTO)
        config->parallel.context_method = MG_METHOD_NONE;
    if (*ranks > 1 && config->parallel.context_method == MG_METHOD_NONE)
        return fail(-EINVAL, "parallel.context_method is none, but there are %lld ranks: take auto", (long long)*ranks);
    return 0;
}

/* Cores that this process may use. */
static int allowed_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
}

/* A rank's share of the cores: those it was bound to, or one part of all for each rank of this machine; no more than
   OMP_NUM_THREADS. */
static int share_of_cores(int ranks, int mpi)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"};
    int local = mpi ? launched(names, sizeof names / sizeof *names) : ranks, cores = allowed_cores();
    int bound = mpi && cores < (int)sysconf(_SC_NPROCESSORS_ONLN);
    int share = bound ? cores : cores / (local ? local : ranks), most = mg_threads_count();
    share = share < most ? share : most;
    return share > 1 ? share : 1;
}

/* --- running --- */

static _Thread_local int alike; /* the last failure is not this rank's alone */

typedef struct launch {
    int (*work)(mg_comm *comm, void *context);
    void *context;
    int threads, mpi;
    pthread_mutex_t lock;
    int status; /* the first that failed */
    char line[600];
} launch;

static _Thread_local int rank_threads;

const char *mg_ranks_story(const mg_comm *comm)
{
    static _Thread_local char text[120];
    text[0] = 0;
    if (comm)
        snprintf(text, sizeof text, "%d ranks as %s, %d thread%s each", mg_comm_size(comm),
                 strcmp(mg_comm_backend(comm), "mpi") ? "threads of this process" : "MPI processes", rank_threads,
                 rank_threads == 1 ? "" : "s");
    return text;
}

static void note_failure(launch *l, const mg_comm *comm, int status)
{
    char line[560];
    snprintf(line, sizeof line, "%s", mg_app_last_error());
    pthread_mutex_lock(&l->lock);
    if (!l->status || (l->status == -ECONNABORTED && status != -ECONNABORTED)) {
        l->status = status;
        if (alike || !comm || status == -ECONNABORTED)
            snprintf(l->line, sizeof l->line, "%s", line);
        else
            snprintf(l->line, sizeof l->line, "rank %d: %s", mg_comm_rank(comm), line);
    }
    pthread_mutex_unlock(&l->lock);
}

/* One rank, from its first step to its last. */
static int run_rank(mg_comm *comm, void *context)
{
    launch *l = context;
    alike = 0;
    rank_threads = l->threads;
    mg_memory_rank(l->mpi ? 0 : mg_comm_rank(comm)); /* a process is a rank of its own */
    mg_progress_quiet(mg_comm_rank(comm) > 0);
    mg_threads_set(l->threads);
    int status = l->work(mg_comm_size(comm) > 1 ? comm : NULL, l->context);
    if (status)
        note_failure(l, comm, status);
    if (status && !alike && status != -ECONNABORTED)
        mg_comm_abort(comm, status, mg_app_last_error());
    return 0;
}

/* Of all that wait for a late rank, one says so. */
static void warn(void *context, const char *line)
{
    static const int64_t quiet_seconds = 30;
    static _Atomic int64_t last = -1000;
    int64_t now = (int64_t)mg_progress_seconds(), before = atomic_load(&last);
    (void)context;
    if (now - before >= quiet_seconds && atomic_compare_exchange_strong(&last, &before, now))
        fprintf(stderr, "megagraph: %s\n", line);
}

static int run_processes(launch *l, const mg_comm_options *options)
{
    mg_comm *comm;
    int status = relay(mg_comm_open_mpi(&comm, l->threads, options), mg_dp_last_error());
    if (status)
        return status;
    run_rank(comm, l);
    mg_comm_close(comm);
    return relay(l->status, l->line);
}

int mg_ranks_run(const mg_config *config, int (*work)(mg_comm *comm, void *context), void *context)
{
    int ranks = (int)config->parallel.ranks, mpi = processes() > 0;
    mg_comm_options options = {.late_seconds = 60, .warn = warn};
    launch l = {.work = work,
                .context = context,
                .threads = config->threads ? (int)config->threads : share_of_cores(ranks, mpi),
                .mpi = mpi,
                .lock = PTHREAD_MUTEX_INITIALIZER};
    if (ranks == 1 && !mpi) {
        mg_threads_set((int)config->threads);
        return work(NULL, context);
    }
    if (mpi)
        return run_processes(&l, &options);
    if (ranks * l.threads > allowed_cores())
        mg_progress_say("note: %d ranks of %d thread%s on %d cores take turns", ranks, l.threads,
                        l.threads == 1 ? "" : "s", allowed_cores());
    int status = relay(mg_comm_run_threads(ranks, &options, run_rank, &l), mg_dp_last_error());
    return l.status ? fail(l.status, "%s", l.line) : status;
}

/* --- together --- */

static int failed(int status) { return relay(status, mg_dp_last_error()); }

int mg_ranks_alike(int status)
{
    alike = 1;
    return status;
}

int mg_ranks_agree(mg_comm *comm, int status)
{
    if (!comm)
        return status;
    static const char speaker[] = "rank 0: "; /* whose line needs no name */
    int agreed = mg_comm_agree(comm, status, status ? mg_app_last_error() : NULL);
    const char *line = mg_dp_last_error();
    if (agreed)
        fail(agreed, "%s", strncmp(line, speaker, sizeof speaker - 1) ? line : line + sizeof speaker - 1);
    alike = agreed && agreed != -ECONNABORTED;
    return agreed;
}

int mg_ranks_sum(mg_comm *comm, void *data, int64_t count, mg_comm_type type)
{
    return comm ? failed(mg_comm_all_reduce(comm, data, count, type, MG_COMM_SUM)) : 0;
}

int mg_ranks_most(mg_comm *comm, int64_t *values, int64_t count)
{
    return comm ? failed(mg_comm_all_reduce(comm, values, count, MG_COMM_INT64, MG_COMM_MAX)) : 0;
}

int mg_ranks_broadcast(mg_comm *comm, void *data, int64_t count, mg_comm_type type)
{
    return comm ? failed(mg_comm_broadcast(comm, data, count, type, 0)) : 0;
}

int mg_ranks_gather(mg_comm *comm, void *data, const int64_t *counts, mg_comm_type type)
{
    return comm ? failed(mg_comm_all_gather(comm, data, counts, type)) : 0;
}

int mg_ranks_collect(mg_comm *comm, void *data, const int64_t *bytes, void (*take)(void *context, int rank),
                     void *context)
{
    int rank = mg_ranks_rank(comm), status = 0;
    mg_comm_request *request = NULL;
    if (rank) {
        status = mg_comm_send(comm, &request, 0, MG_RANKS_TAG, data, bytes[rank]);
        return failed(status ? status : mg_comm_wait(comm, &request));
    }
    for (int from = 1; from < mg_ranks_count(comm) && !status; from++) {
        status = mg_comm_receive(comm, &request, from, MG_RANKS_TAG, data, bytes[from]);
        if (!status)
            status = mg_comm_wait(comm, &request);
        if (!status)
            take(context, from);
    }
    return failed(status);
}

int64_t mg_ranks_sent_bytes(const mg_comm *comm) { return comm ? mg_comm_sent(comm).bytes : 0; }

/* --- the port of attention --- */

static int port_send(void *context, void **request, int to, int tag, const void *data, int64_t bytes)
{
    mg_comm_request *sent = NULL;
    int status = mg_comm_send(context, &sent, to, tag, data, bytes);
    *request = sent;
    return failed(status);
}

static int port_receive(void *context, void **request, int from, int tag, void *data, int64_t bytes)
{
    mg_comm_request *received = NULL;
    int status = mg_comm_receive(context, &received, from, tag, data, bytes);
    *request = received;
    return failed(status);
}

static int port_test(void *context, void **request, int *done)
{
    mg_comm_request *tested = *request;
    int status = mg_comm_test(context, &tested, done);
    *request = tested;
    return failed(status);
}

static int port_wait(void *context, void **request)
{
    mg_comm_request *waited = *request;
    int status = mg_comm_wait(context, &waited);
    *request = waited;
    return failed(status);
}

mg_attn_port mg_ranks_port(mg_comm *comm)
{
    if (!comm)
        return (mg_attn_port){.ranks = 1};
    return (mg_attn_port){.context = comm,
                          .rank = mg_comm_rank(comm),
                          .ranks = mg_comm_size(comm),
                          .send = port_send,
                          .receive = port_receive,
                          .test = port_test,
                          .wait = port_wait};
}
