/* Writes .npz. Each member is a source that makes its bytes as libzip asks for them, so that nothing is held twice. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>

#include "aside.h"
#include "library.h"
#include "parts.h"

/* Bytes [offset, offset + count) of a member's array. */
typedef struct source source;
struct source {
    void (*fill)(const source *from, char *bytes, int64_t offset, int64_t count);
    char header[192];
    int64_t header_bytes, bytes, at; /* bytes: of the array; at: in header and array */
    const mg_dataset *data;
    const void *values;
    char *const *strings;
    int64_t width; /* of a string */
    uint8_t split; /* of a mask */
    zip_error_t error;
};

static char order_of(void)
{
    const int one = 1;
    return *(const char *)&one ? '<' : '>';
}

static void fill_plain(const source *from, char *bytes, int64_t offset, int64_t count)
{
    memcpy(bytes, (const char *)from->values + offset, (size_t)count);
}

static void fill_mask(const source *from, char *bytes, int64_t offset, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        bytes[i] = from->data->split[offset + i] == from->split;
}

/* Characters of `unit` bytes, whose byte `low` is the one of an ASCII or UTF-8 string; word after word. */
static void fill_strings(const source *from, char *bytes, int64_t offset, int64_t count, int64_t unit, int64_t low)
{
    int64_t width = from->width * unit;
    memset(bytes, 0, (size_t)count);
    for (int64_t s = offset / width; s * width < offset + count; s++) {
        const char *word = from->strings[s];
        for (int64_t c = 0; word[c]; c++) {
            int64_t place = s * width + c * unit + low - offset;
            if (place >= 0 && place < count)
                bytes[place] = word[c];
        }
    }
}

static void fill_bytes_strings(const source *from, char *bytes, int64_t offset, int64_t count)
{
    fill_strings(from, bytes, offset, count, 1, 0);
}

/* ASCII as UCS-4 in our byte order. */
static void fill_wide_strings(const source *from, char *bytes, int64_t offset, int64_t count)
{
    fill_strings(from, bytes, offset, count, 4, order_of() == '<' ? 0 : 3);
}

static int64_t source_read(source *from, char *bytes, int64_t count)
{
    int64_t all = from->header_bytes + from->bytes, part = 0;
    if (count > all - from->at)
        count = all - from->at;
    if (from->at < from->header_bytes) {
        part = from->header_bytes - from->at < count ? from->header_bytes - from->at : count;
        memcpy(bytes, from->header + from->at, (size_t)part);
    }
    if (count > part)
        from->fill(from, bytes + part, from->at + part - from->header_bytes, count - part);
    from->at += count;
    return count;
}

static zip_int64_t serve(void *context, void *bytes, zip_uint64_t count, zip_source_cmd_t command)
{
    source *from = context;
    switch (command) {
    case ZIP_SOURCE_OPEN:
        from->at = 0;
        return 0;
    case ZIP_SOURCE_READ:
        return source_read(from, bytes, count > INT64_MAX ? INT64_MAX : (int64_t)count);
    case ZIP_SOURCE_CLOSE:
        return 0;
    case ZIP_SOURCE_STAT: {
        zip_stat_t *stat = bytes;
        zip_stat_init(stat);
        stat->size = (zip_uint64_t)(from->header_bytes + from->bytes);
        stat->valid = ZIP_STAT_SIZE;
        return sizeof *stat;
    }
    case ZIP_SOURCE_ERROR:
        return zip_error_to_data(&from->error, bytes, count);
    case ZIP_SOURCE_FREE:
        release(from);
        return 0;
    case ZIP_SOURCE_SUPPORTS:
        return ZIP_SOURCE_SUPPORTS_READABLE;
    default:
        zip_error_set(&from->error, ZIP_ER_OPNOTSUPP, 0);
        return -1;
    }
}

/* --- members --- */

typedef struct archive {
    zip_t *zip;
    const char *path;
    int status; /* the first error; later members are then skipped */
    const mg_dataset *data;
    int64_t *ends; /* [edges][2] */
    int64_t edges;
    float *edge_values;
    int directed;
} archive;

static void write_header(source *from, const char *type, int dims, int64_t rows, int64_t columns)
{
    char shape[64];
    if (dims == 0)
        strcpy(shape, "()");
    else if (dims == 1)
        snprintf(shape, sizeof shape, "(%lld,)", (long long)rows);
    else
        snprintf(shape, sizeof shape, "(%lld, %lld)", (long long)rows, (long long)columns);
    int length = snprintf(from->header + 10, sizeof from->header - 10,
                          "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", type, shape);
    int total = (10 + length + 1 + 63) / 64 * 64; /* the array starts at a multiple of 64 */
    memset(from->header + 10 + length, ' ', (size_t)(total - 10 - length));
    from->header[total - 1] = '\n';
    memcpy(from->header, "\x93NUMPY\x01\x00", 8);
    from->header[8] = (char)((total - 10) & 255);
    from->header[9] = (char)((total - 10) >> 8);
    from->header_bytes = total;
}

static void add(archive *to, const char *name, source *from)
{
    zip_error_init(&from->error);
    zip_source_t *made = zip_source_function(to->zip, serve, from);
    if (!made) {
        release(from);
        to->status = fail(-ENOMEM, "%s: %s", to->path, zip_strerror(to->zip));
        return;
    }
    zip_int64_t index = zip_file_add(to->zip, name, made, ZIP_FL_OVERWRITE);
    if (index < 0)
        zip_source_free(made);
    /* level 1: 6 and 9 take several times longer for a tenth less */
    if (index < 0 || zip_set_file_compression(to->zip, (zip_uint64_t)index, ZIP_CM_DEFLATE, 1))
        to->status = fail(-EIO, "%s: member %s: %s", to->path, name, zip_strerror(to->zip));
}

static source *new_source(archive *to)
{
    source *from = to->status ? NULL : allocate_zeroed(1, sizeof *from);
    if (!from && !to->status)
        to->status = -ENOMEM;
    if (from)
        from->data = to->data;
    return from;
}

/* type: 'f4' and the like, of numbers in our byte order. dims 0 to 2. */
static void add_numbers(archive *to, const char *name, const char *type, const void *values, int dims, int64_t rows,
                        int64_t columns)
{
    char full[8];
    source *from = new_source(to);
    if (!from)
        return;
    snprintf(full, sizeof full, "%c%s", type[1] == '1' ? '|' : order_of(), type);
    write_header(from, full, dims, rows, columns);
    from->fill = fill_plain;
    from->values = values;
    from->bytes = rows * columns * (type[1] - '0');
    add(to, name, from);
}

static void add_mask(archive *to, const char *name, uint8_t split)
{
    source *from = new_source(to);
    if (!from)
        return;
    write_header(from, "|b1", 2, to->data->splits, to->data->items);
    from->fill = fill_mask;
    from->split = split;
    from->bytes = to->data->splits * to->data->items;
    add(to, name, from);
}

/* numpy's str where all is ASCII, else bytes of UTF-8. */
static void add_strings(archive *to, const char *name, char *const *strings, int dims, int64_t count)
{
    char type[32];
    int ascii = 1;
    source *from = new_source(to);
    if (!from)
        return;
    from->width = 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t length = (int64_t)strlen(strings[i]);
        from->width = length > from->width ? length : from->width;
        for (const char *at = strings[i]; *at && ascii; at++)
            ascii = (unsigned char)*at < 128;
    }
    snprintf(type, sizeof type, "%c%c%lld", ascii ? order_of() : '|', ascii ? 'U' : 'S', (long long)from->width);
    write_header(from, type, dims, count, 1);
    from->fill = ascii ? fill_wide_strings : fill_bytes_strings;
    from->strings = strings;
    from->bytes = count * from->width * (ascii ? 4 : 1);
    add(to, name, from);
}

/* --- edges: each once where the graph is symmetric, all entries and a note where it is not --- */

static int64_t find_entry(const mg_graph *graph, int64_t row, int32_t column)
{
    int64_t low = graph->starts[row], high = graph->starts[row + 1];
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (graph->columns[middle] < column)
            low = middle + 1;
        else
            high = middle;
    }
    return low < graph->starts[row + 1] && graph->columns[low] == column ? low : -1;
}

static int is_symmetric(const mg_dataset *data)
{
    const mg_graph *graph = data->graph;
    size_t bytes = (size_t)data->edge_feature_count * sizeof(float);
    for (int64_t i = 0; i < graph->nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++) {
            int64_t other = find_entry(graph, graph->columns[e], (int32_t)i);
            if (other < 0 || (bytes && memcmp(data->edge_features + e * data->edge_feature_count,
                                              data->edge_features + other * data->edge_feature_count, bytes)))
                return 0;
        }
    return 1;
}

static int gather_edges(archive *to)
{
    const mg_graph *graph = to->data->graph;
    int64_t columns = to->data->edge_feature_count, count = 0;
    to->directed = !is_symmetric(to->data);
    for (int64_t i = 0; i < graph->nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            to->edges += to->directed || graph->columns[e] >= i;
    to->ends = allocate(to->edges, 2 * sizeof *to->ends);
    to->edge_values = to->ends && columns ? allocate(to->edges, (size_t)columns * sizeof(float)) : NULL;
    if (!to->ends || (columns && !to->edge_values))
        return -ENOMEM;
    for (int64_t i = 0; i < graph->nodes; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++) {
            if (!to->directed && graph->columns[e] < i)
                continue;
            to->ends[2 * count] = i;
            to->ends[2 * count + 1] = graph->columns[e];
            if (columns)
                memcpy(to->edge_values + count * columns, to->data->edge_features + e * columns,
                       (size_t)columns * sizeof(float));
            count++;
        }
    return 0;
}

static void add_structure(archive *to)
{
    static const char yes = 1;
    const mg_dataset *data = to->data;
    add_numbers(to, "num_nodes.npy", "i8", &data->graph->nodes, 0, 1, 1);
    if (data->feature_count) /* also where no node has any */
        add_numbers(to, "node_features.npy", "f4", data->features, 2, data->graph->nodes, data->feature_count);
    add_numbers(to, "edges.npy", "i8", to->ends, 2, to->edges, 2);
    if (to->edge_values)
        add_numbers(to, "edge_features.npy", "f4", to->edge_values, 2, to->edges, data->edge_feature_count);
    if (to->directed)
        add_numbers(to, "directed.npy", "b1", &yes, 0, 1, 1);
    if (data->level == MG_DATASET_GRAPH || data->graphs != 1)
        add_numbers(to, "graph_segments.npy", "i8", data->segments, 1, data->graphs + 1, 1);
    if (data->node_names)
        add_strings(to, "node_names.npy", data->node_names, 1, data->graph->nodes);
}

static void add_targets(archive *to)
{
    static char *const tasks[] = {"none", "classification", "regression", "multilabel"};
    static char *const levels[] = {"node", "graph"};
    const mg_dataset *data = to->data;
    int whole = data->level == MG_DATASET_GRAPH;
    add_strings(to, "task.npy", &tasks[data->task], 0, 1);
    add_strings(to, "level.npy", &levels[data->level], 0, 1);
    if (data->labels) {
        add_numbers(to, whole ? "graph_labels.npy" : "node_labels.npy", "i4", data->labels, 1, data->items, 1);
        add_strings(to, "class_names.npy", data->class_names, 1, data->classes);
    }
    if (data->targets)
        add_numbers(to, whole ? "graph_targets.npy" : "node_targets.npy", "f4", data->targets, 2, data->items,
                    data->target_count);
    if (data->splits) {
        add_mask(to, "train_masks.npy", MG_DATASET_TRAIN);
        add_mask(to, "val_masks.npy", MG_DATASET_VALIDATION);
        add_mask(to, "test_masks.npy", MG_DATASET_TEST);
    }
}

static int zip_failed(archive *to, zip_error_t *error)
{
    int code = zip_error_code_system(error);
    return fail(zip_error_system_type(error) == ZIP_ET_SYS && code > 0 ? -code : -EIO, "%s: cannot be written: %s",
                to->path, zip_error_strerror(error));
}

static int write_archive(archive *to, const char *aside)
{
    int code = 0;
    to->zip = zip_open(aside, ZIP_CREATE | ZIP_TRUNCATE, &code);
    if (!to->zip) {
        zip_error_t error;
        zip_error_init_with_code(&error, code);
        int status = zip_failed(to, &error);
        zip_error_fini(&error);
        return status;
    }
    add_structure(to);
    add_targets(to);
    if (!to->status && zip_close(to->zip) == 0)
        return 0;
    if (!to->status)
        to->status = zip_failed(to, zip_get_error(to->zip));
    zip_discard(to->zip);
    return to->status;
}

int mg_dataset_write_npz(const mg_dataset *data, const char *path)
{
    archive to = {.path = path, .data = data};
    int status = 0;
    char *aside = mg_aside_begin(&status, path);
    if (!status)
        status = gather_edges(&to);
    if (!status)
        status = write_archive(&to, aside);
    release(to.ends);
    release(to.edge_values);
    return mg_aside_end(aside, path, status);
}

int mg_dataset_write_npy(const char *path, const float *values, int64_t rows, int64_t columns)
{
    source header = {0};
    char type[4] = {order_of(), 'f', '4', 0};
    int64_t count;
    int status = 0;
    if (rows < 0 || columns < 0 || __builtin_mul_overflow(rows, columns, &count))
        return fail(-EINVAL, "%s: %lld x %lld is no size", path, (long long)rows, (long long)columns);
    char *aside = mg_aside_begin(&status, path);
    FILE *file = status ? NULL : fopen(aside, "wb");
    write_header(&header, type, 2, rows, columns);
    errno = 0;
    if (!status &&
        (!file || fwrite(header.header, 1, (size_t)header.header_bytes, file) != (size_t)header.header_bytes ||
         (count && fwrite(values, sizeof(float), (size_t)count, file) != (size_t)count)))
        status = -(errno ? errno : EIO);
    if (file && fclose(file) && !status)
        status = -(errno ? errno : EIO);
    if (status && aside)
        fail(status, "%s: cannot be written: %s", path, strerror(-status));
    return mg_aside_end(aside, path, status);
}
