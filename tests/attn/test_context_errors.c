/* What contexts refuse, and ranks that fail: allocations, calls of the port, a callback. Nothing hangs, nothing is
 * lost. */
#include "context_trial.h"

enum { TOKENS = 30 };

static problem *small(mg_attn_map_kind kind, int with)
{
    return problem_make((problem){.queries = TOKENS,
                                  .dim = 4,
                                  .kind = kind,
                                  .mask_far = kind == MG_ATTN_NEAR,
                                  .pattern = BAND,
                                  .with = (unsigned)with});
}

/* --- faults --- */

static int run_trial(void *context)
{
    trial *t = context;
    int status = trial_run(t);
    trial_free(t);
    return status;
}

static void every_allocation_fails(void **state)
{
    (void)state;
    for (int method = MG_ATTN_RING; method <= MG_ATTN_HALO; method++) {
        problem *p = small(MG_ATTN_NEAR, TABLE | VALUES);
        trial t = {.p = p, .method = method, .ranks = 3, .spread = EVEN};
        assert_true(test_every_allocation_fails(mg_attn_set_memory_hook, run_trial, &t) > 20);
        problem_free(p);
    }
}

static _Atomic int64_t outstanding;
static int counting_hook(int64_t bytes)
{
    outstanding += bytes;
    return 0;
}

static void every_call_of_the_port_fails(void **state)
{
    (void)state;
    mg_attn_set_memory_hook(counting_hook);
    for (int method = MG_ATTN_RING; method <= MG_ATTN_HALO; method++) {
        problem *p = small(MG_ATTN_NEAR, TABLE);
        trial t = {.p = p, .method = method, .ranks = method == MG_ATTN_ALL_TO_ALL ? 4 : 3};
        int64_t n = 1;
        for (t.reached = 1; t.reached; n++) {
            t.fail_at = n;
            const int status = run_trial(&t);
            assert_int_equal(status, t.reached ? -EIO : 0);
            assert_int_equal(outstanding, 0);
        }
        assert_true(n > 40);
        problem_free(p);
    }
    mg_attn_set_memory_hook(NULL);
}

/* --- one rank is wrong --- */

typedef struct wrong {
    test_ports *ports;
    mg_attn_method method;
    int wrong_rank;
    int status[3];
    char lines[3][256];
} wrong;

enum { EACH = 4 };

static mg_attn_port port_of(test_ports *ports, int rank, int ranks)
{
    return (mg_attn_port){.context = test_ports_of(ports, rank),
                          .rank = rank,
                          .ranks = ranks,
                          .send = test_port_send,
                          .receive = test_port_receive,
                          .test = test_port_test,
                          .wait = test_port_wait};
}

static int create_wrong(void *context, int rank)
{
    wrong *w = context;
    const int64_t first[] = {0, EACH, 2 * EACH, 3 * EACH}, starts[] = {0, 1, 1, 2, 3};
    const int32_t columns[] = {1, rank == w->wrong_rank ? 77 : 5, 9};
    mg_attn_context *made;
    mg_attn_map map = {.kind = MG_ATTN_NEAR,
                       .queries = EACH,
                       .keys = 3 * EACH,
                       .codes = 2,
                       .far_code = 1,
                       .mask_far = 1,
                       .near_starts = starts,
                       .near_columns = columns};
    w->status[rank] = mg_attn_context_create(
        &made, &(mg_attn_context_desc){
                   .method = w->method, .heads = 1, .port = port_of(w->ports, rank, 3), .first = first, .map = &map});
    snprintf(w->lines[rank], sizeof w->lines[rank], "%s", mg_attn_last_error());
    assert_null(made);
    return 0;
}

static void all_ranks_learn_that_one_is_wrong(void **state)
{
    (void)state;
    for (int method = MG_ATTN_RING; method <= MG_ATTN_HALO; method++) {
        wrong w = {.ports = test_ports_open(3), .method = method, .wrong_rank = 1};
        assert_int_equal(test_ports_run(w.ports, create_wrong, &w), 0);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(w.status[r], -EINVAL);
            if (!strstr(w.lines[r], r == 1 ? "query 2: key 77" : "rank 1"))
                fail_msg("rank %d says: %s", r, w.lines[r]);
        }
        test_ports_close(w.ports);
    }
}

/* The callback of rank 2 gives up in its n-th call. */
typedef struct giving_up {
    test_ports *ports;
    int after;
} giving_up;

static int codes_until(void *context, int thread, int64_t q0, int64_t nq, int64_t k0, int64_t nk, uint8_t *codes,
                       int64_t stride)
{
    int *left = context;
    (void)thread, (void)q0, (void)k0;
    for (int64_t i = 0; i < nq; i++)
        memset(codes + i * stride, 0, (size_t)nk);
    return --*left == 0;
}

static int both_ways(const mg_attn_context *made, mg_attn_call *call)
{
    int status = 0;
    for (int backward = 0; backward < 2 && !status; backward++) {
        const int64_t bytes = mg_attn_context_workspace_bytes(made, call, backward);
        assert_int_equal(posix_memalign(&call->workspace, 64, (size_t)bytes), 0);
        status = (backward ? mg_attn_context_backward : mg_attn_context_forward)(made, call);
        free(call->workspace);
    }
    return status;
}

static int stream_gives_up(void *context, int rank)
{
    const giving_up *g = context;
    const int64_t first[] = {0, EACH, 2 * EACH, 3 * EACH};
    float tokens[7][EACH] = {{0}};
    int left = rank == 2 ? g->after : 0;
    mg_attn_context *made;
    mg_attn_map map = {
        .kind = MG_ATTN_STREAM, .queries = EACH, .keys = 3 * EACH, .stream = codes_until, .stream_context = &left};
    int status = mg_attn_context_create(
        &made, &(mg_attn_context_desc){.heads = 1, .port = port_of(g->ports, rank, 3), .first = first, .map = &map});
    assert_int_equal(status, 0);
    mg_attn_tensor t = {tokens[0], 1, 1};
    mg_attn_call call = {.heads = 1,
                         .dim = 1,
                         .scale = 1,
                         .threads = 1,
                         .q = t,
                         .k = t,
                         .v = t,
                         .dout = t,
                         .out = {tokens[1], 1, 1},
                         .lse = tokens[2],
                         .dq = {tokens[3], 1, 1},
                         .dk = {tokens[4], 1, 1},
                         .dv = {tokens[5], 1, 1}};
    status = both_ways(made, &call);
    mg_attn_context_destroy(made);
    return status;
}

static void a_callback_gives_up(void **state)
{
    (void)state;
    for (int after = 1; after <= 7; after++) { /* three shards forward, three backward, none left */
        giving_up g = {.ports = test_ports_open(3), .after = after};
        assert_int_equal(test_ports_run(g.ports, stream_gives_up, &g), after <= 6 ? -ECANCELED : 0);
        test_ports_close(g.ports);
    }
}

/* --- pairs that are listed with the code that is masked --- */

static int create_hidden(void *context, int rank)
{
    test_ports *ports = context;
    const int64_t first[] = {0, EACH, 2 * EACH}, starts[] = {0, 2, 2, 3, 3};
    const int32_t columns[] = {1, 5, 6}; /* of rank 0 and rank 1 */
    const uint8_t codes[] = {(uint8_t)rank, (uint8_t)!rank, 0};
    mg_attn_context *made;
    mg_attn_context_info info;
    mg_attn_map map = {.kind = MG_ATTN_NEAR,
                       .queries = EACH,
                       .keys = 2 * EACH,
                       .codes = 2,
                       .far_code = 1,
                       .mask_far = 1,
                       .near_starts = starts,
                       .near_columns = columns,
                       .near_codes = codes};
    int status = mg_attn_context_create(
        &made, &(mg_attn_context_desc){
                   .method = MG_ATTN_HALO, .heads = 1, .port = port_of(ports, rank, 2), .first = first, .map = &map});
    assert_int_equal(status, 0);
    mg_attn_context_describe(&info, made, 1);
    assert_int_equal(info.halo_rows, rank ? 0 : 1);
    assert_int_equal(info.seen_pairs, 2);
    mg_attn_context_destroy(made);
    return 0;
}

static void hidden_pairs_fetch_nothing(void **state)
{
    (void)state;
    test_ports *ports = test_ports_open(2);
    assert_int_equal(test_ports_run(ports, create_hidden, ports), 0);
    test_ports_close(ports);
}

/* --- what is refused --- */

/* Of one rank, which needs no port. */
static int create(mg_attn_context **made, mg_attn_method method, mg_attn_map map, const int64_t *first, int heads)
{
    return mg_attn_context_create(
        made, &(mg_attn_context_desc){
                  .method = method, .heads = heads, .port = {.rank = 0, .ranks = 1}, .first = first, .map = &map});
}

static void refuses(const char *text, mg_attn_method method, mg_attn_map map, const int64_t *first, int heads)
{
    mg_attn_context *made;
    assert_int_equal(create(&made, method, map, first, heads), -EINVAL);
    assert_null(made);
    assert_error_says(text);
}

static void halo_refuses_dense_attention(void **state)
{
    (void)state;
    const int64_t first[] = {0, EACH}, starts[EACH + 1] = {0};
    const uint8_t codes[EACH * EACH] = {0};
    const mg_attn_map dense = {
        .kind = MG_ATTN_DENSE, .queries = EACH, .keys = EACH, .dense = codes, .dense_stride = EACH};
    mg_attn_map near = {.kind = MG_ATTN_NEAR, .queries = EACH, .keys = EACH, .near_starts = starts};
    refuses("not of kind MG_ATTN_NEAR: every query sees all keys", MG_ATTN_HALO, dense, first, 1);
    refuses("far pairs are not masked", MG_ATTN_HALO, near, first, 1);
    mg_attn_context *made;
    near.mask_far = 1;
    assert_int_equal(create(&made, MG_ATTN_HALO, near, first, 1), 0);
    mg_attn_context_destroy(made);
}

static void contexts_say_what_they_hold(void **state)
{
    (void)state;
    const int64_t first[] = {0, EACH}, starts[EACH + 1] = {0, 2, 2, 3, 3};
    const int32_t columns[] = {0, 3, 1};
    const mg_attn_map map = {.kind = MG_ATTN_NEAR,
                             .queries = EACH,
                             .keys = EACH,
                             .codes = 2,
                             .far_code = 1,
                             .mask_far = 1,
                             .near_starts = starts,
                             .near_columns = columns};
    mg_attn_set_memory_hook(counting_hook);
    for (int method = MG_ATTN_RING; method <= MG_ATTN_HALO; method++) {
        mg_attn_context *made;
        mg_attn_context_info info;
        outstanding = 0;
        assert_int_equal(create(&made, method, map, first, 1), 0);
        mg_attn_context_describe(&info, made, 8);
        assert_int_equal(info.plan_bytes, outstanding);
        assert_int_equal(info.seen_pairs, 3);
        mg_attn_context_destroy(made);
        assert_int_equal(outstanding, 0);
    }
    mg_attn_set_memory_hook(NULL);
}

static void wrong_descriptions(void **state)
{
    (void)state;
    const int64_t first[] = {0, EACH}, falling[] = {0, -1}, late[] = {1, EACH};
    const mg_attn_map good = {.queries = EACH, .keys = EACH};
    refuses("first[1] is -1", MG_ATTN_RING, good, falling, 1);
    refuses("first[0] is 1", MG_ATTN_RING, good, late, 1);
    refuses("0 heads", MG_ATTN_RING, good, first, 0);
    refuses("7 is no method", (mg_attn_method)7, good, first, 1);
    refuses("4 (of mg_attn_context_rows) x 4", MG_ATTN_RING, (mg_attn_map){.queries = EACH, .keys = 9}, first, 1);
    refuses("leave them 0", MG_ATTN_RING, (mg_attn_map){.queries = EACH, .keys = EACH, .key_end = 2}, first, 1);
    refuses("300 codes", MG_ATTN_RING, (mg_attn_map){.queries = EACH, .keys = EACH, .codes = 300}, first, 1);
    mg_attn_context *made;
    mg_attn_context_desc desc = {.heads = 1, .port = {.rank = 0, .ranks = 2}, .first = first, .map = &good};
    assert_int_equal(mg_attn_context_create(&made, &desc), -EINVAL);
    assert_error_says("lacks a callback");
    assert_int_equal(mg_attn_context_create(NULL, &desc), -EINVAL);
    assert_int_equal(mg_attn_context_create(&made, NULL), -EINVAL);
}

static void wrong_calls(void **state)
{
    (void)state;
    const int64_t first[] = {0, EACH};
    mg_attn_context *made;
    float x[EACH] = {0};
    uint32_t ids[EACH] = {0};
    assert_int_equal(create(&made, MG_ATTN_RING, (mg_attn_map){.queries = EACH, .keys = EACH}, first, 1), 0);
    const mg_attn_tensor t = {x, 1, 1};
    const mg_attn_call good = {.heads = 1, .dim = 1, .q = t, .k = t, .v = t, .out = t, .lse = x, .dout = t};
    assert_true(mg_attn_context_workspace_bytes(made, &good, 1) > 0);
    mg_attn_call bad[] = {good, good, good, good, good, good, good, good};
    const char *const says[] = {"2 heads, but it was made for 1",
                                "dim 0",
                                "MG_ATTN_FP32",
                                "key_bias",
                                "dlse",
                                "dropout ids",
                                "MG_ATTN_NEAR",
                                "needs k"};
    bad[0].heads = 2;
    bad[1].dim = 0;
    bad[2].type = MG_ATTN_BF16;
    bad[3].dkey_bias = x;
    bad[4].dlse = x;
    bad[5].dropout.key_ids = ids;
    bad[6].dvalues = x;
    bad[7].k.data = NULL;
    for (int i = 0; i < 8; i++) {
        assert_int_equal(mg_attn_context_workspace_bytes(made, &bad[i], 1), -EINVAL);
        assert_error_says(says[i]);
        bad[i].workspace = ids; /* not looked at */
        assert_int_equal(mg_attn_context_backward(made, &bad[i]), -EINVAL);
    }
    assert_int_equal(mg_attn_context_forward(made, &good), -EINVAL);
    assert_error_says("workspace is NULL");
    mg_attn_context_destroy(made);
    mg_attn_context_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halo_refuses_dense_attention),
        cmocka_unit_test(contexts_say_what_they_hold),
        cmocka_unit_test(wrong_descriptions),
        cmocka_unit_test(wrong_calls),
        cmocka_unit_test(all_ranks_learn_that_one_is_wrong),
        cmocka_unit_test(a_callback_gives_up),
        cmocka_unit_test(hidden_pairs_fetch_nothing),
        cmocka_unit_test(every_allocation_fails),
        cmocka_unit_test(every_call_of_the_port_fails),
    };
    return cmocka_run_group_tests_name("contexts that fail", tests, NULL, NULL);
}
