/* Matrix Market: "%%MatrixMarket matrix coordinate FIELD SYMMETRY", comments, "rows columns entries", entries. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "library.h"
#include "parts.h"
#include "text.h"

typedef struct market {
    mg_parts *parts;
    int64_t nodes, entries, read;
    int has_values;
    int symmetry; /* of the mirrored entry: 0 none, 1 the same value, -1 the negative */
} market;

static int choose(market *file, const char *field, const char *symmetry, mg_text *text)
{
    char buffer[48];
    file->has_values = !strcasecmp(field, "real") || !strcasecmp(field, "integer") || !strcasecmp(field, "double");
    if (!file->has_values && strcasecmp(field, "pattern"))
        return mg_text_fail(text, "the field is '%s'; read are pattern, real and integer",
                            mg_text_quote(buffer, field));
    file->symmetry = !strcasecmp(symmetry, "symmetric") ? 1 : !strcasecmp(symmetry, "skew-symmetric") ? -1 : 0;
    if (!file->symmetry && strcasecmp(symmetry, "general"))
        return mg_text_fail(text, "the symmetry is '%s'; read are general, symmetric and skew-symmetric",
                            mg_text_quote(buffer, symmetry));
    file->parts->edge_columns = file->has_values;
    return 0;
}

static int parse_banner(market *file, mg_text *text)
{
    char banner[32], object[32], layout[32], field[32], symmetry[32], buffer[48];
    if (sscanf(text->at, "%31s %31s %31s %31s %31s", banner, object, layout, field, symmetry) != 5 ||
        strcasecmp(banner, "%%MatrixMarket"))
        return mg_text_fail(text, "is not '%%%%MatrixMarket matrix coordinate FIELD SYMMETRY'");
    if (strcasecmp(object, "matrix") || strcasecmp(layout, "coordinate"))
        return mg_text_fail(text, "is a %s in %s form; read are matrices in coordinate form",
                            mg_text_quote(buffer, object), strcasecmp(layout, "array") ? "another" : "array");
    return choose(file, field, symmetry, text);
}

static int parse_size(market *file, mg_text *text)
{
    int64_t columns;
    int status = mg_text_integer(&file->nodes, text, "the number of rows");
    if (!status)
        status = mg_text_integer(&columns, text, "the number of columns");
    if (!status)
        status = mg_text_integer(&file->entries, text, "the number of entries");
    if (!status)
        status = mg_text_expect_end(text);
    if (!status && (file->nodes < 0 || file->entries < 0))
        status =
            mg_text_fail(text, "claims %lld rows and %lld entries", (long long)file->nodes, (long long)file->entries);
    if (!status && columns != file->nodes)
        status = mg_text_fail(text, "the matrix is %lld x %lld; a graph is square", (long long)file->nodes,
                              (long long)columns);
    return status;
}

static int parse_entry(market *file, mg_text *text)
{
    int64_t ends[2];
    double value = 1;
    int status = mg_text_integer(&ends[0], text, "the row");
    if (!status)
        status = mg_text_integer(&ends[1], text, "the column");
    if (!status && file->has_values)
        status = mg_text_real(&value, text, "the value");
    if (!status)
        status = mg_text_expect_end(text);
    for (int e = 0; e < 2 && !status; e++)
        if (ends[e] < 1 || ends[e] > file->nodes)
            status = mg_text_fail(text, "names node %lld, but nodes are 1 to %lld", (long long)ends[e],
                                  (long long)file->nodes);
    if (!status && ++file->read > file->entries)
        status = mg_text_fail(text, "is more than the %lld entries that the header claims", (long long)file->entries);
    float number = (float)value, mirrored = file->symmetry < 0 ? -number : number;
    if (!status)
        status = mg_parts_add_edge(file->parts, ends[0] - 1, ends[1] - 1, &number);
    if (!status && file->symmetry && ends[0] != ends[1])
        status = mg_parts_add_edge(file->parts, ends[1] - 1, ends[0] - 1, &mirrored);
    return status;
}

static int read_lines(market *file, mg_text *text)
{
    int status = 0, more, sized = 0;
    while (!status && (more = mg_text_line(text))) {
        if (more < 0)
            return more;
        if (text->line == 1) {
            status = parse_banner(file, text);
        } else if (*text->at == '%' || mg_text_is_blank(text->at)) {
            continue;
        } else {
            status = sized ? parse_entry(file, text) : parse_size(file, text);
            sized = 1;
        }
    }
    if (!status && !sized)
        status = fail(-EINVAL, "%s: has no line 'rows columns entries'", text->path);
    if (!status && file->read < file->entries)
        status = fail(-EINVAL, "%s: the header claims %lld entries, but only %lld follow", text->path,
                      (long long)file->entries, (long long)file->read);
    return status ? status : mg_parts_plausible_nodes(text->path, file->nodes, file->entries);
}

static int64_t find_node(void *context, const char *id)
{
    int64_t number;
    return mg_text_is_integer(&number, id) && number >= 1 && number <= ((market *)context)->nodes ? number - 1 : -1;
}

static int64_t count_nodes(void *context) { return ((market *)context)->nodes; }

int mg_read_mtx(mg_parts *parts)
{
    mg_text text;
    market file = {.parts = parts};
    int status = mg_text_open(&text, parts->path);
    if (!status)
        status = read_lines(&file, &text);
    mg_text_close(&text);
    if (status)
        return status;
    mg_story_add(&parts->story, "format: Matrix Market, %s%s\n",
                 file.symmetry ? "symmetric, so each entry is two directed edges" : "general",
                 file.has_values ? "; values read as an edge feature" : "");
    return mg_parts_read_side_files(parts, find_node, &file, count_nodes);
}
