/* A context's call: its arguments, its workspace, and attention to one shard of keys. */
#include "context.h"
#include "library.h"
#include "parallel.h"

#include <math.h>
#include <string.h>

static int refuse(const char *what, const char *why)
{
    return fail(-EINVAL, "attention over a context: %s; %s", what, why);
}

static int check_given(const char *name, const void *data, const mg_attn_context *c)
{
    if (data || !c->own)
        return 0;
    return fail(-EINVAL, "attention over a context needs %s, and it is NULL", name);
}

static int check_tensors(const mg_attn_context *c, const mg_attn_call *call, int backward)
{
    int status = check_given("q", call->q.data, c);
    if (!status)
        status = check_given("k", call->k.data, c);
    if (!status)
        status = check_given("v", call->v.data, c);
    if (!status)
        status = check_given("out", call->out.data, c);
    if (!status && backward)
        status = check_given("dout", call->dout.data, c);
    if (!status && backward)
        status = check_given("lse", call->lse, c);
    return status;
}

static int check_call(const mg_attn_context *c, const mg_attn_call *call, int backward)
{
    const int32_t value_dim = call->value_dim ? call->value_dim : call->dim;
    if (call->heads != c->heads)
        return fail(-EINVAL, "attention over a context: %d heads, but it was made for %d", call->heads, c->heads);
    if (call->dim < 1 || call->dim > MG_ATTN_MAX_DIM || value_dim < 1 || value_dim > MG_ATTN_MAX_DIM)
        return fail(-EINVAL, "attention over a context: dim %d, value_dim %d; 1 to %d are possible", call->dim,
                    value_dim, MG_ATTN_MAX_DIM);
    if (call->type != MG_ATTN_FP32)
        return refuse("only MG_ATTN_FP32 is possible", "partial results must stay exact");
    if (call->key_bias || (backward && call->dkey_bias))
        return refuse("key_bias and dkey_bias are not possible", "leave them NULL");
    if (backward && call->dlse)
        return refuse("dlse is not possible", "leave it NULL");
    if (call->dropout.query_ids || call->dropout.key_ids)
        return refuse("dropout ids are given", "they are the context's: leave them NULL");
    if (c->map.kind != MG_ATTN_NEAR && (call->values || (backward && call->dvalues)))
        return refuse("pair values need a map of kind MG_ATTN_NEAR", "leave values and dvalues NULL");
    return check_tensors(c, call, backward);
}

/* --- workspace --- */

float *mg_attn_context_carve(context_run *r, int wanted, int64_t a, int64_t b, int64_t c)
{
    int64_t bytes;
    if (!wanted)
        return NULL;
    if (__builtin_mul_overflow(a, b, &bytes) || __builtin_mul_overflow(bytes, c, &bytes) ||
        __builtin_mul_overflow(bytes, (int64_t)sizeof(float), &bytes) || bytes > INT64_MAX - 64 ||
        __builtin_add_overflow(r->used, (bytes + 63) / 64 * 64, &bytes)) {
        r->overflow = 1;
        return NULL;
    }
    void *piece = r->base ? r->base + r->used : NULL;
    r->used = bytes;
    return piece;
}

static void carve_messages(context_run *r)
{
    const mg_attn_context *c = r->c;
    const int32_t heads = c->grid.across > 1 ? mg_attn_context_heads_slots(c) : 0,
                  others = c->halo ? 2 * c->port.ranks : mg_attn_context_ring_slots(c);
    r->messages = (messages){.port = &c->port, .count = heads > others ? heads : others};
    r->messages.requests = (void **)(void *)mg_attn_context_carve(r, 1, r->messages.count, 2, 1);
    if (r->base)
        memset(r->messages.requests, 0, (size_t)r->messages.count * sizeof *r->messages.requests);
}

/* What is this rank's of arrays by head. */
static void take_heads(context_run *r)
{
    const mg_attn_context *c = r->c;
    mg_attn_call *call = &r->call;
    const int64_t pairs = c->map.kind == MG_ATTN_NEAR ? c->map.near_starts[c->rows] : 0;
    call->heads = c->head_end - c->head_begin;
    call->dropout.head_begin += c->head_begin;
    call->table = call->table ? call->table + (int64_t)c->head_begin * c->map.codes : NULL;
    call->dtable = call->dtable ? call->dtable + (int64_t)c->head_begin * c->map.codes : NULL;
    call->values = call->values ? call->values + c->head_begin * pairs : NULL;
    call->dvalues = call->dvalues ? call->dvalues + c->head_begin * pairs : NULL;
}

static void carve_parts(context_run *r)
{
    const mg_attn_context *c = r->c;
    const int many = c->shard_count > 1, forward = !r->backward;
    const int64_t rows = c->rows, heads = r->call.heads;
    if (forward && many && !r->call.lse && c->grid.across == 1)
        r->call.lse = r->lse = mg_attn_context_carve(r, 1, rows, heads, 1);
    r->part = mg_attn_context_carve(r, forward && many, rows, heads, r->call.value_dim);
    r->part_lse = mg_attn_context_carve(r, forward && many, rows, heads, 1);
    r->dq_part = mg_attn_context_carve(r, !forward && many && (r->given.dq.data || c->grid.across > 1), rows, heads,
                                       r->call.dim);
    r->dtable_part = mg_attn_context_carve(r, !forward && many && r->call.dtable, heads, c->map.codes, 1);
}

/* Bytes of the largest call of a shard; or negative. */
static int64_t shard_workspace(const context_run *r)
{
    static float any;
    const mg_attn_context *c = r->c;
    int64_t most = 0;
    mg_attn_call call = r->call;
    mg_attn_tensor k = packed_rows(&any, call.heads, call.dim), v = packed_rows(&any, call.heads, call.value_dim);
    call.q.data = call.out.data = call.dout.data = call.lse = &any;
    call.k = k;
    call.v = v;
    call.values = r->given.values ? &any : NULL; /* the workspace depends on whether there are some */
    if (r->backward) {
        call.dk = k;
        call.dv = v;
        call.dq.data = r->given.dq.data || c->grid.across > 1 ? &any : NULL;
        call.dvalues = r->given.dvalues ? &any : NULL;
    }
    if (c->engine.forward)
        return c->engine.workspace_bytes(c->engine.context, &call, r->backward);
    for (int32_t i = 0; i < c->shard_count; i++) {
        const int64_t bytes = mg_attn_workspace_bytes(c->shards[i].plan, &call, r->backward);
        if (bytes < 0)
            return bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static int prepare(context_run *r, const mg_attn_context *c, const mg_attn_call *call, int backward, char *base)
{
    memset(r, 0, sizeof *r);
    if (!c || !call)
        return fail(-EINVAL, "attention over a context: %s is NULL", c ? "call" : "context");
    int status = check_call(c, call, backward);
    if (status)
        return status;
    r->c = c;
    r->backward = backward;
    r->base = base;
    r->given = *call;
    r->given.value_dim = call->value_dim ? call->value_dim : call->dim;
    r->call = r->given;
    take_heads(r);
    r->key_floats = (int64_t)r->call.heads * (r->call.dim + r->call.value_dim);
    carve_messages(r);
    if (c->grid.across > 1)
        mg_attn_context_carve_heads(r);
    carve_parts(r);
    if (c->halo)
        mg_attn_context_carve_halo(r);
    else
        mg_attn_context_carve_ring(r);
    r->workspace = r->base ? r->base + r->used : NULL;
    if (r->overflow)
        return fail(-EOVERFLOW, "attention over a context: %d heads of %lld rows: the workspace's bytes overflow",
                    call->heads, (long long)c->rows);
    return 0;
}

int64_t mg_attn_context_workspace_bytes(const mg_attn_context *c, const mg_attn_call *call, int backward)
{
    context_run r;
    int64_t bytes = prepare(&r, c, call, backward, NULL), sum;
    if (!bytes)
        bytes = shard_workspace(&r);
    if (bytes < 0)
        return bytes;
    if (__builtin_add_overflow(bytes, r.used, &sum))
        return fail(-EOVERFLOW, "attention over a context: the workspace's bytes overflow");
    return sum;
}

/* --- a shard --- */

static mg_attn_call shard_call(const context_run *r, const shard *s, mg_attn_tensor k, mg_attn_tensor v)
{
    mg_attn_call call = r->call;
    call.k = k;
    call.v = v;
    call.dropout.query_ids = r->c->query_ids;
    call.dropout.key_ids = s->key_ids;
    call.workspace = r->workspace;
    return call;
}

void mg_attn_context_forward_shard(context_run *r, int32_t index, mg_attn_tensor k, mg_attn_tensor v, int first)
{
    if (r->status)
        return;
    const shard *s = &r->c->shards[index];
    mg_attn_call call = shard_call(r, s, k, v);
    if (!first) {
        call.out = packed_rows(r->part, call.heads, call.value_dim);
        call.lse = r->part_lse;
    }
    mg_attn_parallel_between(mg_attn_messages_progress, &r->messages);
    r->status = mg_attn_forward(s->plan, &call);
    mg_attn_parallel_between(NULL, NULL);
    if (!r->status && !first)
        mg_attn_rows_merge(r->call.out, r->call.lse, call.out, call.lse, r->c->rows, call.heads, call.value_dim,
                           call.threads);
}

void mg_attn_context_backward_shard(context_run *r, int32_t index, mg_attn_tensor k, mg_attn_tensor v,
                                    mg_attn_tensor dk, mg_attn_tensor dv, int first, const last_keys *last)
{
    if (r->status)
        return;
    const shard *s = &r->c->shards[index];
    mg_attn_call call = shard_call(r, s, k, v);
    const int adds_dq = !first && call.dq.data, adds_dtable = !first && call.dtable;
    call.dk = dk;
    call.dv = dv;
    if (adds_dq)
        call.dq = packed_rows(r->dq_part, call.heads, call.dim);
    if (adds_dtable)
        call.dtable = r->dtable_part;
    mg_attn_parallel_between(mg_attn_messages_progress, &r->messages);
    r->status = mg_attn_backward_last_first(s->plan, &call, last);
    mg_attn_parallel_between(NULL, NULL);
    if (!r->status && adds_dq)
        mg_attn_rows_add(r->call.dq, call.dq, r->c->rows, call.heads, call.dim, call.threads);
    for (int64_t i = 0; !r->status && adds_dtable && i < (int64_t)call.heads * r->c->map.codes; i++)
        r->call.dtable[i] += r->dtable_part[i];
}

/* --- an engine --- */

static mg_attn_call engine_call(const context_run *r)
{
    const shard all = {.key_ids = r->c->ids ? r->c->ids : r->c->places};
    return shard_call(r, &all, r->call.k, r->call.v);
}

static void engine_forward(context_run *r)
{
    const mg_attn_call call = engine_call(r);
    if (call.lse)
        memset(call.lse, 0, (size_t)(call.heads * r->c->rows) * sizeof *call.lse);
    r->status = r->c->engine.forward(r->c->engine.context, &call);
}

static void engine_backward(context_run *r)
{
    const mg_attn_call call = engine_call(r);
    r->status = r->c->engine.backward(r->c->engine.context, &call);
}

/* --- the call --- */

static int begin(context_run *r, const mg_attn_context *c, const mg_attn_call *call, int backward)
{
    if (call && (!call->workspace || (uintptr_t)call->workspace % 64))
        return fail(-EINVAL,
                    "attention over a context: workspace is %s; give mg_attn_context_workspace_bytes() of memory, "
                    "64-byte aligned",
                    call->workspace ? "not aligned" : "NULL");
    return prepare(r, c, call, backward, call ? call->workspace : NULL);
}

/* Where this rank sees no key at all. */
static void forward_nothing(const context_run *r)
{
    mg_attn_rows_zero(r->call.out, r->c->rows, r->call.heads, r->call.value_dim, r->call.threads);
    for (int64_t i = 0; r->call.lse && i < r->call.heads * r->c->rows; i++)
        r->call.lse[i] = -INFINITY;
}

int mg_attn_context_forward(const mg_attn_context *c, const mg_attn_call *call)
{
    context_run r;
    int status = begin(&r, c, call, 0);
    if (!status && c->grid.across > 1)
        status = mg_attn_context_heads_in(&r);
    if (!status && c->engine.forward)
        engine_forward(&r);
    else if (!status && !c->shard_count)
        forward_nothing(&r);
    if (!status && !c->engine.forward)
        status = c->halo ? mg_attn_context_halo_forward(&r) : mg_attn_context_ring_forward(&r);
    if (!status && c->grid.across > 1)
        status = mg_attn_context_heads_out(&r);
    return status ? status : r.status;
}

/* Of all heads and pairs, whatever is computed here. */
static void zero_shares(const context_run *r)
{
    const mg_attn_context *c = r->c;
    const int64_t heads = c->heads;
    if (r->given.dtable)
        memset(r->given.dtable, 0, (size_t)(heads * c->map.codes) * sizeof(float));
    if (r->given.dvalues)
        memset(r->given.dvalues, 0, (size_t)(heads * c->map.near_starts[c->rows]) * sizeof(float));
    if (!c->shard_count && !c->engine.forward && r->call.dq.data)
        mg_attn_rows_zero(r->call.dq, c->rows, r->call.heads, r->call.dim, r->call.threads);
}

int mg_attn_context_backward(const mg_attn_context *c, const mg_attn_call *call)
{
    context_run r;
    int status = begin(&r, c, call, 1);
    if (!status && c->grid.across > 1)
        status = mg_attn_context_heads_in(&r);
    if (!status)
        zero_shares(&r);
    if (!status && c->engine.forward)
        engine_backward(&r);
    else if (!status)
        status = c->halo ? mg_attn_context_halo_backward(&r) : mg_attn_context_ring_backward(&r);
    if (!status && c->grid.across > 1)
        status = mg_attn_context_heads_out(&r);
    return status ? status : r.status;
}
