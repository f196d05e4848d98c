/* From raw parts to a dataset: mirrored graph, edge features in its order, labels as classes, splits of labelled items.
 */
#include "parts.h"

#include <string.h>

#include "library.h"

static int one_segment(mg_parts *parts)
{
    parts->segments = allocate(2, sizeof *parts->segments);
    if (!parts->segments)
        return -ENOMEM;
    parts->segments[0] = 0;
    parts->segments[1] = parts->nodes;
    parts->graphs = 1;
    return 0;
}

/* Edge features in the order of graph->columns: each entry has those of the given edge that it came from. */
static int order_edge_values(mg_dataset *data, const mg_parts *parts, const int64_t *edge_of)
{
    int64_t columns = parts->edge_columns, edges = data->graph->edges;
    int64_t count;
    if (__builtin_mul_overflow(edges, columns, &count))
        return fail(-EOVERFLOW, "%s: %lld edges with %lld features each are too many", parts->path, (long long)edges,
                    (long long)columns);
    data->edge_features = allocate(count, sizeof *data->edge_features);
    if (!data->edge_features)
        return -ENOMEM;
    for (int64_t e = 0; e < edges; e++)
        memcpy(data->edge_features + e * columns, parts->edge_values + edge_of[e] * columns,
               (size_t)columns * sizeof(float));
    data->edge_feature_count = columns;
    return 0;
}

static void tell_graph(mg_story *story, const mg_dataset *data, const mg_parts *parts, const mg_graph_report *report,
                       int directed)
{
    const mg_graph *graph = data->graph;
    if (data->graphs != 1 || data->level == MG_DATASET_GRAPH) {
        int64_t largest = 0, empty = 0;
        for (int64_t g = 0; g < data->graphs; g++) {
            int64_t size = data->segments[g + 1] - data->segments[g];
            largest = size > largest ? size : largest;
            empty += size == 0;
        }
        mg_story_add(story, "graphs: %lld, the largest of %lld nodes", (long long)data->graphs, (long long)largest);
        mg_story_add(story, empty ? ", %lld without nodes\n" : "\n", (long long)empty);
    }
    mg_story_add(story, "nodes: %lld, %lld of them isolated; largest degree %lld\n", (long long)graph->nodes,
                 (long long)report->isolated, (long long)report->largest_degree);
    int64_t undirected = (graph->edges - report->self_loops) / 2 + report->self_loops;
    if (directed)
        mg_story_add(story, "edges: %lld given; %lld directed ones, after %lld duplicates were merged",
                     (long long)parts->edges, (long long)graph->edges, (long long)report->duplicates);
    else
        mg_story_add(
            story, "edges: %lld given; %lld undirected ones, after %lld were mirrored and %lld duplicates merged",
            (long long)parts->edges, (long long)undirected, (long long)report->mirrored, (long long)report->duplicates);
    mg_story_add(story, "; %lld self loops%s\n", (long long)report->self_loops, report->self_loops ? ", kept" : "");
}

static int make_graph(mg_dataset *data, mg_parts *parts, mg_graph_report *report, int *directed)
{
    *directed = parts->desc->directed || parts->keep_directions;
    mg_graph_desc desc = {parts->nodes, parts->edges, parts->sources, parts->targets, *directed};
    int64_t *edge_of = NULL;
    int status = mg_graph_create_with_edges(&data->graph, parts->edge_columns ? &edge_of : NULL, &desc, report);
    if (!status && parts->edge_columns)
        status = order_edge_values(data, parts, edge_of);
    mg_graph_free(edge_of);
    release(parts->sources);
    release(parts->targets);
    release(parts->edge_values);
    parts->sources = parts->targets = NULL;
    parts->edge_values = NULL;
    return status;
}

static void tell_features(mg_story *story, const mg_dataset *data)
{
    if (data->feature_count)
        mg_story_add(story, "features: %lld per node\n", (long long)data->feature_count);
    else
        mg_story_add(story, "features: none, so only the structure tells nodes apart\n");
    if (data->edge_feature_count)
        mg_story_add(story, "edge features: %lld per edge\n", (long long)data->edge_feature_count);
}

/* Items without a label are of no use in a split. */
static void clean_splits(mg_story *story, mg_dataset *data, int split_follows)
{
    for (int64_t s = 0; s < data->splits; s++) {
        int64_t counts[4] = {0}, dropped = 0;
        for (int64_t i = 0; i < data->items; i++) {
            uint8_t *value = &data->split[s * data->items + i];
            if (*value != MG_DATASET_UNUSED && !mg_dataset_is_labelled(data, i)) {
                *value = MG_DATASET_UNUSED;
                dropped++;
            }
            counts[*value & 3]++;
        }
        if (s < 3 || dropped) {
            mg_story_add(story, "split %lld of %lld: %lld train, %lld validation, %lld test, %lld unused", (long long)s,
                         (long long)data->splits, (long long)counts[1], (long long)counts[2], (long long)counts[3],
                         (long long)counts[0]);
            mg_story_add(story, dropped ? "; %lld items taken out of it, having no label\n" : "\n", (long long)dropped);
        } else if (s == 3) {
            mg_story_add(story, "splits 3 to %lld likewise\n", (long long)data->splits - 1);
        }
    }
    if (!data->splits && data->task != MG_DATASET_NONE && !split_follows)
        mg_story_add(story, "split: none in the file\n");
}

#define MOVE(to, from) ((to) = (from), (from) = NULL)

static int move_parts(mg_dataset *data, mg_parts *parts)
{
    data->level = parts->level;
    data->graphs = parts->graphs;
    MOVE(data->segments, parts->segments);
    data->items = data->level == MG_DATASET_GRAPH ? data->graphs : parts->nodes;
    data->feature_count = parts->feature_count;
    MOVE(data->features, parts->features);
    data->splits = parts->splits;
    MOVE(data->split, parts->split);
    MOVE(data->node_names, parts->node_names);
    data->name = mg_dataset_name(parts->path);
    return data->name ? 0 : -ENOMEM;
}

int mg_parts_finish(mg_dataset **out, mg_parts *parts)
{
    mg_graph_report report = {0};
    int directed = 0;
    mg_dataset *data = allocate_zeroed(1, sizeof *data);
    int status = data ? 0 : -ENOMEM;
    if (!status && !parts->segments)
        status = one_segment(parts);
    if (!status)
        status = make_graph(data, parts, &report, &directed);
    if (!status)
        status = move_parts(data, parts);
    if (!status) {
        tell_graph(&parts->story, data, parts, &report, directed);
        tell_features(&parts->story, data);
        status = mg_labels_assign(data, parts);
    }
    if (!status) {
        clean_splits(&parts->story, data, parts->split_follows);
        MOVE(data->story, parts->story.text);
        status = parts->story.status;
    }
    if (!status)
        status = mg_dataset_check(data, parts->path);
    if (status)
        mg_dataset_close(data);
    else
        *out = data;
    mg_parts_release(parts);
    return status;
}
