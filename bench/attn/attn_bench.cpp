// Attention against its bound and against what is done elsewhere, in one program.
//
//     bench_attn                 cases, interleaved, medians of 5
//     bench_attn --compare       fused / unfused and fused / gather-scatter, in turns: fails where fused is not faster
//     --threads=N                of all cases and probes (1)
#include "support/bench.h"
#include <megagraph/attn.h>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace
{

int threads = 1;
bench_limits limits;
constexpr int32_t codes = 16;

void require(int status)
{
    if (status) {
        std::fprintf(stderr, "attention: %s\n", mg_attn_last_error());
        std::exit(1);
    }
}

float random_float(uint64_t index)
{
    uint64_t z = index * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 31) * 0xbf58476d1ce4e5b9u;
    return (float)(z >> 40) * 0x1p-23f - 1;
}

std::vector<float> random_floats(int64_t count, uint64_t seed)
{
    std::vector<float> values(count);
    for (int64_t i = 0; i < count; i++)
        values[i] = random_float(seed * 1000003 + i);
    return values;
}

struct free_memory {
    void operator()(void *block) const { std::free(block); }
};

// Tensors of one layer, and the table.
struct layer {
    int64_t tokens;
    int32_t heads, dim;
    std::vector<float> q, k, v, dout, table, out, lse, dq, dk, dv, dtable;

    layer(int64_t n, int32_t h, int32_t d)
        : tokens(n), heads(h), dim(d), q(random_floats(n * h * d, 1)), k(random_floats(n * h * d, 2)),
          v(random_floats(n * h * d, 3)), dout(random_floats(n * h * d, 4)), table(random_floats(h * codes, 5)),
          out(n * h * d), lse(h * n), dq(n * h * d), dk(n * h * d), dv(n * h * d), dtable(h * codes)
    {
    }
    float scale() const { return 1 / std::sqrt((float)dim); }
};

// libattn on a layer.
struct fused {
    layer &of;
    mg_attn_plan *plan = nullptr;
    mg_attn_call call = {};
    std::unique_ptr<void, free_memory> workspace;

    fused(layer &l, const mg_attn_map &map) : of(l)
    {
        require(mg_attn_plan_create(&plan, &map));
        auto tensor = [&](std::vector<float> &x) { return mg_attn_tensor{x.data(), (int64_t)l.heads * l.dim, l.dim}; };
        call.heads = l.heads;
        call.dim = l.dim;
        call.scale = l.scale();
        call.threads = threads;
        call.q = tensor(l.q);
        call.k = tensor(l.k);
        call.v = tensor(l.v);
        call.out = tensor(l.out);
        call.dout = tensor(l.dout);
        call.dq = tensor(l.dq);
        call.dk = tensor(l.dk);
        call.dv = tensor(l.dv);
        call.table = l.table.data();
        call.lse = l.lse.data();
        call.dtable = l.dtable.data();
        int64_t bytes = std::max(mg_attn_workspace_bytes(plan, &call, 0), mg_attn_workspace_bytes(plan, &call, 1));
        workspace.reset(std::aligned_alloc(64, (bytes / 64 + 1) * 64));
        call.workspace = workspace.get();
        forward(); // so that backward alone can be timed
    }
    ~fused() { mg_attn_plan_destroy(plan); }
    void forward() { require(mg_attn_forward(plan, &call)); }
    void backward() { require(mg_attn_backward(plan, &call)); }
};

// Codes of all pairs that look like distances: low around the diagonal, the highest far from it.
std::vector<uint8_t> dense_codes(int64_t n)
{
    std::vector<uint8_t> map(n * n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            uint64_t x = (uint64_t)(i * n + j) * 0x9e3779b97f4a7c15u >> 40;
            map[i * n + j] = (uint8_t)std::min<uint64_t>(3 + std::abs(i - j) / 300 + x % 4, codes - 1);
        }
    return map;
}

struct dense_case {
    layer l;
    std::vector<uint8_t> map;
    fused ours;
    std::vector<float> p, ds;
    bench_unfused theirs;

    dense_case(int64_t n, int32_t heads, int32_t dim)
        : l(n, heads, dim), map(dense_codes(n)), ours(l, describe(n, map)), p(heads * n * n), ds(threads * n * n)
    {
        theirs = {n,           heads,           dim,        codes,         l.scale(),    map.data(),  l.table.data(),
                  l.q.data(),  l.k.data(),      l.v.data(), l.dout.data(), l.out.data(), l.dq.data(), l.dk.data(),
                  l.dv.data(), l.dtable.data(), p.data(),   ds.data()};
        bench_unfused_forward(&theirs, threads);
    }
    static mg_attn_map describe(int64_t n, const std::vector<uint8_t> &map)
    {
        mg_attn_map m = {};
        m.kind = MG_ATTN_DENSE;
        m.queries = m.keys = n;
        m.codes = codes;
        m.dense = map.data();
        m.dense_stride = n;
        return m;
    }
    double scores() const { return (double)l.tokens * l.tokens * l.heads; }
    double code_bytes() const { return (double)l.tokens * l.tokens; }
};

// Near pairs alone, `degree` of them around each node and some far away, as ordered graphs have.
struct near_case {
    layer l;
    std::vector<int64_t> starts, transposed_starts, transposed_edges;
    std::vector<int32_t> columns, transposed_rows;
    std::vector<uint8_t> edge_codes;
    std::vector<float> p, ds, partials;
    std::unique_ptr<fused> ours;
    bench_edges theirs;

    near_case(int64_t n, int32_t heads, int32_t dim, int degree) : l(n, heads, dim), starts{0}
    {
        for (int64_t i = 0; i < n; i++) {
            std::vector<int32_t> row;
            for (int e = 0; e < degree; e++) {
                float x = random_float(i * degree + e);
                int64_t j = e % 8 ? i + (int64_t)(x * degree * 2) : (int64_t)((x + 1) / 2 * (float)n);
                row.push_back((int32_t)std::clamp<int64_t>(j, 0, n - 1));
            }
            std::sort(row.begin(), row.end());
            row.erase(std::unique(row.begin(), row.end()), row.end());
            columns.insert(columns.end(), row.begin(), row.end());
            starts.push_back((int64_t)columns.size());
        }
        int64_t edges = starts[n];
        edge_codes.resize(edges);
        for (int64_t e = 0; e < edges; e++)
            edge_codes[e] = (uint8_t)(e * 7 % 4);
        transposed_starts.resize(n + 1);
        transposed_rows.resize(edges);
        transposed_edges.resize(edges);
        bench_edges_transpose(transposed_starts.data(), transposed_rows.data(), transposed_edges.data(), n,
                              starts.data(), columns.data());
        p.resize(edges * heads);
        ds.resize(edges * heads);
        partials.resize(threads * heads * codes);
        mg_attn_map m = {};
        m.kind = MG_ATTN_NEAR;
        m.queries = m.keys = n;
        m.codes = codes;
        m.far_code = codes - 1;
        m.mask_far = 1;
        m.near_starts = starts.data();
        m.near_columns = columns.data();
        m.near_codes = edge_codes.data();
        ours = std::make_unique<fused>(l, m);
        theirs = {n,
                  edges,
                  heads,
                  dim,
                  codes,
                  l.scale(),
                  starts.data(),
                  columns.data(),
                  edge_codes.data(),
                  transposed_starts.data(),
                  transposed_rows.data(),
                  transposed_edges.data(),
                  l.table.data(),
                  l.q.data(),
                  l.k.data(),
                  l.v.data(),
                  l.dout.data(),
                  l.out.data(),
                  l.dq.data(),
                  l.dk.data(),
                  l.dv.data(),
                  l.dtable.data(),
                  p.data(),
                  ds.data(),
                  partials.data()};
        bench_edges_forward(&theirs, threads);
    }
    double scores() const { return (double)starts.back() * l.heads; }
    double code_bytes() const { return 5. * (double)starts.back(); }
};

// --- counters ---

// Forward has 2 products of 2 flops per score and dim, backward 5. Bytes: tensors and codes, once each.
template <class Case> void report(benchmark::State &state, const Case &c, bool backward, double seconds)
{
    double scores = c.scores(), flops = scores * c.l.dim * (backward ? 10 : 4);
    double bytes = c.code_bytes() + (backward ? 8. : 4.) * (double)c.l.tokens * c.l.heads * c.l.dim * sizeof(float);
    using counter = benchmark::Counter;
    auto rate = [&](double amount) { return counter(amount, counter::kIsIterationInvariantRate, counter::kIs1000); };
    state.counters["flop/s"] = rate(flops);
    state.counters["bytes/s"] = rate(bytes);
    state.counters["scores/s"] = rate(scores);
    state.counters["of_bound"] = bench_bound(&limits, flops, scores, bytes) / seconds;
}

template <class Case, class Work>
void run(benchmark::State &state, std::shared_ptr<Case> &made, const Work &work, bool backward)
{
    double before = bench_time(threads);
    for (auto _ : state)
        work(*made);
    report(state, *made, backward, (bench_time(threads) - before) / (double)state.iterations());
}

// A case is made when it is first run, and kept for all that share it.
template <class Case> using maker = std::function<std::shared_ptr<Case>()>;

template <class Case, class Work>
void add(const std::string &name, const maker<Case> &make, bool backward, const Work &work)
{
    auto *one = benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State &state) {
        auto made = make();
        run(state, made, work, backward);
    });
    one->Unit(benchmark::kMillisecond);
    if (threads > 1)
        one->UseRealTime();
}

template <class Case> maker<Case> once(const maker<Case> &make)
{
    auto kept = std::make_shared<std::shared_ptr<Case>>();
    return [=] {
        if (!*kept)
            *kept = make();
        return *kept;
    };
}

void add_cases()
{
    for (int32_t dim : {8, 16, 32, 64, 128}) {
        auto make = once<dense_case>([=] { return std::make_shared<dense_case>(2048, 2, dim); });
        std::string end = "/dim:" + std::to_string(dim);
        add<dense_case>("dense/forward/fused" + end, make, false, [](dense_case &c) { c.ours.forward(); });
        add<dense_case>("dense/forward/unfused" + end, make, false,
                        [](dense_case &c) { bench_unfused_forward(&c.theirs, threads); });
        add<dense_case>("dense/backward/fused" + end, make, true, [](dense_case &c) { c.ours.backward(); });
        add<dense_case>("dense/backward/unfused" + end, make, true,
                        [](dense_case &c) { bench_unfused_backward(&c.theirs, threads); });
    }
    for (int32_t dim : {8, 16, 64}) {
        auto make = once<near_case>([=] { return std::make_shared<near_case>(20000, 8, dim, 32); });
        std::string end = "/dim:" + std::to_string(dim);
        add<near_case>("near/forward/fused" + end, make, false, [](near_case &c) { c.ours->forward(); });
        add<near_case>("near/forward/edges" + end, make, false,
                       [](near_case &c) { bench_edges_forward(&c.theirs, threads); });
        add<near_case>("near/backward/fused" + end, make, true, [](near_case &c) { c.ours->backward(); });
        add<near_case>("near/backward/edges" + end, make, true,
                       [](near_case &c) { bench_edges_backward(&c.theirs, threads); });
    }
}

// --- compare ---

double median(std::vector<double> x)
{
    std::nth_element(x.begin(), x.begin() + x.size() / 2, x.end());
    return x[x.size() / 2];
}

template <class Work> double timed(const Work &work)
{
    double before = bench_time(threads);
    work();
    return bench_time(threads) - before;
}

// Whether ours is faster: medians of turns taken one after the other.
template <class Ours, class Theirs> bool compare(const char *what, const Ours &ours, const Theirs &theirs)
{
    std::vector<double> a, b;
    ours();
    theirs();
    for (int turn = 0; turn < 5; turn++) {
        a.push_back(timed(ours));
        b.push_back(timed(theirs));
    }
    std::printf("%-64s %8.1f ms against %8.1f ms: %.2f times as fast\n", what, 1e3 * median(a), 1e3 * median(b),
                median(b) / median(a));
    std::fflush(stdout);
    return median(a) < median(b);
}

int compare_all()
{
    bool faster = true;
    {
        dense_case c(4096, 8, 16);
        faster &= compare(
            "4096 tokens, 8 heads of 16, forward + backward, unfused", [&] { c.ours.forward(), c.ours.backward(); },
            [&] { bench_unfused_forward(&c.theirs, threads), bench_unfused_backward(&c.theirs, threads); });
    }
    for (int32_t dim : {8, 16, 32, 64, 128}) {
        dense_case c(2048, 2, dim);
        std::string what = "2048 tokens, 2 heads of " + std::to_string(dim);
        faster &= compare((what + ", forward, unfused").c_str(), [&] { c.ours.forward(); },
                          [&] { bench_unfused_forward(&c.theirs, threads); });
        c.ours.forward();
        faster &= compare((what + ", backward, unfused").c_str(), [&] { c.ours.backward(); },
                          [&] { bench_unfused_backward(&c.theirs, threads); });
    }
    for (int32_t dim : {8, 16, 64}) {
        near_case c(20000, 8, dim, 32);
        std::string what = "20000 tokens, 32 near each, 8 heads of " + std::to_string(dim);
        faster &= compare((what + ", forward, edges").c_str(), [&] { c.ours->forward(); },
                          [&] { bench_edges_forward(&c.theirs, threads); });
        c.ours->forward();
        faster &= compare((what + ", backward, edges").c_str(), [&] { c.ours->backward(); },
                          [&] { bench_edges_backward(&c.theirs, threads); });
    }
    return faster ? 0 : 1;
}

} // namespace

int main(int argc, char **argv)
{
    bool only_compare = false;
    static char interleave[] = "--benchmark_enable_random_interleaving=true", repeat[] = "--benchmark_repetitions=5",
                aggregate[] = "--benchmark_report_aggregates_only=true";
    std::vector<char *> args = {argv[0], interleave, repeat, aggregate}; // the caller's come after, and win
    for (int i = 1; i < argc; i++)
        if (!std::strcmp(argv[i], "--compare"))
            only_compare = true;
        else if (!std::strncmp(argv[i], "--threads=", 10))
            threads = std::max(1, std::atoi(argv[i] + 10));
        else
            args.push_back(argv[i]);
    if (only_compare)
        return compare_all();
    int count = (int)args.size();
    args.push_back(nullptr);
    benchmark::Initialize(&count, args.data());
    if (benchmark::ReportUnrecognizedArguments(count, args.data()))
        return 1;
    limits = bench_probe(threads);
    char line[64];
    std::snprintf(line, sizeof line, "%.1f", limits.flops * 1e-9);
    benchmark::AddCustomContext("peak Gflop/s", line);
    std::snprintf(line, sizeof line, "%.2f", limits.exponentials * 1e-9);
    benchmark::AddCustomContext("peak Gexp/s", line);
    std::snprintf(line, sizeof line, "%.1f", limits.bytes * 1e-9);
    benchmark::AddCustomContext("peak GB/s", line);
    benchmark::AddCustomContext("threads", std::to_string(threads));
    add_cases();
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
