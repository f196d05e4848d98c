#include "problem.h"

static float *filled(int64_t count, uint64_t seed, float scale)
{
    float *values = malloc((size_t)count * sizeof *values + 1);
    test_fill(values, count, seed, scale);
    return values;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float round_bf16(float x)
{
    uint32_t bits = bits_of(x);
    return isnan(x) ? x : float_of((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

static uint8_t pattern_code(const problem *p, int64_t i, int64_t j)
{
    uint64_t far = (uint64_t)p->codes - 1, any = test_random_bits(p->seed + 1, (uint64_t)(i * p->keys + j));
    uint64_t tile = test_random_bits(p->seed + 2, (uint64_t)(i / 64 * 4096 + j / 64)), constant = tile >> 8;
    uint8_t random_code = (uint8_t)(any % (far + 1));
    int64_t apart = i > j ? i - j : j - i;
    switch (p->pattern) {
    case RANDOM:
        return random_code;
    case ONE_CODE:
        return 0;
    case BAND:
        return i % 37 == 5 || (apart > 9 && any >> 20 & 63) ? (uint8_t)far : random_code;
    case MIXED:
        break;
    }
    if (i == j)
        return 0;
    switch (tile % 5) {
    case 0:
        return (uint8_t)far;
    case 1:
        return (uint8_t)(constant % (far + 1));
    case 2:
    case 3:
        return any >> 20 & 31 ? (uint8_t)(tile & 1 ? far : constant % (far + 1)) : random_code;
    default:
        return random_code;
    }
}

static void cut_segments(int64_t starts[6], int64_t count)
{
    const int64_t parts[6] = {0, 10, 47, 47, 80, 100};
    for (int s = 0; s < 6; s++)
        starts[s] = count * parts[s] / 100;
}

problem *problem_make(problem wanted)
{
    problem *p = malloc(sizeof *p);
    *p = wanted;
    p->queries = p->queries ? p->queries : 100;
    p->keys = p->keys ? p->keys : p->queries;
    p->heads = p->heads ? p->heads : 2;
    p->dim = p->dim ? p->dim : 16;
    p->value_dim = p->value_dim ? p->value_dim : p->dim;
    p->codes = p->kind == MG_ATTN_NONE ? 1 : p->codes ? p->codes : 8;
    p->scale = p->scale != 0 ? p->scale : 1 / sqrtf((float)p->dim);
    p->codes_of = malloc((size_t)(p->queries * p->keys) + 1);
    for (int64_t i = 0; i < p->queries; i++)
        for (int64_t j = 0; j < p->keys; j++)
            p->codes_of[i * p->keys + j] = pattern_code(p, i, j);
    uint64_t s = p->seed * 100;
    p->q = filled(p->queries * p->heads * p->dim, s + 10, 2);
    p->k = filled(p->keys * p->heads * p->dim, s + 11, 2);
    p->v = filled(p->keys * p->heads * p->value_dim, s + 12, 1);
    p->dout = filled(p->queries * p->heads * p->value_dim, s + 13, 1);
    p->dlse = filled(p->heads * p->queries, s + 14, 1);
    p->table = filled(p->heads * p->codes, s + 15, 2);
    p->values = filled(p->with & VALUES ? p->heads * p->queries * p->keys : 0, s + 16, 1);
    p->key_bias = filled(p->heads * p->keys, s + 17, 1);
    cut_segments(p->query_segments, p->queries);
    cut_segments(p->key_segments, p->keys);
    if (p->with & DROPOUT)
        p->dropout = (mg_attn_dropout){.probability = 0.3f, .seed = 0x123456789abcdefu, .step = 7, .layer = 3};
    return p;
}

void problem_free(problem *p)
{
    void *blocks[] = {p->codes_of, p->q, p->k, p->v, p->dout, p->dlse, p->table, p->values, p->key_bias, p};
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        free(blocks[b]);
}

int64_t plan_queries(const problem *p)
{
    return p->query_begin || p->query_end ? p->query_end - p->query_begin : p->queries;
}

int64_t plan_keys(const problem *p) { return p->key_begin || p->key_end ? p->key_end - p->key_begin : p->keys; }

int pair_seen(const problem *p, int64_t query, int64_t key)
{
    if (p->mask_far && p->codes_of[query * p->keys + key] == p->codes - 1)
        return 0;
    if (!(p->with & SEGMENTS))
        return 1;
    for (int s = 0; s < 5; s++)
        if (query >= p->query_segments[s] && query < p->query_segments[s + 1])
            return key >= p->key_segments[s] && key < p->key_segments[s + 1];
    return 0;
}

/* --- tensors in memory --- */

typedef struct placed {
    mg_attn_tensor tensor;
    void *memory;
    int64_t tokens, elements;
    int32_t heads, dim;
    int bf16;
    layout how;
} placed;

static placed place(layout how, int64_t tokens, int32_t heads, int32_t dim, int bf16)
{
    placed t = {.tokens = tokens, .heads = heads, .dim = dim, .bf16 = bf16, .how = how};
    int64_t one = dim + how.head_pad;
    t.tensor.token_stride = how.head_major ? one : heads * one + how.token_pad;
    t.tensor.head_stride = how.head_major ? tokens * one + how.token_pad : one;
    t.elements =
        how.lead + (tokens ? (tokens - 1) * t.tensor.token_stride + (heads - 1) * t.tensor.head_stride + dim : 0);
    size_t bytes = (size_t)t.elements * (bf16 ? 2 : 4);
    t.memory = malloc(bytes + (bytes == 0));
    memset(t.memory, 0xff, bytes);
    t.tensor.data = (char *)t.memory + how.lead * (bf16 ? 2 : 4);
    return t;
}

static int64_t element(const placed *t, int64_t token, int32_t head, int32_t d)
{
    return t->how.lead + token * t->tensor.token_stride + head * t->tensor.head_stride + d;
}

/* from: [token][head][dim]. */
static placed place_copy(layout how, int64_t tokens, int32_t heads, int32_t dim, int bf16, const float *from)
{
    placed t = place(how, tokens, heads, dim, bf16);
    for (int64_t i = 0; i < tokens * heads * dim; i++) {
        int64_t at = element(&t, i / dim / heads, (int32_t)(i / dim % heads), (int32_t)(i % dim));
        if (bf16)
            ((uint16_t *)t.memory)[at] = (uint16_t)(bits_of(round_bf16(from[i])) >> 16);
        else
            ((float *)t.memory)[at] = from[i];
    }
    return t;
}

/* Takes an output to [token][head][dim], and fails where something was written between its rows. */
static float *take(placed *t, const char *what)
{
    int64_t count = t->tokens * t->heads * t->dim, size = t->bf16 ? 2 : 4;
    float *to = malloc((size_t)count * sizeof *to + 1);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = element(t, i / t->dim / t->heads, (int32_t)(i / t->dim % t->heads), (int32_t)(i % t->dim));
        to[i] = t->bf16 ? float_of((uint32_t)((uint16_t *)t->memory)[at] << 16) : ((float *)t->memory)[at];
    }
    for (int64_t i = 0; i < count; i++)
        memset((char *)t->memory +
                   element(t, i / t->dim / t->heads, (int32_t)(i / t->dim % t->heads), (int32_t)(i % t->dim)) * size,
               0xff, (size_t)size);
    for (int64_t b = 0; b < t->elements * size; b++)
        if (((uint8_t *)t->memory)[b] != 0xff)
            fail_msg("%s: byte %lld between the rows was written", what, (long long)b);
    free(t->memory);
    return to;
}

static float *unwritten(int64_t count)
{
    float *values = malloc((size_t)count * sizeof *values + 1);
    memset(values, 0xff, (size_t)count * sizeof *values);
    return values;
}

/* --- a run --- */

static const char *const result_names[RESULTS] = {"out", "lse", "dq", "dk", "dv", "dtable", "dvalues", "dkey_bias"};

/* [head][query or key of the map] to those of the plan. */
static float *cut(const float *from, int32_t heads, int64_t whole, int64_t begin, int64_t count)
{
    float *to = malloc((size_t)(heads * count) * sizeof *to + 1);
    for (int32_t h = 0; h < heads; h++)
        memcpy(to + h * count, from + h * whole + begin, (size_t)count * sizeof *to);
    return to;
}

static int in_plan(const problem *p, int64_t query, int64_t key)
{
    return query >= p->query_begin && query < p->query_begin + plan_queries(p) && key >= p->key_begin &&
           key < p->key_begin + plan_keys(p);
}

/* Pair values from [head][map query][map key] to [head][near pair], or back: then pairs outside the plan must still be
   unwritten, and they and those that are not listed become 0. */
static void near_values(float *listed, float *dense, const problem *p, const mg_attn_map *map, int back)
{
    int64_t pairs = map->near_starts[p->queries];
    for (int32_t h = 0; h < p->heads; h++)
        for (int64_t i = 0; i < p->queries; i++)
            for (int64_t e = map->near_starts[i]; e < map->near_starts[i + 1]; e++) {
                float *in = dense + (h * p->queries + i) * p->keys + map->near_columns[e],
                      *near = listed + h * pairs + e;
                if (back && !in_plan(p, i, map->near_columns[e])) {
                    if (bits_of(*near) != 0xffffffffu)
                        fail_msg("dvalues of a pair outside the plan was written");
                    continue;
                }
                *(back ? in : near) = *(back ? near : in);
            }
}

static void *workspace(const mg_attn_plan *plan, const mg_attn_call *call, int backward)
{
    int64_t bytes = mg_attn_workspace_bytes(plan, call, backward);
    void *block = NULL;
    if (bytes < 0)
        fail_msg("workspace: %lld: %s", (long long)bytes, mg_attn_last_error());
    assert_int_equal(posix_memalign(&block, 64, (size_t)bytes + (bytes == 0)), 0);
    memset(block, 0xff, (size_t)bytes);
    return block;
}

static int asked(const problem *p, int which) { return !(p->skip >> which & 1); }

mg_attn_plan *plan_make(const mg_attn_map *map, const char *backend)
{
    mg_attn_plan *plan;
    assert_int_equal(mg_attn_use_backend(backend), 0);
    int status = mg_attn_plan_create(&plan, map);
    mg_attn_use_backend(NULL);
    if (status)
        fail_msg("%s: plan: %d: %s", backend, status, mg_attn_last_error());
    return plan;
}

static void check(int status, const char *backend, const char *doing)
{
    if (status)
        fail_msg("%s: %s: %d: %s", backend, doing, status, mg_attn_last_error());
}

/* Inputs of both directions. */
typedef struct inputs {
    placed q, k, v, dout;
    float *key_bias, *dlse, *values;
} inputs;

static void fill_call(mg_attn_call *call, inputs *in, const problem *p, const mg_attn_map *map)
{
    int64_t nq = plan_queries(p), nk = plan_keys(p), row = p->heads * p->dim, value_row = p->heads * p->value_dim;
    int bf16 = (p->with & BF16) != 0;
    in->q = place_copy(p->in, nq, p->heads, p->dim, bf16, p->q + p->query_begin * row);
    in->k = place_copy(p->in, nk, p->heads, p->dim, bf16, p->k + p->key_begin * row);
    in->v = place_copy(p->in, nk, p->heads, p->value_dim, bf16, p->v + p->key_begin * value_row);
    in->dout = place_copy(p->dout_in, nq, p->heads, p->value_dim, bf16 && !(p->with & OUT_FP32),
                          p->dout + p->query_begin * value_row);
    in->key_bias = cut(p->key_bias, p->heads, p->keys, p->key_begin, nk);
    in->dlse = cut(p->dlse, p->heads, p->queries, p->query_begin, nq);
    call->q = in->q.tensor;
    call->k = in->k.tensor;
    call->v = in->v.tensor;
    call->dout = in->dout.tensor;
    call->table = p->with & TABLE ? p->table : NULL;
    call->key_bias = p->with & KEY_BIAS ? in->key_bias : NULL;
    call->dlse = p->with & DLSE ? in->dlse : NULL;
    if (p->with & VALUES) {
        in->values = unwritten(p->heads * map->near_starts[p->queries]);
        near_values(in->values, p->values, p, map, 0);
        call->values = in->values;
    }
    call->dropout = p->dropout;
    call->dropout.query_ids = p->query_ids ? p->query_ids + p->query_begin : NULL;
    call->dropout.key_ids = p->key_ids ? p->key_ids + p->key_begin : NULL;
}

static void free_inputs(inputs *in)
{
    void *blocks[] = {in->q.memory, in->k.memory, in->v.memory, in->dout.memory, in->key_bias, in->dlse, in->values};
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        free(blocks[b]);
}

static void forward(result *r, const problem *p, const mg_attn_plan *plan, mg_attn_call *call, const char *backend)
{
    placed out = place(p->out, plan_queries(p), p->heads, p->value_dim, p->with & BF16 && !(p->with & OUT_FP32));
    call->out = out.tensor;
    call->lse = r->of[LSE] = unwritten(p->heads * plan_queries(p));
    call->workspace = workspace(plan, call, 0);
    check(mg_attn_forward(plan, call), backend, "forward");
    free(call->workspace);
    r->of[OUT] = take(&out, "out");
}

static void backward(result *r, const problem *p, const mg_attn_plan *plan, mg_attn_call *call, const mg_attn_map *map,
                     const char *backend)
{
    int64_t nq = plan_queries(p), nk = plan_keys(p), value_row = p->heads * p->value_dim;
    int bf16 = (p->with & BF16) != 0, bf16_gradients = bf16 && !(p->with & GRADIENTS_FP32);
    const float *whole_out = p->whole ? p->whole->of[OUT] + p->query_begin * value_row : r->of[OUT];
    float *lse = p->whole ? cut(p->whole->of[LSE], p->heads, p->queries, p->query_begin, nq)
                          : cut(r->of[LSE], p->heads, nq, 0, nq);
    placed out = place_copy(p->out, nq, p->heads, p->value_dim, bf16 && !(p->with & OUT_FP32), whole_out);
    placed dq = place(p->out, nq, p->heads, p->dim, bf16_gradients);
    placed dk = place(p->out, nk, p->heads, p->dim, bf16_gradients);
    placed dv = place(p->out, nk, p->heads, p->value_dim, bf16_gradients);
    int64_t pairs = p->with & VALUES ? map->near_starts[p->queries] : 0;
    float *dvalues = unwritten(p->heads * pairs);
    call->out = out.tensor;
    call->lse = lse;
    call->dq = asked(p, DQ) ? dq.tensor : (mg_attn_tensor){0};
    call->dk = asked(p, DK) ? dk.tensor : (mg_attn_tensor){0};
    call->dv = asked(p, DV) ? dv.tensor : (mg_attn_tensor){0};
    r->of[DTABLE] = call->dtable = asked(p, DTABLE) ? unwritten(p->heads * p->codes) : NULL;
    r->of[DKEY_BIAS] = call->dkey_bias = asked(p, DKEY_BIAS) ? unwritten(p->heads * nk) : NULL;
    call->dvalues = asked(p, DVALUES) && p->with & VALUES ? dvalues : NULL;
    call->workspace = workspace(plan, call, 1);
    check(mg_attn_backward(plan, call), backend, "backward");
    free(call->workspace);
    free(lse);
    free(out.memory);
    r->of[DQ] = take(&dq, "dq");
    r->of[DK] = take(&dk, "dk");
    r->of[DV] = take(&dv, "dv");
    if (call->dvalues) {
        r->of[DVALUES] = calloc((size_t)(p->heads * p->queries * p->keys), sizeof(float));
        near_values(dvalues, r->of[DVALUES], p, map, 1);
    }
    free(dvalues);
}

void problem_run_on(result *r, const problem *p, const mg_attn_plan *plan, const mg_attn_map *map, const char *backend,
                    int threads)
{
    int64_t nq = plan_queries(p), nk = plan_keys(p), h = p->heads;
    mg_attn_call call = {.heads = p->heads,
                         .dim = p->dim,
                         .value_dim = p->value_dim,
                         .scale = p->scale,
                         .type = p->with & BF16 ? MG_ATTN_BF16 : MG_ATTN_FP32,
                         .threads = threads ? threads : 1,
                         .out_fp32 = (p->with & OUT_FP32) != 0,
                         .gradients_fp32 = (p->with & GRADIENTS_FP32) != 0};
    inputs in = {0};
    *r = (result){.count = {nq * h * p->value_dim, h * nq, nq * h * p->dim, nk * h * p->dim, nk * h * p->value_dim,
                            h * p->codes, h * p->queries * p->keys, h * nk}};
    fill_call(&call, &in, p, map);
    forward(r, p, plan, &call, backend);
    backward(r, p, plan, &call, map, backend);
    free_inputs(&in);
    for (int which = DQ; which < RESULTS; which++)
        if (!asked(p, which)) {
            free(r->of[which]);
            r->of[which] = NULL;
        }
}

void problem_run(result *r, const problem *p, const char *backend, int threads)
{
    mg_attn_map map;
    encoded *e = map_encode(&map, p);
    mg_attn_plan *plan = plan_make(&map, backend);
    problem_run_on(r, p, plan, &map, backend, threads);
    mg_attn_plan_destroy(plan);
    map_free(e);
}

void result_free(result *r)
{
    for (int which = 0; which < RESULTS; which++)
        free(r->of[which]);
    *r = (result){0};
}

/* --- comparison --- */

void result_near(const char *what, const result *actual, const result *expected, double tolerance)
{
    for (int which = 0; which < RESULTS; which++) {
        if (!actual->of[which] || !expected->of[which])
            continue;
        char name[256];
        double scale = which == DTABLE ? 3e-2 * (double)expected->count[LSE] : 1e-2; /* dtable sums over all rows */
        double *wanted = malloc((size_t)expected->count[which] * sizeof *wanted + 1);
        snprintf(name, sizeof name, "%s: %s", what, result_names[which]);
        assert_int_equal(actual->count[which], expected->count[which]);
        for (int64_t i = 0; i < expected->count[which]; i++) {
            wanted[i] = expected->of[which][i];
            scale = isfinite(wanted[i]) ? fmax(scale, fabs(wanted[i])) : scale;
        }
        test_near_scaled(name, actual->of[which], wanted, expected->count[which], tolerance, scale);
        free(wanted);
    }
}

void result_same(const char *what, const result *actual, const result *expected)
{
    for (int which = 0; which < RESULTS; which++) {
        char name[256];
        snprintf(name, sizeof name, "%s: %s", what, result_names[which]);
        assert_int_equal(actual->count[which], expected->count[which]);
        assert_int_equal(!actual->of[which], !expected->of[which]);
        if (actual->of[which])
            test_same_bytes(name, actual->of[which], expected->of[which],
                            (size_t)actual->count[which] * sizeof *actual->of[which]);
    }
}

void compare_backends(const char *what, const problem *p, double tolerance)
{
    result expected, actual;
    problem_run(&expected, p, "reference", 1);
    for (const char *const *backend = tiled_backends(); *backend; backend++) {
        char name[256];
        snprintf(name, sizeof name, "%s on %s", what, *backend);
        problem_run(&actual, p, *backend, 1);
        result_near(name, &actual, &expected, tolerance);
        result_free(&actual);
    }
    result_free(&expected);
}

/* --- backends --- */

static const char *const *find_backends(const char *found[8], const char *const *known)
{
    int count = 0;
    for (; *known; known++)
        if (mg_attn_use_backend(*known) == 0)
            found[count++] = *known;
    mg_attn_use_backend(NULL);
    found[count] = NULL;
    return found;
}

const char *const *tiled_backends(void)
{
    static const char *found[8];
    return found[0] ? found
                    : find_backends(found, (const char *const[]){"portable", "v3", "v4", "avx512_bf16", "amx", NULL});
}

const char *const *all_backends(void)
{
    static const char *found[8];
    return found[0] ? found
                    : find_backends(found, (const char *const[]){"reference", "portable", "v3", "v4", "avx512_bf16",
                                                                 "amx", NULL});
}

void assert_error_says(const char *text)
{
    if (!strstr(mg_attn_last_error(), text))
        fail_msg("the error line is \"%s\" and does not say \"%s\"", mg_attn_last_error(), text);
}
