/* Pairs within D hops. At one hop they are the rows and the node itself; from two on each block of 512 rows is searched
 * twice, to count and to write, which costs less than holding the pairs twice. */
#include "stream.h"

#include "graph/csr.h"
#include "graph/parallel.h"
#include "library.h"

typedef struct near_work {
    mg_graph_stream *stream;
    mg_graph_near *near;
    int64_t begin; /* the graph's row that is near's first */
} near_work;

static int64_t block_rows(const near_work *work, int64_t first)
{
    int64_t left = work->near->nodes - first;
    return left < BLOCK_SOURCES ? left : BLOCK_SOURCES;
}

static void count_block(void *context, int thread, int64_t block)
{
    near_work *work = context;
    int64_t first = block * BLOCK_SOURCES;
    const mg_graph_search *search = mg_graph_stream_search(work->stream, thread, work->begin + first, block_rows(work, first));
    work->stream->kernels->near_counts(search, work->near->starts + first + 1);
}

static void write_block(void *context, int thread, int64_t block)
{
    near_work *work = context;
    int64_t first = block * BLOCK_SOURCES, count = block_rows(work, first), places[BLOCK_SOURCES];
    for (int64_t r = 0; r < count; r++)
        places[r] = work->near->starts[first + r];
    const mg_graph_search *search = mg_graph_stream_search(work->stream, thread, work->begin + first, count);
    work->stream->kernels->near_pairs(search, places, work->near->columns, work->near->codes);
}

/* starts[i + 1] holds the pairs of row i: sums them and obtains the arrays of pairs. */
static int place_pairs(mg_graph_near *near)
{
    near->starts[0] = 0;
    for (int64_t i = 0; i < near->nodes; i++)
        near->starts[i + 1] += near->starts[i];
    near->pairs = near->starts[near->nodes];
    near->columns = allocate(near->pairs, sizeof *near->columns);
    near->codes = near->columns ? allocate(near->pairs, sizeof *near->codes) : NULL;
    return near->codes ? 0 : -ENOMEM;
}

static int by_search(mg_graph_near *near, const mg_graph *graph, int64_t begin)
{
    int64_t blocks = (near->nodes + BLOCK_SOURCES - 1) / BLOCK_SOURCES;
    int threads = mg_graph_threads(blocks);
    near_work work = {NULL, near, begin};
    int status = mg_graph_stream_create(&work.stream, graph, near->hops, threads);
    if (!status) {
        mg_graph_parallel(threads, blocks, count_block, &work);
        status = place_pairs(near);
    }
    if (!status)
        mg_graph_parallel(threads, blocks, write_block, &work);
    mg_graph_stream_destroy(work.stream);
    return status;
}

/* Writes row i and the node itself; returns how many. columns NULL: only counts. */
static int64_t write_row(int32_t *columns, uint8_t *codes, const mg_graph *graph, int64_t i)
{
    int64_t begin = graph->starts[i], end = graph->starts[i + 1], before = begin;
    while (before < end && graph->columns[before] < i)
        before++;
    int64_t after = before + (before < end && graph->columns[before] == i);
    for (int64_t e = begin; columns && e < before; e++)
        columns[e - begin] = graph->columns[e];
    for (int64_t e = after; columns && e < end; e++)
        columns[before - begin + 1 + e - after] = graph->columns[e];
    int64_t count = end - begin - (after - before) + 1;
    if (columns) {
        columns[before - begin] = (int32_t)i;
        for (int64_t k = 0; k < count; k++)
            codes[k] = k != before - begin;
    }
    return count;
}

static int by_rows(mg_graph_near *near, const mg_graph *graph, int64_t begin)
{
    for (int64_t i = 0; i < near->nodes; i++)
        near->starts[i + 1] = write_row(NULL, NULL, graph, begin + i);
    int status = place_pairs(near);
    for (int64_t i = 0; !status && i < near->nodes; i++)
        write_row(near->columns + near->starts[i], near->codes + near->starts[i], graph, begin + i);
    return status;
}

int mg_graph_near_create(mg_graph_near **out, const mg_graph *graph, int hops)
{
    return mg_graph_near_create_rows(out, graph, hops, 0, graph->nodes);
}

int mg_graph_near_create_rows(mg_graph_near **out, const mg_graph *graph, int hops, int64_t row_begin, int64_t row_end)
{
    *out = NULL;
    int status = mg_graph_check_hops(hops);
    if (!status && (row_begin < 0 || row_end < row_begin || row_end > graph->nodes))
        status = fail(-EINVAL, "near pairs: rows %lld to %lld of a graph with %lld nodes", (long long)row_begin,
                      (long long)row_end, (long long)graph->nodes);
    if (status)
        return status;
    mg_graph_near *near = allocate_zeroed(1, sizeof *near);
    if (!near)
        return -ENOMEM;
    near->nodes = row_end - row_begin;
    near->hops = hops;
    near->starts = allocate(near->nodes + 1, sizeof *near->starts);
    if (!near->starts)
        status = -ENOMEM;
    else
        status = hops == 1 ? by_rows(near, graph, row_begin) : by_search(near, graph, row_begin);
    if (status)
        mg_graph_near_destroy(near);
    else
        *out = near;
    return status;
}

void mg_graph_near_destroy(mg_graph_near *near)
{
    if (near)
        RELEASE_ALL(near->starts, near->columns, near->codes, near);
}
