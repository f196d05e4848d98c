/* One attention over a grid, biased by distance, and one optimizer step: every library is called, nothing else is
 * linked. */
#include <megagraph/attn.h>
#include <megagraph/dataset.h>
#include <megagraph/dp.h>
#include <megagraph/graph.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 10, NODES = SIDE * SIDE, HEADS = 2, DIM = 8, HOPS = 3, CODES = HOPS + 2 };

static int complain(const char *what, const char *line)
{
    fprintf(stderr, "stranger: %s: %s\n", what, line);
    return 1;
}

int main(void)
{
    static uint8_t codes[NODES * NODES];
    static float q[NODES * HEADS * DIM], v[NODES * HEADS * DIM], out[NODES * HEADS * DIM], table[HEADS * CODES];
    mg_graph *graph;
    mg_attn_plan *plan;
    if (mg_graph_generate_grid(&graph, SIDE, SIDE) || mg_graph_dense_codes(codes, NODES, graph, HOPS, 0, NODES))
        return complain("graph", mg_graph_last_error());
    mg_graph_destroy(graph);

    for (int i = 0; i < NODES * HEADS * DIM; i++) {
        q[i] = sinf((float)i);
        v[i] = 1; /* any weighted mean of ones is 1 */
    }
    for (int i = 0; i < HEADS * CODES; i++)
        table[i] = -0.5f * (float)(i % CODES);
    mg_attn_tensor heads[] = {{q, HEADS * DIM, DIM}, {v, HEADS * DIM, DIM}, {out, HEADS * DIM, DIM}};
    mg_attn_call call = {.heads = HEADS,
                         .dim = DIM,
                         .scale = 0.35f,
                         .table = table,
                         .q = heads[0],
                         .k = heads[0],
                         .v = heads[1],
                         .out = heads[2]};
    if (mg_attn_plan_create(&plan, &(mg_attn_map){.kind = MG_ATTN_DENSE,
                                                  .queries = NODES,
                                                  .keys = NODES,
                                                  .codes = CODES,
                                                  .dense = codes,
                                                  .dense_stride = NODES}))
        return complain("attn", mg_attn_last_error());
    call.workspace = aligned_alloc(64, (size_t)(mg_attn_workspace_bytes(plan, &call, 0) + 63) / 64 * 64);
    if (!call.workspace || mg_attn_forward(plan, &call))
        return complain("attn", mg_attn_last_error());
    free(call.workspace);
    mg_attn_plan_destroy(plan);
    for (int i = 0; i < NODES * HEADS * DIM; i++)
        if (!(fabsf(out[i] - 1) < 1e-5f))
            return complain("attn", "a mean of ones is not 1");

    float parameter = 1, first = 0, second = 0, gradient = 0.5f;
    mg_dp_adamw adamw = {.rate = 0.1f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f};
    if (mg_dp_adamw_step(&parameter, &first, &second, &gradient, 1, &adamw, 1, 1))
        return complain("dp", mg_dp_last_error());
    if (!(fabsf(parameter - 0.9f) < 1e-5f))
        return complain("dp", "the first step is not the rate");
    puts("stranger: all is well");
    return 0;
}
