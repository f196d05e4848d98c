/* OGB folders: raw/edge.csv, num-node-list.csv, num-edge-list.csv, node-feat.csv, edge-feat.csv, node-label.csv or
   graph-label.csv, each plain or .gz, and split/<name>/{train,valid,test}.csv. */
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "library.h"
#include "parts.h"
#include "text.h"

typedef struct ogb {
    mg_parts *parts;
    char *raw, *split;  /* folders; split: NULL when there is none */
    int64_t *edge_ends; /* [graphs] entries of edge.csv where each graph ends */
} ogb;

static int is_folder(const char *path)
{
    struct stat status;
    return !stat(path, &status) && S_ISDIR(status.st_mode);
}

/* The path is the dataset's folder, or raw inside it. */
static int find_folders(ogb *set)
{
    const char *path = set->parts->path;
    set->raw = mg_path("%s/raw", path);
    if (!set->raw)
        return -ENOMEM;
    int inside = !is_folder(set->raw);
    if (inside) {
        release(set->raw);
        set->raw = mg_path("%s", path);
    }
    set->split = mg_path(inside ? "%s/../split" : "%s/split", path);
    if (!set->raw || !set->split)
        return -ENOMEM;
    char *triplets = mg_path("%s/triplet-type-list.csv", set->raw);
    int mixed = triplets && mg_text_exists(triplets);
    release(triplets);
    return !triplets ? -ENOMEM
           : mixed   ? fail(-EINVAL, "%s: has triplet-type-list.csv: graphs with several kinds of nodes are not read",
                            set->raw)
                     : 0;
}

static char *file_path(const ogb *set, const char *name) { return mg_path("%s/%s.csv", set->raw, name); }

/* --- sizes --- */

static int read_counts(const ogb *set, const char *name, int64_t **counts, int64_t *graphs)
{
    char *path = file_path(set, name);
    if (!path)
        return -ENOMEM;
    int status = mg_text_read_integers(counts, graphs, path);
    int64_t sum = 0;
    for (int64_t g = 0; g < *graphs && !status; g++)
        if ((*counts)[g] < 0 || __builtin_add_overflow(sum, (*counts)[g], &sum))
            status =
                fail(-EINVAL, "%s:%lld: is %lld, which is no count", path, (long long)g + 1, (long long)(*counts)[g]);
    release(path);
    return status;
}

static int read_sizes(ogb *set)
{
    mg_parts *parts = set->parts;
    int64_t *counts = NULL, graphs = 0;
    int status = read_counts(set, "num-node-list", &counts, &parts->graphs);
    if (!status)
        status = read_counts(set, "num-edge-list", &set->edge_ends, &graphs);
    if (!status && graphs != parts->graphs)
        status = fail(-EINVAL, "%s: num-node-list.csv has %lld lines and num-edge-list.csv %lld", set->raw,
                      (long long)parts->graphs, (long long)graphs);
    if (!status && !(parts->segments = allocate(parts->graphs + 1, sizeof *parts->segments)))
        status = -ENOMEM;
    for (int64_t g = 0, nodes = 0, edges = 0; g <= parts->graphs && !status; g++) {
        parts->segments[g] = nodes;
        if (g < parts->graphs) {
            nodes += counts[g];
            set->edge_ends[g] = edges += set->edge_ends[g];
        }
    }
    if (!status)
        parts->nodes = parts->segments[parts->graphs];
    release(counts);
    return status;
}

/* --- edges: their ends count from 0 within each graph --- */

static int read_edge(ogb *set, mg_text *text, int64_t graph)
{
    mg_parts *parts = set->parts;
    int64_t ends[2], first = parts->segments[graph], nodes = parts->segments[graph + 1] - first;
    int status = mg_text_integer(&ends[0], text, "the first node");
    if (!status)
        status = mg_text_integer(&ends[1], text, "the second node");
    if (!status)
        status = mg_text_expect_end(text);
    for (int e = 0; e < 2 && !status; e++)
        if (ends[e] < 0 || ends[e] >= nodes)
            status = mg_text_fail(text, "names node %lld, but graph %lld has nodes 0 to %lld", (long long)ends[e],
                                  (long long)graph, (long long)nodes - 1);
    return status ? status : mg_parts_add_edge(parts, first + ends[0], first + ends[1], NULL);
}

static int read_edge_lines(ogb *set, mg_text *text)
{
    mg_parts *parts = set->parts;
    int64_t graph = 0, claimed = parts->graphs ? set->edge_ends[parts->graphs - 1] : 0;
    int more, status = 0;
    while (!status && (more = mg_text_line(text))) {
        if (more < 0)
            return more;
        if (mg_text_is_blank(text->at))
            continue;
        while (graph < parts->graphs && parts->edges >= set->edge_ends[graph])
            graph++;
        if (graph == parts->graphs)
            return mg_text_fail(text, "is more than the %lld edges that num-edge-list.csv counts", (long long)claimed);
        status = read_edge(set, text, graph);
    }
    if (!status && parts->edges < claimed)
        status = fail(-EINVAL, "%s: has %lld edges, but num-edge-list.csv counts %lld", text->path,
                      (long long)parts->edges, (long long)claimed);
    return status;
}

static int read_edges(ogb *set)
{
    mg_text text;
    char *path = file_path(set, "edge");
    int status = path ? mg_text_open(&text, path) : -ENOMEM;
    if (!status) {
        status = read_edge_lines(set, &text);
        mg_text_close(&text);
    }
    release(path);
    return status;
}

/* --- values --- */

/* 1, and the matrix with so many rows, 0 when the file is not there. */
static int read_matrix(mg_matrix *matrix, const ogb *set, const char *name, int64_t rows, int doubles)
{
    char *path = file_path(set, name);
    *matrix = (mg_matrix){0};
    if (!path)
        return -ENOMEM;
    int found = mg_text_exists(path);
    int status = !found ? 0 : doubles ? mg_text_read_doubles(matrix, path, 1) : mg_text_read_floats(matrix, path, 0);
    if (found && !status && matrix->rows != rows) {
        status = fail(-EINVAL, "%s: has %lld lines; %lld are needed, by num-node-list.csv and num-edge-list.csv", path,
                      (long long)matrix->rows, (long long)rows);
        release(matrix->doubles);
        release(matrix->floats);
    }
    release(path);
    return status ? status : found;
}

static int all_whole(const mg_matrix *matrix)
{
    for (int64_t i = 0; i < matrix->rows * matrix->columns; i++)
        if (matrix->floats[i] != floorf(matrix->floats[i]))
            return 0;
    return 1;
}

/* Whole numbers of graph-level sets are categories (atoms, bonds): one-hot. Those of node-level sets stay numbers. */
static int read_features(ogb *set, const char *name, float **values, int64_t *columns, int64_t rows, const char *what)
{
    mg_matrix matrix;
    int found = read_matrix(&matrix, set, name, rows, 0);
    if (found <= 0)
        return found;
    *values = matrix.floats;
    *columns = matrix.columns;
    if (set->parts->level == MG_DATASET_NODE || !all_whole(&matrix))
        return 0;
    return mg_parts_one_hot(set->parts, values, columns, rows, what);
}

static int has_file(const ogb *set, const char *name)
{
    char *path = file_path(set, name);
    int found = path ? mg_text_exists(path) : -ENOMEM;
    release(path);
    return found;
}

static int read_labels(ogb *set)
{
    mg_parts *parts = set->parts;
    mg_matrix matrix;
    int whole = parts->level == MG_DATASET_GRAPH;
    int found =
        read_matrix(&matrix, set, whole ? "graph-label" : "node-label", whole ? parts->graphs : parts->nodes, 1);
    if (found <= 0)
        return found;
    parts->label_values = matrix.doubles;
    parts->label_columns = matrix.columns;
    parts->labels_from = whole ? "graph-label.csv" : "node-label.csv";
    return 0;
}

/* --- split --- */

static int mark(ogb *set, const char *path, const int64_t *items, int64_t count, int64_t all, uint8_t value)
{
    for (int64_t k = 0; k < count; k++) {
        if (items[k] < 0 || items[k] >= all)
            return fail(-EINVAL, "%s:%lld: names item %lld, but items are 0 to %lld", path, (long long)k + 1,
                        (long long)items[k], (long long)all - 1);
        uint8_t *place = &set->parts->split[items[k]];
        if (*place != MG_DATASET_UNUSED && *place != value)
            return fail(-EINVAL, "%s:%lld: item %lld is in two parts of the split", path, (long long)k + 1,
                        (long long)items[k]);
        *place = value;
    }
    return 0;
}

static int read_split(ogb *set, const char *name)
{
    static const char *const files[] = {"train", "valid", "test"};
    mg_parts *parts = set->parts;
    int64_t all = parts->level == MG_DATASET_GRAPH ? parts->graphs : parts->nodes;
    parts->split = allocate_zeroed(all, 1);
    int status = parts->split ? 0 : -ENOMEM;
    for (int f = 0; f < 3 && !status; f++) {
        int64_t *items = NULL, count;
        char *path = mg_path("%s/%s/%s.csv", set->split, name, files[f]);
        status = path ? mg_text_read_integers(&items, &count, path) : -ENOMEM;
        if (!status)
            status = mark(set, path, items, count, all, (uint8_t)(f + 1));
        release(items);
        release(path);
    }
    parts->splits = 1;
    return status;
}

static int find_split(ogb *set)
{
    int64_t count;
    char *name = NULL;
    if (!is_folder(set->split))
        return 0;
    int status = mg_folder_find(&name, &count, set->split, "");
    char *train = status || !name ? NULL : mg_path("%s/%s/train.csv", set->split, name);
    if (!status && name && !train)
        status = -ENOMEM;
    if (!status && name && mg_text_exists(train)) {
        mg_story_add(&set->parts->story, count > 1 ? "split: %s, the first of %lld\n" : "split: %s\n", name,
                     (long long)count);
        status = read_split(set, name);
    } else if (!status) {
        mg_story_add(&set->parts->story, "split: %s has no train.csv in its first folder: none is read\n", set->split);
    }
    release(train);
    release(name);
    return status;
}

/* --- the whole --- */

static int choose_level(ogb *set)
{
    mg_parts *parts = set->parts;
    int graph_labels = has_file(set, "graph-label");
    if (graph_labels < 0)
        return graph_labels;
    parts->level = graph_labels || parts->graphs != 1 ? MG_DATASET_GRAPH : MG_DATASET_NODE;
    int64_t listed = parts->edges + parts->graphs;
    int features = has_file(set, "node-feat"), labels = has_file(set, "node-label");
    if (features < 0 || labels < 0)
        return -ENOMEM;
    /* where a file has a line for each node, its lines are counted instead */
    return features || labels ? 0 : mg_parts_plausible_nodes(set->raw, parts->nodes, listed);
}

static int read_all(ogb *set)
{
    mg_parts *parts = set->parts;
    int status = find_folders(set);
    if (!status)
        status = read_sizes(set);
    if (!status)
        status = read_edges(set);
    if (!status)
        status = choose_level(set);
    if (!status)
        status =
            read_features(set, "node-feat", &parts->features, &parts->feature_count, parts->nodes, "node features");
    if (!status)
        status =
            read_features(set, "edge-feat", &parts->edge_values, &parts->edge_columns, parts->edges, "edge features");
    if (!status)
        status = read_labels(set);
    return status ? status : find_split(set);
}

int mg_read_ogb(mg_parts *parts)
{
    ogb set = {.parts = parts};
    mg_story_add(&parts->story, "format: OGB folder\n");
    int status = read_all(&set);
    release(set.raw);
    release(set.split);
    release(set.edge_ends);
    return status;
}
