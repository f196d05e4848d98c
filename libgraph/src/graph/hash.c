#include "megagraph/graph.h"

uint64_t mg_graph_hash(const mg_graph *graph)
{
    int64_t sizes[2] = {graph->nodes, graph->edges};
    uint64_t hash = mg_graph_hash_bytes(0, sizes, sizeof sizes);
    hash = mg_graph_hash_bytes(hash, graph->starts, (graph->nodes + 1) * (int64_t)sizeof *graph->starts);
    return mg_graph_hash_bytes(hash, graph->columns, graph->edges * (int64_t)sizeof *graph->columns);
}
