// Attention over near pairs beside the two ways over edges, in turns, each with the share of its own bound.
#include "cases.h"

const char *near_path = nullptr;

namespace
{

void check(int status)
{
    if (status)
        std::fprintf(stderr, "graph: %s\n", mg_graph_last_error()), std::exit(1);
}

enum class way { ours, edge, edge_rows };

// Bytes of a call. Gathered rows are counted for each pair: the tensors are larger than the second cache.
// rows: a tensor; gathered: a buffer of edges; weights: a number for each edge and head.
//     edge       forward: gathers q (each once), k and v, 3 written; product 3, sum 1, messages 2, their sum 1;
//     backward:
//                dout once, 1 written; three messages 2 each and their sums 1 each, product 3, sum 1
//     edge_rows  forward: k, v for each pair; backward: v, k, and by key q, dout
//     ours       forward: as edge_rows, without P; backward: scores again, P and dS kept for all pairs, read by key
double bytes_of(const near_case &c, bool backward, way w)
{
    const double rows = 4. * (double)c.l.tokens * c.l.heads * c.l.dim, weights = 4 * c.scores();
    const double gathered = weights * c.l.dim;
    switch (w) {
    case way::edge:
        return backward ? 14 * gathered + 4 * rows + 8 * weights : 12 * gathered + 2 * rows + 4 * weights;
    case way::edge_rows:
        return backward ? 4 * gathered + 5 * rows + 4 * weights : 2 * gathered + 2 * rows + weights;
    default:
        return c.code_bytes() + (backward ? 4 * gathered + 5 * rows + 4 * weights : 2 * gathered + 2 * rows);
    }
}

double bound_of(const near_case &c, bool backward, way w)
{
    return bench_bound(&limits, c.scores() * c.l.dim * (backward ? w == way::ours ? 10 : 8 : 4),
                       backward && w != way::ours ? 0 : c.scores(), bytes_of(c, backward, w));
}

bool compare_one(near_case &c, bool backward)
{
    enum { WAYS = 3, TURNS = 7 };
    const auto run = [&](int w) {
        if (w == 0)
            backward ? c.ours->backward() : c.ours->forward();
        else
            backward ? (w == 1 ? c.edge : c.edge_rows)->backward() : (w == 1 ? c.edge : c.edge_rows)->forward();
    };
    std::vector<double> seconds[WAYS];
    for (int turn = -1; turn < TURNS; turn++)
        for (int w = 0; w < WAYS; w++) {
            const double t = timed([&] { run(w); });
            if (turn >= 0)
                seconds[w].push_back(t);
        }
    std::printf("%2d heads of %3d, %-8s", c.l.heads, c.l.dim, backward ? "backward" : "forward");
    const double ours = median(seconds[0]);
    for (int w = 0; w < WAYS; w++) {
        const double t = median(seconds[w]);
        std::printf("   %8.1f ms (%.2f)", 1e3 * t, bound_of(c, backward, (way)w) / t);
        if (w)
            std::printf(" %5.2f", t / ours);
    }
    std::printf("\n");
    std::fflush(stdout);
    return ours < median(seconds[1]);
}

} // namespace

near_graph::near_graph(const char *path)
{
    mg_graph *graph = nullptr, *ordered = nullptr;
    mg_dataset *data = nullptr;
    if (path) {
        mg_dataset_desc desc = {};
        check(mg_dataset_open(&data, path, &desc));
    } else
        check(mg_graph_generate_rmat(&graph, 60000, 280000, 1));
    const mg_graph *given = data ? data->graph : graph;
    std::vector<int32_t> order(given->nodes);
    check(mg_graph_order(order.data(), nullptr, given, MG_GRAPH_ORDER_LISTS, 1));
    check(mg_graph_permute(&ordered, given, order.data()));
    check(mg_graph_near_create(&near, ordered, 1));
    mg_graph_destroy(ordered);
    mg_graph_destroy(graph);
    mg_dataset_close(data);
}

const near_graph &the_near_graph()
{
    static const near_graph graph(near_path);
    return graph;
}

bool compare_near(int only_dim)
{
    bool faster = true;
    const near_graph &g = the_near_graph();
    std::printf("%s: %lld nodes, %lld near pairs; medians; (share of its own bound); times ours\n%28s %17s %23s %23s\n",
                near_path ? near_path : "R-MAT", (long long)g.near->nodes, (long long)g.near->pairs, "", "ours", "edge",
                "edge_rows");
    for (auto [heads, dim] : {std::pair{8, 8}, {4, 16}, {8, 16}, {2, 64}}) {
        if (only_dim && dim != only_dim)
            continue;
        near_case c(g, heads, dim);
        for (bool backward : {false, true})
            faster &= compare_one(c, backward);
    }
    return faster;
}
