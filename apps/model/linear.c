/* Dense products of a chunk of rows, by oneDNN: y = x W^T + b with W [out][in]. Each call is one product on one thread,
 * so that how oneDNN splits a product over threads never reaches a result. */
#include "internal.h"

#include <oneapi/dnnl/dnnl.h>

void mg_model_product(scratch *s, char a_transposed, char b_transposed, int64_t m, int64_t n, int64_t k, const float *a,
                      int64_t lda, const float *b, int64_t ldb, float keep, float *c, int64_t ldc)
{
    double begun = mg_model_seconds();
    dnnl_status_t status = dnnl_sgemm(a_transposed, b_transposed, m, n, k, 1, a, lda, b, ldb, keep, c, ldc);
    if (status != dnnl_success)
        s->status = (int)status;
    s->dense_seconds += mg_model_seconds() - begun;
}

void mg_model_linear(const run *r, scratch *s, float *y, const float *x, int64_t rows, int64_t weight, int64_t bias,
                     int64_t in, int64_t out)
{
    if (bias >= 0)
        r->model->rows->fill(y, r->parameters + bias, rows, out);
    mg_model_product(s, 'N', 'T', rows, out, in, x, in, r->parameters + weight, in, bias >= 0, y, out);
}

void mg_model_linear_input(const run *r, scratch *s, float *dx, float keep, const float *dy, int64_t rows,
                           int64_t weight, int64_t in, int64_t out)
{
    mg_model_product(s, 'N', 'N', rows, in, out, dy, out, r->parameters + weight, in, keep, dx, in);
}

void mg_model_linear_weight(const run *r, scratch *s, const sums *to, const float *dy, const float *x, int64_t rows,
                            int64_t weight, int64_t bias, int64_t in, int64_t out)
{
    mg_model_product(s, 'T', 'N', out, in, rows, dy, out, x, in, 1, sum_of(to, weight), in);
    if (bias >= 0)
        r->model->rows->column_sums(sum_of(to, bias), dy, rows, out);
}
