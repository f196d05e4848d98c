/* The kernels of every instruction set that this processor runs, against loops in fp64, at widths with and without
 * tails. */
#include "kernels.h"
#include "philox.h"
#include "support/test.h"

static const int64_t widths[] = {1, 3, 8, 16, 17, 20, 32, 64, 70, 133};
enum { WIDTHS = sizeof widths / sizeof *widths, ROWS = 7, MOST = 133 };

typedef void check_rows(const mg_model_row_kernels *k, int64_t columns);

static void on_all(check_rows *check)
{
    int count;
    const mg_model_kernels *kernels = mg_model_kernels_list(&count);
    assert_true(count >= 1);
    for (int k = 0; k < count; k++)
        for (int w = 0; w < WIDTHS; w++)
            check(kernels[k].rows, widths[w]);
}

static void norm_row(double *y, const float *x, const float *weight, const float *bias, int64_t n, double *mean,
                     double *scale)
{
    double sum = 0, square = 0;
    for (int64_t c = 0; c < n; c++)
        sum += x[c];
    *mean = sum / (double)n;
    for (int64_t c = 0; c < n; c++)
        square += (x[c] - *mean) * (x[c] - *mean);
    *scale = 1 / sqrt(square / (double)n + 1e-5);
    for (int64_t c = 0; c < n; c++)
        y[c] = (x[c] - *mean) * *scale * weight[c] + bias[c];
}

static void check_norm(const mg_model_row_kernels *k, int64_t n)
{
    float x[ROWS * MOST], y[ROWS * MOST], dy[ROWS * MOST], dx[ROWS * MOST], weight[MOST], bias[MOST];
    float dweight[MOST] = {0}, dbias[MOST] = {0};
    double expected[ROWS * MOST], edx[ROWS * MOST], edweight[MOST] = {0}, edbias[MOST] = {0}, mean, scale;
    test_fill(x, ROWS * n, 1, 2);
    test_fill(dy, ROWS * n, 2, 1);
    test_fill(weight, n, 3, 1);
    test_fill(bias, n, 4, 1);
    test_fill(dx, ROWS * n, 5, 1);
    for (int64_t i = 0; i < ROWS; i++) {
        double along = 0, sum = 0;
        norm_row(expected + i * n, x + i * n, weight, bias, n, &mean, &scale);
        for (int64_t c = 0; c < n; c++) {
            double normal = (x[i * n + c] - mean) * scale, g = (double)dy[i * n + c] * weight[c];
            sum += g / (double)n;
            along += g * normal / (double)n;
            edweight[c] += dy[i * n + c] * normal;
            edbias[c] += dy[i * n + c];
        }
        for (int64_t c = 0; c < n; c++)
            edx[i * n + c] = dx[i * n + c] +
                             scale * ((double)dy[i * n + c] * weight[c] - sum - (x[i * n + c] - mean) * scale * along);
    }
    k->norm(y, x, weight, bias, ROWS, n);
    k->norm_backward(dx, dweight, dbias, dy, x, weight, ROWS, n);
    test_near("norm", y, expected, ROWS * n, 2e-6);
    if (n > 1) { /* one column: 0 / 0 but for epsilon */
        test_near("dx", dx, edx, ROWS * n, 2e-6);
        test_near("dweight", dweight, edweight, n, 2e-6);
    }
    test_near("dbias", dbias, edbias, n, 2e-6);
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double gelu(double x) { return x * sigmoid(1.5957691216 * (x + 0.044715 * x * x * x)); }

static void check_gelu(const mg_model_row_kernels *k, int64_t n)
{
    float x[MOST] = {0}, y[MOST], dy[MOST];
    double expected[MOST], slope[MOST];
    for (int64_t c = 0; c < n; c++) {
        x[c] = c == 0 ? 9 : c == 1 ? -30 : 5 * test_random(6, (uint64_t)c);
        dy[c] = 1;
        expected[c] = gelu(x[c]);
        slope[c] = (gelu(x[c] + 1e-5) - gelu(x[c] - 1e-5)) / 2e-5;
    }
    k->gelu(y, x, n);
    k->gelu_backward(dy, x, n);
    test_near_scaled("gelu", y, expected, n, 1e-6, 1);
    test_near_scaled("gelu'", dy, slope, n, 3e-6, 1);
}

static void check_logistic(const mg_model_row_kernels *k, int64_t n)
{
    float x[MOST] = {0}, y[MOST];
    for (int64_t c = 0; c < n; c++)
        x[c] = c == 0 ? 200 : c == 1 ? -200 : 30 * test_random(7, (uint64_t)c);
    k->logistic(y, x, n);
    for (int64_t c = 0; c < n; c++)
        if (!(fabs(y[c] - sigmoid(x[c])) <= 4e-7 * sigmoid(x[c]) + 1e-34))
            fail_msg("logistic(%.9g) is %.9g, expected %.9g", (double)x[c], (double)y[c], sigmoid(x[c]));
}

static void check_softmax(const mg_model_row_kernels *k, int64_t n)
{
    float x[MOST], p[MOST], most, largest = -INFINITY;
    double expected[MOST], sum = 0;
    test_fill(x, n, 8, 20);
    for (int64_t c = 0; c < n; c++)
        largest = fmaxf(largest, x[c]);
    for (int64_t c = 0; c < n; c++)
        sum += exp((double)x[c] - largest);
    for (int64_t c = 0; c < n; c++)
        expected[c] = exp((double)x[c] - largest) / sum;
    float log_sum = k->softmax(p, &most, x, n);
    assert_true(most == largest);
    assert_true(fabs(log_sum - log(sum)) <= 1e-6 * fmax(1, log(sum)));
    test_near("softmax", p, expected, n, 1e-6);
}

static void check_relu(const mg_model_row_kernels *k, int64_t n)
{
    float x[MOST], y[MOST], dy[MOST], by[MOST];
    uint8_t positive[MOST];
    test_fill(x, n, 9, 1);
    x[n - 1] = NAN;
    memcpy(y, x, sizeof x);
    test_fill(dy, n, 10, 1);
    memcpy(by, dy, sizeof dy);
    k->relu(y, positive, n);
    k->relu_backward(by, positive, n);
    for (int64_t c = 0; c + 1 < n; c++) {
        assert_true(y[c] == (x[c] > 0 ? x[c] : 0));
        assert_true(by[c] == (x[c] > 0 ? dy[c] : 0));
    }
    assert_true(isnan(y[n - 1]) && by[n - 1] == dy[n - 1]);
    memcpy(by, dy, sizeof dy);
    k->relu_backward_by(by, y, n);
    for (int64_t c = 0; c + 1 < n; c++)
        assert_true(by[c] == (x[c] > 0 ? dy[c] : 0));
}

static void check_sums(const mg_model_row_kernels *k, int64_t n)
{
    float x[ROWS * MOST], y[ROWS * MOST], sums[MOST], bias[MOST];
    double expected[MOST];
    test_fill(x, ROWS * n, 11, 1);
    test_fill(sums, n, 12, 1);
    test_fill(bias, n, 13, 1);
    for (int64_t c = 0; c < n; c++) {
        expected[c] = sums[c];
        for (int64_t i = 0; i < ROWS; i++)
            expected[c] += x[i * n + c];
    }
    k->column_sums(sums, x, ROWS, n);
    test_near("column sums", sums, expected, n, 1e-6);
    k->fill(y, bias, ROWS, n);
    k->add(y, x, ROWS * n);
    k->add_scaled(y, x, 2, ROWS * n);
    for (int64_t i = 0; i < ROWS * n; i++)
        assert_true(fabsf(y[i] - (bias[i % n] + 3 * x[i])) <= 1e-6f);
    k->fill(y, NULL, ROWS, n);
    for (int64_t i = 0; i < ROWS * n; i++)
        assert_true(y[i] == 0);
}

static void check_gain(const mg_model_row_kernels *k, int64_t n)
{
    float x[ROWS * MOST], y[ROWS * MOST], dy[ROWS * MOST], gain[MOST], dgain[MOST];
    double forward[ROWS * MOST], backward[ROWS * MOST], expected[MOST];
    test_fill(x, ROWS * n, 14, 1);
    test_fill(dy, ROWS * n, 15, 1);
    test_fill(gain, n, 16, 1);
    test_fill(dgain, n, 17, 1);
    memcpy(y, x, sizeof y);
    for (int64_t c = 0; c < n; c++)
        expected[c] = dgain[c];
    for (int64_t i = 0; i < ROWS * n; i++) {
        forward[i] = (double)x[i] * gain[i % n];
        backward[i] = (double)dy[i] * gain[i % n];
        expected[i % n] += (double)dy[i] * x[i];
    }
    k->gain(y, gain, ROWS, n);
    k->gain_backward(dy, dgain, x, gain, ROWS, n);
    test_near("gain", y, forward, ROWS * n, 1e-6);
    test_near("gradient before the gain", dy, backward, ROWS * n, 1e-6);
    test_near("gradient of the gain", dgain, expected, n, 1e-6);
}

/* Value by value, and in pieces of columns. */
static void check_dropout(const mg_model_row_kernels *k, int64_t n)
{
    float y[ROWS * MOST], piece[ROWS * MOST], kept = 0;
    uint32_t ids[ROWS], words[4];
    mg_model_mask mask = {.threshold = 0x4000u, .scale = 1.5f, .key = {5, 0xfffffff7u}, .site = 33, .step = 7};
    for (int64_t i = 0; i < ROWS; i++)
        ids[i] = (uint32_t)(0x90000000u + 5 * i);
    for (int64_t i = 0; i < ROWS * n; i++)
        y[i] = 1;
    k->dropout(y, ids, ROWS, 0, n, &mask);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t c = 0; c < n; c++) {
            mg_attn_philox_rounds(words, (uint32_t[4]){ids[i], (uint32_t)(c / 8), 33, 7}, mask.key, 7);
            assert_true(y[i * n + c] == ((words[c % 8 / 2] >> c % 2 * 16 & 0xffff) < mask.threshold ? 0 : 1.5f));
            kept += y[i * n + c] > 0;
        }
    if (n > 60)
        assert_true(kept / (float)(ROWS * n) > 0.65f && kept / (float)(ROWS * n) < 0.85f);
    int64_t first = n / 2 & ~7, rest = n - first;
    for (int64_t i = 0; i < ROWS * rest; i++)
        piece[i] = 1;
    k->dropout(piece, ids, ROWS, first, rest, &mask);
    for (int64_t i = 0; i < ROWS; i++)
        test_same_bytes("columns by themselves", piece + i * rest, y + i * n + first, (size_t)rest * sizeof *y);
}

static void norm(void **state)
{
    (void)state;
    on_all(check_norm);
}
static void gain(void **state)
{
    (void)state;
    on_all(check_gain);
}
static void gelu_and_slope(void **state)
{
    (void)state;
    on_all(check_gelu);
}
static void logistic(void **state)
{
    (void)state;
    on_all(check_logistic);
}
static void softmax(void **state)
{
    (void)state;
    on_all(check_softmax);
}
static void relu(void **state)
{
    (void)state;
    on_all(check_relu);
}
static void sums(void **state)
{
    (void)state;
    on_all(check_sums);
}
static void dropout(void **state)
{
    (void)state;
    on_all(check_dropout);
}

/* --- lists --- */

enum { TOKENS = 6, EDGES = 13, FEATURES = 2 };
static const int64_t starts[TOKENS + 1] = {0, 4, 4, 7, 8, 13, 13};
static const int32_t others[EDGES] = {0, 2, 3, 5, 0, 2, 4, 1, 0, 1, 2, 3, 5};

typedef struct sample {
    float h[TOKENS * 4 * MOST], d[TOKENS * MOST], features[EDGES * FEATURES], weight[FEATURES * MOST], roots[TOKENS];
    mg_model_lists lists;
} sample;

static void fill_sample(sample *s, int64_t n, int with_features)
{
    test_fill(s->h, TOKENS * 4 * n, 21, 1);
    test_fill(s->d, TOKENS * n, 22, 1);
    test_fill(s->features, EDGES * FEATURES, 23, 1);
    test_fill(s->weight, FEATURES * n, 24, 1);
    test_fill(s->roots, TOKENS, 25, 1);
    s->lists = (mg_model_lists){.starts = starts,
                                .others = others,
                                .features = with_features ? s->features : NULL,
                                .feature_count = with_features ? FEATURES : 0,
                                .weight = s->weight};
}

static double projected(const sample *s, int64_t n, int64_t e, int64_t c)
{
    double sum = 0;
    for (int64_t f = 0; f < s->lists.feature_count; f++)
        sum += (double)s->features[e * FEATURES + f] * s->weight[f * n + c];
    return sum;
}

typedef void check_lists(const mg_model_list_kernels *k, sample *s, int64_t n);

static void check_gcn(const mg_model_list_kernels *k, sample *s, int64_t n)
{
    float y[TOKENS * MOST];
    double expected[TOKENS * MOST];
    for (int64_t i = 0; i < TOKENS; i++)
        for (int64_t c = 0; c < n; c++) {
            double sum = (double)s->roots[i] * s->h[i * n + c];
            for (int64_t e = starts[i]; e < starts[i + 1]; e++)
                sum += others[e] == i ? 0 : (double)s->roots[others[e]] * s->h[others[e] * n + c];
            expected[i * n + c] = s->roots[i] * sum;
        }
    k->gcn(y, s->h, s->roots, &s->lists, 0, TOKENS, n);
    test_near("gcn", y, expected, TOKENS * n, 2e-6);
}

static void check_gine(const mg_model_list_kernels *k, sample *s, int64_t n)
{
    float u[TOKENS * MOST];
    double expected[TOKENS * MOST];
    for (int64_t i = 0; i < TOKENS; i++)
        for (int64_t c = 0; c < n; c++) {
            double sum = 1.25 * s->h[i * n + c];
            for (int64_t e = starts[i]; e < starts[i + 1]; e++)
                sum += fmax(0, s->h[others[e] * n + c] + projected(s, n, e, c));
            expected[i * n + c] = sum;
        }
    k->gine(u, s->h, 1.25f, &s->lists, 0, TOKENS, n);
    test_near("gine", u, expected, TOKENS * n, 2e-6);
}

/* The lists are here the transposed ones: the roles of the two ends swap. */
static void check_gine_backward(const mg_model_list_kernels *k, sample *s, int64_t n)
{
    float dh[TOKENS * MOST], dweight[FEATURES * MOST] = {0};
    double expected[TOKENS * MOST], edweight[FEATURES * MOST] = {0}, along = 0;
    for (int64_t j = 0; j < TOKENS; j++)
        for (int64_t c = 0; c < n; c++) {
            double sum = 1.25 * s->d[j * n + c];
            along += (double)s->h[j * n + c] * s->d[j * n + c];
            for (int64_t e = starts[j]; e < starts[j + 1]; e++) {
                double d = s->h[j * n + c] + projected(s, n, e, c) > 0 ? s->d[others[e] * n + c] : 0;
                sum += d;
                for (int64_t f = 0; f < s->lists.feature_count; f++)
                    edweight[f * n + c] += d * s->features[e * FEATURES + f];
            }
            expected[j * n + c] = sum;
        }
    float actual = k->gine_backward(dh, dweight, s->d, s->h, 1.25f, &s->lists, 0, TOKENS, n);
    test_near("dh", dh, expected, TOKENS * n, 2e-6);
    test_near_scaled("dWe", dweight, edweight, s->lists.feature_count * n, 2e-6, 1);
    assert_true(fabs(actual - along) <= 1e-4 * fmax(1, fabs(along)));
}

static double gate(const sample *s, int64_t n, int64_t e, int64_t i, int64_t j, int64_t c)
{
    return sigmoid((double)s->h[4 * i * n + c] + s->h[(4 * j + 1) * n + c] + projected(s, n, e, c));
}

/* Quotient q and denominator of a row. */
static double gated_quotient(const sample *s, int64_t n, int64_t i, int64_t c, double *below)
{
    double above = 0;
    *below = 1e-6;
    for (int64_t e = starts[i]; e < starts[i + 1]; e++) {
        above += gate(s, n, e, i, others[e], c) * s->h[(4 * others[e] + 3) * n + c];
        *below += gate(s, n, e, i, others[e], c);
    }
    return above / *below;
}

static void check_gated(const mg_model_list_kernels *k, sample *s, int64_t n)
{
    float y[TOKENS * MOST], w[TOKENS * MOST], q[TOKENS * MOST], dabuv[TOKENS * 4 * MOST] = {0};
    double expected[TOKENS * MOST], ew[TOKENS * MOST], eq[TOKENS * MOST], below;
    for (int64_t i = 0; i < TOKENS; i++)
        for (int64_t c = 0; c < n; c++) {
            eq[i * n + c] = gated_quotient(s, n, i, c, &below);
            ew[i * n + c] = s->d[i * n + c] / below;
            expected[i * n + c] = s->h[(4 * i + 2) * n + c] + eq[i * n + c];
        }
    k->gated(y, s->h, &s->lists, 0, TOKENS, n);
    k->gated_backward_rows(dabuv, w, q, s->d, s->h, &s->lists, 0, TOKENS, n);
    test_near("gated", y, expected, TOKENS * n, 2e-6);
    test_near("w", w, ew, TOKENS * n, 2e-6);
    test_near("q", q, eq, TOKENS * n, 2e-6);
    for (int64_t i = 0; i < TOKENS; i++)
        for (int64_t c = 0; c < n; c++) {
            double da = 0;
            for (int64_t e = starts[i]; e < starts[i + 1]; e++) {
                double g = gate(s, n, e, i, others[e], c);
                da += ew[i * n + c] * (s->h[(4 * others[e] + 3) * n + c] - eq[i * n + c]) * g * (1 - g);
            }
            assert_true(fabs(dabuv[4 * i * n + c] - da) <= 1e-5);
            assert_true(dabuv[(4 * i + 2) * n + c] == s->d[i * n + c]);
        }
}

static void check_gated_columns(const mg_model_list_kernels *k, sample *s, int64_t n)
{
    float dabuv[TOKENS * 4 * MOST] = {0}, dweight[FEATURES * MOST] = {0}, q[TOKENS * MOST];
    double edweight[FEATURES * MOST] = {0};
    test_fill(q, TOKENS * n, 26, 1);
    k->gated_backward_columns(dabuv, dweight, s->d, q, s->h, &s->lists, 0, TOKENS, n);
    for (int64_t j = 0; j < TOKENS; j++)
        for (int64_t c = 0; c < n; c++) {
            double db = 0, dv = 0;
            for (int64_t e = starts[j]; e < starts[j + 1]; e++) {
                int64_t i = others[e];
                double g = gate(s, n, e, i, j, c), w = s->d[i * n + c];
                double d = w * (s->h[(4 * j + 3) * n + c] - q[i * n + c]) * g * (1 - g);
                dv += w * g;
                db += d;
                for (int64_t f = 0; f < s->lists.feature_count; f++)
                    edweight[f * n + c] += d * s->features[e * FEATURES + f];
            }
            assert_true(fabs(dabuv[(4 * j + 1) * n + c] - db) <= 1e-5);
            assert_true(fabs(dabuv[(4 * j + 3) * n + c] - dv) <= 1e-5);
        }
    test_near_scaled("dWe", dweight, edweight, s->lists.feature_count * n, 2e-6, 1);
}

static void lists(void **state)
{
    (void)state;
    static check_lists *const checks[] = {check_gcn, check_gine, check_gine_backward, check_gated, check_gated_columns};
    static sample s;
    int count;
    const mg_model_kernels *kernels = mg_model_kernels_list(&count);
    for (int k = 0; k < count; k++)
        for (int w = 0; w < WIDTHS; w++)
            for (int with = 0; with < 2; with++) {
                fill_sample(&s, widths[w], with);
                for (size_t c = 0; c < sizeof checks / sizeof *checks; c++)
                    checks[c](kernels[k].lists, &s, widths[w]);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm),     cmocka_unit_test(gain),    cmocka_unit_test(gelu_and_slope),
        cmocka_unit_test(logistic), cmocka_unit_test(softmax), cmocka_unit_test(relu),
        cmocka_unit_test(sums),     cmocka_unit_test(dropout), cmocka_unit_test(lists),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
