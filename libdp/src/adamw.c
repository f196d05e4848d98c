#include "megagraph/dp.h"

#include <math.h>

#include "library.h"

enum { CHUNK = 16384, PARTS = 256, LANES = 8 };

/* The numbers of one step, for every element alike. */
typedef struct step_numbers {
    float beta1, beta2, gradient_scale, first_correction, second_correction, epsilon, rate;
} step_numbers;

static int check_ranges(const mg_dp_adamw *adamw, int64_t count)
{
    int64_t last = 0;
    if (adamw->no_decay_count < 0 || (adamw->no_decay_count && !adamw->no_decay))
        return fail(-EINVAL, "adamw: %lld ranges without decay, but no ranges are given",
                    (long long)adamw->no_decay_count);
    for (int64_t r = 0; r < adamw->no_decay_count; r++) {
        mg_dp_range range = adamw->no_decay[r];
        if (range.begin < last || range.end < range.begin || range.end > count)
            return fail(-EINVAL,
                        "adamw: range %lld without decay is [%lld, %lld); ranges ascend, are disjoint and lie in "
                        "[0, %lld)",
                        (long long)r, (long long)range.begin, (long long)range.end, (long long)count);
        last = range.end;
    }
    return 0;
}

static int check_step(const mg_dp_adamw *adamw, int64_t count, int64_t step)
{
    if (count < 0)
        return fail(-EINVAL, "adamw: %lld parameters", (long long)count);
    if (step < 1)
        return fail(-EINVAL, "adamw: step %lld; steps count from 1", (long long)step);
    if (!(adamw->beta1 >= 0 && adamw->beta1 < 1 && adamw->beta2 >= 0 && adamw->beta2 < 1))
        return fail(-EINVAL, "adamw: beta1 %g, beta2 %g; both lie in [0, 1)", adamw->beta1, adamw->beta2);
    if (!(adamw->rate >= 0 && adamw->epsilon >= 0 && adamw->weight_decay >= 0 && adamw->l2 >= 0) || isinf(adamw->rate))
        return fail(-EINVAL, "adamw: rate %g, epsilon %g, weight decay %g, l2 %g; none is negative, NaN or infinite",
                    adamw->rate, adamw->epsilon, adamw->weight_decay, adamw->l2);
    return check_ranges(adamw, count);
}

static void update(float *restrict parameters, float *restrict first, float *restrict second,
                   const float *restrict gradients, int64_t count, const step_numbers *numbers, float decay,
                   float l2)
{
    const step_numbers n = *numbers;
    for (int64_t i = 0; i < count; i++) {
        float gradient = gradients[i] * n.gradient_scale + l2 * parameters[i];
        float m = first[i] = n.beta1 * first[i] + (1 - n.beta1) * gradient;
        float v = second[i] = n.beta2 * second[i] + (1 - n.beta2) * gradient * gradient;
        float direction = m * n.first_correction / (sqrtf(v * n.second_correction) + n.epsilon);
        parameters[i] -= n.rate * (direction + decay * parameters[i]);
    }
}

/* First range that ends after `place`. */
static int64_t range_after(const mg_dp_adamw *adamw, int64_t place)
{
    int64_t low = 0, high = adamw->no_decay_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (adamw->no_decay[middle].end > place)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* [begin, end) in pieces that either all decay or all do not. */
static void update_chunk(float *parameters, float *first, float *second, const float *gradients, int64_t begin,
                         int64_t end, const step_numbers *numbers, const mg_dp_adamw *adamw)
{
    int64_t range = range_after(adamw, begin);
    while (begin < end) {
        int64_t piece_end = end;
        float decay = adamw->weight_decay, l2 = adamw->l2;
        if (range < adamw->no_decay_count) {
            mg_dp_range next = adamw->no_decay[range];
            int inside = next.begin <= begin;
            int64_t border = inside ? next.end : next.begin;
            piece_end = border < end ? border : end;
            decay = inside ? 0 : decay;
            l2 = inside ? 0 : l2;
            range += inside;
        }
        update(parameters + begin, first + begin, second + begin, gradients + begin, piece_end - begin, numbers, decay,
               l2);
        begin = piece_end;
    }
}

int mg_dp_adamw_step(float *parameters, float *first_moment, float *second_moment, const float *gradients,
                     int64_t count, const mg_dp_adamw *adamw, int64_t step, double gradient_scale)
{
    int status = check_step(adamw, count, step);
    if (status)
        return status;
    step_numbers numbers = {.beta1 = adamw->beta1,
                            .beta2 = adamw->beta2,
                            .gradient_scale = (float)gradient_scale,
                            .first_correction = (float)(1 / (1 - pow(adamw->beta1, (double)step))),
                            .second_correction = (float)(1 / (1 - pow(adamw->beta2, (double)step))),
                            .epsilon = adamw->epsilon,
                            .rate = adamw->rate};
    int64_t chunks = count / CHUNK + (count % CHUNK != 0);
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < chunks; c++) {
        int64_t begin = c * CHUNK, end = count - begin < CHUNK ? count : begin + CHUNK;
        update_chunk(parameters, first_moment, second_moment, gradients, begin, end, &numbers, adamw);
    }
    return 0;
}

static double square_sum(const float *values, int64_t count)
{
    double lanes[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] += (double)values[i + lane] * values[i + lane];
    for (; i < count; i++)
        sum += (double)values[i] * values[i];
    for (int lane = 0; lane < LANES; lane++)
        sum += lanes[lane];
    return sum;
}

double mg_dp_square_sum(const float *values, int64_t count)
{
    double parts[PARTS], sum = 0;
    int64_t length = count / PARTS + 1; /* of a part: by count alone, so the sum is the same on any machine */
#pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < PARTS; part++) {
        int64_t begin = part * length;
        int64_t left = count - begin;
        parts[part] = left <= 0 ? 0 : square_sum(values + begin, left < length ? left : length);
    }
    for (int64_t part = 0; part < PARTS; part++)
        sum += parts[part];
    return sum;
}

double mg_dp_clip_scale(double norm, double limit)
{
    double scale = limit / norm;
    return limit == 0 || scale > 1 ? 1 : scale; /* a norm that is NaN gives NaN */
}
