#include "stream.h"

#include "graph/parallel.h"
#include "library.h"

typedef struct dense_work {
    mg_graph_stream *stream;
    uint8_t *codes;
    int64_t stride, row_begin, row_end;
} dense_work;

static void dense_block(void *context, int thread, int64_t block)
{
    dense_work *work = context;
    int64_t done = block * BLOCK_SOURCES, left = work->row_end - work->row_begin - done;
    mg_graph_stream_codes(work->stream, thread, work->row_begin + done, left < BLOCK_SOURCES ? left : BLOCK_SOURCES, 0,
                          work->stream->graph->nodes, work->codes + done * work->stride, work->stride);
}

int mg_graph_dense_codes(uint8_t *codes, int64_t stride, const mg_graph *graph, int hops, int64_t row_begin,
                         int64_t row_end)
{
    if (row_begin < 0 || row_begin > row_end || row_end > graph->nodes || stride < graph->nodes)
        return fail(-EINVAL, "dense codes: rows %lld to %lld, stride %lld, of %lld nodes", (long long)row_begin,
                    (long long)row_end, (long long)stride, (long long)graph->nodes);
    int64_t blocks = (row_end - row_begin + BLOCK_SOURCES - 1) / BLOCK_SOURCES;
    int threads = mg_graph_threads(blocks);
    dense_work work = {NULL, codes, stride, row_begin, row_end};
    int status = mg_graph_stream_create(&work.stream, graph, hops, threads);
    if (!status)
        mg_graph_parallel(threads, blocks, dense_block, &work);
    mg_graph_stream_destroy(work.stream);
    return status;
}
