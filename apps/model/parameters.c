/* The flat range of parameters: which there are, where each lies, and what it starts as. */
#include "internal.h"
#include "philox.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 48, ENTRIES_EMBEDDING = 6, ENTRIES_BLOCK = 25, ENTRIES_HEAD = 4 };

typedef struct layout {
    mg_model *model;
    int64_t entry, at;
    int64_t block; /* of names; -1: outside the blocks */
    const char *part;
    int overflow;
} layout;

/* Places a parameter of 1 to 3 sizes (the others 0 ... rank says); nothing where a size is 0. */
static void place(layout *l, int64_t *to, const char *name, int decay, int rank, int64_t a, int64_t b, int64_t c)
{
    mg_model_parameter *parameter = &l->model->parameters[l->entry];
    int64_t floats = a, sizes[3] = {a, rank > 1 ? b : 1, rank > 2 ? c : 1};
    *to = -1;
    if (!a || !sizes[1] || !sizes[2])
        return;
    if (__builtin_mul_overflow(floats, sizes[1], &floats) || __builtin_mul_overflow(floats, sizes[2], &floats) ||
        floats > INT64_MAX / 64 - l->at) {
        l->overflow = 1;
        return;
    }
    char *text = l->model->names + l->entry * NAME_BYTES;
    if (l->block >= 0)
        snprintf(text, NAME_BYTES, "blocks.%d.%s", (int)l->block, name);
    else
        snprintf(text, NAME_BYTES, "%s.%s", l->part, name);
    *parameter = (mg_model_parameter){.name = text,
                                      .shape = {a, rank > 1 ? b : 0, rank > 2 ? c : 0},
                                      .rank = rank,
                                      .begin = l->at,
                                      .end = l->at + floats,
                                      .decay = decay};
    *to = l->at;
    l->at += floats;
    l->entry++;
}

static void weight(layout *l, int64_t *to, const char *name, int64_t out, int64_t in)
{
    place(l, to, name, 1, 2, out, in, 0);
}

static void vector(layout *l, int64_t *to, const char *name, int64_t size) { place(l, to, name, 0, 1, size, 0, 0); }

static void place_embedding(layout *l)
{
    const mg_model_desc *desc = &l->model->desc;
    embedding_places *at = &l->model->embedding;
    int64_t hidden = desc->hidden;
    at->begin = l->at;
    weight(l, &at->weight, "input.weight", hidden, desc->inputs);
    vector(l, &at->bias, "input.bias", desc->inputs ? hidden : 0);
    place(l, &at->degree, "degree", 0, 2, desc->degree, hidden, 0);
    weight(l, &at->laplacian, "laplacian.weight", hidden, desc->laplacian);
    weight(l, &at->random_walk, "random_walk.weight", hidden, desc->random_walk);
    vector(l, &at->virtual_row, "virtual", desc->virtual_token ? hidden : 0);
    at->end = l->at;
}

static void place_local(layout *l, block_places *at)
{
    const mg_model_desc *desc = &l->model->desc;
    mg_model_local kind = desc->local;
    int64_t hidden = desc->hidden, gcn = kind == MG_MODEL_LOCAL_GCN ? hidden : 0;
    int64_t gine = kind == MG_MODEL_LOCAL_GINE ? hidden : 0, gated = kind == MG_MODEL_LOCAL_GATEDGCN ? 4 * hidden : 0;
    at->local_begin = l->at;
    vector(l, &at->local_eps, "local.eps", gine ? 1 : 0);
    weight(l, &at->local_weight, "local.weight", gcn + gated, hidden);
    vector(l, &at->local_bias, "local.bias", gcn + gated);
    weight(l, &at->local_edge, "local.edge.weight", gine || gated ? hidden : 0, desc->edge_inputs);
    weight(l, &at->local_up_weight, "local.up.weight", gine, hidden);
    vector(l, &at->local_up_bias, "local.up.bias", gine);
    weight(l, &at->local_down_weight, "local.down.weight", gine, hidden);
    vector(l, &at->local_down_bias, "local.down.bias", gine);
    at->local_end = l->at;
}

static void place_block(layout *l, int64_t block)
{
    const mg_model_desc *desc = &l->model->desc;
    block_places *at = &l->model->blocks[block];
    int64_t hidden = desc->hidden, attended = desc->heads ? hidden : 0, inside = desc->ffn;
    l->block = block;
    at->begin = l->at;
    int64_t normed = desc->norms == MG_MODEL_NORMS_ALL ? hidden : 0;
    vector(l, &at->norm1_weight, "norm1.weight", normed);
    vector(l, &at->norm1_bias, "norm1.bias", normed);
    weight(l, &at->qkv_weight, "attention.qkv.weight", 3 * attended, hidden);
    vector(l, &at->qkv_bias, "attention.qkv.bias", 3 * attended);
    at->rest = l->at;
    weight(l, &at->out_weight, "attention.out.weight", attended, hidden);
    vector(l, &at->out_bias, "attention.out.bias", attended);
    place(l, &at->table, "attention.table", 0, 2, desc->heads, desc->codes, 0);
    place(l, &at->path, "attention.path", 0, 3, desc->path_steps, desc->heads, desc->edge_inputs);
    place_local(l, at);
    vector(l, &at->norm2_weight, "norm2.weight", inside ? normed : 0);
    vector(l, &at->norm2_bias, "norm2.bias", inside ? normed : 0);
    weight(l, &at->up_weight, "ffn.up.weight", inside, hidden);
    vector(l, &at->up_bias, "ffn.up.bias", inside);
    weight(l, &at->down_weight, "ffn.down.weight", inside ? hidden : 0, inside);
    vector(l, &at->down_bias, "ffn.down.bias", inside ? hidden : 0);
    int64_t gains = desc->gain != 0 ? hidden : 0;
    vector(l, &at->attention_gain, "attention.gain", desc->heads ? gains : 0);
    vector(l, &at->local_gain, "local.gain", desc->local != MG_MODEL_LOCAL_NONE ? gains : 0);
    vector(l, &at->ffn_gain, "ffn.gain", inside ? gains : 0);
    at->end = l->at;
}

static void place_head(layout *l)
{
    const mg_model_desc *desc = &l->model->desc;
    head_places *at = &l->model->head;
    at->begin = l->at;
    vector(l, &at->norm_weight, "norm.weight", desc->hidden);
    vector(l, &at->norm_bias, "norm.bias", desc->hidden);
    weight(l, &at->weight, "weight", desc->outputs, desc->hidden);
    vector(l, &at->bias, "bias", desc->outputs);
    at->end = l->at;
}

int mg_model_layout(mg_model *model)
{
    int64_t layers = model->desc.layers, entries = ENTRIES_EMBEDDING + layers * ENTRIES_BLOCK + ENTRIES_HEAD;
    model->parameters = allocate_zeroed(entries, sizeof *model->parameters);
    model->names = model->parameters ? allocate(entries, NAME_BYTES) : NULL;
    model->blocks = model->names ? allocate(layers, sizeof *model->blocks) : NULL;
    if (!model->blocks)
        return -ENOMEM;
    layout l = {.model = model, .block = -1, .part = "embedding"};
    place_embedding(&l);
    for (int64_t block = 0; block < layers; block++)
        place_block(&l, block);
    l.block = -1;
    l.part = "head";
    place_head(&l);
    if (l.overflow)
        return fail(-EOVERFLOW, "model: more parameters than 64 bits count: %d layers of hidden %d, ffn %lld",
                    (int)layers, model->desc.hidden, (long long)model->desc.ffn);
    model->parameter_count = l.entry;
    model->floats = l.at;
    return 0;
}

const mg_model_parameter *mg_model_parameters(const mg_model *model, int64_t *count)
{
    *count = model->parameter_count;
    return model->parameters;
}

int64_t mg_model_parameter_count(const mg_model *model) { return model->floats; }

/* --- initial values --- */

/* FNV-1a. */
static uint64_t hash_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

/* Uniform in [-bound, bound): value i from word i % 4 of counter {i / 4, hash of the name}. */
static void fill_uniform(float *values, int64_t count, float bound, uint64_t seed, const char *name)
{
    uint64_t hash = hash_name(name);
    uint32_t words[4] = {0}, key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int64_t i = 0; i < count; i++) {
        if (i % 4 == 0)
            mg_attn_philox(
                words,
                (uint32_t[4]){(uint32_t)(i / 4), (uint32_t)(i / 4 >> 32), (uint32_t)hash, (uint32_t)(hash >> 32)}, key);
        values[i] = bound * ((float)(words[i % 4] >> 8) * 0x1p-23f - 1);
    }
}

static int ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);
    return length >= tail && !strcmp(name + length - tail, end);
}

void mg_model_initialise(const mg_model *model, float *parameters, uint64_t seed)
{
    for (int64_t k = 0; k < model->parameter_count; k++) {
        const mg_model_parameter *p = &model->parameters[k];
        float *values = parameters + p->begin;
        if (p->decay) {
            fill_uniform(values, p->end - p->begin, sqrtf(6 / (float)(p->shape[0] + p->shape[1])), seed, p->name);
        } else if (!strcmp(p->name, "embedding.degree") || !strcmp(p->name, "embedding.virtual")) {
            fill_uniform(values, p->end - p->begin, 0.05f, seed, p->name);
        } else {
            int norm = ends_with(p->name, "norm.weight") || ends_with(p->name, "norm1.weight") ||
                       ends_with(p->name, "norm2.weight");
            float start = norm ? 1 : ends_with(p->name, ".gain") ? model->desc.gain : 0;
            for (int64_t i = 0; i < p->end - p->begin; i++)
                values[i] = start;
        }
    }
}
