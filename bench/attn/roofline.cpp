// Short measurements of dense attention, in turns: as fractions of the bound, and on two threads.
#include "cases.h"

namespace
{

struct side {
    const char *name;
    std::unique_ptr<fused> on;
    bool backward;
    std::vector<double> seconds;
};

double best(const std::vector<double> &x) { return *std::min_element(x.begin(), x.end()); }

void take_turns(std::vector<side> &sides, int turns)
{
    for (int turn = -1; turn < turns; turn++)
        for (side &s : sides) {
            const double t = timed([&] { s.backward ? s.on->backward() : s.on->forward(); });
            if (turn >= 0)
                s.seconds.push_back(t);
        }
}

int heads_of(int32_t dim, int heads) { return heads ? heads : std::clamp(256 / dim, 2, 8); }

void one_dim(int64_t tokens, int32_t dim, int heads, const std::vector<uint8_t> &map, bool backward)
{
    layer l(tokens, heads_of(dim, heads), dim);
    mg_attn_map none = {};
    none.kind = MG_ATTN_NONE;
    none.queries = none.keys = tokens;
    std::vector<side> sides;
    auto add = [&](const char *name, const mg_attn_map &m, mg_attn_type type, bool back) {
        sides.push_back({name, std::make_unique<fused>(l, m, type), back, {}});
    };
    const mg_attn_map dense = describe_dense(tokens, map);
    add("forward", dense, MG_ATTN_FP32, false);
    add("  without bias", none, MG_ATTN_FP32, false);
    add("  in bf16", dense, MG_ATTN_BF16, false);
    if (backward) {
        add("backward", dense, MG_ATTN_FP32, true);
        add("  without table gradient", dense, MG_ATTN_FP32, true);
        sides.back().on->call.dtable = nullptr;
        add("  in bf16", dense, MG_ATTN_BF16, true);
    }
    take_turns(sides, tokens > 2048 ? 5 : 15);
    const double scores = (double)tokens * tokens * l.heads;
    const side *first = nullptr;
    char more[32] = "";
    for (const side &s : sides) {
        const double flops = scores * dim * (s.backward ? 10 : 4);
        const double bytes = (double)tokens * tokens + (s.backward ? 8. : 4.) * (double)tokens * l.heads * dim * 4;
        const double bound = bench_bound(&limits, flops, scores, bytes), middle = median(s.seconds);
        if (s.name[0] != ' ')
            first = &s;
        const double fp32 = median(first->seconds);
        if (&s == first)
            *more = 0;
        else if (std::strstr(s.name, "without"))
            std::snprintf(more, sizeof more, "costs %+.1f %%", 100 * (fp32 / middle - 1));
        else
            std::snprintf(more, sizeof more, "%.2f times fp32", fp32 / middle);
        std::printf("%6lld %6d %5d  %-26s %9.2f %10.3f %9.3f %7.3f   %s\n", (long long)tokens, l.heads, dim, s.name,
                    1e3 * middle, 1e-9 * scores / middle, bound / middle, bound / best(s.seconds), more);
    }
    std::fflush(stdout);
}

} // namespace

int roofline(int64_t tokens, int heads, int only, bool backward, const code_source &from)
{
    limits = bench_probe(threads);
    std::printf("%d thread%s: %.1f Gflop/s, %.2f Gexp/s, %.1f GB/s; bound = max(flops / peak + scores / exp, bytes / "
                "bandwidth)\n",
                threads, threads > 1 ? "s" : "", 1e-9 * limits.flops, 1e-9 * limits.exponentials, 1e-9 * limits.bytes);
    std::vector<uint8_t> map = make_codes(from, tokens);
    describe_codes(map, tokens);
    std::printf("%6s %6s %5s  %-26s %9s %10s %9s %7s\n", "tokens", "heads", "dim", "", "ms", "Gscores/s", "of bound",
                "best");
    for (int32_t dim : {8, 16, 32, 64, 128})
        if (!only || dim == only)
            one_dim(tokens, dim, heads, map, backward);
    return 0;
}

// What two threads gain over one, of one head, beside what multiply-adds gain in the same turns.
int scaling()
{
    const int64_t tokens = 4096;
    std::vector<uint8_t> map = dense_codes(tokens);
    for (int32_t dim : {16, 64}) {
        layer l(tokens, 1, dim);
        threads = 2; // so that the workspace suffices for both, and the clock is that of the wall
        fused f(l, describe_dense(tokens, map));
        std::vector<double> peak, forward;
        for (int turn = 0; turn < 15; turn++) {
            const double one = bench_flops(1, 0.02), two = bench_flops(2, 0.02);
            double seconds[2];
            for (int t = 1; t <= 2; t++) {
                f.call.threads = t;
                const double before = bench_seconds();
                f.forward();
                seconds[t - 1] = bench_seconds() - before;
            }
            peak.push_back(two / one);
            forward.push_back(seconds[0] / seconds[1]);
        }
        std::vector<double> shares;
        for (size_t i = 0; i < peak.size(); i++)
            shares.push_back(forward[i] / peak[i]);
        std::printf("%lld tokens, one head of %d, two threads over one: forward %.2f, multiply-adds %.2f, share %.3f "
                    "(medians of %zu)\n",
                    (long long)tokens, dim, median(forward), median(peak), median(shares), peak.size());
    }
    return 0;
}
