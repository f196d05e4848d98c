/* One step: the loss and gradients of some units, summed over ranks, and AdamW. */
#include <math.h>
#include <string.h>

#include "app.h"
#include "memory.h"
#include "progress.h"
#include "trainer.h"

typedef struct weigher {
    const mg_problem *problem;
    double weight, others;
} weigher;

/* What a training item adds to the weight of a loss, as mg_model_loss_sum counts it; other items are counted. */
static void weigh_item(void *context, int64_t item)
{
    weigher *w = context;
    const mg_problem *problem = w->problem;
    if (item < 0 || problem->split[item] != MG_DATASET_TRAIN) {
        w->others += item >= 0;
        return;
    }
    if (problem->labels) {
        w->weight += problem->class_weights ? (double)problem->class_weights[problem->labels[item]] : 1;
        return;
    }
    for (int64_t c = 0; c < problem->outputs; c++)
        w->weight += !isnan(problem->targets[item * problem->outputs + c]);
}

/* Labels or targets by output row, and the rows that are training items. */
typedef struct truth {
    int32_t *labels;
    float *targets;
    int64_t *rows, count;
} answers;

static int find_answers(answers *out, const mg_problem *problem, const mg_unit *unit, int64_t *rows)
{
    int64_t columns = problem->outputs;
    *out = (answers){.rows = rows};
    if (problem->labels)
        out->labels = allocate(unit->rows, sizeof(int32_t));
    else
        out->targets = allocate(unit->rows * columns, sizeof(float));
    if (!out->labels && !out->targets)
        return -ENOMEM;
    for (int64_t r = 0; r < unit->rows; r++) {
        int64_t item = unit->row_items[r];
        if (out->labels)
            out->labels[r] = item < 0 ? -1 : problem->labels[item];
        for (int64_t c = 0; out->targets && c < columns; c++)
            out->targets[r * columns + c] = item < 0 ? NAN : problem->targets[item * columns + c];
        if (item >= 0 && problem->split[item] == MG_DATASET_TRAIN)
            rows[out->count++] = r;
    }
    return 0;
}

static int fit_doutputs(trainer *t, int64_t count)
{
    if (t->doutputs && count <= t->doutputs_room)
        return 0;
    release(t->doutputs);
    int parts = t->config->train.consistency > 0 ? 2 : 1;
    t->doutputs = allocate(count, (size_t)parts * sizeof(float));
    t->doutputs_room = t->doutputs ? count : 0;
    t->taught = t->doutputs && parts == 2 ? t->doutputs + count : NULL;
    return t->doutputs ? 0 : -ENOMEM;
}

static void add_times(mg_phases *sum, mg_model_times after, mg_model_times before)
{
    sum->attention += after.attention - before.attention;
    sum->local += after.local - before.local;
    sum->dense += after.dense - before.dense;
    sum->other += after.other - before.other;
}

/* Forward, loss and backward of one unit; adds to the gradients and to *loss. */
static int learn_unit(trainer *t, const mg_unit *unit, double scale, double *loss)
{
    const mg_problem *problem = t->problem;
    mg_model_step step = {.training = 1,
                          .seed = (uint64_t)t->config->seed,
                          .step = (uint32_t)t->state.step,
                          .threads = (int)t->config->threads};
    answers truth;
    double sum = 0, weight = 0;
    int status = find_answers(&truth, problem, unit, t->rows);
    if (!status)
        status = mg_runner_fit(&t->runner, unit, problem->outputs);
    if (!status)
        status = fit_doutputs(t, unit->rows * problem->outputs);
    if (!status && t->config->train.consistency > 0)
        status = mg_trainer_teach(t, unit);
    mg_model_times before = status ? (mg_model_times){0} : mg_model_pass_times(t->runner.pass);
    if (!status)
        status = relay(mg_model_forward(t->model, t->parameters, t->runner.pass, &unit->view, &step, t->runner.outputs),
                       mg_model_last_error());
    if (!status) /* rows that are no training items have gradient 0: the loss leaves them alone */
        memset(t->doutputs, 0, (size_t)(unit->rows * problem->outputs) * sizeof(float));
    if (!status)
        status =
            relay(mg_model_loss_sum(&sum, &weight, t->doutputs, t->model, problem->loss, t->runner.outputs, truth.rows,
                                    truth.count, truth.labels, truth.targets, problem->class_weights, scale),
                  mg_model_last_error());
    if (!status && t->config->train.consistency > 0)
        mg_trainer_agree(t, unit);
    if (!status)
        status = relay(
            mg_model_backward(t->model, t->parameters, t->gradients, t->runner.pass, &unit->view, &step, t->doutputs),
            mg_model_last_error());
    if (!status)
        add_times(&t->phases, mg_model_pass_times(t->runner.pass), before);
    *loss += sum;
    release(truth.labels);
    release(truth.targets);
    return status;
}

static int64_t steps_of_epoch(const trainer *t, const mg_epoch *epoch)
{
    return (epoch->count + t->config->train.accumulate - 1) / t->config->train.accumulate;
}

static double rate_of_step(const trainer *t, const mg_epoch *epoch)
{
    static const mg_dp_schedule schedules[] = {MG_DP_COSINE, MG_DP_CONSTANT, MG_DP_LINEAR, MG_DP_COSINE};
    return mg_dp_schedule_rate(schedules[t->config->train.schedule], t->config->train.lr, t->state.step,
                               t->config->train.warmup, t->config->train.epochs * steps_of_epoch(t, epoch));
}

static int update(trainer *t, const mg_epoch *epoch, double norm)
{
    t->rate = rate_of_step(t, epoch);
    mg_dp_adamw adamw = {.rate = (float)t->rate,
                         .weight_decay = (float)t->config->train.weight_decay,
                         .l2 = (float)t->config->train.l2,
                         .beta1 = 0.9f,
                         .beta2 = 0.999f,
                         .epsilon = 1e-8f,
                         .no_decay = t->no_decay,
                         .no_decay_count = t->no_decay_count};
    return relay(mg_dp_adamw_step(t->parameters, t->first, t->second, t->gradients, t->floats, &adamw,
                                  t->state.step + 1, mg_dp_clip_scale(norm, t->config->train.clip)),
                 mg_dp_last_error());
}

/* average += (1 - decay) * (parameters - average); the first steps count for more, so that where training began is soon
 * forgotten. */
static void average(trainer *t)
{
    double step = (double)t->state.step, most = (1 + step) / (10 + step), wanted = t->config->train.average;
    float share = (float)(1 - (wanted < most ? wanted : most));
    if (t->average == t->parameters)
        return;
    for (int64_t i = 0; i < t->floats; i++)
        t->average[i] += share * (t->parameters[i] - t->average[i]);
}

static int note_seconds(trainer *t, double seconds)
{
    if (t->step_count == t->step_room) {
        int64_t room = t->step_room ? 2 * t->step_room : 256;
        double *more = reallocate(t->step_seconds, room, sizeof *more);
        if (!more)
            return -ENOMEM;
        t->step_seconds = more;
        t->step_room = room;
    }
    t->step_seconds[t->step_count++] = seconds;
    return 0;
}

static int refuse_loss(const trainer *t, double loss, double norm)
{
    mg_checkpoint last;
    char kept[100] = "no checkpoint had been written";
    if (!mg_checkpoint_open(&last, t->in->run)) {
        snprintf(kept, sizeof kept, "the checkpoint of step %lld is kept", (long long)last.step);
        mg_checkpoint_clear(&last);
    }
    return fail(-EDOM,
                "%sthe loss is %g and the gradient's norm %g at step %lld of epoch %lld: lower train.lr (%g), or set "
                "train.clip; %s",
                t->in->title, loss, norm, (long long)t->state.step + 1, (long long)t->state.epoch + 1,
                t->config->train.lr, kept);
}

int mg_trainer_weigh(double *weight, int *stop, trainer *t, const mg_epoch *epoch, int64_t begin, int64_t end)
{
    weigher w = {.problem = t->problem};
    for (int64_t k = begin; k < end; k++)
        mg_epoch_items(epoch, k, weigh_item, &w);
    double sums[3] = {w.weight, mg_progress_stop_wanted() != 0, w.others};
    int status = mg_ranks_sum(t->comm, sums, 3, MG_COMM_FP64);
    *weight = sums[0];
    *stop = sums[1] > 0;
    t->untrained = sums[2];
    return status;
}

/* Gradients become their sum over ranks. */
static int reduce(trainer *t)
{
    double start = mg_progress_seconds();
    int status = mg_ranks_sum(t->comm, t->gradients, t->floats, MG_COMM_FP32);
    t->phases.reduce += mg_progress_seconds() - start;
    return status;
}

/* t->reports of all ranks: the loss is summed, the rest is each rank's own. */
static int report(trainer *t, double *loss, int64_t sent)
{
    int rank = mg_ranks_rank(t->comm);
    memset(t->reports, 0, (size_t)(1 + 2 * t->ranks) * sizeof *t->reports);
    t->reports[0] = *loss;
    t->reports[1 + rank] = (double)sent;
    t->reports[1 + t->ranks + rank] = (double)mg_memory_peak();
    int status = mg_ranks_sum(t->comm, t->reports, 1 + 2 * t->ranks, MG_COMM_FP64);
    *loss = t->reports[0];
    return status;
}

static int add_gradients(trainer *t, const mg_epoch *epoch, int64_t begin, int64_t end, double weight, double *loss)
{
    int status = 0;
    memset(t->gradients, 0, (size_t)t->floats * sizeof(float));
    for (int64_t k = begin; k < end && !status; k++) {
        mg_unit *unit;
        status = mg_epoch_take(&unit, epoch, k);
        if (status)
            break;
        status = learn_unit(t, unit, 1 / weight, loss);
        mg_epoch_return(epoch, unit);
    }
    return status;
}

int mg_trainer_step(trainer *t, const mg_epoch *epoch, int64_t begin, int64_t end, double weight)
{
    double start = mg_progress_seconds(), loss = 0, norm = 0;
    int64_t before = mg_ranks_sent_bytes(t->comm);
    if (!(weight > 0)) {
        if (!t->skipped_said++)
            mg_progress_say("note: a cluster without training items makes no step");
        return 0;
    }
    int status = add_gradients(t, epoch, begin, end, weight, &loss);
    if (!status)
        status = reduce(t);
    if (!status)
        status = report(t, &loss, mg_ranks_sent_bytes(t->comm) - before);
    if (!status)
        norm = sqrt(mg_dp_square_sum(t->gradients, t->floats));
    if (!status && (!isfinite(loss) || !isfinite(norm)))
        return mg_ranks_alike(refuse_loss(t, loss / weight, norm));
    if (!status)
        status = update(t, epoch, norm);
    if (status)
        return status;
    t->state.step++;
    average(t);
    t->state.epoch_loss += loss;
    t->state.epoch_weight += weight;
    double seconds = mg_progress_seconds() - start;
    status = note_seconds(t, seconds);
    if (status || !t->speaks)
        return status;
    return mg_log_write_step(t->log, &(mg_log_step){.step = t->state.step,
                                                    .epoch = t->state.epoch + 1,
                                                    .loss = loss / weight,
                                                    .rate = t->rate,
                                                    .norm = norm,
                                                    .seconds = seconds,
                                                    .ranks = t->ranks,
                                                    .sent_bytes = t->reports + 1});
}
