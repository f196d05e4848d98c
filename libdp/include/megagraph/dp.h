/* megagraph/dp.h: the optimizer over flat parameter ranges ("dp": data parallelism, which this library will spread over
 * ranks). A model's parameters are one flat range of floats; so are its gradients and the two moments.
 *
 *     mg_dp_adamw adamw = {.rate = 1e-3f, .weight_decay = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f};
 *     double norm = sqrt(mg_dp_square_sum(gradients, count));
 *     mg_dp_adamw_step(parameters, first, second, gradients, count, &adamw, step, scale);
 *
 * Status: 0 or a negative <errno.h> value, with mg_dp_last_error(). Memory: nothing is allocated.
 * Threads: OpenMP's default; results are bitwise the same for any number of threads.
 */
#ifndef MEGAGRAPH_DP_H
#define MEGAGRAPH_DP_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#define MG_DP_API __attribute__((visibility("default")))
#else
#define MG_DP_API
#endif

MG_DP_API const char *mg_dp_last_error(void);
MG_DP_API void mg_dp_set_memory_hook(int (*hook)(int64_t bytes)); /* as in megagraph/attn.h */

/* [begin, end) in elements of the flat range. */
typedef struct mg_dp_range {
    int64_t begin, end;
} mg_dp_range;

/* AdamW (Loshchilov and Hutter 2019, algorithm 2): p -= rate * (m / (sqrt(v) + epsilon) + weight_decay * p) with
   bias-corrected m and v of gradient + l2 * p. weight_decay is decoupled; l2 is the classic penalty l2 / 2 * p^2 inside the loss, which
   Adam scales like any gradient, so it pulls weights that the data say little of to 0. Zeroes mean zero; nothing is defaulted. */
typedef struct mg_dp_adamw {
    float rate, weight_decay, l2, beta1, beta2, epsilon;
    const mg_dp_range *no_decay; /* [no_decay_count] ascending, disjoint: biases, norms, tables take neither */
    int64_t no_decay_count;
} mg_dp_adamw;

/* One step in place. gradients are multiplied by gradient_scale first (clipping, averaging). step counts from 1.
   -EINVAL: step < 1, ranges not ascending or outside [0, count), a beta outside [0, 1), a negative or NaN rate, epsilon or
   decay; nothing is then changed. A NaN gradient makes its parameter NaN. O(count) time. */
MG_DP_API int mg_dp_adamw_step(float *parameters, float *first_moment, float *second_moment, const float *gradients,
                               int64_t count, const mg_dp_adamw *adamw, int64_t step, double gradient_scale);

/* Sum of squares in fp64, by fixed chunks added in order. NaN and Inf stay. */
MG_DP_API double mg_dp_square_sum(const float *values, int64_t count);

/* Factor that clips a gradient of this norm to at most `limit`: min(1, limit / norm); limit 0: 1. */
MG_DP_API double mg_dp_clip_scale(double norm, double limit);

typedef enum mg_dp_schedule { MG_DP_CONSTANT, MG_DP_LINEAR, MG_DP_COSINE } mg_dp_schedule;

/* Learning rate of `step` (from 0) of `steps`: rises linearly over `warmup` steps, rate / warmup at step 0, to `rate` at step
   warmup - 1; then stays, falls linearly or by a half cosine from `rate` at step `warmup` to 0 at `steps`, where it stays. */
MG_DP_API double mg_dp_schedule_rate(mg_dp_schedule schedule, double rate, int64_t step, int64_t warmup, int64_t steps);

#ifdef __cplusplus
}
#endif
#endif
