/* An epoch: its steps, validation, the best so far, the log. */
#include <math.h>
#include <string.h>

#include "app.h"
#include "memory.h"
#include "progress.h"
#include "trainer.h"

static int stop_now(trainer *t)
{
    int status = mg_trainer_save(t);
    return status ? status : mg_ranks_alike(fail(-ECANCELED, "stopped"));
}

static int save_when_due(trainer *t)
{
    int64_t every = t->config->train.checkpoint_seconds;
    return every && mg_progress_seconds() - t->saved >= (double)every ? mg_trainer_save(t) : 0;
}

static int make_steps(trainer *t)
{
    mg_epoch epoch;
    int64_t each = t->config->train.accumulate;
    int status =
        mg_epoch_create(&epoch, t->in->units, t->graphs, t->graph_count, 1, (uint64_t)t->config->seed, t->state.epoch);
    while (!status && t->state.position < epoch.count) {
        int64_t end = t->state.position + each < epoch.count ? t->state.position + each : epoch.count;
        double weight;
        int stop;
        status = mg_trainer_weigh(&weight, &stop, t, &epoch, t->state.position, end);
        if (!status)
            status = stop ? stop_now(t) : mg_trainer_step(t, &epoch, t->state.position, end, weight);
        if (!status) {
            t->state.position = end;
            status = save_when_due(t);
        }
        if (!status && epoch.count > 1)
            mg_progress_show(0, "%sepoch %lld/%lld  unit %lld/%lld  loss %.4f", t->in->title,
                             (long long)t->state.epoch + 1, (long long)t->config->train.epochs, (long long)end,
                             (long long)epoch.count, t->state.epoch_loss / t->state.epoch_weight);
    }
    mg_epoch_clear(&epoch);
    return status;
}

int mg_trainer_predict(trainer *t, const float *parameters, const int64_t *graphs, int64_t count)
{
    mg_epoch epoch;
    int status = mg_epoch_create(&epoch, t->in->units, graphs, count, 0, 0, 0);
    if (!status)
        status = mg_evaluate(t->item_outputs, NULL, &t->runner, parameters, &epoch, t->problem->outputs, 0);
    mg_epoch_clear(&epoch);
    return status;
}

static int loss_of(double *mean, trainer *t, int which)
{
    const mg_problem *problem = t->problem;
    double sum, weight;
    int64_t count = 0;
    for (int64_t i = 0; i < problem->data->items; i++)
        if (problem->split[i] == which)
            t->rows[count++] = i;
    int status = mg_model_loss_sum(&sum, &weight, NULL, t->model, problem->loss, t->item_outputs, t->rows, count,
                                   problem->labels, problem->targets, problem->class_weights, 1);
    *mean = status || !(weight > 0) ? (double)NAN : sum / weight;
    return relay(status, mg_model_last_error());
}

static void keep_best(trainer *t, double value, double loss)
{
    mg_checkpoint *state = &t->state;
    int has_validation = t->problem->counts[MG_DATASET_VALIDATION] > 0;
    int better = mg_problem_better(t->problem->metric, value, state->best_value) ||
                 (value == state->best_value && loss < state->best_loss) ||
                 (isnan(value) && isnan(state->best_value) && has_validation &&
                  (isnan(state->best_loss) || loss < state->best_loss));
    if (has_validation && !better)
        return;
    state->best_value = value;
    state->best_loss = loss;
    state->best_epoch = state->epoch;
    memcpy(t->best, t->average, (size_t)t->floats * sizeof(float));
}

static void show_epoch(const trainer *t, double loss, double value)
{
    int64_t epochs = t->config->train.epochs, done = t->state.epoch;
    double each = (mg_progress_seconds() - t->start) / (double)(done - t->epochs_before);
    int important = done == 1 || done == epochs || done * 10 / epochs != (done - 1) * 10 / epochs;
    char best[80] = "";
    if (t->problem->counts[MG_DATASET_VALIDATION])
        snprintf(best, sizeof best, "  %s %.4f (best %.4f of epoch %lld)", mg_options_word(t->config, "metric"), value,
                 t->state.best_value, (long long)t->state.best_epoch);
    mg_progress_show(important, "%sepoch %lld/%lld  loss %.4f%s  %s left  %s", t->in->title, (long long)done,
                     (long long)epochs, loss, best, mg_progress_duration(each * (double)(epochs - done)),
                     mg_memory_text(mg_memory_peak()));
}

/* Metric and loss of the validation items, the same bits on all ranks. */
static int validate(trainer *t, double *value, double *loss)
{
    double start = mg_progress_seconds(), both[2] = {(double)NAN, (double)NAN};
    int status = mg_trainer_predict(t, t->average, t->eval_graphs, t->eval_graph_count);
    if (!status && t->speaks) {
        both[0] = mg_problem_score(t->problem, t->problem->metric, t->item_outputs, MG_DATASET_VALIDATION);
        status = loss_of(&both[1], t, MG_DATASET_VALIDATION);
    }
    if (!status)
        status = mg_ranks_broadcast(t->comm, both, 2, MG_COMM_FP64);
    *value = both[0];
    *loss = both[1];
    t->phases.evaluate += mg_progress_seconds() - start;
    return status;
}

static void add_phases(mg_phases *sum, const mg_phases *phases)
{
    sum->attention += phases->attention;
    sum->local += phases->local;
    sum->dense += phases->dense;
    sum->other += phases->other;
    sum->reduce += phases->reduce;
    sum->evaluate += phases->evaluate;
}

static int log_epoch(trainer *t, const mg_log_epoch *epoch)
{
    add_phases(&t->all_phases, &t->phases);
    int status = t->speaks ? mg_log_write_epoch(t->log, epoch) : 0;
    t->phases = (mg_phases){0};
    return status;
}

/* After the steps of an epoch: validation, the best, the log line. The epoch counts as finished only then. */
static int finish_epoch(trainer *t, double start)
{
    mg_checkpoint *state = &t->state;
    double value = (double)NAN, validation_loss = (double)NAN, loss = state->epoch_loss / state->epoch_weight;
    int due = (state->epoch + 1) % t->config->train.evaluate == 0 || state->epoch + 1 == t->config->train.epochs;
    int validates = t->problem->counts[MG_DATASET_VALIDATION] > 0;
    int status = due && validates ? validate(t, &value, &validation_loss) : 0;
    if (status == -ECANCELED)
        return stop_now(t);
    if (status)
        return status;
    state->epoch++;
    if (due)
        keep_best(t, value, validation_loss);
    t->reports[1 + t->ranks] = t->ranks > 1 ? t->reports[1 + t->ranks] : (double)mg_memory_peak();
    status = log_epoch(t, &(mg_log_epoch){.epoch = state->epoch,
                                          .step = state->step,
                                          .loss = loss,
                                          .validation = value,
                                          .validation_loss = validation_loss,
                                          .rate = t->rate,
                                          .seconds = mg_progress_seconds() - start,
                                          .phases = t->phases,
                                          .ranks = t->ranks,
                                          .peak_bytes = t->reports + 1 + t->ranks,
                                          .metric = mg_options_word(t->config, "metric")});
    state->position = 0;
    state->epoch_loss = state->epoch_weight = 0;
    state->finished = mg_trainer_is_finished(t);
    if (!status && due)
        show_epoch(t, loss, value);
    return status;
}

int mg_trainer_epoch(trainer *t)
{
    double start = mg_progress_seconds();
    int status = make_steps(t);
    return status ? status : finish_epoch(t, start);
}
