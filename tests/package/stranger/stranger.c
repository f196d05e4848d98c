/* One attention over a grid, biased by distance, and one optimizer step: every library is called, nothing else is
 * linked. */
#include <megagraph/attn.h>
#include <megagraph/comm.h>
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

static int add(mg_comm *comm, void *sum)
{
    double mine = mg_comm_rank(comm) + 1;
    int status = mg_comm_all_reduce(comm, &mine, 1, MG_COMM_FP64, MG_COMM_SUM);
    if (mg_comm_rank(comm) == 0)
        *(double *)sum = mine;
    return status;
}

/* Ranks are threads here, and processes only where somebody starts several of this program. */
static int ranks(void)
{
    double sum = 0;
    mg_comm *comm;
    if (mg_comm_run_threads(3, NULL, add, &sum) || sum != 6)
        return complain("comm", mg_dp_last_error());
    if (mg_comm_under_mpi()) {
        if (mg_comm_open_mpi(&comm, 1, NULL))
            return complain("comm", mg_dp_last_error());
        mg_comm_close(comm);
    }
    return 0;
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
    if (ranks())
        return 1;
    puts("stranger: all is well");
    return 0;
}
