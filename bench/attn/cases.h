// What is measured: a layer, libattn on it, and the cases with their baselines.
#ifndef BENCH_ATTN_CASES_H
#define BENCH_ATTN_CASES_H
#include "support/bench.h"
#include "model_baseline.h"
#include <megagraph/attn.h>
#include <megagraph/dataset.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <vector>

extern int threads; // of all cases and probes
extern bench_limits limits;

constexpr int32_t codes = 16;

inline void require(int status)
{
    if (status) {
        std::fprintf(stderr, "attention: %s\n", mg_attn_last_error());
        std::exit(1);
    }
}

inline float random_float(uint64_t index)
{
    uint64_t z = index * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 31) * 0xbf58476d1ce4e5b9u;
    return (float)(z >> 40) * 0x1p-23f - 1;
}

// Memory is as the program's: from a multiple of 64 bytes, in huge pages where it is large.
template <class T> struct aligned {
    using value_type = T;
    aligned() = default;
    template <class U> aligned(const aligned<U> &) {}
    T *allocate(size_t count)
    {
        const size_t page = 2 << 20, bytes = count * sizeof(T), unit = bytes >= 4 * page ? page : 64;
        void *block = std::aligned_alloc(unit, (bytes / unit + 1) * unit);
        if (!block)
            throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        if (unit == page)
            madvise(block, bytes / page * page, MADV_HUGEPAGE);
#endif
        return (T *)block;
    }
    void deallocate(T *block, size_t) { std::free(block); }
    template <class U> bool operator==(const aligned<U> &) const { return true; }
    template <class U> bool operator!=(const aligned<U> &) const { return false; }
};
template <class T> using tensor = std::vector<T, aligned<T>>;

inline tensor<float> random_floats(int64_t count, uint64_t seed)
{
    tensor<float> values(count);
    for (int64_t i = 0; i < count; i++)
        values[i] = random_float(seed * 1000003 + i);
    return values;
}

// Tensors of one layer as the program has them, [token][head][dim], k and v of a token side by side; and the table.
struct layer {
    int64_t tokens;
    int32_t heads, dim;
    tensor<float> q, kv, dout, table, out, lse, dq, dkv, dtable;

    layer(int64_t n, int32_t h, int32_t d)
        : tokens(n), heads(h), dim(d), q(random_floats(n * h * d, 1)), kv(random_floats(2 * n * h * d, 2)),
          dout(random_floats(n * h * d, 4)), table(random_floats(h * codes, 5)), out(n * h * d), lse(h * n),
          dq(n * h * d), dkv(2 * n * h * d), dtable(h * codes)
    {
    }
    float scale() const { return 1 / std::sqrt((float)dim); }
};

inline tensor<uint16_t> to_bf16(const tensor<float> &x)
{
    tensor<uint16_t> y(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        uint32_t bits;
        std::memcpy(&bits, &x[i], sizeof bits);
        y[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    return y;
}

// libattn on a layer.
struct fused {
    layer &of;
    mg_attn_plan *plan = nullptr;
    mg_attn_call call = {};
    tensor<char> workspace;
    std::vector<tensor<uint16_t>> half; // of a call in bf16

    fused(layer &l, const mg_attn_map &map, mg_attn_type type = MG_ATTN_FP32) : of(l)
    {
        require(mg_attn_plan_create(&plan, &map));
        call.heads = l.heads;
        call.dim = l.dim;
        call.scale = l.scale();
        call.threads = threads;
        call.table = l.table.data();
        call.lse = l.lse.data();
        call.dtable = l.dtable.data();
        call.type = type;
        set({&call.q}, l.q), set({&call.k, &call.v}, l.kv), set({&call.out}, l.out), set({&call.dout}, l.dout);
        set({&call.dq}, l.dq), set({&call.dk, &call.dv}, l.dkv);
        int64_t bytes = std::max(mg_attn_workspace_bytes(plan, &call, 0), mg_attn_workspace_bytes(plan, &call, 1));
        workspace.resize(bytes);
        call.workspace = workspace.data();
        forward(); // so that backward alone can be timed
    }
    ~fused() { mg_attn_plan_destroy(plan); }
    // `parts` lie side by side in each token's row of `rows`.
    void set(std::initializer_list<mg_attn_tensor *> parts, tensor<float> &rows)
    {
        const int64_t width = (int64_t)of.heads * of.dim, count = (int64_t)parts.size();
        int64_t at = 0;
        if (call.type == MG_ATTN_BF16)
            half.push_back(to_bf16(rows));
        for (mg_attn_tensor *part : parts) {
            void *data = rows.data() + at;
            if (call.type == MG_ATTN_BF16)
                data = half.back().data() + at;
            *part = {data, count * width, of.dim};
            at += width;
        }
    }
    void forward() { require(mg_attn_forward(plan, &call)); }
    void backward() { require(mg_attn_backward(plan, &call)); }
};

// Another's way on the same layer.
struct baseline {
    mg_model_baseline *made = nullptr;
    mg_attn_engine engine;
    mg_attn_call call;
    tensor<char> workspace;

    baseline(mg_model_baseline_kind kind, const mg_attn_map &map, const fused &ours) : call(ours.call)
    {
        const mg_model_baseline_desc desc = {kind, &map, call.heads, call.dim, 1};
        if (mg_model_baseline_create(&made, &desc))
            std::fprintf(stderr, "a baseline was refused\n"), std::exit(1);
        engine = mg_model_baseline_engine(made);
        call.value_dim = call.dim;
        int64_t bytes = std::max(engine.workspace_bytes(made, &call, 0), engine.workspace_bytes(made, &call, 1));
        workspace.resize(bytes);
        call.workspace = workspace.data();
        forward();
    }
    ~baseline() { mg_model_baseline_destroy(made); }
    void forward() { done(engine.forward(made, &call)); }
    void backward() { done(engine.backward(made, &call)); }
    static void done(int status)
    {
        if (status)
            std::fprintf(stderr, "a baseline failed: %d\n", status), std::exit(1);
    }
};

// Codes of all pairs that look like distances: low around the diagonal, the highest far from it.
inline std::vector<uint8_t> dense_codes(int64_t n)
{
    std::vector<uint8_t> map(n * n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            uint64_t x = (uint64_t)(i * n + j) * 0x9e3779b97f4a7c15u >> 40;
            map[i * n + j] = (uint8_t)std::min<uint64_t>(3 + std::abs(i - j) / 300 + x % 4, codes - 1);
        }
    return map;
}

inline mg_attn_map describe_dense(int64_t n, const std::vector<uint8_t> &map)
{
    mg_attn_map m = {};
    m.kind = MG_ATTN_DENSE;
    m.queries = m.keys = n;
    m.codes = codes;
    m.dense = map.data();
    m.dense_stride = n;
    return m;
}

struct dense_case {
    layer l;
    std::vector<uint8_t> map;
    fused ours;
    baseline theirs, by_rows;

    dense_case(int64_t n, int32_t heads, int32_t dim)
        : l(n, heads, dim), map(dense_codes(n)), ours(l, describe_dense(n, map)),
          theirs(MG_MODEL_BASELINE_DENSE, describe_dense(n, map), ours),
          by_rows(MG_MODEL_BASELINE_DENSE_ROWS, describe_dense(n, map), ours)
    {
    }
    double scores() const { return (double)l.tokens * l.tokens * l.heads; }
    double code_bytes() const { return (double)l.tokens * l.tokens; }
};

// Near pairs alone: those within a hop, in a good order, of a dataset (--graph=FILE), else of an R-MAT graph of 60000
// nodes and 280000 edges, whose degrees fall by a power.
struct near_graph {
    mg_graph_near *near = nullptr;
    explicit near_graph(const char *path);
    ~near_graph() { mg_graph_near_destroy(near); }
};

struct near_case {
    layer l;
    const mg_graph_near *near;
    std::unique_ptr<fused> ours;
    std::unique_ptr<baseline> edge, edge_rows;

    near_case(const near_graph &g, int32_t heads, int32_t dim) : l(g.near->nodes, heads, dim), near(g.near)
    {
        mg_attn_map m = {};
        m.kind = MG_ATTN_NEAR;
        m.queries = m.keys = l.tokens;
        m.codes = codes;
        m.far_code = codes - 1;
        m.mask_far = 1;
        m.near_starts = near->starts;
        m.near_columns = near->columns;
        m.near_codes = near->codes;
        ours = std::make_unique<fused>(l, m);
        edge = std::make_unique<baseline>(MG_MODEL_BASELINE_EDGE, m, *ours);
        edge_rows = std::make_unique<baseline>(MG_MODEL_BASELINE_EDGE_ROWS, m, *ours);
    }
    double scores() const { return (double)near->pairs * l.heads; }
    double code_bytes() const { return 5. * (double)near->pairs; }
};

inline double median(std::vector<double> x)
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

// codes.cpp
struct code_source {
    enum { bands, random, graph } kind;
    const char *path; // of a dataset; nullptr: an R-MAT graph of 12000 nodes and 250000 edges, whose hubs see everyone
    int hops;
};
std::vector<uint8_t> make_codes(const code_source &from, int64_t tokens); // all below `codes`
void describe_codes(const std::vector<uint8_t> &map, int64_t tokens);
// roofline.cpp
int roofline(int64_t tokens, int heads, int dim, bool backward, const code_source &from); // heads 0: 256 / dim, 2 to 8;
                                                                                          // dim 0: all
int scaling();
// near.cpp
const near_graph &the_near_graph(); // made when first asked for
extern const char *near_path;       // of --graph; nullptr: R-MAT
bool compare_near(int only_dim);    // whether ours is faster than edge, the usual way

#endif
