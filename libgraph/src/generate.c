#include "megagraph/graph.h"

#include <math.h>

#include "graph/csr.h"
#include "library.h"
#include "random.h"

/* A growing list of edges. */
typedef struct edge_list {
    int64_t *sources, *targets;
    int64_t count, capacity;
} edge_list;

static int edge_list_reserve(edge_list *list, int64_t capacity)
{
    int64_t *sources = reallocate(list->sources, capacity, sizeof *sources);
    if (!sources)
        return -ENOMEM;
    list->sources = sources;
    int64_t *targets = reallocate(list->targets, capacity, sizeof *targets);
    if (!targets)
        return -ENOMEM;
    list->targets = targets;
    list->capacity = capacity;
    return 0;
}

static int edge_list_add(edge_list *list, int64_t source, int64_t target)
{
    if (list->count == list->capacity) {
        int status = edge_list_reserve(list, 2 * list->capacity + 1024);
        if (status)
            return status;
    }
    list->sources[list->count] = source;
    list->targets[list->count++] = target;
    return 0;
}

/* The graph of the list when status is 0; the list is released either way. */
static int edge_list_finish(mg_graph **out, edge_list *list, int64_t nodes, int status)
{
    if (!status)
        status = mg_graph_create(
            out,
            &(mg_graph_desc){.nodes = nodes, .edges = list->count, .sources = list->sources, .targets = list->targets},
            NULL);
    RELEASE_ALL(list->sources, list->targets);
    return status;
}

static int check_nodes(int64_t nodes)
{
    if (nodes < 0 || nodes > INT32_MAX)
        return fail(-EINVAL, "generate: %lld nodes; a graph has 0 to %d nodes", (long long)nodes, INT32_MAX);
    return 0;
}

/* --- stochastic block model --- */

/* Edges from `node` to each of [begin, end) with probability p, by geometric leaps over those that are not taken. */
static int add_with_probability(edge_list *list, random_stream *random, int64_t node, int64_t begin, int64_t end,
                                double p)
{
    if (p <= 0)
        return 0;
    for (int64_t target = begin; target < end; target++) {
        double leap = p < 1 ? floor(log1p(-random_unit(random)) / log1p(-p)) : 0;
        if (leap >= (double)(end - target))
            return 0;
        target += (int64_t)leap;
        int status = edge_list_add(list, node, target);
        if (status)
            return status;
    }
    return 0;
}

static int64_t block_begin(int64_t block, int64_t nodes, int blocks) { return (block * nodes + blocks - 1) / blocks; }

static int check_sbm(int64_t nodes, int blocks, double degree_inside, double degree_across)
{
    int status = check_nodes(nodes);
    if (status)
        return status;
    if (blocks < 1 || blocks > nodes)
        return fail(-EINVAL, "generate: %d blocks of %lld nodes; every block has a node", blocks, (long long)nodes);
    int64_t smallest = nodes / blocks, largest = smallest + (nodes % blocks != 0);
    if (!(degree_inside >= 0 && degree_inside <= (double)(smallest - 1)))
        return fail(-EINVAL, "generate: a mean degree of %g inside blocks of %lld nodes; it is 0 to %lld",
                    degree_inside, (long long)smallest, (long long)smallest - 1);
    if (!(degree_across >= 0 && degree_across <= (double)(nodes - largest)))
        return fail(-EINVAL, "generate: a mean degree of %g to other blocks; it is 0 to %lld", degree_across,
                    (long long)(nodes - largest));
    return 0;
}

int mg_graph_generate_sbm(mg_graph **out, int64_t nodes, int blocks, double degree_inside, double degree_across,
                          uint64_t seed)
{
    *out = NULL;
    int status = check_sbm(nodes, blocks, degree_inside, degree_across);
    if (status)
        return status;
    random_stream random = random_seeded(seed, 1);
    edge_list list = {0};
    for (int64_t i = 0; i < nodes && !status; i++) {
        int64_t block = i * blocks / nodes, begin = block_begin(block, nodes, blocks);
        int64_t end = block_begin(block + 1, nodes, blocks), size = end - begin;
        double inside = size > 1 ? degree_inside / (double)(size - 1) : 0;
        double across = nodes > size ? degree_across / (double)(nodes - size) : 0;
        status = add_with_probability(&list, &random, i, i + 1, end, inside);
        if (!status)
            status = add_with_probability(&list, &random, i, end, nodes, across);
    }
    return edge_list_finish(out, &list, nodes, status);
}

/* --- R-MAT --- */

/* A set of node pairs: open addressing, a power of two of slots at most half full; 0 is free (pairs have low < high).
 */
typedef struct pair_set {
    uint64_t *slots;
    uint64_t mask;
} pair_set;

static int pair_set_create(pair_set *set, int64_t pairs)
{
    int64_t slots = 16;
    while (slots < 2 * pairs)
        slots *= 2;
    set->mask = (uint64_t)slots - 1;
    set->slots = allocate_zeroed(slots, sizeof *set->slots);
    return set->slots ? 0 : -ENOMEM;
}

/* 1 when the pair is new. */
static int pair_set_add(pair_set *set, int64_t low, int64_t high)
{
    uint64_t pair = (uint64_t)low << 32 | (uint64_t)high;
    uint64_t slot = pair * 0x9e3779b97f4a7c15u >> 20 & set->mask;
    while (set->slots[slot] && set->slots[slot] != pair)
        slot = (slot + 1) & set->mask;
    int is_new = !set->slots[slot];
    set->slots[slot] = pair;
    return is_new;
}

static int32_t *shuffled_nodes(int64_t nodes, random_stream *random)
{
    int32_t *order = allocate(nodes, sizeof *order);
    for (int64_t i = 0; order && i < nodes; i++) {
        int64_t j = random_below(random, i + 1);
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    return order;
}

/* One cell of the adjacency matrix of 2^levels nodes: a quadrant per level. */
static void rmat_cell(int64_t *row, int64_t *column, int levels, random_stream *random)
{
    *row = *column = 0;
    for (int level = 0; level < levels; level++) {
        double u = random_unit(random);
        *row = 2 * *row + (u >= 0.57 + 0.19);
        *column = 2 * *column + ((u >= 0.57 && u < 0.57 + 0.19) || u >= 0.57 + 2 * 0.19);
    }
}

static int rmat_edges(edge_list *list, pair_set *seen, const int32_t *order, int64_t nodes, int64_t edges,
                      random_stream *random)
{
    int levels = 0;
    while ((int64_t)1 << levels < nodes)
        levels++;
    int64_t tries = 64 * edges + 1024;
    while (list->count < edges) {
        int64_t row, column;
        if (!tries--)
            return fail(-EINVAL,
                        "generate: %lld distinct edges of %lld nodes: R-MAT repeats itself before that; take fewer",
                        (long long)edges, (long long)nodes);
        rmat_cell(&row, &column, levels, random);
        int64_t low = row < column ? row : column, high = row < column ? column : row;
        if (low == high || high >= nodes || !pair_set_add(seen, low, high))
            continue;
        list->sources[list->count] = order[low];
        list->targets[list->count++] = order[high];
    }
    return 0;
}

int mg_graph_generate_rmat(mg_graph **out, int64_t nodes, int64_t edges, uint64_t seed)
{
    *out = NULL;
    int status = check_nodes(nodes);
    if (status)
        return status;
    if (edges < 0 || edges > nodes * (nodes - 1) / 2)
        return fail(-EINVAL, "generate: %lld edges; %lld nodes have 0 to %lld", (long long)edges, (long long)nodes,
                    (long long)(nodes * (nodes - 1) / 2));
    random_stream random = random_seeded(seed, 2);
    edge_list list = {0};
    pair_set seen = {0};
    int32_t *order = shuffled_nodes(nodes, &random);
    status = order ? pair_set_create(&seen, edges) : -ENOMEM;
    if (!status)
        status = edge_list_reserve(&list, edges);
    if (!status)
        status = rmat_edges(&list, &seen, order, nodes, edges, &random);
    RELEASE_ALL(order, seen.slots);
    return edge_list_finish(out, &list, nodes, status);
}

/* --- grid --- */

int mg_graph_generate_grid(mg_graph **out, int64_t rows, int64_t columns)
{
    *out = NULL;
    if (rows < 0 || columns < 0 || (columns && rows > INT32_MAX / columns))
        return fail(-EINVAL, "generate: a grid of %lld x %lld; a graph has at most %d nodes", (long long)rows,
                    (long long)columns, INT32_MAX);
    edge_list list = {0};
    int status = edge_list_reserve(&list, 2 * rows * columns);
    for (int64_t node = 0; node < rows * columns && !status; node++) {
        if ((node + 1) % columns)
            status = edge_list_add(&list, node, node + 1);
        if (!status && node + columns < rows * columns)
            status = edge_list_add(&list, node, node + columns);
    }
    return edge_list_finish(out, &list, rows * columns, status);
}
