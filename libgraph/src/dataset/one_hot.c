/* Columns of categories, whole numbers, become one column for each value. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "parts.h"

enum { VALUES_MOST = 4096 /* distinct values of a column */, COLUMNS_MOST = 256 };
static const int64_t CELLS_MOST = (int64_t)1 << 28; /* of the one-hot matrix: 1 GiB */

typedef struct category {
    int64_t count; /* distinct values; 0: the column stays as it is */
    float values[VALUES_MOST];
} category;

/* Inserts into the ascending values; a negative count: too many, or no categories. */
static void insert(category *column, float value)
{
    int64_t low = 0, high = column->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (column->values[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < column->count && column->values[low] == value)
        return;
    if (column->count == VALUES_MOST || value != floorf(value)) {
        column->count = 0;
        return;
    }
    memmove(column->values + low + 1, column->values + low, (size_t)(column->count - low) * sizeof(float));
    column->values[low] = value;
    column->count++;
}

static void find_values(category *column, const float *matrix, int64_t rows, int64_t columns, int64_t c)
{
    column->count = 0;
    for (int64_t r = 0; r < rows; r++) {
        float value = matrix[r * columns + c];
        if (column->count && r && value == matrix[(r - 1) * columns + c])
            continue;
        insert(column, value);
        if (!column->count)
            return;
    }
}

static int64_t width(const category *column) { return column->count ? column->count : 1; }

static void write_row(float *out, const float *row, const category *categories, int64_t columns)
{
    for (int64_t c = 0; c < columns; c++) {
        const category *column = &categories[c];
        if (!column->count) {
            *out++ = row[c];
            continue;
        }
        int64_t at = 0, high = column->count;
        while (at + 1 < high) {
            int64_t middle = (at + high) / 2;
            if (column->values[middle] <= row[c])
                at = middle;
            else
                high = middle;
        }
        out[at] = 1;
        out += column->count;
    }
}

static int encode(mg_parts *parts, float **matrix, int64_t *columns, int64_t rows, const category *categories,
                  const char *what)
{
    int64_t total = 0, kept = 0;
    for (int64_t c = 0; c < *columns; c++) {
        total += width(&categories[c]);
        kept += !categories[c].count;
    }
    if (rows && total > CELLS_MOST / rows) {
        mg_story_add(&parts->story,
                     "%s: %lld columns of categories kept as numbers: one-hot they would be %lld columns, over 1 GiB\n",
                     what, (long long)*columns, (long long)total);
        return 0;
    }
    float *wide = allocate_zeroed(rows * total, sizeof *wide);
    if (!wide)
        return -ENOMEM;
    for (int64_t r = 0; r < rows; r++)
        write_row(wide + r * total, *matrix + r * *columns, categories, *columns);
    mg_story_add(&parts->story, "%s: %lld columns made one-hot: %lld columns", what, (long long)*columns,
                 (long long)total);
    if (kept)
        mg_story_add(&parts->story, "; %lld of them kept as numbers, having fractions or more than %d values",
                     (long long)kept, VALUES_MOST);
    mg_story_add(&parts->story, "\n");
    release(*matrix);
    *matrix = wide;
    *columns = total;
    return 0;
}

int mg_parts_one_hot(mg_parts *parts, float **matrix, int64_t *columns, int64_t rows, const char *what)
{
    if (*columns > COLUMNS_MOST) {
        mg_story_add(&parts->story, "%s: %lld columns, too many to be categories: kept as numbers\n", what,
                     (long long)*columns);
        return 0;
    }
    category *categories = allocate(*columns, sizeof *categories);
    if (!categories)
        return -ENOMEM;
    for (int64_t c = 0; c < *columns; c++)
        find_values(&categories[c], *matrix, rows, *columns, c);
    int status = encode(parts, matrix, columns, rows, categories, what);
    release(categories);
    return status;
}
