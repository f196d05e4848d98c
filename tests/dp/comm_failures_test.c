/* What ranks do when something goes wrong: nobody hangs, nobody touches memory that is no longer his, a line names who.
 */
#include "comm_cases.h"

#include <megagraph/dp.h>

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static void expect(int status, int expected, const char *part)
{
    if (status != expected || (part && !strstr(mg_dp_last_error(), part)))
        fail_msg("status %d, expected %d with \"%s\": %s", status, expected, part ? part : "", mg_dp_last_error());
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- calls that do not fit together --- */

static int different_calls(mg_comm *comm, void *context)
{
    (void)context;
    double d[2] = {1, 2};
    int status = mg_comm_barrier(comm);
    if (!status)
        status = mg_comm_rank(comm) == 2 ? mg_comm_broadcast(comm, d, 2, MG_COMM_FP64, 1)
                                         : mg_comm_all_reduce(comm, d, 2, MG_COMM_FP64, MG_COMM_MAX);
    CHECK(status == -EPROTO);
    CHECK(strstr(mg_dp_last_error(),
                 "rank 0 all_reduce of 2 fp64, max as collective 1, rank 2 broadcast of 2 fp64, root "
                 "1 as collective 1"));
    return status;
}

static int different_counts(mg_comm *comm, void *context)
{
    (void)context;
    int32_t d[8] = {0};
    return mg_comm_all_reduce(comm, d, mg_comm_rank(comm) == 1 ? 7 : 8, MG_COMM_INT32, MG_COMM_SUM);
}

static int different_slices(mg_comm *comm, void *context)
{
    (void)context;
    int32_t d[6] = {0};
    int64_t a[3] = {1, 2, 3}, b[3] = {3, 2, 1};
    return mg_comm_all_gather(comm, d, mg_comm_rank(comm) == 1 ? a : b, MG_COMM_INT32);
}

static int one_more_call(mg_comm *comm, void *context)
{
    (void)context;
    mg_comm *group;
    int status = 0;
    if (mg_comm_rank(comm) == 0)
        status = mg_comm_agree(comm, 0, NULL);
    return status ? status : mg_comm_split(&group, comm, 0, 0);
}

static void check_mode(void **state)
{
    (void)state;
    mg_comm_options check = {.check = 1};
    expect(mg_comm_run_threads(4, &check, different_calls, NULL), -EPROTO, "rank 2 broadcast");
    expect(mg_comm_run_threads(4, &check, different_counts, NULL), -EPROTO, "rank 1 all_reduce of 7 int32, sum");
    expect(mg_comm_run_threads(3, &check, different_slices, NULL), -EPROTO, "(the slices differ)");
    expect(mg_comm_run_threads(3, &check, one_more_call, NULL), -EPROTO, "rank 0 agree as collective 0, rank 1 split");
}

/* --- sizes that differ: sent and expected, in chunks of 1024 too --- */

static int wrong_size(mg_comm *comm, void *context)
{
    const int64_t *sizes = context;
    mg_comm_request *request;
    char *data = calloc(1, 10000), expected[128];
    int status = mg_comm_rank(comm) ? mg_comm_receive(comm, &request, 0, 7, data, sizes[1])
                                    : mg_comm_send(comm, &request, 1, 7, data, sizes[0]);
    if (!status)
        status = mg_comm_wait(comm, &request);
    snprintf(expected, sizeof expected, "rank 1 receives %lld bytes from rank 0 with tag 7, but %lld were sent",
             (long long)sizes[1], (long long)sizes[0]);
    int named = !mg_comm_rank(comm) || (status == -EMSGSIZE && strstr(mg_dp_last_error(), expected));
    free(data);
    CHECK(named && !request);
    return status;
}

static void sizes_differ(void **state)
{
    (void)state;
    int64_t sizes[][2] = {{8, 9},       {9, 8},       {0, 1},       {1, 0},       {16, 17},   {16, 3000},
                          {3000, 2000}, {2000, 3000}, {3000, 1000}, {1000, 3000}, {3000, 16}, {1025, 1024}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int64_t chunk = 0; chunk <= 1024; chunk += 1024) {
            int status = mg_comm_run_threads(2, &(mg_comm_options){.chunk_bytes = chunk}, wrong_size, sizes[s]);
            expect(status, -EMSGSIZE, "rank 1: rank 1 receives");
        }
}

/* --- a rank gives up --- */

static atomic_int came_back, woken;

static int aborts(mg_comm *comm, void *context)
{
    int how = *(int *)context, rank = mg_comm_rank(comm);
    mg_comm_request *request, *unused;
    char *data = malloc(64);
    int status = 0;
    if (rank == 3 && how == 3) {
        free(data);
        return -ENOENT;
    }
    if (rank == 3) {
        usleep(20000);
        mg_comm_abort(comm, -ENOENT, "no file x.npz");
        status = mg_comm_barrier(comm); /* its own calls fail too */
        /* The others come back while this thread still lives: the abort woke them, not its end. */
        for (int i = 0; i < 500 && atomic_load(&came_back) < 3; i++)
            usleep(10000);
        atomic_store(&woken, atomic_load(&came_back));
    } else if (how == 0) {
        status = mg_comm_barrier(comm);
    } else if (how == 1) {
        if (!mg_comm_receive(comm, &unused, 3, 1, data, 64) && !mg_comm_receive(comm, &request, 3, 0, data, 64))
            status = mg_comm_wait(comm, &request);
    } else {
        for (int done = 0; !status;) /* one that tests while it computes */
            if (!(status = mg_comm_receive(comm, &request, 3, 0, data, 64)))
                while (!status && !done)
                    status = mg_comm_test(comm, &request, &done);
    }
    free(data); /* nobody writes to it from here on */
    atomic_fetch_add(&came_back, 1);
    if (how != 3) {
        CHECK(status == -ECONNABORTED);
        CHECK(!strcmp(mg_dp_last_error(), "rank 3: no file x.npz"));
    }
    return status;
}

static void abort_wakes_all(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        atomic_store(&came_back, 0);
        expect(mg_comm_run_threads(4, NULL, aborts, &how), -ENOENT, "rank 3: no file x.npz");
        assert_int_equal(atomic_load(&woken), 3);
    }
    int how = 3;
    expect(mg_comm_run_threads(4, NULL, aborts, &how), -ENOENT, "rank 3: ");
}

/* Rank 0 gives up at a moment of its own while messages of all sizes fly; buffers are freed at once. */
static int aborts_in_flight(mg_comm *comm, void *context)
{
    int64_t rounds = *(int64_t *)context;
    int ranks = mg_comm_size(comm), me = mg_comm_rank(comm), status = 0;
    for (int64_t i = 0; !status; i++) {
        if (me == 0 && i == rounds) {
            mg_comm_abort(comm, -EINTR, "enough");
            return -EINTR;
        }
        mg_comm_request *requests[2] = {0};
        int64_t bytes = i * 977 % 40000;
        char *in = malloc((size_t)bytes + 1), *out = calloc((size_t)bytes + 1, 1);
        status = mg_comm_send(comm, &requests[0], (me + 1) % ranks, 0, out, bytes);
        if (!status)
            status = mg_comm_receive(comm, &requests[1], (me + ranks - 1) % ranks, 0, in, bytes);
        if (!status)
            status = mg_comm_wait_all(comm, requests, 2);
        free(in);
        free(out);
    }
    return status;
}

static void abort_in_flight(void **state)
{
    (void)state;
    for (int64_t rounds = 0; rounds < 30; rounds++)
        expect(mg_comm_run_threads(4, &(mg_comm_options){.chunk_bytes = 1024}, aborts_in_flight, &rounds), -EINTR,
               "rank 0: enough");
}

/* Rank 2 gives up while rank 1 copies a long message to rank 0, which waits for something else: it has its memory back
   only when the copy is over. */
static int aborts_in_copy(mg_comm *comm, void *context)
{
    (void)context;
    enum { LONG = 64 << 20 };
    int me = mg_comm_rank(comm), status = 0;
    char *data = me < 2 ? malloc(LONG) : NULL, byte;
    mg_comm_request *copied, *never;
    if (data)
        memset(data, me, LONG);
    if (me == 0)
        status = mg_comm_receive(comm, &copied, 1, 0, data, LONG);
    if (!status)
        status = mg_comm_barrier(comm);
    if (me == 0 && !status && !(status = mg_comm_receive(comm, &never, 2, 1, &byte, 1)))
        status = mg_comm_wait(comm, &never);
    if (me == 1 && !status && !(status = mg_comm_send(comm, &copied, 0, 0, data, LONG)))
        status = mg_comm_wait(comm, &copied);
    if (me == 2) {
        usleep(3000);
        mg_comm_abort(comm, -EINTR, "enough");
    }
    free(data); /* unmapped: who still writes here ends the program */
    return status;
}

static void abort_in_copy(void **state)
{
    (void)state;
    expect(mg_comm_run_threads(3, NULL, aborts_in_copy, NULL), -EINTR, "rank 2: enough");
}

/* Rank 1 returns 0, and the others wait for it. */
static int leaves(mg_comm *comm, void *context)
{
    mg_comm_request *request;
    char data[8];
    if (mg_comm_rank(comm) == 1)
        return 0;
    int status = *(int *)context ? mg_comm_barrier(comm) : mg_comm_receive(comm, &request, 1, 5, data, 8);
    if (!*(int *)context && !status)
        status = mg_comm_wait(comm, &request);
    return status;
}

static void leaving_is_named(void **state)
{
    (void)state;
    int barrier = 0;
    expect(mg_comm_run_threads(3, NULL, leaves, &barrier), -ECONNRESET,
           "waits for rank 1 (8 bytes to receive, tag 5), which has ended");
    barrier = 1;
    expect(mg_comm_run_threads(2, NULL, leaves, &barrier), -ECONNRESET,
           "rank 0 waits for rank 1 (barrier), which has ended");
}

/* Messages that are never waited for are taken back. */
static int forgets(mg_comm *comm, void *context)
{
    (void)context;
    mg_comm_request *requests[20];
    char data[20][8];
    for (int i = 0; i < 20; i++)
        if (mg_comm_receive(comm, &requests[i], (mg_comm_rank(comm) + 1) % 2, i, data[i], 8))
            return -1;
    return 0;
}

static int agreed(mg_comm *comm, void *context)
{
    (void)context;
    int me = mg_comm_rank(comm);
    int status = mg_comm_agree(comm, me == 2 ? -EACCES : me == 3 ? -ENOSPC : 0, me == 2 ? "may not read x" : NULL);
    CHECK(status == -EACCES && !strcmp(mg_dp_last_error(), "rank 2: may not read x"));
    status = mg_comm_agree(comm, me == 3 ? -ENOSPC : 0, NULL);
    CHECK(status == -ENOSPC && !strcmp(mg_dp_last_error(), "rank 3: No space left on device"));
    return 0;
}

static void other_endings(void **state)
{
    (void)state;
    expect(mg_comm_run_threads(2, NULL, forgets, NULL), 0, NULL);
    expect(mg_comm_run_threads(4, NULL, agreed, NULL), 0, NULL);
    expect(mg_comm_run_threads(0, NULL, agreed, NULL), -EINVAL, "0 ranks");
    expect(mg_comm_run_threads(2, &(mg_comm_options){.chunk_bytes = -1}, agreed, NULL), -EINVAL, "chunk_bytes -1");
    expect(mg_comm_run_threads(2, &(mg_comm_options){.late_seconds = -1}, agreed, NULL), -EINVAL, "late_seconds -1");
}

/* --- a rank is late --- */

typedef struct warnings {
    atomic_int count;
    char lines[8][256];
} warnings;

static void keep(void *context, const char *line)
{
    warnings *w = context;
    int at = atomic_fetch_add(&w->count, 1);
    if (at < 8)
        snprintf(w->lines[at], sizeof w->lines[at], "%s", line);
}

static int late(mg_comm *comm, void *context)
{
    (void)context;
    double one = 1;
    if (mg_comm_rank(comm) == 1)
        usleep(600000);
    int status = mg_comm_all_reduce(comm, &one, 1, MG_COMM_FP64, MG_COMM_SUM);
    return status ? status : mg_comm_barrier(comm);
}

static void late_is_named(void **state)
{
    (void)state;
    warnings w = {.count = 0};
    expect(mg_comm_run_threads(3, &(mg_comm_options){.late_seconds = 0.25, .warn = keep, .context = &w}, late, NULL), 0,
           NULL);
    assert_int_equal(atomic_load(&w.count), 2); /* once per wait */
    for (int i = 0; i < 2; i++) {
        const char *line = w.lines[i];
        int zero = !strncmp(line, "rank 0 has waited", 17) && strstr(line, " s for rank 1 (all_reduce)");
        int two = !strncmp(line, "rank 2 has waited", 17) &&
                  strstr(line, " s for rank 0 (all_reduce), which waits for rank 1");
        if (!zero && !two)
            fail_msg("warned: %s", line);
    }
    atomic_store(&w.count, 0);
    expect(mg_comm_run_threads(3, &(mg_comm_options){.warn = keep, .context = &w}, late, NULL), 0, NULL);
    assert_int_equal(atomic_load(&w.count), 0);
}

/* --- memory --- */

static int much(mg_comm *comm, void *context)
{
    static const int64_t counts[3] = {100, 0, 900};
    float data[1000] = {0}, in[1000];
    int me = mg_comm_rank(comm);
    mg_comm *group = NULL;
    mg_comm_request *requests[2] = {0};
    int status = mg_comm_split(&group, comm, me == 1, 0);
    if (!status)
        status = mg_comm_send(comm, &requests[0], (me + 1) % 3, 0, data, 4000);
    if (!status)
        status = mg_comm_receive(comm, &requests[1], (me + 2) % 3, 0, in, 4000);
    if (!status)
        status = mg_comm_wait_all(comm, requests, 2);
    if (!status)
        status = mg_comm_all_gather(comm, data, counts, MG_COMM_FP32);
    if (!status)
        status = mg_comm_all_reduce(group, data, 1000, MG_COMM_FP32, MG_COMM_SUM);
    if (!status)
        status = mg_comm_agree(comm, 0, NULL);
    if (status)
        mg_comm_abort(comm, status, mg_dp_last_error());
    mg_comm_close(group);
    (void)context;
    return status;
}

static int run_much(void *context)
{
    int status = mg_comm_run_threads(3, &(mg_comm_options){.chunk_bytes = 1024}, much, context);
    if (status && status != -ENOMEM)
        print_error("%d: %s\n", status, mg_dp_last_error());
    return status;
}

static void allocations_fail(void **state)
{
    (void)state;
    assert_true(test_every_allocation_fails(mg_dp_set_memory_hook, run_much, NULL) > 20);
}

/* --- other --- */

typedef struct crowd {
    atomic_int entered;
    int ranks;
} crowd;

static int enters(mg_comm *comm, void *context)
{
    crowd *c = context;
    for (int round = 1; round <= 50; round++) {
        if (mg_comm_rank(comm) == round % c->ranks)
            usleep(200);
        atomic_fetch_add(&c->entered, 1);
        CHECK(!mg_comm_barrier(comm));
        CHECK(atomic_load(&c->entered) >= round * c->ranks);
    }
    return 0;
}

static void barrier_holds_back(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 8; ranks += 3) {
        crowd c = {.ranks = ranks};
        expect(mg_comm_run_threads(ranks, NULL, enters, &c), 0, NULL);
    }
}

/* Waiting costs no core: eight ranks that wait 0.3 s use a small part of it. */
static int sleeps(mg_comm *comm, void *context)
{
    (void)context;
    if (mg_comm_rank(comm) == 0)
        usleep(300000);
    return mg_comm_barrier(comm);
}

static void waiting_is_idle(void **state)
{
    (void)state;
    clock_t before = clock();
    double begin = seconds_now();
    expect(mg_comm_run_threads(8, NULL, sleeps, NULL), 0, NULL);
    double used = (double)(clock() - before) / CLOCKS_PER_SEC;
    if (used > 0.25 * (seconds_now() - begin))
        fail_msg("ranks that wait used %.3f s", used);
}

#ifdef _OPENMP
/* Rank threads run OpenMP regions, several at once, and exchange what they found. */
static int computes(mg_comm *comm, void *context)
{
    (void)context;
    for (int round = 0; round < 5; round++) {
        int64_t sum = 0;
#pragma omp parallel for num_threads(2) reduction(+ : sum)
        for (int64_t i = 0; i < 10000; i++)
            sum += i * mg_comm_rank(comm);
        CHECK(!mg_comm_all_reduce(comm, &sum, 1, MG_COMM_INT64, MG_COMM_SUM));
        CHECK(sum == 49995000 * 6);
    }
    return 0;
}

static void ranks_run_openmp(void **state)
{
    (void)state;
    expect(mg_comm_run_threads(4, NULL, computes, NULL), 0, NULL);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_mode),         cmocka_unit_test(sizes_differ),    cmocka_unit_test(abort_wakes_all),
        cmocka_unit_test(abort_in_flight),    cmocka_unit_test(abort_in_copy),   cmocka_unit_test(leaving_is_named),
        cmocka_unit_test(other_endings),      cmocka_unit_test(late_is_named),   cmocka_unit_test(allocations_fail),
        cmocka_unit_test(barrier_holds_back), cmocka_unit_test(waiting_is_idle),
#ifdef _OPENMP
        cmocka_unit_test(ranks_run_openmp),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
