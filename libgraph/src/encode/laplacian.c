#include "megagraph/graph.h"

#include <math.h>
#include <string.h>

#include "encode/spectrum.h"
#include "graph/csr.h"
#include "graph/parallel.h"
#include "library.h"

/* Up to this many nodes, or where half of all eigenvectors are wanted, the dense solver is as quick. */
enum { DENSE_NODES = 128 };

/* Magnitudes this close to the largest are ties: on symmetric graphs, rounding does not choose the sign. */
#define TIE 1e-5f

/* A symmetric copy of a graph without self loops, its components one after the other. */
typedef struct split_graph {
    mg_graph *graph;
    int32_t *order;  /* [nodes] the caller's node at each place */
    int64_t *begins; /* [components + 1] places */
    int64_t components;
    double *inverse_root, *trivial; /* [nodes] as in mg_component */
} split_graph;

/* --- preparation --- */

/* *out: NULL when the graph is symmetric already. */
static int symmetrise(mg_graph **out, const mg_graph *graph)
{
    mg_graph *transposed;
    int64_t edges = graph->edges;
    *out = NULL;
    int status = mg_graph_csr_transposed(&transposed, graph);
    if (status || !transposed)
        return status;
    mg_graph_destroy(transposed);
    int64_t *ends = allocate(2 * edges, sizeof *ends);
    if (!ends)
        return -ENOMEM;
    for (int64_t i = 0; i < graph->nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++) {
            ends[e] = i;
            ends[edges + e] = graph->columns[e];
        }
    status = mg_graph_create(
        out, &(mg_graph_desc){.nodes = graph->nodes, .edges = edges, .sources = ends, .targets = ends + edges}, NULL);
    release(ends);
    return status;
}

static void strip_self_loops(mg_graph *graph)
{
    int64_t to = 0, begin = 0;
    for (int64_t i = 0; i < graph->nodes; i++) {
        int64_t end = graph->starts[i + 1];
        for (int64_t e = begin; e < end; e++)
            if (graph->columns[e] != i)
                graph->columns[to++] = graph->columns[e];
        begin = end;
        graph->starts[i + 1] = to;
    }
    graph->edges = to;
}

/* Nodes by component, ascending inside each. */
static int order_by_component(split_graph *split, const mg_graph *graph)
{
    int64_t nodes = graph->nodes;
    int32_t *component = allocate(nodes, sizeof *component);
    int status = component ? mg_graph_components(component, &split->components, graph) : -ENOMEM;
    if (!status) {
        split->begins = allocate_zeroed(split->components + 2, sizeof *split->begins);
        split->order = split->begins ? allocate(nodes, sizeof *split->order) : NULL;
        status = split->order ? 0 : -ENOMEM;
    }
    if (!status) {
        int64_t *places = split->begins + 1;
        for (int64_t i = 0; i < nodes; i++)
            places[component[i] + 1]++;
        for (int64_t c = 0; c < split->components; c++)
            places[c + 1] += places[c];
        for (int64_t i = 0; i < nodes; i++)
            split->order[places[component[i]]++] = (int32_t)i;
    }
    release(component);
    return status;
}

static int write_roots(split_graph *split)
{
    const int64_t nodes = split->graph->nodes, *starts = split->graph->starts, *begins = split->begins;
    split->inverse_root = allocate(nodes, sizeof *split->inverse_root);
    split->trivial = split->inverse_root ? allocate(nodes, sizeof *split->trivial) : NULL;
    if (!split->trivial)
        return -ENOMEM;
    for (int64_t c = 0; c < split->components; c++) {
        double entries = (double)(starts[begins[c + 1]] - starts[begins[c]]);
        for (int64_t i = begins[c]; i < begins[c + 1]; i++) {
            double degree = (double)(starts[i + 1] - starts[i]);
            split->inverse_root[i] = degree > 0 ? 1 / sqrt(degree) : 0;
            split->trivial[i] = degree > 0 ? sqrt(degree / entries) : 1;
        }
    }
    return 0;
}

static int split_create(split_graph *split, const mg_graph *graph)
{
    mg_graph *symmetric;
    int status = symmetrise(&symmetric, graph);
    if (status)
        return status;
    const mg_graph *base = symmetric ? symmetric : graph;
    status = order_by_component(split, base);
    if (!status)
        status = mg_graph_permute(&split->graph, base, split->order);
    mg_graph_destroy(symmetric);
    if (status)
        return status;
    strip_self_loops(split->graph);
    return write_roots(split);
}

static void split_destroy(split_graph *split)
{
    mg_graph_destroy(split->graph);
    RELEASE_ALL(split->order, split->begins, split->inverse_root, split->trivial);
}

/* --- output --- */

/* As floats, unit length in fp64; the first entry of largest magnitude is positive. */
static void write_vector(float *encodings, int count, int place, const double *vector, const int32_t *order,
                         int64_t nodes)
{
    double square = 0;
    float largest = 0, sign = 0;
    for (int64_t i = 0; i < nodes; i++) {
        square += vector[i] * vector[i];
        largest = fmaxf(largest, fabsf((float)vector[i]));
    }
    for (int64_t i = 0; i < nodes && sign == 0; i++)
        if (fabsf((float)vector[i]) >= largest * (1 - TIE))
            sign = vector[i] > 0 ? 1 : -1;
    double factor = sign / sqrt(square);
    for (int64_t i = 0; i < nodes; i++)
        encodings[order[i] * (int64_t)count + place] = (float)(factor * vector[i]);
}

static mg_component component_of(const split_graph *split, int64_t c)
{
    int64_t begin = split->begins[c];
    return (mg_component){.nodes = split->begins[c + 1] - begin,
                          .base = begin,
                          .starts = split->graph->starts + begin,
                          .columns = split->graph->columns,
                          .inverse_root = split->inverse_root + begin,
                          .trivial = split->trivial + begin};
}

static void write_component(float *encodings, int count, const double *vectors, const split_graph *split, int64_t c)
{
    int64_t begin = split->begins[c], nodes = split->begins[c + 1] - begin;
    for (int k = 0; k < count && k < nodes - 1; k++)
        write_vector(encodings, count, k, vectors + k * nodes, split->order + begin, nodes);
}

/* --- components: the largest come first, each by ARPACK; the others, with the dense solver, by threads --- */

static int is_dense(int64_t nodes, int64_t count) { return nodes <= DENSE_NODES || nodes <= 2 * count + 16; }

static int64_t encode_large(float *encodings, int count, const split_graph *split, int *status)
{
    int64_t c = 0;
    for (; c < split->components && !*status; c++) {
        mg_component component = component_of(split, c);
        if (is_dense(component.nodes, count))
            break;
        double *vectors = allocate(count * component.nodes, sizeof *vectors);
        *status = vectors ? mg_spectrum_arpack(vectors, count, &component) : -ENOMEM;
        if (!*status)
            write_component(encodings, count, vectors, split, c);
        release(vectors);
    }
    return c;
}

typedef struct dense_work {
    float *encodings;
    int count;
    const split_graph *split;
    int64_t first;   /* component */
    double *scratch; /* [threads][room] */
    int64_t room;
    int *statuses; /* [threads] */
} dense_work;

static void encode_small(void *context, int thread, int64_t task)
{
    const dense_work *work = context;
    mg_component component = component_of(work->split, work->first + task);
    int64_t n = component.nodes, wanted = work->count < n - 1 ? work->count : n - 1;
    double *vectors = work->scratch + thread * work->room;
    if (wanted < 1)
        return;
    int status = mg_spectrum_dense(vectors, wanted, &component, vectors + wanted * n);
    if (status)
        work->statuses[thread] = status;
    else
        write_component(work->encodings, work->count, vectors, work->split, work->first + task);
}

/* Components of one node are left out: their encodings are 0. */
static int64_t count_small(const split_graph *split, int64_t first)
{
    int64_t last = first;
    while (last < split->components && split->begins[last + 1] - split->begins[last] > 1)
        last++;
    return last - first;
}

static int encode_all_small(float *encodings, int count, const split_graph *split, int64_t first)
{
    int64_t tasks = count_small(split, first);
    if (!tasks)
        return 0;
    int threads = mg_graph_threads(tasks), status = 0;
    int64_t largest = split->begins[first + 1] - split->begins[first];
    int64_t wanted = count < largest ? count : largest;
    dense_work work = {encodings, count, split, first, NULL, wanted * largest + mg_spectrum_dense_scratch(largest),
                       NULL};
    work.scratch = allocate(threads * work.room, sizeof *work.scratch);
    work.statuses = work.scratch ? allocate_zeroed(threads, sizeof *work.statuses) : NULL;
    if (work.statuses)
        mg_graph_parallel(threads, tasks, encode_small, &work);
    else
        status = -ENOMEM;
    for (int t = 0; t < threads && !status; t++)
        if (work.statuses[t])
            status = fail(work.statuses[t], "laplacian: the dense solver does not converge");
    RELEASE_ALL(work.scratch, work.statuses);
    return status;
}

int mg_graph_laplacian(float *encodings, int count, const mg_graph *graph)
{
    split_graph split = {0};
    if (count < 0)
        return fail(-EINVAL, "laplacian: %d eigenvectors", count);
    if (!count || !graph->nodes)
        return 0;
    memset(encodings, 0, (size_t)graph->nodes * (size_t)count * sizeof *encodings);
    int status = split_create(&split, graph);
    if (!status) {
        int64_t first = encode_large(encodings, count, &split, &status);
        if (!status)
            status = encode_all_small(encodings, count, &split, first);
    }
    split_destroy(&split);
    return status;
}
