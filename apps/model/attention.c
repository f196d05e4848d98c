/* The calls of libattn: q [tokens][heads][dim], k and v of a token side by side in [tokens + fetched][2][heads][dim],
 * the bias table, the edge paths' values. Listed pairs read k and v of the same token: side by side they take 8 to 13 %
 * less time than as parts of [tokens][3][heads][dim], and a fetched row has no idle q. */
#include "internal.h"

#include <math.h>

static mg_attn_tensor part(float *data, int64_t part_index, int64_t parts, const mg_model_desc *desc)
{
    return (mg_attn_tensor){.data = data + part_index * desc->hidden,
                            .token_stride = parts * desc->hidden,
                            .head_stride = desc->hidden / desc->heads};
}

static mg_attn_call make_call(const run *r, int64_t layer)
{
    const mg_model_desc *desc = &r->model->desc;
    const block_kept *kept = &r->pass->blocks[layer];
    int32_t dim = desc->hidden / desc->heads;
    return (mg_attn_call){
        .heads = desc->heads,
        .dim = dim,
        .scale = 1 / sqrtf((float)dim),
        .threads = r->threads,
        .q = part(kept->q, 0, 1, desc),
        .k = part(kept->kv, 0, 2, desc),
        .v = part(kept->kv, 1, 2, desc),
        .out = part(kept->attended, 0, 1, desc),
        .lse = kept->lse,
        .table = parameter(r, r->model->blocks[layer].table),
        .values = r->pass->values,
        .dropout = {.probability = r->step.training ? desc->attention_dropout : 0,
                    .seed = r->step.seed,
                    .step = r->step.step,
                    .layer = (uint32_t)layer,
                    .query_ids = r->batch->plan ? r->batch->ids : NULL,
                    .key_ids = r->batch->plan ? r->batch->ids : NULL},
        .workspace = r->pass->workspace,
    };
}

static mg_attn_call make_backward_call(const run *r, int64_t layer)
{
    const mg_model_desc *desc = &r->model->desc;
    mg_attn_call call = make_call(r, layer);
    call.dout = part(r->pass->dattended, 0, 1, desc);
    call.dq = part(r->pass->dq, 0, 1, desc);
    call.dk = part(r->pass->dkv, 0, 2, desc);
    call.dv = part(r->pass->dkv, 1, 2, desc);
    call.dtable = r->pass->dtable;
    call.dvalues = r->pass->dvalues;
    return call;
}

static int attention_failed(int status, int64_t layer)
{
    return fail(status, "attention of block %lld: %s", (long long)layer, mg_attn_last_error());
}

static int64_t workspace_bytes(const run *r, const mg_attn_call *call, int backward)
{
    const mg_model_batch *batch = r->batch;
    return batch->context ? mg_attn_context_workspace_bytes(batch->context, call, backward)
                          : mg_attn_workspace_bytes(batch->plan, call, backward);
}

int mg_model_attention_reserve(const run *r)
{
    mg_model_pass *pass = r->pass;
    mg_attn_call call = pass->training ? make_backward_call(r, 0) : make_call(r, 0);
    int64_t forward = workspace_bytes(r, &call, 0);
    int64_t bytes = pass->training ? workspace_bytes(r, &call, 1) : forward;
    if (forward < 0 || bytes < 0)
        return attention_failed((int)(forward < 0 ? forward : bytes), 0);
    bytes = forward > bytes ? forward : bytes;
    if (bytes <= pass->workspace_bytes)
        return 0;
    release(pass->workspace);
    pass->workspace_bytes = 0;
    pass->workspace = allocate(bytes, 1);
    if (!pass->workspace)
        return -ENOMEM;
    pass->workspace_bytes = bytes;
    return 0;
}

int mg_model_attention_forward(const run *r, int64_t layer)
{
    double begun = mg_model_seconds();
    mg_model_path_values(r, layer);
    mg_attn_call call = make_call(r, layer);
    const mg_model_batch *batch = r->batch;
    int status = batch->context ? mg_attn_context_forward(batch->context, &call) : mg_attn_forward(batch->plan, &call);
    r->pass->times.attention += mg_model_seconds() - begun;
    return status ? attention_failed(status, layer) : 0;
}

int mg_model_attention_backward(const run *r, int64_t layer)
{
    const mg_model_desc *desc = &r->model->desc;
    double begun = mg_model_seconds();
    mg_model_path_values(r, layer);
    mg_attn_call call = make_backward_call(r, layer);
    const mg_model_batch *batch = r->batch;
    int status =
        batch->context ? mg_attn_context_backward(batch->context, &call) : mg_attn_backward(batch->plan, &call);
    if (status)
        return attention_failed(status, layer);
    if (desc->codes)
        r->model->rows->add(r->gradients + r->model->blocks[layer].table, r->pass->dtable,
                            (int64_t)desc->heads * desc->codes);
    mg_model_path_values_backward(r, layer);
    r->pass->times.attention += mg_model_seconds() - begun;
    return 0;
}
