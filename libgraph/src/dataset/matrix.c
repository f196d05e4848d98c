/* Files of numbers, the same count in each line. */
#include <math.h>
#include <string.h>

#include "library.h"
#include "text.h"

typedef struct growing {
    mg_matrix *matrix;
    int64_t used, capacity; /* values */
    int doubles, missing;
} growing;

static int put(growing *values, double value)
{
    if (values->used == values->capacity) {
        int64_t capacity = 2 * values->capacity + 1024;
        void *old = values->doubles ? (void *)values->matrix->doubles : values->matrix->floats;
        void *larger = reallocate(old, capacity, values->doubles ? sizeof(double) : sizeof(float));
        if (!larger)
            return -ENOMEM;
        if (values->doubles)
            values->matrix->doubles = larger;
        else
            values->matrix->floats = larger;
        values->capacity = capacity;
    }
    if (values->doubles)
        values->matrix->doubles[values->used++] = value;
    else
        values->matrix->floats[values->used++] = (float)value;
    return 0;
}

static int read_row(growing *values, mg_text *text)
{
    char buffer[48], separator = mg_text_separator(text->at), *at = text->at, *field;
    int64_t columns = 0;
    for (; (field = mg_text_field(&at, separator)); columns++) {
        double value;
        if (!mg_text_is_number(&value, field))
            return mg_text_fail(text, "column %lld is '%s', not a finite number", (long long)columns + 1,
                                mg_text_quote(buffer, field));
        if (isnan(value) && !values->missing)
            return mg_text_fail(text, "column %lld has no number", (long long)columns + 1);
        if (!values->doubles && fabs(value) > 3.4e38)
            return mg_text_fail(text, "column %lld is %g, too large for fp32", (long long)columns + 1, value);
        int status = put(values, value);
        if (status)
            return status;
    }
    if (values->matrix->rows && columns != values->matrix->columns)
        return mg_text_fail(text, "has %lld columns, but the lines before it %lld", (long long)columns,
                            (long long)values->matrix->columns);
    values->matrix->columns = columns;
    values->matrix->rows++;
    return 0;
}

/* Blank lines at the end count for nothing; elsewhere one is a row of one missing number, where such may be. */
static int take_blanks(growing *values, mg_text *text, int64_t blanks)
{
    for (int64_t b = 0; b < blanks; b++) {
        if (!values->missing || (values->matrix->rows && values->matrix->columns != 1))
            return mg_text_fail(text, "follows a blank line");
        int status = put(values, NAN);
        if (status)
            return status;
        values->matrix->rows++;
        values->matrix->columns = 1;
    }
    return 0;
}

static int read_rows(growing *values, mg_text *text)
{
    int64_t blanks = 0;
    int more, status = 0;
    while (!status && (more = mg_text_line(text))) {
        if (more < 0)
            return more;
        if (mg_text_is_blank(text->at)) {
            blanks++;
            continue;
        }
        status = take_blanks(values, text, blanks);
        blanks = 0;
        if (!status)
            status = read_row(values, text);
    }
    return status;
}

static int read_matrix(mg_matrix *matrix, const char *path, int missing, int doubles)
{
    mg_text text;
    growing values = {.matrix = matrix, .doubles = doubles, .missing = missing};
    *matrix = (mg_matrix){0};
    int status = mg_text_open(&text, path);
    if (!status)
        status = read_rows(&values, &text);
    mg_text_close(&text);
    if (status) {
        release(matrix->doubles);
        release(matrix->floats);
        *matrix = (mg_matrix){0};
    }
    return status;
}

int mg_text_read_doubles(mg_matrix *matrix, const char *path, int missing)
{
    return read_matrix(matrix, path, missing, 1);
}
int mg_text_read_floats(mg_matrix *matrix, const char *path, int missing)
{
    return read_matrix(matrix, path, missing, 0);
}

int mg_text_read_integers(int64_t **values, int64_t *count, const char *path)
{
    mg_text text;
    int64_t capacity = 0;
    int more = 0, status = mg_text_open(&text, path);
    *values = NULL;
    *count = 0;
    while (!status && (more = mg_text_line(&text)) > 0) {
        if (mg_text_is_blank(text.at))
            continue;
        if (*count == capacity) {
            capacity = 2 * capacity + 1024;
            int64_t *larger = reallocate(*values, capacity, sizeof **values);
            if (!larger) {
                status = -ENOMEM;
                break;
            }
            *values = larger;
        }
        status = mg_text_integer(&(*values)[*count], &text, "the number");
        if (!status)
            status = mg_text_expect_end(&text);
        *count += !status;
    }
    mg_text_close(&text);
    status = status ? status : more < 0 ? more : 0;
    if (status) {
        release(*values);
        *values = NULL;
        *count = 0;
    }
    return status;
}
