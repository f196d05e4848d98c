/* Rows of other ranks for local parts: norm1(x) of the fetched rows comes in before a local part, gradients of them go
 * home after its backward. Attention runs between begin and end. */
#include "internal.h"

static int halo_failed(int status, int64_t layer)
{
    return status ? fail(status, "local part of block %lld: %s", (long long)layer, mg_attn_last_error()) : 0;
}

int mg_model_exchange_roots(const run *r)
{
    mg_attn_halo *halo = r->batch->halo;
    float *roots = r->pass->index.roots, *buffer = r->pass->exchange;
    int status = halo ? mg_attn_halo_fetch_begin(halo, roots, 1, 1, buffer) : 0;
    if (halo && !status)
        status = mg_attn_halo_fetch_end(halo, roots, 1, 1, buffer);
    return halo_failed(status, 0);
}

typedef int begin_call(mg_attn_halo *halo, const float *rows, int64_t stride, int64_t width, float *buffer);
typedef int end_call(mg_attn_halo *halo, float *rows, int64_t stride, int64_t width, float *buffer);

static int begin(const run *r, int64_t layer, begin_call *call, const float *rows)
{
    int64_t hidden = r->model->desc.hidden;
    double begun = mg_model_seconds();
    if (!r->batch->halo || !rows)
        return 0;
    int status = call(r->batch->halo, rows, hidden, hidden, r->pass->exchange);
    r->pass->exchanging = !status;
    r->pass->times.local += mg_model_seconds() - begun;
    return halo_failed(status, layer);
}

static int end(const run *r, int64_t layer, end_call *call, float *rows, int status)
{
    int64_t hidden = r->model->desc.hidden;
    double begun = mg_model_seconds();
    if (!r->pass->exchanging)
        return status;
    r->pass->exchanging = 0;
    int ended = call(r->batch->halo, rows, hidden, hidden, r->pass->exchange);
    r->pass->times.local += mg_model_seconds() - begun;
    return status ? status : halo_failed(ended, layer);
}

int mg_model_exchange_fetch_begin(const run *r, int64_t layer)
{
    return begin(r, layer, mg_attn_halo_fetch_begin, r->pass->normal);
}

int mg_model_exchange_fetch_end(const run *r, int64_t layer, int status)
{
    return end(r, layer, mg_attn_halo_fetch_end, r->pass->normal, status);
}

int mg_model_exchange_return_begin(const run *r, int64_t layer)
{
    return begin(r, layer, mg_attn_halo_return_begin, r->pass->dnormal);
}

int mg_model_exchange_return_end(const run *r, int64_t layer, int status)
{
    return end(r, layer, mg_attn_halo_return_end, r->pass->dnormal, status);
}
