/* The memory of a pass. With T tokens and H hidden columns, buffers of T x H floats:
 *
 *                   per block                                     shared
 *   graphormer      2  (x, attended)                              12: last, embeddings, q k v, dx, dattended, ...
 *   gt, gps         6  (x, middle, q k v, attended) + local       9: last, embeddings, dx, dattended, dq, dkv, ...
 *     gcn           + 1 (sums) + 1/4 (where relu passed)          + 4
 *     gine          + 1 (u)                                       + 4
 *     gatedgcn      + 4 (A B U V) + 1/4                           + 9
 *     with gains    + 1 (what it gave)
 *   not training    0                                             7, + 2 to 6 with a local part
 *
 * What local parts read or give gradients to (normal, A B U V, dnormal, scratch) has the rows fetched from other ranks
 * too, and so have k v of each block and dkv those that attention fetches. graphormer's attention over all pairs costs
 * so much more than a dense product that its q k v and middle are made again. */
#include "internal.h"

#include <string.h>

struct owned {
    int64_t count, room;
    void *blocks[];
};

enum { OWNED_SHARED = 32, OWNED_BLOCK = 9 };

/* rows x columns floats that the pass owns. Sets *failed when there is no memory, and then only says NULL. */
static void *take(mg_model_pass *pass, int *failed, int64_t rows, int64_t columns, size_t size)
{
    int64_t count;
    if (*failed)
        return NULL;
    if (__builtin_mul_overflow(rows, columns, &count)) {
        *failed = fail(-ENOMEM, "model: a buffer of %lld x %lld values is more than memory can address",
                       (long long)rows, (long long)columns);
        return NULL;
    }
    void *block = allocate(count, size);
    if (block)
        pass->owned->blocks[pass->owned->count++] = block;
    else
        *failed = -ENOMEM;
    return block;
}

static float *take_floats(mg_model_pass *pass, int *failed, int64_t rows, int64_t columns)
{
    return take(pass, failed, rows, columns, sizeof(float));
}

/* --- blocks --- */

static int64_t local_columns(const mg_model_desc *desc)
{
    return desc->local == MG_MODEL_LOCAL_NONE       ? 0
           : desc->local == MG_MODEL_LOCAL_GATEDGCN ? 4 * (int64_t)desc->hidden
                                                    : desc->hidden;
}

static void take_block(mg_model_pass *pass, int *failed, block_kept *kept, const block_kept *shared)
{
    const mg_model_desc *desc = &pass->model->desc;
    int64_t tokens = pass->tokens, hidden = desc->hidden;
    kept->x = take_floats(pass, failed, tokens, hidden);
    if (pass->training && !pass->again)
        kept->middle = take_floats(pass, failed, tokens, hidden);
    if (desc->heads) {
        kept->q = shared ? shared->q : take_floats(pass, failed, tokens, hidden);
        kept->kv = shared ? shared->kv : take_floats(pass, failed, tokens + pass->fetched, 2 * hidden);
        kept->attended = take_floats(pass, failed, tokens, hidden);
        kept->lse = take_floats(pass, failed, tokens, desc->heads);
    }
    if (desc->local != MG_MODEL_LOCAL_NONE)
        kept->local = take_floats(pass, failed, desc->local == MG_MODEL_LOCAL_GATEDGCN ? tokens + pass->halo : tokens,
                                  local_columns(desc));
    if (pass->training && desc->gain != 0 && desc->local != MG_MODEL_LOCAL_NONE)
        kept->branch = take_floats(pass, failed, tokens, hidden);
    if (pass->training && (desc->local == MG_MODEL_LOCAL_GCN || desc->local == MG_MODEL_LOCAL_GATEDGCN))
        kept->positive = take(pass, failed, tokens, hidden, 1);
}

/* Training: each block its own; otherwise all the same, changed in place. */
static void take_blocks(mg_model_pass *pass, int *failed)
{
    int64_t layers = pass->model->desc.layers;
    for (int64_t l = 0; l < layers; l++)
        if (l == 0 || pass->training)
            take_block(pass, failed, &pass->blocks[l], l && pass->again ? &pass->blocks[0] : NULL);
        else
            pass->blocks[l] = pass->blocks[0];
    pass->last = pass->training ? take_floats(pass, failed, pass->tokens, pass->model->desc.hidden) : pass->blocks[0].x;
    for (int64_t l = 0; l < layers; l++)
        pass->blocks[l].next = l + 1 < layers ? pass->blocks[l + 1].x : pass->last;
}

/* --- shared --- */

static void take_forward(mg_model_pass *pass, int *failed)
{
    const mg_model_desc *desc = &pass->model->desc;
    int64_t tokens = pass->tokens, hidden = desc->hidden;
    pass->embeddings = take_floats(pass, failed, tokens, hidden);
    if (desc->readout != MG_MODEL_NODES)
        pass->pooled = take_floats(pass, failed, pass->graphs, hidden);
    if (desc->local != MG_MODEL_LOCAL_NONE) {
        pass->normal = take_floats(pass, failed, tokens + pass->halo, hidden);
        pass->exchange = pass->halo + pass->sent ? take_floats(pass, failed, pass->halo + pass->sent, hidden) : NULL;
        pass->local_out = take_floats(pass, failed, tokens, hidden);
    }
    if (pass->model->blocks[0].local_edge >= 0)
        pass->edge_weight = take_floats(pass, failed, desc->edge_inputs, hidden);
    if (desc->local == MG_MODEL_LOCAL_GCN)
        pass->index.roots = take_floats(pass, failed, tokens + pass->halo, 1);
    if (desc->path_steps) {
        pass->path_weight = take_floats(pass, failed, desc->path_steps * desc->edge_inputs, desc->heads);
        pass->values = take_floats(pass, failed, pass->pairs, desc->heads);
    }
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Floats of the partials of the sum over a range of parameters, for at most so many rows. */
static int64_t partial_floats(int64_t rows, int64_t begin, int64_t end)
{
    int64_t chunks = (rows + CHUNK - 1) / CHUNK, groups = mg_model_groups(end - begin);
    return (chunks < groups ? chunks : groups) * (end - begin);
}

static int64_t largest_partials(const mg_model_pass *pass)
{
    const mg_model *model = pass->model;
    const block_places *block = &model->blocks[0];
    const head_places *head = &model->head;
    int64_t rows = larger(pass->tokens + pass->halo, pass->graphs);
    int64_t most = partial_floats(rows, model->embedding.begin, model->embedding.end);
    most = larger(most, partial_floats(rows, block->begin, block->rest));
    most = larger(most, partial_floats(rows, block->rest, block->end));
    most = larger(most, partial_floats(rows, block->local_begin, block->local_end));
    most = larger(most, partial_floats(rows, head->begin, head->weight));
    return larger(most, partial_floats(rows, head->weight, head->end));
}

static void take_local_backward(mg_model_pass *pass, int *failed)
{
    const mg_model_desc *desc = &pass->model->desc;
    int64_t rows = pass->tokens + pass->halo, hidden = desc->hidden;
    int64_t edge = pass->model->blocks[0].local_edge >= 0 ? desc->edge_inputs * hidden : 0;
    pass->dnormal = take_floats(pass, failed, rows, hidden);
    pass->local_scratch = take_floats(pass, failed, rows, desc->local == MG_MODEL_LOCAL_GATEDGCN ? 6 * hidden : hidden);
    pass->index.starts = take(pass, failed, rows + 1, 1, sizeof *pass->index.starts);
    pass->index.others = take(pass, failed, pass->edges, 1, sizeof *pass->index.others);
    pass->index.edges = take(pass, failed, pass->edges, 1, sizeof *pass->index.edges);
    pass->entry_floats = edge + (desc->local == MG_MODEL_LOCAL_GINE);
    if (pass->entry_floats)
        pass->entry_partials = take_floats(pass, failed, ENTRY_RANGES, pass->entry_floats);
}

static void take_backward(mg_model_pass *pass, int *failed)
{
    const mg_model_desc *desc = &pass->model->desc;
    int64_t tokens = pass->tokens, hidden = desc->hidden;
    pass->dx = take_floats(pass, failed, tokens, hidden);
    if (desc->heads) {
        pass->dattended = take_floats(pass, failed, tokens, hidden);
        pass->dq = take_floats(pass, failed, tokens, hidden);
        pass->dkv = take_floats(pass, failed, tokens + pass->fetched, 2 * hidden);
    }
    if (desc->codes)
        pass->dtable = take_floats(pass, failed, desc->heads, desc->codes);
    if (desc->path_steps) {
        pass->dvalues = take_floats(pass, failed, pass->pairs, desc->heads);
        pass->path_partials =
            take_floats(pass, failed, PAIR_RANGES * desc->path_steps, desc->edge_inputs * desc->heads);
    }
    if (desc->local != MG_MODEL_LOCAL_NONE)
        take_local_backward(pass, failed);
    if (desc->readout != MG_MODEL_NODES)
        pass->dpooled = take_floats(pass, failed, pass->graphs, hidden);
    pass->partials = take_floats(pass, failed, largest_partials(pass), 1);
}

/* --- scratch --- */

int mg_model_pass_reserve_threads(mg_model_pass *pass, int threads)
{
    const mg_model_desc *desc = &pass->model->desc;
    int64_t input = desc->virtual_token || desc->input_dropout > 0 ? INPUT_TILE : 0;
    int64_t floats = CHUNK * (4 * (int64_t)desc->hidden + 2 * desc->ffn + input);
    if (threads <= pass->threads)
        return 0;
    release(pass->scratch);
    release(pass->scratch_floats);
    pass->threads = 0;
    pass->scratch_floats = NULL;
    pass->scratch = allocate_zeroed(threads, sizeof *pass->scratch);
    if (pass->scratch)
        pass->scratch_floats = allocate(threads, (size_t)floats * sizeof(float));
    if (!pass->scratch_floats)
        return -ENOMEM;
    pass->threads = threads;
    for (int t = 0; t < threads; t++) {
        float *at = pass->scratch_floats + t * floats;
        for (int k = 0; k < 4; k++, at += CHUNK * (int64_t)desc->hidden)
            pass->scratch[t].hidden[k] = at;
        for (int k = 0; k < 2; k++, at += CHUNK * desc->ffn)
            pass->scratch[t].inside[k] = at;
        pass->scratch[t].input = at;
    }
    return 0;
}

/* --- create, destroy --- */

static int fill(mg_model_pass *pass)
{
    int failed = 0, layers = pass->model->desc.layers;
    pass->blocks = allocate_zeroed(layers, sizeof *pass->blocks);
    int64_t room = OWNED_SHARED + OWNED_BLOCK * (int64_t)layers;
    pass->owned = pass->blocks ? allocate(1, sizeof *pass->owned + (size_t)room * sizeof(void *)) : NULL;
    if (!pass->owned)
        return -ENOMEM;
    pass->owned->count = 0;
    take_blocks(pass, &failed);
    take_forward(pass, &failed);
    if (pass->training)
        take_backward(pass, &failed);
    return failed ? failed : mg_model_pass_reserve_threads(pass, mg_model_threads(0));
}

int mg_model_keeps_keys(mg_model_kind kind) { return kind != MG_MODEL_GRAPHORMER; }

int64_t mg_model_fetched(const mg_model_batch *batch)
{
    mg_attn_context_info info = {0};
    if (batch->context)
        mg_attn_context_describe(&info, batch->context, 1);
    return info.halo_rows;
}

int mg_model_pass_create(mg_model_pass **out, const mg_model *model, const mg_model_batch *largest, int training)
{
    *out = NULL;
    int status = mg_model_check_batch(model, largest);
    mg_model_pass *pass = status ? NULL : allocate_zeroed(1, sizeof *pass);
    if (!pass)
        return status ? status : -ENOMEM;
    pass->model = model;
    pass->training = training;
    pass->again = !mg_model_keeps_keys(model->desc.kind);
    pass->qkv_of = -1;
    pass->tokens = largest->tokens;
    pass->graphs = largest->graphs;
    pass->edges = largest->graph ? largest->graph->edges : 0;
    pass->pairs = largest->near ? largest->near->pairs : 0;
    pass->halo = largest->halo ? mg_attn_halo_rows(largest->halo) : 0;
    pass->fetched = mg_model_fetched(largest);
    pass->sent = largest->halo ? mg_attn_halo_sent(largest->halo) : 0;
    status = fill(pass);
    if (!status && model->desc.heads)
        status = mg_model_attention_reserve(
            &(run){.model = model, .pass = pass, .batch = largest, .threads = pass->threads});
    if (status) {
        mg_model_pass_destroy(pass);
        return status;
    }
    *out = pass;
    return 0;
}

void mg_model_pass_destroy(mg_model_pass *pass)
{
    if (!pass)
        return;
    for (int64_t i = 0; pass->owned && i < pass->owned->count; i++)
        release(pass->owned->blocks[i]);
    release(pass->owned);
    release(pass->blocks);
    release(pass->scratch);
    release(pass->scratch_floats);
    release(pass->workspace);
    release(pass);
}

const float *mg_model_embeddings(const mg_model_pass *pass) { return pass->embeddings; }

mg_model_times mg_model_pass_times(const mg_model_pass *pass) { return pass->times; }
