/* Memory: a plan whose n-th allocation fails, for every n; calls that allocate nothing; counts that are true. */
#include "problem.h"

#include <stdatomic.h>

static int make_and_destroy(void *context)
{
    mg_attn_plan *plan;
    int status = mg_attn_plan_create(&plan, context);
    if (!status)
        mg_attn_plan_destroy(plan);
    return status;
}

static void every_allocation_of_a_plan_fails(void **state)
{
    (void)state;
    for (const char *const *backend = all_backends(); *backend; backend++)
        for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
            for (int mask = 0; mask < 2; mask++) {
                problem *p = problem_make((problem){.queries = 300,
                                                    .keys = 280,
                                                    .kind = kind,
                                                    .pattern = BAND,
                                                    .mask_far = mask && kind,
                                                    .with = mask ? SEGMENTS : 0});
                mg_attn_map map;
                encoded *e = map_encode(&map, p);
                assert_int_equal(mg_attn_use_backend(*backend), 0);
                assert_true(test_every_allocation_fails(mg_attn_set_memory_hook, make_and_destroy, &map) > 0);
                mg_attn_use_backend(NULL);
                map_free(e);
                problem_free(p);
            }
}

static _Atomic int64_t outstanding, obtained;

static int counting_hook(int64_t bytes)
{
    atomic_fetch_add(&outstanding, bytes);
    atomic_fetch_add(&obtained, bytes > 0);
    return 0;
}

static void calls_allocate_nothing_and_plans_say_what_they_hold(void **state)
{
    (void)state;
    for (const char *const *backend = all_backends(); *backend; backend++)
        for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++) {
            problem *p = problem_make((problem){.queries = 200, .kind = kind, .pattern = BAND, .with = TABLE});
            mg_attn_map map;
            mg_attn_plan_info info;
            encoded *e = map_encode(&map, p);
            atomic_store(&outstanding, 0);
            mg_attn_set_memory_hook(counting_hook);
            mg_attn_plan *plan = plan_make(&map, *backend);
            mg_attn_plan_describe(&info, plan);
            assert_int_equal(info.plan_bytes, atomic_load(&outstanding));
            float *out = malloc(200 * 32 * sizeof *out), dtable[16];
            mg_attn_call call = {.heads = 2,
                                 .dim = 16,
                                 .scale = 1,
                                 .threads = 3,
                                 .q = {p->q, 32, 16},
                                 .k = {p->k, 32, 16},
                                 .v = {p->v, 32, 16},
                                 .out = {out, 32, 16},
                                 .lse = p->dlse,
                                 .dout = {p->dout, 32, 16},
                                 .dtable = dtable,
                                 .table = p->table};
            int64_t bytes = mg_attn_workspace_bytes(plan, &call, 0) + mg_attn_workspace_bytes(plan, &call, 1);
            assert_int_equal(posix_memalign(&call.workspace, 64, (size_t)bytes + 1), 0);
            atomic_store(&obtained, 0);
            assert_int_equal(mg_attn_forward(plan, &call), 0);
            assert_int_equal(mg_attn_backward(plan, &call), 0);
            assert_int_equal(atomic_load(&obtained), 0);
            mg_attn_plan_destroy(plan);
            assert_int_equal(atomic_load(&outstanding), 0);
            mg_attn_set_memory_hook(NULL);
            free(call.workspace);
            free(out);
            map_free(e);
            problem_free(p);
        }
}

/* Workspace grows with the tokens, not with their square, and not with heads x their square. */
static void workspace_grows_with_the_tokens(void **state)
{
    (void)state;
    float x = 0;
    for (const char *const *backend = tiled_backends(); *backend; backend++)
        for (int backward = 0; backward < 2; backward++) {
            int64_t bytes[3];
            for (int n = 0; n < 3; n++) {
                int64_t tokens = 10000LL << n;
                mg_attn_map map = {.queries = tokens, .keys = tokens};
                mg_attn_plan *plan = plan_make(&map, *backend);
                mg_attn_tensor t = {&x, 128, 16};
                mg_attn_call call = {.heads = 8,
                                     .dim = 16,
                                     .scale = 1,
                                     .threads = 2,
                                     .q = t,
                                     .k = t,
                                     .v = t,
                                     .out = t,
                                     .lse = &x,
                                     .dout = t,
                                     .dq = t,
                                     .dk = t,
                                     .dv = t};
                bytes[n] = mg_attn_workspace_bytes(plan, &call, backward);
                assert_true(bytes[n] >= 0);
                mg_attn_plan_destroy(plan);
            }
            assert_true(bytes[2] - bytes[1] <= 2 * (bytes[1] - bytes[0]) + (1 << 20));
            assert_true(bytes[2] <=
                        40000LL * 8 * 16 * 4 * 24 + (64 << 20)); /* a few copies of q, k, v and their gradients */
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_of_a_plan_fails),
        cmocka_unit_test(calls_allocate_nothing_and_plans_say_what_they_hold),
        cmocka_unit_test(workspace_grows_with_the_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
