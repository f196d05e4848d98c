/* METIS, with what it leaves undone: a symmetric copy without self loops, weights it can bear, the other algorithm
 * where the first misses the balance, no empty parts, and cut and balance counted here. */
#include <math.h>
#include <string.h>

#include "csr.h"
#include "library.h"
#include "metis.h"

typedef struct partitioning {
    const mg_graph *graph; /* symmetric, no self loops */
    const int64_t *weights;
    int32_t parts;
    double imbalance;
    uint64_t seed;
    int64_t *sizes;      /* [parts] nodes */
    double *part_weight; /* [parts] */
} partitioning;

static void count_parts(const partitioning *cut, const int32_t *part_of)
{
    memset(cut->sizes, 0, (size_t)cut->parts * sizeof *cut->sizes);
    memset(cut->part_weight, 0, (size_t)cut->parts * sizeof *cut->part_weight);
    for (int64_t i = 0; i < cut->graph->nodes; i++) {
        cut->sizes[part_of[i]]++;
        cut->part_weight[part_of[i]] += (double)cut->weights[i];
    }
}

/* --- empty parts --- */

static int64_t neighbours_inside(const mg_graph *graph, const int32_t *part_of, int64_t node)
{
    int64_t inside = 0;
    for (int64_t e = graph->starts[node]; e < graph->starts[node + 1]; e++)
        inside += part_of[graph->columns[e]] == part_of[node];
    return inside;
}

/* The node of the part with most nodes that has the fewest neighbours there: what moving it adds to the cut. */
static int64_t cheapest_node(const partitioning *cut, const int32_t *part_of, const int64_t *inside)
{
    int32_t largest = 0;
    for (int32_t p = 1; p < cut->parts; p++)
        if (cut->sizes[p] > cut->sizes[largest])
            largest = p;
    int64_t best = -1;
    for (int64_t i = 0; i < cut->graph->nodes; i++)
        if (part_of[i] == largest && (best < 0 || inside[i] < inside[best]))
            best = i;
    return best;
}

static void move_node(const partitioning *cut, int32_t *part_of, int64_t *inside, int64_t node, int32_t to)
{
    const mg_graph *graph = cut->graph;
    for (int64_t e = graph->starts[node]; e < graph->starts[node + 1]; e++)
        inside[graph->columns[e]] -= part_of[graph->columns[e]] == part_of[node];
    cut->sizes[part_of[node]]--;
    cut->sizes[to]++;
    part_of[node] = to;
    inside[node] = 0; /* the part was empty */
}

static int fill_empty_parts(int32_t *part_of, int64_t *repaired, const partitioning *cut)
{
    int64_t *inside = NULL, nodes = cut->graph->nodes;
    *repaired = 0;
    for (int32_t p = 0; p < cut->parts; p++) {
        if (cut->sizes[p])
            continue;
        if (!inside) {
            inside = allocate(nodes, sizeof *inside);
            if (!inside)
                return -ENOMEM;
            for (int64_t i = 0; i < nodes; i++)
                inside[i] = neighbours_inside(cut->graph, part_of, i);
        }
        move_node(cut, part_of, inside, cheapest_node(cut, part_of, inside), p);
        ++*repaired;
    }
    release(inside);
    count_parts(cut, part_of);
    return 0;
}

/* --- quality --- */

static double largest_size(const partitioning *cut)
{
    double largest = 0;
    for (int32_t p = 0; p < cut->parts; p++)
        largest = fmax(largest, (double)cut->sizes[p]);
    return largest;
}

static double largest_weight(const partitioning *cut)
{
    double largest = 0;
    for (int32_t p = 0; p < cut->parts; p++)
        largest = fmax(largest, cut->part_weight[p]);
    return largest;
}

static double total_weight(const partitioning *cut)
{
    double total = 0;
    for (int64_t i = 0; i < cut->graph->nodes; i++)
        total += (double)cut->weights[i];
    return total;
}

static int64_t count_cut(const mg_graph *graph, const int32_t *part_of)
{
    int64_t entries = 0;
    for (int64_t i = 0; i < graph->nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            entries += part_of[i] != part_of[graph->columns[e]];
    return entries / 2;
}

static void measure(mg_graph_partition_report *report, const partitioning *cut, const int32_t *part_of)
{
    report->cut = count_cut(cut->graph, part_of);
    report->node_balance = largest_size(cut) * cut->parts / (double)cut->graph->nodes;
    report->weight_balance = largest_weight(cut) * cut->parts / total_weight(cut);
}

/* How far the parts exceed what was allowed, as a factor of at least 1; what whole nodes make unavoidable is allowed.
 */
static double excess(const mg_graph_partition_report *report, const partitioning *cut)
{
    double mean = (double)cut->graph->nodes / cut->parts, heaviest = 0, mean_weight = total_weight(cut) / cut->parts;
    for (int64_t i = 0; i < cut->graph->nodes; i++)
        heaviest = fmax(heaviest, (double)cut->weights[i]);
    double nodes_allowed = fmax(1 + cut->imbalance, ceil(mean) / mean);
    double weight_allowed = fmax(1 + cut->imbalance, heaviest / mean_weight);
    return fmax(1, fmax(report->node_balance / nodes_allowed, report->weight_balance / weight_allowed));
}

/* --- the call --- */

static int run_method(int32_t *part_of, mg_graph_partition_report *report, const partitioning *cut,
                      mg_graph_metis_method method)
{
    int status = mg_graph_metis(part_of, cut->graph, cut->parts, cut->weights, cut->imbalance, cut->seed, method);
    if (status)
        return status;
    count_parts(cut, part_of);
    status = fill_empty_parts(part_of, &report->repaired, cut);
    if (!status)
        measure(report, cut, part_of);
    return status;
}

/* Recursive bisection for few parts or few nodes a part, where k-way leaves parts empty; then, where the balance is
   missed, the other one: the smaller excess wins. */
static int run_metis(int32_t *part_of, mg_graph_partition_report *report, const partitioning *cut)
{
    const double noise = 1.005;
    int few = cut->parts <= 8 || cut->graph->nodes < 64 * (int64_t)cut->parts;
    mg_graph_metis_method first = few ? MG_GRAPH_METIS_RECURSIVE : MG_GRAPH_METIS_KWAY;
    mg_graph_metis_method second = few ? MG_GRAPH_METIS_KWAY : MG_GRAPH_METIS_RECURSIVE;
    int status = run_method(part_of, report, cut, first);
    if (status || excess(report, cut) <= noise)
        return status;
    mg_graph_partition_report other = *report;
    int32_t *other_parts = allocate(cut->graph->nodes, sizeof *other_parts);
    if (!other_parts)
        return -ENOMEM;
    status = run_method(other_parts, &other, cut, second);
    if (!status && excess(&other, cut) < excess(report, cut)) {
        memcpy(part_of, other_parts, (size_t)cut->graph->nodes * sizeof *part_of);
        *report = other;
    }
    release(other_parts);
    return status;
}

static int partition_copy(int32_t *part_of, mg_graph_partition_report *report, const partitioning *cut)
{
    int64_t nodes = cut->graph->nodes;
    if (cut->parts > 1 && cut->parts < nodes)
        return run_metis(part_of, report, cut);
    for (int64_t i = 0; i < nodes; i++)
        part_of[i] = cut->parts == 1 ? 0 : (int32_t)i;
    count_parts(cut, part_of);
    measure(report, cut, part_of);
    return 0;
}

static int check_desc(const mg_graph *graph, const mg_graph_partition_desc *desc)
{
    if (desc->parts < 1 || desc->parts > graph->nodes)
        return fail(-EINVAL, "partition: %d parts of a graph of %lld nodes; 1 to %lld are possible", desc->parts,
                    (long long)graph->nodes, (long long)graph->nodes);
    if (!(desc->imbalance >= 0 && desc->imbalance <= 1000))
        return fail(-EINVAL, "partition: imbalance %g; it is the share above the mean that is allowed, such as 0.03",
                    desc->imbalance);
    for (int64_t i = 0; desc->node_weights && i < graph->nodes; i++)
        if (desc->node_weights[i] < 1)
            return fail(-EINVAL, "partition: node %lld has weight %lld; weights are at least 1", (long long)i,
                        (long long)desc->node_weights[i]);
    return 0;
}

static int64_t *degree_weights(const mg_graph *graph)
{
    int64_t *weights = allocate(graph->nodes, sizeof *weights);
    for (int64_t i = 0; weights && i < graph->nodes; i++)
        weights[i] = graph->starts[i + 1] - graph->starts[i] + 1;
    return weights;
}

static int count_components(int64_t *components, const mg_graph *graph)
{
    int32_t *component = allocate(graph->nodes, sizeof *component);
    int status = component ? mg_graph_components(component, components, graph) : -ENOMEM;
    release(component);
    return status;
}

int mg_graph_partition(int32_t *parts_out, mg_graph_partition_report *report, const mg_graph *graph,
                       const mg_graph_partition_desc *desc)
{
    mg_graph_partition_report found = {0};
    mg_graph *both = NULL;
    int64_t *own_weights = NULL;
    int status = check_desc(graph, desc);
    if (!status)
        status = count_components(&found.components, graph);
    if (!status)
        status = mg_graph_csr_symmetrised(&both, &found.mirrored, graph);
    if (!status && !desc->node_weights && !(own_weights = degree_weights(both)))
        status = -ENOMEM;
    partitioning cut = {both,        own_weights ? own_weights : desc->node_weights,
                        desc->parts, desc->imbalance > 0 ? desc->imbalance : MG_GRAPH_IMBALANCE,
                        desc->seed,  NULL,
                        NULL};
    if (!status) {
        cut.sizes = allocate(cut.parts, sizeof *cut.sizes);
        cut.part_weight = cut.sizes ? allocate(cut.parts, sizeof *cut.part_weight) : NULL;
        status = cut.part_weight ? partition_copy(parts_out, &found, &cut) : -ENOMEM;
    }
    RELEASE_ALL(cut.sizes, cut.part_weight, own_weights);
    mg_graph_destroy(both);
    if (!status && report)
        *report = found;
    return status;
}
