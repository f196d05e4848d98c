/* METIS .graph: "nodes edges [format [constraints]]", then a line for each node: [size] [weights] neighbour [weight]
 * ... */
#include "library.h"
#include "parts.h"
#include "text.h"

typedef struct metis {
    mg_parts *parts;
    int64_t nodes, edges, constraints;
    int has_sizes, has_edge_weights;
    int64_t rows; /* lines of nodes that were read */
    int64_t loops;
    int64_t capacity; /* values of features */
} metis;

static int parse_format(metis *file, mg_text *text)
{
    int64_t format = 0, constraints = 0;
    int status = mg_text_integer(&format, text, "the format");
    int has_weights = format / 10 % 10;
    if (!status && (format < 0 || format > 111 || format % 10 > 1 || has_weights > 1))
        return mg_text_fail(text, "the format is %lld, not three digits of 0 and 1", (long long)format);
    if (!status && !mg_text_is_blank(text->at))
        status = mg_text_integer(&constraints, text, "the number of node weights");
    else
        constraints = has_weights;
    if (!status &&
        (constraints < 0 || constraints > 4096 || (has_weights && !constraints) || (!has_weights && constraints > 1)))
        return mg_text_fail(text, "%lld node weights with format %03lld", (long long)constraints, (long long)format);
    file->constraints = has_weights ? constraints : 0;
    file->has_sizes = format / 100 != 0;
    file->has_edge_weights = format % 10 != 0;
    return status;
}

static int parse_header(metis *file, mg_text *text)
{
    int status = mg_text_integer(&file->nodes, text, "the number of nodes");
    if (!status)
        status = mg_text_integer(&file->edges, text, "the number of edges");
    if (!status && (file->nodes < 0 || file->edges < 0 || file->nodes > INT32_MAX || file->edges > INT64_MAX / 4))
        status = mg_text_fail(text, "claims %lld nodes and %lld edges", (long long)file->nodes, (long long)file->edges);
    if (!status && !mg_text_is_blank(text->at))
        status = parse_format(file, text);
    if (!status)
        status = mg_text_expect_end(text);
    file->parts->edge_columns = file->has_edge_weights;
    file->parts->feature_count = file->constraints;
    return status;
}

static int read_weights(metis *file, mg_text *text)
{
    mg_parts *parts = file->parts;
    double value;
    int64_t size;
    int status = file->has_sizes ? mg_text_integer(&size, text, "the node's size") : 0;
    if (!status && file->constraints && (file->rows + 1) * file->constraints > file->capacity) {
        int64_t capacity = 2 * file->capacity + file->constraints + 1024;
        float *larger = reallocate(parts->features, capacity, sizeof *larger);
        if (!larger)
            return -ENOMEM;
        parts->features = larger;
        file->capacity = capacity;
    }
    for (int64_t w = 0; w < file->constraints && !status; w++) {
        status = mg_text_real(&value, text, "the node's weight");
        parts->features[file->rows * file->constraints + w] = (float)value;
    }
    return status;
}

static int read_neighbours(metis *file, mg_text *text)
{
    int status = 0;
    while (!status && !mg_text_is_blank(text->at)) {
        int64_t neighbour;
        double weight = 1;
        status = mg_text_integer(&neighbour, text, "the neighbour");
        if (!status && (neighbour < 1 || neighbour > file->nodes))
            return mg_text_fail(text, "node %lld has neighbour %lld, but nodes are 1 to %lld",
                                (long long)file->rows + 1, (long long)neighbour, (long long)file->nodes);
        if (!status && file->has_edge_weights)
            status = mg_text_real(&weight, text, "the edge's weight");
        if (!status) {
            float value = (float)weight;
            file->loops += neighbour == file->rows + 1;
            status = mg_parts_add_edge(file->parts, file->rows, neighbour - 1, &value);
        }
    }
    return status;
}

static int read_lines(metis *file, mg_text *text)
{
    int status = 0, more, header = 0;
    while (!status && (more = mg_text_line(text))) {
        if (more < 0)
            return more;
        if (*text->at == '%' || (!header && mg_text_is_blank(text->at)))
            continue;
        if (!header) {
            status = parse_header(file, text);
            header = 1;
        } else if (file->rows < file->nodes) {
            status = read_weights(file, text);
            if (!status)
                status = read_neighbours(file, text);
            file->rows++;
        } else {
            status = mg_text_expect_end(text);
        }
    }
    return status || header ? status : fail(-EINVAL, "%s: is empty: the first line tells nodes and edges", text->path);
}

/* The header counts each edge once, the lines list it from both ends. */
static int check_counts(const metis *file)
{
    const mg_parts *parts = file->parts;
    if (file->rows < file->nodes)
        return fail(-EINVAL, "%s: the header claims %lld nodes, but only %lld lines follow", parts->path,
                    (long long)file->nodes, (long long)file->rows);
    if (parts->edges != 2 * file->edges && parts->edges + file->loops != 2 * file->edges)
        return fail(-EINVAL,
                    "%s: the header claims %lld edges, so the lines should list %lld neighbours, but they list %lld",
                    parts->path, (long long)file->edges, 2 * (long long)file->edges, (long long)parts->edges);
    return 0;
}

static int64_t find_node(void *context, const char *id)
{
    int64_t number;
    return mg_text_is_integer(&number, id) && number >= 1 && number <= ((metis *)context)->nodes ? number - 1 : -1;
}

static int64_t count_nodes(void *context) { return ((metis *)context)->nodes; }

int mg_read_metis(mg_parts *parts)
{
    mg_text text;
    metis file = {.parts = parts};
    int status = mg_text_open(&text, parts->path);
    if (!status)
        status = read_lines(&file, &text);
    mg_text_close(&text);
    if (!status)
        status = check_counts(&file);
    if (status)
        return status;
    mg_story_add(&parts->story, "format: METIS graph%s%s%s\n",
                 file.constraints ? "; node weights read as features" : "",
                 file.has_edge_weights ? "; edge weights read as an edge feature" : "",
                 file.has_sizes ? "; node sizes dropped" : "");
    return mg_parts_read_side_files(parts, find_node, &file, count_nodes);
}
