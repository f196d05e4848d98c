/* Merging, and rings of it: cases 25 to 28 of the attention cases. */
#include "problem.h"

#include <float.h>

static void case_25_weights_are_natural_logarithms(void **state)
{
    (void)state;
    float out[2] = {4, 8}, part[2] = {8, -4}, lse = 0, part_lse = logf(3);
    assert_int_equal(mg_attn_merge((mg_attn_tensor){out, 2, 2}, &lse, (mg_attn_tensor){part, 2, 2}, &part_lse, 1, 1, 2),
                     0);
    test_near("lse", &lse, (const double[]){log(4)}, 1, 1e-7);
    test_near("out", out, (const double[]){7, -1}, 2, 2e-7);
}

static void case_25_no_exponential_overflows(void **state)
{
    (void)state;
    const float pairs[][2] = {{1e4f, -1e4f},        {-1e4f, 1e4f}, {3e38f, -3e38f}, {-FLT_MAX, FLT_MAX},
                              {-2e4f, -2e4f - 100}, {90, 89},      {-1e30f, -1e30f}};
    for (size_t n = 0; n < sizeof pairs / sizeof *pairs; n++) {
        float out[3] = {1, 2, 3}, part[3] = {-1, 5, 1e30f}, lse = pairs[n][0], part_lse = pairs[n][1];
        double most = fmax((double)lse, (double)part_lse), a = exp((double)lse - most),
               b = exp((double)part_lse - most);
        const double expected[3] = {(a - b) / (a + b), (2 * a + 5 * b) / (a + b), (3 * a + 1e30 * b) / (a + b)};
        const double expected_lse = most + log(a + b);
        assert_int_equal(
            mg_attn_merge((mg_attn_tensor){out, 3, 3}, &lse, (mg_attn_tensor){part, 3, 3}, &part_lse, 1, 1, 3), 0);
        for (int d = 0; d < 3; d++)
            test_near("out", out + d, expected + d, 1, 3e-7);
        test_near("lse", &lse, &expected_lse, 1, 1e-7);
    }
}

/* An empty part changes no bit; into an empty row the part is copied, whatever the row held; two empties stay empty. */
static void case_25_empty_partials(void **state)
{
    (void)state;
    float out[4] = {1.1f, -2.2f, 3.3f, 4.4f}, part[4] = {NAN, NAN, INFINITY, 5}, lse = 0.7f, empty = -INFINITY;
    const float before[4] = {1.1f, -2.2f, 3.3f, 4.4f};
    mg_attn_tensor to = {out, 4, 4}, from = {part, 4, 4};
    assert_int_equal(mg_attn_merge(to, &lse, from, &empty, 1, 1, 4), 0);
    assert_memory_equal(out, before, sizeof out);
    assert_true(lse == 0.7f);
    float garbage[4] = {NAN, INFINITY, -1, 0}, none = -INFINITY;
    assert_int_equal(mg_attn_merge((mg_attn_tensor){garbage, 4, 4}, &none, to, &lse, 1, 1, 4), 0);
    assert_memory_equal(garbage, before, sizeof out);
    assert_true(none == 0.7f);
    none = -INFINITY;
    assert_int_equal(mg_attn_merge(from, &none, (mg_attn_tensor){garbage, 4, 4}, &empty, 1, 1, 4), 0);
    for (int d = 0; d < 4; d++)
        assert_true(part[d] == 0);
    assert_true(none == -INFINITY);
}

static void case_25_nan_is_not_lost(void **state)
{
    (void)state;
    float out[1] = {NAN}, part[1] = {1}, lse = NAN, part_lse = 0;
    assert_int_equal(mg_attn_merge((mg_attn_tensor){out, 1, 1}, &lse, (mg_attn_tensor){part, 1, 1}, &part_lse, 1, 1, 1),
                     0);
    assert_true(isnan(out[0]) && isnan(lse));
    out[0] = 1, lse = 0, part[0] = NAN, part_lse = NAN;
    assert_int_equal(mg_attn_merge((mg_attn_tensor){out, 1, 1}, &lse, (mg_attn_tensor){part, 1, 1}, &part_lse, 1, 1, 1),
                     0);
    assert_true(isnan(out[0]) && isnan(lse));
}

static void wrong_arguments_of_merge(void **state)
{
    (void)state;
    float x[4] = {0};
    mg_attn_tensor t = {x, 1, 1}, none = {0};
    assert_int_equal(mg_attn_merge(t, x, t, x, -1, 1, 1), -EINVAL);
    assert_error_says("-1 queries");
    assert_int_equal(mg_attn_merge(t, x, t, x, 1, 0, 1), -EINVAL);
    assert_int_equal(mg_attn_merge(t, x, t, x, 1, 1, 0), -EINVAL);
    assert_int_equal(mg_attn_merge(t, x, t, x, 1, 1, 257), -EINVAL);
    assert_error_says("257");
    assert_int_equal(mg_attn_merge(none, x, t, x, 1, 1, 1), -EINVAL);
    assert_error_says("out is NULL");
    assert_int_equal(mg_attn_merge(t, NULL, t, x, 1, 1, 1), -EINVAL);
    assert_int_equal(mg_attn_merge(t, x, none, x, 1, 1, 1), -EINVAL);
    assert_int_equal(mg_attn_merge(t, x, t, NULL, 1, 1, 1), -EINVAL);
    assert_int_equal(mg_attn_merge(none, NULL, none, NULL, 0, 1, 1), 0);
}

/* --- rings: rank r holds the queries and keys [cuts[r], cuts[r+1]) --- */

static void add(float *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

/* The ring of one process: each rank's queries meet each shard of keys, merge, and run back with the merged lse and
 * out. */
static void ring(result *r, const problem *p, const char *backend, int ranks, const int64_t *query_cuts,
                 const int64_t *key_cuts)
{
    int64_t h = p->heads, row = h * p->dim, value_row = h * p->value_dim;
    problem_run(r, p, backend, 1); /* for its arrays alone */
    for (int which = 0; which < RESULTS; which++)
        for (int64_t i = 0; r->of[which] && i < r->count[which]; i++)
            r->of[which][i] = which == LSE ? -INFINITY : which == OUT ? NAN : 0;
    result merged = {.of = {malloc((size_t)r->count[OUT] * 4), malloc((size_t)r->count[LSE] * 4)},
                     .count = {r->count[OUT], r->count[LSE]}};
    for (int pass = 0; pass < 2; pass++) {
        for (int step = 0; step < ranks * ranks; step++) {
            int rank = step / ranks, from = (rank + step) % ranks; /* keys come from the next rank on */
            problem part = *p;
            result piece;
            part.query_begin = query_cuts[rank], part.query_end = query_cuts[rank + 1];
            part.key_begin = key_cuts[from], part.key_end = key_cuts[from + 1];
            if (part.query_end == 0 || part.key_end == 0) /* nothing before it: 0, 0 would mean all */
                continue;
            part.whole = pass ? &merged : NULL;
            problem_run(&piece, &part, backend, 1);
            int64_t nq = plan_queries(&part), nk = plan_keys(&part);
            for (int64_t x = 0; x < h && !pass; x++)
                assert_int_equal(
                    mg_attn_merge(
                        (mg_attn_tensor){r->of[OUT] + part.query_begin * value_row + x * p->value_dim, value_row, 0},
                        r->of[LSE] + x * p->queries + part.query_begin,
                        (mg_attn_tensor){piece.of[OUT] + x * p->value_dim, value_row, 0}, piece.of[LSE] + x * nq, nq, 1,
                        p->value_dim),
                    0);
            if (pass) {
                add(r->of[DQ] + part.query_begin * row, piece.of[DQ], nq * row);
                add(r->of[DK] + part.key_begin * row, piece.of[DK], nk * row);
                add(r->of[DV] + part.key_begin * value_row, piece.of[DV], nk * value_row);
                add(r->of[DTABLE], piece.of[DTABLE], r->count[DTABLE]);
                for (int64_t x = 0; x < h; x++)
                    add(r->of[DKEY_BIAS] + x * p->keys + part.key_begin, piece.of[DKEY_BIAS] + x * nk, nk);
                if (r->of[DVALUES])
                    add(r->of[DVALUES], piece.of[DVALUES], r->count[DVALUES]);
            }
            result_free(&piece);
        }
        memcpy(merged.of[OUT], r->of[OUT], (size_t)r->count[OUT] * sizeof(float));
        memcpy(merged.of[LSE], r->of[LSE], (size_t)r->count[LSE] * sizeof(float));
    }
    result_free(&merged);
}

static void even_cuts(int64_t *cuts, int ranks, int64_t count)
{
    for (int r = 0; r <= ranks; r++)
        cuts[r] = count * r / ranks;
}

static void compare_ring(const char *what, const problem *p, int ranks, const int64_t *query_cuts,
                         const int64_t *key_cuts, double tolerance)
{
    result whole, r;
    problem_run(&whole, p, "reference", 1);
    for (const char *const *backend = tiled_backends(); *backend; backend++) {
        char name[128];
        snprintf(name, sizeof name, "%s: %d ranks on %s", what, ranks, *backend);
        ring(&r, p, *backend, ranks, query_cuts, key_cuts);
        result_near(name, &r, &whole, tolerance);
        result_free(&r);
    }
    result_free(&whole);
}

/* bf16 in, fp32 partials: 16 shards are as near to the whole as one. */
static void case_26_error_does_not_grow_with_the_ring(void **state)
{
    (void)state;
    problem *p = problem_make((problem){.queries = 64,
                                        .keys = 480,
                                        .dim = 32,
                                        .kind = MG_ATTN_DENSE,
                                        .with = TABLE | KEY_BIAS | BF16 | OUT_FP32 | GRADIENTS_FP32});
    const int64_t queries[17] = {0, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64};
    for (int ranks = 1; ranks <= 16; ranks *= 4) {
        int64_t keys[17];
        even_cuts(keys, ranks, 480);
        compare_ring("bf16", p, ranks, queries, keys, 3e-6);
    }
    problem_free(p);
}

/* With the lse of its shard alone a backward would be wrong by far: this is what the whole's lse and out must undo. */
static void case_27_backward_uses_the_whole(void **state)
{
    (void)state;
    problem *p = problem_make(
        (problem){.queries = 100, .kind = MG_ATTN_NEAR, .with = TABLE | KEY_BIAS | VALUES | DLSE | DROPOUT});
    int64_t cuts[4];
    even_cuts(cuts, 3, 100);
    compare_ring("whole lse", p, 3, cuts, cuts, 1e-5);
    for (const char *const *backend = all_backends(); *backend; backend++) {
        result whole, local, global;
        problem part = *p;
        problem_run(&whole, p, *backend, 1);
        part.key_end = 33;
        problem_run(&local, &part, *backend, 1);
        part.whole = &whole;
        problem_run(&global, &part, *backend, 1);
        double apart = 0;
        for (int64_t x = 0; x < local.count[DV]; x++)
            apart = fmax(apart, fabs((double)local.of[DV][x] - (double)global.of[DV][x]));
        assert_true(apart > 0.1);
        result_free(&whole);
        result_free(&local);
        result_free(&global);
    }
    problem_free(p);
}

static void case_28_ranks_of_any_number_and_length(void **state)
{
    (void)state;
    const int ranks[] = {1, 2, 3, 4, 7, 8};
    for (int n = 0; n < 6; n++) {
        int kind = n % 5;
        problem *p = problem_make(
            (problem){.queries = 150,
                      .keys = 140,
                      .heads = 2,
                      .dim = 8,
                      .kind = kind,
                      .mask_far = n > 2 && kind,
                      .with = TABLE | KEY_BIAS | DLSE | (n > 2 ? SEGMENTS : 0) | (kind == MG_ATTN_NEAR ? VALUES : 0)});
        int64_t queries[9], keys[9];
        even_cuts(queries, ranks[n], 150);
        even_cuts(keys, ranks[n], 140);
        compare_ring("even", p, ranks[n], queries, keys, 1e-5);
        problem_free(p);
    }
}

static void case_28_unequal_and_empty_shards(void **state)
{
    (void)state;
    const int64_t cuts[][6] = {
        {0, 0, 1, 64, 64, 150}, {0, 5, 5, 5, 149, 150}, {0, 65, 66, 130, 150, 150}, {0, 0, 150, 150, 150, 150}};
    for (int n = 0; n < 4; n++) {
        problem *p = problem_make((problem){
            .queries = 150, .dim = 8, .kind = MG_ATTN_TILES, .mask_far = n & 1, .with = TABLE | KEY_BIAS | DLSE});
        compare_ring("unequal", p, 5, cuts[n], cuts[(n + 1) % 4], 1e-5);
        problem_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_25_weights_are_natural_logarithms),
        cmocka_unit_test(case_25_no_exponential_overflows),
        cmocka_unit_test(case_25_empty_partials),
        cmocka_unit_test(case_25_nan_is_not_lost),
        cmocka_unit_test(wrong_arguments_of_merge),
        cmocka_unit_test(case_26_error_does_not_grow_with_the_ring),
        cmocka_unit_test(case_27_backward_uses_the_whole),
        cmocka_unit_test(case_28_ranks_of_any_number_and_length),
        cmocka_unit_test(case_28_unequal_and_empty_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
