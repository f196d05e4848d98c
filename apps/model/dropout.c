/* Dropout of hidden values: the mask is a function of (seed, step, site, token id, column) and is never stored. */
#include "internal.h"

#include "philox.h"

static float probability(const run *r, int site)
{
    const mg_model_desc *desc = &r->model->desc;
    return !r->step.training ? 0 : site == SITE_INPUT ? desc->input_dropout : desc->dropout;
}

int mg_model_drops(const run *r, int site) { return probability(r, site) > 0; }

static uint32_t site_word(int64_t layer, int site)
{
    return site == SITE_INPUT ? 0xFFFF0000u : site == SITE_HEAD ? 0xFFFF0001u : (uint32_t)(16 * layer + site);
}

void mg_model_drop(const run *r, float *y, const uint32_t *ids, int64_t rows, int64_t first, int64_t columns,
                   int64_t layer, int site)
{
    double p = probability(r, site);
    if (p == 0)
        return;
    const uint32_t limit = mg_attn_mask_limit(p);
    mg_model_mask mask = {
        .threshold = limit,
        .scale = mg_attn_mask_scale(limit),
        .key = {(uint32_t)r->step.seed, (uint32_t)(r->step.seed >> 32) ^ 0x9E3779B9u},
        .site = site_word(layer, site),
        .step = r->step.step,
    };
    r->model->rows->dropout(y, ids, rows, first, columns, &mask);
}
