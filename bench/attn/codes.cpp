// Codes of all pairs of a block of tokens: distances in a graph, bands around the diagonal, or random.
#include "cases.h"

#include <megagraph/dataset.h>
#include <megagraph/graph.h>

namespace
{

void check(int status)
{
    if (status)
        std::fprintf(stderr, "graph: %s\n", mg_graph_last_error()), std::exit(1);
}

// Capped distances between the middle `n` nodes of a graph in a good order; hops + 1 is far.
std::vector<uint8_t> distances(const mg_graph *given, int64_t n, int hops)
{
    mg_graph *ordered = nullptr;
    mg_graph_near *near = nullptr;
    std::vector<int32_t> order(given->nodes);
    if (n > given->nodes)
        std::fprintf(stderr, "%lld tokens of a graph of %lld nodes\n", (long long)n, (long long)given->nodes),
            std::exit(1);
    check(mg_graph_order(order.data(), nullptr, given, MG_GRAPH_ORDER_AUTO, hops));
    check(mg_graph_permute(&ordered, given, order.data()));
    const int64_t first = (given->nodes - n) / 2;
    check(mg_graph_near_create_rows(&near, ordered, hops, first, first + n));
    std::vector<uint8_t> map(n * n, (uint8_t)(hops + 1));
    for (int64_t i = 0; i < n; i++)
        for (int64_t e = near->starts[i]; e < near->starts[i + 1]; e++)
            if (near->columns[e] >= first && near->columns[e] < first + n)
                map[i * n + near->columns[e] - first] = near->codes[e];
    mg_graph_near_destroy(near);
    mg_graph_destroy(ordered);
    return map;
}

} // namespace

std::vector<uint8_t> make_codes(const code_source &from, int64_t n)
{
    if (from.kind == code_source::bands)
        return dense_codes(n);
    if (from.kind == code_source::random) {
        std::vector<uint8_t> map(n * n);
        for (int64_t i = 0; i < n * n; i++)
            map[i] = (uint8_t)((uint64_t)i * 0x9e3779b97f4a7c15u >> 60);
        return map;
    }
    mg_graph *graph = nullptr;
    mg_dataset *data = nullptr;
    if (from.path) {
        mg_dataset_desc desc = {};
        check(mg_dataset_open(&data, from.path, &desc));
    } else
        check(mg_graph_generate_rmat(&graph, 12000, 250000, 1));
    std::vector<uint8_t> map = distances(data ? data->graph : graph, n, from.hops);
    mg_graph_destroy(graph);
    mg_dataset_close(data);
    return map;
}

void describe_codes(const std::vector<uint8_t> &map, int64_t n)
{
    int64_t tiles = 0, constant = 0, present = 0;
    for (int64_t row = 0; row < n; row += MG_ATTN_TILE)
        for (int64_t column = 0; column < n; column += MG_ATTN_TILE, tiles++) {
            uint64_t found = 0;
            for (int64_t i = row; i < std::min(n, row + MG_ATTN_TILE); i++)
                for (int64_t j = column; j < std::min(n, column + MG_ATTN_TILE); j++)
                    found |= UINT64_C(1) << map[i * n + j];
            present += __builtin_popcountll(found);
            constant += (found & (found - 1)) == 0;
        }
    std::printf("%.1f codes in a tile, %.0f %% of the tiles have one\n", (double)present / (double)tiles,
                100. * (double)constant / (double)tiles);
}
