/* Near pairs, tiles and streams against dense codes, and the cost of a plan: cases 22 to 24 of the attention cases. */
#include "problem.h"

#include <math.h>
#include <time.h>

static int plan_near(const char *backend, int64_t queries, int64_t keys, const int64_t *starts, const int32_t *columns)
{
    mg_attn_plan *plan = NULL;
    mg_attn_map map = {.kind = MG_ATTN_NEAR,
                       .queries = queries,
                       .keys = keys,
                       .codes = 2,
                       .far_code = 1,
                       .near_starts = starts,
                       .near_columns = columns};
    assert_int_equal(mg_attn_use_backend(backend), 0);
    int status = mg_attn_plan_create(&plan, &map);
    mg_attn_use_backend(NULL);
    if (!status)
        mg_attn_plan_destroy(plan);
    return status;
}

static void case_22_wrong_columns_name_their_row(void **state)
{
    (void)state;
    enum { N = 50, PER = 3, ROW = 37 };
    int64_t starts[N + 1];
    int32_t columns[N * PER];
    const int32_t bad[][PER] = {{4, 4, 9}, {4, 9, 8}, {4, 9, N}, {-1, 3, 5}, {1, 2, INT32_MAX}, {3, 2, 1}, {1, 7, 7}};
    for (int i = 0; i <= N; i++)
        starts[i] = i * PER;
    for (const char *const *backend = all_backends(); *backend; backend++) {
        for (int x = 0; x < N * PER; x++)
            columns[x] = x % PER * 7 + x / PER % 5;
        assert_int_equal(plan_near(*backend, N, N, starts, columns), 0);
        for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
            memcpy(columns + ROW * PER, bad[b], sizeof bad[b]);
            assert_int_equal(plan_near(*backend, N, N, starts, columns), -EINVAL);
            assert_error_says("37");
        }
        memcpy(columns + ROW * PER, (const int32_t[]){0, 1, N - 1}, sizeof bad[0]);
        assert_int_equal(plan_near(*backend, N, N, starts, columns), 0);
        starts[ROW + 1] = starts[ROW] - 1;
        assert_int_equal(plan_near(*backend, N, N, starts, columns), -EINVAL);
        assert_error_says("37");
        starts[ROW + 1] = (ROW + 1) * PER;
    }
}

static void case_22_empty_rows_are_legal(void **state)
{
    (void)state;
    for (int mask = 0; mask < 2; mask++) {
        problem *p = problem_make((problem){
            .queries = 130, .keys = 200, .kind = MG_ATTN_NEAR, .mask_far = mask, .with = TABLE | VALUES | DLSE});
        for (int i = 0; i < 130; i++)
            if (i < 3 || i == 64 || i > 120 || i % 5 == 0)
                memset(p->codes_of + i * 200, 7, 200);
        compare_backends("some rows", p, 1e-5);
        memset(p->codes_of, 7, 130 * 200);
        compare_backends("no row lists a pair", p, 1e-5);
        problem_free(p);
    }
}

static void case_23_every_kind_equals_dense(void **state)
{
    (void)state;
    for (int look = MIXED; look <= ONE_CODE; look++)
        for (int mask = 0; mask < 2; mask++)
            for (unsigned with = TABLE | DLSE; with <= (TABLE | DLSE | SEGMENTS); with += SEGMENTS) {
                problem *p = problem_make((problem){.queries = 190,
                                                    .keys = 170,
                                                    .dim = 8,
                                                    .codes = 5,
                                                    .kind = MG_ATTN_DENSE,
                                                    .pattern = look,
                                                    .mask_far = mask,
                                                    .with = with});
                for (const char *const *backend = all_backends(); *backend; backend++) {
                    result dense, r;
                    p->kind = MG_ATTN_DENSE;
                    problem_run(&dense, p, *backend, 1);
                    for (int kind = MG_ATTN_NEAR; kind <= MG_ATTN_STREAM; kind++) {
                        char what[64];
                        snprintf(what, sizeof what, "%s: kind %d, pattern %d, mask %d", *backend, kind, look, mask);
                        p->kind = kind;
                        problem_run(&r, p, *backend, 1);
                        result_near(what, &r, &dense, 5e-6);
                        result_free(&r);
                    }
                    result_free(&dense);
                }
                problem_free(p);
            }
}

/* Bands, as sparse as graphs are, up to a hub that sees all and is seen by all. */
static void case_23_sparse_rows_of_any_length(void **state)
{
    (void)state;
    for (int every = 3; every < 400; every *= 4)
        for (int dim = 8; dim <= 64; dim += 28) {
            problem *p = problem_make((problem){.queries = 300,
                                                .keys = 310,
                                                .dim = dim,
                                                .heads = 1,
                                                .kind = MG_ATTN_NEAR,
                                                .mask_far = 1,
                                                .pattern = ONE_CODE,
                                                .codes = 6,
                                                .with = TABLE | VALUES | KEY_BIAS | DROPOUT | DLSE});
            for (int x = 0; x < 300 * 310; x++) {
                uint64_t bits = test_random_bits((uint64_t)every, (uint64_t)x);
                int hub = x / 310 == 100 || x % 310 == 200;
                p->codes_of[x] = hub || bits % (uint64_t)every == 0 ? (uint8_t)(bits >> 32) % 5 : 5;
            }
            char what[64];
            snprintf(what, sizeof what, "one pair in %d, dim %d", every, dim);
            compare_backends(what, p, 1e-5);
            problem_free(p);
        }
}

/* 15 heads are done as 8, 4, 2 and 1 of them; where a head hides a code that others see, one by one. */
static void case_23_sparse_heads_together(void **state)
{
    (void)state;
    static const int32_t dims[][2] = {{8, 8}, {16, 16}, {16, 8}, {32, 32}, {12, 20}, {64, 64}, {40, 64}};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int hide = 0; hide < 2; hide++)
            for (unsigned with = 0; with <= (VALUES | DROPOUT | KEY_BIAS); with += VALUES | DROPOUT | KEY_BIAS) {
                const int codes = d % 2 ? 4 : 6; /* sums of few are held in registers */
                problem *p = problem_make((problem){.queries = 150,
                                                    .keys = 140,
                                                    .dim = dims[d][0],
                                                    .value_dim = dims[d][1],
                                                    .heads = 15,
                                                    .kind = MG_ATTN_NEAR,
                                                    .mask_far = 1,
                                                    .pattern = ONE_CODE,
                                                    .codes = codes,
                                                    .with = TABLE | DLSE | with});
                for (int x = 0; x < 150 * 140; x++) {
                    uint64_t bits = test_random_bits(7, (uint64_t)x);
                    int hub = x / 140 == 100 || x % 140 == 30;
                    p->codes_of[x] =
                        hub || bits % 20 == 0 ? (uint8_t)((bits >> 32) % (codes - 1)) : (uint8_t)(codes - 1);
                }
                for (int head = 0; hide && head < 15; head += 3)
                    p->table[head * codes + head % (codes - 1)] = -INFINITY;
                char what[64];
                snprintf(what, sizeof what, "dims %d and %d, hidden %d, with %u", dims[d][0], dims[d][1], hide, with);
                compare_backends(what, p, 1e-5);
                problem_free(p);
            }
}

/* Some tokens repeated: each copy sees itself, and one of its tokens all of it. */
enum { COPY = 320, COPIES = 64, PER_TOKEN = 7, COPY_PAIRS = (COPY - 1) * PER_TOKEN + COPY, WIDTH = 64 };

static void run_copies(const char *backend, int64_t copies, int32_t heads, int threads, float *results[4])
{
    const int64_t tokens = copies * COPY, pairs = copies * COPY_PAIRS, floats = tokens * WIDTH;
    int64_t *starts = malloc((size_t)(tokens + 1) * sizeof *starts), at = 0;
    int32_t *columns = malloc((size_t)pairs * sizeof *columns);
    uint8_t *codes = malloc((size_t)pairs);
    float *in = NULL, *lse = malloc((size_t)(tokens * heads) * sizeof *lse), table[8 * 3], dtable[8 * 3];
    starts[0] = 0;
    for (int64_t i = 0; i < tokens; i++) {
        const int64_t own = i % COPY, step = own == 100 ? 1 : COPY / PER_TOKEN;
        for (int64_t j = own == 100 ? 0 : own % step; j < (own == 100 ? COPY : PER_TOKEN * step); j += step, at++) {
            columns[at] = (int32_t)(i - own + j);
            codes[at] = (uint8_t)((own + j) % 2);
        }
        starts[i + 1] = at;
    }
    assert_int_equal(at, pairs);
    assert_int_equal(posix_memalign((void **)(void *)&in, 64, (size_t)(4 * floats) * sizeof *in), 0);
    for (int64_t i = 0; i < 4 * floats; i++)
        in[i] = test_random(3, (uint64_t)(i / floats * COPY * WIDTH + i % (COPY * WIDTH)));
    for (int i = 0; i < 24; i++)
        table[i] = test_random(4, (uint64_t)i);
    const int32_t dim = WIDTH / heads;
    mg_attn_plan *plan = plan_make(&(mg_attn_map){.kind = MG_ATTN_NEAR,
                                                  .queries = tokens,
                                                  .keys = tokens,
                                                  .codes = 3,
                                                  .far_code = 2,
                                                  .mask_far = 1,
                                                  .near_starts = starts,
                                                  .near_columns = columns,
                                                  .near_codes = codes},
                                   backend);
    mg_attn_call call = {.heads = heads,
                         .dim = dim,
                         .scale = 0.5f,
                         .threads = threads,
                         .table = table,
                         .q = {in, WIDTH, dim},
                         .k = {in + floats, WIDTH, dim},
                         .v = {in + 2 * floats, WIDTH, dim},
                         .out = {results[0], WIDTH, dim},
                         .lse = lse,
                         .dout = {in + 3 * floats, WIDTH, dim},
                         .dq = {results[1], WIDTH, dim},
                         .dk = {results[2], WIDTH, dim},
                         .dv = {results[3], WIDTH, dim},
                         .dtable = dtable};
    const int64_t forward = mg_attn_workspace_bytes(plan, &call, 0), backward = mg_attn_workspace_bytes(plan, &call, 1);
    assert_int_equal(posix_memalign(&call.workspace, 64, (size_t)(forward > backward ? forward : backward) + 1), 0);
    assert_int_equal(mg_attn_forward(plan, &call), 0);
    assert_int_equal(mg_attn_backward(plan, &call), 0);
    mg_attn_plan_destroy(plan);
    free(call.workspace), free(in), free(lse), free(codes), free(columns), free(starts);
}

/* Large results are stored past the cache: each copy's are those of one alone, bit by bit. */
static void large_results_are_those_of_small_ones(void **state)
{
    (void)state;
    const int64_t small = COPY * WIDTH, large = COPIES * small;
    float *of_one[4], *of_all[4];
    for (int r = 0; r < 4; r++) {
        assert_int_equal(posix_memalign((void **)(void *)&of_one[r], 64, (size_t)small * sizeof(float)), 0);
        assert_int_equal(posix_memalign((void **)(void *)&of_all[r], 64, (size_t)large * sizeof(float)), 0);
    }
    for (const char *const *backend = all_backends(); *backend; backend++)
        for (int32_t heads = 1; heads <= 8 && strcmp(*backend, "reference"); heads *= 2) {
            run_copies(*backend, 1, heads, 1, of_one);
            run_copies(*backend, COPIES, heads, 1 + heads % 3, of_all);
            for (int r = 0; r < 4; r++)
                for (int64_t copy = 0; copy < COPIES; copy++)
                    test_same_bytes(*backend, of_all[r] + copy * small, of_one[r], (size_t)small * sizeof(float));
        }
    for (int r = 0; r < 4; r++)
        free(of_one[r]), free(of_all[r]);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A ring of nodes, each near to its 8 neighbours: 30000 x 30000 pairs would be a billion to look at. */
static void case_24_plan_costs_by_near_pairs(void **state)
{
    (void)state;
    enum { N = 30000, PER = 9 };
    int64_t *starts = malloc((N + 1) * sizeof *starts);
    int32_t *columns = malloc(N * PER * sizeof *columns);
    for (int i = 0; i <= N; i++)
        starts[i] = (int64_t)i * PER;
    for (int i = 0; i < N; i++)
        for (int e = 0; e < PER; e++)
            columns[i * PER + e] = i < 4 ? e : i >= N - 4 ? N - PER + e : i - 4 + e;
    for (const char *const *backend = tiled_backends(); *backend; backend++)
        for (int mask = 0; mask < 2; mask++) {
            mg_attn_map map = {.kind = MG_ATTN_NEAR,
                               .queries = N,
                               .keys = N,
                               .codes = 2,
                               .far_code = 1,
                               .mask_far = mask,
                               .near_starts = starts,
                               .near_columns = columns};
            mg_attn_plan_info info;
            double before = seconds();
            mg_attn_plan *plan = plan_make(&map, *backend);
            double took = seconds() - before;
            mg_attn_plan_describe(&info, plan);
            mg_attn_plan_destroy(plan);
            assert_int_equal(info.seen_pairs, mask ? (int64_t)N * PER : (int64_t)N * N);
            assert_true(took < 2); /* milliseconds, where looking at a billion pairs takes seconds */
            assert_true(info.plan_bytes < 64 * ((int64_t)N * PER + (N / 64 + 1) * (N / 64 + 1)));
        }
    free(starts);
    free(columns);
}

/* One plan, many calls: other heads, dims and types between two equal ones. */
static void case_24_plan_is_reusable(void **state)
{
    (void)state;
    enum { N = 150 };
    problem *p =
        problem_make((problem){.queries = N, .kind = MG_ATTN_NEAR, .mask_far = 1, .pattern = BAND, .with = TABLE});
    mg_attn_map map;
    encoded *e = map_encode(&map, p);
    for (const char *const *backend = all_backends(); *backend; backend++) {
        mg_attn_plan *plan = plan_make(&map, *backend);
        float *out[2], lse[4 * N];
        for (int turn = 0; turn < 4; turn++) {
            int32_t heads = turn % 2 ? 1 : 2, dim = turn % 2 ? 32 : 16;
            float *to = malloc(N * 32 * sizeof *to);
            mg_attn_tensor q = {p->q, 32, dim}, k = {p->k, 32, dim}, v = {p->v, 32, dim};
            mg_attn_call call = {.heads = heads,
                                 .dim = dim,
                                 .scale = p->scale,
                                 .table = p->table,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .out = {to, 32, dim},
                                 .lse = lse};
            assert_int_equal(posix_memalign(&call.workspace, 64, (size_t)mg_attn_workspace_bytes(plan, &call, 0) + 1),
                             0);
            assert_int_equal(mg_attn_forward(plan, &call), 0);
            free(call.workspace);
            if (turn % 2)
                free(to);
            else
                out[turn / 2] = to;
        }
        test_same_bytes(*backend, out[1], out[0], N * 32 * sizeof(float));
        free(out[0]);
        free(out[1]);
        mg_attn_plan_destroy(plan);
    }
    map_free(e);
    problem_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_22_wrong_columns_name_their_row),
        cmocka_unit_test(case_22_empty_rows_are_legal),
        cmocka_unit_test(case_23_every_kind_equals_dense),
        cmocka_unit_test(case_23_sparse_rows_of_any_length),
        cmocka_unit_test(case_23_sparse_heads_together),
        cmocka_unit_test(large_results_are_those_of_small_ones),
        cmocka_unit_test(case_24_plan_costs_by_near_pairs),
        cmocka_unit_test(case_24_plan_is_reusable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
