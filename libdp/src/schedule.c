#include "megagraph/dp.h"

#include <math.h>

/* Share of the way from the end of the warm-up to `steps`, 1 at and after it. */
static double progress(int64_t step, int64_t warmup, int64_t steps)
{
    return step >= steps ? 1 : (double)(step - warmup) / (double)(steps - warmup);
}

double mg_dp_schedule_rate(mg_dp_schedule schedule, double rate, int64_t step, int64_t warmup, int64_t steps)
{
    if (step < warmup)
        return rate * (double)(step + 1) / (double)warmup;
    if (schedule == MG_DP_LINEAR)
        return rate * (1 - progress(step, warmup, steps));
    if (schedule == MG_DP_COSINE)
        return rate * (0.5 + 0.5 * cos(3.14159265358979323846 * progress(step, warmup, steps)));
    return rate;
}
