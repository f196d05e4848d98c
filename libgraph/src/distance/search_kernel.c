/* Breadth-first search from 512 nodes at once (Then et al. 2014, section 3), one level at a time, by pushing along the
 * edges of the frontier or, where those are many, by pulling into the nodes that still lack sources. */
#include "block.h"

void KERNEL(search)(mg_graph_search *search);

/* Pulling reads each open node's edges until it has what it needs; pushing reads and writes for each frontier edge. */
enum { PUSH_COST = 2, PULL_BATCH = 8, PREFETCH = 12 };

typedef struct level {
    int64_t nodes, edges;
} level;

static void clear(mg_graph_search *search)
{
    int64_t nodes = search->stream->graph->nodes;
    for (int64_t chunk = 0; chunk * CHUNK < nodes; chunk++) {
        if (!search->active[chunk])
            continue;
        int64_t begin = chunk * CHUNK, count = nodes - begin < CHUNK ? nodes - begin : CHUNK;
        memset(search->visited + begin, 0, (size_t)count * sizeof(bits512));
        search->active[chunk] = 0;
    }
}

/* Sources `fresh` reach node at this distance, and did not before. */
INLINE void visit(mg_graph_search *search, int64_t node, const bits512 *fresh, int distance)
{
    int planes = search->stream->plane_count;
    bits512 *plane = search->planes + node * planes;
    if (is_zero(&search->visited[node])) {
        search->active[node / CHUNK] = 1;
        for (int p = 0; p < planes; p++)
            plane[p] = distance >> p & 1 ? *fresh : (bits512){0};
    } else {
        for (int p = 0; p < planes; p++)
            if (distance >> p & 1)
                plane[p] |= *fresh;
    }
    search->visited[node] |= *fresh;
}

static level start(mg_graph_search *search)
{
    const mg_graph_stream *stream = search->stream;
    level frontier = {search->count, 0};
    for (int64_t b = 0; b < search->count; b++)
        search->full[stream->component[search->first + b]] = (bits512){0};
    for (int64_t b = 0; b < search->count; b++) {
        int64_t node = search->first + b;
        uint64_t words[8] = {0};
        bits512 bit;
        words[b / 64] = (uint64_t)1 << b % 64;
        memcpy(&bit, words, sizeof bit);
        visit(search, node, &bit, 0);
        search->current[node] = bit;
        search->full[stream->component[node]] |= bit;
        search->list[b] = (int32_t)node;
        frontier.edges += stream->graph->starts[node + 1] - stream->graph->starts[node];
    }
    return frontier;
}

/* next[v] |= current[u] over the frontier's edges u to v; lists the nodes reached. */
static int64_t push_edges(mg_graph_search *search, int64_t frontier_nodes)
{
    const mg_graph *graph = search->stream->graph;
    const bits512 *current = search->current;
    bits512 *next = search->next;
    int64_t reached = 0, last = graph->edges - 1;
    for (int64_t k = 0; k < frontier_nodes; k++) {
        int64_t node = search->list[k];
        bits512 bits = current[node];
        for (int64_t e = graph->starts[node]; e < graph->starts[node + 1]; e++) {
            int32_t to = graph->columns[e];
            __builtin_prefetch(&next[graph->columns[e + PREFETCH < last ? e + PREFETCH : last]], 1);
            search->next_list[reached] = to;
            reached += is_zero(&next[to]);
            next[to] |= bits;
        }
    }
    return reached;
}

static level push(mg_graph_search *search, int64_t frontier_nodes, int distance)
{
    const int64_t *starts = search->stream->graph->starts;
    int64_t reached = push_edges(search, frontier_nodes);
    level frontier = {0, 0};
    for (int64_t k = 0; k < reached; k++) {
        int32_t node = search->next_list[k];
        bits512 fresh = search->next[node] & ~search->visited[node];
        search->next[node] = fresh;
        if (is_zero(&fresh))
            continue;
        visit(search, node, &fresh, distance);
        search->next_list[frontier.nodes++] = node;
        frontier.edges += starts[node + 1] - starts[node];
    }
    return frontier;
}

/* *fresh: the bits of need that some inward neighbour brings; stops early when it has them all. */
INLINE void gather(bits512 *fresh, const bits512 *need, const bits512 *current, const mg_graph *inward, int64_t node)
{
    const int32_t *columns = inward->columns;
    int64_t e = inward->starts[node], end = inward->starts[node + 1];
    bits512 found = {0};
    for (; e + PULL_BATCH <= end; e += PULL_BATCH) {
        for (int k = 0; k < PULL_BATCH; k++)
            found |= current[columns[e + k]];
        bits512 lacking = *need & ~found;
        if (is_zero(&lacking))
            break;
    }
    if (e + PULL_BATCH > end)
        for (; e < end; e++)
            found |= current[columns[e]];
    *fresh = found & *need;
}

static level pull(mg_graph_search *search, int distance)
{
    const mg_graph_stream *stream = search->stream;
    const int64_t *starts = stream->graph->starts;
    level frontier = {0, 0};
    for (int64_t node = 0; node < stream->graph->nodes; node++) {
        bits512 need = search->full[stream->component[node]] & ~search->visited[node];
        if (is_zero(&need))
            continue;
        bits512 fresh;
        gather(&fresh, &need, search->current, stream->inward, node);
        if (is_zero(&fresh))
            continue;
        search->next[node] = fresh;
        visit(search, node, &fresh, distance);
        search->next_list[frontier.nodes++] = (int32_t)node;
        frontier.edges += starts[node + 1] - starts[node];
    }
    return frontier;
}

/* The old frontier is zeroed: between levels, and between searches, next is all 0. */
static void advance(mg_graph_search *search, int64_t frontier_nodes)
{
    for (int64_t k = 0; k < frontier_nodes; k++)
        search->current[search->list[k]] = (bits512){0};
    bits512 *current = search->current;
    search->current = search->next;
    search->next = current;
    int32_t *list = search->list;
    search->list = search->next_list;
    search->next_list = list;
}

void KERNEL(search)(mg_graph_search *search)
{
    const mg_graph_stream *stream = search->stream;
    clear(search);
    level now = start(search);
    for (int distance = 1; distance <= stream->hops && now.nodes; distance++) {
        int pushes = now.edges * PUSH_COST < stream->graph->edges;
        level next = pushes ? push(search, now.nodes, distance) : pull(search, distance);
        advance(search, now.nodes);
        now = next;
    }
    advance(search, now.nodes);
    for (int64_t b = 0; b < search->count; b++)
        search->full[stream->component[search->first + b]] = (bits512){0};
}
