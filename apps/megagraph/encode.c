#include "encode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "progress.h"

void mg_encode_open_cache(mg_cache *cache, const char *folder, mg_comm *comm)
{
    *cache = (mg_cache){.comm = comm};
    if (mg_ranks_rank(comm) == 0 && mg_graph_cache_open(&cache->cache, folder)) {
        cache->cache = NULL;
        mg_progress_say("note: nothing is cached: %s", mg_graph_last_error());
    }
}

void mg_encode_close_cache(mg_cache *cache)
{
    mg_graph_cache_close(cache->cache);
    cache->cache = NULL;
}

int mg_encode_find(void *data, int64_t bytes, const mg_cache *cache, const char *name, uint64_t key)
{
    void *found;
    int64_t size;
    if (!cache->cache || mg_graph_cache_get(&found, &size, cache->cache, name, key))
        return 0;
    int fits = size == bytes;
    if (fits)
        memcpy(data, found, (size_t)bytes);
    mg_graph_free(found);
    return fits;
}

/* A cache that cannot be written (a full disk) is no reason to stop. */
void mg_encode_keep(mg_cache *cache, const char *name, uint64_t key, const void *data, int64_t bytes)
{
    if (!cache->cache || !mg_graph_cache_put(cache->cache, name, key, data, bytes))
        return;
    mg_progress_say("note: nothing more is cached: %s", mg_graph_last_error());
    mg_encode_close_cache(cache);
}

static uint64_t key_of(const mg_graph *graph, int64_t first, int64_t second)
{
    int64_t parameters[2] = {first, second};
    return mg_graph_hash_bytes(mg_graph_hash(graph), parameters, sizeof parameters);
}

typedef int (*encoder)(float *encodings, int count, const mg_graph *graph);

static int encode(float **out, encoder compute, const char *name, int64_t count, const mg_graph *graph, mg_cache *cache)
{
    if (!count)
        return 0;
    int64_t bytes = graph->nodes * count * (int64_t)sizeof(float);
    uint64_t key = key_of(graph, count, 0);
    *out = allocate(graph->nodes * count, sizeof(float));
    if (!*out)
        return -ENOMEM;
    int status = 0;
    if (mg_ranks_rank(cache->comm) == 0 && !mg_encode_find(*out, bytes, cache, name, key)) {
        status = relay(compute(*out, (int)count, graph), mg_graph_last_error());
        if (!status)
            mg_encode_keep(cache, name, key, *out, bytes);
    }
    status = mg_ranks_agree(cache->comm, status);
    return status ? status : mg_ranks_broadcast(cache->comm, *out, graph->nodes * count, MG_COMM_FP32);
}

/* Rows divided by the sum of their magnitudes; rows of zeros stay. */
static void normalise_rows(float *features, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++) {
        float *row = features + r * columns;
        double sum = 0;
        for (int64_t c = 0; c < columns; c++)
            sum += fabs((double)row[c]);
        for (int64_t c = 0; c < columns && sum > 0; c++)
            row[c] = (float)(row[c] / sum);
    }
}

/* Features as the model is to see them, where those are not the dataset's own. Quick, so not cached. */
static int encode_features(float **out, const mg_dataset *data, const mg_config *config)
{
    static const double own = 0.1; /* as Zhu and Koniusz use */
    int64_t nodes = data->graph->nodes, columns = data->feature_count, hops = config->model.encodings.hops;
    int rows = config->data.normalise == MG_NORMALISE_ROWS;
    if (!columns || (!rows && !hops))
        return 0;
    float *normal = rows ? allocate(nodes * columns, sizeof *normal) : NULL;
    float *averages = hops ? allocate(nodes * columns, sizeof *averages) : NULL;
    int status = (rows && !normal) || (hops && !averages) ? -ENOMEM : 0;
    if (!status && rows) {
        memcpy(normal, data->features, (size_t)(nodes * columns) * sizeof *normal);
        normalise_rows(normal, nodes, columns);
    }
    if (!status && hops)
        status = relay(mg_graph_average(averages, rows ? normal : data->features, columns, data->graph, (int)hops, own),
                       mg_graph_last_error());
    *out = hops ? averages : normal;
    if (hops)
        release(normal);
    return status;
}

int mg_encode_create(mg_encodings *out, const mg_dataset *data, const mg_config *config, mg_cache *cache)
{
    const mg_graph *graph = data->graph;
    *out = (mg_encodings){.degrees = allocate(graph->nodes, sizeof(int32_t))};
    int status = out->degrees ? relay(mg_graph_degrees(out->degrees, graph), mg_graph_last_error()) : -ENOMEM;
    if (!status)
        status =
            encode(&out->laplacian, mg_graph_laplacian, "laplacian", config->model.encodings.laplacian, graph, cache);
    if (!status)
        status = encode(&out->random_walk, mg_graph_random_walk, "random_walk", config->model.encodings.random_walk,
                        graph, cache);
    if (!status)
        status = encode_features(&out->features, data, config);
    int64_t beyond = 0, most = config->model.encodings.degree;
    for (int64_t i = 0; !status && most && i < graph->nodes; i++)
        beyond += out->degrees[i] >= most;
    if (beyond)
        mg_progress_say("note: %lld nodes of degree %lld and more share one row of the degree encoding",
                        (long long)beyond, (long long)most - 1);
    if (status)
        mg_encode_clear(out);
    return status;
}

void mg_encode_clear(mg_encodings *encodings)
{
    release(encodings->degrees);
    release(encodings->features);
    release(encodings->laplacian);
    release(encodings->random_walk);
    *encodings = (mg_encodings){0};
}

mg_graph_order_kind mg_encode_order_kind(const mg_config *config)
{
    const int listed =
        !config->model.heads || (config->attention.far == MG_FAR_MASK && config->model.encodings.distance <= 1);
    return listed ? MG_GRAPH_ORDER_LISTS : MG_GRAPH_ORDER_AUTO;
}

int mg_encode_order(int32_t *order, const mg_graph *graph, const mg_config *config, mg_cache *cache)
{
    const mg_graph_order_kind kind = mg_encode_order_kind(config);
    const int hops = config->model.encodings.distance ? (int)config->model.encodings.distance : 1;
    int64_t bytes = graph->nodes * (int64_t)sizeof *order;
    uint64_t key = key_of(graph, hops, kind);
    if (mg_encode_find(order, bytes, cache, "order", key))
        return 0;
    int status = mg_graph_order(order, NULL, graph, kind, hops);
    if (status)
        return relay(status, mg_graph_last_error());
    mg_encode_keep(cache, "order", key, order, bytes);
    return 0;
}

static int64_t count_cut(const int32_t *parts, const mg_graph *graph)
{
    int64_t cut = 0;
    for (int64_t i = 0; i < graph->nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            cut += parts[i] != parts[graph->columns[e]];
    return cut;
}

int mg_encode_clusters(int32_t *parts, int64_t *cut, const mg_graph *graph, int32_t clusters, uint64_t seed,
                       mg_cache *cache)
{
    int64_t bytes = graph->nodes * (int64_t)sizeof *parts;
    uint64_t key = key_of(graph, clusters, (int64_t)seed);
    if (!mg_encode_find(parts, bytes, cache, "clusters", key)) {
        mg_graph_partition_report report;
        int status =
            mg_graph_partition(parts, &report, graph, &(mg_graph_partition_desc){.parts = clusters, .seed = seed});
        if (status)
            return relay(status, mg_graph_last_error());
        mg_encode_keep(cache, "clusters", key, parts, bytes);
    }
    *cut = count_cut(parts, graph);
    return 0;
}

int mg_encode_near_shares(double *shares, const mg_graph *graph, int hops)
{
    enum { ROWS = 64, BLOCKS = 16 };
    mg_graph_stream *stream = NULL;
    int64_t nodes = graph->nodes, counts[256] = {0}, seen = 0,
            blocks = nodes <= ROWS * BLOCKS ? (nodes + ROWS - 1) / ROWS : BLOCKS;
    uint8_t *codes = allocate(ROWS * nodes, 1);
    int status = codes ? 0 : -ENOMEM;
    if (!status)
        status = relay(mg_graph_stream_create(&stream, graph, hops, 1), mg_graph_last_error());
    for (int64_t b = 0; b < blocks && !status; b++) {
        int64_t q0 = nodes <= ROWS * BLOCKS ? b * ROWS : (nodes - ROWS) / (BLOCKS - 1) * b;
        int64_t nq = nodes - q0 < ROWS ? nodes - q0 : ROWS;
        status = mg_graph_stream_codes(stream, 0, q0, nq, 0, nodes, codes, nodes);
        for (int64_t p = 0; p < nq * nodes && !status; p++)
            counts[codes[p]]++;
        seen += nq;
    }
    for (int d = 0; d <= hops; d++) {
        shares[d] = (d ? shares[d - 1] : 0);
        shares[d] += seen ? (double)counts[d] / ((double)seen * (double)nodes) : 0;
    }
    mg_graph_stream_destroy(stream);
    release(codes);
    return status;
}
