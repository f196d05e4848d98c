#include "csr.h"

#include "library.h"

/* Union-find by path halving; the lowest node of a set is its root. */
static int32_t root_of(int32_t *parent, int32_t node)
{
    while (parent[node] != node)
        node = parent[node] = parent[parent[node]];
    return node;
}

static void unite(int32_t *parent, int32_t a, int32_t b)
{
    a = root_of(parent, a);
    b = root_of(parent, b);
    if (a < b)
        parent[b] = a;
    else
        parent[a] = b;
}

/* sizes[root] becomes the root's component number: falling size by a counting sort, equal sizes by lowest node. */
static int64_t number_roots(int32_t *number, int64_t *places, const int32_t *sizes, int64_t nodes)
{
    int64_t count = 0;
    for (int64_t i = 0; i < nodes; i++)
        if (sizes[i])
            places[nodes - sizes[i] + 1]++;
    for (int64_t k = 0; k < nodes; k++)
        places[k + 1] += places[k];
    for (int64_t i = 0; i < nodes; i++)
        if (sizes[i]) {
            number[i] = (int32_t)places[nodes - sizes[i]]++;
            count++;
        }
    return count;
}

int mg_graph_components(int32_t *component, int64_t *count, const mg_graph *graph)
{
    int64_t nodes = graph->nodes;
    int32_t *sizes = allocate_zeroed(nodes, sizeof *sizes);
    int32_t *number = sizes ? allocate(nodes, sizeof *number) : NULL;
    int64_t *places = number ? allocate_zeroed(nodes + 1, sizeof *places) : NULL;
    int status = places ? 0 : -ENOMEM;
    if (!status) {
        for (int64_t i = 0; i < nodes; i++)
            component[i] = (int32_t)i;
        for (int64_t i = 0; i < nodes; i++)
            for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
                unite(component, (int32_t)i, graph->columns[e]);
        for (int64_t i = 0; i < nodes; i++)
            sizes[component[i] = root_of(component, (int32_t)i)]++;
        *count = number_roots(number, places, sizes, nodes);
        for (int64_t i = 0; i < nodes; i++)
            component[i] = number[component[i]];
    }
    RELEASE_ALL(sizes, number, places);
    return status;
}
