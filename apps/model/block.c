/* One block, forward and backward, as sweeps over chunks of rows with attention and local part between them:
 *
 *     project   h = norm1(x), q k v = Wqkv h + b          attention   local part
 *     rest      middle = x + drop(Wo o + b) + drop(local),  next = middle + drop(ffn(middle))
 *
 * Backward runs the same sweeps the other way; pass->dx goes from the gradient of next to that of middle to that of x.
 */
#include "internal.h"

#include <string.h>

static size_t bytes_of(const run *r, int64_t rows) { return (size_t)(rows * r->model->desc.hidden) * sizeof(float); }

/* --- project --- */

static float *normal_rows(const run *r, scratch *s, int64_t layer, int64_t begin, int64_t rows)
{
    const block_places *at = &r->model->blocks[layer];
    int64_t hidden = r->model->desc.hidden;
    float *normal = r->pass->normal ? r->pass->normal + begin * hidden : s->hidden[0];
    mg_model_norm(r, normal, r->pass->blocks[layer].x + begin * hidden, rows, at->norm1_weight, at->norm1_bias);
    return normal;
}

static void normal_chunk(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    (void)to;
    normal_rows(r, s, layer, begin, rows);
}

/* q's rows of Wqkv and b come first. */
static int64_t kv_weight(const block_places *at, int64_t hidden) { return at->qkv_weight + hidden * hidden; }
static int64_t kv_bias(const block_places *at, int64_t hidden) { return at->qkv_bias + hidden; }

static void project_chunk(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const block_places *at = &r->model->blocks[layer];
    int64_t hidden = r->model->desc.hidden;
    (void)to;
    float *normal = normal_rows(r, s, layer, begin, rows);
    const block_kept *kept = &r->pass->blocks[layer];
    mg_model_linear(r, s, kept->q + begin * hidden, normal, rows, at->qkv_weight, at->qkv_bias, hidden, hidden);
    mg_model_linear(r, s, kept->kv + begin * 2 * hidden, normal, rows, kv_weight(at, hidden), kv_bias(at, hidden),
                    hidden, 2 * hidden);
}

static int project(const run *r, int64_t layer)
{
    r->pass->qkv_of = (int)layer;
    return mg_model_sweep(r, r->model->desc.heads ? project_chunk : normal_chunk, layer, r->batch->tokens,
                          &r->pass->times.other);
}

/* What backward needs of it and was not kept: q k v in shared buffers, or the local part's input. */
static int project_again(const run *r, int64_t layer)
{
    mg_model_pass *pass = r->pass;
    if (pass->again && pass->qkv_of != layer)
        return project(r, layer);
    if (pass->normal)
        return mg_model_sweep(r, normal_chunk, layer, r->batch->tokens, &pass->times.other);
    return 0;
}

static void project_chunk_backward(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const mg_model_desc *desc = &r->model->desc;
    const block_places *at = &r->model->blocks[layer];
    int64_t hidden = desc->hidden;
    const float *x = r->pass->blocks[layer].x + begin * hidden;
    float *normal = s->hidden[0], *dnormal = s->hidden[1];
    if (desc->heads) {
        const float *dq = r->pass->dq + begin * hidden, *dkv = r->pass->dkv + begin * 2 * hidden;
        mg_model_norm(r, normal, x, rows, at->norm1_weight, at->norm1_bias);
        mg_model_linear_weight(r, s, to, dq, normal, rows, at->qkv_weight, at->qkv_bias, hidden, hidden);
        mg_model_linear_weight(r, s, to, dkv, normal, rows, kv_weight(at, hidden), kv_bias(at, hidden), hidden,
                               2 * hidden);
        mg_model_linear_input(r, s, dnormal, 0, dq, rows, at->qkv_weight, hidden, hidden);
        mg_model_linear_input(r, s, dnormal, 1, dkv, rows, kv_weight(at, hidden), hidden, 2 * hidden);
    } else {
        memset(dnormal, 0, bytes_of(r, rows));
    }
    if (r->pass->dnormal)
        r->model->rows->add(dnormal, r->pass->dnormal + begin * hidden, rows * hidden);
    mg_model_norm_backward(r, to, r->pass->dx + begin * hidden, dnormal, x, rows, at->norm1_weight, at->norm1_bias);
}

/* --- rest --- */

/* x + drop(Wo o + b) + drop(local), or where it was kept. Uses up pass->local_out and s->hidden[0], [1]. */
static const float *middle_rows(const run *r, scratch *s, int64_t layer, int64_t begin, int64_t rows)
{
    const block_kept *kept = &r->pass->blocks[layer];
    const block_places *at = &r->model->blocks[layer];
    const uint32_t *ids = ids_at(r, begin);
    int64_t hidden = r->model->desc.hidden;
    float *middle = kept->middle ? kept->middle + begin * hidden : s->hidden[0], *part = s->hidden[1];
    memcpy(middle, kept->x + begin * hidden, bytes_of(r, rows));
    if (r->model->desc.heads) {
        mg_model_linear(r, s, part, kept->attended + begin * hidden, rows, at->out_weight, at->out_bias, hidden,
                        hidden);
        mg_model_gain(r, part, rows, at->attention_gain);
        mg_model_drop(r, part, ids, rows, 0, hidden, layer, SITE_ATTENTION);
        r->model->rows->add(middle, part, rows * hidden);
    }
    if (r->pass->local_out) {
        part = r->pass->local_out + begin * hidden;
        if (kept->branch)
            memcpy(kept->branch + begin * hidden, part, bytes_of(r, rows));
        mg_model_gain(r, part, rows, at->local_gain);
        mg_model_drop(r, part, ids, rows, 0, hidden, layer, SITE_LOCAL);
        r->model->rows->add(middle, part, rows * hidden);
    }
    return middle;
}

static void rest_chunk(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    int64_t hidden = r->model->desc.hidden;
    const float *middle = middle_rows(r, s, layer, begin, rows);
    float *next = r->pass->blocks[layer].next + begin * hidden, *part = s->hidden[1];
    (void)to;
    memcpy(next, middle, bytes_of(r, rows));
    if (!r->model->desc.ffn)
        return;
    mg_model_ffn_rows(r, s, layer, part, middle, begin, rows);
    mg_model_gain(r, part, rows, r->model->blocks[layer].ffn_gain);
    mg_model_drop(r, part, ids_at(r, begin), rows, 0, hidden, layer, SITE_AFTER);
    r->model->rows->add(next, part, rows * hidden);
}

static void rest_chunk_backward(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows)
{
    const block_places *at = &r->model->blocks[layer];
    const block_kept *kept = &r->pass->blocks[layer];
    const uint32_t *ids = ids_at(r, begin);
    int64_t hidden = r->model->desc.hidden;
    float *dx = r->pass->dx + begin * hidden, *dpart = s->hidden[1];
    if (r->model->desc.ffn) {
        const float *middle = kept->middle ? kept->middle + begin * hidden : middle_rows(r, s, layer, begin, rows);
        memcpy(dpart, dx, bytes_of(r, rows));
        mg_model_drop(r, dpart, ids, rows, 0, hidden, layer, SITE_AFTER);
        if (at->ffn_gain >= 0)
            mg_model_ffn_rows(r, s, layer, s->hidden[3], middle, begin, rows);
        mg_model_gain_backward(r, to, dpart, s->hidden[3], rows, at->ffn_gain);
        mg_model_ffn_rows_backward(r, s, layer, to, dx, dpart, middle, begin, rows);
    }
    if (r->model->desc.heads) {
        memcpy(dpart, dx, bytes_of(r, rows));
        mg_model_drop(r, dpart, ids, rows, 0, hidden, layer, SITE_ATTENTION);
        if (at->attention_gain >= 0)
            mg_model_linear(r, s, s->hidden[0], kept->attended + begin * hidden, rows, at->out_weight, at->out_bias,
                            hidden, hidden);
        mg_model_gain_backward(r, to, dpart, s->hidden[0], rows, at->attention_gain);
        mg_model_linear_weight(r, s, to, dpart, kept->attended + begin * hidden, rows, at->out_weight, at->out_bias,
                               hidden, hidden);
        mg_model_linear_input(r, s, r->pass->dattended + begin * hidden, 0, dpart, rows, at->out_weight, hidden,
                              hidden);
    }
    if (r->pass->local_out) {
        float *dlocal = r->pass->local_out + begin * hidden;
        memcpy(dlocal, dx, bytes_of(r, rows));
        mg_model_drop(r, dlocal, ids, rows, 0, hidden, layer, SITE_LOCAL);
        if (kept->branch)
            mg_model_gain_backward(r, to, dlocal, kept->branch + begin * hidden, rows, at->local_gain);
        mg_model_zero_virtual(r, dlocal, begin, rows, hidden);
    }
}

/* --- the block --- */

int mg_model_block_forward(const run *r, int64_t layer)
{
    int status = project(r, layer);
    if (!status)
        status = mg_model_exchange_fetch_begin(r, layer);
    if (!status && r->model->desc.heads)
        status = mg_model_attention_forward(r, layer);
    status = mg_model_exchange_fetch_end(r, layer, status);
    if (!status && r->pass->local_out)
        status = mg_model_local_forward(r, layer);
    return status ? status : mg_model_sweep(r, rest_chunk, layer, r->batch->tokens, &r->pass->times.other);
}

/* What is fetched comes while the rest's backward runs, what returns while attention's does. */
int mg_model_block_backward(const run *r, int64_t layer)
{
    const block_places *at = &r->model->blocks[layer];
    double *seconds = &r->pass->times.other;
    int64_t tokens = r->batch->tokens;
    int status = project_again(r, layer);
    if (!status && mg_model_local_reads_normal(r))
        status = mg_model_exchange_fetch_begin(r, layer);
    if (!status)
        status = mg_model_sweep_sums(r, rest_chunk_backward, layer, tokens, at->rest, at->end, seconds);
    status = mg_model_exchange_fetch_end(r, layer, status);
    if (!status && r->pass->local_out)
        status = mg_model_local_backward(r, layer);
    if (!status)
        status = mg_model_exchange_return_begin(r, layer);
    if (!status && r->model->desc.heads)
        status = mg_model_attention_backward(r, layer);
    status = mg_model_exchange_return_end(r, layer, status);
    return status ? status
                  : mg_model_sweep_sums(r, project_chunk_backward, layer, tokens, at->begin, at->rest, seconds);
}
