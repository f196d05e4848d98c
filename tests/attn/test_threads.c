/* A plan used by many threads at once; plans made at once; error lines and the memory hook of each thread. Labelled for
 * the thread sanitizer. */
#include "problem.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, ROUNDS = 2 };

/* --- plans made at once --- */

typedef struct making {
    const mg_attn_map *map;
    mg_attn_plan *plans[THREADS];
} making;

static void make(void *context, int thread)
{
    making *m = context;
    for (int round = 0; round < ROUNDS; round++) {
        mg_attn_plan_destroy(m->plans[thread]);
        if (mg_attn_plan_create(&m->plans[thread], m->map))
            fail_msg("plan: %s", mg_attn_last_error());
    }
}

/* The first calls of the process, so that all threads find no backend chosen yet. */
static void plans_made_at_once(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_DENSE; kind <= MG_ATTN_STREAM; kind++) {
        problem *p = problem_make((problem){.queries = 200, .kind = kind, .mask_far = 1, .with = SEGMENTS});
        mg_attn_map map;
        encoded *e = map_encode(&map, p);
        making m = {.map = &map};
        mg_attn_plan *alone;
        mg_attn_plan_info info, expected;
        test_at_once(THREADS, make, &m);
        assert_int_equal(mg_attn_plan_create(&alone, &map), 0);
        mg_attn_plan_describe(&expected, alone);
        for (int t = 0; t < THREADS; t++) {
            mg_attn_plan_describe(&info, m.plans[t]);
            assert_int_equal(info.seen_pairs, expected.seen_pairs);
            assert_int_equal(info.plan_bytes, expected.plan_bytes);
            assert_string_equal(info.backend, expected.backend);
            mg_attn_plan_destroy(m.plans[t]);
        }
        mg_attn_plan_destroy(alone);
        map_free(e);
        problem_free(p);
    }
}

/* --- one plan --- */

typedef struct sharing {
    const problem *p;
    const mg_attn_map *map;
    const mg_attn_plan *plan;
    const char *backend;
    result results[THREADS][ROUNDS];
} sharing;

static void run_all(void *context, int thread)
{
    sharing *s = context;
    for (int round = 0; round < ROUNDS; round++)
        problem_run_on(&s->results[thread][round], s->p, s->plan, s->map, s->backend, 1 + thread % 2);
}

static void share(const char *backend, const problem *p)
{
    mg_attn_map map;
    encoded *e = map_encode(&map, p);
    mg_attn_plan *plan = plan_make(&map, backend);
    sharing s = {.p = p, .map = &map, .plan = plan, .backend = backend};
    result alone;
    problem_run_on(&alone, p, plan, &map, backend, 1);
    test_at_once(THREADS, run_all, &s);
    for (int t = 0; t < THREADS; t++)
        for (int round = 0; round < ROUNDS; round++) {
            result_same(backend, &s.results[t][round], &alone);
            result_free(&s.results[t][round]);
        }
    result_free(&alone);
    mg_attn_plan_destroy(plan);
    map_free(e);
}

static void one_plan_on_many_threads(void **state)
{
    (void)state;
    for (const char *const *backend = tiled_backends(); *backend; backend++)
        for (int kind = MG_ATTN_DENSE; kind <= MG_ATTN_STREAM; kind++) {
            unsigned with = TABLE | KEY_BIAS | DLSE | DROPOUT | (kind == MG_ATTN_NEAR ? VALUES : 0);
            problem *p = problem_make((problem){.queries = 100,
                                                .kind = kind,
                                                .pattern = kind == MG_ATTN_NEAR ? BAND : MIXED,
                                                .mask_far = kind == MG_ATTN_NEAR,
                                                .with = with,
                                                .stream_rows = 64});
            share(*backend, p);
            problem_free(p);
        }
}

/* --- the error line --- */

static void go_wrong(void *context, int thread)
{
    pthread_barrier_t *all_failed = context;
    char text[64];
    mg_attn_plan *plan;
    mg_attn_map map = {.queries = 10, .keys = 10, .codes = 1000 + thread};
    assert_int_equal(mg_attn_plan_create(&plan, &map), -EINVAL);
    pthread_barrier_wait(all_failed);
    snprintf(text, sizeof text, "%d", 1000 + thread);
    assert_error_says(text);
}

static void error_lines_are_per_thread(void **state)
{
    (void)state;
    pthread_barrier_t all_failed;
    mg_attn_plan *plan;
    assert_int_equal(mg_attn_plan_create(&plan, &(mg_attn_map){.queries = 10, .keys = 10, .codes = 999}), -EINVAL);
    assert_int_equal(pthread_barrier_init(&all_failed, NULL, THREADS), 0);
    test_at_once(THREADS, go_wrong, &all_failed);
    pthread_barrier_destroy(&all_failed);
    assert_error_says("999");
}

/* --- the memory hook --- */

static _Atomic int64_t outstanding, obtained;

static int counting_hook(int64_t bytes)
{
    atomic_fetch_add(&outstanding, bytes);
    atomic_fetch_add(&obtained, bytes > 0);
    return 0;
}

static void one_hook_on_many_threads(void **state)
{
    (void)state;
    problem *p = problem_make((problem){.queries = 200, .kind = MG_ATTN_NEAR, .pattern = BAND, .mask_far = 1});
    mg_attn_map map;
    encoded *e = map_encode(&map, p);
    making m = {.map = &map};
    mg_attn_plan *alone;
    mg_attn_set_memory_hook(counting_hook);
    assert_int_equal(mg_attn_plan_create(&alone, &map), 0);
    int64_t of_one = atomic_load(&obtained);
    assert_true(of_one > 0);
    mg_attn_plan_destroy(alone);
    test_at_once(THREADS, make, &m);
    for (int t = 0; t < THREADS; t++)
        mg_attn_plan_destroy(m.plans[t]);
    mg_attn_set_memory_hook(NULL);
    assert_int_equal(atomic_load(&obtained), of_one * (1 + THREADS * ROUNDS));
    assert_int_equal(atomic_load(&outstanding), 0);
    map_free(e);
    problem_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_made_at_once),
        cmocka_unit_test(one_plan_on_many_threads),
        cmocka_unit_test(error_lines_are_per_thread),
        cmocka_unit_test(one_hook_on_many_threads),
    };
    return cmocka_run_group_tests_name("attention from many threads", tests, NULL, NULL);
}
