// Distances, orders and partitions of real graphs, against a queue per node and against the memory's speed.
//
//     MEGAGRAPH_DATA=folder bench_graph [--benchmark_filter=stream]      folder: with debian.npz and tolokers.npz
//
// Streams run on one thread, everything else on OpenMP's default (OMP_NUM_THREADS). `bound`: the time of moving the
// codes written at the machine's read speed, over the time taken.
#include "support/bench.h"
#include <megagraph/dataset.h>

#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace
{

constexpr int64_t block_rows = 512;
bench_limits one_thread, all_threads;

void require(int status)
{
    if (status) {
        std::fprintf(stderr, "graph: %s\n", mg_graph_last_error());
        std::exit(1);
    }
}

template <auto destroy> struct destroyer {
    template <typename T> void operator()(T *object) const { destroy(object); }
};
using graph_pointer = std::unique_ptr<mg_graph, destroyer<mg_graph_destroy>>;
using bytes_pointer = std::unique_ptr<uint8_t, destroyer<std::free>>;

// 64-byte aligned, touched.
bytes_pointer buffer(int64_t bytes)
{
    bytes_pointer block((uint8_t *)std::aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64)));
    for (int64_t i = 0; i < bytes; i += 4096)
        block.get()[i] = 1;
    return block;
}

int open_dataset(mg_dataset **out, const std::string &name)
{
    const char *folder = std::getenv("MEGAGRAPH_DATA");
    mg_dataset_desc desc = {};
    if (name == "sbm")
        return mg_dataset_generate_sbm(out, 4096, 8, 6, 2, 1, 1, 1);
    return mg_dataset_open(out, ((folder ? std::string(folder) + "/" : "") + name).c_str(), &desc);
}

// Reads or makes a graph once; nullptr, and the benchmark is skipped, where the file is not there.
const mg_graph *load(benchmark::State &state, const std::string &name)
{
    static std::map<std::string, mg_dataset *> loaded;
    if (!loaded.count(name) && open_dataset(&loaded[name], name)) {
        loaded.erase(name);
        state.SkipWithError(mg_graph_last_error());
        return nullptr;
    }
    return loaded[name]->graph;
}

graph_pointer in_order(const mg_graph *graph, mg_graph_order_kind kind, int hops)
{
    std::vector<int32_t> order((size_t)graph->nodes);
    mg_graph *permuted;
    require(mg_graph_order(order.data(), nullptr, graph, kind, hops));
    require(mg_graph_permute(&permuted, graph, order.data()));
    return graph_pointer(permuted);
}

void report_bytes(benchmark::State &state, int64_t bytes, const bench_limits &limits, double seconds)
{
    double moved = (double)bytes * (double)state.iterations();
    state.counters["bytes"] = benchmark::Counter(moved, benchmark::Counter::kIsRate);
    state.counters["bound"] = moved / limits.bytes / seconds;
}

// One block of 512 rows, all columns, on one thread; each iteration the next of blocks spread over the graph.
void stream(benchmark::State &state, const char *name, mg_graph_order_kind kind)
{
    const mg_graph *given = load(state, name);
    int hops = (int)state.range(0);
    if (!given)
        return;
    graph_pointer graph = in_order(given, kind, hops);
    int64_t stride = (graph->nodes + 63) / 64 * 64 + 64, blocks = graph->nodes / block_rows, block = 0;
    bytes_pointer codes = buffer(block_rows * stride);
    mg_graph_stream *stream;
    require(mg_graph_stream_create(&stream, graph.get(), hops, 1));
    double start = bench_seconds();
    for (auto _ : state) {
        block = (block + 5) % blocks;
        require(mg_graph_stream_codes(stream, 0, block * block_rows, block_rows, 0, graph->nodes, codes.get(), stride));
    }
    report_bytes(state, block_rows * graph->nodes, one_thread, bench_seconds() - start);
    mg_graph_stream_destroy(stream);
}

// What the stream is measured against: the same rows by a queue per node.
void queue_per_node(benchmark::State &state, const char *name)
{
    const mg_graph *graph = load(state, name);
    int hops = (int)state.range(0);
    if (!graph)
        return;
    int64_t stride = graph->nodes, blocks = graph->nodes / block_rows, block = 0;
    bytes_pointer codes = buffer(block_rows * stride);
    std::vector<int32_t> queue((size_t)graph->nodes);
    double start = bench_seconds();
    for (auto _ : state) {
        block = (block + 5) % blocks;
        for (int64_t r = 0; r < block_rows; r++) {
            uint8_t *row = codes.get() + r * stride;
            int64_t head = 0, tail = 1;
            std::fill(row, row + graph->nodes, (uint8_t)(hops + 1));
            queue[0] = (int32_t)(block * block_rows + r);
            row[queue[0]] = 0;
            while (head < tail && row[queue[(size_t)head]] < hops) {
                int32_t node = queue[(size_t)head++];
                for (int64_t e = graph->starts[node]; e < graph->starts[node + 1]; e++)
                    if (row[graph->columns[e]] == hops + 1) {
                        row[graph->columns[e]] = (uint8_t)(row[node] + 1);
                        queue[(size_t)tail++] = graph->columns[e];
                    }
            }
        }
        benchmark::ClobberMemory();
    }
    report_bytes(state, block_rows * graph->nodes, one_thread, bench_seconds() - start);
}

void dense(benchmark::State &state, const char *name)
{
    const mg_graph *graph = load(state, name);
    if (!graph)
        return;
    int64_t stride = (graph->nodes + 63) / 64 * 64;
    bytes_pointer codes = buffer(graph->nodes * stride);
    double start = bench_seconds();
    for (auto _ : state)
        require(mg_graph_dense_codes(codes.get(), stride, graph, (int)state.range(0), 0, graph->nodes));
    report_bytes(state, graph->nodes * graph->nodes, all_threads, bench_seconds() - start);
}

void near(benchmark::State &state, const char *name)
{
    const mg_graph *graph = load(state, name);
    if (!graph)
        return;
    int64_t pairs = 0;
    double start = bench_seconds();
    for (auto _ : state) {
        mg_graph_near *near;
        require(mg_graph_near_create(&near, graph, (int)state.range(0)));
        pairs = near->pairs;
        mg_graph_near_destroy(near);
    }
    state.counters["pairs"] =
        benchmark::Counter((double)pairs * (double)state.iterations(), benchmark::Counter::kIsRate);
    report_bytes(state, pairs * 5, all_threads, bench_seconds() - start);
}

void order(benchmark::State &state, const char *name)
{
    const mg_graph *graph = load(state, name);
    if (!graph)
        return;
    std::vector<int32_t> order((size_t)graph->nodes);
    mg_graph_order_kind chosen;
    for (auto _ : state)
        require(mg_graph_order(order.data(), &chosen, graph, MG_GRAPH_ORDER_AUTO, (int)state.range(0)));
    state.counters["chosen"] = chosen;
}

void tiles(benchmark::State &state, const char *name, mg_graph_order_kind kind)
{
    const mg_graph *given = load(state, name);
    int hops = (int)state.range(0);
    if (!given)
        return;
    graph_pointer graph = in_order(given, kind, hops);
    int64_t bytes = 0, tiles_mixed = 0, count = 0;
    for (auto _ : state) {
        mg_graph_tiles *tiles;
        require(mg_graph_tiles_create(&tiles, graph.get(), hops, 0, graph->nodes));
        bytes = mg_graph_tiles_bytes(tiles);
        count = tiles->tile_rows * tiles->tile_columns;
        tiles_mixed = 0;
        for (int64_t t = 0; t < count; t++)
            tiles_mixed += tiles->classes[t] == MG_GRAPH_TILE_PLANES;
        mg_graph_tiles_destroy(tiles);
    }
    state.counters["megabytes"] = (double)bytes * 1e-6;
    state.counters["mixed"] = (double)tiles_mixed / (double)count;
}

void partition(benchmark::State &state, const char *name)
{
    const mg_graph *graph = load(state, name);
    if (!graph)
        return;
    std::vector<int32_t> parts((size_t)graph->nodes);
    mg_graph_partition_desc desc = {};
    mg_graph_partition_report report = {};
    desc.parts = (int32_t)state.range(0);
    for (auto _ : state)
        require(mg_graph_partition(parts.data(), &report, graph, &desc));
    state.counters["cut"] = (double)report.cut;
    state.counters["nodes"] = report.node_balance;
    state.counters["weights"] = report.weight_balance;
}

#define CASE(function, name, ...)                                                                                      \
    BENCHMARK_CAPTURE(function, name, __VA_ARGS__)->Unit(benchmark::kMillisecond)->UseRealTime()

CASE(stream, sbm, "sbm", MG_GRAPH_ORDER_GIVEN)->Arg(3); // those of sbm need no file
CASE(near, sbm, "sbm")->Arg(2);
CASE(dense, sbm, "sbm")->Arg(3);
CASE(stream, debian_as_given, "debian.npz", MG_GRAPH_ORDER_GIVEN)->Arg(3)->Arg(5)->Arg(8);
CASE(stream, debian_in_order, "debian.npz", MG_GRAPH_ORDER_LANDMARK)->Arg(3)->Arg(5)->Arg(8);
CASE(queue_per_node, debian, "debian.npz")->Arg(3)->Arg(5);
CASE(dense, tolokers, "tolokers.npz")->Arg(5);
CASE(near, tolokers, "tolokers.npz")->Arg(1)->Arg(2)->Arg(3);
CASE(near, debian, "debian.npz")->Arg(1)->Arg(2);
CASE(order, debian_auto, "debian.npz")->Arg(3)->Iterations(1);
CASE(tiles, debian_as_given, "debian.npz", MG_GRAPH_ORDER_GIVEN)->Arg(3)->Iterations(1);
CASE(tiles, debian_auto, "debian.npz", MG_GRAPH_ORDER_AUTO)->Arg(2)->Arg(3)->Arg(5)->Iterations(1);
CASE(tiles, tolokers_auto, "tolokers.npz", MG_GRAPH_ORDER_AUTO)->Arg(3)->Arg(5);
CASE(partition, debian, "debian.npz")->Arg(2)->Arg(8)->Arg(64)->Iterations(1);

void add_context(const char *name, double bytes)
{
    char line[64];
    std::snprintf(line, sizeof line, "%.1f", bytes * 1e-9);
    benchmark::AddCustomContext(name, line);
}

} // namespace

int main(int argc, char **argv)
{
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv))
        return 1;
    const char *threads = std::getenv("OMP_NUM_THREADS");
    one_thread = bench_probe(1);
    all_threads = bench_probe(threads ? std::atoi(threads) : (int)std::thread::hardware_concurrency());
    add_context("GB/s of one thread", one_thread.bytes);
    add_context("GB/s of all threads", all_threads.bytes);
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
