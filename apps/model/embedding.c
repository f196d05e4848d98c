/* What each token starts with: its features and encodings, or the virtual token's row. Rows of virtual tokens in the
 * inputs are not read: they are copied as zeros where there are any. */
#include "internal.h"

#include <string.h>

typedef struct operand {
    const float *data;
    int64_t stride; /* of rows */
} operand;

/* Columns [first, first + n) of rows [begin, begin + rows) of an input, dropped out and without virtual tokens. */
static void copy_tile(const run *r, scratch *s, const float *input, int64_t columns, int64_t first, int64_t n,
                      int64_t begin, int64_t rows, int dropped)
{
    float *tile = s->input;
    for (int64_t i = 0; i < rows; i++)
        memcpy(tile + i * n, input + (begin + i) * columns + first, (size_t)n * sizeof *tile);
    mg_model_zero_virtual(r, tile, begin, rows, n);
    if (dropped)
        mg_model_drop(r, tile, ids_at(r, begin), rows, first, n, 0, SITE_INPUT);
}

/* Runs through an input's columns by tiles: all at once where the input can be used in place. */
static operand next_tile(const run *r, scratch *s, const float *input, int64_t columns, int64_t first, int64_t *n,
                         int64_t begin, int64_t rows, int dropped)
{
    if (!r->model->desc.virtual_token && !(dropped && mg_model_drops(r, SITE_INPUT))) {
        *n = columns;
        return (operand){input + begin * columns, columns};
    }
    *n = columns - first < INPUT_TILE ? columns - first : INPUT_TILE;
    copy_tile(r, s, input, columns, first, *n, begin, rows, dropped && mg_model_drops(r, SITE_INPUT));
    return (operand){s->input, *n};
}

/* x += input W^T */
static void add_input(const run *r, scratch *s, float *x, const float *input, int64_t columns, int64_t weight,
                      int64_t begin, int64_t rows, int dropped)
{
    int64_t hidden = r->model->desc.hidden, n;
    if (weight < 0)
        return;
    for (int64_t first = 0; first < columns; first += n) {
        operand tile = next_tile(r, s, input, columns, first, &n, begin, rows, dropped);
        mg_model_product(s, 'N', 'T', rows, hidden, n, tile.data, tile.stride, r->parameters + weight + first, columns,
                         1, x, hidden);
    }
}

/* dW += dx^T input */
static void add_input_gradient(const run *r, scratch *s, const sums *to, const float *dx, const float *input,
                               int64_t columns, int64_t weight, int64_t begin, int64_t rows, int dropped)
{
    int64_t hidden = r->model->desc.hidden, n;
    if (weight < 0)
        return;
    for (int64_t first = 0; first < columns; first += n) {
        operand tile = next_tile(r, s, input, columns, first, &n, begin, rows, dropped);
        mg_model_product(s, 'T', 'N', hidden, n, rows, dx, hidden, tile.data, tile.stride, 1,
                         sum_of(to, weight) + first, columns);
    }
}

static int64_t degree_row(const run *r, int64_t token)
{
    int64_t degree = r->batch->degrees[token], last = r->model->desc.degree - 1;
    return degree < last ? degree : last;
}

static int is_virtual(const run *r, int64_t *graph, int64_t token)
{
    const mg_model_batch *batch = r->batch;
    if (!r->model->desc.virtual_token)
        return 0;
    while (batch->segments[*graph + 1] <= token)
        ++*graph;
    return batch->segments[*graph + 1] - 1 == token;
}

static void embed_chunk(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const mg_model_desc *desc = &r->model->desc;
    const embedding_places *at = &r->model->embedding;
    const mg_model_batch *batch = r->batch;
    int64_t hidden = desc->hidden, graph = mg_model_graph_at(batch, begin);
    float *x = r->pass->blocks[0].x + begin * hidden;
    (void)layer, (void)to;
    r->model->rows->fill(x, parameter(r, at->bias), rows, hidden);
    add_input(r, s, x, batch->features, desc->inputs, at->weight, begin, rows, 1);
    add_input(r, s, x, batch->laplacian, desc->laplacian, at->laplacian, begin, rows, 0);
    add_input(r, s, x, batch->random_walk, desc->random_walk, at->random_walk, begin, rows, 0);
    for (int64_t i = 0; i < rows; i++)
        if (is_virtual(r, &graph, begin + i))
            memcpy(x + i * hidden, r->parameters + at->virtual_row, (size_t)hidden * sizeof *x);
        else if (desc->degree)
            r->model->rows->add(x + i * hidden, r->parameters + at->degree + degree_row(r, begin + i) * hidden, hidden);
}

int mg_model_embedding_forward(const run *r)
{
    return mg_model_sweep(r, embed_chunk, 0, r->batch->tokens, &r->pass->times.other);
}

static void embed_chunk_backward(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const mg_model_desc *desc = &r->model->desc;
    const embedding_places *at = &r->model->embedding;
    const mg_model_batch *batch = r->batch;
    int64_t hidden = desc->hidden, graph = mg_model_graph_at(batch, begin);
    float *dx = r->pass->dx + begin * hidden;
    (void)layer;
    for (int64_t i = 0; i < rows; i++)
        if (is_virtual(r, &graph, begin + i)) {
            r->model->rows->add(sum_of(to, at->virtual_row), dx + i * hidden, hidden);
            memset(dx + i * hidden, 0, (size_t)hidden * sizeof *dx);
        } else if (desc->degree) {
            r->model->rows->add(sum_of(to, at->degree) + degree_row(r, begin + i) * hidden, dx + i * hidden, hidden);
        }
    if (at->bias >= 0)
        r->model->rows->column_sums(sum_of(to, at->bias), dx, rows, hidden);
    add_input_gradient(r, s, to, dx, batch->features, desc->inputs, at->weight, begin, rows, 1);
    add_input_gradient(r, s, to, dx, batch->laplacian, desc->laplacian, at->laplacian, begin, rows, 0);
    add_input_gradient(r, s, to, dx, batch->random_walk, desc->random_walk, at->random_walk, begin, rows, 0);
}

int mg_model_embedding_backward(const run *r)
{
    const embedding_places *at = &r->model->embedding;
    return mg_model_sweep_sums(r, embed_chunk_backward, 0, r->batch->tokens, at->begin, at->end, &r->pass->times.other);
}
