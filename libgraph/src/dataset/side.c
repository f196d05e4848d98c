/* The CSV files that a caller names beside a graph: "id,label" and "id,value,value,...". */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "library.h"
#include "names.h"
#include "parts.h"
#include "text.h"

/* Rows as read; nodes may be found (or made) out of order. */
typedef struct table {
    int64_t rows, capacity, columns;
    int64_t *nodes;   /* [rows] */
    int64_t *lines;   /* [rows] */
    double *values;   /* [rows][columns], NaN: missing */
    mg_names words;   /* of one-column tables, each row's word, while not all are numbers */
    int64_t *word_of; /* [rows] */
    int all_numbers, labels;
} table;

static void table_release(table *rows)
{
    release(rows->nodes);
    release(rows->lines);
    release(rows->values);
    release(rows->word_of);
    mg_names_release(&rows->words);
}

static int grow(table *rows)
{
    int64_t capacity = 2 * rows->capacity + 256;
    int64_t *nodes = reallocate(rows->nodes, capacity, sizeof *nodes);
    rows->nodes = nodes ? nodes : rows->nodes;
    int64_t *lines = nodes ? reallocate(rows->lines, capacity, sizeof *lines) : NULL;
    rows->lines = lines ? lines : rows->lines;
    int64_t *word_of = lines ? reallocate(rows->word_of, capacity, sizeof *word_of) : NULL;
    rows->word_of = word_of ? word_of : rows->word_of;
    double *values = word_of ? reallocate(rows->values, capacity, (size_t)rows->columns * sizeof *values) : NULL;
    rows->values = values ? values : rows->values;
    rows->capacity = values ? capacity : rows->capacity;
    return values ? 0 : -ENOMEM;
}

static int64_t count_fields(const char *line, char separator)
{
    int64_t count = 1, quoted = 0;
    for (; *line; line++) {
        quoted ^= *line == '"';
        count += !quoted && *line == separator;
    }
    return count;
}

/* Fields after the id into the next row. */
static int read_fields(table *rows, mg_text *text, char *at, char separator)
{
    char buffer[48], *field;
    int64_t c = 0, row = rows->rows;
    for (; (field = mg_text_field(&at, separator)); c++) {
        if (c == rows->columns)
            return mg_text_fail(text, "has more than the %lld columns of the first line", (long long)rows->columns + 1);
        double *value = &rows->values[row * rows->columns + c];
        if (mg_text_is_number(value, field)) {
            if (isnan(*value) && !rows->labels)
                return mg_text_fail(text, "column %lld has no number", (long long)c + 2);
        } else if (rows->labels && rows->columns == 1) {
            rows->all_numbers = 0;
            *value = 0; /* a label, told by its word */
        } else {
            return mg_text_fail(text, "column %lld is '%s', not a finite number", (long long)c + 2,
                                mg_text_quote(buffer, field));
        }
        if (!rows->labels && fabs(*value) > 3.4e38)
            return mg_text_fail(text, "column %lld is %g, too large for fp32", (long long)c + 2, *value);
        if (rows->labels && rows->columns == 1) {
            rows->word_of[row] = mg_names_add(&rows->words, field);
            if (rows->word_of[row] < 0)
                return -ENOMEM;
        }
    }
    if (c < rows->columns)
        return mg_text_fail(text, "has %lld columns; the first line has %lld", (long long)c + 1,
                            (long long)rows->columns + 1);
    return 0;
}

static int is_header(const char *id)
{
    static const char *const words[] = {"id",     "ids",  "node",   "nodes", "node_id",
                                        "nodeid", "name", "vertex", "index", "key"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(id, words[i]))
            return 1;
    return 0;
}

typedef struct side {
    mg_parts *parts;
    mg_find_node *find;
    void *context;
} side;

static int read_line(table *rows, const side *from, mg_text *text, char separator, int first)
{
    char buffer[48], *at = text->at;
    char *id = mg_text_field(&at, separator);
    if (first && is_header(id))
        return 0;
    if (rows->rows == rows->capacity && grow(rows))
        return -ENOMEM;
    int64_t node = from->find(from->context, id);
    if (node == -1)
        return mg_text_fail(text, "'%s' is not a node of the graph", mg_text_quote(buffer, id));
    if (node < 0)
        return (int)node;
    int status = read_fields(rows, text, at, separator);
    if (status)
        return status;
    rows->nodes[rows->rows] = node;
    rows->lines[rows->rows++] = text->line;
    return 0;
}

static int read_table(table *rows, const side *from, mg_text *text)
{
    int status = 0, more;
    char separator = 0;
    while (!status && (more = mg_text_line(text))) {
        if (more < 0)
            return more;
        if (mg_text_is_blank(text->at) || *text->at == '#' || *text->at == '%')
            continue;
        int first = !separator;
        if (first) {
            separator = mg_text_separator(text->at);
            rows->columns = count_fields(text->at, separator) - 1;
            if (separator == ' ' || rows->columns < 1)
                return mg_text_fail(text, "is not 'id,value': fields stand apart by commas, tabs or semicolons");
        }
        status = read_line(rows, from, text, separator, first);
    }
    return status;
}

/* Which row tells each node; a node twice is refused. */
static int rows_of_nodes(int64_t **row_of, const table *rows, int64_t nodes, mg_text *text)
{
    *row_of = allocate(nodes, sizeof **row_of);
    if (!*row_of)
        return -ENOMEM;
    memset(*row_of, -1, (size_t)nodes * sizeof **row_of);
    for (int64_t r = 0; r < rows->rows; r++) {
        int64_t *row = &(*row_of)[rows->nodes[r]];
        if (*row >= 0) {
            text->line = rows->lines[r];
            return mg_text_fail(text, "the node of this line was told before, in line %lld",
                                (long long)rows->lines[*row]);
        }
        *row = r;
    }
    return 0;
}

static int take_labels(mg_parts *parts, const table *rows, const int64_t *row_of)
{
    int64_t columns = rows->columns;
    parts->label_columns = columns;
    if (!rows->all_numbers) {
        char **words = allocate(parts->nodes, sizeof *words);
        for (int64_t i = 0; words && i < parts->nodes; i++) {
            int told = row_of[i] >= 0 && !isnan(rows->values[row_of[i]]);
            words[i] = told ? (char *)mg_names_word(&rows->words, rows->word_of[row_of[i]]) : NULL;
        }
        parts->label_strings = words ? mg_strings_copy(words, parts->nodes) : NULL;
        release(words);
        return parts->label_strings ? 0 : -ENOMEM;
    }
    parts->label_values = allocate(parts->nodes, (size_t)columns * sizeof(double));
    if (!parts->label_values)
        return -ENOMEM;
    for (int64_t i = 0; i < parts->nodes; i++)
        for (int64_t c = 0; c < columns; c++)
            parts->label_values[i * columns + c] = row_of[i] < 0 ? NAN : rows->values[row_of[i] * columns + c];
    return 0;
}

static int take_features(mg_parts *parts, const table *rows, const int64_t *row_of)
{
    int64_t columns = rows->columns, missing = 0;
    float *values = allocate(parts->nodes, (size_t)columns * sizeof *values);
    if (!values)
        return -ENOMEM;
    for (int64_t i = 0; i < parts->nodes; i++) {
        missing += row_of[i] < 0;
        for (int64_t c = 0; c < columns; c++)
            values[i * columns + c] = row_of[i] < 0 ? 0 : (float)rows->values[row_of[i] * columns + c];
    }
    if (missing)
        mg_story_add(&parts->story, "features: %lld nodes are not in %s and have zeros\n", (long long)missing,
                     parts->desc->features);
    return mg_parts_append_columns(&parts->features, &parts->feature_count, values, columns, parts->nodes);
}

static int load(table *rows, const side *from, mg_text *text, const char *path, int labels)
{
    *rows = (table){.all_numbers = 1, .labels = labels};
    int status = mg_text_open(text, path);
    if (!status)
        status = read_table(rows, from, text);
    if (!status && !rows->rows)
        status = fail(-EINVAL, "%s: has no line 'id,value'", path);
    return status;
}

static int take(mg_parts *parts, const table *rows, mg_text *text)
{
    int64_t *row_of = NULL;
    int status = rows_of_nodes(&row_of, rows, parts->nodes, text);
    if (!status)
        status = rows->labels ? take_labels(parts, rows, row_of) : take_features(parts, rows, row_of);
    release(row_of);
    return status;
}

int mg_parts_read_side_files(mg_parts *parts, mg_find_node *find, void *context, int64_t (*count)(void *context))
{
    side from = {parts, find, context};
    table tables[2] = {{0}};
    mg_text texts[2] = {{0}};
    const char *paths[2] = {parts->desc->features, parts->desc->labels};
    int status = 0;
    for (int t = 0; t < 2 && !status; t++)
        if (paths[t])
            status = load(&tables[t], &from, &texts[t], paths[t], t);
    if (!status)
        parts->nodes = count(context);
    for (int t = 0; t < 2 && !status; t++)
        if (paths[t])
            status = take(parts, &tables[t], &texts[t]);
    for (int t = 0; t < 2; t++) {
        table_release(&tables[t]);
        mg_text_close(&texts[t]);
    }
    return status;
}
