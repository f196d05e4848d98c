/* Philox against its published answers, and dropout against Philox, pair by pair. */
#include "problem.h"
#include "philox.h"

static void known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], words[4], masks[4];
    } known[] = {
        /* kat_vectors of Random123, philox4x32 10 and 7 */
        {{0, 0, 0, 0},
         {0, 0},
         {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
         {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
         {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
         {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}},
    };
    for (size_t n = 0; n < sizeof known / sizeof *known; n++) {
        uint32_t words[4];
        mg_attn_philox(words, known[n].counter, known[n].key);
        assert_memory_equal(words, known[n].words, sizeof words);
        mg_attn_philox_rounds(words, known[n].counter, known[n].key, MG_ATTN_MASK_ROUNDS);
        assert_memory_equal(words, known[n].masks, sizeof words);
    }
}

/* Some probability is never none, and some pairs always stay. */
static void limits_round_up(void **state)
{
    (void)state;
    assert_int_equal(mg_attn_mask_limit(0.5), 0x8000);
    assert_int_equal(mg_attn_mask_limit(1e-9), 1);
    assert_int_equal(mg_attn_mask_limit(0.3), 19661); /* 19660.8 */
    assert_int_equal(mg_attn_mask_limit(0.9999999), 0xFFFF);
    assert_true(mg_attn_mask_scale(0x8000) == 2 && mg_attn_mask_scale(0xFFFF) == 65536);
}

/* With keys as values (a unit matrix), out[i][j] is dropout(P)[i][j]; with q = 0, P is 1 / keys. */
static problem *mask_shower(problem wanted)
{
    wanted.heads = wanted.heads ? wanted.heads : 6;
    wanted.dim = 4;
    wanted.value_dim = (int32_t)wanted.keys;
    wanted.with |= DROPOUT;
    problem *p = problem_make(wanted);
    memset(p->q, 0, (size_t)(p->queries * p->heads * 4) * sizeof *p->q);
    for (int64_t j = 0; j < p->keys; j++)
        for (int64_t x = 0; x < p->heads * p->keys; x++)
            p->v[j * p->heads * p->keys + x] = x % p->keys == j;
    return p;
}

static void compare_mask(const problem *p, const char *backend)
{
    result r;
    problem_run(&r, p, backend, 1);
    int64_t dropped = 0, count = p->queries * p->heads * p->keys;
    for (int64_t x = 0; x < count; x++) {
        uint32_t i = (uint32_t)(x / p->keys / p->heads), j = (uint32_t)(x % p->keys), words[4];
        uint32_t h = (uint32_t)(x / p->keys % p->heads + p->dropout.head_begin);
        mg_attn_philox_rounds(words,
                              (uint32_t[]){p->query_ids ? p->query_ids[i] : i, p->key_ids ? p->key_ids[j] : j,
                                           p->dropout.step, p->dropout.layer << 16 | h / 8},
                              (uint32_t[]){(uint32_t)p->dropout.seed, (uint32_t)(p->dropout.seed >> 32)}, 7);
        uint32_t bits = h % 2 ? words[h / 2 % 4] >> 16 : words[h / 2 % 4] & 0xffff;
        double limit = ceil((double)p->dropout.probability * 65536);
        int drop = bits < limit;
        double expected = drop ? 0 : 1 / (p->keys * (1 - limit / 65536));
        dropped += drop;
        if (!(fabs(r.of[OUT][x] - expected) <= 1e-6 * expected))
            fail_msg("%s: query %u, key %u, head %u: %g, expected %g", backend, i, j, h, (double)r.of[OUT][x],
                     expected);
    }
    double mean = (double)p->dropout.probability * (double)count,
           deviation = sqrt(mean * (1 - (double)p->dropout.probability));
    assert_true(fabs((double)dropped - mean) <= 5 * deviation);
    result_free(&r);
}

static void mask_is_philox_of_ids(void **state)
{
    (void)state;
    uint32_t ids[300];
    for (uint32_t i = 0; i < 300; i++)
        ids[i] = i * 2654435761u;
    for (const char *const *backend = all_backends(); *backend; backend++)
        for (int variant = 0; variant < 5; variant++) {
            problem *p = mask_shower((problem){.queries = 67, .keys = variant == 4 ? 130 : 70});
            p->dropout.probability = (const float[]){.3f, .001f, .5f, .97f, .1f}[variant];
            p->dropout.head_begin = (const int32_t[]){0, 2, 5, 1023, 3}[variant];
            p->dropout.step = (uint32_t)variant * 0x80000001u;
            p->dropout.layer = variant == 3 ? 65535 : (uint32_t)variant;
            p->query_ids = variant & 1 ? ids : NULL;
            p->key_ids = variant & 2 ? ids + 40 : NULL;
            compare_mask(p, *backend);
            problem_free(p);
        }
}

/* Every kind, part ranges and packed graphs have the mask of the whole. */
static void mask_of_every_kind(void **state)
{
    (void)state;
    for (int kind = MG_ATTN_NONE; kind <= MG_ATTN_STREAM; kind++)
        for (int part = 0; part < 2; part++) {
            problem wanted = {.queries = 150,
                              .keys = 170,
                              .kind = kind,
                              .dim = 8,
                              .heads = 9,
                              .with =
                                  TABLE | DROPOUT | DLSE | (part ? SEGMENTS : 0) | (kind == MG_ATTN_NEAR ? VALUES : 0)};
            if (part)
                wanted.query_begin = 13, wanted.query_end = 140, wanted.key_begin = 70, wanted.key_end = 169;
            problem *p = problem_make(wanted);
            compare_backends("dropout", p, 1e-5);
            problem_free(p);
        }
}

/* The same tokens in another order, with their ids, give the same rows. */
static void mask_does_not_depend_on_order(void **state)
{
    (void)state;
    enum { N = 130, ROW = 2 * 16 };
    uint32_t ids[N];
    problem *p = problem_make((problem){.queries = N, .with = DROPOUT}),
            *turned = problem_make((problem){.queries = N, .with = DROPOUT});
    for (int i = 0; i < N; i++) {
        int from = (i * 37 + 11) % N;
        ids[i] = (uint32_t)from;
        memcpy(turned->q + i * ROW, p->q + from * ROW, ROW * sizeof(float));
        memcpy(turned->k + i * ROW, p->k + from * ROW, ROW * sizeof(float));
        memcpy(turned->v + i * ROW, p->v + from * ROW, ROW * sizeof(float));
    }
    turned->query_ids = turned->key_ids = ids;
    for (const char *const *backend = all_backends(); *backend; backend++) {
        result a, b;
        problem_run(&a, p, *backend, 1);
        problem_run(&b, turned, *backend, 1);
        for (int i = 0; i < N * ROW; i++) {
            int from = (int)ids[i / ROW] * ROW + i % ROW;
            if (!(fabsf(b.of[OUT][i] - a.of[OUT][from]) <= 2e-6f))
                fail_msg("%s: token %d", *backend, i / ROW);
        }
        result_free(&a);
        result_free(&b);
    }
    problem_free(p);
    problem_free(turned);
}

/* Some of the heads alone, with head_begin, equal those of all heads. */
static void heads_apart_equal_together(void **state)
{
    (void)state;
    enum { N = 80, H = 11, FROM = 6, SOME = 4, D = 8 }; /* words are shared up to head 7 */
    problem *all = problem_make((problem){.queries = N, .heads = H, .dim = D, .with = DROPOUT});
    problem *some = problem_make((problem){.queries = N, .heads = SOME, .dim = D, .with = DROPOUT});
    for (int i = 0; i < N; i++)
        for (int x = 0; x < SOME * D; x++) {
            some->q[i * SOME * D + x] = all->q[(i * H + FROM) * D + x];
            some->k[i * SOME * D + x] = all->k[(i * H + FROM) * D + x];
            some->v[i * SOME * D + x] = all->v[(i * H + FROM) * D + x];
            some->dout[i * SOME * D + x] = all->dout[(i * H + FROM) * D + x];
        }
    some->dropout.head_begin = FROM;
    for (const char *const *backend = all_backends(); *backend; backend++) {
        result a, b;
        problem_run(&a, all, *backend, 1);
        problem_run(&b, some, *backend, 1);
        for (int i = 0; i < N; i++)
            for (int which = OUT; which <= DV; which++)
                for (int x = 0; which != LSE && x < SOME * D; x++)
                    if (!(fabsf(b.of[which][i * SOME * D + x] - a.of[which][(i * H + FROM) * D + x]) <= 1e-5f))
                        fail_msg("%s: token %d, result %d", *backend, i, which);
        result_free(&a);
        result_free(&b);
    }
    problem_free(all);
    problem_free(some);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(limits_round_up),
        cmocka_unit_test(mask_is_philox_of_ids),
        cmocka_unit_test(mask_of_every_kind),
        cmocka_unit_test(mask_does_not_depend_on_order),
        cmocka_unit_test(heads_apart_equal_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
