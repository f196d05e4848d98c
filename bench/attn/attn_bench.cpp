// Attention against its bound and against what is done elsewhere, in one program.
//
//     bench_attn                 cases, interleaved, medians of 5
//     bench_attn --compare       fused beside the field's ways, in turns: fails where it is not faster than the usual
//                                ones. --tokens=N (2048), --dim=N
//     bench_attn --near          the same over near pairs alone; --dim=N
//     --graph=FILE               a dataset whose edges are the near pairs (an R-MAT graph)
//     bench_attn --roofline      dense codes at dims 8 to 128, each as a fraction of its bound; what the lookup costs,
//                                and what bf16 gains. --tokens=N (2048), --heads=N, --dim=N
//         --backward             with backward, and what the table gradient costs; codes are then distances in a graph
//         --data=FILE --hops=N   of a dataset (an R-MAT graph), up to N hops (3)
//         --codes=KIND           bands (forward's default), random or graph
//     bench_attn --flops=SECONDS what multiply-adds reach, in flops per second: a probe beside other programs
//     bench_attn --scaling       one head on 1 and 2 threads, against what multiply-adds gain
//     --threads=N                of all cases and probes (1)
#include "cases.h"

#include <benchmark/benchmark.h>

#include <cstring>

int threads = 1;
bench_limits limits;

namespace
{

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
        add<dense_case>("dense/forward/unfused" + end, make, false, [](dense_case &c) { c.theirs.forward(); });
        add<dense_case>("dense/backward/fused" + end, make, true, [](dense_case &c) { c.ours.backward(); });
        add<dense_case>("dense/backward/unfused" + end, make, true, [](dense_case &c) { c.theirs.backward(); });
    }
    for (int32_t dim : {8, 16, 64}) {
        auto make = once<near_case>([=] { return std::make_shared<near_case>(the_near_graph(), 8, dim); });
        std::string end = "/dim:" + std::to_string(dim);
        add<near_case>("near/forward/fused" + end, make, false, [](near_case &c) { c.ours->forward(); });
        add<near_case>("near/forward/edge" + end, make, false, [](near_case &c) { c.edge->forward(); });
        add<near_case>("near/forward/edge_rows" + end, make, false, [](near_case &c) { c.edge_rows->forward(); });
        add<near_case>("near/backward/fused" + end, make, true, [](near_case &c) { c.ours->backward(); });
        add<near_case>("near/backward/edge" + end, make, true, [](near_case &c) { c.edge->backward(); });
        add<near_case>("near/backward/edge_rows" + end, make, true, [](near_case &c) { c.edge_rows->backward(); });
    }
}

// --- compare ---

// What a side moves and computes: flops, exponentials, bytes.
struct amounts {
    double flops, scores, bytes;
    double bound() const { return bench_bound(&limits, flops, scores, bytes); }
};

// Of dense attention. Ours moves tensors and codes, once each. By rows P goes to memory besides, and codes are read
// once a head. Unfused the bias is written and read, the scores are written, read by the second product, and gone over
// between (P and dS in backward).
enum class dense_side { ours, by_rows, unfused };
amounts dense_amounts(const dense_case &c, bool backward, dense_side side)
{
    const double tensors = (backward ? 32. : 16.) * (double)c.l.tokens * c.l.heads * c.l.dim;
    const double matrices = side == dense_side::ours      ? c.code_bytes()
                            : side == dense_side::by_rows ? 5 * c.scores()
                                                          : (backward ? 29 : 25) * c.scores();
    return {c.scores() * c.l.dim * (backward ? 10 : 4), c.scores(), tensors + matrices};
}

// Whether ours is faster: medians of turns taken one after the other.
template <class Ours, class Theirs>
bool compare(const std::string &what, const Ours &ours, const Theirs &theirs, amounts our, amounts their)
{
    std::vector<double> a, b;
    ours();
    theirs();
    for (int turn = 0; turn < 5; turn++) {
        a.push_back(timed(ours));
        b.push_back(timed(theirs));
    }
    std::printf("%-58s %8.1f ms (%.2f) %8.1f ms (%.2f) %7.2f\n", what.c_str(), 1e3 * median(a), our.bound() / median(a),
                1e3 * median(b), their.bound() / median(b), median(b) / median(a));
    std::fflush(stdout);
    return median(a) < median(b);
}

int compare_all(int64_t tokens, int only_dim)
{
    bool faster = true;
    limits = bench_probe(threads);
    std::printf("%-58s %20s %20s %7s\n", "", "ours (of its bound)", "theirs (of its)", "times");
    for (int32_t dim : {8, 16, 32, 64, 128}) {
        if (only_dim && dim != only_dim)
            continue;
        dense_case c(tokens, std::clamp(256 / dim, 2, 8), dim);
        const std::string what =
            std::to_string(tokens) + " tokens, " + std::to_string(c.l.heads) + " heads of " + std::to_string(dim);
        for (bool backward : {false, true})
            for (dense_side side : {dense_side::unfused, dense_side::by_rows}) {
                baseline &theirs = side == dense_side::unfused ? c.theirs : c.by_rows;
                const bool is_faster = compare(
                    what + (backward ? ", backward, " : ", forward, ") +
                        (side == dense_side::unfused ? "unfused" : "by 64 rows"),
                    [&] { backward ? c.ours.backward() : c.ours.forward(); },
                    [&] { backward ? theirs.backward() : theirs.forward(); },
                    dense_amounts(c, backward, dense_side::ours), dense_amounts(c, backward, side));
                faster &= is_faster || side == dense_side::by_rows;
            }
    }
    faster &= compare_near(only_dim);
    return faster ? 0 : 1;
}

} // namespace

int main(int argc, char **argv)
{
    bool only_compare = false, only_near = false, only_roofline = false, only_scaling = false, backward = false;
    int64_t tokens = 2048;
    int heads = 0, dim = 0;
    code_source from = {code_source::bands, nullptr, 3};
    const char *kind = nullptr;
    static char interleave[] = "--benchmark_enable_random_interleaving=true", repeat[] = "--benchmark_repetitions=5",
                aggregate[] = "--benchmark_report_aggregates_only=true";
    std::vector<char *> args = {argv[0], interleave, repeat, aggregate}; // the caller's come after, and win
    for (int i = 1; i < argc; i++)
        if (!std::strcmp(argv[i], "--compare"))
            only_compare = true;
        else if (!std::strcmp(argv[i], "--near"))
            only_near = true;
        else if (!std::strncmp(argv[i], "--graph=", 8))
            near_path = argv[i] + 8;
        else if (!std::strcmp(argv[i], "--roofline"))
            only_roofline = true;
        else if (!std::strncmp(argv[i], "--flops=", 8))
            return std::printf("%.6g\n", bench_flops(1, std::atof(argv[i] + 8))) < 0;
        else if (!std::strcmp(argv[i], "--scaling"))
            only_scaling = true;
        else if (!std::strcmp(argv[i], "--backward"))
            backward = true;
        else if (!std::strncmp(argv[i], "--data=", 7))
            from.path = argv[i] + 7;
        else if (!std::strncmp(argv[i], "--hops=", 7))
            from.hops = std::clamp(std::atoi(argv[i] + 7), 1, codes - 2);
        else if (!std::strncmp(argv[i], "--codes=", 8))
            kind = argv[i] + 8;
        else if (!std::strncmp(argv[i], "--tokens=", 9))
            tokens = std::max(64, std::atoi(argv[i] + 9));
        else if (!std::strncmp(argv[i], "--dim=", 6))
            dim = std::atoi(argv[i] + 6);
        else if (!std::strncmp(argv[i], "--heads=", 8))
            heads = std::max(0, std::atoi(argv[i] + 8));
        else if (!std::strncmp(argv[i], "--threads=", 10))
            threads = std::max(1, std::atoi(argv[i] + 10));
        else
            args.push_back(argv[i]);
    if (only_compare)
        return compare_all(tokens, dim);
    if (only_near) {
        limits = bench_probe(threads);
        return compare_near(dim) ? 0 : 1;
    }
    if (kind ? !std::strcmp(kind, "graph") : from.path || backward)
        from.kind = code_source::graph;
    else if (kind && !std::strcmp(kind, "random"))
        from.kind = code_source::random;
    else if (kind && std::strcmp(kind, "bands"))
        return std::fprintf(stderr, "--codes=%s: there are bands, random and graph\n", kind), 1;
    if (only_roofline)
        return roofline(tokens, heads, dim, backward, from);
    if (only_scaling)
        return scaling();
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
