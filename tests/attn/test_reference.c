/* The reference against central differences, in fp64, of a forward written here with its own loops. */
#include "problem.h"
#include "philox.h"

/* Everything the loss depends on, in fp64, indexed by the map. */
typedef struct inputs64 {
    const problem *p;
    double *q, *k, *v, *table, *values, *key_bias;
} inputs64;

static double kept_share(const problem *p, int head, int64_t i, int64_t j)
{
    if (p->dropout.probability == 0)
        return 1;
    uint32_t words[4];
    mg_attn_philox_rounds(
        words,
        (uint32_t[]){p->query_ids ? p->query_ids[i] : (uint32_t)i, p->key_ids ? p->key_ids[j] : (uint32_t)j,
                     p->dropout.step, p->dropout.layer * 65536 + (uint32_t)(p->dropout.head_begin + head) / 8},
        (uint32_t[]){(uint32_t)(p->dropout.seed & 0xffffffffu), (uint32_t)(p->dropout.seed >> 32)}, 7);
    int h = p->dropout.head_begin + head;
    double drop = ceil((double)p->dropout.probability * 65536) / 65536,
           share = (words[h % 8 / 2] >> (h % 2 ? 16 : 0)) % 65536 / 65536.0;
    return share < drop ? 0 : 1 / (1 - drop);
}

static double score_of(const inputs64 *x, int h, int64_t i, int64_t j)
{
    const problem *p = x->p;
    int code = p->codes_of[i * p->keys + j];
    double s = 0;
    for (int d = 0; d < p->dim; d++)
        s += x->q[(i * p->heads + h) * p->dim + d] * x->k[(j * p->heads + h) * p->dim + d];
    s *= (double)p->scale;
    if (p->with & TABLE)
        s += x->table[h * p->codes + code];
    if (p->with & VALUES && code != p->codes - 1)
        s += x->values[(h * p->queries + i) * p->keys + j];
    if (p->with & KEY_BIAS)
        s += x->key_bias[h * p->keys + j];
    return s;
}

/* One row of one head: out and lse. No maximum is taken off: the scores here are small. */
static void row_of(double *out, double *lse, const inputs64 *x, int h, int64_t i)
{
    const problem *p = x->p;
    double sum = 0;
    memset(out, 0, (size_t)p->value_dim * sizeof *out);
    for (int64_t j = p->key_begin; j < p->key_begin + plan_keys(p); j++) {
        if (!pair_seen(p, i, j))
            continue;
        double e = exp(score_of(x, h, i, j));
        sum += e;
        for (int d = 0; d < p->value_dim; d++)
            out[d] += e * kept_share(p, h, i, j) * x->v[(j * p->heads + h) * p->value_dim + d];
    }
    for (int d = 0; d < p->value_dim && sum != 0; d++)
        out[d] /= sum;
    *lse = log(sum);
}

static double loss(const inputs64 *x)
{
    const problem *p = x->p;
    double total = 0, out[64], lse;
    for (int h = 0; h < p->heads; h++)
        for (int64_t i = p->query_begin; i < p->query_begin + plan_queries(p); i++) {
            row_of(out, &lse, x, h, i);
            for (int d = 0; d < p->value_dim; d++)
                total += out[d] * (double)p->dout[(i * p->heads + h) * p->value_dim + d];
            if (p->with & DLSE && lse != -INFINITY)
                total += lse * (double)p->dlse[h * p->queries + i];
        }
    return total;
}

static double *wide(const float *from, int64_t count)
{
    double *to = malloc((size_t)count * sizeof *to + 1);
    for (int64_t i = 0; i < count; i++)
        to[i] = from[i];
    return to;
}

/* count derivatives by parameters[first ...]. */
static void compare_gradient(const char *what, const float *actual, int64_t count, inputs64 *x, double *parameters,
                             double tolerance)
{
    double *expected = malloc((size_t)count * sizeof *expected + 1), scale = 1e-2;
    for (int64_t i = 0; i < count; i++) {
        double old = parameters[i];
        parameters[i] = old + 1e-4;
        double above = loss(x);
        parameters[i] = old - 1e-4;
        expected[i] = (above - loss(x)) / 2e-4;
        parameters[i] = old;
        scale = fmax(scale, fabs(expected[i]));
    }
    test_near_scaled(what, actual, expected, count, tolerance, scale);
    free(expected);
}

static void compare_forward(const char *what, const result *r, const inputs64 *x, double tolerance)
{
    const problem *p = x->p;
    int64_t nq = plan_queries(p);
    double *out = malloc((size_t)r->count[OUT] * sizeof *out), *lse = malloc((size_t)r->count[LSE] * sizeof *lse);
    for (int h = 0; h < p->heads; h++)
        for (int64_t i = 0; i < nq; i++)
            row_of(out + (i * p->heads + h) * p->value_dim, lse + h * nq + i, x, h, p->query_begin + i);
    test_near(what, r->of[OUT], out, r->count[OUT], tolerance);
    test_near(what, r->of[LSE], lse, r->count[LSE], 2e-7);
    free(out);
    free(lse);
}

/* A row of the key bias of the plan at a time, since the problem's is that of the map. */
static void compare_key_bias(const char *what, const result *r, inputs64 *x, double tolerance)
{
    const problem *p = x->p;
    for (int h = 0; h < p->heads; h++)
        compare_gradient(what, r->of[DKEY_BIAS] + h * plan_keys(p), plan_keys(p), x,
                         x->key_bias + h * p->keys + p->key_begin, tolerance);
}

static void compare_all(const char *name, problem wanted, double tolerance)
{
    wanted.queries = wanted.queries ? wanted.queries : 9;
    wanted.keys = wanted.keys ? wanted.keys : 11;
    wanted.dim = 3;
    wanted.value_dim = 2;
    wanted.codes = 4;
    problem *p = problem_make(wanted);
    if (p->with & BF16) {
        float *of[] = {p->q, p->k, p->v, p->dout};
        int64_t counts[] = {p->queries * p->heads * 3, p->keys * p->heads * 3, p->keys * p->heads * 2,
                            p->queries * p->heads * 2};
        for (int a = 0; a < 4; a++)
            for (int64_t i = 0; i < counts[a]; i++)
                of[a][i] = round_bf16(of[a][i]);
    }
    result r;
    problem_run(&r, p, "reference", 1);
    inputs64 x = {p,
                  wide(p->q, p->queries * p->heads * 3),
                  wide(p->k, p->keys * p->heads * 3),
                  wide(p->v, p->keys * p->heads * 2),
                  wide(p->table, p->heads * p->codes),
                  wide(p->values, p->with & VALUES ? p->heads * p->queries * p->keys : 0),
                  wide(p->key_bias, p->heads * p->keys)};
    compare_forward(name, &r, &x, tolerance);
    compare_gradient(name, r.of[DQ], r.count[DQ], &x, x.q + p->query_begin * p->heads * 3, tolerance);
    compare_gradient(name, r.of[DK], r.count[DK], &x, x.k + p->key_begin * p->heads * 3, tolerance);
    compare_gradient(name, r.of[DV], r.count[DV], &x, x.v + p->key_begin * p->heads * 2, tolerance);
    if (p->with & TABLE)
        compare_gradient(name, r.of[DTABLE], r.count[DTABLE], &x, x.table, tolerance);
    if (p->with & VALUES)
        compare_gradient(name, r.of[DVALUES], r.count[DVALUES], &x, x.values, tolerance);
    if (p->with & KEY_BIAS)
        compare_key_bias(name, &r, &x, tolerance);
    double *blocks[] = {x.q, x.k, x.v, x.table, x.values, x.key_bias};
    for (int b = 0; b < 6; b++)
        free(blocks[b]);
    result_free(&r);
    problem_free(p);
}

static void no_options(void **state)
{
    (void)state;
    compare_all("none", (problem){0}, 2e-6);
}

static void each_kind_with_all_options(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        for (int mask = 0; mask <= (kind != MG_ATTN_NONE); mask++)
            for (int look = MIXED; look <= BAND; look++) {
                char name[64];
                snprintf(name, sizeof name, "kind %d mask %d pattern %d", kind, mask, look);
                compare_all(name,
                            (problem){.kind = kind,
                                      .mask_far = mask,
                                      .pattern = look,
                                      .seed = (uint64_t)kind,
                                      .with = TABLE | KEY_BIAS | DROPOUT | DLSE | SEGMENTS |
                                              (kind == MG_ATTN_NEAR ? VALUES : 0)},
                            2e-6);
            }
}

static void each_option_alone(void **state)
{
    (void)state;
    for (unsigned with = TABLE; with <= SEGMENTS; with *= 2) {
        char name[64];
        snprintf(name, sizeof name, "option %u", with);
        compare_all(name, (problem){.kind = MG_ATTN_NEAR, .pattern = RANDOM, .with = with, .seed = with}, 2e-6);
    }
}

static void ranges(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        compare_all(
            "range",
            (problem){.kind = kind,
                      .pattern = RANDOM,
                      .query_begin = 2,
                      .query_end = 7,
                      .key_begin = 3,
                      .key_end = 10,
                      .with = TABLE | KEY_BIAS | DROPOUT | SEGMENTS | DLSE | (kind == MG_ATTN_NEAR ? VALUES : 0)},
            2e-6);
}

static void more_than_a_block(void **state)
{
    (void)state;
    compare_all(
        "70 x 41",
        (problem){
            .queries = 70, .keys = 41, .heads = 1, .kind = MG_ATTN_TILES, .pattern = RANDOM, .with = TABLE | DLSE},
        2e-6);
}

static void ids_and_head_of_dropout(void **state)
{
    (void)state;
    uint32_t ids[16];
    for (uint32_t i = 0; i < 16; i++)
        ids[i] = 1000000007u * (i + 1);
    compare_all("ids", (problem){.with = DROPOUT, .heads = 6, .query_ids = ids, .key_ids = ids + 2}, 2e-6);
}

static void bf16(void **state)
{
    (void)state;
    compare_all("fp32 out of bf16", (problem){.kind = MG_ATTN_DENSE, .with = TABLE | BF16 | OUT_FP32 | GRADIENTS_FP32},
                2e-6);
    compare_all("bf16", (problem){.kind = MG_ATTN_DENSE, .with = TABLE | BF16}, 1.5e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_options),
        cmocka_unit_test(each_kind_with_all_options),
        cmocka_unit_test(each_option_alone),
        cmocka_unit_test(ranges),
        cmocka_unit_test(more_than_a_block),
        cmocka_unit_test(ids_and_head_of_dropout),
        cmocka_unit_test(bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
