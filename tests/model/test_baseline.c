/* Attention by edges against libattn's specification, by the kernels of every instruction set, and the bytes it takes.
 */
#include "baseline_internal.h"
#include "support/test.h"

enum { TOKENS = 83, CODES = 5, LAYERS = 2, GRADIENTS = 3 };

/* A random list of pairs: token 3 sees nobody, nobody sees token 4, token 7 sees all but that one. */
typedef struct list {
    int64_t starts[TOKENS + 1];
    int32_t columns[TOKENS * TOKENS];
    uint8_t codes[TOKENS * TOKENS];
    mg_attn_map map;
} list;

static void fill(list *l)
{
    int64_t pairs = 0;
    for (int64_t i = 0; i < TOKENS; i++) {
        l->starts[i] = pairs;
        for (int32_t j = 0; j < TOKENS; j++)
            if (i != 3 && j != 4 && (i == 7 || test_random(1, (uint64_t)(i * TOKENS + j)) > 0.6f)) {
                l->columns[pairs] = j;
                l->codes[pairs] = (uint8_t)(pairs * 7 % (CODES - 1));
                pairs++;
            }
    }
    l->starts[TOKENS] = pairs;
    l->map = (mg_attn_map){.kind = MG_ATTN_NEAR,
                           .queries = TOKENS,
                           .keys = TOKENS,
                           .codes = CODES,
                           .far_code = CODES - 1,
                           .mask_far = 1,
                           .near_starts = l->starts,
                           .near_columns = l->columns,
                           .near_codes = l->codes};
}

/* Arrays of a call of either side. */
typedef struct side {
    mg_attn_call call;
    float *out, *lse, *gradients, *dtable;
} side;

static mg_attn_tensor tensor(float *data, int32_t heads, int32_t dim)
{
    return (mg_attn_tensor){.data = data, .token_stride = (int64_t)heads * dim, .head_stride = dim};
}

static side make(float *inputs, const float *table, int32_t heads, int32_t dim)
{
    const int64_t floats = (int64_t)TOKENS * heads * dim;
    side s = {.out = calloc((size_t)floats, 4),
              .lse = calloc((size_t)TOKENS * (size_t)heads, 4),
              .gradients = calloc((size_t)floats * GRADIENTS, 4),
              .dtable = calloc((size_t)heads * CODES, 4)};
    s.call = (mg_attn_call){.heads = heads,
                            .dim = dim,
                            .value_dim = dim,
                            .scale = 1 / sqrtf((float)dim),
                            .threads = 2,
                            .q = tensor(inputs, heads, dim),
                            .k = tensor(inputs + floats, heads, dim),
                            .v = tensor(inputs + 2 * floats, heads, dim),
                            .dout = tensor(inputs + 3 * floats, heads, dim),
                            .out = tensor(s.out, heads, dim),
                            .lse = s.lse,
                            .table = table,
                            .dropout = {.layer = LAYERS - 1},
                            .dq = tensor(s.gradients, heads, dim),
                            .dk = tensor(s.gradients + floats, heads, dim),
                            .dv = tensor(s.gradients + 2 * floats, heads, dim),
                            .dtable = s.dtable};
    return s;
}

static void drop(side *s)
{
    free(s->out);
    free(s->lse);
    free(s->gradients);
    free(s->dtable);
}

static void near(const char *what, const float *actual, const float *expected, int64_t count)
{
    double *wide = malloc((size_t)count * sizeof *wide);
    for (int64_t i = 0; i < count; i++)
        wide[i] = expected[i];
    test_near(what, actual, wide, count, 3e-6);
    free(wide);
}

static void compare(const side *a, const side *b)
{
    const int64_t floats = (int64_t)TOKENS * a->call.heads * a->call.dim;
    near("out", a->out, b->out, floats);
    near("dq", a->gradients, b->gradients, floats);
    near("dk", a->gradients + floats, b->gradients + floats, floats);
    near("dv", a->gradients + 2 * floats, b->gradients + 2 * floats, floats);
    near("dtable", a->dtable, b->dtable, (int64_t)a->call.heads * CODES);
}

static void specify(side *s, const mg_attn_map *map)
{
    mg_attn_plan *plan;
    assert_int_equal(mg_attn_plan_create(&plan, map), 0);
    assert_int_equal(mg_attn_reference_forward(plan, &s->call), 0);
    assert_int_equal(mg_attn_reference_backward(plan, &s->call), 0);
    mg_attn_plan_destroy(plan);
}

static void compute(side *s, const mg_attn_map *map, mg_model_baseline_kind kind, const mg_model_kernels *kernels)
{
    mg_model_baseline *b;
    assert_int_equal(
        mg_model_baseline_create(&b, &(mg_model_baseline_desc){kind, map, s->call.heads, s->call.dim, LAYERS}), 0);
    b->edges = kernels->edges;
    mg_attn_engine engine = mg_model_baseline_engine(b);
    int64_t forward = engine.workspace_bytes(b, &s->call, 0), backward = engine.workspace_bytes(b, &s->call, 1);
    assert_true(forward > 0 && backward > forward);
    s->call.workspace = aligned_alloc(64, (size_t)(backward + 63) / 64 * 64);
    memset(s->call.workspace, 255, (size_t)backward); /* NaN: nothing may be read before it is written */
    assert_int_equal(engine.forward(b, &s->call), 0);
    assert_int_equal(engine.backward(b, &s->call), 0);
    free(s->call.workspace);
    mg_model_baseline_destroy(b);
}

static void edges_are_the_specification(void **state)
{
    static const int32_t shapes[][2] = {{8, 8},  {1, 8},  {2, 4}, {4, 16}, {3, 5}, {1, 1},  {12, 8},
                                        {20, 3}, {2, 64}, {3, 8}, {1, 70}, {5, 4}, {16, 32}};
    static list l;
    (void)state;
    int count;
    const mg_model_kernels *kernels = mg_model_kernels_list(&count);
    fill(&l);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int32_t heads = shapes[s][0], dim = shapes[s][1];
        const int64_t floats = (int64_t)4 * TOKENS * heads * dim;
        float *inputs = malloc((size_t)floats * 4), *table = malloc((size_t)heads * CODES * 4);
        test_fill(inputs, floats, 2, 1);
        test_fill(table, heads * CODES, 3, 1);
        side expected = make(inputs, table, heads, dim);
        specify(&expected, &l.map);
        for (int k = 0; k < count; k++)
            for (int kind = MG_MODEL_BASELINE_EDGE; kind <= MG_MODEL_BASELINE_EDGE_ROWS; kind++) {
                side actual = make(inputs, table, heads, dim);
                compute(&actual, &l.map, (mg_model_baseline_kind)kind, &kernels[k]);
                compare(&actual, &expected);
                drop(&actual);
            }
        drop(&expected);
        free(inputs);
        free(table);
    }
}

/* --- bytes --- */

static int64_t taken;
static int take(int64_t bytes)
{
    taken += bytes > 0 ? bytes : 0;
    return 0;
}

static void bytes_are_the_formula(void **state)
{
    enum { HEADS = 4, DIM = 8 };
    static list l;
    (void)state;
    fill(&l);
    for (int kind = MG_MODEL_BASELINE_EDGE; kind <= MG_MODEL_BASELINE_EDGE_ROWS; kind++) {
        mg_model_baseline_desc desc = {(mg_model_baseline_kind)kind, &l.map, HEADS, DIM, LAYERS};
        const int64_t pairs = l.starts[TOKENS], weights = pairs * HEADS, table = 256 * HEADS * 32;
        const int64_t lists = 8 * (TOKENS + 1) + 8 * pairs;
        const int64_t floats = kind == MG_MODEL_BASELINE_EDGE
                                   ? LAYERS * weights * (3 * DIM + 1) + weights * (2 * DIM + 1) + table
                                   : LAYERS * weights + weights + table;
        mg_model_baseline *b;
        static float inputs[4 * TOKENS * HEADS * DIM];
        side s = make(inputs, (const float[]){0}, HEADS, DIM);
        assert_true(mg_model_baseline_bytes(&desc, TOKENS, pairs, 1) == (double)(4 * floats + lists));
        taken = 0;
        mg_model_set_memory_hook(take);
        assert_int_equal(mg_model_baseline_create(&b, &desc), 0);
        mg_model_set_memory_hook(NULL);
        const int64_t held = taken + mg_model_baseline_engine(b).workspace_bytes(b, &s.call, 1);
        const int64_t small = (int64_t)sizeof *b + LAYERS * (int64_t)sizeof(float *);
        if (held != small + 4 * floats + lists)
            fail_msg("kind %d takes %lld bytes, the formula says %lld", kind, (long long)held,
                     (long long)(4 * floats + lists));
        drop(&s);
        mg_model_baseline_destroy(b);
    }
}

static void refused(void **state)
{
    static list l;
    (void)state;
    fill(&l);
    mg_model_baseline *b;
    mg_model_baseline_desc desc = {MG_MODEL_BASELINE_EDGE, &l.map, 2, 8, 1};
    assert_int_equal(mg_model_baseline_create(&b, &desc), 0);
    mg_attn_engine engine = mg_model_baseline_engine(b);
    float inputs[4 * TOKENS * 16] = {0}, table[2 * CODES] = {0};
    side s = make(inputs, table, 2, 8);
    s.call.dropout.layer = 0;
    assert_true(engine.workspace_bytes(b, &s.call, 0) > 0);
    s.call.q.head_stride = 9;
    assert_int_equal(engine.forward(b, &s.call), -EINVAL);
    assert_non_null(strstr(mg_model_last_error(), "these are 9"));
    s.call.q.head_stride = 8;
    s.call.dim = 7;
    assert_int_equal(engine.forward(b, &s.call), -EINVAL);
    drop(&s);
    mg_model_baseline_destroy(b);
    desc.dim = 0;
    assert_int_equal(mg_model_baseline_create(&b, &desc), -EINVAL);
}

static int made(void *context)
{
    mg_model_baseline *b;
    int status = mg_model_baseline_create(&b, context);
    mg_model_baseline_destroy(b);
    return status;
}

static void memory_runs_out(void **state)
{
    static list l;
    (void)state;
    fill(&l);
    for (int kind = MG_MODEL_BASELINE_EDGE; kind <= MG_MODEL_BASELINE_EDGE_ROWS; kind++) {
        mg_model_baseline_desc desc = {(mg_model_baseline_kind)kind, &l.map, 2, 8, LAYERS};
        assert_true(test_every_allocation_fails(mg_model_set_memory_hook, made, &desc) >= 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_are_the_specification),
        cmocka_unit_test(bytes_are_the_formula),
        cmocka_unit_test(refused),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
