/* Strides, lengths, dims, ranges: cases 9 to 14 of the attention cases. Offsets past 2^31 (11) are in test_offsets.c.
 */
#include "problem.h"

/* Results do not depend on how tensors lie: bitwise, on each backend. */
static void same_in_any_layout(const char *what, problem wanted)
{
    problem *p = problem_make(wanted);
    const layout layouts[] = {{.lead = 1, .head_pad = 3, .token_pad = 5},
                              {.lead = 7, .head_pad = 1},
                              {.head_major = 1},
                              {.lead = 16, .head_pad = 16, .token_pad = 32},
                              {.head_major = 1, .lead = 3, .head_pad = 2, .token_pad = 9}};
    for (const char *const *backend = all_backends(); *backend; backend++) {
        char name[128];
        result packed, r;
        problem_run(&packed, p, *backend, 1);
        for (int x = 0; x < 5; x++) {
            problem laid = *p;
            laid.in = layouts[x];
            laid.out = layouts[(x + 1) % 5];
            laid.dout_in = layouts[(x + 2) % 5];
            laid.dense_pad = x * 7;
            snprintf(name, sizeof name, "%s on %s, layout %d", what, *backend, x);
            problem_run(&r, &laid, *backend, 1);
            result_same(name, &r, &packed);
            result_free(&r);
        }
        result_free(&packed);
    }
    problem_free(p);
}

static void case_09_any_strides_and_alignment(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        same_in_any_layout(
            "fp32",
            (problem){
                .queries = 75, .keys = 130, .dim = 8 + kind, .value_dim = 17, .kind = kind, .with = TABLE | DLSE});
}

static void case_09_any_strides_in_bf16(void **state)
{
    (void)state;
    for (unsigned out = 0; out <= OUT_FP32; out += OUT_FP32)
        for (unsigned gradients = 0; gradients <= GRADIENTS_FP32; gradients += GRADIENTS_FP32)
            same_in_any_layout("bf16", (problem){.queries = 75,
                                                 .keys = 130,
                                                 .dim = 12,
                                                 .value_dim = 17,
                                                 .kind = MG_ATTN_DENSE,
                                                 .with = TABLE | DLSE | BF16 | out | gradients});
}

/* All heads and all tokens share one row of k and v (stride 0): the same as copies of it. */
static void case_09_stride_0_broadcasts(void **state)
{
    (void)state;
    enum { N = 70, M = 90, H = 3, D = 16 };
    problem *p = problem_make((problem){.queries = N, .keys = M, .heads = H, .kind = MG_ATTN_DENSE, .with = TABLE});
    for (int x = 0; x < M * H * D; x++) {
        p->k[x] = p->k[x / (H * D) * H * D + x % D]; /* one head of keys */
        p->v[x] = p->v[x % (H * D)];                 /* one token of values */
    }
    for (const char *const *backend = all_backends(); *backend; backend++) {
        result copied;
        problem_run(&copied, p, *backend, 1);
        mg_attn_map map;
        encoded *e = map_encode(&map, p);
        mg_attn_plan *plan = plan_make(&map, *backend);
        float out[N * H * D], lse[H * N], dq[N * H * D], dk[M * H * D], dv[M * H * D], dtable[H * 8];
        mg_attn_call call = {.heads = H,
                             .dim = D,
                             .scale = p->scale,
                             .threads = 1,
                             .table = p->table,
                             .lse = lse,
                             .q = {p->q, H * D, D},
                             .k = {p->k, H * D, 0},
                             .v = {p->v, 0, D},
                             .out = {out, H * D, D},
                             .dout = {p->dout, H * D, D},
                             .dq = {dq, H * D, D},
                             .dk = {dk, H * D, D},
                             .dv = {dv, H * D, D},
                             .dtable = dtable};
        int64_t bytes = mg_attn_workspace_bytes(plan, &call, 1), more = mg_attn_workspace_bytes(plan, &call, 0);
        assert_true(bytes >= 0 && more >= 0);
        assert_int_equal(posix_memalign(&call.workspace, 64, (size_t)(bytes > more ? bytes : more) + 1), 0);
        assert_int_equal(mg_attn_forward(plan, &call), 0);
        assert_int_equal(mg_attn_backward(plan, &call), 0);
        test_same_bytes("out", out, copied.of[OUT], sizeof out);
        test_same_bytes("dq", dq, copied.of[DQ], sizeof dq);
        test_same_bytes("dk", dk, copied.of[DK], sizeof dk);
        test_same_bytes("dv", dv, copied.of[DV], sizeof dv);
        test_same_bytes("dtable", dtable, copied.of[DTABLE], sizeof dtable);
        free(call.workspace);
        mg_attn_plan_destroy(plan);
        map_free(e);
        result_free(&copied);
    }
    problem_free(p);
}

/* Rows of dim are contiguous by contract, so there is no inner stride to get wrong; dout may lie unlike out. */
static void case_10_dout_laid_out_unlike_out(void **state)
{
    (void)state;
    problem *p =
        problem_make((problem){.queries = 67, .kind = MG_ATTN_NEAR, .with = TABLE | VALUES | DROPOUT, .pattern = BAND});
    for (const char *const *backend = all_backends(); *backend; backend++) {
        result packed, r;
        problem_run(&packed, p, *backend, 1);
        p->dout_in = (layout){.head_major = 1, .lead = 2, .head_pad = 5};
        p->out = (layout){.token_pad = 3};
        problem_run(&r, p, *backend, 1);
        p->dout_in = p->out = (layout){0};
        result_same(*backend, &r, &packed);
        result_free(&packed);
        result_free(&r);
    }
    problem_free(p);
}

static const int lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129};

enum { LENGTHS = sizeof lengths / sizeof *lengths };

static void case_12_lengths(void **state)
{
    (void)state;
    for (int n = 0; n < LENGTHS; n++)
        for (int m = 0; m < LENGTHS; m++) {
            int kind = (n + m) % 5, mask = kind && (n * 3 + m) % 4 == 0;
            char what[64];
            snprintf(what, sizeof what, "%d x %d, kind %d, mask %d", lengths[n], lengths[m], kind, mask);
            problem *p = problem_make((problem){.queries = lengths[n],
                                                .keys = lengths[m],
                                                .heads = 1,
                                                .dim = 8,
                                                .kind = kind,
                                                .mask_far = mask,
                                                .with = TABLE | KEY_BIAS | DLSE,
                                                .seed = (uint64_t)(n * 11 + m)});
            compare_backends(what, p, 1e-5);
            problem_free(p);
        }
}

static void case_12_a_thousand(void **state)
{
    (void)state;
    for (int mask = 0; mask < 2; mask++) {
        problem *p = problem_make((problem){.queries = 1000,
                                            .keys = mask ? 999 : 1000,
                                            .heads = 1,
                                            .dim = 8,
                                            .mask_far = mask,
                                            .kind = mask ? MG_ATTN_TILES : MG_ATTN_DENSE,
                                            .with = TABLE});
        compare_backends("1000", p, 1e-5);
        problem_free(p);
    }
}

/* No queries, or no keys, at all: nothing to write, or rows that see nothing. */
static void case_12_empty(void **state)
{
    (void)state;
    for (const char *const *backend = all_backends(); *backend; backend++)
        for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
            for (int side = 0; side < 3; side++) {
                problem *p = problem_make((problem){.queries = 80, .keys = 70, .kind = kind, .with = TABLE | KEY_BIAS});
                if (side != 1)
                    p->query_begin = p->query_end = 30;
                if (side != 0)
                    p->key_begin = p->key_end = 30;
                result r;
                problem_run(&r, p, *backend, 2);
                for (int which = 0; which < RESULTS; which++)
                    for (int64_t x = 0; r.of[which] && which != DVALUES && x < r.count[which]; x++)
                        if (r.of[which][x] != (which == LSE ? -INFINITY : 0.f))
                            fail_msg("%s: kind %d, side %d: result %d is %g", *backend, kind, side, which,
                                     (double)r.of[which][x]);
                result_free(&r);
                problem_free(p);
            }
}

static void case_12_maps_without_tokens(void **state)
{
    (void)state;
    for (const char *const *backend = all_backends(); *backend; backend++)
        for (int side = 0; side < 3; side++) {
            int64_t starts[6] = {0};
            float some[64] = {0}, out[64], lse[4];
            mg_attn_map map = {.kind = side == 2 ? MG_ATTN_NEAR : MG_ATTN_NONE,
                               .queries = side == 0 ? 3 : 0,
                               .keys = side == 1 ? 3 : 0,
                               .near_starts = starts};
            mg_attn_plan *plan = plan_make(&map, *backend);
            mg_attn_tensor t = {some, 8, 8};
            mg_attn_call call = {
                .heads = 1, .dim = 8, .scale = 1, .q = t, .k = t, .v = t, .out = {out, 8, 8}, .lse = lse};
            _Alignas(64) static char space[1 << 20];
            assert_true(mg_attn_workspace_bytes(plan, &call, 0) <= (int64_t)sizeof space);
            call.workspace = space;
            assert_int_equal(mg_attn_forward(plan, &call), 0);
            for (int x = 0; side == 0 && x < 24; x++)
                assert_true(out[x] == 0 && lse[x / 8] == -INFINITY);
            mg_attn_plan_destroy(plan);
        }
}

/* Packed graphs of 0, 1 and many nodes; keys cut unlike queries. */
static void case_12_segments_of_any_length(void **state)
{
    (void)state;
    const int64_t cuts[][6] = {{0, 0, 1, 2, 2, 200},   {0, 64, 64, 128, 192, 200}, {0, 1, 66, 67, 199, 200},
                               {0, 0, 0, 0, 200, 200}, {0, 30, 60, 63, 65, 200},   {0, 200, 200, 200, 200, 200}};
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        for (int c = 0; c < 6; c++) {
            problem *p = problem_make((problem){.queries = 200,
                                                .heads = 1,
                                                .dim = 8,
                                                .kind = kind,
                                                .seed = (uint64_t)c,
                                                .with = TABLE | DLSE | SEGMENTS | (kind == MG_ATTN_NEAR ? VALUES : 0)});
            memcpy(p->query_segments, cuts[c], sizeof cuts[c]);
            memcpy(p->key_segments, cuts[kind & 1 ? c : (c + 1) % 6], sizeof cuts[c]);
            char what[64];
            snprintf(what, sizeof what, "kind %d, cut %d", kind, c);
            compare_backends(what, p, 1e-5);
            problem_free(p);
        }
}

static void case_13_head_and_value_dims(void **state)
{
    (void)state;
    const int dims[] = {1, 3, 8, 16, 24, 32, 64, 80, 128, 256}, values[] = {3, 1, 16, 8, 32, 256, 64, 24, 80, 128};
    for (int d = 0; d < 10; d++)
        for (int unlike = 0; unlike < 2; unlike++) {
            char what[64];
            snprintf(what, sizeof what, "dim %d, value dim %d", dims[d], unlike ? values[d] : dims[d]);
            problem *p = problem_make((problem){.queries = 70,
                                                .keys = 133,
                                                .heads = 2,
                                                .dim = dims[d],
                                                .value_dim = unlike ? values[d] : 0,
                                                .kind = unlike ? MG_ATTN_NEAR : MG_ATTN_DENSE,
                                                .pattern = unlike ? BAND : MIXED,
                                                .with = TABLE | KEY_BIAS | DLSE | (unlike ? VALUES : 0),
                                                .seed = (uint64_t)d});
            compare_backends(what, p, 1e-5);
            problem_free(p);
        }
}

static void case_13_every_dim(void **state)
{
    (void)state;
    for (int dim = 1; dim <= MG_ATTN_MAX_DIM; dim += dim < 70 ? 1 : 31) {
        char what[64];
        snprintf(what, sizeof what, "dim %d", dim);
        problem *p = problem_make((problem){.queries = 18,
                                            .keys = 21,
                                            .heads = 1,
                                            .dim = dim,
                                            .value_dim = 257 - dim,
                                            .kind = MG_ATTN_DENSE,
                                            .with = TABLE});
        compare_backends(what, p, 3e-5); /* dtable: few rows, of values with up to 256 terms */
        problem_free(p);
    }
}

/* Rows of a range of queries are those of the whole, for any first query; keys are all used. */
static void case_14_ranges_of_queries_equal_the_whole(void **state)
{
    (void)state;
    const int64_t ranges[][2] = {{0, 1},    {0, 64},    {1, 65},    {63, 64}, {63, 150},
                                 {64, 128}, {100, 150}, {149, 150}, {17, 133}};
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        for (int masked = 0; masked <= (kind != MG_ATTN_NONE); masked++) {
            problem *p = problem_make((problem){.queries = 150,
                                                .keys = 140,
                                                .dim = 8,
                                                .kind = kind,
                                                .mask_far = masked,
                                                .with = TABLE | DROPOUT | DLSE | (masked ? SEGMENTS : 0) |
                                                        (kind == MG_ATTN_NEAR ? VALUES : 0)});
            for (const char *const *backend = all_backends(); *backend; backend++) {
                result whole;
                problem_run(&whole, p, *backend, 1);
                for (int x = 0; x < 9; x++) {
                    int64_t begin = ranges[x][0], count = ranges[x][1] - begin, row = 2 * 8;
                    problem part = *p;
                    part.query_begin = begin;
                    part.query_end = ranges[x][1];
                    result r, expected = {.of = {whole.of[OUT] + begin * row, NULL, whole.of[DQ] + begin * row},
                                          .count = {count * row, 0, count * row}};
                    problem_run(&r, &part, *backend, 1);
                    char what[64];
                    snprintf(what, sizeof what, "%s: kind %d, queries %d..%d", *backend, kind, (int)begin,
                             (int)part.query_end);
                    result_near(what, &r, &expected, 1e-5);
                    result_free(&r);
                }
                result_free(&whole);
            }
            problem_free(p);
        }
}

/* Pieces of queries x keys at odd places: gradients with the whole's lse and out add up to the whole's. */
static void case_14_pieces_at_any_offset_add_up(void **state)
{
    (void)state;
    const int64_t query_cuts[] = {0, 37, 101, 150}, key_cuts[] = {0, 1, 90, 140};
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++) {
        problem *p =
            problem_make((problem){.queries = 150,
                                   .keys = 140,
                                   .dim = 8,
                                   .kind = kind,
                                   .with = TABLE | KEY_BIAS | DROPOUT | DLSE | (kind == MG_ATTN_NEAR ? VALUES : 0)});
        for (const char *const *backend = all_backends(); *backend; backend++) {
            result whole, sum, r;
            problem_run(&whole, p, *backend, 1);
            problem_run(&sum, p, *backend, 1);
            for (int which = DQ; which < RESULTS; which++)
                for (int64_t i = 0; sum.of[which] && i < sum.count[which]; i++)
                    sum.of[which][i] = 0;
            for (int piece = 0; piece < 9; piece++) {
                problem part = *p;
                part.whole = &whole;
                part.query_begin = query_cuts[piece / 3];
                part.query_end = query_cuts[piece / 3 + 1];
                part.key_begin = key_cuts[piece % 3];
                part.key_end = key_cuts[piece % 3 + 1];
                problem_run(&r, &part, *backend, 1);
                int64_t row = 2 * 8, nk = plan_keys(&part);
                const int64_t first[RESULTS] = {
                    [DQ] = part.query_begin * row, [DK] = part.key_begin * row, [DV] = part.key_begin * row};
                for (int which = DQ; which <= DVALUES; which++)
                    for (int64_t i = 0; r.of[which] && i < r.count[which]; i++)
                        sum.of[which][first[which] + i] += r.of[which][i];
                for (int64_t i = 0; i < 2 * nk; i++)
                    sum.of[DKEY_BIAS][i / nk * 140 + part.key_begin + i % nk] += r.of[DKEY_BIAS][i];
                result_free(&r);
            }
            result_near(*backend, &sum, &whole, 1e-5);
            result_free(&sum);
            result_free(&whole);
        }
        problem_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_09_any_strides_and_alignment),
        cmocka_unit_test(case_09_any_strides_in_bf16),
        cmocka_unit_test(case_09_stride_0_broadcasts),
        cmocka_unit_test(case_10_dout_laid_out_unlike_out),
        cmocka_unit_test(case_12_lengths),
        cmocka_unit_test(case_12_a_thousand),
        cmocka_unit_test(case_12_empty),
        cmocka_unit_test(case_12_maps_without_tokens),
        cmocka_unit_test(case_12_segments_of_any_length),
        cmocka_unit_test(case_13_head_and_value_dims),
        cmocka_unit_test(case_13_every_dim),
        cmocka_unit_test(case_14_ranges_of_queries_equal_the_whole),
        cmocka_unit_test(case_14_pieces_at_any_offset_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
