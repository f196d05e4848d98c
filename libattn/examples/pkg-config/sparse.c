/* Attention over listed pairs only: every token sees itself and its neighbours in a graph, with a bias by the kind of the
 * pair, and nothing else. Memory and time follow the pairs.
 *
 *     ./build.sh && ./sparse */
#include <megagraph/attn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 10000, HEADS = 4, DIM = 8, WIDTH = HEADS * DIM, SEEN = 3, SELF = 0, NEIGHBOUR = 1, FAR = 2, CODES = 3 };

static int64_t starts[TOKENS + 1];
static int32_t columns[TOKENS * SEEN];
static uint8_t codes[TOKENS * SEEN];
static float q[TOKENS * WIDTH], k[TOKENS * WIDTH], v[TOKENS * WIDTH], out[TOKENS * WIDTH];

static int stop(const char *what)
{
    fprintf(stderr, "sparse: %s\n", what);
    return 1;
}

/* A path: token i is joined to i - 1 and i + 1. Columns ascend in each row. */
static void list_pairs(void)
{
    int64_t pairs = 0;
    for (int i = 0; i < TOKENS; i++) {
        for (int j = i - 1; j <= i + 1; j++)
            if (j >= 0 && j < TOKENS) {
                columns[pairs] = j;
                codes[pairs++] = i == j ? SELF : NEIGHBOUR;
            }
        starts[i + 1] = pairs;
    }
}

/* Element e of a head's output for token i, from its definition. */
static float expected(const float *table, float scale, int i, int head, int e)
{
    double sum = 0, weighted = 0;
    for (int64_t pair = starts[i]; pair < starts[i + 1]; pair++) {
        const float *query = q + i * WIDTH + head * DIM, *key = k + columns[pair] * WIDTH + head * DIM;
        double score = table[head * CODES + codes[pair]];
        for (int d = 0; d < DIM; d++)
            score += (double)scale * query[d] * key[d];
        sum += exp(score);
        weighted += exp(score) * v[columns[pair] * WIDTH + head * DIM + e];
    }
    return (float)(weighted / sum);
}

int main(void)
{
    static float table[HEADS * CODES] = {0.5f, 0, 0, 1, -1, 0, 0, 0, 0, -2, 2, 0};
    static mg_attn_map map; /* zero is the default of every field */
    static mg_attn_call call;
    mg_attn_plan *plan;
    list_pairs();
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        q[i] = sinf((float)i);
        k[i] = cosf((float)(i * 3));
        v[i] = sinf((float)(i % 777));
    }

    map.kind = MG_ATTN_NEAR;
    map.queries = map.keys = TOKENS;
    map.codes = CODES;
    map.far_code = FAR; /* of all pairs that are not listed: hidden */
    map.mask_far = 1;
    map.near_starts = starts;
    map.near_columns = columns;
    map.near_codes = codes;
    if (mg_attn_plan_create(&plan, &map))
        return stop(mg_attn_last_error());

    mg_attn_tensor tensors[] = {{q, WIDTH, DIM}, {k, WIDTH, DIM}, {v, WIDTH, DIM}, {out, WIDTH, DIM}};
    call.heads = HEADS;
    call.dim = DIM;
    call.scale = 0.35f;
    call.table = table;
    call.q = tensors[0];
    call.k = tensors[1];
    call.v = tensors[2];
    call.out = tensors[3];
    int64_t bytes = mg_attn_workspace_bytes(plan, &call, 0);
    if (bytes < 0 || !(call.workspace = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64)) || mg_attn_forward(plan, &call))
        return stop(mg_attn_last_error());

    float worst = 0;
    for (int i = 0; i < TOKENS; i++)
        for (int c = 0; c < WIDTH; c++)
            worst = fmaxf(worst, fabsf(out[i * WIDTH + c] - expected(table, call.scale, i, c / DIM, c % DIM)));
    printf("sparse: %lld pairs, %d heads, %lld bytes of workspace; worst error %g\n", (long long)starts[TOKENS], HEADS,
           (long long)bytes, worst);
    free(call.workspace);
    mg_attn_plan_destroy(plan);
    return worst < 1e-5f ? 0 : stop("that is too much");
}
