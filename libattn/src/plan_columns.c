/* Lists the gathered pairs by key: dk and dv of a key are sums over the queries that see it. */
#include "library.h"
#include "plan.h"

int mg_attn_plan_list_columns(mg_attn_plan *plan)
{
    if (!plan->pairs)
        return 0;
    int64_t *starts = plan->column_starts = allocate_zeroed(plan->keys + 2, sizeof *plan->column_starts);
    plan->column_queries = allocate(plan->pairs, sizeof *plan->column_queries);
    plan->column_pairs = allocate(plan->pairs, sizeof *plan->column_pairs);
    if (!starts || !plan->column_queries || !plan->column_pairs)
        return -ENOMEM;
    plan->info.plan_bytes += (plan->keys + 2) * (int64_t)sizeof *starts +
                             plan->pairs * (int64_t)(sizeof *plan->column_queries + sizeof *plan->column_pairs);
    /* Counted two places on, filled one place on: then starts[key] is where it belongs. */
    for (int64_t at = 0; at < plan->pairs; at++)
        starts[plan->pair_keys[at] + 2]++;
    for (int64_t key = 1; key <= plan->keys; key++)
        starts[key + 1] += starts[key];
    for (int64_t query = 0; query < plan->queries; query++)
        for (int64_t at = plan->pair_starts[query]; at < plan->pair_starts[query + 1]; at++) {
            const int64_t to = starts[plan->pair_keys[at] + 1]++;
            plan->column_queries[to] = (int32_t)query;
            plan->column_pairs[to] = at;
        }
    return 0;
}
