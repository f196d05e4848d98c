// Ranks as threads: the time of a small message, the speed of a long one beside memcpy's, sums over ranks.
//
//     bench_dp [--benchmark_filter=all_reduce]
//     bench_dp --mpi      the same rows once, under mpirun -n N: N ranks as processes
//
// all_reduce/R/B: R ranks, B bytes each; bytes_per_second counts the bytes that a rank sends, 2 (R-1)/R of B.
#include <megagraph/comm.h>

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace
{

struct exercise {
    int64_t bytes;
    int rounds;
    int (*round)(mg_comm *comm, std::vector<char> &data, int number);
    double seconds; // of one round, by rank 0
};

int hop(mg_comm *comm, std::vector<char> &data, int number)
{
    mg_comm_request *request = nullptr;
    int rank = mg_comm_rank(comm), status = 0;
    if (rank < 2)
        status = rank == number % 2 ? mg_comm_send(comm, &request, 1 - rank, 1, data.data(), (int64_t)data.size())
                                    : mg_comm_receive(comm, &request, 1 - rank, 1, data.data(), (int64_t)data.size());
    return status ? status : mg_comm_wait(comm, &request);
}

int sum(mg_comm *comm, std::vector<char> &data, int)
{
    return mg_comm_all_reduce(comm, data.data(), (int64_t)data.size() / 4, MG_COMM_FP32, MG_COMM_SUM);
}

int barrier(mg_comm *comm, std::vector<char> &, int) { return mg_comm_barrier(comm); }

int run(mg_comm *comm, void *context)
{
    auto *e = (exercise *)context;
    std::vector<char> data((size_t)e->bytes);
    int status = e->round(comm, data, 0);
    status = status ? status : e->round(comm, data, 1);
    status = status ? status : mg_comm_barrier(comm);
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < e->rounds && !status; i++)
        status = e->round(comm, data, i);
    status = status ? status : mg_comm_barrier(comm);
    std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (mg_comm_rank(comm) == 0)
        e->seconds = taken.count() / e->rounds;
    return status;
}

int rounds_of(int64_t bytes) { return bytes > 1 << 20 ? 10 : 1000; }

void on_threads(benchmark::State &state, int ranks, exercise e, double share)
{
    e.rounds = rounds_of(e.bytes);
    for (auto _ : state) {
        if (mg_comm_run_threads(ranks, nullptr, run, &e)) {
            state.SkipWithError(mg_dp_last_error());
            return;
        }
        state.SetIterationTime(e.seconds);
    }
    state.SetBytesProcessed((int64_t)(share * (double)e.bytes * (double)state.iterations()));
}

void copy(benchmark::State &state)
{
    std::vector<char> from((size_t)state.range(0), 1), to((size_t)state.range(0), 2);
    for (auto _ : state) {
        std::memcpy(to.data(), from.data(), from.size());
        benchmark::DoNotOptimize(to.data());
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.range(0) * state.iterations());
}

void hop_on_threads(benchmark::State &state) { on_threads(state, 2, {state.range(0), 0, hop, 0}, 1); }

void barrier_on_threads(benchmark::State &state) { on_threads(state, (int)state.range(0), {0, 0, barrier, 0}, 0); }

void sum_on_threads(benchmark::State &state)
{
    double ranks = (double)state.range(0);
    on_threads(state, (int)state.range(0), {state.range(1), 0, sum, 0}, 2 * (ranks - 1) / ranks);
}

BENCHMARK(copy)->Arg(16 << 20)->Name("memcpy");
BENCHMARK(hop_on_threads)->Arg(8)->Arg(65536)->Arg(16 << 20)->Name("hop")->UseManualTime()->Iterations(5);
BENCHMARK(barrier_on_threads)->Arg(2)->Arg(4)->Arg(8)->Name("barrier")->UseManualTime()->Iterations(5);
BENCHMARK(sum_on_threads)
    ->ArgsProduct({{2, 4, 8}, {4, 4096, 16 << 20}})
    ->Name("all_reduce")
    ->UseManualTime()
    ->Iterations(5);

int row(mg_comm *comm, const char *name, exercise e)
{
    e.rounds = rounds_of(e.bytes);
    if (run(comm, &e)) {
        mg_comm_abort(comm, -1, mg_dp_last_error());
        return 1;
    }
    if (mg_comm_rank(comm) == 0)
        std::printf("%-11s %d ranks %9lld bytes %12.2f us\n", name, mg_comm_size(comm), (long long)e.bytes,
                    1e6 * e.seconds);
    return 0;
}

int under_mpi()
{
    mg_comm *comm;
    if (mg_comm_open_mpi(&comm, 1, nullptr)) {
        std::fprintf(stderr, "bench_dp: %s\n", mg_dp_last_error());
        return 1;
    }
    int failed = 0;
    for (int64_t bytes : {8, 65536, 16 << 20})
        failed |= mg_comm_size(comm) > 1 && row(comm, "hop", {bytes, 0, hop, 0});
    failed |= row(comm, "barrier", {0, 0, barrier, 0});
    for (int64_t bytes : {4, 4096, 16 << 20})
        failed |= row(comm, "all_reduce", {bytes, 0, sum, 0});
    mg_comm_close(comm);
    return failed;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 2 && !std::strcmp(argv[1], "--mpi"))
        return under_mpi();
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv))
        return 1;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
