/* Gradients of the bias, sums in fp32, repeatable to the bit: cases 15 to 21 of the attention cases. */
#include "problem.h"

enum { ALL_GRADIENTS = 1 << DQ | 1 << DK | 1 << DV | 1 << DTABLE | 1 << DVALUES | 1 << DKEY_BIAS };

static void case_15_each_gradient_alone(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++) {
        problem *p = problem_make((problem){.queries = 130,
                                            .keys = 100,
                                            .kind = kind,
                                            .dim = 8,
                                            .with = TABLE | KEY_BIAS | DLSE | (kind == MG_ATTN_NEAR ? VALUES : 0)});
        result all, r;
        for (const char *const *backend = all_backends(); *backend; backend++) {
            problem_run(&all, p, *backend, 1);
            for (int which = DQ; which < RESULTS; which++) {
                char what[64];
                snprintf(what, sizeof what, "%s: kind %d, result %d alone", *backend, kind, which);
                problem alone = *p;
                alone.skip = ALL_GRADIENTS & ~(1u << which);
                problem_run(&r, &alone, *backend, 1);
                result_near(what, &r, &all, 2e-6);
                result_free(&r);
            }
            problem none = *p;
            none.skip = ALL_GRADIENTS;
            problem_run(&r, &none, *backend, 1);
            result_free(&r);
            result_free(&all);
        }
        problem_free(p);
    }
}

static int64_t backward_workspace(const mg_attn_plan *plan, const problem *p, int dtable)
{
    float some[1] = {0};
    int64_t row = p->heads * p->dim;
    mg_attn_tensor q = {p->q, row, p->dim}, k = {p->k, row, p->dim};
    mg_attn_call call = {.heads = p->heads,
                         .dim = p->dim,
                         .scale = 1,
                         .threads = 2,
                         .q = q,
                         .k = k,
                         .v = k,
                         .out = q,
                         .dout = q,
                         .dq = q,
                         .dk = k,
                         .dv = k,
                         .lse = p->dlse,
                         .table = p->table,
                         .dtable = dtable ? some : NULL};
    int64_t bytes = mg_attn_workspace_bytes(plan, &call, 1);
    assert_true(bytes >= 0);
    return bytes;
}

static void case_15_no_gradient_costs_no_memory(void **state)
{
    (void)state;
    problem *p = problem_make((problem){.queries = 500, .kind = MG_ATTN_DENSE});
    mg_attn_map map;
    encoded *e = map_encode(&map, p);
    for (const char *const *backend = all_backends(); *backend; backend++) {
        mg_attn_plan *plan = plan_make(&map, *backend);
        assert_true(backward_workspace(plan, p, 0) <= backward_workspace(plan, p, 1));
        mg_attn_plan_destroy(plan);
    }
    map_free(e);
    problem_free(p);
}

/* One code: the bias is one number per head, and moves lse alone. */
static void case_16_table_of_one_code(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++) {
        problem *p = problem_make((problem){.queries = 130, .kind = kind, .codes = 1, .with = TABLE | DLSE});
        for (const char *const *backend = all_backends(); *backend; backend++) {
            result r;
            problem_run(&r, p, *backend, 1);
            for (int h = 0; h < 2; h++) {
                double sum = 0;
                for (int i = 0; i < 130; i++)
                    sum += (double)p->dlse[h * 130 + i];
                test_near_scaled(*backend, r.of[DTABLE] + h, &sum, 1, 1e-5, 1);
            }
            result_free(&r);
        }
        compare_backends("one code", p, 1e-5);
        problem_free(p);
    }
}

/* 100 tokens alone, and the same 100 with 92 padding tokens that are hidden from them in one of three ways. */
static void case_17_padding_does_not_reach_the_table(void **state)
{
    (void)state;
    enum { N = 100, PADDED = 192, ROW = 2 * 16 };
    for (int way = 0; way < 3; way++) {
        problem *alone = problem_make((problem){.queries = N, .kind = MG_ATTN_DENSE, .with = TABLE});
        problem *padded =
            problem_make((problem){.queries = PADDED,
                                   .kind = MG_ATTN_DENSE,
                                   .mask_far = way == 0,
                                   .pattern = RANDOM,
                                   .with = TABLE | (way == 1 ? KEY_BIAS : 0) | (way == 2 ? SEGMENTS : 0)});
        for (int i = 0; i < N; i++)
            for (int j = 0; j < PADDED; j++)
                if (j < N)
                    alone->codes_of[i * N + j] = padded->codes_of[i * PADDED + j] %= 7;
                else if (way == 0)
                    padded->codes_of[i * PADDED + j] = 7;
        memcpy(padded->q, alone->q, N * ROW * sizeof(float));
        memcpy(padded->k, alone->k, N * ROW * sizeof(float));
        memcpy(padded->v, alone->v, N * ROW * sizeof(float));
        memcpy(padded->dout, alone->dout, N * ROW * sizeof(float));
        memset(padded->dout + N * ROW, 0, (PADDED - N) * ROW * sizeof(float));
        for (int h = 0; h < 2; h++)
            for (int j = 0; j < PADDED; j++)
                padded->key_bias[h * PADDED + j] = j < N ? 0 : -INFINITY;
        const int64_t cuts[6] = {0, 0, N, PADDED, PADDED, PADDED};
        memcpy(padded->query_segments, cuts, sizeof cuts);
        memcpy(padded->key_segments, cuts, sizeof cuts);
        for (const char *const *backend = all_backends(); *backend; backend++) {
            result a, b;
            problem_run(&a, alone, *backend, 1);
            problem_run(&b, padded, *backend, 1);
            b.count[OUT] = b.count[DQ] = b.count[DK] = b.count[DV] = N * ROW;
            free(b.of[LSE]);
            free(b.of[DKEY_BIAS]);
            b.of[LSE] = b.of[DKEY_BIAS] = NULL;
            result_near(*backend, &b, &a, 2e-6);
            result_free(&a);
            result_free(&b);
        }
        problem_free(alone);
        problem_free(padded);
    }
}

static void case_18_sums_of_bf16_are_fp32(void **state)
{
    (void)state;
    problem *p = problem_make((problem){.queries = 700,
                                        .heads = 1,
                                        .dim = 8,
                                        .kind = MG_ATTN_DENSE,
                                        .codes = 3,
                                        .pattern = RANDOM,
                                        .with = TABLE | KEY_BIAS | DLSE | BF16 | OUT_FP32 | GRADIENTS_FP32});
    compare_backends("bf16 in, fp32 out", p, 1e-5);
    p->with = TABLE | KEY_BIAS | BF16 | GRADIENTS_FP32;
    compare_backends("bf16 in and out", p, 4.1e-3);
    problem_free(p);
}

static void case_18_bf16_of_any_dim(void **state)
{
    (void)state;
    const int dims[] = {1, 3, 8, 16, 20, 32, 64, 80, 128, 256};
    for (int d = 0; d < 10; d++)
        for (unsigned out = 0; out < 4; out++) {
            unsigned fp32 = (out & 1 ? OUT_FP32 : 0) | (out & 2 ? GRADIENTS_FP32 : 0);
            char what[64];
            snprintf(what, sizeof what, "bf16 dim %d, %u", dims[d], out);
            problem *p = problem_make((problem){.queries = 66,
                                                .keys = 75,
                                                .heads = 2,
                                                .dim = dims[d],
                                                .value_dim = dims[9 - d],
                                                .kind = MG_ATTN_DENSE,
                                                .with = TABLE | BF16 | fp32});
            compare_backends(what, p, out == 3 ? 1e-5 : 1e-2);
            problem_free(p);
        }
}

static void case_19_bitwise_equal_over_threads_and_runs(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        for (int variant = 0; variant < 3; variant++) {
            problem *p = problem_make(
                (problem){.queries = 300 + 7 * variant,
                          .keys = 270,
                          .heads = 3,
                          .dim = 8 + 5 * variant,
                          .kind = kind,
                          .pattern = variant == 2 ? BAND : MIXED,
                          .mask_far = variant > 0,
                          .with = TABLE | DLSE | (variant ? KEY_BIAS | SEGMENTS : 0) | (variant == 1 ? DROPOUT : 0) |
                                  (kind == MG_ATTN_NEAR ? VALUES : 0) | (variant == 2 ? BF16 | GRADIENTS_FP32 : 0)});
            for (const char *const *backend = tiled_backends(); *backend; backend++) {
                result one, r;
                problem_run(&one, p, *backend, 1);
                for (int threads = 1; threads <= 4; threads++) {
                    char what[64];
                    snprintf(what, sizeof what, "%s: kind %d, variant %d, %d threads", *backend, kind, variant,
                             threads);
                    problem_run(&r, p, *backend, threads);
                    result_same(what, &r, &one);
                    result_free(&r);
                }
                result_free(&one);
            }
            problem_free(p);
        }
}

static void case_20_code_out_of_range(void **state)
{
    (void)state;
    for (const char *const *backend = all_backends(); *backend; backend++)
        for (int kind = MG_ATTN_DENSE; kind <= MG_ATTN_TILES; kind++)
            for (int bad = 0; bad < 2; bad++) { /* one too large, and -1 as a byte */
                problem *p = problem_make((problem){.queries = 140, .keys = 135, .kind = kind, .codes = 9});
                mg_attn_map map;
                mg_attn_plan *plan;
                p->codes_of[77 * 135 + 101] = bad ? 255 : 9;
                encoded *e = map_encode(&map, p);
                assert_int_equal(mg_attn_use_backend(*backend), 0);
                assert_int_equal(mg_attn_plan_create(&plan, &map), -EINVAL);
                if (kind != MG_ATTN_TILES) {
                    assert_error_says("77");
                    assert_error_says(bad ? "255" : "9");
                }
                mg_attn_use_backend(NULL);
                map_free(e);
                problem_free(p);
            }
}

static void case_20_code_out_of_range_in_a_stream(void **state)
{
    (void)state;
    for (const char *const *backend = all_backends(); *backend; backend++)
        for (int threads = 1; threads < 4; threads += 2) {
            problem *p = problem_make(
                (problem){.queries = 140, .keys = 135, .kind = MG_ATTN_STREAM, .codes = 9, .stream_rows = 64});
            mg_attn_map map;
            encoded *e = map_encode(&map, p);
            mg_attn_plan *plan = plan_make(&map, *backend);
            int64_t row = 2 * 16;
            float *out = malloc((size_t)(140 * row) * sizeof *out), *lse = calloc(2 * 140, sizeof *lse);
            mg_attn_call call = {.heads = 2,
                                 .dim = 16,
                                 .scale = 1,
                                 .threads = threads,
                                 .q = {p->q, row, 16},
                                 .k = {p->k, row, 16},
                                 .v = {p->v, row, 16},
                                 .out = {out, row, 16},
                                 .lse = lse,
                                 .dout = {p->dout, row, 16},
                                 .dv = {p->k, row, 16}};
            int64_t bytes = mg_attn_workspace_bytes(plan, &call, 1) + mg_attn_workspace_bytes(plan, &call, 0);
            assert_int_equal(posix_memalign(&call.workspace, 64, (size_t)bytes + 1), 0);
            assert_int_equal(mg_attn_forward(plan, &call), 0);
            p->codes_of[77 * 135 + 101] = 9;
            assert_int_equal(mg_attn_forward(plan, &call), -EINVAL);
            assert_error_says("77");
            assert_int_equal(mg_attn_backward(plan, &call), -EINVAL);
            assert_error_says("77");
            free(call.workspace);
            free(out);
            free(lse);
            mg_attn_plan_destroy(plan);
            map_free(e);
            problem_free(p);
        }
}

/* With dout 0 and dlse 1 the gradient of the key bias is the column sum of P: all of it together is one per row. */
static void case_21_gradient_through_lse(void **state)
{
    (void)state;
    problem *p =
        problem_make((problem){.queries = 100, .keys = 150, .kind = MG_ATTN_DENSE, .with = TABLE | KEY_BIAS | DLSE});
    for (int x = 0; x < 200; x++)
        p->dlse[x] = 1;
    compare_backends("dlse and dout", p, 1e-5);
    memset(p->dout, 0, 100 * 2 * 16 * sizeof(float));
    for (const char *const *backend = all_backends(); *backend; backend++) {
        result r;
        problem_run(&r, p, *backend, 1);
        for (int h = 0; h < 2; h++) {
            double bias = 0, table = 0;
            for (int j = 0; j < 150; j++)
                bias += (double)r.of[DKEY_BIAS][h * 150 + j];
            for (int c = 0; c < 8; c++)
                table += (double)r.of[DTABLE][h * 8 + c];
            assert_true(fabs(bias - 100) < 1e-3 && fabs(table - 100) < 1e-3);
        }
        for (int64_t x = 0; x < r.count[DV]; x++)
            assert_true(r.of[DV][x] == 0);
        result_free(&r);
    }
    problem_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_15_each_gradient_alone),
        cmocka_unit_test(case_15_no_gradient_costs_no_memory),
        cmocka_unit_test(case_16_table_of_one_code),
        cmocka_unit_test(case_17_padding_does_not_reach_the_table),
        cmocka_unit_test(case_18_sums_of_bf16_are_fp32),
        cmocka_unit_test(case_18_bf16_of_any_dim),
        cmocka_unit_test(case_19_bitwise_equal_over_threads_and_runs),
        cmocka_unit_test(case_20_code_out_of_range),
        cmocka_unit_test(case_20_code_out_of_range_in_a_stream),
        cmocka_unit_test(case_21_gradient_through_lse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
