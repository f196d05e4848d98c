/* The tiled backends against the reference, over what their code paths split on: number of codes, classes of tiles,
 * dims, options together; and streams. */
#include "problem.h"

static const unsigned everything = TABLE | KEY_BIAS | DROPOUT | DLSE;

/* Lookups go by 16 and 32 entries, table gradients by how many codes a tile holds. */
static void any_number_of_codes(void **state)
{
    (void)state;
    const int codes[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129, 200, 255, 256};
    for (int n = 0; n < 19; n++)
        for (int look = MIXED; look <= RANDOM; look++) {
            int kind = MG_ATTN_DENSE + (n + 2 * look) % 4;
            for (int mask = 0; mask < 2; mask++) {
                char what[64];
                snprintf(what, sizeof what, "%d codes, kind %d, pattern %d, mask %d", codes[n], kind, look, mask);
                problem *p = problem_make((problem){.queries = 131,
                                                    .keys = 150,
                                                    .heads = 1,
                                                    .dim = 8,
                                                    .codes = codes[n],
                                                    .kind = kind,
                                                    .pattern = look,
                                                    .mask_far = mask,
                                                    .with = TABLE | DLSE,
                                                    .seed = (uint64_t)n});
                compare_backends(what, p, 1e-5);
                for (int x = 0; x < p->codes; x++)
                    p->table[x] *= 40; /* maxima that rise and fall */
                compare_backends(what, p, 1e-4);
                p->table[n % p->codes] = -2e30f; /* too large for log2 units */
                compare_backends(what, p, 1e-4);
                problem_free(p);
            }
        }
}

/* Kernels of their own take bf16: the same choices there, results before they are rounded. */
static void bf16_of_any_codes_and_dims(void **state)
{
    (void)state;
    const int codes[] = {1, 8, 16, 17, 32, 33, 256}, dims[] = {8, 16, 40, 64, 80, 128};
    for (int n = 0; n < 42; n++) {
        char what[80];
        const int kind = MG_ATTN_NONE + n % 5;
        snprintf(what, sizeof what, "bf16, %d codes, dim %d, kind %d", codes[n % 7], dims[n / 7], kind);
        problem *p = problem_make((problem){.queries = 131,
                                            .keys = 150 + n,
                                            .dim = dims[n / 7],
                                            .value_dim = n % 3 == 1 ? 24 : 0,
                                            .codes = codes[n % 7],
                                            .kind = kind,
                                            .pattern = n % 4 == 3 ? RANDOM : MIXED,
                                            .mask_far = n % 2 && kind,
                                            .with = TABLE | DLSE | BF16 | OUT_FP32 | GRADIENTS_FP32 |
                                                    (n % 3 == 2 ? SEGMENTS : 0) |
                                                    (kind == MG_ATTN_NEAR && n % 4 == 0 ? VALUES : 0),
                                            .seed = (uint64_t)n});
        compare_backends(what, p, 1e-5);
        for (int x = 0; x < p->heads * p->codes; x++)
            p->table[x] *= 40; /* maxima that rise and fall */
        compare_backends(what, p, 1e-4);
        problem_free(p);
    }
}

/* Where results are rounded to bf16, P and dS may be as well: all of a call, with and without dropout. */
static void bf16_in_and_out_of_any_codes_and_dims(void **state)
{
    (void)state;
    const int codes[] = {1, 8, 16, 17, 32, 33, 256}, dims[] = {9, 16, 31, 32, 40, 64, 80, 128};
    for (int n = 0; n < 56; n++) {
        char what[80];
        const int kind = MG_ATTN_NONE + n % 5;
        snprintf(what, sizeof what, "bf16 in and out, %d codes, dim %d, kind %d", codes[n % 7], dims[n / 7], kind);
        problem *p = problem_make((problem){.queries = 131,
                                            .keys = 150 + n,
                                            .dim = dims[n / 7],
                                            .value_dim = n % 3 == 1 ? 27 : 0,
                                            .codes = codes[n % 7],
                                            .kind = kind,
                                            .pattern = n % 4 == 3 ? RANDOM : MIXED,
                                            .mask_far = n % 2 && kind,
                                            .with = TABLE | DLSE | BF16 | (n % 3 == 2 ? SEGMENTS : 0) |
                                                    (n % 4 == 1 ? DROPOUT : 0) |
                                                    (kind == MG_ATTN_NEAR && n % 4 == 0 ? VALUES : 0),
                                            .skip = 1u << DKEY_BIAS, /* which goes the way of fp32 */
                                            .seed = (uint64_t)n});
        compare_backends(what, p, 1e-2);
        for (int x = 0; x < p->heads * p->codes; x++)
            p->table[x] *= 40; /* maxima that rise and fall */
        compare_backends(what, p, 1e-2);
        problem_free(p);
    }
}

static void drop_forward(result *r)
{
    free(r->of[OUT]);
    free(r->of[LSE]);
    r->of[OUT] = r->of[LSE] = NULL;
}

/* Gradients of all in bf16 (but for that of a key bias, which goes the way of fp32), from one forward of the reference:
 * out is rounded, and rounds elsewhere by backend. */
static void bf16_gradients_of_any_codes_and_dims(void **state)
{
    (void)state;
    const int codes[] = {1, 8, 17, 32, 33, 200}, dims[] = {8, 16, 40, 64, 80, 128};
    for (int n = 0; n < 36; n++) {
        char what[80];
        const int kind = MG_ATTN_NONE + n % 5;
        result forward, expected, actual, threaded;
        problem *p = problem_make((problem){.queries = 100 + n,
                                            .keys = 220 - n,
                                            .dim = dims[n / 6],
                                            .value_dim = n % 3 == 1 ? 24 : 0,
                                            .heads = 1 + n % 3,
                                            .codes = codes[n % 6],
                                            .kind = kind,
                                            .pattern = n % 4 == 3 ? RANDOM : MIXED,
                                            .mask_far = n % 2 && kind && codes[n % 6] > 1,
                                            .with = TABLE | DLSE | BF16 | GRADIENTS_FP32 | (n % 3 == 2 ? SEGMENTS : 0),
                                            .skip = 1u << DKEY_BIAS | (n % 7 == 5 ? 1u << (DQ + n / 7 % 3) : 0),
                                            .seed = (uint64_t)n});
        if (n % 9 == 8)
            p->table[n % p->codes] = -2e30f; /* too large for log2 units: done in fp32 after all */
        problem_run(&forward, p, "reference", 1);
        p->whole = &forward;
        problem_run(&expected, p, "reference", 1);
        drop_forward(&expected);
        for (const char *const *backend = tiled_backends(); *backend; backend++) {
            snprintf(what, sizeof what, "%s: %d codes, dim %d, kind %d", *backend, p->codes, p->dim, kind);
            problem_run(&actual, p, *backend, 1);
            problem_run(&threaded, p, *backend, n % 2 ? 3 : 16);
            result_same(what, &threaded, &actual);
            drop_forward(&actual);
            result_near(what, &actual, &expected, 2e-5);
            result_free(&actual);
            result_free(&threaded);
        }
        result_free(&expected);
        result_free(&forward);
        problem_free(p);
    }
}

/* A row's bits in bf16 do not depend on the queries beside it, nor on threads. */
static void bf16_rows_are_their_own(void **state)
{
    (void)state;
    problem *p = problem_make((problem){.queries = 300,
                                        .dim = 40,
                                        .kind = MG_ATTN_DENSE,
                                        .with = TABLE | BF16,
                                        .skip = 1u << DQ | 1u << DK | 1u << DV | 1u << DTABLE});
    const char *const *const backends = tiled_backends();
    for (int n = 0; backends[n / 2]; n++) {
        const char *const *backend = &backends[n / 2];
        p->with = TABLE | BF16 | (n % 2 ? OUT_FP32 | GRADIENTS_FP32 : 0);
        result whole, part, threaded;
        p->query_begin = p->query_end = 0;
        problem_run(&whole, p, *backend, 1);
        problem_run(&threaded, p, *backend, 3);
        result_same("three threads", &threaded, &whole);
        p->query_begin = 37;
        p->query_end = 251;
        problem_run(&part, p, *backend, 1);
        assert_memory_equal(part.of[OUT], whole.of[OUT] + 37 * 2 * 40, (251 - 37) * 2 * 40 * sizeof(float));
        result_free(&whole);
        result_free(&part);
        result_free(&threaded);
    }
    problem_free(p);
}

static void all_256_codes_with_none_to_spare(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_DENSE; kind <= MG_ATTN_STREAM; kind++) { /* hidden pairs need no code of their own */
        problem *p = problem_make((problem){.queries = 131,
                                            .keys = 150,
                                            .dim = 8,
                                            .codes = 256,
                                            .kind = kind,
                                            .pattern = RANDOM,
                                            .with = everything | SEGMENTS});
        compare_backends("256 codes, segments", p, 1e-5);
        problem_free(p);
    }
}

static void every_option_on_every_kind(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        for (unsigned options = 0; options < 64; options++) {
            int dim = (const int[]){8, 16, 5, 32}[options % 4];
            unsigned with =
                (options & everything) | (options & 2 && kind == MG_ATTN_NEAR ? VALUES : 0) | (options & SEGMENTS);
            char what[64];
            snprintf(what, sizeof what, "kind %d, options %u", kind, with);
            problem *p = problem_make((problem){.queries = 97,
                                                .keys = 70 + (int)options,
                                                .heads = 1,
                                                .dim = dim,
                                                .kind = kind,
                                                .seed = options,
                                                .mask_far = options % 3 == 1 && kind,
                                                .pattern = options % 5 == 4 ? BAND : MIXED,
                                                .with = with});
            compare_backends(what, p, 1e-5);
            problem_free(p);
        }
}

static void many_heads_and_tiles(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_DENSE; kind <= MG_ATTN_STREAM; kind++) {
        problem *p = problem_make((problem){.queries = 400,
                                            .keys = 350,
                                            .heads = kind == MG_ATTN_DENSE ? 9 : 3,
                                            .dim = 8,
                                            .kind = kind,
                                            .mask_far = kind == MG_ATTN_NEAR,
                                            .with = everything | SEGMENTS,
                                            .stream_rows = 128});
        compare_backends("many heads", p, 1e-5);
        problem_free(p);
    }
}

static void table_far_apart(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_DENSE; kind <= MG_ATTN_STREAM;
         kind++) { /* a later tile may raise the maximum by any step */
        problem *p = problem_make(
            (problem){.queries = 130, .keys = 300, .heads = 2, .dim = 8, .kind = kind, .with = TABLE | KEY_BIAS});
        for (int x = 0; x < 16; x++)
            p->table[x] *= 30;
        for (int j = 0; j < 600; j++)
            p->key_bias[j] = (float)(j % 300 / 64) * (j < 300 ? 40 : -40);
        compare_backends("rising and falling maxima", p, 3e-5);
        problem_free(p);
    }
}

/* Codes are written for all heads at once: calls do not grow with heads, and stay within the rows asked for. */
static void stream_is_called_once_per_block(void **state)
{
    (void)state;
    for (const char *const *backend = tiled_backends(); *backend; backend++) {
        int64_t calls[2];
        for (int many = 0; many < 2; many++) {
            problem *p = problem_make((problem){.queries = 700,
                                                .keys = 300,
                                                .heads = many ? 8 : 1,
                                                .dim = 8,
                                                .kind = MG_ATTN_STREAM,
                                                .stream_rows = 128,
                                                .with = TABLE});
            mg_attn_map map;
            encoded *e = map_encode(&map, p);
            mg_attn_plan *plan = plan_make(&map, *backend);
            int64_t row = p->heads * 8;
            float *out = malloc((size_t)(700 * row) * sizeof *out);
            mg_attn_call call = {.heads = p->heads,
                                 .dim = 8,
                                 .scale = 1,
                                 .threads = 2,
                                 .q = {p->q, row, 8},
                                 .k = {p->k, row, 8},
                                 .v = {p->v, row, 8},
                                 .out = {out, row, 8},
                                 .table = p->table};
            assert_int_equal(posix_memalign(&call.workspace, 64, (size_t)mg_attn_workspace_bytes(plan, &call, 0) + 1),
                             0);
            int64_t before = stream_calls(e);
            assert_int_equal(mg_attn_forward(plan, &call), 0);
            calls[many] = stream_calls(e) - before;
            free(call.workspace);
            free(out);
            mg_attn_plan_destroy(plan);
            map_free(e);
            problem_free(p);
        }
        assert_int_equal(calls[0], calls[1]);
    }
}

static void streams_of_any_rows(void **state)
{
    (void)state;
    for (int rows = 0; rows <= 1024; rows = rows ? rows * 4 : 64)
        for (int mask = 0; mask < 2; mask++) {
            problem *p = problem_make((problem){.queries = 333,
                                                .keys = 222,
                                                .dim = 8,
                                                .kind = MG_ATTN_STREAM,
                                                .stream_rows = rows,
                                                .mask_far = mask,
                                                .query_begin = 21,
                                                .query_end = 330,
                                                .key_begin = 3,
                                                .key_end = 211,
                                                .with = everything | SEGMENTS});
            compare_backends("stream", p, 1e-5);
            problem_free(p);
        }
}

static int give_up(void *context, int thread, int64_t q0, int64_t nq, int64_t k0, int64_t nk, uint8_t *codes,
                   int64_t stride)
{
    (void)context, (void)thread, (void)k0;
    for (int64_t i = 0; i < nq; i++)
        memset(codes + i * stride, 0, (size_t)nk);
    return q0 + nq > 200 ? 5 : 0;
}

static void stream_that_gives_up_cancels_the_call(void **state)
{
    (void)state;
    problem *p = problem_make((problem){.queries = 300, .dim = 8});
    for (const char *const *backend = all_backends(); *backend; backend++)
        for (int threads = 1; threads <= 3; threads++) {
            mg_attn_map map = {
                .kind = MG_ATTN_STREAM, .queries = 300, .keys = 300, .stream = give_up, .stream_rows = 64};
            mg_attn_plan *plan = plan_make(&map, *backend);
            mg_attn_tensor t = {p->q, 16, 8};
            mg_attn_call call = {.heads = 2,
                                 .dim = 8,
                                 .scale = 1,
                                 .threads = threads,
                                 .q = t,
                                 .k = t,
                                 .v = t,
                                 .out = {p->k, 16, 8},
                                 .lse = p->dlse,
                                 .dout = {p->dout, 16, 8},
                                 .dq = {p->v, 16, 8}};
            int64_t bytes = mg_attn_workspace_bytes(plan, &call, 1) + mg_attn_workspace_bytes(plan, &call, 0);
            assert_int_equal(posix_memalign(&call.workspace, 64, (size_t)bytes + 1), 0);
            assert_int_equal(mg_attn_forward(plan, &call), -ECANCELED);
            assert_error_says("stream");
            assert_int_equal(mg_attn_backward(plan, &call), -ECANCELED);
            free(call.workspace);
            mg_attn_plan_destroy(plan);
        }
    problem_free(p);
}

/* Counts of seen pairs and classes agree with the codes. */
static void description_of_a_plan(void **state)
{
    (void)state;
    for (const char *const *backend = all_backends(); *backend; backend++)
        for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
            for (unsigned with = 0; with <= SEGMENTS; with += SEGMENTS) {
                problem *p = problem_make((problem){.queries = 200,
                                                    .keys = 190,
                                                    .kind = kind,
                                                    .mask_far = kind != MG_ATTN_NONE,
                                                    .with = with,
                                                    .query_begin = 7,
                                                    .query_end = 180});
                mg_attn_map map;
                encoded *e = map_encode(&map, p);
                mg_attn_plan *plan = plan_make(&map, *backend);
                mg_attn_plan_info info;
                mg_attn_plan_describe(&info, plan);
                int64_t seen = 0;
                for (int64_t i = 7; i < 180; i++)
                    for (int64_t j = 0; j < 190; j++)
                        seen += pair_seen(p, i, j);
                assert_string_equal(info.backend, *backend);
                assert_true(info.plan_bytes > 0);
                if (kind == MG_ATTN_STREAM)
                    assert_true(info.seen_pairs == -1 && info.tiles_skip == -1 && info.tiles_codes == -1);
                else
                    assert_int_equal(info.seen_pairs, seen);
                mg_attn_plan_destroy(plan);
                map_free(e);
                problem_free(p);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_codes),
        cmocka_unit_test(bf16_of_any_codes_and_dims),
        cmocka_unit_test(bf16_in_and_out_of_any_codes_and_dims),
        cmocka_unit_test(bf16_gradients_of_any_codes_and_dims),
        cmocka_unit_test(bf16_rows_are_their_own),
        cmocka_unit_test(all_256_codes_with_none_to_spare),
        cmocka_unit_test(every_option_on_every_kind),
        cmocka_unit_test(many_heads_and_tiles),
        cmocka_unit_test(table_far_apart),
        cmocka_unit_test(stream_is_called_once_per_block),
        cmocka_unit_test(streams_of_any_rows),
        cmocka_unit_test(stream_that_gives_up_cancels_the_call),
        cmocka_unit_test(description_of_a_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
