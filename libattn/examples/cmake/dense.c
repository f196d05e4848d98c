/* Attention over a ring of tokens, biased by distance, and its gradient: a table is learned by gradient descent until the
 * outputs are those of another table.
 *
 *     cmake -S . -B build -DCMAKE_PREFIX_PATH=<where MegaGraph is installed> && cmake --build build && build/dense */
#include <megagraph/attn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 100, HEADS = 2, DIM = 16, WIDTH = HEADS * DIM, FAR = 3, CODES = FAR + 1, STEPS = 60 };

static uint8_t codes[TOKENS * TOKENS];
static float q[TOKENS * WIDTH], k[TOKENS * WIDTH], v[TOKENS * WIDTH], out[TOKENS * WIDTH], wanted[TOKENS * WIDTH];
static float dout[TOKENS * WIDTH], lse[HEADS * TOKENS], dtable[HEADS * CODES];

static int stop(void)
{
    fprintf(stderr, "dense: %s\n", mg_attn_last_error());
    return 1;
}

static mg_attn_tensor rows(float *data)
{
    mg_attn_tensor tensor = {data, WIDTH, DIM};
    return tensor;
}

static void fill(void)
{
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        q[i] = sinf((float)(i * 7));
        k[i] = cosf((float)(i * 3));
        v[i] = sinf((float)(i * i % 1000));
    }
    for (int i = 0; i < TOKENS; i++)
        for (int j = 0; j < TOKENS; j++) {
            int apart = abs(i - j), around = apart < TOKENS - apart ? apart : TOKENS - apart;
            codes[i * TOKENS + j] = (uint8_t)(around < FAR ? around : FAR);
        }
}

/* The squared error of out, halved and per token; its gradient to dout. */
static float compare(void)
{
    float loss = 0;
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        dout[i] = (out[i] - wanted[i]) / TOKENS;
        loss += 0.5f * (out[i] - wanted[i]) * dout[i];
    }
    return loss;
}

int main(void)
{
    static float teacher[HEADS * CODES] = {2, 1, 0, -1, -1, 3, 1, 0}, table[HEADS * CODES];
    static mg_attn_map map; /* zero is the default of every field */
    static mg_attn_call call;
    mg_attn_plan *plan;
    fill();

    map.kind = MG_ATTN_DENSE;
    map.queries = map.keys = map.dense_stride = TOKENS;
    map.codes = CODES;
    map.dense = codes;
    if (mg_attn_plan_create(&plan, &map)) /* once, for any number of heads, layers and steps */
        return stop();

    call.heads = HEADS;
    call.dim = DIM;
    call.scale = 0.25f;
    call.q = rows(q);
    call.k = rows(k);
    call.v = rows(v);
    call.out = rows(out);
    call.dout = rows(dout);
    call.lse = lse;
    call.dtable = dtable;
    int64_t forward = mg_attn_workspace_bytes(plan, &call, 0), backward = mg_attn_workspace_bytes(plan, &call, 1);
    if (forward < 0 || backward < 0)
        return stop();
    call.workspace = aligned_alloc(64, (size_t)((forward > backward ? forward : backward) + 63) / 64 * 64);

    call.table = teacher;
    call.out = rows(wanted);
    if (!call.workspace || mg_attn_forward(plan, &call))
        return stop();

    float first = 0, loss = 0;
    call.table = table;
    call.out = rows(out);
    for (int step = 0; step < STEPS; step++) {
        if (mg_attn_forward(plan, &call))
            return stop();
        loss = compare();
        if (step == 0)
            first = loss;
        if (mg_attn_backward(plan, &call))
            return stop();
        for (int i = 0; i < HEADS * CODES; i++)
            table[i] -= 4 * dtable[i];
    }
    printf("dense: loss %g at first, %g after %d steps; table %.2f %.2f %.2f %.2f up to a constant per head\n", first, loss,
           STEPS, table[0] - table[FAR], table[1] - table[FAR], table[2] - table[FAR], 0.0f);
    free(call.workspace);
    mg_attn_plan_destroy(plan);
    return !(loss < 0.01f * first);
}
