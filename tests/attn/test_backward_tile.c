/* A backward kernel's choices change no bit: whether a processor has pipes of 512 bits or takes such instructions in
 * two halves, and whether sums by code are made on the way to dk or afterwards. */
#include "kernel.h"
#include "problem.h"

enum { TILE_ELEMENTS = TILE * 40 };
static float numbers[7][TILE_ELEMENTS], dq[2][TILE_ELEMENTS], keys[2][2][TILE_ELEMENTS], ds[2][TILE * TILE];
static float lse[TILE], delta[TILE];

static float next_number(void)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 24) - 0.5f;
}

static backward_tile tile_of(int32_t dim, int32_t blocks, int which)
{
    memcpy(dq[which], numbers[5], sizeof dq[which]);
    for (int side = 0; side < 2; side++)
        memcpy(keys[which][side], numbers[6], sizeof keys[which][side]);
    return (backward_tile){.dim = dim,
                           .value_dim = dim,
                           .query_blocks = blocks,
                           .row = (dim + 7) / 8 * 8,
                           .q = numbers[0],
                           .dout = numbers[1],
                           .sum_q = numbers[0],
                           .sum_dout = numbers[1],
                           .scale = 1,
                           .log2_scores = 1,
                           .lse = lse,
                           .delta = delta,
                           .k = numbers[2],
                           .v = numbers[3],
                           .k_rows = numbers[4],
                           .dq = dq[which],
                           .dk = keys[which][0],
                           .dv = keys[which][1],
                           .ds = ds[which],
                           .need_ds = 1,
                           .store_ds = 1};
}

static void compare_gradients(const char *of, int32_t dim, int32_t blocks)
{
    if (memcmp(dq[0], dq[1], sizeof dq[0]) || memcmp(keys[0], keys[1], sizeof keys[0]))
        fail_msg("%s, dim %d, %d blocks of queries: the gradients' bits differ", of, (int)dim, (int)blocks);
    assert_memory_not_equal(dq[0], numbers[5], sizeof dq[0]);
}

static int fill(void **state)
{
    (void)state;
    for (int i = 0; i < 7; i++)
        for (int at = 0; at < TILE_ELEMENTS; at++)
            numbers[i][at] = next_number();
    for (int i = 0; i < TILE; i++)
        lse[i] = 2 + next_number(), delta[i] = next_number();
    return 0;
}

static void pipes(void **state)
{
    (void)state;
    if (mg_attn_use_backend("v4")) {
        print_message("skipped: no AVX-512 here\n");
        skip();
    }
    for (int32_t dim = 1; dim <= 32; dim++)
        for (int32_t blocks = 1; blocks <= TILE / BLOCK; blocks++) {
            for (int i = 0; i < 2; i++) {
                backward_tile t = tile_of(dim, blocks, i);
                t.half_pipes = i;
                mg_attn_backend_chosen()->backward(&t);
            }
            compare_gradients("half pipes", dim, blocks);
        }
}

/* `count` codes between 2 and 61. The second time the kernel may take some, or in AVX-512 all, along. */
static void compare_sums(int32_t dim, int32_t blocks, int count)
{
    static uint8_t codes[PAIRS];
    double sums[2][64] = {0};
    const attn_backend *backend = mg_attn_backend_chosen();
    uint64_t present = 0;
    for (int i = 0; i < count; i++)
        present |= UINT64_C(1) << (2 + i * 60 / count);
    for (int at = 0; at < PAIRS; at++)
        codes[at] = (uint8_t)(2 + (int)((next_number() + 0.5f) * (float)count) * 60 / count);
    for (int i = 0; i < 2; i++) {
        backward_tile t = tile_of(dim, blocks, i);
        table_tile table = {.ds = ds[i],
                            .codes = count == 1 ? NULL : codes,
                            .rows = blocks * BLOCK,
                            .present = present,
                            .one = count == 1,
                            .entries = 64,
                            .sums = sums[i]};
        t.table = i ? &table : NULL;
        backend->backward(&t);
        if (i && count <= 24 && dim >= 32 && !strcmp(backend->name, "v4"))
            assert_int_equal(table.present, 0);
        if (table.present)
            backend->table(&table);
    }
    compare_gradients("sums by code", dim, blocks);
    if (memcmp(sums[0], sums[1], sizeof sums[0]))
        fail_msg("%s, dim %d, %d blocks of queries, %d codes: sums' bits differ", backend->name, (int)dim, (int)blocks,
                 count);
    for (int code = 0; code < 64; code++)
        if (!(present >> code & 1))
            assert_true(sums[0][code] == 0);
    assert_true(sums[0][2] != 0);
}

static void sums_by_code(void **state)
{
    static const char *const backends[] = {"portable", "v3", "v4"};
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 12, 13, 24, 25};
    (void)state;
    for (int b = 0; b < 3; b++)
        for (int32_t dim = 1; dim <= 33 && !mg_attn_use_backend(backends[b]); dim += dim < 9 ? 1 : 8)
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
                compare_sums(dim, 1, counts[i]);
                compare_sums(dim, TILE / BLOCK, counts[i]);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pipes), cmocka_unit_test(sums_by_code)};
    return cmocka_run_group_tests(tests, fill, NULL);
}
