/* Rows that see nothing, NaN and infinities, very negative biases: cases 1 to 8 of the attention cases. */
#include "problem.h"

#include <float.h>

static const mg_attn_map_kind masked_kinds[] = {MG_ATTN_DENSE, MG_ATTN_NEAR, MG_ATTN_TILES, MG_ATTN_STREAM};

enum { KINDS = sizeof masked_kinds / sizeof *masked_kinds };

static void all_finite(const char *what, const result *r)
{
    for (int which = 0; which < RESULTS; which++)
        for (int64_t i = 0; r->of[which] && i < r->count[which]; i++)
            if (!isfinite(r->of[which][i]) && !(which == LSE && r->of[which][i] == -INFINITY))
                fail_msg("%s: result %d is %g at %lld", what, which, (double)r->of[which][i], (long long)i);
}

/* count floats of `which` from `first` on are exactly `value`. */
static void all_equal(const char *what, const result *r, int which, int64_t first, int64_t count, float value)
{
    for (int64_t i = first; i < first + count; i++)
        if (r->of[which][i] != value)
            fail_msg("%s: result %d at %lld is %g, not %g", what, which, (long long)i, (double)r->of[which][i],
                     (double)value);
}

static void set(float *values, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = value;
}

static void hide_row(problem *p, int64_t i) { memset(p->codes_of + i * p->keys, p->codes - 1, (size_t)p->keys); }

static void hide_key(problem *p, int64_t j)
{
    for (int64_t i = 0; i < p->queries; i++)
        p->codes_of[i * p->keys + j] = (uint8_t)(p->codes - 1);
}

static void empty_rows_are_zero(const problem *p, const int *rows, int count)
{
    result expected, r;
    int64_t row = p->heads * p->dim;
    problem_run(&expected, p, "reference", 1);
    for (const char *const *backend = all_backends(); *backend; backend++) {
        problem_run(&r, p, *backend, 1);
        result_near(*backend, &r, &expected, 1e-5);
        all_finite(*backend, &r);
        for (int x = 0; x < count; x++) {
            all_equal(*backend, &r, OUT, rows[x] * row, row, 0);
            all_equal(*backend, &r, DQ, rows[x] * row, row, 0);
            for (int h = 0; h < p->heads; h++)
                all_equal(*backend, &r, LSE, h * p->queries + rows[x], 1, -INFINITY);
        }
        result_free(&r);
    }
    result_free(&expected);
}

static void case_01_row_that_sees_no_key(void **state)
{
    (void)state;
    const int rows[] = {0, 7, 64, 128};
    for (int kind = 0; kind < KINDS; kind++) {
        problem *p = problem_make((problem){
            .queries = 129, .keys = 150, .kind = masked_kinds[kind], .mask_far = 1, .with = TABLE | KEY_BIAS | DLSE});
        for (int x = 0; x < 4; x++) {
            hide_row(p, rows[x]);
            set(p->dout + rows[x] * 2 * 16, 2 * 16, 1e30f); /* would be seen in every gradient it reached */
        }
        empty_rows_are_zero(p, rows, 4);
        problem_free(p);
    }
}

/* Far pairs are hidden by the mask, the keys of all others by the key bias; or segments leave no key. */
static void case_01_row_emptied_by_two_masks_together(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        problem *p = problem_make((problem){.queries = 129,
                                            .keys = 150,
                                            .kind = masked_kinds[kind],
                                            .mask_far = 1,
                                            .with = TABLE | KEY_BIAS | SEGMENTS});
        const int rows[] = {3, 125};
        for (int x = 0; x < 2; x++)
            for (int64_t j = 0; j < p->keys; j++)
                if (p->key_bias[j] > 0.5f)
                    p->codes_of[rows[x] * p->keys + j] = 1;
                else
                    p->codes_of[rows[x] * p->keys + j] = (uint8_t)(p->codes - 1);
        for (int64_t j = 0; j < p->keys; j++)
            if (p->key_bias[j] > 0.5f)
                p->key_bias[j] = p->key_bias[p->keys + j] = -INFINITY;
        empty_rows_are_zero(p, rows, 2);
        problem_free(p);
    }
    problem *p = problem_make((problem){.queries = 70, .keys = 20, .with = SEGMENTS});
    for (int s = 0; s < 6; s++)
        p->key_segments[s] = s < 2 ? 0 : 20; /* all keys belong to the second segment */
    const int rows[] = {0, 6, 33, 69};
    empty_rows_are_zero(p, rows, 4);
    problem_free(p);
}

static void case_02_nan_in_a_query_stays_in_its_row(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        for (int x = 0; x < 3; x++) {
            enum { ROW = 66, HEAD = 1, D = 16 };
            problem *p = problem_make((problem){.queries = 100, .kind = kind, .with = TABLE, .seed = (uint64_t)x});
            for (const char *const *backend = all_backends(); *backend; backend++) {
                result clean, r;
                int64_t at = (ROW * 2 + HEAD) * D;
                float old = p->q[at + 3];
                problem_run(&clean, p, *backend, 1);
                p->q[at + 3] = bad[x];
                problem_run(&r, p, *backend, 1);
                p->q[at + 3] = old;
                for (int d = 0; d < D; d++)
                    if (!isnan(r.of[OUT][at + d]))
                        fail_msg("%s: kind %d: %g in q became %g", *backend, kind, (double)bad[x],
                                 (double)r.of[OUT][at + d]);
                memcpy(r.of[OUT] + at, clean.of[OUT] + at, D * sizeof(float));
                r.of[LSE][HEAD * 100 + ROW] = clean.of[LSE][HEAD * 100 + ROW];
                test_same_bytes(*backend, r.of[OUT], clean.of[OUT], (size_t)r.count[OUT] * sizeof(float));
                test_same_bytes(*backend, r.of[LSE], clean.of[LSE], (size_t)r.count[LSE] * sizeof(float));
                result_free(&clean);
                result_free(&r);
            }
            problem_free(p);
        }
}

static const int hidden_keys[] = {0, 40, 63, 64, 127, 149}; /* and all of 64..127 in a second turn */

static void spoil_keys(problem *p, float value)
{
    for (int x = 0; x < 6; x++) {
        set(p->k + hidden_keys[x] * 2 * 16, 2 * 16, value);
        set(p->v + hidden_keys[x] * 2 * 16, 2 * 16, value);
    }
    for (int64_t j = 64; j < 128; j++) {
        set(p->k + j * 2 * 16, 2 * 16, value);
        set(p->v + j * 2 * 16, 2 * 16, value);
    }
}

static void hide_spoilt(problem *p, int way)
{
    for (int64_t j = 0; j < p->keys; j++) {
        int hide = j >= 64 && j < 128;
        for (int x = 0; x < 6; x++)
            hide |= j == hidden_keys[x];
        if (hide && way < 2)
            hide_key(p, j);
        else if (hide)
            p->key_bias[j] = p->key_bias[p->keys + j] = -INFINITY;
    }
    for (int h = 0; h < 2 && way == 1; h++) /* the code is hidden by its table entry, not by mask_far */
        p->table[h * p->codes + p->codes - 1] = -INFINITY;
    p->mask_far = way == 0;
}

static void case_03_hidden_keys_and_values_do_not_leak(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY};
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        for (int way = kind == MG_ATTN_NONE ? 2 : 0; way < 3; way++) {
            problem *p = problem_make((problem){.queries = 130, .keys = 150, .kind = kind, .with = TABLE | KEY_BIAS});
            hide_spoilt(p, way);
            for (const char *const *backend = all_backends(); *backend; backend++) {
                result zero, r;
                spoil_keys(p, 0);
                problem_run(&zero, p, *backend, 1);
                all_equal(*backend, &zero, DK, 64 * 2 * 16, 64 * 2 * 16, 0);
                all_equal(*backend, &zero, DV, 64 * 2 * 16, 64 * 2 * 16, 0);
                for (int x = 0; x < 2; x++) {
                    char what[64];
                    snprintf(what, sizeof what, "%s: kind %d hidden by way %d, %g", *backend, kind, way,
                             (double)bad[x]);
                    spoil_keys(p, bad[x]);
                    problem_run(&r, p, *backend, 1);
                    result_same(what, &r, &zero);
                    result_free(&r);
                }
                result_free(&zero);
            }
            problem_free(p);
        }
}

/* NaN in the keys and values of one packed graph leaves all rows of the others as they were. */
static void case_03_packed_graphs_do_not_leak(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++) {
        problem *p = problem_make((problem){.queries = 100, .kind = kind, .with = TABLE | SEGMENTS});
        int64_t first = p->key_segments[1], row = 2 * 16, end = p->key_segments[2];
        for (const char *const *backend = all_backends(); *backend; backend++) {
            result clean, r;
            float *k = malloc((size_t)(100 * row) * sizeof *k), *v = malloc((size_t)(100 * row) * sizeof *v);
            memcpy(k, p->k, (size_t)(100 * row) * sizeof *k);
            memcpy(v, p->v, (size_t)(100 * row) * sizeof *v);
            problem_run(&clean, p, *backend, 1);
            set(p->k + first * row, (end - first) * row, NAN);
            set(p->v + first * row, (end - first) * row, INFINITY);
            problem_run(&r, p, *backend, 1);
            for (int which = OUT; which <= DV; which++)
                for (int64_t x = 0; which != LSE && x < 100 * row; x++)
                    if ((x < first * row || x >= end * row) && r.of[which][x] != clean.of[which][x])
                        fail_msg("%s: kind %d: result %d of token %lld became %g", *backend, kind, which,
                                 (long long)(x / row), (double)r.of[which][x]);
            memcpy(p->k, k, (size_t)(100 * row) * sizeof *k);
            memcpy(p->v, v, (size_t)(100 * row) * sizeof *v);
            free(k);
            free(v);
            result_free(&clean);
            result_free(&r);
        }
        problem_free(p);
    }
}

static void case_04_shifted_logits_on_ragged_tiles(void **state)
{
    (void)state;
    const int lengths[] = {64, 65, 129, 192 + 17};
    const float shifts[] = {-88, -120, -700, -1e4f, 120, 1e4f};
    for (int n = 0; n < 4; n++) {
        problem *p = problem_make((problem){.queries = lengths[n],
                                            .kind = n % 2 ? MG_ATTN_TILES : MG_ATTN_DENSE,
                                            .with = TABLE | KEY_BIAS | DLSE,
                                            .heads = 1});
        result expected, r;
        float table[8];
        for (int c = 0; c < p->codes; c++)
            table[c] = p->table[c] = roundf(p->table[c] * 1024) / 1024; /* exact after the shift */
        problem_run(&expected, p, "reference", 1);
        for (int s = 0; s < 6; s++) {
            for (int c = 0; c < p->codes; c++)
                p->table[c] = table[c] + shifts[s];
            for (const char *const *backend = all_backends(); *backend; backend++) {
                char what[64];
                snprintf(what, sizeof what, "%s: %d tokens, shift %g", *backend, lengths[n], (double)shifts[s]);
                problem_run(&r, p, *backend, 1);
                all_finite(what, &r);
                for (int64_t i = 0; i < r.count[LSE]; i++)
                    r.of[LSE][i] -= shifts[s];
                result_near(what, &r, &expected, 1e-5 + 4e-7 * fabs((double)shifts[s]));
                result_free(&r);
            }
        }
        result_free(&expected);
        problem_free(p);
    }
}

/* All pairs of ROW have a bias as negative as a float can be, from the table, by keys or by pairs: the mean of all
   values. Keys have it for all rows. */
static void case_05_finite_bias_is_a_value(void **state)
{
    (void)state;
    const float biases[] = {-FLT_MAX, -FLT_MAX / 1.2f, -1e30f, -3e6f};
    enum { N = 75, M = 130, D = 8, ROW = 20 };
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        for (int at = 0; at < 12; at++) {
            const int from = at / 4 == 0 ? TABLE : at / 4 == 1 ? KEY_BIAS : VALUES;
            const float bias = biases[at % 4];
            if (from == VALUES && kind != MG_ATTN_NEAR)
                continue;
            problem *p = problem_make((problem){.queries = N,
                                                .keys = M,
                                                .heads = 1,
                                                .dim = D,
                                                .kind = kind,
                                                .with = TABLE | KEY_BIAS | (from & VALUES)});
            memset(p->codes_of + ROW * M, 0, M);
            memset(p->q + ROW * D, 0, D * sizeof(float));
            p->table[0] = from == TABLE ? bias : 0;
            double mean[D] = {0};
            for (int key = 0; key < M; key++) {
                p->key_bias[key] = from == KEY_BIAS ? bias : 0;
                if (from == VALUES)
                    p->values[ROW * M + key] = bias;
                for (int d = 0; d < D; d++)
                    mean[d] += (double)p->v[key * D + d] / M;
            }
            for (const char *const *backend = all_backends(); *backend; backend++) {
                result r;
                problem_run(&r, p, *backend, 1);
                all_finite(*backend, &r);
                test_near_scaled(*backend, r.of[OUT] + ROW * D, mean, D, 2e-6, 1);
                double lse = (double)bias + log(M);
                test_near(*backend, r.of[LSE] + ROW, &lse, 1, 2e-7);
                result_free(&r);
            }
            problem_free(p);
        }
}

/* Beside ordinary biases such a value is as good as a mask. */
static void case_05_finite_bias_beside_others(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        problem *p =
            problem_make((problem){.queries = 100, .keys = 140, .kind = masked_kinds[k], .mask_far = 1, .with = TABLE});
        for (int i = 0; i < 100; i++)
            p->codes_of[i * 140 + i] = 0; /* no row without an ordinary pair */
        result masked, r;
        problem_run(&masked, p, "reference", 1);
        p->mask_far = 0;
        p->table[p->codes - 1] = p->table[2 * p->codes - 1] = -FLT_MAX;
        for (const char *const *backend = all_backends(); *backend; backend++) {
            problem_run(&r, p, *backend, 1);
            result_near(*backend, &r, &masked, 1e-5);
            result_free(&r);
        }
        result_free(&masked);
        problem_free(p);
    }
}

static void case_06_activations_near_a_thousand(void **state)
{
    (void)state;
    problem *p = problem_make((problem){.queries = 130, .kind = MG_ATTN_DENSE, .with = TABLE | DLSE});
    for (int64_t x = 0; x < 130 * 2 * 16; x++) {
        p->q[x] *= 500;
        p->k[x] *= 500;
        p->v[x] *= 1000;
    }
    for (const char *const *backend = all_backends(); *backend; backend++) {
        result r;
        problem_run(&r, p, *backend, 1);
        all_finite(*backend, &r);
        for (int64_t x = 0; x < r.count[OUT]; x++)
            assert_true(fabsf(r.of[OUT][x]) <= 1000.01f); /* a mean of the values */
        result_free(&r);
    }
    problem_free(p);
}

/* All keys of one tile, or of one half of the queries, are hidden, in each of three ways. */
static void case_07_first_or_last_tile_hidden(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        for (int way = kind == MG_ATTN_NONE ? 2 : 0; way < 3; way++)
            for (int which = 0; which < 3; which++) {
                char what[64];
                snprintf(what, sizeof what, "kind %d, way %d, tile %d", kind, way, which);
                problem *p = problem_make((problem){
                    .queries = 70, .keys = 190, .kind = kind, .mask_far = way == 0, .with = TABLE | KEY_BIAS | DLSE});
                for (int64_t j = which * 64; j < which * 64 + 64 && j < 190; j++)
                    if (way < 2)
                        hide_key(p, j);
                    else
                        p->key_bias[j] = p->key_bias[190 + j] = -INFINITY;
                if (way == 1)
                    p->table[p->codes - 1] = p->table[2 * p->codes - 1] = -INFINITY;
                compare_backends(what, p, 1e-5);
                problem_free(p);
            }
}

static void case_08_impossible_combinations_are_errors(void **state)
{
    (void)state;
    for (const char *const *backend = all_backends(); *backend; backend++)
        for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++) {
            if (kind == MG_ATTN_NEAR)
                continue;
            problem *p = problem_make((problem){.queries = 4, .kind = kind});
            mg_attn_map map;
            encoded *e = map_encode(&map, p);
            mg_attn_plan *plan = plan_make(&map, *backend);
            float values[64] = {0}, lse[8] = {0};
            mg_attn_tensor t = {p->q, 32, 16};
            mg_attn_call call = {.heads = 2,
                                 .dim = 16,
                                 .scale = 1,
                                 .q = t,
                                 .k = t,
                                 .v = t,
                                 .out = t,
                                 .lse = lse,
                                 .values = values,
                                 .dout = t};
            _Alignas(64) static char space[1 << 20];
            call.workspace = space;
            assert_int_equal(mg_attn_forward(plan, &call), -EINVAL);
            assert_error_says("values");
            assert_int_equal(mg_attn_backward(plan, &call), -EINVAL);
            assert_true(mg_attn_workspace_bytes(plan, &call, 0) < 0);
            call.values = NULL;
            call.dvalues = values;
            assert_int_equal(mg_attn_backward(plan, &call), -EINVAL);
            assert_error_says("values");
            mg_attn_plan_destroy(plan);
            map_free(e);
            problem_free(p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_01_row_that_sees_no_key),
        cmocka_unit_test(case_01_row_emptied_by_two_masks_together),
        cmocka_unit_test(case_02_nan_in_a_query_stays_in_its_row),
        cmocka_unit_test(case_03_hidden_keys_and_values_do_not_leak),
        cmocka_unit_test(case_03_packed_graphs_do_not_leak),
        cmocka_unit_test(case_04_shifted_logits_on_ragged_tiles),
        cmocka_unit_test(case_05_finite_bias_is_a_value),
        cmocka_unit_test(case_05_finite_bias_beside_others),
        cmocka_unit_test(case_06_activations_near_a_thousand),
        cmocka_unit_test(case_07_first_or_last_tile_hidden),
        cmocka_unit_test(case_08_impossible_combinations_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
