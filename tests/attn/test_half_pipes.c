/* Gradients have the same bits whether a processor has pipes of 512 bits or takes such instructions in two halves. */
#include "kernel.h"
#include "problem.h"

enum { TILE_ELEMENTS = TILE * 32 };
static float numbers[7][TILE_ELEMENTS], dq[2][TILE_ELEMENTS], keys[2][2][TILE_ELEMENTS], ds[2][TILE * TILE];
static float lse[TILE], delta[TILE];

static float next_number(void)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (1 << 24) - 0.5f;
}

static void compare(int32_t dim, int32_t blocks)
{
    for (int i = 0; i < 2; i++) {
        memcpy(dq[i], numbers[5], sizeof dq[i]);
        for (int side = 0; side < 2; side++)
            memcpy(keys[i][side], numbers[6], sizeof keys[i][side]);
        backward_tile t = {.dim = dim,
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
                           .dq = dq[i],
                           .dk = keys[i][0],
                           .dv = keys[i][1],
                           .ds = ds[i],
                           .need_ds = 1,
                           .store_ds = 1,
                           .half_pipes = i};
        mg_attn_backend_chosen()->backward(&t);
    }
    if (memcmp(dq[0], dq[1], sizeof dq[0]) || memcmp(keys[0], keys[1], sizeof keys[0]))
        fail_msg("dim %d, %d blocks of queries: the gradients' bits differ", (int)dim, (int)blocks);
    assert_memory_not_equal(dq[0], numbers[5], sizeof dq[0]);
}

static void same_bits(void **state)
{
    (void)state;
    if (mg_attn_use_backend("v4")) {
        print_message("skipped: no AVX-512 here\n");
        skip();
    }
    for (int i = 0; i < 7; i++)
        for (int at = 0; at < TILE_ELEMENTS; at++)
            numbers[i][at] = next_number();
    for (int i = 0; i < TILE; i++)
        lse[i] = 2 + next_number(), delta[i] = next_number();
    for (int32_t dim = 1; dim <= 32; dim++)
        for (int32_t blocks = 1; blocks <= TILE / BLOCK; blocks++)
            compare(dim, blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
