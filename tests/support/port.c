#include "support/port.h"
#include "support/test.h"

#include <pthread.h>
#include <time.h>

typedef struct message {
    struct message *next;
    int sends, from, to, tag, done, status;
    const void *sent;
    void *received;
    int64_t bytes;
} message;

typedef struct port {
    struct test_ports *of;
    int rank;
    int64_t sent;
    uint64_t calls;
} port;

struct test_ports {
    int ranks, delay, failed, aborted;
    int64_t fail_at, calls;
    port *ports;
    message *first, **last; /* posted and not matched, or matched and not tested: in the order posted */
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

test_ports *test_ports_open(int ranks)
{
    test_ports *p = calloc(1, sizeof *p);
    p->ranks = ranks;
    p->ports = calloc((size_t)ranks, sizeof *p->ports);
    for (int r = 0; r < ranks; r++)
        p->ports[r] = (port){.of = p, .rank = r};
    p->last = &p->first;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    return p;
}

void test_ports_close(test_ports *p)
{
    if (p->first && !p->aborted)
        fail_msg("a message from %d to %d with tag %d was left", p->first->from, p->first->to, p->first->tag);
    for (message *m = p->first, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p->ports);
    free(p);
}

void test_ports_delay(test_ports *p, int microseconds) { p->delay = microseconds; }
void test_ports_fail(test_ports *p, int64_t call) { p->fail_at = call; }
int test_ports_failed(const test_ports *p) { return p->failed; }
int64_t test_ports_sent(const test_ports *p, int rank) { return p->ports[rank].sent; }
void *test_ports_of(test_ports *p, int rank) { return &p->ports[rank]; }

/* Locks, unless the call is to fail. */
static int enter(port *of)
{
    test_ports *p = of->of;
    if (p->delay && of->calls++ % 3 == 0) {
        const struct timespec t = {
            .tv_nsec = (long)(test_random_bits((uint64_t)of->rank, of->calls) % (uint64_t)p->delay * 1000)};
        nanosleep(&t, NULL);
    }
    pthread_mutex_lock(&p->lock);
    const int fails = ++p->calls == p->fail_at;
    if (fails) {
        p->failed = p->aborted = 1;
        pthread_cond_broadcast(&p->changed);
    }
    if (!fails && !p->aborted)
        return 0;
    pthread_mutex_unlock(&p->lock);
    return fails ? -EIO : -ECONNABORTED;
}

static void match(message *one, message *other)
{
    message *s = one->sends ? one : other, *r = one->sends ? other : one;
    if (s->bytes != r->bytes)
        s->status = r->status = -EMSGSIZE;
    else
        memcpy(r->received, s->sent, (size_t)s->bytes);
    s->done = r->done = 1;
}

static int post(port *of, void **request, message wanted)
{
    test_ports *p = of->of;
    int status = enter(of);
    if (status)
        return status;
    message *m = malloc(sizeof *m), *other = p->first;
    *m = wanted;
    while (other && (other->done || other->sends == m->sends || other->from != m->from || other->to != m->to ||
                     other->tag != m->tag))
        other = other->next;
    *p->last = m;
    p->last = &m->next;
    if (other) {
        match(m, other);
        pthread_cond_broadcast(&p->changed);
    }
    *request = m;
    pthread_mutex_unlock(&p->lock);
    return 0;
}

int test_port_send(void *context, void **request, int to, int tag, const void *data, int64_t bytes)
{
    port *of = context;
    of->sent += bytes;
    return post(of, request,
                (message){.sends = 1, .from = of->rank, .to = to, .tag = tag, .sent = data, .bytes = bytes});
}

int test_port_receive(void *context, void **request, int from, int tag, void *data, int64_t bytes)
{
    port *of = context;
    return post(of, request, (message){.from = from, .to = of->rank, .tag = tag, .received = data, .bytes = bytes});
}

static int take(test_ports *p, void **request)
{
    message *m = *request, **at = &p->first;
    const int status = m->status;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    if (p->last == &m->next)
        p->last = at;
    free(m);
    *request = NULL;
    return status;
}

int test_port_test(void *context, void **request, int *done)
{
    port *of = context;
    int status = enter(of);
    if (status)
        return status;
    *done = ((message *)*request)->done;
    if (*done)
        status = take(of->of, request);
    pthread_mutex_unlock(&of->of->lock);
    return status;
}

int test_port_wait(void *context, void **request)
{
    port *of = context;
    test_ports *p = of->of;
    int status = enter(of);
    if (status)
        return status;
    while (!((message *)*request)->done && !p->aborted)
        pthread_cond_wait(&p->changed, &p->lock);
    status = p->aborted ? -ECONNABORTED : take(p, request);
    pthread_mutex_unlock(&p->lock);
    return status;
}

/* --- running --- */

typedef struct ranks_run {
    test_ports *ports;
    int (*work)(void *context, int rank);
    void *context;
    int status;
} ranks_run;

typedef struct rank_run {
    ranks_run *of;
    int rank;
} rank_run;

static void *run_rank(void *argument)
{
    rank_run *r = argument;
    test_ports *p = r->of->ports;
    const int status = r->of->work(r->of->context, r->rank);
    if (status) {
        pthread_mutex_lock(&p->lock);
        if (!r->of->status || r->of->status == -ECONNABORTED)
            r->of->status = status;
        p->aborted = 1;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

int test_ports_run(test_ports *p, int (*work)(void *context, int rank), void *context)
{
    ranks_run all = {.ports = p, .work = work, .context = context};
    rank_run *ranks = calloc((size_t)p->ranks, sizeof *ranks);
    pthread_t *threads = calloc((size_t)p->ranks, sizeof *threads);
    for (int r = 0; r < p->ranks; r++) {
        ranks[r] = (rank_run){&all, r};
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < p->ranks; r++)
        pthread_join(threads[r], NULL);
    free(threads);
    free(ranks);
    return all.status;
}
