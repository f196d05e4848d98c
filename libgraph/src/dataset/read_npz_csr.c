/* CSR members of .npz files: adj_data, adj_indices, adj_indptr, adj_shape and attr_* (gnn-benchmark). */
#include <string.h>

#include "library.h"
#include "npz.h"

typedef struct csr {
    int64_t rows, columns, entries;
    int64_t *starts, *indices;
    float *data; /* NULL: none in the file */
} csr;

static void csr_release(csr *matrix)
{
    release(matrix->starts);
    release(matrix->indices);
    release(matrix->data);
}

static int open_part(mg_npy *array, const mg_npz *npz, const char *prefix, const char *part)
{
    char name[64];
    snprintf(name, sizeof name, "%s_%s", prefix, part);
    return mg_npz_member(array, npz, name);
}

/* A vector of integers: its array and length. Absent: an error. */
static int read_vector(const mg_npz *npz, const char *prefix, const char *part, int64_t **values, int64_t *count)
{
    mg_npy array;
    int found = open_part(&array, npz, prefix, part);
    if (found <= 0)
        return found ? found : fail(-EINVAL, "%s: there is no member %s_%s", npz->parts->path, prefix, part);
    int status = mg_npz_expect(&array, 1, -1, -1);
    *count = array.count;
    if (!status && !(*values = allocate(array.count, sizeof **values)))
        status = -ENOMEM;
    if (!status)
        status = mg_npy_read_integers(*values, &array);
    mg_npy_close(&array);
    return status;
}

static int read_data(const mg_npz *npz, const char *prefix, csr *matrix)
{
    mg_npy array;
    int found = open_part(&array, npz, prefix, "data");
    if (found <= 0)
        return found;
    int status = mg_npz_expect(&array, 1, matrix->entries, -1);
    if (!status && !(matrix->data = allocate(array.count, sizeof *matrix->data)))
        status = -ENOMEM;
    if (!status)
        status = mg_npy_read_floats(matrix->data, &array);
    mg_npy_close(&array);
    return status;
}

/* Rows and columns that the shape gives; absent, columns are -1. */
static int read_shape(const mg_npz *npz, const char *prefix, csr *matrix)
{
    mg_npy array;
    int64_t shape[2];
    int found = open_part(&array, npz, prefix, "shape");
    matrix->columns = -1;
    if (found <= 0)
        return found;
    int status = mg_npz_expect(&array, 1, 2, -1);
    if (!status)
        status = mg_npy_read_integers(shape, &array);
    if (!status && shape[0] != matrix->rows)
        status =
            mg_npy_fail(&array, "says %lld rows, but indptr has %lld", (long long)shape[0], (long long)matrix->rows);
    if (!status && shape[1] < 0)
        status = mg_npy_fail(&array, "says %lld columns", (long long)shape[1]);
    matrix->columns = shape[1];
    mg_npy_close(&array);
    return status;
}

static int check_csr(const mg_npz *npz, const char *prefix, csr *matrix)
{
    int64_t last = -1;
    if (matrix->starts[0] != 0 || matrix->starts[matrix->rows] != matrix->entries)
        return fail(-EINVAL, "%s: member %s_indptr: runs from %lld to %lld, but %s_indices has %lld entries",
                    npz->parts->path, prefix, (long long)matrix->starts[0], (long long)matrix->starts[matrix->rows],
                    prefix, (long long)matrix->entries);
    for (int64_t i = 0; i < matrix->rows; i++)
        if (matrix->starts[i + 1] < matrix->starts[i])
            return fail(-EINVAL, "%s: member %s_indptr: falls after row %lld, from %lld to %lld", npz->parts->path,
                        prefix, (long long)i, (long long)matrix->starts[i], (long long)matrix->starts[i + 1]);
    for (int64_t e = 0; e < matrix->entries; e++) {
        int64_t index = matrix->indices[e];
        if (index < 0 || index == INT64_MAX || (matrix->columns >= 0 && index >= matrix->columns))
            return fail(-EINVAL, "%s: member %s_indices: entry %lld is %lld, but columns are 0 to %lld",
                        npz->parts->path, prefix, (long long)e, (long long)index, (long long)matrix->columns - 1);
        last = index > last ? index : last;
    }
    if (matrix->columns < 0)
        matrix->columns = last + 1;
    return 0;
}

static int read_csr(const mg_npz *npz, const char *prefix, csr *matrix)
{
    int64_t count = 0;
    int status = read_vector(npz, prefix, "indptr", &matrix->starts, &count);
    if (!status && count < 1)
        status = fail(-EINVAL, "%s: member %s_indptr: is empty", npz->parts->path, prefix);
    matrix->rows = count - 1;
    if (!status)
        status = read_vector(npz, prefix, "indices", &matrix->indices, &matrix->entries);
    if (!status)
        status = read_data(npz, prefix, matrix);
    if (!status)
        status = read_shape(npz, prefix, matrix);
    return status ? status : check_csr(npz, prefix, matrix);
}

static int has_csr(const mg_npz *npz, const char *prefix)
{
    char name[64];
    snprintf(name, sizeof name, "%s_indices.npy", prefix);
    return zip_name_locate(npz->archive, name, 0) >= 0;
}

static int set_nodes(mg_parts *parts, const char *prefix, int64_t rows)
{
    if (parts->nodes >= 0 && parts->nodes != rows)
        return fail(-EINVAL, "%s: member %s_indptr: has %lld rows, but there are %lld nodes", parts->path, prefix,
                    (long long)rows, (long long)parts->nodes);
    parts->nodes = rows;
    return 0;
}

/* Weights of edges are features unless all are 1. */
static int all_ones(const csr *matrix)
{
    for (int64_t e = 0; matrix->data && e < matrix->entries; e++)
        if (matrix->data[e] != 1)
            return 0;
    return 1;
}

static int take_edges(mg_parts *parts, csr *matrix)
{
    parts->edges = matrix->entries;
    parts->targets = matrix->indices;
    matrix->indices = NULL;
    parts->sources = allocate(matrix->entries, sizeof *parts->sources);
    if (!parts->sources)
        return -ENOMEM;
    for (int64_t i = 0; i < matrix->rows; i++)
        for (int64_t e = matrix->starts[i]; e < matrix->starts[i + 1]; e++)
            parts->sources[e] = i;
    if (!all_ones(matrix)) {
        parts->edge_columns = 1;
        parts->edge_values = matrix->data;
        matrix->data = NULL;
        mg_story_add(&parts->story, "adj_data: read as one edge feature, since not all are 1\n");
    }
    return 0;
}

int mg_npz_read_csr_edges(mg_npz *npz)
{
    csr matrix = {0};
    if (!has_csr(npz, "adj"))
        return 0;
    int status = read_csr(npz, "adj", &matrix);
    if (!status && matrix.columns > matrix.rows)
        status = fail(-EINVAL, "%s: member adj_shape: %lld x %lld, but an adjacency is square", npz->parts->path,
                      (long long)matrix.rows, (long long)matrix.columns);
    if (!status)
        status = set_nodes(npz->parts, "adj", matrix.rows);
    if (!status)
        status = take_edges(npz->parts, &matrix);
    csr_release(&matrix);
    return status ? status : 1;
}

/* Dense features may take 4096 times the entries of the file (or 256 MiB), not more: memory follows the input. */
static int check_dense(const mg_parts *parts, const csr *matrix)
{
    int64_t cells;
    if (__builtin_mul_overflow(matrix->rows, matrix->columns, &cells) ||
        cells / 4096 > ((int64_t)1 << 14) + matrix->entries)
        return fail(-EINVAL,
                    "%s: members attr_*: %lld x %lld features from %lld entries are too sparse to be held densely: "
                    "reduce the columns",
                    parts->path, (long long)matrix->rows, (long long)matrix->columns, (long long)matrix->entries);
    return 0;
}

static int make_dense(mg_parts *parts, const csr *matrix)
{
    int64_t columns = matrix->columns;
    float *features = allocate_zeroed(matrix->rows * columns, sizeof *features);
    if (!features)
        return -ENOMEM;
    for (int64_t i = 0; i < matrix->rows; i++)
        for (int64_t e = matrix->starts[i]; e < matrix->starts[i + 1]; e++)
            features[i * columns + matrix->indices[e]] += matrix->data ? matrix->data[e] : 1;
    parts->features = features;
    parts->feature_count = columns;
    return 0;
}

int mg_npz_read_csr_features(mg_npz *npz)
{
    csr matrix = {0};
    if (!has_csr(npz, "attr"))
        return 0;
    int status = read_csr(npz, "attr", &matrix);
    if (!status)
        status = set_nodes(npz->parts, "attr", matrix.rows);
    if (!status)
        status = check_dense(npz->parts, &matrix);
    if (!status)
        status = make_dense(npz->parts, &matrix);
    csr_release(&matrix);
    return status ? status : 1;
}
