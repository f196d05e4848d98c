#include "stream.h"

#include "graph/csr.h"
#include "graph/parallel.h"
#include "library.h"

int mg_graph_check_hops(int hops)
{
    return hops >= 1 && hops <= 253 ? 0 : fail(-EINVAL, "distances: %d hops; 1 to 253 are possible", hops);
}

/* --- scratch --- */

static int open_search(mg_graph_search *search, const mg_graph_stream *stream)
{
    int64_t nodes = stream->graph->nodes;
    search->stream = stream;
    search->visited = allocate(nodes, sizeof(bits512));
    search->planes = search->visited ? allocate(nodes * stream->plane_count, sizeof(bits512)) : NULL;
    search->current = search->planes ? allocate_zeroed(nodes, sizeof(bits512)) : NULL;
    search->next = search->current ? allocate_zeroed(nodes, sizeof(bits512)) : NULL;
    search->full = search->next ? allocate_zeroed(stream->components, sizeof(bits512)) : NULL;
    search->list = search->full ? allocate(nodes + 1, sizeof(int32_t)) : NULL;
    search->next_list = search->list ? allocate(nodes + 1, sizeof(int32_t)) : NULL;
    search->active = search->next_list ? allocate(nodes / CHUNK + 1, 1) : NULL;
    if (!search->active)
        return -ENOMEM;
    for (int64_t chunk = 0; chunk <= nodes / CHUNK; chunk++)
        search->active[chunk] = 1; /* so that the first search clears visited */
    return 0;
}

static void close_search(mg_graph_search *search)
{
    RELEASE_ALL(search->visited, search->planes, search->current, search->next, search->full, search->list,
                search->next_list, search->active);
}

/* --- the stream --- */

static int32_t planes_for(int code)
{
    int32_t planes = 2;
    while (code >> planes)
        planes++;
    return planes;
}

static int open_stream(mg_graph_stream *stream, const mg_graph *graph)
{
    stream->kernels = mg_graph_kernels_choose();
    if (!stream->kernels)
        return -EINVAL;
    stream->component = allocate(graph->nodes, sizeof(int32_t));
    int status = stream->component ? mg_graph_components(stream->component, &stream->components, graph) : -ENOMEM;
    if (!status)
        status = mg_graph_csr_transposed(&stream->transposed, graph);
    stream->inward = stream->transposed ? stream->transposed : graph;
    if (!status && !(stream->searches = allocate_zeroed(stream->threads, sizeof *stream->searches)))
        status = -ENOMEM;
    for (int t = 0; !status && t < stream->threads; t++)
        status = open_search(&stream->searches[t], stream);
    return status;
}

int mg_graph_stream_create(mg_graph_stream **out, const mg_graph *graph, int hops, int threads)
{
    *out = NULL;
    int status = mg_graph_check_hops(hops);
    if (status)
        return status;
    if (threads < 0 || threads > 65536)
        return fail(-EINVAL, "distances: %d threads; 0 means OpenMP's default", threads);
    mg_graph_stream *stream = allocate_zeroed(1, sizeof *stream);
    if (!stream)
        return -ENOMEM;
    stream->graph = graph;
    stream->hops = hops;
    stream->plane_count = planes_for(hops + 1);
    stream->threads = threads ? threads : mg_graph_threads(INT32_MAX);
    status = open_stream(stream, graph);
    if (status)
        mg_graph_stream_destroy(stream);
    else
        *out = stream;
    return status;
}

void mg_graph_stream_destroy(mg_graph_stream *stream)
{
    if (!stream)
        return;
    for (int t = 0; stream->searches && t < stream->threads; t++)
        close_search(&stream->searches[t]);
    mg_graph_destroy(stream->transposed);
    RELEASE_ALL(stream->component, stream->searches, stream);
}

mg_graph_search *mg_graph_stream_search(mg_graph_stream *stream, int thread, int64_t first, int64_t count)
{
    mg_graph_search *search = &stream->searches[thread];
    if (first < search->first || first + count > search->first + search->count) {
        search->first = first;
        search->count = count;
        stream->kernels->search(search);
    }
    return search;
}

static int check_request(const mg_graph_stream *stream, int thread, int64_t q0, int64_t nq, int64_t k0, int64_t nk,
                         int64_t stride)
{
    int64_t nodes = stream->graph->nodes;
    if (thread < 0 || thread >= stream->threads)
        return fail(-EINVAL, "distances: thread %d of a stream made for %d", thread, stream->threads);
    if (q0 < 0 || nq < 0 || q0 > nodes - nq || k0 < 0 || nk < 0 || k0 > nodes - nk || stride < nk)
        return fail(-EINVAL, "distances: rows %lld + %lld and columns %lld + %lld, stride %lld, of %lld nodes",
                    (long long)q0, (long long)nq, (long long)k0, (long long)nk, (long long)stride, (long long)nodes);
    return 0;
}

int mg_graph_stream_codes(void *context, int thread, int64_t q0, int64_t nq, int64_t k0, int64_t nk, uint8_t *codes,
                          int64_t stride)
{
    mg_graph_stream *stream = context;
    int status = check_request(stream, thread, q0, nq, k0, nk, stride);
    for (int64_t done = 0; !status && done < nq && nk; done += BLOCK_SOURCES) {
        int64_t rows = nq - done < BLOCK_SOURCES ? nq - done : BLOCK_SOURCES;
        const mg_graph_search *search = mg_graph_stream_search(stream, thread, q0 + done, rows);
        stream->kernels->codes(search, q0 + done - search->first, rows, k0, nk, codes + done * stride, stride);
    }
    return status;
}
