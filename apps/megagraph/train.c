#include "train.h"

#include <megagraph/dp.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "checkpoint.h"
#include "config.h"
#include "evaluate.h"
#include "memory.h"
#include "progress.h"

typedef struct trainer {
    const mg_training *in;
    const mg_config *config;
    const mg_problem *problem;
    mg_model *model;
    mg_runner runner;
    int64_t floats;
    float *parameters, *gradients, *first, *second, *best; /* [floats] each, one block */
    mg_dp_range *no_decay;
    int64_t no_decay_count;
    mg_checkpoint state;
    mg_log *log;
    int64_t *graphs, graph_count;           /* packs: graphs that hold a training item; NULL: all */
    int64_t *eval_graphs, eval_graph_count; /* likewise validation */
    float *doutputs;                        /* [rows][outputs], of the runner's room */
    int64_t doutputs_room;
    float *item_outputs; /* [items][outputs] */
    int64_t *rows;       /* [items] scratch: rows that count */
    double *step_seconds;
    int64_t step_count, step_room;
    double start, saved;   /* clock: when this sitting began, when it last saved */
    double seconds_before; /* of earlier sittings */
    int64_t epochs_before;
    double rate;
    mg_model_times times; /* of the epoch that runs */
    int skipped_said;
} trainer;

/* --- making and giving back --- */

static int list_no_decay(trainer *t)
{
    int64_t count;
    const mg_model_parameter *parameters = mg_model_parameters(t->model, &count);
    t->no_decay = allocate(count, sizeof *t->no_decay);
    if (!t->no_decay)
        return -ENOMEM;
    for (int64_t p = 0; p < count; p++)
        if (!parameters[p].decay)
            t->no_decay[t->no_decay_count++] = (mg_dp_range){parameters[p].begin, parameters[p].end};
    return 0;
}

/* Graphs (packs only) that hold an item of `which`. */
static int list_graphs(int64_t **graphs, int64_t *count, const trainer *t, int which)
{
    const mg_dataset *data = t->problem->data;
    if (t->in->units->fixed_count)
        return 0;
    if (!(*graphs = allocate(data->graphs, sizeof **graphs)))
        return -ENOMEM;
    for (int64_t g = 0; g < data->graphs; g++) {
        int64_t begin = data->level == MG_DATASET_GRAPH ? g : data->segments[g];
        int64_t end = data->level == MG_DATASET_GRAPH ? g + 1 : data->segments[g + 1];
        int found = 0;
        for (int64_t i = begin; i < end && !found; i++)
            found = t->problem->split[i] == which;
        if (found)
            (*graphs)[(*count)++] = g;
    }
    return 0;
}

static int allocate_ranges(trainer *t)
{
    const mg_dataset *data = t->problem->data;
    t->floats = mg_model_parameter_count(t->model);
    t->parameters = allocate_zeroed(t->floats, 5 * sizeof(float));
    t->item_outputs = allocate_zeroed(data->items * t->problem->outputs, sizeof(float));
    int64_t most = data->items > data->graph->nodes ? data->items : data->graph->nodes;
    t->rows = allocate(most, sizeof *t->rows);
    if (!t->parameters || !t->item_outputs || !t->rows)
        return -ENOMEM;
    t->gradients = t->parameters + t->floats;
    t->first = t->gradients + t->floats;
    t->second = t->first + t->floats;
    t->best = t->second + t->floats;
    return 0;
}

static mg_checkpoint_arrays arrays_of(trainer *t)
{
    int regression = t->problem->task == MG_TASK_REGRESSION;
    return (mg_checkpoint_arrays){.model = t->model,
                                  .best = t->best,
                                  .current = t->parameters,
                                  .first = t->first,
                                  .second = t->second,
                                  .target_mean = t->problem->mean,
                                  .target_deviation = t->problem->deviation,
                                  .targets = regression ? t->problem->outputs : 0};
}

static int start_fresh(trainer *t)
{
    const mg_dataset *data = t->problem->data;
    mg_model_initialise(t->model, t->parameters, (uint64_t)t->config->seed);
    memcpy(t->best, t->parameters, (size_t)t->floats * sizeof(float));
    t->state = (mg_checkpoint){.best_epoch = -1,
                               .best_value = (double)NAN,
                               .best_loss = (double)NAN,
                               .dataset_hash = t->in->dataset_hash,
                               .config_hash = mg_config_hash(t->config),
                               .inputs = data->feature_count,
                               .edge_inputs = data->edge_feature_count,
                               .outputs = t->problem->outputs};
    return 0;
}

/* All epochs are done, or patience is at its end. */
static int is_finished(const trainer *t)
{
    int64_t patience = t->config->train.patience, since = t->state.epoch - t->state.best_epoch;
    int validates = t->problem->counts[MG_DATASET_VALIDATION] > 0 && t->state.best_epoch >= 0;
    return t->state.epoch >= t->config->train.epochs || (patience && validates && since >= patience);
}

/* The run's checkpoint; it must be of this dataset and this model. */
static int start_resumed(trainer *t)
{
    mg_checkpoint_arrays arrays = arrays_of(t);
    if (t->state.dataset_hash != t->in->dataset_hash)
        return fail(
            -EINVAL,
            "%s: the checkpoint is of a dataset with hash %016llx, %s has %016llx: it was changed, or is another",
            t->in->run, (unsigned long long)t->state.dataset_hash, t->problem->data->name,
            (unsigned long long)t->in->dataset_hash);
    int status = mg_checkpoint_read(&t->state, &arrays);
    if (status)
        return status;
    if (t->state.config_hash != mg_config_hash(t->config))
        mg_progress_say("note: the configuration is not the one that the checkpoint was made under");
    t->state.config_hash = mg_config_hash(t->config);
    t->seconds_before = t->state.seconds;
    t->epochs_before = t->state.epoch;
    mg_progress_say("%sgoing on from step %lld, epoch %lld", t->in->title, (long long)t->state.step,
                    (long long)t->state.epoch);
    return 0;
}

static int trainer_open(trainer *t, const mg_training *in)
{
    const mg_dataset *data = in->problem->data;
    *t = (trainer){.in = in, .config = in->config, .problem = in->problem, .start = mg_progress_seconds()};
    t->saved = t->start;
    mg_model_desc desc =
        mg_prepare_model(in->config, data->feature_count, data->edge_feature_count, in->problem->outputs);
    int status = relay(mg_model_create(&t->model, &desc), mg_model_last_error());
    t->runner = (mg_runner){.model = t->model, .training = 1, .threads = (int)in->config->threads};
    if (!status)
        status = allocate_ranges(t);
    if (!status)
        status = list_no_decay(t);
    if (!status)
        status = list_graphs(&t->graphs, &t->graph_count, t, MG_DATASET_TRAIN);
    if (!status)
        status = list_graphs(&t->eval_graphs, &t->eval_graph_count, t, MG_DATASET_VALIDATION);
    if (status)
        return status;
    int found = mg_checkpoint_open(&t->state, in->run);
    status = found == -ENOENT ? start_fresh(t) : found ? found : start_resumed(t);
    if (!status) /* only now: what is refused leaves the run as it was */
        status = mg_run_describe(in->run, in->config);
    t->state.finished = is_finished(t);
    return status ? status : mg_log_open(&t->log, in->run, t->state.log_bytes);
}

static int trainer_close(trainer *t)
{
    int status = mg_log_close(t->log);
    mg_runner_clear(&t->runner);
    mg_checkpoint_clear(&t->state);
    mg_model_destroy(t->model);
    void *const blocks[] = {t->parameters, t->no_decay,     t->graphs, t->eval_graphs,
                            t->doutputs,   t->item_outputs, t->rows,   t->step_seconds};
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        release(blocks[b]);
    return status;
}

static int save(trainer *t)
{
    mg_checkpoint state = t->state;
    mg_checkpoint_arrays arrays = arrays_of(t);
    if (state.best_epoch < 0)
        arrays.best = t->parameters;
    state.seconds = t->seconds_before + mg_progress_seconds() - t->start;
    state.log_bytes = mg_log_bytes(t->log);
    state.class_names = t->problem->data->class_names;
    state.classes = t->problem->labels ? t->problem->data->classes : 0;
    int status = mg_checkpoint_save(t->in->run, &state, &arrays);
    t->saved = mg_progress_seconds();
    return status;
}

/* --- a step --- */

typedef struct weigher {
    const mg_problem *problem;
    double weight;
} weigher;

/* What a training item adds to the weight of a loss: as mg_model_loss_sum counts it. */
static void weigh_item(void *context, int64_t item)
{
    weigher *w = context;
    const mg_problem *problem = w->problem;
    if (item < 0 || problem->split[item] != MG_DATASET_TRAIN)
        return;
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
    if (count <= t->doutputs_room)
        return 0;
    release(t->doutputs);
    t->doutputs = allocate(count, sizeof(float));
    t->doutputs_room = t->doutputs ? count : 0;
    return t->doutputs ? 0 : -ENOMEM;
}

static void add_times(mg_model_times *sum, mg_model_times after, mg_model_times before)
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
    if (!status)
        status = relay(
            mg_model_backward(t->model, t->parameters, t->gradients, t->runner.pass, &unit->view, &step, t->doutputs),
            mg_model_last_error());
    if (!status)
        add_times(&t->times, mg_model_pass_times(t->runner.pass), before);
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

static int update(trainer *t, const mg_epoch *epoch, double *norm)
{
    *norm = sqrt(mg_dp_square_sum(t->gradients, t->floats));
    t->rate = rate_of_step(t, epoch);
    mg_dp_adamw adamw = {.rate = (float)t->rate,
                         .weight_decay = (float)t->config->train.weight_decay,
                         .beta1 = 0.9f,
                         .beta2 = 0.999f,
                         .epsilon = 1e-8f,
                         .no_decay = t->no_decay,
                         .no_decay_count = t->no_decay_count};
    return relay(mg_dp_adamw_step(t->parameters, t->first, t->second, t->gradients, t->floats, &adamw,
                                  t->state.step + 1, mg_dp_clip_scale(*norm, t->config->train.clip)),
                 mg_dp_last_error());
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

/* Units [begin, end) of the epoch: one step. */
static int make_step(trainer *t, const mg_epoch *epoch, int64_t begin, int64_t end)
{
    double start = mg_progress_seconds(), loss = 0, norm = 0;
    weigher w = {.problem = t->problem};
    int status = 0;
    for (int64_t k = begin; k < end; k++)
        mg_epoch_items(epoch, k, weigh_item, &w);
    if (!(w.weight > 0)) {
        if (!t->skipped_said++)
            mg_progress_say("note: a cluster without training items makes no step");
        return 0;
    }
    memset(t->gradients, 0, (size_t)t->floats * sizeof(float));
    for (int64_t k = begin; k < end && !status; k++) {
        mg_unit *unit;
        status = mg_epoch_take(&unit, epoch, k);
        if (status)
            break;
        status = learn_unit(t, unit, 1 / w.weight, &loss);
        mg_epoch_return(epoch, unit);
    }
    if (!status)
        norm = sqrt(mg_dp_square_sum(t->gradients, t->floats));
    if (!status && (!isfinite(loss) || !isfinite(norm)))
        return refuse_loss(t, loss / w.weight, norm);
    if (!status)
        status = update(t, epoch, &norm);
    if (status)
        return status;
    t->state.step++;
    t->state.epoch_loss += loss;
    t->state.epoch_weight += w.weight;
    double seconds = mg_progress_seconds() - start;
    status = note_seconds(t, seconds);
    return status ? status
                  : mg_log_write_step(t->log, &(mg_log_step){t->state.step, t->state.epoch + 1, loss / w.weight,
                                                             t->rate, norm, seconds});
}

/* --- an epoch --- */

static int stop_now(trainer *t)
{
    int status = save(t);
    return status ? status : fail(-ECANCELED, "stopped");
}

static int save_when_due(trainer *t)
{
    int64_t every = t->config->train.checkpoint_seconds;
    return every && mg_progress_seconds() - t->saved >= (double)every ? save(t) : 0;
}

static int make_steps(trainer *t)
{
    mg_epoch epoch;
    int64_t each = t->config->train.accumulate;
    int status =
        mg_epoch_create(&epoch, t->in->units, t->graphs, t->graph_count, 1, (uint64_t)t->config->seed, t->state.epoch);
    while (!status && t->state.position < epoch.count) {
        int64_t end = t->state.position + each < epoch.count ? t->state.position + each : epoch.count;
        status = mg_progress_stop_wanted() ? stop_now(t) : make_step(t, &epoch, t->state.position, end);
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

/* Outputs of all items that a split of `graphs` (NULL: all) holds. */
static int predict_items(trainer *t, const float *parameters, const int64_t *graphs, int64_t count)
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
    memcpy(t->best, t->parameters, (size_t)t->floats * sizeof(float));
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

/* After the steps of an epoch: validation, the best, the log line. The epoch counts as finished only then. */
static int finish_epoch(trainer *t, double start)
{
    mg_checkpoint *state = &t->state;
    double value = (double)NAN, validation_loss = (double)NAN, loss = state->epoch_loss / state->epoch_weight;
    int due = (state->epoch + 1) % t->config->train.evaluate == 0 || state->epoch + 1 == t->config->train.epochs;
    int validates = t->problem->counts[MG_DATASET_VALIDATION] > 0;
    int status = due && validates ? predict_items(t, t->parameters, t->eval_graphs, t->eval_graph_count) : 0;
    if (status == -ECANCELED)
        return stop_now(t);
    if (!status && due && validates) {
        value = mg_problem_score(t->problem, t->problem->metric, t->item_outputs, MG_DATASET_VALIDATION);
        status = loss_of(&validation_loss, t, MG_DATASET_VALIDATION);
    }
    if (status)
        return status;
    state->epoch++;
    if (due)
        keep_best(t, value, validation_loss);
    status = mg_log_write_epoch(t->log, &(mg_log_epoch){.epoch = state->epoch,
                                                        .step = state->step,
                                                        .loss = loss,
                                                        .validation = value,
                                                        .validation_loss = validation_loss,
                                                        .rate = t->rate,
                                                        .seconds = mg_progress_seconds() - start,
                                                        .attention_seconds = t->times.attention,
                                                        .local_seconds = t->times.local,
                                                        .dense_seconds = t->times.dense,
                                                        .other_seconds = t->times.other,
                                                        .peak_bytes = mg_memory_peak(),
                                                        .metric = mg_options_word(t->config, "metric")});
    state->position = 0;
    state->epoch_loss = state->epoch_weight = 0;
    t->times = (mg_model_times){0};
    state->finished = is_finished(t);
    if (!status && due)
        show_epoch(t, loss, value);
    return status;
}

static int train_epochs(trainer *t)
{
    int status = 0, first = 1;
    while (!status && !is_finished(t)) {
        double start = mg_progress_seconds();
        status = make_steps(t);
        if (!status)
            status = finish_epoch(t, start);
        if (!status && first && t->config->train.checkpoint_seconds && !t->state.finished)
            status = save(t); /* from now on there is one to fall back on */
        first = 0;
    }
    return status;
}

/* --- the end --- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int summarise(mg_summary *summary, trainer *t)
{
    const mg_problem *problem = t->problem;
    int status = predict_items(t, t->state.best_epoch < 0 ? t->parameters : t->best, NULL, 0);
    if (status)
        return status;
    qsort(t->step_seconds, (size_t)t->step_count, sizeof(double), by_value);
    *summary =
        (mg_summary){.test = mg_problem_score(problem, problem->metric, t->item_outputs, MG_DATASET_TEST),
                     .validation = mg_problem_score(problem, problem->metric, t->item_outputs, MG_DATASET_VALIDATION),
                     .train = mg_problem_score(problem, problem->metric, t->item_outputs, MG_DATASET_TRAIN),
                     .best_epoch = t->state.best_epoch,
                     .epochs = t->state.epoch,
                     .steps = t->state.step,
                     .parameters = t->floats,
                     .peak_memory_bytes = mg_memory_peak(),
                     .peak_resident_bytes = mg_memory_resident_peak(),
                     .seed = t->config->seed,
                     .split = t->in->split,
                     .step_seconds_median = t->step_count ? t->step_seconds[t->step_count / 2] : (double)NAN,
                     .preprocess_seconds = t->in->preprocess_seconds,
                     .total_seconds = t->seconds_before + mg_progress_seconds() - t->start};
    snprintf(summary->metric, sizeof summary->metric, "%s", mg_options_word(t->config, "metric"));
    return mg_summary_write(t->in->run, summary);
}

static int run_trainer(mg_summary *summary, trainer *t)
{
    if (t->state.finished && !mg_summary_read(summary, t->in->run) && summary->epochs == t->state.epoch)
        return 0; /* resumed, but there is nothing left to do */
    int status = train_epochs(t);
    if (status)
        return status;
    status = save(t);
    if (!status)
        status = summarise(summary, t);
    return status;
}

int mg_train(mg_summary *summary, const mg_training *training)
{
    trainer t;
    int status = trainer_open(&t, training);
    if (!status)
        status = run_trainer(summary, &t);
    char line[600];
    snprintf(line, sizeof line, "%s", status ? mg_app_last_error() : "");
    int closed = trainer_close(&t);
    return status ? fail(status, "%s", line) : closed;
}
