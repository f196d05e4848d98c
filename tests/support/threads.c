#include "support/test.h"

#include <pthread.h>

typedef struct crowd {
    void (*work)(void *context, int thread);
    void *context;
    pthread_barrier_t start;
} crowd;

typedef struct member {
    crowd *of;
    int thread;
    pthread_t id;
} member;

static void *run(void *argument)
{
    member *m = argument;
    pthread_barrier_wait(&m->of->start);
    m->of->work(m->of->context, m->thread);
    return NULL;
}

void test_at_once(int count, void (*work)(void *context, int thread), void *context)
{
    crowd all = {.work = work, .context = context};
    member *members = calloc((size_t)count, sizeof *members);
    assert_int_equal(pthread_barrier_init(&all.start, NULL, (unsigned)count), 0);
    for (int t = 0; t < count; t++) {
        members[t] = (member){.of = &all, .thread = t};
        assert_int_equal(pthread_create(&members[t].id, NULL, run, &members[t]), 0);
    }
    for (int t = 0; t < count; t++)
        pthread_join(members[t].id, NULL);
    pthread_barrier_destroy(&all.start);
    free(members);
}
