/* Losses as sums with weights, and their gradients; fp64 sums in the order of the rows. */
#include "internal.h"

#include <math.h>

typedef struct terms {
    const mg_model *model;
    const int64_t *rows;
    int64_t count;
    const int32_t *labels;
    const float *targets, *class_weights;
} terms;

static int64_t row_of(const terms *t, int64_t k) { return t->rows ? t->rows[k] : k; }

static double class_weight(const terms *t, int64_t class) { return t->class_weights ? t->class_weights[class] : 1; }

/* Weights of binary outputs: [outputs][2], of targets 0 and 1. */
static double binary_weight(const terms *t, int64_t output, float target)
{
    return t->class_weights ? t->class_weights[2 * output + (target != 0)] : 1;
}

/* --- checks --- */

static int check_labels(const terms *t)
{
    int64_t outputs = t->model->desc.outputs;
    for (int64_t k = 0; k < t->count; k++) {
        int64_t label = t->labels[row_of(t, k)];
        if (label < -1 || label >= outputs)
            return fail(-EINVAL, "loss: row %lld has label %lld; labels are 0 to %lld, or -1: none",
                        (long long)row_of(t, k), (long long)label, (long long)outputs - 1);
    }
    return 0;
}

static int check_binary(const terms *t)
{
    int64_t outputs = t->model->desc.outputs;
    for (int64_t k = 0; k < t->count; k++)
        for (int64_t o = 0; o < outputs; o++) {
            float target = t->targets[row_of(t, k) * outputs + o];
            if (!isnan(target) && target != 0 && target != 1)
                return fail(-EINVAL, "loss: row %lld, output %lld has target %g; targets are 0, 1 or NaN: none",
                            (long long)row_of(t, k), (long long)o, (double)target);
        }
    return 0;
}

static int check_terms(const terms *t, mg_model_loss kind)
{
    if (kind != MG_MODEL_CROSS_ENTROPY && kind != MG_MODEL_BINARY && kind != MG_MODEL_ABSOLUTE)
        return fail(-EINVAL, "loss: kind %d is not known", (int)kind);
    if (t->count < 0)
        return fail(-EINVAL, "loss: %lld rows", (long long)t->count);
    if (t->count && (kind == MG_MODEL_CROSS_ENTROPY ? !t->labels : !t->targets))
        return fail(-EINVAL, "loss: %s are not given", kind == MG_MODEL_CROSS_ENTROPY ? "labels" : "targets");
    if (kind == MG_MODEL_ABSOLUTE && t->class_weights)
        return fail(-EINVAL, "loss: class weights are given, but an absolute error has no classes");
    return kind == MG_MODEL_CROSS_ENTROPY ? check_labels(t) : kind == MG_MODEL_BINARY ? check_binary(t) : 0;
}

/* --- one row: adds to loss and weight, writes doutputs --- */

typedef struct sum {
    double loss, weight, scale;
} sum;

static void cross_entropy(sum *s, const terms *t, int64_t row, float *dout, const float *out)
{
    int64_t outputs = t->model->desc.outputs, label = t->labels[row];
    float most;
    if (label < 0) {
        t->model->rows->fill(dout, NULL, 1, outputs);
        return;
    }
    double weight = class_weight(t, label), log_sum = t->model->rows->softmax(dout, &most, out, outputs);
    s->loss += weight * (log_sum - ((double)out[label] - most));
    s->weight += weight;
    dout[label] -= 1;
    for (int64_t o = 0; o < outputs; o++)
        dout[o] *= (float)(weight * s->scale);
}

/* log(1 + exp(x)) - target x, with no overflow. */
static void binary(sum *s, const terms *t, int64_t row, float *dout, const float *out)
{
    int64_t outputs = t->model->desc.outputs;
    const float *targets = t->targets + row * outputs;
    t->model->rows->logistic(dout, out, outputs);
    for (int64_t o = 0; o < outputs; o++) {
        double x = out[o], target = targets[o];
        if (isnan(target)) {
            dout[o] = 0;
            continue;
        }
        double weight = binary_weight(t, o, targets[o]);
        s->loss += weight * (fmax(x, 0) + log1p(exp(-fabs(x))) - target * x);
        s->weight += weight;
        dout[o] = (float)(weight * s->scale) * (dout[o] - targets[o]);
    }
}

static void absolute(sum *s, const terms *t, int64_t row, float *dout, const float *out)
{
    int64_t outputs = t->model->desc.outputs;
    for (int64_t o = 0; o < outputs; o++) {
        double error = (double)out[o] - t->targets[row * outputs + o];
        dout[o] = 0;
        if (isnan(t->targets[row * outputs + o]))
            continue;
        s->loss += fabs(error);
        s->weight += 1;
        dout[o] = (float)(s->scale * ((error > 0) - (error < 0)));
    }
}

/* --- */

int mg_model_loss_sum(double *loss, double *weight, float *doutputs, const mg_model *model, mg_model_loss kind,
                      const float *outputs, const int64_t *rows, int64_t count, const int32_t *labels,
                      const float *targets, const float *class_weights, double scale)
{
    static void (*const kinds[])(sum *, const terms *, int64_t, float *, const float *) = {
        [MG_MODEL_CROSS_ENTROPY] = cross_entropy, [MG_MODEL_BINARY] = binary, [MG_MODEL_ABSOLUTE] = absolute};
    terms t = {model, rows, count, labels, targets, class_weights};
    sum s = {.scale = scale};
    int64_t columns = model->desc.outputs;
    int status = check_terms(&t, kind);
    if (status)
        return status;
    float *unwanted = doutputs ? NULL : allocate(columns, sizeof *unwanted);
    if (!doutputs && !unwanted)
        return -ENOMEM;
    for (int64_t k = 0; k < count; k++) {
        int64_t row = row_of(&t, k);
        kinds[kind](&s, &t, row, doutputs ? doutputs + row * columns : unwanted, outputs + row * columns);
    }
    release(unwanted);
    *loss = s.loss;
    *weight = s.weight;
    return 0;
}

double mg_model_loss_weight(const mg_model *model, mg_model_loss kind, const int64_t *rows, int64_t count,
                            const int32_t *labels, const float *targets, const float *class_weights)
{
    terms t = {model, rows, count, labels, targets, class_weights};
    int64_t outputs = model->desc.outputs;
    double weight = 0;
    for (int64_t k = 0; k < count; k++) {
        int64_t row = row_of(&t, k);
        if (kind == MG_MODEL_CROSS_ENTROPY) {
            weight += labels[row] >= 0 ? class_weight(&t, labels[row]) : 0;
            continue;
        }
        for (int64_t o = 0; o < outputs; o++) {
            float target = targets[row * outputs + o];
            if (!isnan(target))
                weight += kind == MG_MODEL_BINARY ? binary_weight(&t, o, target) : 1;
        }
    }
    return weight;
}
