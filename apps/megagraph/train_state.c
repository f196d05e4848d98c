/* What a training holds: made fresh or from a checkpoint, saved, given back. */
#include <math.h>
#include <string.h>

#include "app.h"
#include "config.h"
#include "progress.h"
#include "trainer.h"

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
    int averages = t->config->train.average > 0;
    t->kept = (5 + averages) * t->floats;
    t->parameters = allocate_zeroed(t->kept, sizeof(float));
    t->item_outputs = allocate_zeroed(t->speaks ? data->items * t->problem->outputs : 0, sizeof(float));
    t->reports = allocate_zeroed(1 + 2 * t->ranks, sizeof *t->reports);
    int64_t most = data->items > data->graph->nodes ? data->items : data->graph->nodes;
    t->rows = allocate(most, sizeof *t->rows);
    if (!t->parameters || !t->item_outputs || !t->rows || !t->reports)
        return -ENOMEM;
    t->gradients = t->parameters + t->floats;
    t->first = t->gradients + t->floats;
    t->second = t->first + t->floats;
    t->best = t->second + t->floats;
    t->average = averages ? t->best + t->floats : t->parameters;
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
                                  .average = t->average == t->parameters ? NULL : t->average,
                                  .target_mean = t->problem->mean,
                                  .target_deviation = t->problem->deviation,
                                  .targets = regression ? t->problem->outputs : 0};
}

static int start_fresh(trainer *t)
{
    const mg_dataset *data = t->problem->data;
    mg_model_initialise(t->model, t->parameters, (uint64_t)t->config->seed);
    memcpy(t->best, t->parameters, (size_t)t->floats * sizeof(float));
    if (t->average != t->parameters)
        memcpy(t->average, t->parameters, (size_t)t->floats * sizeof(float));
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

int mg_trainer_is_finished(const trainer *t)
{
    int64_t patience = t->config->train.patience, since = t->state.epoch - t->state.best_epoch;
    int validates = t->problem->counts[MG_DATASET_VALIDATION] > 0 && t->state.best_epoch >= 0;
    return t->state.epoch >= t->config->train.epochs || (patience && validates && since >= patience);
}

/* The run's checkpoint; it must be of this dataset and this model. Rank 0. */
static int read_checkpoint(trainer *t)
{
    mg_checkpoint_arrays arrays = arrays_of(t);
    if (t->state.dataset_hash != t->in->dataset_hash)
        return fail(
            -EINVAL,
            "%s: the checkpoint is of a dataset with hash %016llx, %s has %016llx: it was changed, or is another",
            t->in->run, (unsigned long long)t->state.dataset_hash, t->problem->data->name,
            (unsigned long long)t->in->dataset_hash);
    return mg_checkpoint_read(&t->state, &arrays);
}

/* From rank 0: where the run stands, and all ranges. */
static int share_checkpoint(trainer *t)
{
    mg_checkpoint state = t->state;
    state.class_names = NULL;
    state.classes = 0;
    int status = mg_ranks_broadcast(t->comm, &state, sizeof state, MG_COMM_BYTE);
    if (!t->speaks)
        t->state = state;
    return status ? status : mg_ranks_broadcast(t->comm, t->parameters, t->kept, MG_COMM_FP32);
}

static int start_resumed(trainer *t)
{
    int status = share_checkpoint(t);
    if (status)
        return status;
    if (t->state.config_hash != mg_config_hash(t->config))
        mg_progress_say("note: the configuration is not the one that the checkpoint was made under");
    t->state.config_hash = mg_config_hash(t->config);
    t->seconds_before = t->state.seconds;
    t->epochs_before = t->state.epoch;
    if (mg_trainer_is_finished(t))
        mg_progress_say("%snothing is left to do after epoch %lld of %lld: --set train.%s goes on", t->in->title,
                        (long long)t->state.epoch, (long long)t->config->train.epochs,
                        t->state.epoch < t->config->train.epochs ? "patience=0" : "epochs=N");
    else
        mg_progress_say("%sgoing on from step %lld, epoch %lld", t->in->title, (long long)t->state.step,
                        (long long)t->state.epoch);
    return 0;
}

/* From the checkpoint where there is one. */
static int start(trainer *t)
{
    int found = t->speaks ? mg_checkpoint_open(&t->state, t->in->run) : 0;
    int32_t fresh = found == -ENOENT;
    int status = fresh ? 0 : found ? found : t->speaks ? read_checkpoint(t) : 0;
    status = mg_ranks_agree(t->comm, status);
    if (!status)
        status = mg_ranks_broadcast(t->comm, &fresh, 1, MG_COMM_INT32);
    return status ? status : fresh ? start_fresh(t) : start_resumed(t);
}

int mg_trainer_open(trainer *t, const mg_training *in)
{
    const mg_dataset *data = in->problem->data;
    *t = (trainer){.in = in,
                   .config = in->config,
                   .problem = in->problem,
                   .comm = in->units->comm,
                   .ranks = mg_ranks_count(in->units->comm),
                   .speaks = mg_ranks_rank(in->units->comm) == 0,
                   .start = mg_progress_seconds()};
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
    status = mg_ranks_agree(t->comm, status);
    if (!status)
        status = start(t);
    if (!status && t->speaks) /* only now: what is refused leaves the run as it was */
        status = mg_run_describe(in->run, in->config);
    t->state.finished = mg_trainer_is_finished(t);
    if (!status && t->speaks)
        status = mg_log_open(&t->log, in->run, t->state.log_bytes);
    return mg_ranks_agree(t->comm, status);
}

int mg_trainer_close(trainer *t)
{
    int status = mg_log_close(t->log);
    mg_runner_clear(&t->runner);
    mg_checkpoint_clear(&t->state);
    mg_model_destroy(t->model);
    void *const blocks[] = {t->parameters,   t->no_decay, t->graphs,       t->eval_graphs, t->doutputs,
                            t->item_outputs, t->rows,     t->step_seconds, t->reports};
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        release(blocks[b]);
    return status;
}

int mg_trainer_save(trainer *t)
{
    if (!t->speaks)
        return 0;
    mg_checkpoint state = t->state;
    mg_checkpoint_arrays arrays = arrays_of(t);
    if (state.best_epoch < 0)
        arrays.best = t->average;
    state.seconds = t->seconds_before + mg_progress_seconds() - t->start;
    state.log_bytes = mg_log_bytes(t->log);
    state.class_names = t->problem->data->class_names;
    state.classes = t->problem->labels ? t->problem->data->classes : 0;
    int status = mg_checkpoint_save(t->in->run, &state, &arrays);
    t->saved = mg_progress_seconds();
    return status;
}
