/* The models' formulas as model.h states them, in fp64 and with no thought of speed. Shares no code with apps/model but
 * Philox itself. */
#include "model/problem.h"
#include "support/test.h"
#include "philox.h"

typedef struct view {
    const problem *p;
    const mg_model_desc *desc;
    const mg_model_batch *batch;
    const mg_model_step *step;
    const double *parameters;
    int64_t tokens, hidden;
} view;

static const double *find(const view *v, int64_t block, const char *name)
{
    int64_t count;
    const mg_model_parameter *list = mg_model_parameters(v->p->model, &count);
    char full[64];
    if (block < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blocks.%d.%s", (int)block, name);
    for (int64_t i = 0; i < count; i++)
        if (!strcmp(list[i].name, full))
            return v->parameters + list[i].begin;
    return NULL;
}

/* A parameter by its name; NULL where the model has none. Remembers what was asked last, by the address of `name`. */
static const double *named(const view *v, int64_t block, const char *name)
{
    static struct {
        const void *parameters, *name;
        int64_t serial, block;
        const double *found;
    } known[1024];
    size_t place = ((size_t)name * 31 + (size_t)block * 7919) % 1024;
    if (known[place].serial != v->p->serial || known[place].parameters != v->parameters || known[place].name != name ||
        known[place].block != block) {
        known[place].found = find(v, block, name);
        known[place].serial = v->p->serial;
        known[place].parameters = v->parameters;
        known[place].name = name;
        known[place].block = block;
    }
    return known[place].found;
}

static double *zeros(int64_t count) { return calloc((size_t)(count ? count : 1), sizeof(double)); }

static int is_virtual(const view *v, int64_t token)
{
    for (int64_t g = 0; v->desc->virtual_token && g < v->batch->graphs; g++)
        if (token == v->batch->segments[g + 1] - 1)
            return 1;
    return 0;
}

/* By the low 16 bits. */
static double dropped_or_scaled(uint32_t bits, double probability)
{
    double drop = ceil(probability * 65536) / 65536;
    return bits % 65536 / 65536.0 < drop ? 0 : 1 / (1 - drop);
}

/* What dropout multiplies a hidden value with. */
static double keep(const view *v, double probability, uint32_t id, int64_t column, uint32_t site)
{
    if (!v->step->training || probability == 0)
        return 1;
    uint32_t words[4], counter[4] = {id, (uint32_t)(column / 8), site, v->step->step};
    uint32_t key[2] = {(uint32_t)v->step->seed, (uint32_t)(v->step->seed >> 32) ^ 0x9E3779B9u};
    mg_attn_philox_rounds(words, counter, key, 7);
    return dropped_or_scaled(words[column % 8 / 2] >> column % 2 * 16, probability);
}

static double keep_hidden(const view *v, int64_t token, int64_t column, int64_t layer, int site)
{
    uint32_t id = v->batch->ids ? v->batch->ids[token] : 0;
    return keep(v, v->desc->dropout, id, column, (uint32_t)(16 * layer + site));
}

/* y[out] += W x */
static void linear(double *y, const double *weight, const double *x, int64_t out, int64_t in)
{
    for (int64_t o = 0; weight && o < out; o++)
        for (int64_t i = 0; i < in; i++)
            y[o] += weight[o * in + i] * x[i];
}

static void add(double *y, const double *x, int64_t count)
{
    for (int64_t i = 0; x && i < count; i++)
        y[i] += x[i];
}

static void norm(double *y, const double *x, const double *weight, const double *bias, int64_t count)
{
    double mean = 0, square = 0;
    for (int64_t i = 0; i < count; i++)
        mean += x[i] / (double)count;
    for (int64_t i = 0; i < count; i++)
        square += (x[i] - mean) * (x[i] - mean) / (double)count;
    for (int64_t i = 0; i < count; i++)
        y[i] = (x[i] - mean) / sqrt(square + 1e-5) * weight[i] + bias[i];
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double gelu(double x) { return x * sigmoid(1.5957691216 * (x + 0.044715 * x * x * x)); }
static double relu(double x) { return x < 0 ? 0 : x; }

/* norm1 and norm2: x itself in models without norms in blocks. */
static void block_norm(const view *v, double *y, const double *x, const double *weight, const double *bias)
{
    if (v->desc->norms == MG_MODEL_NORMS_HEAD)
        memcpy(y, x, (size_t)v->hidden * sizeof *y);
    else
        norm(y, x, weight, bias, v->hidden);
}

/* What a part's column is multiplied with. */
static double gain(const double *gains, int64_t column) { return gains ? gains[column] : 1; }

/* --- embedding --- */

static void widen(double *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = from[i];
}

static void embed(const view *v, double *x, int64_t token)
{
    const mg_model_desc *d = v->desc;
    const mg_model_batch *b = v->batch;
    if (is_virtual(v, token)) {
        add(x, named(v, -1, "embedding.virtual"), v->hidden);
        return;
    }
    double *row = zeros(d->inputs + d->laplacian + d->random_walk);
    for (int64_t c = 0; c < d->inputs; c++)
        row[c] =
            b->features[token * d->inputs + c] * keep(v, d->input_dropout, b->ids ? b->ids[token] : 0, c, 0xFFFF0000u);
    linear(x, named(v, -1, "embedding.input.weight"), row, v->hidden, d->inputs);
    add(x, named(v, -1, "embedding.input.bias"), v->hidden);
    if (d->degree) {
        int64_t degree = b->degrees[token] < d->degree - 1 ? b->degrees[token] : d->degree - 1;
        add(x, named(v, -1, "embedding.degree") + degree * v->hidden, v->hidden);
    }
    if (d->laplacian) {
        widen(row, b->laplacian + token * d->laplacian, d->laplacian);
        linear(x, named(v, -1, "embedding.laplacian.weight"), row, v->hidden, d->laplacian);
    }
    if (d->random_walk) {
        widen(row, b->random_walk + token * d->random_walk, d->random_walk);
        linear(x, named(v, -1, "embedding.random_walk.weight"), row, v->hidden, d->random_walk);
    }
    free(row);
}

/* --- attention --- */

/* Mean over the steps of a pair's path. */
static double path_value(const view *v, const double *path, int64_t pair, int64_t head)
{
    const mg_graph_paths *paths = v->batch->paths;
    int64_t inputs = v->desc->edge_inputs, steps = paths->starts[pair + 1] - paths->starts[pair];
    double sum = 0;
    for (int64_t s = 0; s < steps; s++)
        for (int64_t k = 0; k < inputs; k++)
            sum += path[(s * v->desc->heads + head) * inputs + k] *
                   v->batch->edge_features[paths->edges[paths->starts[pair] + s] * inputs + k];
    return steps ? sum / (double)steps : 0;
}

static double attention_keep(const view *v, int64_t i, int64_t j, int64_t layer, int64_t head)
{
    double probability = v->desc->attention_dropout;
    if (!v->step->training || probability == 0)
        return 1;
    uint32_t words[4], key[2] = {(uint32_t)v->step->seed, (uint32_t)(v->step->seed >> 32)};
    uint32_t counter[4] = {v->batch->ids[i], v->batch->ids[j], v->step->step, (uint32_t)(layer << 16 | head / 8)};
    mg_attn_philox_rounds(words, counter, key, 7);
    return dropped_or_scaled(words[head % 8 / 2] >> head % 2 * 16, probability);
}

/* Adds the attention of query i of one head to out [dim]. */
static void attend(const view *v, double *out, const double *qkv, int64_t layer, int64_t i, int64_t head)
{
    const problem *p = v->p;
    int64_t dim = v->hidden / v->desc->heads, at = head * dim;
    const double *table = named(v, layer, "attention.table"), *path = named(v, layer, "attention.path");
    double *score = zeros(v->tokens), most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < v->tokens; j++) {
        int64_t pair = i * v->tokens + j;
        score[j] = -INFINITY;
        if (!p->seen[pair])
            continue;
        score[j] = 0;
        for (int64_t d = 0; d < dim; d++)
            score[j] += qkv[i * 3 * v->hidden + at + d] * qkv[(j * 3 + 1) * v->hidden + at + d] / sqrt((double)dim);
        if (table)
            score[j] += table[head * v->desc->codes + p->codes[pair]];
        if (path && p->pair_of[pair] >= 0)
            score[j] += path_value(v, path, p->pair_of[pair], head);
        most = fmax(most, score[j]);
    }
    for (int64_t j = 0; j < v->tokens; j++)
        sum += exp(score[j] - most);
    for (int64_t j = 0; j < v->tokens; j++)
        if (p->seen[i * v->tokens + j])
            for (int64_t d = 0; d < dim; d++)
                out[d] += exp(score[j] - most) / sum * attention_keep(v, i, j, layer, head) *
                          qkv[(j * 3 + 2) * v->hidden + at + d];
    free(score);
}

static void attention(const view *v, double *y, const double *h, int64_t layer)
{
    int64_t hidden = v->hidden, dim = hidden / v->desc->heads;
    double *qkv = zeros(v->tokens * 3 * hidden), *out = zeros(hidden);
    for (int64_t i = 0; i < v->tokens; i++) {
        add(qkv + i * 3 * hidden, named(v, layer, "attention.qkv.bias"), 3 * hidden);
        linear(qkv + i * 3 * hidden, named(v, layer, "attention.qkv.weight"), h + i * hidden, 3 * hidden, hidden);
    }
    for (int64_t i = 0; i < v->tokens; i++) {
        memset(out, 0, (size_t)hidden * sizeof *out);
        for (int64_t head = 0; head < v->desc->heads; head++)
            attend(v, out + head * dim, qkv, layer, i, head);
        add(y + i * hidden, named(v, layer, "attention.out.bias"), hidden);
        linear(y + i * hidden, named(v, layer, "attention.out.weight"), out, hidden, hidden);
    }
    free(qkv);
    free(out);
}

/* --- local parts --- */

static int64_t neighbours(const mg_graph *graph, int64_t i)
{
    int64_t count = 0;
    for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
        count += graph->columns[e] != i;
    return count;
}

static void gcn(const view *v, double *y, const double *h, int64_t layer, int64_t i)
{
    const mg_graph *graph = v->batch->graph;
    double *sum = zeros(v->hidden), own = 1 / sqrt((double)neighbours(graph, i) + 1);
    for (int64_t c = 0; c < v->hidden; c++)
        sum[c] = own * own * h[i * v->hidden + c];
    for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++) {
        int64_t j = graph->columns[e];
        for (int64_t c = 0; j != i && c < v->hidden; c++)
            sum[c] += own / sqrt((double)neighbours(graph, j) + 1) * h[j * v->hidden + c];
    }
    add(y, named(v, layer, "local.bias"), v->hidden);
    linear(y, named(v, layer, "local.weight"), sum, v->hidden, v->hidden);
    for (int64_t c = 0; c < v->hidden; c++)
        y[c] = relu(y[c]);
    free(sum);
}

/* We e */
static void edge_projection(const view *v, double *to, int64_t layer, int64_t edge)
{
    int64_t inputs = v->desc->edge_inputs;
    double *e = zeros(inputs);
    if (inputs)
        widen(e, v->batch->edge_features + edge * inputs, inputs);
    linear(to, named(v, layer, "local.edge.weight"), e, v->hidden, inputs);
    free(e);
}

static void gine(const view *v, double *y, const double *h, int64_t layer, int64_t i)
{
    const mg_graph *graph = v->batch->graph;
    double *sum = zeros(v->hidden), *message = zeros(v->hidden), *inner = zeros(v->hidden);
    for (int64_t c = 0; c < v->hidden; c++)
        sum[c] = (1 + *named(v, layer, "local.eps")) * h[i * v->hidden + c];
    for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++) {
        memcpy(message, h + graph->columns[e] * v->hidden, (size_t)v->hidden * sizeof *h);
        edge_projection(v, message, layer, e);
        for (int64_t c = 0; c < v->hidden; c++)
            sum[c] += relu(message[c]);
    }
    add(inner, named(v, layer, "local.up.bias"), v->hidden);
    linear(inner, named(v, layer, "local.up.weight"), sum, v->hidden, v->hidden);
    for (int64_t c = 0; c < v->hidden; c++)
        inner[c] = relu(inner[c]);
    add(y, named(v, layer, "local.down.bias"), v->hidden);
    linear(y, named(v, layer, "local.down.weight"), inner, v->hidden, v->hidden);
    free(sum);
    free(message);
    free(inner);
}

/* Part 0..3 of [A, B, U, V] h. */
static void gated_part(const view *v, double *to, const double *h, int64_t layer, int64_t part)
{
    add(to, named(v, layer, "local.bias") + part * v->hidden, v->hidden);
    linear(to, named(v, layer, "local.weight") + part * v->hidden * v->hidden, h, v->hidden, v->hidden);
}

static void gatedgcn(const view *v, double *y, const double *h, int64_t layer, int64_t i)
{
    const mg_graph *graph = v->batch->graph;
    int64_t hidden = v->hidden;
    double *above = zeros(hidden), *below = zeros(hidden), *gate = zeros(hidden), *value = zeros(hidden);
    for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++) {
        memset(gate, 0, (size_t)hidden * sizeof *gate);
        memset(value, 0, (size_t)hidden * sizeof *value);
        gated_part(v, gate, h + i * hidden, layer, 0);
        gated_part(v, gate, h + graph->columns[e] * hidden, layer, 1);
        edge_projection(v, gate, layer, e);
        gated_part(v, value, h + graph->columns[e] * hidden, layer, 3);
        for (int64_t c = 0; c < hidden; c++) {
            above[c] += sigmoid(gate[c]) * value[c];
            below[c] += sigmoid(gate[c]);
        }
    }
    gated_part(v, y, h + i * hidden, layer, 2);
    for (int64_t c = 0; c < hidden; c++)
        y[c] = relu(y[c] + above[c] / (below[c] + 1e-6));
    free(above);
    free(below);
    free(gate);
    free(value);
}

/* --- a block --- */

static void ffn(const view *v, double *y, const double *x, int64_t layer, int64_t i)
{
    int64_t inside = v->desc->ffn;
    double *h = zeros(v->hidden), *wide = zeros(inside);
    block_norm(v, h, x, named(v, layer, "norm2.weight"), named(v, layer, "norm2.bias"));
    add(wide, named(v, layer, "ffn.up.bias"), inside);
    linear(wide, named(v, layer, "ffn.up.weight"), h, inside, v->hidden);
    for (int64_t c = 0; c < inside; c++)
        wide[c] = gelu(wide[c]) * keep_hidden(v, i, c, layer, 2);
    add(y, named(v, layer, "ffn.down.bias"), v->hidden);
    linear(y, named(v, layer, "ffn.down.weight"), wide, v->hidden, inside);
    free(h);
    free(wide);
}

static void local(const view *v, double *y, const double *h, int64_t layer, int64_t i)
{
    if (v->desc->local == MG_MODEL_LOCAL_GCN)
        gcn(v, y, h, layer, i);
    else if (v->desc->local == MG_MODEL_LOCAL_GINE)
        gine(v, y, h, layer, i);
    else if (v->desc->local == MG_MODEL_LOCAL_GATEDGCN)
        gatedgcn(v, y, h, layer, i);
}

static void block(const view *v, double *x, int64_t layer)
{
    int64_t hidden = v->hidden, size = v->tokens * hidden;
    double *h = zeros(size), *attended = zeros(size), *part = zeros(hidden);
    const double *attention_gain = named(v, layer, "attention.gain"), *local_gain = named(v, layer, "local.gain");
    const double *ffn_gain = named(v, layer, "ffn.gain");
    for (int64_t i = 0; i < v->tokens; i++)
        block_norm(v, h + i * hidden, x + i * hidden, named(v, layer, "norm1.weight"), named(v, layer, "norm1.bias"));
    if (v->desc->heads)
        attention(v, attended, h, layer);
    for (int64_t i = 0; i < v->tokens; i++) {
        double *row = x + i * hidden;
        memset(part, 0, (size_t)hidden * sizeof *part);
        if (!is_virtual(v, i))
            local(v, part, h, layer, i);
        for (int64_t c = 0; c < hidden; c++)
            row[c] += attended[i * hidden + c] * gain(attention_gain, c) * keep_hidden(v, i, c, layer, 0) +
                      part[c] * gain(local_gain, c) * keep_hidden(v, i, c, layer, 1);
        if (!v->desc->ffn)
            continue;
        memset(part, 0, (size_t)hidden * sizeof *part);
        ffn(v, part, row, layer, i);
        for (int64_t c = 0; c < hidden; c++)
            row[c] += part[c] * gain(ffn_gain, c) * keep_hidden(v, i, c, layer, 3);
    }
    free(h);
    free(attended);
    free(part);
}

/* --- head --- */

static void pool(const view *v, double *row, const double *y, int64_t graph, uint32_t *id)
{
    int64_t begin = v->batch->segments[graph], end = v->batch->segments[graph + 1];
    if (v->desc->readout == MG_MODEL_VIRTUAL)
        begin = end - 1;
    else
        end -= v->desc->virtual_token != 0;
    *id = 0;
    for (int64_t i = begin; i < end; i++) {
        uint32_t mine = v->batch->ids ? v->batch->ids[i] : 0;
        *id = i == begin || mine < *id ? mine : *id;
        for (int64_t c = 0; c < v->hidden; c++)
            row[c] += y[i * v->hidden + c] / (v->desc->readout == MG_MODEL_MEAN ? (double)(end - begin) : 1);
    }
}

static void head(const view *v, double *outputs, const double *y)
{
    int64_t count = v->desc->outputs;
    double *row = zeros(v->hidden);
    for (int64_t k = 0; k < v->p->rows; k++) {
        uint32_t id = v->batch->ids ? v->batch->ids[v->desc->readout == MG_MODEL_NODES ? k : 0] : 0;
        memset(row, 0, (size_t)v->hidden * sizeof *row);
        if (v->desc->readout == MG_MODEL_NODES)
            memcpy(row, y + k * v->hidden, (size_t)v->hidden * sizeof *row);
        else
            pool(v, row, y, k, &id);
        for (int64_t c = 0; c < v->hidden; c++)
            row[c] *= keep(v, v->desc->dropout, id, c, 0xFFFF0001u);
        for (int64_t o = 0; o < count; o++)
            outputs[k * count + o] = named(v, -1, "head.bias")[o];
        linear(outputs + k * count, named(v, -1, "head.weight"), row, count, v->hidden);
    }
    free(row);
}

void reference_forward(const problem *p, const double *parameters, const mg_model_step *step, double *outputs,
                       double *embeddings)
{
    view v = {p, &p->setup.desc, &p->batch, step, parameters, p->batch.tokens, p->setup.desc.hidden};
    double *x = zeros(v.tokens * v.hidden), *y = zeros(v.tokens * v.hidden);
    for (int64_t i = 0; i < v.tokens; i++)
        embed(&v, x + i * v.hidden, i);
    for (int64_t layer = 0; layer < v.desc->layers; layer++)
        block(&v, x, layer);
    for (int64_t i = 0; i < v.tokens; i++)
        norm(y + i * v.hidden, x + i * v.hidden, named(&v, -1, "head.norm.weight"), named(&v, -1, "head.norm.bias"),
             v.hidden);
    head(&v, outputs, y);
    if (embeddings)
        memcpy(embeddings, y, (size_t)(v.tokens * v.hidden) * sizeof *y);
    free(x);
    free(y);
}

double reference_loss(const problem *p, const double *parameters, const mg_model_step *step)
{
    int64_t count = p->rows * p->setup.desc.outputs;
    double *outputs = zeros(count), sum = 0;
    reference_forward(p, parameters, step, outputs, NULL);
    for (int64_t i = 0; i < count; i++)
        sum += outputs[i] * p->weights[i];
    free(outputs);
    return sum;
}
