/* Checks the arguments of a call, for every backend. */
#include "check.h"
#include "library.h"
#include "plan.h"

static int check_sizes(const mg_attn_call *call)
{
    if (call->heads < 1)
        return fail(-EINVAL, "attention with %d heads; at least 1 is needed", call->heads);
    if (call->dim < 1 || call->dim > MG_ATTN_MAX_DIM)
        return fail(-EINVAL, "attention with dim %d; 1 to %d are possible", call->dim, MG_ATTN_MAX_DIM);
    if (call->value_dim < 1 || call->value_dim > MG_ATTN_MAX_DIM)
        return fail(-EINVAL, "attention with value_dim %d; 1 to %d are possible", call->value_dim, MG_ATTN_MAX_DIM);
    if (call->type != MG_ATTN_FP32 && call->type != MG_ATTN_BF16)
        return fail(-EINVAL, "attention with element type %d; there are MG_ATTN_FP32 and MG_ATTN_BF16",
                    (int)call->type);
    if (call->threads < 0)
        return fail(-EINVAL, "attention with %d threads; give 0 for the default", call->threads);
    return 0;
}

static int check_dropout(const mg_attn_dropout *dropout)
{
    if (!(dropout->probability >= 0 && dropout->probability < 1))
        return fail(-EINVAL, "dropout probability %g; it goes from 0 to below 1", (double)dropout->probability);
    if (dropout->layer > UINT16_MAX)
        return fail(-EINVAL, "dropout layer %u; layers go up to %d", dropout->layer, UINT16_MAX);
    if (dropout->head_begin < 0)
        return fail(-EINVAL, "dropout head_begin %d is negative", dropout->head_begin);
    return 0;
}

static int check_given(const char *name, const void *data, int64_t tokens)
{
    if (data || !tokens)
        return 0;
    return fail(-EINVAL, "attention needs %s, and it is NULL", name);
}

/* Whether rows of `dim` elements of two (token, head) overlap. Head by head apart, the nearest tokens are tried. */
static int overlaps(const mg_attn_tensor *t, int64_t tokens, int32_t heads, int32_t dim)
{
    const __int128 stride = t->token_stride;
    for (int32_t h = 0; h < heads; h++) {
        const __int128 apart = (__int128)h * t->head_stride, nearest = stride ? -apart / stride : 0;
        for (__int128 i = nearest - 1; i <= nearest + 1; i++) {
            const __int128 distance = apart + i * stride;
            if ((i || h) && i > -tokens && i < tokens && distance < dim && distance > -dim)
                return 1;
        }
    }
    return 0;
}

static int check_output(const char *name, const mg_attn_tensor *t, int64_t tokens, int32_t heads, int32_t dim)
{
    if (!t->data || !overlaps(t, tokens, heads, dim))
        return 0;
    return fail(-EINVAL, "%s overlaps itself: token_stride %lld, head_stride %lld, %lld tokens, %d heads of %d", name,
                (long long)t->token_stride, (long long)t->head_stride, (long long)tokens, heads, dim);
}

static int check_outputs(const mg_attn_plan *plan, const mg_attn_call *call, int backward)
{
    if (!backward)
        return check_output("out", &call->out, plan->queries, call->heads, call->value_dim);
    int status = check_output("dq", &call->dq, plan->queries, call->heads, call->dim);
    if (!status)
        status = check_output("dk", &call->dk, plan->keys, call->heads, call->dim);
    return status ? status : check_output("dv", &call->dv, plan->keys, call->heads, call->value_dim);
}

static int check_data(const mg_attn_plan *plan, const mg_attn_call *call, int backward)
{
    const int64_t queries = plan->queries, keys = plan->keys;
    int status = check_given("q", call->q.data, queries);
    if (!status)
        status = check_given("k", call->k.data, keys);
    if (!status)
        status = check_given("v", call->v.data, keys);
    if (!status)
        status = check_given("out", call->out.data, queries);
    if (!status && backward)
        status = check_given("dout", call->dout.data, queries);
    if (!status && backward)
        status = check_given("lse", call->lse, queries);
    return status;
}

int mg_attn_check_call(mg_attn_call *normal, const mg_attn_plan *plan, const mg_attn_call *call, int backward)
{
    if (!plan || !call)
        return fail(-EINVAL, "attention: %s is NULL", plan ? "call" : "plan");
    *normal = *call;
    if (!normal->value_dim)
        normal->value_dim = normal->dim;
    int status = check_sizes(normal);
    if (!status)
        status = check_dropout(&normal->dropout);
    if (!status)
        status = check_data(plan, normal, backward);
    if (!status)
        status = check_outputs(plan, normal, backward);
    if (!status && plan->map.kind != MG_ATTN_NEAR && (normal->values || (backward && normal->dvalues)))
        status =
            fail(-EINVAL, "pair values (`%s`) need a map of kind MG_ATTN_NEAR", normal->values ? "values" : "dvalues");
    return status;
}
