/* A model: created from its description, run forward and backward over a batch. */
#include "internal.h"

#include <string.h>

int mg_model_create(mg_model **out, const mg_model_desc *desc)
{
    int count;
    *out = NULL;
    int status = mg_model_check_desc(desc);
    mg_model *model = status ? NULL : allocate_zeroed(1, sizeof *model);
    if (!model)
        return status ? status : -ENOMEM;
    model->desc = *desc;
    model->rows = mg_model_kernels_list(&count)->rows;
    model->lists = mg_model_kernels_list(&count)->lists;
    status = mg_model_layout(model);
    if (status) {
        mg_model_destroy(model);
        return status;
    }
    *out = model;
    return 0;
}

void mg_model_destroy(mg_model *model)
{
    if (!model)
        return;
    release(model->parameters);
    release(model->names);
    release(model->blocks);
    release(model);
}

/* --- runs --- */

static int check_fits(const mg_model_pass *pass, const mg_model_batch *batch)
{
    int64_t edges = pass->normal ? batch->graph->edges : 0, pairs = pass->values ? batch->near->pairs : 0;
    if (mg_model_fetched(batch) > pass->fetched)
        return fail(-EINVAL, "pass: made for %lld rows that attention fetches; the batch has %lld",
                    (long long)pass->fetched, (long long)mg_model_fetched(batch));
    if (batch->halo && (mg_attn_halo_rows(batch->halo) > pass->halo || mg_attn_halo_sent(batch->halo) > pass->sent))
        return fail(-EINVAL, "pass: made for %lld rows of other ranks and %lld sent; the batch has %lld and %lld",
                    (long long)pass->halo, (long long)pass->sent, (long long)mg_attn_halo_rows(batch->halo),
                    (long long)mg_attn_halo_sent(batch->halo));
    if (batch->tokens > pass->tokens || batch->graphs > pass->graphs || edges > pass->edges || pairs > pass->pairs)
        return fail(
            -EINVAL,
            "pass: made for %lld tokens, %lld graphs, %lld edges, %lld near pairs; the batch has %lld, %lld, %lld, "
            "%lld",
            (long long)pass->tokens, (long long)pass->graphs, (long long)pass->edges, (long long)pass->pairs,
            (long long)batch->tokens, (long long)batch->graphs, (long long)edges, (long long)pairs);
    return 0;
}

static int check_run(const run *r)
{
    const mg_model_desc *desc = &r->model->desc;
    int drops = r->step.training && (desc->dropout > 0 || desc->attention_dropout > 0 || desc->input_dropout > 0);
    int status = mg_model_check_batch(r->model, r->batch);
    if (status)
        return status;
    if (r->pass->model != r->model)
        return fail(-EINVAL, "pass: made for another model");
    if (r->step.training && !r->pass->training)
        return fail(-EINVAL, "step: training is on, but the pass was made without");
    if (drops && !r->batch->ids && r->batch->tokens)
        return fail(-EINVAL, "batch: ids is not given, but dropout needs it");
    return check_fits(r->pass, r->batch);
}

static int begin_run(run *r, const mg_model *model, const float *parameters, float *gradients, mg_model_pass *pass,
                     const mg_model_batch *batch, const mg_model_step *step)
{
    *r = (run){model, parameters, gradients, pass, batch, *step, mg_model_threads(step->threads)};
    int status = check_run(r);
    if (!status)
        status = mg_model_pass_reserve_threads(pass, r->threads);
    if (!status && model->desc.heads)
        status = mg_model_attention_reserve(r);
    return status;
}

int mg_model_forward(const mg_model *model, const float *parameters, mg_model_pass *pass, const mg_model_batch *batch,
                     const mg_model_step *step, float *outputs)
{
    run r;
    int status = begin_run(&r, model, parameters, NULL, pass, batch, step);
    if (status)
        return status;
    if (pass->normal) {
        double begun = mg_model_seconds();
        status = mg_model_index_make(&r);
        pass->times.local += mg_model_seconds() - begun;
    }
    if (!status)
        status = mg_model_embedding_forward(&r);
    for (int64_t layer = 0; !status && layer < model->desc.layers; layer++)
        status = mg_model_block_forward(&r, layer);
    return status ? status : mg_model_head_forward(&r, outputs);
}

int mg_model_backward(const mg_model *model, const float *parameters, float *gradients, mg_model_pass *pass,
                      const mg_model_batch *batch, const mg_model_step *step, const float *doutputs)
{
    run r;
    if (!step->training)
        return fail(-EINVAL, "step: backward needs training on, as in its forward");
    int status = begin_run(&r, model, parameters, gradients, pass, batch, step);
    if (!status)
        status = mg_model_head_backward(&r, doutputs);
    for (int64_t layer = model->desc.layers - 1; !status && layer >= 0; layer--)
        status = mg_model_block_backward(&r, layer);
    return status ? status : mg_model_embedding_backward(&r);
}
