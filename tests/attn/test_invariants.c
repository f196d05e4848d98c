/* What holds for any input, to rounding or to the bit. */
#include "problem.h"

/* dvalues of a map that lists every pair is dS itself: its rows sum to dlse. */
static void rows_of_ds_sum_to_dlse(void **state)
{
    (void)state;
    for (unsigned with = 0; with <= (DROPOUT | DLSE | SEGMENTS); with++) {
        if (with & ~(unsigned)(DROPOUT | DLSE | SEGMENTS))
            continue;
        problem *p = problem_make(
            (problem){.queries = 100, .keys = 130, .kind = MG_ATTN_NEAR, .with = TABLE | VALUES | with, .seed = with});
        for (int x = 0; x < 100 * 130; x++)
            p->codes_of[x] %= 7; /* the far code, 7, does not occur */
        for (const char *const *backend = all_backends(); *backend; backend++) {
            result r;
            problem_run(&r, p, *backend, 1);
            for (int row = 0; row < 2 * 100; row++) {
                double sum = 0, expected = with & DLSE && r.of[LSE][row] != -INFINITY ? (double)p->dlse[row] : 0;
                for (int j = 0; j < 130; j++)
                    sum += (double)r.of[DVALUES][row * 130 + j];
                if (!(fabs(sum - expected) <= 5e-6))
                    fail_msg("%s: row %d sums to %g, expected %g", *backend, row, sum, expected);
            }
            result_free(&r);
        }
        problem_free(p);
    }
}

static void table_gradient_sums_to_dlse(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        for (unsigned with = 0; with <= DLSE; with += DLSE) {
            problem *p = problem_make(
                (problem){.queries = 200, .keys = 190, .dim = 8, .kind = kind, .with = TABLE | DROPOUT | with});
            for (const char *const *backend = all_backends(); *backend; backend++) {
                result r;
                problem_run(&r, p, *backend, 1);
                for (int h = 0; h < 2; h++) {
                    double sum = 0, expected = 0;
                    for (int c = 0; c < p->codes; c++)
                        sum += (double)r.of[DTABLE][h * p->codes + c];
                    for (int i = 0; i < 200 && with; i++)
                        expected += (double)p->dlse[h * 200 + i];
                    if (!(fabs(sum - expected) <= 1e-4))
                        fail_msg("%s: kind %d, head %d: %g, expected %g", *backend, kind, h, sum, expected);
                }
                result_free(&r);
            }
            problem_free(p);
        }
}

static void constant_on_the_table_moves_lse_alone(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++) {
        problem *p = problem_make(
            (problem){.queries = 130, .kind = kind, .mask_far = kind != MG_ATTN_NONE, .with = TABLE | DLSE});
        float table[16];
        for (int c = 0; c < 2 * p->codes; c++)
            table[c] = p->table[c] = roundf(p->table[c] * 4096) / 4096;
        for (const char *const *backend = all_backends(); *backend; backend++) {
            result before, after;
            problem_run(&before, p, *backend, 1);
            for (int c = 0; c < 2 * p->codes; c++)
                p->table[c] += 3;
            problem_run(&after, p, *backend, 1);
            memcpy(p->table, table, (size_t)(2 * p->codes) * sizeof *table);
            for (int64_t x = 0; x < after.count[LSE]; x++)
                after.of[LSE][x] -= 3;
            result_near(*backend, &after, &before, 5e-6);
            result_free(&before);
            result_free(&after);
        }
        problem_free(p);
    }
}

/* Codes are names: another numbering with its table, all else in the same place. */
static void permuted_codes_are_bitwise_the_same(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_DENSE; kind <= MG_ATTN_STREAM; kind++)
        for (int codes = 4; codes <= 19; codes += 15) {
            problem *p = problem_make((problem){.queries = 150, .kind = kind, .codes = codes, .with = TABLE | DLSE});
            problem *renamed =
                problem_make((problem){.queries = 150, .kind = kind, .codes = codes, .with = TABLE | DLSE});
            int last = codes - 1; /* stays: it is what NEAR does not list */
            for (int x = 0; x < 150 * 150; x++)
                renamed->codes_of[x] = p->codes_of[x] == last ? (uint8_t)last : (uint8_t)(last - 1 - p->codes_of[x]);
            for (int h = 0; h < 2; h++)
                for (int c = 0; c < last; c++)
                    renamed->table[h * codes + c] = p->table[h * codes + last - 1 - c];
            for (const char *const *backend = all_backends(); *backend; backend++) {
                result a, b;
                char what[64];
                snprintf(what, sizeof what, "%s: kind %d, %d codes", *backend, kind, codes);
                problem_run(&a, p, *backend, 1);
                problem_run(&b, renamed, *backend, 1);
                for (int h = 0; h < 2; h++)
                    for (int c = 0; c < last / 2; c++) {
                        float *one = b.of[DTABLE] + h * codes + c, *other = b.of[DTABLE] + h * codes + last - 1 - c,
                              kept = *one;
                        *one = *other;
                        *other = kept;
                    }
                if (kind == MG_ATTN_TILES) /* classes of tiles, and so the order of sums, may differ by the encoder */
                    result_near(what, &b, &a, 2e-6);
                else
                    result_same(what, &b, &a);
                result_free(&a);
                result_free(&b);
            }
            problem_free(p);
            problem_free(renamed);
        }
}

/* q = 0: row i is the mean of the values with weights exp(table[code]), so counts of codes give lse. */
static void zero_queries_have_a_closed_form(void **state)
{
    (void)state;
    enum { N = 100, M = 140, D = 8 };
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++) {
        problem *p =
            problem_make((problem){.queries = N, .keys = M, .heads = 1, .dim = D, .kind = kind, .with = TABLE});
        memset(p->q, 0, N * D * sizeof *p->q);
        double lse[N], out[N * D] = {0};
        for (int i = 0; i < N; i++) {
            double counts[8] = {0}, sum = 0;
            for (int j = 0; j < M; j++)
                counts[p->codes_of[i * M + j]]++;
            for (int c = 0; c < p->codes; c++)
                sum += counts[c] * exp((double)p->table[c]);
            lse[i] = log(sum);
            for (int x = 0; x < M * D; x++)
                out[i * D + x % D] += exp((double)p->table[p->codes_of[i * M + x / D]]) / sum * (double)p->v[x];
        }
        for (const char *const *backend = all_backends(); *backend; backend++) {
            result r;
            problem_run(&r, p, *backend, 1);
            test_near(*backend, r.of[LSE], lse, N, 5e-7);
            test_near(*backend, r.of[OUT], out, N * D, 2e-6);
            for (int64_t x = 0; x < r.count[DK]; x++)
                assert_true(r.of[DK][x] == 0);
            result_free(&r);
        }
        problem_free(p);
    }
}

static void zero_dout_gives_zero_gradients(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++) {
        problem *p = problem_make((problem){
            .queries = 130, .kind = kind, .with = TABLE | KEY_BIAS | DROPOUT | (kind == MG_ATTN_NEAR ? VALUES : 0)});
        memset(p->dout, 0, 130 * 2 * 16 * sizeof *p->dout);
        for (const char *const *backend = all_backends(); *backend; backend++) {
            result r;
            problem_run(&r, p, *backend, 1);
            for (int which = DQ; which < RESULTS; which++)
                for (int64_t x = 0; r.of[which] && x < r.count[which]; x++)
                    if (r.of[which][x] != 0)
                        fail_msg("%s: kind %d: result %d at %lld is %g", *backend, kind, which, (long long)x,
                                 (double)r.of[which][x]);
            result_free(&r);
        }
        problem_free(p);
    }
}

/* Probabilities sum to 1: with all values 1 every row that sees something is 1, and dv sums to dout. */
static void probabilities_sum_to_one(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++) {
        enum { N = 140, ROW = 2 * 16 };
        problem *p = problem_make(
            (problem){.queries = N, .kind = kind, .mask_far = kind != MG_ATTN_NONE, .pattern = BAND, .with = TABLE});
        for (int x = 0; x < N * ROW; x++)
            p->v[x] = 1;
        for (const char *const *backend = all_backends(); *backend; backend++) {
            result r;
            double dv[ROW] = {0}, dout[ROW] = {0};
            problem_run(&r, p, *backend, 1);
            for (int x = 0; x < N * ROW; x++) {
                int empty = r.of[LSE][x % ROW / 16 * N + x / ROW] == -INFINITY;
                assert_true(fabs((double)r.of[OUT][x] - !empty) <= 1e-6);
                dv[x % ROW] += (double)r.of[DV][x];
                dout[x % ROW] += empty ? 0 : (double)p->dout[x];
            }
            for (int x = 0; x < ROW; x++)
                assert_true(fabs(dv[x] - dout[x]) <= 2e-5);
            result_free(&r);
        }
        problem_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_ds_sum_to_dlse),
        cmocka_unit_test(table_gradient_sums_to_dlse),
        cmocka_unit_test(constant_on_the_table_moves_lse_alone),
        cmocka_unit_test(permuted_codes_are_bitwise_the_same),
        cmocka_unit_test(zero_queries_have_a_closed_form),
        cmocka_unit_test(zero_dout_gives_zero_gradients),
        cmocka_unit_test(probabilities_sum_to_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
