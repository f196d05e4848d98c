/* Offsets past 2^31 and 2^32, in elements and in bytes: case 11 of the attention cases. Address space is reserved, of
 * which only the rows themselves are touched. */
#define _GNU_SOURCE
#include "problem.h"

#include <sys/mman.h>

enum { TOKENS = 70, HEADS = 2, DIM = 8, ROW = HEADS * DIM };

static char *reserve(size_t bytes)
{
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) {
        print_message("SKIPPED: %zu bytes of address space are not to be had\n", bytes);
        skip();
    }
    madvise(block, bytes, MADV_NOHUGEPAGE);
    return block;
}

/* A tensor of [TOKENS][HEADS][DIM] with far strides, of which data may be the highest address. */
typedef struct far_tensor {
    mg_attn_tensor tensor;
    char *block;
    size_t bytes;
} far_tensor;

static far_tensor far_place(int64_t token_stride, int64_t head_stride, const float *from)
{
    far_tensor t = {.bytes = (size_t)(llabs(token_stride) * (TOKENS - 1) + llabs(head_stride) * (HEADS - 1) + DIM) *
                             sizeof(float)};
    t.block = reserve(t.bytes);
    float *data = (float *)t.block;
    data += token_stride < 0 ? -token_stride * (TOKENS - 1) : 0;
    data += head_stride < 0 ? -head_stride * (HEADS - 1) : 0;
    t.tensor = (mg_attn_tensor){data, token_stride, head_stride};
    for (int64_t x = 0; x < TOKENS * ROW && from; x++)
        data[x / ROW * token_stride + x / DIM % HEADS * head_stride + x % DIM] = from[x];
    return t;
}

static void far_compare(const char *what, far_tensor *t, const float *expected)
{
    for (int64_t x = 0; x < TOKENS * ROW; x++) {
        float value =
            ((float *)
                 t->tensor.data)[x / ROW * t->tensor.token_stride + x / DIM % HEADS * t->tensor.head_stride + x % DIM];
        if (value != expected[x])
            fail_msg("%s: element %lld is %g, expected %g", what, (long long)x, (double)value, (double)expected[x]);
    }
    munmap(t->block, t->bytes);
}

static void run_far(const mg_attn_plan *plan, const problem *p, const result *expected, const char *backend,
                    int64_t token_stride, int64_t head_stride)
{
    far_tensor q = far_place(token_stride, head_stride, p->q), k = far_place(token_stride, head_stride, p->k);
    far_tensor v = far_place(token_stride, head_stride, p->v), dout = far_place(token_stride, head_stride, p->dout);
    far_tensor out = far_place(token_stride, head_stride, NULL), dq = far_place(token_stride, head_stride, NULL);
    far_tensor dk = far_place(token_stride, head_stride, NULL), dv = far_place(token_stride, head_stride, NULL);
    float lse[HEADS * TOKENS], dtable[HEADS * 8];
    mg_attn_call call = {.heads = HEADS,
                         .dim = DIM,
                         .scale = p->scale,
                         .threads = 1,
                         .q = q.tensor,
                         .k = k.tensor,
                         .v = v.tensor,
                         .out = out.tensor,
                         .table = p->table,
                         .lse = lse,
                         .dout = dout.tensor,
                         .dq = dq.tensor,
                         .dk = dk.tensor,
                         .dv = dv.tensor,
                         .dtable = dtable};
    int64_t bytes = mg_attn_workspace_bytes(plan, &call, 1) + mg_attn_workspace_bytes(plan, &call, 0);
    assert_int_equal(posix_memalign(&call.workspace, 64, (size_t)bytes + 1), 0);
    assert_int_equal(mg_attn_forward(plan, &call), 0);
    assert_int_equal(mg_attn_backward(plan, &call), 0);
    free(call.workspace);
    far_compare(backend, &out, expected->of[OUT]);
    far_compare(backend, &dq, expected->of[DQ]);
    far_compare(backend, &dk, expected->of[DK]);
    far_compare(backend, &dv, expected->of[DV]);
    test_same_bytes(backend, dtable, expected->of[DTABLE], sizeof dtable);
    far_tensor *inputs[] = {&q, &k, &v, &dout};
    for (int x = 0; x < 4; x++)
        munmap(inputs[x]->block, inputs[x]->bytes);
}

static void case_11_strides_past_32_bits(void **state)
{
    (void)state;
    const int64_t strides[][2] = {
        {(1LL << 25) + 5, 9}, {(1LL << 27) + 16, 64}, {16, (1LL << 32) + 3}, {-(1LL << 26), 8}, {64, -(1LL << 31)}};
    problem *p =
        problem_make((problem){.queries = TOKENS, .heads = HEADS, .dim = DIM, .kind = MG_ATTN_DENSE, .with = TABLE});
    mg_attn_map map;
    encoded *e = map_encode(&map, p);
    for (const char *const *backend = all_backends(); *backend; backend++) {
        mg_attn_plan *plan = plan_make(&map, *backend);
        result expected;
        problem_run(&expected, p, *backend, 1);
        for (int s = 0; s < 5; s++)
            run_far(plan, p, &expected, *backend, strides[s][0], strides[s][1]);
        result_free(&expected);
        mg_attn_plan_destroy(plan);
    }
    map_free(e);
    problem_free(p);
}

static void case_11_far_rows_of_codes(void **state)
{
    (void)state;
    problem *p =
        problem_make((problem){.queries = TOKENS, .heads = HEADS, .dim = DIM, .kind = MG_ATTN_DENSE, .with = TABLE});
    int64_t stride = (1LL << 31) + 77;
    uint8_t *codes = (uint8_t *)reserve((size_t)(TOKENS * stride));
    for (int64_t i = 0; i < TOKENS; i++)
        memcpy(codes + i * stride, p->codes_of + i * TOKENS, TOKENS);
    for (const char *const *backend = all_backends(); *backend; backend++) {
        mg_attn_map map = {.kind = MG_ATTN_DENSE,
                           .queries = TOKENS,
                           .keys = TOKENS,
                           .codes = 8,
                           .dense = codes,
                           .dense_stride = stride};
        mg_attn_plan *plan = plan_make(&map, *backend);
        result expected;
        problem_run(&expected, p, *backend, 1);
        run_far(plan, p, &expected, *backend, 16, 8);
        result_free(&expected);
        mg_attn_plan_destroy(plan);
    }
    munmap(codes, (size_t)(TOKENS * stride));
    problem_free(p);
}

static void case_11_far_tiles(void **state)
{
    (void)state;
    problem *p =
        problem_make((problem){.queries = TOKENS, .heads = HEADS, .dim = DIM, .kind = MG_ATTN_TILES, .with = TABLE});
    mg_attn_map map;
    encoded *e = map_encode(&map, p);
    int64_t apart = 3LL << 31, offsets[4], bytes = 3 * apart + (2 + 3 * 4096 + 8);
    uint8_t *payload = (uint8_t *)reserve((size_t)bytes);
    for (int t = 0; t < 4; t++) {
        int64_t next = t < 3 ? map.tiles->offsets[t + 1] : map.tiles->payload_bytes;
        offsets[t] = t * apart;
        memcpy(payload + offsets[t], map.tiles->payload + map.tiles->offsets[t],
               (size_t)(next - map.tiles->offsets[t]));
    }
    mg_attn_tiles far_apart = *map.tiles;
    far_apart.offsets = offsets;
    far_apart.payload = payload;
    far_apart.payload_bytes = bytes;
    for (const char *const *backend = all_backends(); *backend; backend++) {
        result expected;
        problem_run(&expected, p, *backend, 1);
        mg_attn_map far_map = map;
        far_map.tiles = &far_apart;
        mg_attn_plan *plan = plan_make(&far_map, *backend);
        run_far(plan, p, &expected, *backend, 16, 8);
        mg_attn_plan_destroy(plan);
        result_free(&expected);
    }
    munmap(payload, (size_t)bytes);
    map_free(e);
    problem_free(p);
}

/* Merging rows that lie far apart. */
static void case_11_far_rows_merge(void **state)
{
    (void)state;
    int64_t stride = (1LL << 31) + 5;
    char *a = reserve((size_t)(3 * stride) * 4), *b = reserve((size_t)(3 * stride) * 4);
    float lse[3] = {0, 1, 2}, part_lse[3] = {0, 1, 2};
    for (int i = 0; i < 3; i++)
        ((float *)a)[i * stride] = 2, ((float *)b)[i * stride] = (float)(4 + i);
    assert_int_equal(
        mg_attn_merge((mg_attn_tensor){a, stride, 1}, lse, (mg_attn_tensor){b, stride, 1}, part_lse, 3, 1, 1), 0);
    for (int i = 0; i < 3; i++)
        assert_true(((float *)a)[i * stride] == (float)(6 + i) / 2);
    munmap(a, (size_t)(3 * stride) * 4);
    munmap(b, (size_t)(3 * stride) * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_11_strides_past_32_bits),
        cmocka_unit_test(case_11_far_rows_of_codes),
        cmocka_unit_test(case_11_far_tiles),
        cmocka_unit_test(case_11_far_rows_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
