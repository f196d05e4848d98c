/* Cuts the gathered pairs by row chunk and column chunk, for the steps of backward. */
#include "library.h"
#include "plan.h"

/* Chunk of a tile: the inverse of chunk_begin. */
static int64_t chunk_of(int64_t tiles, int32_t chunks, int64_t tile)
{
    int64_t chunk = tile * chunks / tiles;
    while (chunk + 1 < chunks && chunk_begin(tiles, chunks, chunk + 1) <= tile)
        chunk++;
    return chunk;
}

/* Visits all runs: counts them into run_starts[bucket + 1] where runs is NULL, else puts them at run_starts[bucket]++. */
static void visit_runs(mg_attn_plan *plan, pair_run *runs)
{
    const int32_t chunks = plan->chunks;
    for (int64_t query = 0; query < plan->queries; query++) {
        const int64_t end = plan->pair_starts[query + 1];
        if (plan->pair_starts[query] == end)
            continue;
        const int64_t row_chunk = chunk_of(plan->tile_rows, chunks, query / TILE);
        for (int64_t from = plan->pair_starts[query], to; from < end; from = to) {
            const int64_t column_chunk = chunk_of(plan->tile_columns, chunks, plan->pair_keys[from] / TILE);
            const int64_t key_end = chunk_begin(plan->tile_columns, chunks, column_chunk + 1) * TILE;
            for (to = from + 1; to < end && plan->pair_keys[to] < key_end;)
                to++;
            const int64_t bucket = row_chunk * chunks + column_chunk;
            if (runs)
                runs[plan->run_starts[bucket]++] =
                    (pair_run){.query = (int32_t)query, .count = (int32_t)(to - from), .first = from};
            else
                plan->run_starts[bucket + 1]++;
        }
    }
}

int mg_attn_plan_list_runs(mg_attn_plan *plan)
{
    const int64_t buckets = (int64_t)plan->chunks * plan->chunks;
    if (!plan->pairs)
        return 0;
    plan->run_starts = allocate_zeroed(buckets + 1, sizeof *plan->run_starts);
    if (!plan->run_starts)
        return -ENOMEM;
    visit_runs(plan, NULL);
    for (int64_t b = 0; b < buckets; b++)
        plan->run_starts[b + 1] += plan->run_starts[b];
    plan->runs = allocate(plan->run_starts[buckets], sizeof *plan->runs);
    if (!plan->runs)
        return -ENOMEM;
    plan->info.plan_bytes += (buckets + 1) * (int64_t)sizeof *plan->run_starts +
                             plan->run_starts[buckets] * (int64_t)sizeof *plan->runs;
    visit_runs(plan, plan->runs);
    for (int64_t b = buckets; b > 0; b--)
        plan->run_starts[b] = plan->run_starts[b - 1];
    plan->run_starts[0] = 0;
    return 0;
}
