/* A whole training: epochs until all are done or patience ends, then the summary. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "memory.h"
#include "progress.h"
#include "trainer.h"

static int train_epochs(trainer *t)
{
    int status = 0, first = 1;
    while (!status && !mg_trainer_is_finished(t)) {
        status = mg_trainer_epoch(t);
        if (!status && first && t->config->train.checkpoint_seconds && !t->state.finished)
            status = mg_trainer_save(t); /* from now on there is one to fall back on */
        first = 0;
    }
    return status;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What each rank held at most; the most that a process did. */
static int gather_peaks(mg_summary *summary, const trainer *t)
{
    int64_t peaks[MG_RANKS_MOST], ones[MG_RANKS_MOST];
    for (int r = 0; r < t->ranks; r++)
        ones[r] = 1;
    peaks[mg_ranks_rank(t->comm)] = mg_memory_peak();
    summary->ranks = t->ranks;
    summary->peak_resident_bytes = mg_memory_resident_peak();
    int status = mg_ranks_gather(t->comm, peaks, ones, MG_COMM_INT64);
    memcpy(summary->peak_memory_bytes, peaks, (size_t)t->ranks * sizeof *peaks);
    return status ? status : mg_ranks_most(t->comm, &summary->peak_resident_bytes, 1);
}

/* Rank 0 alone has the test. */
static int summarise(mg_summary *summary, trainer *t)
{
    const mg_problem *problem = t->problem;
    *summary = (mg_summary){.best_epoch = t->state.best_epoch,
                            .epochs = t->state.epoch,
                            .steps = t->state.step,
                            .parameters = t->floats,
                            .seed = t->config->seed,
                            .split = t->in->split,
                            .preprocess_seconds = t->in->preprocess_seconds,
                            .phases = t->all_phases};
    int status = mg_trainer_predict(t, t->state.best_epoch < 0 ? t->average : t->best, NULL, 0);
    if (!status)
        status = gather_peaks(summary, t);
    if (status || !t->speaks)
        return status;
    if (t->step_count)
        qsort(t->step_seconds, (size_t)t->step_count, sizeof(double), by_value);
    summary->test = mg_problem_score(problem, problem->metric, t->item_outputs, MG_DATASET_TEST);
    summary->validation = mg_problem_score(problem, problem->metric, t->item_outputs, MG_DATASET_VALIDATION);
    summary->train = mg_problem_score(problem, problem->metric, t->item_outputs, MG_DATASET_TRAIN);
    summary->step_seconds_median = t->step_count ? t->step_seconds[t->step_count / 2] : (double)NAN;
    summary->total_seconds = t->seconds_before + mg_progress_seconds() - t->start;
    snprintf(summary->metric, sizeof summary->metric, "%s", mg_options_word(t->config, "metric"));
    return mg_summary_write(t->in->run, summary);
}

/* Resumed, but there is nothing left to do. */
static int is_done(int32_t *done, mg_summary *summary, trainer *t)
{
    *done =
        t->speaks && t->state.finished && !mg_summary_read(summary, t->in->run) && summary->epochs == t->state.epoch;
    return mg_ranks_broadcast(t->comm, done, 1, MG_COMM_INT32);
}

static int run_trainer(mg_summary *summary, trainer *t)
{
    int32_t done;
    int status = is_done(&done, summary, t);
    if (status || done)
        return status;
    status = train_epochs(t);
    if (!status)
        status = mg_trainer_save(t);
    return status ? status : summarise(summary, t);
}

int mg_train(mg_summary *summary, const mg_training *training)
{
    trainer t;
    int status = mg_trainer_open(&t, training);
    if (!status)
        status = run_trainer(summary, &t);
    char line[600];
    snprintf(line, sizeof line, "%s", status ? mg_app_last_error() : "");
    int closed = mg_trainer_close(&t);
    return status ? fail(status, "%s", line) : closed;
}
