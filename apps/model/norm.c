/* Layer norms and gains of some rows; a model without them leaves rows as they are. */
#include "internal.h"

#include <string.h>

void mg_model_norm(const run *r, float *y, const float *x, int64_t rows, int64_t weight, int64_t bias)
{
    int64_t hidden = r->model->desc.hidden;
    if (weight < 0)
        memcpy(y, x, (size_t)(rows * hidden) * sizeof *y);
    else
        r->model->rows->norm(y, x, r->parameters + weight, r->parameters + bias, rows, hidden);
}

void mg_model_norm_backward(const run *r, const sums *to, float *dx, const float *dy, const float *x, int64_t rows,
                            int64_t weight, int64_t bias)
{
    int64_t hidden = r->model->desc.hidden;
    if (weight < 0)
        r->model->rows->add(dx, dy, rows * hidden);
    else
        r->model->rows->norm_backward(dx, sum_of(to, weight), sum_of(to, bias), dy, x, r->parameters + weight, rows,
                                      hidden);
}

void mg_model_gain(const run *r, float *y, int64_t rows, int64_t gain)
{
    if (gain >= 0)
        r->model->rows->gain(y, r->parameters + gain, rows, r->model->desc.hidden);
}

void mg_model_gain_backward(const run *r, const sums *to, float *dy, const float *y, int64_t rows, int64_t gain)
{
    if (gain >= 0)
        r->model->rows->gain_backward(dy, sum_of(to, gain), y, r->parameters + gain, rows, r->model->desc.hidden);
}
