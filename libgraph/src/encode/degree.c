#include "megagraph/graph.h"

int mg_graph_degrees(int32_t *degrees, const mg_graph *graph)
{
    for (int64_t i = 0; i < graph->nodes; i++) {
        int64_t degree = graph->starts[i + 1] - graph->starts[i];
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            degree -= graph->columns[e] == i;
        degrees[i] = (int32_t)degree;
    }
    return 0;
}
