/* .npz: node_features, node_labels, edges, *_masks (heterophilous-graphs), or adj_*, attr_*, labels (gnn-benchmark),
   and what mg_dataset_write_npz adds. Members are streamed into the arrays that they become. */
#include <string.h>

#include "library.h"
#include "npz.h"

int mg_npz_member(mg_npy *array, const mg_npz *npz, const char *member)
{
    char name[80];
    snprintf(name, sizeof name, "%s.npy", member);
    zip_int64_t place = zip_name_locate(npz->archive, name, 0);
    if (place >= 0)
        npz->used[place] = 1;
    return mg_npy_open(array, npz->archive, npz->parts->path, member);
}

int mg_npz_open(mg_npy *array, const mg_npz *npz, const char *const *names)
{
    for (; *names; names++) {
        int found = mg_npz_member(array, npz, *names);
        if (found)
            return found;
    }
    return 0;
}

int mg_npz_expect(const mg_npy *array, int dims, int64_t rows, int64_t columns)
{
    if (array->dims != dims)
        return mg_npy_fail(array, "has %d dimensions; %d are needed", array->dims, dims);
    if ((rows >= 0 && array->shape[0] != rows) || (columns >= 0 && array->shape[1] != columns))
        return mg_npy_fail(array, "has shape (%lld, %lld); (%lld, %lld) is needed (-1: any)",
                           (long long)array->shape[0], (long long)array->shape[1], (long long)rows, (long long)columns);
    return 0;
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

static int set_nodes(mg_npz *npz, const mg_npy *array, int64_t nodes)
{
    mg_parts *parts = npz->parts;
    if (parts->nodes >= 0 && parts->nodes != nodes)
        return mg_npy_fail(array, "has %lld rows, but there are %lld nodes", (long long)nodes, (long long)parts->nodes);
    parts->nodes = nodes;
    return mg_parts_plausible_nodes(parts->path, nodes, array->count);
}

/* Vectors are one column. */
static int as_matrix(const mg_npy *array)
{
    return array->dims == 1 || array->dims == 2
               ? 0
               : mg_npy_fail(array, "has %d dimensions; 1 or 2 are needed", array->dims);
}

static int read_features(mg_npz *npz)
{
    mg_npy array;
    mg_parts *parts = npz->parts;
    int found = mg_npz_open(&array, npz, NAMES("node_features", "features", "x"));
    if (found <= 0)
        return found;
    int status = as_matrix(&array);
    if (!status)
        status = set_nodes(npz, &array, array.shape[0]);
    if (!status && !(parts->features = allocate(array.count, sizeof *parts->features)))
        status = -ENOMEM;
    if (!status)
        status = mg_npy_read_floats(parts->features, &array);
    parts->feature_count = array.shape[1];
    mg_npy_close(&array);
    return status ? status : 1;
}

/* --- edges --- */

/* [edges][2], or [2][edges] as in PyG. Columns are read by way of one array of both. */
static int split_ends(mg_parts *parts, const int64_t *ends, int by_row)
{
    parts->sources = allocate(parts->edges, sizeof *parts->sources);
    parts->targets = parts->sources ? allocate(parts->edges, sizeof *parts->targets) : NULL;
    if (!parts->targets)
        return -ENOMEM;
    for (int64_t e = 0; e < parts->edges; e++) {
        parts->sources[e] = by_row ? ends[2 * e] : ends[e];
        parts->targets[e] = by_row ? ends[2 * e + 1] : ends[parts->edges + e];
    }
    return 0;
}

static int read_edges(mg_npz *npz)
{
    mg_npy array;
    mg_parts *parts = npz->parts;
    int found = mg_npz_open(&array, npz, NAMES("edges", "edge_index"));
    if (found <= 0)
        return found;
    int by_row = array.shape[1] == 2 && (array.shape[0] != 2 || strcmp(array.member, "edge_index"));
    int status = array.dims == 2 && (by_row || array.shape[0] == 2)
                     ? 0
                     : mg_npy_fail(&array, "is neither [edges, 2] nor [2, edges]");
    parts->edges = array.count / 2;
    int64_t *ends = status ? NULL : allocate(array.count, sizeof *ends);
    if (!status)
        status = ends ? mg_npy_read_integers(ends, &array) : -ENOMEM;
    if (!status)
        status = split_ends(parts, ends, by_row);
    release(ends);
    mg_npy_close(&array);
    return status ? status : 1;
}

static int check_ends(const mg_parts *parts)
{
    for (int64_t e = 0; e < parts->edges; e++)
        if (parts->sources[e] < 0 || parts->sources[e] >= parts->nodes || parts->targets[e] < 0 ||
            parts->targets[e] >= parts->nodes)
            return fail(
                -EINVAL, "%s: edge %lld joins nodes %lld and %lld, but nodes are 0 to %lld%s", parts->path,
                (long long)e, (long long)parts->sources[e], (long long)parts->targets[e], (long long)parts->nodes - 1,
                parts->targets[e] == parts->nodes || parts->sources[e] == parts->nodes ? ": are they counted from 1?"
                                                                                       : "");
    return 0;
}

static int read_edge_features(mg_npz *npz)
{
    mg_npy array;
    mg_parts *parts = npz->parts;
    int found = mg_npz_open(&array, npz, NAMES("edge_features", "edge_attr", "edge_weights"));
    if (found <= 0)
        return found;
    int status = as_matrix(&array);
    if (!status && array.shape[0] != parts->edges)
        status = mg_npy_fail(&array, "has %lld rows, but there are %lld edges", (long long)array.shape[0],
                             (long long)parts->edges);
    if (!status && parts->edge_values)
        status = mg_npy_fail(&array, "and adj_data both give features of edges: keep one");
    if (!status && !(parts->edge_values = allocate(array.count, sizeof(float))))
        status = -ENOMEM;
    if (!status)
        status = mg_npy_read_floats(parts->edge_values, &array);
    parts->edge_columns = array.shape[1];
    mg_npy_close(&array);
    return status;
}

/* --- labels, names, sizes --- */

static int read_labels(mg_npz *npz)
{
    mg_npy array;
    mg_parts *parts = npz->parts;
    int found = parts->level == MG_DATASET_GRAPH
                    ? mg_npz_open(&array, npz, NAMES("graph_labels", "graph_targets", "y"))
                    : mg_npz_open(&array, npz, NAMES("node_labels", "node_targets", "labels", "y"));
    if (found <= 0)
        return found;
    parts->labels_from = !strcmp(array.member, "y")         ? "member y"
                         : !strcmp(array.member, "labels")  ? "member labels"
                         : strstr(array.member, "targets")  ? "member *_targets"
                         : parts->level == MG_DATASET_GRAPH ? "member graph_labels"
                                                            : "member node_labels";
    int status = as_matrix(&array);
    if (!status && parts->level == MG_DATASET_NODE && parts->nodes < 0)
        status = set_nodes(npz, &array, array.shape[0]);
    npz->items = parts->level == MG_DATASET_GRAPH ? parts->graphs : parts->nodes;
    if (!status && array.shape[0] != npz->items)
        status = mg_npy_fail(&array, "has %lld rows, but there are %lld %s", (long long)array.shape[0],
                             (long long)npz->items, parts->level == MG_DATASET_GRAPH ? "graphs" : "nodes");
    int words = array.kind == 'S' || array.kind == 'U';
    if (!status && words && array.shape[1] != 1)
        status = mg_npy_fail(&array, "has %lld columns of strings", (long long)array.shape[1]);
    parts->label_columns = array.shape[1];
    if (!status && words)
        status = mg_npy_read_strings(&parts->label_strings, &array);
    if (!status && !words && !(parts->label_values = allocate(array.count, sizeof(double))))
        status = -ENOMEM;
    if (!status && !words)
        status = mg_npy_read_doubles(parts->label_values, &array);
    mg_npy_close(&array);
    return status;
}

/* An empty string is no label. */
static void drop_empty_labels(mg_parts *parts, int64_t items)
{
    for (int64_t i = 0; parts->label_strings && i < items; i++)
        if (!parts->label_strings[i][0])
            parts->label_strings[i] = NULL;
}

static int read_names(mg_npz *npz, const char *member, char ***names, int64_t *count)
{
    mg_npy array;
    int found = mg_npz_member(&array, npz, member);
    if (found <= 0)
        return found;
    int status = mg_npz_expect(&array, 1, *count, -1);
    if (!status && array.kind != 'S' && array.kind != 'U') {
        mg_story_add(&npz->parts->story, "member %s: not strings, left out\n", member);
        mg_npy_close(&array);
        return 0;
    }
    if (!status)
        status = mg_npy_read_strings(names, &array);
    *count = array.count;
    mg_npy_close(&array);
    return status;
}

static int read_scalar(mg_npz *npz, const char *member, int64_t *value)
{
    mg_npy array;
    int found = mg_npz_member(&array, npz, member);
    if (found <= 0)
        return found;
    int status = array.count == 1 ? mg_npy_read_integers(value, &array)
                                  : mg_npy_fail(&array, "has %lld elements; 1 is needed", (long long)array.count);
    mg_npy_close(&array);
    return status ? status : 1;
}

/* The place of the word that a member holds among words[count], or -1 when it is not there. */
static int read_word(mg_npz *npz, const char *member, const char *const *words, int count, int *place)
{
    char **word = NULL;
    mg_npy array;
    *place = -1;
    int found = mg_npz_member(&array, npz, member);
    if (found <= 0)
        return found;
    int status = array.count == 1 ? mg_npy_read_strings(&word, &array) : mg_npy_fail(&array, "is not one word");
    for (int w = 0; !status && w < count; w++)
        if (!strcmp(word[0], words[w]))
            *place = w;
    if (!status && *place < 0)
        status = mg_npy_fail(&array, "is '%.40s', not one of %s, %s, ...", word[0], words[0], words[1]);
    mg_npy_close(&array);
    release(word);
    return status;
}

static int read_task(mg_npz *npz)
{
    static const char *const words[] = {"none", "classification", "regression", "multilabel"};
    int place, status = read_word(npz, "task", words, 4, &place);
    if (place > 0)
        npz->parts->task = (mg_dataset_task)place;
    return status;
}

static int read_segments(mg_npz *npz)
{
    mg_npy array;
    mg_parts *parts = npz->parts;
    int found = mg_npz_member(&array, npz, "graph_segments");
    if (found <= 0)
        return found;
    int status = mg_npz_expect(&array, 1, -1, -1);
    if (!status && array.count < 1)
        status = mg_npy_fail(&array, "is empty: it runs from 0 to the number of nodes");
    if (!status && !(parts->segments = allocate(array.count, sizeof(int64_t))))
        status = -ENOMEM;
    if (!status)
        status = mg_npy_read_integers(parts->segments, &array);
    parts->graphs = array.count - 1;
    int64_t end = status ? 0 : parts->segments[array.count - 1];
    if (!status && parts->nodes >= 0 && end != parts->nodes)
        status = mg_npy_fail(&array, "ends at %lld, but there are %lld nodes", (long long)end, (long long)parts->nodes);
    for (int64_t g = 0; g < parts->graphs && !status; g++)
        if (parts->segments[0] != 0 || parts->segments[g + 1] < parts->segments[g])
            status = mg_npy_fail(&array, "does not rise from 0: graph %lld is %lld to %lld", (long long)g,
                                 (long long)parts->segments[g], (long long)parts->segments[g + 1]);
    mg_npy_close(&array);
    if (!status && parts->nodes < 0)
        parts->nodes = end;
    return status;
}

/* Targets of graphs where the file says so or has any, or where it has segments and no labels of nodes. */
static int choose_level(mg_npz *npz)
{
    static const char *const words[] = {"node", "graph"};
    mg_npy array;
    mg_parts *parts = npz->parts;
    int place, status = read_word(npz, "level", words, 2, &place);
    if (status || !parts->segments)
        return status;
    if (place >= 0) {
        parts->level = (mg_dataset_level)place;
        return 0;
    }
    int found = mg_npz_open(&array, npz, NAMES("graph_labels", "graph_targets"));
    if (found > 0)
        mg_npy_close(&array);
    if (found < 0)
        return found;
    if (!found) {
        found = mg_npz_open(&array, npz, NAMES("node_labels", "node_targets", "labels"));
        if (found > 0)
            mg_npy_close(&array);
        if (found)
            return found < 0 ? found : 0;
    }
    parts->level = MG_DATASET_GRAPH;
    return 0;
}

/* --- the whole --- */

static int count_nodes_by_edges(mg_parts *parts)
{
    int64_t last = -1;
    for (int64_t e = 0; e < parts->edges; e++) {
        last = parts->sources[e] > last ? parts->sources[e] : last;
        last = parts->targets[e] > last ? parts->targets[e] : last;
    }
    if (last == INT64_MAX)
        return fail(-EINVAL, "%s: member edges: node %lld is too large", parts->path, (long long)last);
    parts->nodes = last + 1;
    mg_story_add(&parts->story, "nodes: counted by the largest one that has an edge\n");
    return mg_parts_plausible_nodes(parts->path, parts->nodes, parts->edges);
}

static int read_structure(mg_npz *npz)
{
    mg_parts *parts = npz->parts;
    int64_t value;
    int found = read_scalar(npz, "num_nodes", &value);
    if (found < 0)
        return found;
    if (found && value < 0)
        return fail(-EINVAL, "%s: member num_nodes: is %lld", parts->path, (long long)value);
    if (found)
        parts->nodes = value;
    found = read_features(npz);
    if (!found)
        found = mg_npz_read_csr_features(npz);
    if (found < 0)
        return found;
    found = read_edges(npz);
    if (!found)
        found = mg_npz_read_csr_edges(npz);
    if (found <= 0)
        return found ? found
                     : fail(-EINVAL, "%s: no member edges, edge_index or adj_indices: not a graph", parts->path);
    found = read_scalar(npz, "directed", &value);
    parts->keep_directions = found > 0 && value != 0;
    return found < 0 ? found : read_edge_features(npz);
}

static int read_targets(mg_npz *npz)
{
    mg_parts *parts = npz->parts;
    int status = read_segments(npz);
    if (!status)
        status = choose_level(npz);
    if (!status)
        status = read_task(npz);
    if (!status)
        status = read_labels(npz);
    if (!status && parts->nodes < 0)
        status = count_nodes_by_edges(parts);
    if (!status)
        status = mg_parts_plausible_nodes(parts->path, parts->nodes,
                                          parts->edges + parts->nodes * (parts->features || parts->label_columns));
    if (status)
        return status;
    npz->items = parts->level == MG_DATASET_GRAPH ? parts->graphs : parts->nodes;
    drop_empty_labels(parts, npz->items);
    parts->classes = -1;
    status = parts->label_values && parts->label_columns == 1
                 ? read_names(npz, "class_names", &parts->class_names, &parts->classes)
                 : 0;
    int64_t nodes = parts->nodes;
    if (!status)
        status = read_names(npz, "node_names", &parts->node_names, &nodes);
    if (!status)
        status = check_ends(parts);
    return status ? status : mg_npz_read_split(npz);
}

/* What nobody asked for may be a misspelt name. */
static void tell_unused(const mg_npz *npz)
{
    enum { MOST = 8 };
    int64_t count = zip_get_num_entries(npz->archive, 0), unused = 0;
    for (int64_t m = 0; m < count; m++) {
        const char *name = zip_get_name(npz->archive, (zip_uint64_t)m, 0);
        if (npz->used[m] || !name || unused++ >= MOST)
            continue;
        char shown[64];
        snprintf(shown, sizeof shown, "%s", name);
        size_t length = strlen(shown);
        if (length > 4 && !strcmp(shown + length - 4, ".npy"))
            shown[length - 4] = 0;
        for (char *c = shown; *c; c++)
            if ((unsigned char)*c < ' ')
                *c = '?';
        mg_story_add(&npz->parts->story, "%s%s", unused == 1 ? "members not used: " : ", ", shown);
    }
    if (unused > MOST)
        mg_story_add(&npz->parts->story, " and %lld more", (long long)(unused - MOST));
    if (unused)
        mg_story_add(&npz->parts->story, "\n");
}

int mg_read_npz(mg_parts *parts)
{
    int code = 0;
    mg_npz npz = {.parts = parts};
    npz.archive = zip_open(parts->path, ZIP_RDONLY, &code);
    if (!npz.archive) {
        zip_error_t error;
        zip_error_init_with_code(&error, code);
        int status = fail(zip_error_code_system(&error) > 0 ? -zip_error_code_system(&error) : -EINVAL,
                          "%s: not a readable .npz archive: %s; is it whole, and written by numpy.savez?", parts->path,
                          zip_error_strerror(&error));
        zip_error_fini(&error);
        return status;
    }
    mg_story_add(&parts->story, "format: npz\n");
    npz.used = allocate_zeroed(zip_get_num_entries(npz.archive, 0) + 1, 1);
    int status = npz.used ? read_structure(&npz) : -ENOMEM;
    if (!status)
        status = read_targets(&npz);
    if (!status)
        tell_unused(&npz);
    release(npz.used);
    zip_discard(npz.archive);
    return status;
}
