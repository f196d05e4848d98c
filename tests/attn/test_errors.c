/* Every wrong argument of a call: -EINVAL on each backend, forward, backward and workspace alike, with a line that
 * names it. */
#include "problem.h"

enum { N = 6, H = 2, D = 8, ROW = H * D };

typedef struct good_call {
    mg_attn_plan *plan;
    mg_attn_call call;
    float in[N * ROW], out[N * ROW], dq[N * ROW], dk[N * ROW], dv[N * ROW], lse[H * N], small[64];
    _Alignas(64) char workspace[1 << 20];
} good_call;

static good_call *good;

static mg_attn_call usual(void)
{
    mg_attn_tensor in = {good->in, ROW, D};
    return (mg_attn_call){.heads = H,
                          .dim = D,
                          .scale = 1,
                          .threads = 1,
                          .q = in,
                          .k = in,
                          .v = in,
                          .dout = in,
                          .lse = good->lse,
                          .out = {good->out, ROW, D},
                          .dq = {good->dq, ROW, D},
                          .dk = {good->dk, ROW, D},
                          .dv = {good->dv, ROW, D},
                          .workspace = good->workspace};
}

static void setup_on(const char *backend)
{
    static good_call memory;
    good = &memory;
    mg_attn_map map = {.queries = N, .keys = N, .codes = 1};
    good->plan = plan_make(&map, backend);
    mg_attn_call call = usual();
    assert_true(mg_attn_workspace_bytes(good->plan, &call, 1) <= (int64_t)sizeof good->workspace);
    assert_int_equal(mg_attn_forward(good->plan, &call), 0);
    assert_int_equal(mg_attn_backward(good->plan, &call), 0);
}

static void refused(mg_attn_call call, const char *says)
{
    assert_int_equal(mg_attn_forward(good->plan, &call), -EINVAL);
    assert_error_says(says);
    assert_int_equal(mg_attn_backward(good->plan, &call), -EINVAL);
    assert_error_says(says);
    assert_int_equal(mg_attn_reference_forward(good->plan, &call), -EINVAL);
    assert_int_equal(mg_attn_reference_backward(good->plan, &call), -EINVAL);
    assert_true(mg_attn_workspace_bytes(good->plan, &call, 0) < 0);
}

static void backward_refused(mg_attn_call call, const char *says)
{
    assert_int_equal(mg_attn_backward(good->plan, &call), -EINVAL);
    assert_error_says(says);
}

#define WITH(field, value) (call = usual(), call.field = (value), call)

static void sizes(void)
{
    mg_attn_call call;
    refused(WITH(heads, 0), "heads");
    refused(WITH(heads, -2), "-2");
    refused(WITH(dim, 0), "dim");
    refused(WITH(dim, 257), "257");
    refused(WITH(value_dim, 257), "257");
    refused(WITH(value_dim, -1), "value_dim");
    refused(WITH(threads, -1), "threads");
    refused(WITH(type, (mg_attn_type)5), "type");
}

static void inputs(void)
{
    mg_attn_call call;
    refused(WITH(q.data, NULL), "q");
    refused(WITH(k.data, NULL), "k");
    refused(WITH(v.data, NULL), "v");
    refused(WITH(out.data, NULL), "out");
    refused(WITH(values, good->small), "values");
    backward_refused(WITH(dvalues, good->small), "values");
    backward_refused(WITH(lse, NULL), "lse");
    backward_refused(WITH(dout.data, NULL), "dout");
}

static void overlaps(void)
{
    mg_attn_call call = usual();
    call.out.token_stride = 0;
    assert_int_equal(mg_attn_forward(good->plan, &call), -EINVAL);
    assert_error_says("out");
    call = usual(), call.out.head_stride = 0;
    assert_int_equal(mg_attn_forward(good->plan, &call), -EINVAL);
    call = usual(), call.out.head_stride = D - 1;
    assert_int_equal(mg_attn_forward(good->plan, &call), -EINVAL);
    backward_refused(WITH(dq.token_stride, 0), "dq");
    backward_refused(WITH(dk.token_stride, 3), "dk");
    backward_refused(WITH(dv.head_stride, 0), "dv");
    backward_refused(WITH(dv.head_stride, 1 - D), "dv");
}

static void dropouts(void)
{
    mg_attn_call call;
    refused(WITH(dropout.probability, 1), "probability");
    refused(WITH(dropout.probability, -0.1f), "probability");
    refused(WITH(dropout.probability, NAN), "probability");
    call = usual();
    call.dropout = (mg_attn_dropout){.probability = 0.5f, .layer = 65536};
    refused(call, "layer");
    call.dropout = (mg_attn_dropout){.probability = 0.5f, .head_begin = -1};
    refused(call, "head_begin");
}

static void pointers(void)
{
    mg_attn_call call = usual();
    assert_int_equal(mg_attn_forward(NULL, &call), -EINVAL);
    assert_int_equal(mg_attn_forward(good->plan, NULL), -EINVAL);
    assert_int_equal(mg_attn_backward(NULL, &call), -EINVAL);
    assert_int_equal(mg_attn_backward(good->plan, NULL), -EINVAL);
    assert_true(mg_attn_workspace_bytes(NULL, &call, 0) < 0);
}

static void on_each_backend(void (*test)(void))
{
    for (const char *const *backend = all_backends(); *backend; backend++) {
        setup_on(*backend);
        test();
        mg_attn_plan_destroy(good->plan);
    }
}

static void wrong_sizes(void **state)
{
    (void)state;
    on_each_backend(sizes);
}
static void wrong_inputs(void **state)
{
    (void)state;
    on_each_backend(inputs);
}
static void outputs_that_overlap_themselves(void **state)
{
    (void)state;
    on_each_backend(overlaps);
}
static void wrong_dropout(void **state)
{
    (void)state;
    on_each_backend(dropouts);
}
static void missing_pointers(void **state)
{
    (void)state;
    on_each_backend(pointers);
}

static void workspace_is_required(void **state)
{
    (void)state;
    for (const char *const *backend = tiled_backends(); *backend; backend++) {
        setup_on(*backend);
        mg_attn_call call = usual();
        call.workspace = NULL;
        assert_int_equal(mg_attn_forward(good->plan, &call), -EINVAL);
        assert_error_says("workspace");
        assert_int_equal(mg_attn_backward(good->plan, &call), -EINVAL);
        call.workspace = good->workspace + 4;
        assert_int_equal(mg_attn_forward(good->plan, &call), -EINVAL);
        assert_error_says("workspace");
        mg_attn_plan_destroy(good->plan);
    }
}

static void unknown_backend(void **state)
{
    (void)state;
    assert_int_equal(mg_attn_use_backend("v9"), -EINVAL);
    assert_error_says("v9");
    for (const char *const *backend = all_backends(); *backend; backend++)
        assert_error_says(*backend);
    assert_int_equal(mg_attn_use_backend(""), -EINVAL);
}

/* A million heads of 64 rows: tens of gigabytes, counted in 64 bits. */
static void workspace_past_32_bits(void **state)
{
    (void)state;
    for (const char *const *backend = tiled_backends(); *backend; backend++) {
        mg_attn_map map = {.queries = 64, .keys = 64};
        mg_attn_plan *plan = plan_make(&map, *backend);
        float x = 0;
        mg_attn_tensor in = {&x, 0, 0}, out = {&x, INT64_C(1) << 40, 256};
        mg_attn_call call = {
            .heads = 1 << 20, .dim = 256, .scale = 1, .threads = 2, .q = in, .k = in, .v = in, .out = out};
        assert_true(mg_attn_workspace_bytes(plan, &call, 0) > INT64_C(1) << 34);
        mg_attn_plan_destroy(plan);
    }
}

/* The least that is legal. */
static void one_pair(void **state)
{
    (void)state;
    for (const char *const *backend = all_backends(); *backend; backend++) {
        mg_attn_map map = {.queries = 1, .keys = 1};
        mg_attn_plan *plan = plan_make(&map, *backend);
        float q = 2, k = 3, v = 5, out = 0, lse = 0;
        mg_attn_call call = {.heads = 1,
                             .dim = 1,
                             .scale = 0.5f,
                             .q = {&q, 0, 0},
                             .k = {&k, 0, 0},
                             .v = {&v, 0, 0},
                             .out = {&out, 0, 0},
                             .lse = &lse};
        assert_int_equal(posix_memalign(&call.workspace, 64, (size_t)mg_attn_workspace_bytes(plan, &call, 0) + 1), 0);
        assert_int_equal(mg_attn_forward(plan, &call), 0);
        assert_true(out == 5 && fabsf(lse - 3) < 1e-6f);
        free(call.workspace);
        mg_attn_plan_destroy(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_sizes),
        cmocka_unit_test(wrong_inputs),
        cmocka_unit_test(outputs_that_overlap_themselves),
        cmocka_unit_test(wrong_dropout),
        cmocka_unit_test(missing_pointers),
        cmocka_unit_test(workspace_is_required),
        cmocka_unit_test(unknown_backend),
        cmocka_unit_test(workspace_past_32_bits),
        cmocka_unit_test(one_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
