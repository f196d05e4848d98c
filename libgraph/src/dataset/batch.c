#include "megagraph/dataset.h"

#include <stdlib.h>
#include <string.h>

#include "graph/csr.h"
#include "library.h"
#include "random.h"

void mg_dataset_batch_destroy(mg_dataset_batch *batch)
{
    if (!batch)
        return;
    mg_graph_destroy(batch->graph);
    RELEASE_ALL(batch->segments, batch->items, batch->nodes, batch->ids, batch->dataset_edges, batch);
}

static int check_ids(const mg_dataset *data)
{
    int64_t nodes = data->graph->nodes, graphs = data->graphs;
    if (nodes + graphs > UINT32_MAX)
        return fail(-EOVERFLOW, "batch: %lld nodes and %lld graphs; identities of tokens have 32 bits",
                    (long long)nodes, (long long)graphs);
    return 0;
}

/* graphs, tokens and edges of the batch are set already. */
static int allocate_arrays(mg_dataset_batch *batch, int with_items)
{
    batch->graph = mg_graph_csr_allocate(batch->tokens, batch->edges);
    batch->segments = batch->graph ? allocate(batch->graphs + 1, sizeof *batch->segments) : NULL;
    batch->nodes = batch->segments ? allocate(batch->tokens, sizeof *batch->nodes) : NULL;
    batch->ids = batch->nodes ? allocate(batch->tokens, sizeof *batch->ids) : NULL;
    batch->dataset_edges = batch->ids ? allocate(batch->edges, sizeof *batch->dataset_edges) : NULL;
    if (batch->dataset_edges && with_items)
        batch->items = allocate(batch->graphs, sizeof *batch->items);
    return batch->dataset_edges && (batch->items || !with_items) ? 0 : -ENOMEM;
}

/* --- packed graphs --- */

static int count_packed(mg_dataset_batch *batch, const mg_dataset *data, const int64_t *items, int64_t count,
                        int virtual_token)
{
    const mg_graph *graph = data->graph;
    for (int64_t g = 0; g < count; g++) {
        if (items[g] < 0 || items[g] >= data->graphs)
            return fail(-EINVAL, "batch: item %lld is graph %lld, but graphs are 0 to %lld", (long long)g,
                        (long long)items[g], (long long)data->graphs - 1);
        int64_t begin = data->segments[items[g]], end = data->segments[items[g] + 1];
        batch->tokens += end - begin + virtual_token;
        batch->edges += graph->starts[end] - graph->starts[begin];
    }
    if (batch->tokens > INT32_MAX)
        return fail(-EOVERFLOW, "batch: %lld tokens of %lld graphs; a batch has at most %d", (long long)batch->tokens,
                    (long long)count, INT32_MAX);
    batch->graphs = count;
    return 0;
}

/* Writes the rows of one graph from `token` on. */
static int pack_rows(mg_dataset_batch *batch, const mg_dataset *data, int64_t item, int64_t token)
{
    const mg_graph *graph = data->graph;
    int64_t begin = data->segments[item], end = data->segments[item + 1], to = batch->graph->starts[token];
    for (int64_t node = begin; node < end; node++, token++) {
        batch->nodes[token] = node;
        batch->ids[token] = (uint32_t)node;
        for (int64_t e = graph->starts[node]; e < graph->starts[node + 1]; e++, to++) {
            if (graph->columns[e] < begin || graph->columns[e] >= end)
                return fail(-EINVAL, "batch: graph %lld has nodes %lld to %lld, but an edge from %lld to %d",
                            (long long)item, (long long)begin, (long long)end - 1, (long long)node, graph->columns[e]);
            batch->graph->columns[to] = (int32_t)(graph->columns[e] - node + token);
            batch->dataset_edges[to] = e;
        }
        batch->graph->starts[token + 1] = to;
    }
    return 0;
}

static void pack_virtual(mg_dataset_batch *batch, const mg_dataset *data, int64_t item, int64_t token)
{
    batch->nodes[token] = -1;
    batch->ids[token] = (uint32_t)(data->graph->nodes + item);
    batch->graph->starts[token + 1] = batch->graph->starts[token];
}

static int fill_packed(mg_dataset_batch *batch, const mg_dataset *data, const int64_t *items, int virtual_token)
{
    int64_t token = 0;
    batch->segments[0] = 0;
    for (int64_t g = 0; g < batch->graphs; g++) {
        int status = pack_rows(batch, data, items[g], token);
        if (status)
            return status;
        token += data->segments[items[g] + 1] - data->segments[items[g]];
        if (virtual_token)
            pack_virtual(batch, data, items[g], token++);
        batch->items[g] = items[g];
        batch->segments[g + 1] = token;
    }
    return 0;
}

int mg_dataset_pack(mg_dataset_batch **out, const mg_dataset *data, const int64_t *items, int64_t count,
                    int virtual_token)
{
    *out = NULL;
    int status = check_ids(data);
    if (status)
        return status;
    if (count < 0)
        return fail(-EINVAL, "batch: %lld graphs", (long long)count);
    mg_dataset_batch *batch = allocate_zeroed(1, sizeof *batch);
    if (!batch)
        return -ENOMEM;
    status = count_packed(batch, data, items, count, virtual_token != 0);
    if (!status)
        status = allocate_arrays(batch, 1);
    if (!status)
        status = fill_packed(batch, data, items, virtual_token != 0);
    if (status)
        mg_dataset_batch_destroy(batch);
    else
        *out = batch;
    return status;
}

/* --- clusters --- */

/* token_of[node] = its place in nodes, or -1. */
static int index_nodes(int32_t *token_of, const mg_dataset *data, const int32_t *nodes, int64_t count)
{
    int64_t all = data->graph->nodes;
    memset(token_of, -1, (size_t)all * sizeof *token_of);
    for (int64_t t = 0; t < count; t++) {
        if (nodes[t] < 0 || nodes[t] >= all)
            return fail(-EINVAL, "batch: place %lld holds node %d, but nodes are 0 to %lld", (long long)t, nodes[t],
                        (long long)all - 1);
        if (token_of[nodes[t]] >= 0)
            return fail(-EINVAL, "batch: node %d is there twice, at places %d and %lld", nodes[t], token_of[nodes[t]],
                        (long long)t);
        token_of[nodes[t]] = (int32_t)t;
    }
    return 0;
}

/* A column of the batch and the dataset's entry that it is, sorted together. */
typedef struct column_entry {
    int64_t column, entry;
} column_entry;

static int by_column(const void *a, const void *b)
{
    int64_t x = ((const column_entry *)a)->column, y = ((const column_entry *)b)->column;
    return (x > y) - (x < y);
}

/* Entries of a node that stay in the cluster, ascending by column. */
static int64_t cluster_row(column_entry *row, const mg_graph *graph, const int32_t *token_of, int64_t node)
{
    int64_t kept = 0;
    int sorted = 1;
    for (int64_t e = graph->starts[node]; e < graph->starts[node + 1]; e++) {
        int32_t column = token_of[graph->columns[e]];
        if (column < 0)
            continue;
        sorted &= !kept || column > row[kept - 1].column;
        row[kept++] = (column_entry){column, e};
    }
    if (!sorted)
        qsort(row, (size_t)kept, sizeof *row, by_column);
    return kept;
}

static void count_cluster(mg_dataset_batch *batch, int64_t *longest, const mg_dataset *data, const int32_t *token_of,
                          const int32_t *nodes, int64_t count)
{
    const mg_graph *graph = data->graph;
    for (int64_t t = 0; t < count; t++) {
        int64_t kept = 0;
        for (int64_t e = graph->starts[nodes[t]]; e < graph->starts[nodes[t] + 1]; e++)
            kept += token_of[graph->columns[e]] >= 0;
        batch->edges += kept;
        *longest = kept > *longest ? kept : *longest;
    }
    batch->graphs = 1;
    batch->tokens = count;
}

static void fill_cluster(mg_dataset_batch *batch, column_entry *row, const mg_dataset *data, const int32_t *token_of,
                         const int32_t *nodes)
{
    int64_t to = 0;
    batch->segments[0] = 0;
    batch->segments[1] = batch->tokens;
    for (int64_t t = 0; t < batch->tokens; t++) {
        batch->nodes[t] = nodes[t];
        batch->ids[t] = (uint32_t)nodes[t];
        int64_t kept = cluster_row(row, data->graph, token_of, nodes[t]);
        for (int64_t k = 0; k < kept; k++, to++) {
            batch->graph->columns[to] = (int32_t)row[k].column;
            batch->dataset_edges[to] = row[k].entry;
        }
        batch->graph->starts[t + 1] = to;
    }
}

static int pack_cluster(mg_dataset_batch *batch, int32_t *token_of, const mg_dataset *data, const int32_t *nodes,
                        int64_t count)
{
    int64_t longest = 0;
    int status = index_nodes(token_of, data, nodes, count);
    if (status)
        return status;
    count_cluster(batch, &longest, data, token_of, nodes, count);
    column_entry *row = allocate(longest, sizeof *row);
    if (!row)
        return -ENOMEM;
    status = allocate_arrays(batch, 0);
    if (!status)
        fill_cluster(batch, row, data, token_of, nodes);
    release(row);
    return status;
}

int mg_dataset_pack_nodes(mg_dataset_batch **out, const mg_dataset *data, const int32_t *nodes, int64_t count)
{
    *out = NULL;
    int status = check_ids(data);
    if (status)
        return status;
    if (data->graphs != 1)
        return fail(-EINVAL, "batch: clusters are cut from one graph, and this dataset has %lld",
                    (long long)data->graphs);
    if (count < 0 || count > data->graph->nodes)
        return fail(-EINVAL, "batch: a cluster of %lld nodes of %lld", (long long)count, (long long)data->graph->nodes);
    mg_dataset_batch *batch = allocate_zeroed(1, sizeof *batch);
    int32_t *token_of = batch ? allocate(data->graph->nodes, sizeof *token_of) : NULL;
    status = token_of ? pack_cluster(batch, token_of, data, nodes, count) : -ENOMEM;
    release(token_of);
    if (status)
        mg_dataset_batch_destroy(batch);
    else
        *out = batch;
    return status;
}

/* --- near pairs with virtual tokens --- */

/* A graph's virtual token is the last of its segment; -1 when it has none. */
static int64_t virtual_of(const mg_dataset_batch *batch, int64_t graph)
{
    int64_t begin = batch->segments[graph], end = batch->segments[graph + 1];
    return end > begin && batch->nodes[end - 1] < 0 ? end - 1 : -1;
}

static mg_graph_near *allocate_near(int64_t nodes, int64_t pairs, int32_t hops)
{
    mg_graph_near *near = allocate_zeroed(1, sizeof *near);
    if (!near)
        return NULL;
    *near = (mg_graph_near){.nodes = nodes, .pairs = pairs, .hops = hops};
    near->starts = allocate(nodes + 1, sizeof *near->starts);
    near->columns = near->starts ? allocate(pairs, sizeof *near->columns) : NULL;
    near->codes = near->columns ? allocate(pairs, sizeof *near->codes) : NULL;
    if (!near->codes) {
        mg_graph_near_destroy(near);
        return NULL;
    }
    return near;
}

/* The row of a token from `to` on: its near pairs, then its virtual token, which is the last of the graph. */
static int64_t token_row(mg_graph_near *all, int64_t to, const mg_graph_near *near, int64_t token, int64_t virtual)
{
    int64_t begin = near->starts[token], pairs = near->starts[token + 1] - begin;
    memcpy(all->columns + to, near->columns + begin, (size_t)pairs * sizeof *all->columns);
    memcpy(all->codes + to, near->codes + begin, (size_t)pairs);
    to += pairs;
    if (virtual >= 0) {
        all->columns[to] = (int32_t) virtual;
        all->codes[to++] = (uint8_t)(near->hops + 2);
    }
    return to;
}

static int64_t virtual_row(mg_graph_near *all, int64_t to, int64_t begin, int64_t virtual)
{
    for (int64_t token = begin; token <= virtual; token++) {
        all->columns[to] = (int32_t)token;
        all->codes[to++] = token == virtual ? 0 : (uint8_t)(all->hops + 2);
    }
    return to;
}

static void fill_near(mg_graph_near *all, const mg_graph_near *near, const mg_dataset_batch *batch)
{
    int64_t to = 0;
    for (int64_t g = 0; g < batch->graphs; g++) {
        int64_t begin = batch->segments[g], end = batch->segments[g + 1], virtual = virtual_of(batch, g);
        for (int64_t token = begin; token < end; token++) {
            all->starts[token] = to;
            to = token == virtual ? virtual_row(all, to, begin, virtual) : token_row(all, to, near, token, virtual);
        }
    }
    all->starts[all->nodes] = to;
}

int mg_dataset_batch_near(mg_graph_near **out, const mg_dataset_batch *batch, int hops)
{
    int64_t added = 0;
    *out = NULL;
    for (int64_t g = 0; g < batch->graphs; g++)
        if (virtual_of(batch, g) >= 0)
            added += 2 * (batch->segments[g + 1] - batch->segments[g] - 1);
    mg_graph_near *near;
    int status = mg_graph_near_create(&near, batch->graph, hops);
    if (status)
        return status;
    if (!added) {
        *out = near;
        return 0;
    }
    mg_graph_near *all = allocate_near(near->nodes, near->pairs + added, near->hops);
    if (all)
        fill_near(all, near, batch);
    mg_graph_near_destroy(near);
    *out = all;
    return all ? 0 : -ENOMEM;
}

/* --- epochs --- */

void mg_dataset_shuffle(int64_t *out, const int64_t *items, int64_t count, uint64_t seed, int64_t epoch)
{
    random_stream random = random_seeded(seed, (uint64_t)epoch);
    for (int64_t i = 0; i < count; i++) {
        int64_t j = random_below(&random, i + 1);
        out[i] = out[j];
        out[j] = items[i];
    }
}
