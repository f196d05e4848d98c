/* What dataset.h promises of a dataset, checked; datasets from a caller's parts; giving back. */
#include "parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

int mg_parts_plausible_nodes(const char *path, int64_t nodes, int64_t listed)
{
    int64_t most = listed < (int64_t)1 << 40 ? ((int64_t)1 << 24) + 1024 * listed : INT64_MAX;
    if (nodes > INT32_MAX || nodes > most)
        return fail(-EINVAL,
                    "%s: %lld nodes, but the file lists only %lld things: a node number is wrong, or numbers have "
                    "gaps and are names (read the file as an edge list)",
                    path, (long long)nodes, (long long)listed);
    return 0;
}

static int check_segments(const mg_dataset *data, const char *what)
{
    if (data->graphs < 0 || !data->segments || data->segments[0] != 0 ||
        data->segments[data->graphs] != data->graph->nodes)
        return fail(-EINVAL, "%s: segments of %lld graphs must run from 0 to the %lld nodes", what,
                    (long long)data->graphs, (long long)data->graph->nodes);
    for (int64_t g = 0; g < data->graphs; g++)
        if (data->segments[g + 1] < data->segments[g] || data->segments[g + 1] > data->graph->nodes)
            return fail(-EINVAL, "%s: graph %lld starts at node %lld and ends at %lld", what, (long long)g,
                        (long long)data->segments[g], (long long)data->segments[g + 1]);
    return 0;
}

static int check_edges_inside(const mg_dataset *data, const char *what)
{
    const mg_graph *graph = data->graph;
    for (int64_t g = 0; g < data->graphs; g++)
        for (int64_t i = data->segments[g]; i < data->segments[g + 1]; i++)
            for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
                if (graph->columns[e] < data->segments[g] || graph->columns[e] >= data->segments[g + 1])
                    return fail(-EINVAL, "%s: an edge joins nodes %lld and %d, which are in different graphs", what,
                                (long long)i, graph->columns[e]);
    return 0;
}

static int check_matrix(const char *what, const char *name, const float *values, int64_t rows, int64_t columns)
{
    int64_t count;
    if (columns < 0 || __builtin_mul_overflow(rows, columns, &count))
        return fail(-EINVAL, "%s: %s: %lld x %lld is no size", what, name, (long long)rows, (long long)columns);
    if (!values && count > 0)
        return fail(-EINVAL, "%s: %s: %lld columns, but no values", what, name, (long long)columns);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return fail(-EINVAL, "%s: %s: row %lld, column %lld is %g: values must be finite in fp32", what, name,
                        (long long)(i / columns), (long long)(i % columns), (double)values[i]);
    return 0;
}

static int check_labels(const mg_dataset *data, const char *what)
{
    if (data->classes < 0 || data->classes > INT32_MAX || !data->labels || (data->classes && !data->class_names))
        return fail(-EINVAL, "%s: classification needs labels and class_names; classes is %lld", what,
                    (long long)data->classes);
    for (int64_t c = 0; c < data->classes; c++)
        if (!data->class_names[c])
            return fail(-EINVAL, "%s: class %lld has no name", what, (long long)c);
    for (int64_t i = 0; i < data->items; i++)
        if (data->labels[i] < -1 || data->labels[i] >= data->classes)
            return fail(-EINVAL, "%s: item %lld has label %d, but classes are 0 to %lld, and -1", what, (long long)i,
                        data->labels[i], (long long)data->classes - 1);
    return 0;
}

static int check_targets(const mg_dataset *data, const char *what)
{
    int64_t count;
    if (data->target_count < 1 || !data->targets || __builtin_mul_overflow(data->items, data->target_count, &count))
        return fail(-EINVAL, "%s: this task needs targets; target_count is %lld", what, (long long)data->target_count);
    for (int64_t i = 0; i < count; i++) {
        float value = data->targets[i];
        if (isinf(value) || (data->task == MG_DATASET_MULTILABEL && !isnan(value) && value != 0 && value != 1))
            return fail(-EINVAL, "%s: target %lld of item %lld is %g", what, (long long)(i % data->target_count),
                        (long long)(i / data->target_count), (double)value);
    }
    return 0;
}

static int check_split(const mg_dataset *data, const char *what)
{
    int64_t count;
    if (data->splits < 0 || __builtin_mul_overflow(data->splits, data->items, &count) || (count && !data->split))
        return fail(-EINVAL, "%s: %lld splits of %lld items, but no values", what, (long long)data->splits,
                    (long long)data->items);
    for (int64_t i = 0; i < count; i++)
        if (data->split[i] > MG_DATASET_TEST)
            return fail(-EINVAL, "%s: split %lld has %d for item %lld", what, (long long)(i / data->items),
                        data->split[i], (long long)(i % data->items));
    return 0;
}

static int check_names(const mg_dataset *data, const char *what)
{
    for (int64_t i = 0; data->node_names && i < data->graph->nodes; i++)
        if (!data->node_names[i])
            return fail(-EINVAL, "%s: node %lld has no name, though others have", what, (long long)i);
    return 0;
}

int mg_dataset_check(const mg_dataset *data, const char *what)
{
    int status = data->graph ? mg_graph_check(data->graph) : fail(-EINVAL, "%s: a dataset needs a graph", what);
    if (!status)
        status = check_segments(data, what);
    if (!status)
        status = check_edges_inside(data, what);
    if (!status && data->items != (data->level == MG_DATASET_GRAPH ? data->graphs : data->graph->nodes))
        status = fail(-EINVAL, "%s: %lld items, but %lld %s", what, (long long)data->items,
                      (long long)(data->level == MG_DATASET_GRAPH ? data->graphs : data->graph->nodes),
                      data->level == MG_DATASET_GRAPH ? "graphs" : "nodes");
    if (!status)
        status = check_matrix(what, "node features", data->features, data->graph->nodes, data->feature_count);
    if (!status)
        status = check_matrix(what, "edge features", data->edge_features, data->graph->edges, data->edge_feature_count);
    if (!status && ((data->labels && data->task != MG_DATASET_CLASSIFICATION) ||
                    (data->targets && data->task != MG_DATASET_REGRESSION && data->task != MG_DATASET_MULTILABEL)))
        status = fail(-EINVAL, "%s: there are labels or targets that task %d does not have", what, data->task);
    if (!status && data->task != MG_DATASET_NONE)
        status = data->task == MG_DATASET_CLASSIFICATION ? check_labels(data, what) : check_targets(data, what);
    if (!status)
        status = check_split(data, what);
    return status ? status : check_names(data, what);
}

/* --- from a caller's parts --- */

static void *copy_block(int *status, const void *values, int64_t count, int64_t columns, size_t size)
{
    if (*status || !values)
        return NULL;
    void *copy = allocate(count * columns, size);
    if (copy)
        memcpy(copy, values, (size_t)(count * columns) * size);
    else
        *status = -ENOMEM;
    return copy;
}

static char **copy_names(int *status, char *const *names, int64_t count)
{
    char **copy = *status || !names ? NULL : mg_strings_copy(names, count);
    if (names && !copy)
        *status = -ENOMEM;
    return copy;
}

static char *own_story(int *status, const mg_dataset *parts)
{
    mg_story story = {0};
    if (parts->story)
        mg_story_add(&story, "%s", parts->story);
    else
        mg_story_add(&story,
                     "made in memory: %lld graphs, %lld nodes, %lld edges (each direction counts), %lld features, "
                     "%lld classes, %lld targets, %lld splits\n",
                     (long long)parts->graphs, (long long)parts->graph->nodes, (long long)parts->graph->edges,
                     (long long)parts->feature_count, (long long)parts->classes, (long long)parts->target_count,
                     (long long)parts->splits);
    *status = *status ? *status : story.status;
    return story.text;
}

static int copy_dataset(mg_dataset *data, const mg_dataset *parts)
{
    int status = 0;
    int64_t nodes = parts->graph->nodes, edges = parts->graph->edges, items = parts->items;
    data->graph = allocate_zeroed(1, sizeof *data->graph);
    if (!data->graph)
        return -ENOMEM;
    data->graph->nodes = nodes;
    data->graph->edges = edges;
    data->graph->starts = copy_block(&status, parts->graph->starts, nodes + 1, 1, sizeof(int64_t));
    data->graph->columns = copy_block(&status, parts->graph->columns, edges, 1, sizeof(int32_t));
    data->name = copy_block(&status, parts->name ? parts->name : "memory",
                            (int64_t)strlen(parts->name ? parts->name : "memory") + 1, 1, 1);
    data->segments = copy_block(&status, parts->segments, parts->graphs + 1, 1, sizeof(int64_t));
    data->features = copy_block(&status, parts->features, nodes, parts->feature_count, sizeof(float));
    data->edge_features = copy_block(&status, parts->edge_features, edges, parts->edge_feature_count, sizeof(float));
    data->class_names = copy_names(&status, parts->class_names, parts->classes);
    data->labels = copy_block(&status, parts->labels, items, 1, sizeof(int32_t));
    data->targets = copy_block(&status, parts->targets, items, parts->target_count, sizeof(float));
    data->split = copy_block(&status, parts->split, parts->splits, items, 1);
    data->node_names = copy_names(&status, parts->node_names, nodes);
    data->story = own_story(&status, parts);
    return status;
}

int mg_dataset_create(mg_dataset **out, const mg_dataset *parts)
{
    *out = NULL;
    mg_dataset whole = *parts;
    int64_t one[2] = {0, parts->graph ? parts->graph->nodes : 0};
    if (!whole.segments) {
        whole.segments = one;
        whole.graphs = 1;
    }
    if (!whole.items && whole.graph)
        whole.items = whole.level == MG_DATASET_GRAPH ? whole.graphs : whole.graph->nodes;
    int status = mg_dataset_check(&whole, "dataset from memory");
    if (status)
        return status;
    mg_dataset *data = allocate(1, sizeof *data);
    if (!data)
        return -ENOMEM;
    *data = (mg_dataset){.graphs = whole.graphs,
                         .feature_count = whole.feature_count,
                         .level = whole.level,
                         .edge_feature_count = whole.edge_feature_count,
                         .task = whole.task,
                         .items = whole.items,
                         .classes = whole.classes,
                         .target_count = whole.target_count,
                         .splits = whole.splits};
    status = copy_dataset(data, &whole);
    if (status)
        mg_dataset_close(data);
    else
        *out = data;
    return status;
}

void mg_dataset_close(mg_dataset *data)
{
    if (!data)
        return;
    mg_graph_destroy(data->graph);
    void *blocks[] = {data->name,   data->segments, data->features, data->edge_features, data->class_names,
                      data->labels, data->targets,  data->split,    data->node_names,    data->story,
                      data};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        release(blocks[i]);
}
