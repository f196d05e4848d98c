/* What nodes without a training label add to a step: their outputs, with dropout, are to agree with those that the
 * averaged weights give without it (Tarvainen and Valpola 2017, "Mean teachers"). With q = softmax(taught) of such a
 * row and p = softmax(its outputs), cross entropy of p against q, its mean over those rows times train.consistency.
 * The weight rises over the first 1 / (1 - train.average) steps, which is as long as the average remembers. */
#include <math.h>
#include <string.h>

#include "app.h"
#include "trainer.h"

int mg_trainer_teach(trainer *t, const mg_unit *unit)
{
    return relay(mg_model_forward(t->model, t->average, t->runner.pass, &unit->view,
                                  &(mg_model_step){.threads = (int)t->config->threads}, t->taught),
                 mg_model_last_error());
}

/* exp(-5 (1 - x)^2) for x from 0 to 1, as Laine and Aila (2017) raise it. */
static double weight_now(const trainer *t)
{
    double done = (double)t->state.step * (1 - t->config->train.average), left = done < 1 ? 1 - done : 0;
    return t->config->train.consistency * exp(-5 * left * left);
}

void mg_trainer_agree(trainer *t, const mg_unit *unit)
{
    int64_t classes = t->problem->outputs;
    float scale = (float)(weight_now(t) / t->untrained);
    for (int64_t r = 0; r < unit->rows; r++) {
        int64_t item = unit->row_items[r];
        float *to = t->doutputs + r * classes, *q = t->taught + r * classes;
        if (item < 0 || t->problem->split[item] == MG_DATASET_TRAIN)
            continue;
        memcpy(to, t->runner.outputs + r * classes, (size_t)classes * sizeof *to);
        mg_problem_softmax(q, classes);
        mg_problem_softmax(to, classes);
        for (int64_t c = 0; c < classes; c++)
            to[c] = scale * (to[c] - q[c]);
    }
}
