/* Ranks as threads. Each rank has a mailbox, where sends to it and receives of it meet; whoever comes second copies the
 * bytes, straight from sender to receiver. A piece is
 *
 *     LISTED   in a mailbox, until its counterpart comes or its owner takes it back; changes under the mailbox's lock
 *     COPYING  found by its counterpart, whose thread copies now
 *     DONE     told under the lock of the owner's mailbox, where the owner sleeps
 */
#define _GNU_SOURCE
#include "endpoint.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { LISTED, COPYING, DONE };
enum { BUCKETS = 64, SPINS = 400 };

typedef struct queue {
    piece *first, **last;
} queue;

typedef struct mailbox {
    _Alignas(64) pthread_mutex_t lock;
    pthread_cond_t changed;
    const piece *awaited;                    /* what the owner sleeps for */
    atomic_int awaits;                       /* the rank it sleeps for, or -1 */
    atomic_int ended;                        /* its thread has returned */
    queue sends[BUCKETS], receives[BUCKETS]; /* by sender and match */
} mailbox;

typedef struct world {
    int ranks, spins;
    mailbox *boxes; /* [ranks] */
    const mg_comm_options *options;
    int (*work)(mg_comm *comm, void *context);
    void *context;
    pthread_mutex_t lock;
    atomic_int aborted;
    int status; /* of the first failure, and its line */
    char line[LINE];
} world;

static mailbox *own_box(const endpoint *end) { return &((world *)end->state)->boxes[end->rank]; }

/* Where a piece is listed: with the receiver. */
static mailbox *meeting(const endpoint *end, const piece *p)
{
    return &((world *)end->state)->boxes[p->sending ? p->peer : end->rank];
}

static unsigned bucket_of(const piece *p) { return ((uint32_t)p->from * 0x9E3779B1u ^ p->match * 0x85EBCA6Bu) >> 26; }

static void append(queue *q, piece *p)
{
    p->next = NULL;
    *q->last = p;
    q->last = &p->next;
}

static void unlink_at(queue *q, piece **at)
{
    piece *p = *at;
    *at = p->next;
    if (q->last == &p->next)
        q->last = at;
}

/* Takes the first counterpart of p, or NULL. */
static piece *take(queue *q, const piece *p)
{
    for (piece **at = &q->first; *at; at = &(*at)->next) {
        piece *other = *at;
        if (other->from == p->from && other->match == p->match) {
            unlink_at(q, at);
            return other;
        }
    }
    return NULL;
}

static void copy(piece *send, piece *receive)
{
    int64_t bytes = send->bytes < receive->bytes ? send->bytes : receive->bytes;
    if (bytes)
        memcpy(receive->data, send->data, (size_t)bytes);
    receive->arrived = send->bytes;
}

/* Tells the owner of p, which may free it as soon as it knows. */
static void finish(mailbox *owner, piece *p)
{
    pthread_mutex_lock(&owner->lock);
    int awaited = owner->awaited == p;
    atomic_store_explicit(&p->state, DONE, memory_order_release);
    if (awaited)
        pthread_cond_signal(&owner->changed);
    pthread_mutex_unlock(&owner->lock);
}

static int start(endpoint *end, piece *p)
{
    mailbox *box = meeting(end, p);
    p->from = p->sending ? end->rank : p->peer;
    unsigned bucket = bucket_of(p);
    pthread_mutex_lock(&box->lock);
    piece *other = take(p->sending ? &box->receives[bucket] : &box->sends[bucket], p);
    if (other)
        atomic_store_explicit(&other->state, COPYING, memory_order_relaxed);
    else
        append(p->sending ? &box->sends[bucket] : &box->receives[bucket], p);
    atomic_store_explicit(&p->state, other ? COPYING : LISTED, memory_order_relaxed);
    pthread_mutex_unlock(&box->lock);
    if (other) {
        copy(p->sending ? p : other, p->sending ? other : p);
        atomic_store_explicit(&p->state, DONE, memory_order_relaxed);
        finish(&((world *)end->state)->boxes[p->peer], other);
    }
    return 0;
}

static int health(endpoint *end)
{
    world *w = end->state;
    return atomic_load_explicit(&w->aborted, memory_order_acquire) ? fail(-ECONNABORTED, "%s", w->line) : 0;
}

static int test(endpoint *end, piece *p, int *done)
{
    world *w = end->state;
    *done = 0;
    if (atomic_load_explicit(&w->aborted, memory_order_acquire))
        return health(end);
    *done = atomic_load_explicit(&p->state, memory_order_acquire) == DONE;
    if (!*done && atomic_load(&w->boxes[p->peer].ended)) {
        mailbox *box = meeting(end, p);
        pthread_mutex_lock(&box->lock);
        int listed = atomic_load_explicit(&p->state, memory_order_relaxed) == LISTED;
        pthread_mutex_unlock(&box->lock);
        return listed ? -ECONNRESET : 0;
    }
    return 0;
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static struct timespec in_seconds(double seconds)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += (time_t)seconds;
    at.tv_nsec += (long)(1e9 * (seconds - (double)(time_t)seconds));
    if (at.tv_nsec >= 1000000000) {
        at.tv_nsec -= 1000000000;
        at.tv_sec++;
    }
    return at;
}

static void rest(endpoint *end, piece *p, int64_t round, double seconds)
{
    world *w = end->state;
    if (round < w->spins) {
        relax();
        return;
    }
    int forever = seconds > INT_MAX;
    struct timespec until = in_seconds(forever ? 0 : seconds);
    mailbox *box = own_box(end);
    pthread_mutex_lock(&box->lock);
    box->awaited = p;
    atomic_store_explicit(&box->awaits, p->peer, memory_order_relaxed);
    int late = 0;
    while (!late && atomic_load_explicit(&p->state, memory_order_relaxed) != DONE && !atomic_load(&w->aborted) &&
           !atomic_load(&w->boxes[p->peer].ended))
        late = forever ? pthread_cond_wait(&box->changed, &box->lock)
                       : pthread_cond_timedwait(&box->changed, &box->lock, &until);
    box->awaited = NULL;
    /* One that is late only warns and goes on waiting: others who warn at the same moment are to find it so. */
    if (!late || atomic_load_explicit(&p->state, memory_order_relaxed) == DONE)
        atomic_store_explicit(&box->awaits, -1, memory_order_relaxed);
    pthread_mutex_unlock(&box->lock);
}

static int unlist(mailbox *box, piece *p)
{
    queue *q = p->sending ? &box->sends[bucket_of(p)] : &box->receives[bucket_of(p)];
    for (piece **at = &q->first; *at; at = &(*at)->next)
        if (*at == p) {
            unlink_at(q, at);
            return 1;
        }
    return 0;
}

static void cancel(endpoint *end, piece *p)
{
    mailbox *box = meeting(end, p), *own = own_box(end);
    pthread_mutex_lock(&box->lock);
    int listed = atomic_load_explicit(&p->state, memory_order_relaxed) == LISTED && unlist(box, p);
    pthread_mutex_unlock(&box->lock);
    if (listed)
        return;
    pthread_mutex_lock(&own->lock); /* the counterpart copies: soon done */
    own->awaited = p;
    while (atomic_load_explicit(&p->state, memory_order_acquire) != DONE)
        pthread_cond_wait(&own->changed, &own->lock);
    own->awaited = NULL;
    pthread_mutex_unlock(&own->lock);
}

static void wake_all(world *w)
{
    for (int r = 0; r < w->ranks; r++) {
        pthread_mutex_lock(&w->boxes[r].lock);
        pthread_cond_signal(&w->boxes[r].changed);
        pthread_mutex_unlock(&w->boxes[r].lock);
    }
}

/* The first failure is kept. */
static void abort_world(world *w, int rank, int status, const char *line)
{
    pthread_mutex_lock(&w->lock);
    int first = !atomic_load(&w->aborted);
    if (first) {
        w->status = status;
        snprintf(w->line, sizeof w->line, "rank %d: %s", rank, line);
        atomic_store_explicit(&w->aborted, 1, memory_order_release);
    }
    pthread_mutex_unlock(&w->lock);
    if (first)
        wake_all(w);
}

static void abort_end(endpoint *end, int status, const char *line) { abort_world(end->state, end->rank, status, line); }

static int awaits(endpoint *end, int rank)
{
    return atomic_load_explicit(&((world *)end->state)->boxes[rank].awaits, memory_order_relaxed);
}

static void close_end(endpoint *end)
{
    world *w = end->state;
    atomic_store(&w->boxes[end->rank].ended, 1);
    wake_all(w);
}

static const backend threads = {.name = "threads",
                                .start = start,
                                .test = test,
                                .rest = rest,
                                .cancel = cancel,
                                .health = health,
                                .abort = abort_end,
                                .awaits = awaits,
                                .close = close_end};

typedef struct seat {
    world *world;
    int rank;
    pthread_t thread;
} seat;

static void fail_for(world *w, int rank, int status)
{
    char text[128], line[LINE - 32];
    const char *own = mg_dp_last_error();
    if (*own)
        snprintf(line, sizeof line, "%s", own);
    else
        snprintf(line, sizeof line, "its work returned %d (%s)", status,
                 strerror_r(status < 0 ? -status : status, text, sizeof text));
    abort_world(w, rank, status < 0 ? status : -ECANCELED, line);
}

static void *run_rank(void *argument)
{
    seat *s = argument;
    world *w = s->world;
    endpoint end = {
        .backend = &threads, .state = w, .rank = s->rank, .ranks = w->ranks, .contexts = CONTEXTS, .lent = 1};
    mg_comm *comm;
    int status = mg_dp_open(&comm, &end, w->options);
    if (!status) {
        status = w->work(comm, w->context);
        if (status)
            fail_for(w, s->rank, status);
        mg_dp_close(comm);
    } else {
        fail_for(w, s->rank, status);
        close_end(&end);
    }
    return NULL;
}

static void make_box(mailbox *box)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&box->lock, NULL);
    pthread_cond_init(&box->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    box->awaited = NULL;
    atomic_init(&box->awaits, -1);
    atomic_init(&box->ended, 0);
    for (int b = 0; b < BUCKETS; b++) {
        box->sends[b] = (queue){NULL, &box->sends[b].first};
        box->receives[b] = (queue){NULL, &box->receives[b].first};
    }
}

static int allowed_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/* Starts a thread for each rank and waits for all. */
static void run_seats(world *w, seat *seats)
{
    int started = 0;
    for (; started < w->ranks; started++) {
        seats[started] = (seat){.world = w, .rank = started};
        int status = pthread_create(&seats[started].thread, NULL, run_rank, &seats[started]);
        if (status) {
            char text[128], line[LINE - 32];
            snprintf(line, sizeof line, "its thread, of %d, cannot be started: %s", w->ranks,
                     strerror_r(status, text, sizeof text));
            abort_world(w, started, -status, line);
            break;
        }
    }
    for (int r = 0; r < started; r++)
        pthread_join(seats[r].thread, NULL);
}

int mg_comm_run_threads(int ranks, const mg_comm_options *options, int (*work)(mg_comm *comm, void *context),
                        void *context)
{
    if (ranks < 1)
        return fail(-EINVAL, "%d ranks: there must be at least one", ranks);
    if (!work)
        return fail(-EINVAL, "ranks without work: the function is NULL");
    int status = mg_dp_check_options(options);
    if (status)
        return status;
    world w = {.ranks = ranks,
               .spins = ranks <= allowed_cores() ? SPINS : 0,
               .options = options,
               .work = work,
               .context = context,
               .lock = PTHREAD_MUTEX_INITIALIZER};
    w.boxes = allocate(ranks, sizeof *w.boxes);
    seat *seats = allocate(ranks, sizeof *seats);
    if (!w.boxes || !seats) {
        release(w.boxes);
        release(seats);
        return -ENOMEM;
    }
    for (int r = 0; r < ranks; r++)
        make_box(&w.boxes[r]);
    run_seats(&w, seats);
    for (int r = 0; r < ranks; r++) {
        pthread_cond_destroy(&w.boxes[r].changed);
        pthread_mutex_destroy(&w.boxes[r].lock);
    }
    release(w.boxes);
    release(seats);
    return atomic_load(&w.aborted) ? fail(w.status, "%s", w.line) : 0;
}
