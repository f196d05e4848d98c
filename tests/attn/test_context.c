/* Attention over ranks against one rank: every method, kind of map, number of ranks and spread, by a covering set. */
#include "context_trial.h"

enum { TOKENS = 150 };

static const char *const methods[] = {"ring", "all-to-all", "halo"};

static void check_bytes(const char *what, const trial *t)
{
    for (int r = 0; r < t->ranks; r++) {
        if (t->forward_bytes[r] != t->info[r].forward_bytes)
            fail_msg("%s: rank %d sent %lld bytes forward, described as %lld", what, r, (long long)t->forward_bytes[r],
                     (long long)t->info[r].forward_bytes);
        if (!t->no_lse && t->backward_bytes[r] != t->info[r].backward_bytes)
            fail_msg("%s: rank %d sent %lld bytes backward, described as %lld", what, r,
                     (long long)t->backward_bytes[r], (long long)t->info[r].backward_bytes);
    }
}

static void compare(trial t, const result *expected)
{
    char what[160];
    snprintf(what, sizeof what, "%s, %d ranks, %d heads, kind %d, pattern %d, mask %d, with %u, spread %d",
             methods[t.method], t.ranks, t.p->heads, t.p->kind, t.p->pattern, t.p->mask_far, t.p->with, t.spread);
    const int status = trial_run(&t);
    if (status)
        fail_msg("%s: %d: %s", what, status, mg_attn_last_error());
    trial_near(what, &t, expected, 2e-6);
    if (t.p->value_dim == t.p->dim)
        check_bytes(what, &t);
    trial_free(&t);
}

static problem *make(problem wanted)
{
    wanted.queries = wanted.queries ? wanted.queries : TOKENS;
    wanted.dim = wanted.dim ? wanted.dim : 8;
    wanted.heads = wanted.heads ? wanted.heads : 3;
    return problem_make(wanted);
}

static void every_method(problem *p, const uint32_t *ids, int halo_too)
{
    static const int ranks[] = {1, 2, 3, 4, 7, 8};
    result expected;
    p->query_ids = p->key_ids = ids;
    problem_run(&expected, p, "reference", 1);
    for (int method = MG_ATTN_RING; method <= (halo_too ? MG_ATTN_HALO : MG_ATTN_ALL_TO_ALL); method++)
        for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++)
            compare((trial){.p = p,
                            .method = method,
                            .ranks = ranks[r],
                            .spread = (spread)((r + method) & 1),
                            .ids = ids,
                            .keys_kept = r & 1},
                    &expected);
    result_free(&expected);
    problem_free(p);
}

static void every_kind(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        every_method(
            make((problem){.kind = kind, .with = TABLE | (kind == MG_ATTN_DENSE ? DROPOUT : 0), .heads = 2 + kind}),
            NULL, 0);
}

static void masked_and_packed(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_DENSE; kind <= MG_ATTN_STREAM; kind++) {
        const int near = kind == MG_ATTN_NEAR;
        every_method(make((problem){.kind = kind,
                                    .mask_far = 1,
                                    .pattern = BAND,
                                    .with = TABLE | SEGMENTS | (near ? VALUES : DROPOUT),
                                    .stream_rows = 64}),
                     NULL, near);
    }
}

static void values_with_far_pairs_seen(void **state)
{
    (void)state;
    every_method(make((problem){.kind = MG_ATTN_NEAR, .pattern = BAND, .with = TABLE | VALUES | DROPOUT, .heads = 8}),
                 NULL, 0);
}

static void dropout_by_ids(void **state)
{
    (void)state;
    uint32_t ids[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = i * 2654435761u;
    every_method(
        make((problem){.kind = MG_ATTN_NEAR, .mask_far = 1, .pattern = BAND, .with = DROPOUT | VALUES, .heads = 5}),
        ids, 1);
    every_method(make((problem){.kind = MG_ATTN_NEAR, .mask_far = 1, .pattern = BAND, .with = DROPOUT}), NULL, 1);
}

static void other_shapes(void **state)
{
    (void)state;
    for (int variant = 0; variant < 3; variant++) {
        problem *p = make((problem){.kind = MG_ATTN_NEAR,
                                    .mask_far = 1,
                                    .pattern = BAND,
                                    .queries = (const int64_t[]){70, 5, 1}[variant],
                                    .dim = 12,
                                    .value_dim = 20,
                                    .heads = 4,
                                    .with = TABLE | VALUES});
        every_method(p, NULL, 1);
    }
}

static void one_rank_has_all(void **state)
{
    (void)state;
    problem *p = make((problem){.kind = MG_ATTN_NEAR, .mask_far = 1, .pattern = BAND, .with = TABLE, .heads = 4});
    result expected;
    problem_run(&expected, p, "reference", 1);
    for (int method = MG_ATTN_RING; method <= MG_ATTN_HALO; method++)
        for (int ranks = 2; ranks <= 8; ranks += 6)
            compare((trial){.p = p, .method = method, .ranks = ranks, .spread = ALL_ON_LAST}, &expected);
    result_free(&expected);
    problem_free(p);
}

/* The first half of the tokens sees nothing, and is seen by the others. */
static void ranks_that_see_nothing_are_seen(void **state)
{
    (void)state;
    problem *p = make((problem){.kind = MG_ATTN_NEAR, .mask_far = 1, .pattern = BAND, .with = TABLE});
    memset(p->codes_of, p->codes - 1, (size_t)(p->queries / 2 * p->keys));
    every_method(p, NULL, 1);
}

/* Each result alone is not asked for, then each alone is. */
static void any_gradient_may_be_left_out(void **state)
{
    (void)state;
    problem *p =
        make((problem){.kind = MG_ATTN_NEAR, .mask_far = 1, .pattern = BAND, .with = TABLE | VALUES, .heads = 4});
    result expected;
    problem_run(&expected, p, "reference", 1);
    const unsigned all = 1 << DQ | 1 << DK | 1 << DV | 1 << DTABLE | 1 << DVALUES;
    for (int which = DQ; which <= DVALUES; which++)
        for (int alone = 0; alone < 2; alone++)
            for (int method = MG_ATTN_RING; method <= MG_ATTN_HALO; method++) {
                p->skip = alone ? all & ~(1u << which) : 1u << which;
                compare((trial){.p = p, .method = method, .ranks = alone ? 3 : 4}, &expected);
            }
    p->skip = 0;
    for (int method = MG_ATTN_RING; method <= MG_ATTN_HALO; method++)
        compare((trial){.p = p, .method = method, .ranks = 4, .no_lse = 1}, &expected);
    result_free(&expected);
    problem_free(p);
}

/* Any number of threads, and whatever comes late: the same bits. */
static void same_bits(void **state)
{
    (void)state;
    problem *p = make(
        (problem){.kind = MG_ATTN_NEAR, .mask_far = 1, .pattern = BAND, .with = TABLE | VALUES | DROPOUT, .heads = 4});
    for (int method = MG_ATTN_RING; method <= MG_ATTN_HALO; method++)
        for (int ranks = 3; ranks <= 8; ranks += 5) {
            trial one = {.p = p, .method = method, .ranks = ranks, .spread = UNEVEN, .threads = 1}, two = one;
            two.threads = 3;
            two.delay = 200;
            assert_int_equal(trial_run(&one), 0);
            assert_int_equal(trial_run(&two), 0);
            for (int which = OUT; which <= DVALUES; which++)
                test_same_bytes(methods[method], two.whole.of[which], one.whole.of[which],
                                (size_t)one.whole.count[which] * sizeof(float));
            trial_free(&one);
            trial_free(&two);
        }
    problem_free(p);
}

/* Graphs that lie within ranks: nothing is sent, and no plan is kept for others' shards. */
static void unseen_shards_do_not_travel(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        for (int method = MG_ATTN_RING; method <= MG_ATTN_HALO; method += 2) {
            problem *p =
                make((problem){.kind = kind, .queries = 120, .mask_far = kind == MG_ATTN_NEAR, .with = SEGMENTS});
            const int64_t cuts[6] = {0, 30, 60, 60, 90, 120};
            if (method == MG_ATTN_HALO && kind != MG_ATTN_NEAR) {
                problem_free(p);
                continue;
            }
            memcpy(p->query_segments, cuts, sizeof cuts);
            memcpy(p->key_segments, cuts, sizeof cuts);
            trial t = {.p = p, .method = method, .ranks = 4};
            assert_int_equal(trial_run(&t), 0);
            for (int r = 0; r < 4; r++) {
                assert_int_equal(t.forward_bytes[r], 0);
                assert_int_equal(t.backward_bytes[r], 0);
            }
            trial_free(&t);
            problem_free(p);
        }
}

static void grids(void **state)
{
    (void)state;
    static const struct {
        mg_attn_method method;
        int ranks, heads, across;
    } known[] = {{MG_ATTN_RING, 8, 8, 1},       {MG_ATTN_HALO, 8, 8, 1},       {MG_ATTN_ALL_TO_ALL, 8, 8, 8},
                 {MG_ATTN_ALL_TO_ALL, 8, 5, 4}, {MG_ATTN_ALL_TO_ALL, 7, 4, 1}, {MG_ATTN_ALL_TO_ALL, 7, 8, 7},
                 {MG_ATTN_ALL_TO_ALL, 4, 2, 2}, {MG_ATTN_ALL_TO_ALL, 1, 3, 1}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        mg_attn_grid grid = mg_attn_grid_of(known[i].method, known[i].ranks, known[i].heads);
        assert_int_equal(grid.across, known[i].across);
        assert_int_equal(grid.along * grid.across, known[i].ranks);
    }
    const int64_t first[] = {0, 3, 3, 10, 11};
    int64_t begin, end;
    mg_attn_context_rows(&begin, &end, (mg_attn_grid){2, 2}, first, 3);
    assert_int_equal(begin, 3);
    assert_int_equal(end, 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grids),
        cmocka_unit_test(every_kind),
        cmocka_unit_test(masked_and_packed),
        cmocka_unit_test(values_with_far_pairs_seen),
        cmocka_unit_test(dropout_by_ids),
        cmocka_unit_test(other_shapes),
        cmocka_unit_test(one_rank_has_all),
        cmocka_unit_test(ranks_that_see_nothing_are_seen),
        cmocka_unit_test(any_gradient_may_be_left_out),
        cmocka_unit_test(same_bits),
        cmocka_unit_test(unseen_shards_do_not_travel),
    };
    return cmocka_run_group_tests_name("attention over ranks", tests, NULL, NULL);
}
