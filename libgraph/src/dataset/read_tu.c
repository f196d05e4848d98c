/* TU folders: DS_A.txt (edges, 1-based), DS_graph_indicator.txt (the graph of each node), and, where they are there,
   DS_graph_labels.txt, DS_graph_attributes.txt, DS_node_labels.txt, DS_node_attributes.txt, DS_edge_labels.txt and
   DS_edge_attributes.txt. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "library.h"
#include "parts.h"
#include "text.h"

typedef struct tu {
    mg_parts *parts;
    char *folder, *prefix;
    int64_t *graph_of; /* [nodes] from 0 */
} tu;

static char *file_path(const tu *set, const char *part)
{
    return mg_path("%s/%s_%s.txt", set->folder, set->prefix, part);
}

/* The folder, or raw/ inside it; the prefix is what stands before _A.txt. */
static int find_files(tu *set)
{
    const char *const forms[] = {"%s", "%s/raw"}, *const endings[] = {"_A.txt", "_A.txt.gz"};
    struct stat status;
    for (int f = 0; f < 4 && !set->prefix; f++) {
        int64_t count;
        release(set->folder);
        set->folder = mg_path(forms[f / 2], set->parts->path);
        if (!set->folder)
            return -ENOMEM;
        if (stat(set->folder, &status))
            continue;
        int failed = mg_folder_find(&set->prefix, &count, set->folder, endings[f % 2]);
        if (failed)
            return failed;
        if (count > 1)
            return fail(-EINVAL, "%s: holds %lld files *%s; a TU folder holds one dataset", set->folder,
                        (long long)count, endings[f % 2]);
        if (set->prefix)
            set->prefix[strlen(set->prefix) - strlen(endings[f % 2])] = 0;
    }
    return set->prefix ? 0 : fail(-EINVAL, "%s: has no file *_A.txt", set->parts->path);
}

/* Numbers of one optional file: 1 and the matrix, 0 when it is not there. */
static int read_optional(mg_matrix *matrix, const tu *set, const char *part, int64_t rows, int doubles,
                         const char *things)
{
    char *path = file_path(set, part);
    *matrix = (mg_matrix){0};
    if (!path)
        return -ENOMEM;
    int found = mg_text_exists(path);
    int status = !found ? 0 : doubles ? mg_text_read_doubles(matrix, path, 1) : mg_text_read_floats(matrix, path, 0);
    if (found && !status && rows >= 0 && matrix->rows != rows) {
        status = fail(-EINVAL, "%s: has %lld lines, but there are %lld %s", path, (long long)matrix->rows,
                      (long long)rows, things);
        release(matrix->doubles);
        release(matrix->floats);
    }
    release(path);
    return status ? status : found;
}

/* --- graphs --- */

static int take_labels(tu *set, mg_matrix *labels, const char *what)
{
    mg_parts *parts = set->parts;
    parts->label_values = labels->doubles;
    parts->label_columns = labels->columns;
    parts->labels_from = what;
    parts->minus_one_is_class = 1;
    parts->graphs = labels->rows;
    return 0;
}

/* Labels are taken before attributes, unless regression was asked for. */
static int read_graph_labels(tu *set)
{
    mg_matrix labels, attributes;
    int has_labels = read_optional(&labels, set, "graph_labels", -1, 1, "graphs");
    if (has_labels < 0)
        return has_labels;
    int has_attributes =
        read_optional(&attributes, set, "graph_attributes", has_labels ? labels.rows : -1, 1, "graphs");
    if (has_attributes < 0) {
        release(labels.doubles);
        return has_attributes;
    }
    set->parts->graphs = -1;
    int by_attributes = has_attributes && (!has_labels || set->parts->desc->task == MG_DATASET_REGRESSION);
    if (has_labels && has_attributes) {
        mg_story_add(&set->parts->story, "targets: %s\n",
                     by_attributes ? "graph_attributes; graph_labels left out"
                                   : "graph_labels; graph_attributes left out (task regression takes them)");
        release(by_attributes ? labels.doubles : attributes.doubles);
    }
    if (has_attributes && by_attributes) {
        set->parts->task = set->parts->task ? set->parts->task : MG_DATASET_REGRESSION;
        return take_labels(set, &attributes, "graph_attributes");
    }
    return has_labels ? take_labels(set, &labels, "graph_labels") : 0;
}

static int indicator_fail(const char *path, int64_t node, const char *what, int64_t graph, int64_t before)
{
    return fail(-EINVAL, "%s:%lld: node %lld is in graph %lld after graph %lld: %s", path, (long long)node + 1,
                (long long)node + 1, (long long)graph, (long long)before, what);
}

/* Nodes of a graph stand together, graphs ascend from 1; graphs without nodes only where labels say that there are
 * such. */
static int check_indicator(const tu *set, const int64_t *indicator, int64_t nodes, const char *path)
{
    int64_t graphs = set->parts->graphs;
    for (int64_t i = 0, before = 0; i < nodes; before = indicator[i++]) {
        if (indicator[i] < 1 || (graphs >= 0 && indicator[i] > graphs))
            return indicator_fail(path, i, "graphs are numbered from 1 to the lines of graph_labels", indicator[i],
                                  before);
        if (indicator[i] < before)
            return indicator_fail(path, i, "nodes of a graph must stand together, graphs ascending", indicator[i],
                                  before);
        if (graphs < 0 && indicator[i] > before + 1)
            return indicator_fail(path, i, "the graphs between have no nodes, and no graph_labels", indicator[i],
                                  before);
    }
    return 0;
}

static int read_indicator(tu *set)
{
    mg_parts *parts = set->parts;
    char *path = file_path(set, "graph_indicator");
    if (!path)
        return -ENOMEM;
    int status = mg_text_read_integers(&set->graph_of, &parts->nodes, path);
    if (!status)
        status = check_indicator(set, set->graph_of, parts->nodes, path);
    release(path);
    if (status)
        return status;
    if (parts->graphs < 0)
        parts->graphs = parts->nodes ? set->graph_of[parts->nodes - 1] : 0;
    parts->segments = allocate_zeroed(parts->graphs + 1, sizeof *parts->segments);
    if (!parts->segments)
        return -ENOMEM;
    for (int64_t i = 0; i < parts->nodes; i++)
        parts->segments[set->graph_of[i]--]++; /* from here on graphs count from 0 */
    for (int64_t g = 0; g < parts->graphs; g++)
        parts->segments[g + 1] += parts->segments[g];
    return 0;
}

/* --- edges --- */

static int read_edge(tu *set, mg_text *text)
{
    mg_parts *parts = set->parts;
    int64_t ends[2];
    int status = mg_text_integer(&ends[0], text, "the first node");
    if (!status)
        status = mg_text_integer(&ends[1], text, "the second node");
    if (!status)
        status = mg_text_expect_end(text);
    for (int e = 0; e < 2 && !status; e++)
        if (ends[e] < 1 || ends[e] > parts->nodes)
            status = mg_text_fail(text, "names node %lld, but graph_indicator has nodes 1 to %lld", (long long)ends[e],
                                  (long long)parts->nodes);
    if (!status && set->graph_of[ends[0] - 1] != set->graph_of[ends[1] - 1])
        status = mg_text_fail(text, "joins node %lld of graph %lld and node %lld of graph %lld", (long long)ends[0],
                              (long long)set->graph_of[ends[0] - 1] + 1, (long long)ends[1],
                              (long long)set->graph_of[ends[1] - 1] + 1);
    return status ? status : mg_parts_add_edge(parts, ends[0] - 1, ends[1] - 1, NULL);
}

static int read_edges(tu *set)
{
    mg_text text;
    char *path = file_path(set, "A");
    if (!path)
        return -ENOMEM;
    int more = 0, status = mg_text_open(&text, path);
    while (!status && (more = mg_text_line(&text)) > 0)
        if (!mg_text_is_blank(text.at))
            status = read_edge(set, &text);
    mg_text_close(&text);
    release(path);
    return status ? status : more;
}

/* --- labels (categories) and attributes of nodes or edges, side by side --- */

static int read_values(tu *set, const char *thing, float **values, int64_t *columns, int64_t rows)
{
    char part[32], what[32];
    mg_matrix matrix;
    snprintf(part, sizeof part, "%s_labels", thing);
    snprintf(what, sizeof what, "%s labels", thing);
    int found = read_optional(&matrix, set, part, rows, 0, thing[0] == 'n' ? "nodes" : "edges");
    if (found < 0)
        return found;
    if (found) {
        *values = matrix.floats;
        *columns = matrix.columns;
        int status = mg_parts_one_hot(set->parts, values, columns, rows, what);
        if (status)
            return status;
    }
    snprintf(part, sizeof part, "%s_attributes", thing);
    found = read_optional(&matrix, set, part, rows, 0, thing[0] == 'n' ? "nodes" : "edges");
    if (found > 0 && rows > 0)
        return mg_parts_append_columns(values, columns, matrix.floats, matrix.columns, rows);
    return found < 0 ? found : 0;
}

static int read_all(tu *set)
{
    mg_parts *parts = set->parts;
    int status = find_files(set);
    if (!status)
        status = read_graph_labels(set);
    if (!status)
        status = read_indicator(set);
    if (!status)
        status = read_edges(set);
    if (!status)
        status = read_values(set, "node", &parts->features, &parts->feature_count, parts->nodes);
    return status ? status : read_values(set, "edge", &parts->edge_values, &parts->edge_columns, parts->edges);
}

int mg_read_tu(mg_parts *parts)
{
    tu set = {.parts = parts};
    parts->level = MG_DATASET_GRAPH;
    mg_story_add(&parts->story, "format: TU folder\n");
    int status = read_all(&set);
    release(set.folder);
    release(set.prefix);
    release(set.graph_of);
    return status;
}
