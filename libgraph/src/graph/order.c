/* Orders of nodes that bring pairs of the same code into the same 64 x 64 tile.
 *
 * PARTS: every component by itself, the largest first; those of more than PART nodes are cut by METIS; reverse
 * Cuthill-McKee inside a part. LANDMARK: the largest component sorted by its hop distances to the hubs, the first hub's
 * first; ties and all other components as in PARTS. AUTO: the one whose tiles, sampled, take fewest bytes; LISTS: whose
 * windows name fewest rows. */
#include <string.h>

#include "csr.h"
#include "distance/stream.h"
#include "library.h"
#include "metis.h"
#include "parallel.h"

enum { PART = 256, HUBS = 8, FARTHEST = 15, SAMPLED_BLOCKS = 16 };

/* Sorts nodes[count] stably by key[node] in 0..keys-1; places: scratch [keys + 1]. */
static void sort_by_key(int32_t *sorted, const int32_t *nodes, int64_t count, const int32_t *key, int64_t keys,
                        int64_t *places)
{
    memset(places, 0, (size_t)(keys + 1) * sizeof *places);
    for (int64_t k = 0; k < count; k++)
        places[key[nodes[k]] + 1]++;
    for (int64_t i = 0; i < keys; i++)
        places[i + 1] += places[i];
    for (int64_t k = 0; k < count; k++)
        sorted[places[key[nodes[k]]]++] = nodes[k];
}

/* --- reverse Cuthill-McKee inside groups --- */

typedef struct grouping {
    const mg_graph *graph; /* symmetric, no self loops */
    int32_t *group;        /* [nodes] only nodes of one group see each other */
    int32_t *degree;       /* [nodes] inside the group */
    uint8_t *placed;       /* [nodes] */
} grouping;

static int before(const grouping *groups, int32_t a, int32_t b)
{
    return groups->degree[a] < groups->degree[b] || (groups->degree[a] == groups->degree[b] && a < b);
}

/* Sifts down in a heap whose root is the last by `before`. */
static void sift(int32_t *heap, int64_t root, int64_t count, const grouping *groups)
{
    for (int64_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && before(groups, heap[child], heap[child + 1]))
            child++;
        if (!before(groups, heap[root], heap[child]))
            return;
        int32_t node = heap[root];
        heap[root] = heap[child];
        heap[child] = node;
    }
}

static void sort_by_degree(int32_t *nodes, int64_t count, const grouping *groups)
{
    for (int64_t root = count / 2 - 1; root >= 0; root--)
        sift(nodes, root, count, groups);
    for (int64_t last = count - 1; last > 0; last--) {
        int32_t node = nodes[0];
        nodes[0] = nodes[last];
        nodes[last] = node;
        sift(nodes, 0, last, groups);
    }
}

/* queue[0] holds the start; returns how many nodes of its group it reaches. Unplaces them again if `undo`. */
static int64_t breadth_first(int32_t *queue, grouping *groups, int undo)
{
    int64_t tail = 1;
    groups->placed[queue[0]] = 1;
    for (int64_t head = 0; head < tail; head++) {
        int32_t node = queue[head];
        int64_t first = tail;
        for (int64_t e = groups->graph->starts[node]; e < groups->graph->starts[node + 1]; e++) {
            int32_t to = groups->graph->columns[e];
            if (groups->group[to] == groups->group[node] && !groups->placed[to]) {
                groups->placed[to] = 1;
                queue[tail++] = to;
            }
        }
        sort_by_degree(queue + first, tail - first, groups);
    }
    for (int64_t k = 0; undo && k < tail; k++)
        groups->placed[queue[k]] = 0;
    return tail;
}

/* nodes[count], all of one group: orders them in place. queue: scratch [count]. Each connected piece starts at its end:
   the node that a search from its node of least degree reaches last. */
static void reverse_cuthill_mckee(int32_t *nodes, int64_t count, int32_t *queue, grouping *groups)
{
    int64_t done = 0;
    sort_by_degree(nodes, count, groups);
    for (int64_t k = 0; k < count; k++) {
        if (groups->placed[nodes[k]])
            continue;
        queue[done] = nodes[k];
        int64_t reached = breadth_first(queue + done, groups, 1);
        queue[done] = queue[done + reached - 1];
        done += breadth_first(queue + done, groups, 0);
    }
    for (int64_t k = 0; k < count; k++)
        nodes[k] = queue[count - 1 - k];
}

/* --- parts --- */

/* Cuts the component nodes[count] and gives its nodes groups *next_group, ... in the order of its parts. */
static int cut_component(int32_t *group, int32_t *next_group, const mg_graph *graph, const int32_t *nodes,
                         int64_t count)
{
    int32_t parts = (int32_t)((count + PART - 1) / PART);
    int32_t *part_of = allocate_zeroed(count, sizeof *part_of);
    mg_graph *component = NULL;
    int status = part_of ? 0 : -ENOMEM;
    if (!status && parts > 1) {
        status = mg_graph_induce(&component, graph, nodes, count);
        if (!status)
            status = mg_graph_metis(part_of, component, parts, NULL, 0.03, 0, MG_GRAPH_METIS_KWAY);
    }
    for (int64_t k = 0; !status && k < count; k++)
        group[nodes[k]] = *next_group + part_of[k];
    *next_group += parts;
    mg_graph_destroy(component);
    release(part_of);
    return status;
}

/* by_component: nodes sorted by component. Numbers all groups; *count: how many. */
static int number_groups(int32_t *group, int32_t *count, const mg_graph *graph, const int32_t *by_component,
                         const int32_t *component)
{
    int status = 0;
    *count = 0;
    for (int64_t begin = 0, end; !status && begin < graph->nodes; begin = end) {
        for (end = begin + 1; end < graph->nodes && component[by_component[end]] == component[by_component[begin]];)
            end++;
        if (end - begin > PART) {
            status = cut_component(group, count, graph, by_component + begin, end - begin);
        } else {
            for (int64_t k = begin; k < end; k++)
                group[by_component[k]] = *count;
            ++*count;
        }
    }
    return status;
}

static void order_groups(int32_t *order, int32_t *queue, grouping *groups)
{
    const mg_graph *graph = groups->graph;
    for (int64_t i = 0; i < graph->nodes; i++) {
        groups->degree[i] = 0;
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            groups->degree[i] += groups->group[graph->columns[e]] == groups->group[i];
    }
    for (int64_t begin = 0, end; begin < graph->nodes; begin = end) {
        for (end = begin + 1; end < graph->nodes && groups->group[order[end]] == groups->group[order[begin]];)
            end++;
        reverse_cuthill_mckee(order + begin, end - begin, queue + begin, groups);
    }
}

static int order_by_parts(int32_t *order, const mg_graph *graph, const int32_t *component, int64_t components)
{
    int64_t nodes = graph->nodes;
    int32_t *list = allocate(2 * nodes, sizeof *list), count;
    grouping groups = {graph, allocate(nodes, sizeof(int32_t)), allocate(nodes, sizeof(int32_t)),
                       allocate_zeroed(nodes, 1)};
    int64_t *places = allocate(nodes + components + 1, sizeof *places);
    int status = list && groups.group && groups.degree && groups.placed && places ? 0 : -ENOMEM;
    if (!status) {
        for (int64_t i = 0; i < nodes; i++)
            list[i] = (int32_t)i;
        sort_by_key(list + nodes, list, nodes, component, components, places);
        status = number_groups(groups.group, &count, graph, list + nodes, component);
    }
    if (!status) {
        sort_by_key(order, list, nodes, groups.group, count, places);
        order_groups(order, list, &groups);
    }
    RELEASE_ALL(list, groups.group, groups.degree, groups.placed, places);
    return status;
}

/* --- landmarks --- */

static void find_hubs(int32_t *hubs, int64_t *count, const mg_graph *graph)
{
    *count = graph->nodes < HUBS ? graph->nodes : HUBS;
    for (int64_t h = 0; h < *count; h++) {
        int64_t best = -1, best_degree = -1;
        for (int64_t i = 0; i < graph->nodes; i++) {
            int64_t degree = graph->starts[i + 1] - graph->starts[i], taken = 0;
            for (int64_t k = 0; k < h; k++)
                taken |= hubs[k] == i;
            if (!taken && degree > best_degree) {
                best = i;
                best_degree = degree;
            }
        }
        hubs[h] = (int32_t)best;
    }
}

/* distance[nodes]: hops from hub, at most FARTHEST. queue: scratch [nodes]. */
static void distances_from(int32_t *distance, int32_t *queue, const mg_graph *graph, int32_t hub)
{
    int64_t tail = 1;
    for (int64_t i = 0; i < graph->nodes; i++)
        distance[i] = FARTHEST;
    distance[hub] = 0;
    queue[0] = hub;
    for (int64_t head = 0; head < tail; head++) {
        int32_t node = queue[head];
        for (int64_t e = graph->starts[node]; distance[node] + 1 < FARTHEST && e < graph->starts[node + 1]; e++)
            if (distance[graph->columns[e]] == FARTHEST) {
                distance[graph->columns[e]] = distance[node] + 1;
                queue[tail++] = graph->columns[e];
            }
    }
}

/* order holds the order by parts, so the nodes of component 0 come first. */
static int order_by_landmarks(int32_t *order, const mg_graph *graph, const int32_t *component)
{
    int64_t nodes = graph->nodes, largest = 0, hub_count;
    int32_t hubs[HUBS], *distance = allocate(nodes, sizeof *distance);
    int32_t *queue = distance ? allocate(nodes, sizeof *queue) : NULL;
    if (!queue) {
        release(distance);
        return -ENOMEM;
    }
    while (largest < nodes && component[order[largest]] == 0)
        largest++;
    find_hubs(hubs, &hub_count, graph);
    for (int64_t h = hub_count - 1; h >= 0; h--) {
        int64_t places[FARTHEST + 2];
        distances_from(distance, queue, graph, hubs[h]);
        sort_by_key(queue, order, largest, distance, FARTHEST + 1, places);
        memcpy(order, queue, (size_t)largest * sizeof *order);
    }
    RELEASE_ALL(distance, queue);
    return 0;
}

/* --- choice --- */

typedef struct tile_sample {
    mg_graph_stream *stream;
    int64_t blocks, tile_columns;
    uint8_t *classes; /* [threads][8 * tile_columns] each of the three */
    uint8_t *constants;
    int64_t *bytes;
    int64_t block_bytes[SAMPLED_BLOCKS];
} tile_sample;

static void sample_block(void *context, int thread, int64_t s)
{
    tile_sample *sample = context;
    int64_t count = sample->blocks < SAMPLED_BLOCKS ? sample->blocks : SAMPLED_BLOCKS;
    int64_t first = s * sample->blocks / count * BLOCK_SOURCES, nodes = sample->stream->graph->nodes;
    int64_t tiles = BLOCK_SOURCES / CHUNK * sample->tile_columns;
    mg_graph_tile_rows rows = {sample->classes + thread * tiles, sample->constants + thread * tiles,
                               sample->bytes + thread * tiles, NULL, sample->tile_columns};
    const mg_graph_search *search = mg_graph_stream_search(
        sample->stream, thread, first, nodes - first < BLOCK_SOURCES ? nodes - first : BLOCK_SOURCES);
    memset(rows.offsets, 0, (size_t)tiles * sizeof *rows.offsets);
    sample->stream->kernels->tiles(search, &rows);
    for (int64_t t = 0; t < tiles; t++)
        sample->block_bytes[s] += rows.offsets[t];
}

/* Payload bytes of the tiles of sampled blocks of 512 rows. */
static int sample_tiles(int64_t *bytes, const mg_graph *graph, int hops)
{
    tile_sample sample = {.blocks = (graph->nodes + BLOCK_SOURCES - 1) / BLOCK_SOURCES,
                          .tile_columns = (graph->nodes + CHUNK - 1) / CHUNK};
    int64_t count = sample.blocks < SAMPLED_BLOCKS ? sample.blocks : SAMPLED_BLOCKS;
    int threads = mg_graph_threads(count);
    int64_t tiles = threads * (BLOCK_SOURCES / CHUNK) * sample.tile_columns;
    int status = mg_graph_stream_create(&sample.stream, graph, hops, threads);
    if (!status) {
        sample.classes = allocate(tiles, 1);
        sample.constants = sample.classes ? allocate(tiles, 1) : NULL;
        sample.bytes = sample.constants ? allocate(tiles, sizeof *sample.bytes) : NULL;
        status = sample.bytes ? 0 : -ENOMEM;
    }
    if (!status)
        mg_graph_parallel(threads, count, sample_block, &sample);
    *bytes = 0;
    for (int64_t s = 0; s < count; s++)
        *bytes += sample.block_bytes[s];
    mg_graph_stream_destroy(sample.stream);
    RELEASE_ALL(sample.classes, sample.constants, sample.bytes);
    return status;
}

/* Rows that windows of WINDOW queries gather, each once: what lists of neighbours miss in a cache. */
static int count_gathered(int64_t *rows, const mg_graph *graph)
{
    enum { WINDOW = 256 };
    int64_t *seen = allocate_zeroed(graph->nodes, sizeof *seen); /* the last window that named it, from 1 */
    *rows = 0;
    for (int64_t i = 0; seen && i < graph->nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++) {
            int64_t *last = &seen[graph->columns[e]];
            *rows += *last != i / WINDOW + 1;
            *last = i / WINDOW + 1;
        }
    release(seen);
    return seen ? 0 : -ENOMEM;
}

static int cost_of(int64_t *cost, const mg_graph *graph, mg_graph_order_kind rule, int hops)
{
    return rule == MG_GRAPH_ORDER_LISTS ? count_gathered(cost, graph) : sample_tiles(cost, graph, hops);
}

static int cost_of_order(int64_t *cost, const mg_graph *graph, const int32_t *order, mg_graph_order_kind rule, int hops)
{
    mg_graph *permuted;
    int status = mg_graph_permute(&permuted, graph, order);
    if (!status)
        status = cost_of(cost, permuted, rule, hops);
    mg_graph_destroy(permuted);
    return status;
}

static void order_as_given(int32_t *order, int64_t nodes)
{
    for (int64_t i = 0; i < nodes; i++)
        order[i] = (int32_t)i;
}

static int order_symmetric(int32_t *order, const mg_graph *symmetric, mg_graph_order_kind kind)
{
    int64_t components;
    int32_t *component = allocate(symmetric->nodes, sizeof *component);
    int status = component ? mg_graph_components(component, &components, symmetric) : -ENOMEM;
    if (!status)
        status = order_by_parts(order, symmetric, component, components);
    if (!status && kind == MG_GRAPH_ORDER_LANDMARK)
        status = order_by_landmarks(order, symmetric, component);
    release(component);
    return status;
}

static int order_by_kind(int32_t *order, const mg_graph *graph, mg_graph_order_kind kind)
{
    mg_graph *symmetric;
    int64_t added;
    if (kind == MG_GRAPH_ORDER_GIVEN) {
        order_as_given(order, graph->nodes);
        return 0;
    }
    int status = mg_graph_csr_symmetrised(&symmetric, &added, graph);
    if (!status)
        status = order_symmetric(order, symmetric, kind);
    mg_graph_destroy(symmetric);
    return status;
}

/* The order as given wins ties, then landmarks. */
static int order_by_cost(int32_t *order, mg_graph_order_kind *chosen, const mg_graph *graph, mg_graph_order_kind rule,
                         int hops)
{
    int64_t best = 0, cost;
    int32_t *trial = allocate(graph->nodes, sizeof *trial);
    int status = trial ? cost_of(&best, graph, rule, hops) : -ENOMEM;
    order_as_given(order, graph->nodes);
    *chosen = MG_GRAPH_ORDER_GIVEN;
    for (mg_graph_order_kind kind = MG_GRAPH_ORDER_LANDMARK; !status && kind <= MG_GRAPH_ORDER_PARTS; kind++) {
        status = order_by_kind(trial, graph, kind);
        if (!status)
            status = cost_of_order(&cost, graph, trial, rule, hops);
        if (!status && cost < best) {
            best = cost;
            *chosen = kind;
            memcpy(order, trial, (size_t)graph->nodes * sizeof *order);
        }
    }
    release(trial);
    return status;
}

int mg_graph_order(int32_t *order, mg_graph_order_kind *chosen, const mg_graph *graph, mg_graph_order_kind kind,
                   int hops)
{
    mg_graph_order_kind taken = kind;
    int status = mg_graph_check_hops(hops);
    if (status)
        return status;
    if ((int)kind < MG_GRAPH_ORDER_AUTO || kind > MG_GRAPH_ORDER_LISTS)
        return fail(-EINVAL, "order: kind %d is not known", (int)kind);
    if (kind == MG_GRAPH_ORDER_AUTO || kind == MG_GRAPH_ORDER_LISTS)
        status = order_by_cost(order, &taken, graph, kind, hops);
    else
        status = order_by_kind(order, graph, kind);
    if (!status && chosen)
        *chosen = taken;
    return status;
}
