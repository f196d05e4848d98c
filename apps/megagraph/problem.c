#include "problem.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "metrics.h"
#include "progress.h"

/* One rank of a process at a time: reading holds far more than what is read, and libzip's mktime goes by a lock that
   thread sanitizers do not see. */
static int open_alone(mg_dataset **out, const char *path, const mg_dataset_desc *desc)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_at_a_time);
    int status = relay(mg_dataset_open(out, path, desc), mg_dataset_last_error());
    pthread_mutex_unlock(&one_at_a_time);
    return status;
}

int mg_problem_open(mg_dataset **out, const mg_config *config)
{
    static const mg_dataset_task tasks[] = {MG_DATASET_NONE, MG_DATASET_CLASSIFICATION, MG_DATASET_REGRESSION,
                                            MG_DATASET_MULTILABEL};
    char format[64];
    *out = NULL;
    if (!*config->data.path)
        return fail(-EINVAL, "no dataset is named: give --data FILE, or data.path in the configuration");
    snprintf(format, sizeof format, "%s", mg_options_word(config, "data.format"));
    mg_dataset_desc desc = {.directed = config->data.directed == MG_SWITCH_ON,
                            .format = strcmp(format, "auto") ? format : NULL,
                            .task = tasks[config->task],
                            .labels = *config->data.labels ? config->data.labels : NULL,
                            .features = *config->data.features ? config->data.features : NULL};
    return open_alone(out, config->data.path, &desc);
}

static uint64_t mix(uint64_t hash, const void *data, int64_t count, size_t size)
{
    hash = mg_graph_hash_bytes(hash, &count, sizeof count);
    return data ? mg_graph_hash_bytes(hash, data, count * (int64_t)size) : hash;
}

uint64_t mg_problem_hash(const mg_dataset *data)
{
    uint64_t hash = mg_graph_hash(data->graph);
    hash = mix(hash, data->segments, data->graphs + 1, sizeof(int64_t));
    hash = mix(hash, data->features, data->graph->nodes * data->feature_count, sizeof(float));
    hash = mix(hash, data->edge_features, data->graph->edges * data->edge_feature_count, sizeof(float));
    hash = mix(hash, data->labels, data->items, sizeof(int32_t));
    hash = mix(hash, data->targets, data->items * data->target_count, sizeof(float));
    return mix(hash, data->split, data->splits * data->items, 1);
}

int64_t mg_problem_splits(const mg_dataset *data, const mg_config *config)
{
    if (config->data.folds)
        return config->data.folds;
    return data->splits ? data->splits : 1;
}

/* Labels as 0/1 columns are targets already; classification gets a copy in the problem's classes. */
static int take_labels(mg_problem *problem, char *const *class_names, int64_t classes)
{
    const mg_dataset *data = problem->data;
    int64_t foreign = 0;
    int32_t *number = allocate(data->classes + 1, sizeof *number);
    problem->labels = allocate(data->items, sizeof(int32_t));
    if (!number || !problem->labels) {
        release(number);
        return -ENOMEM;
    }
    for (int64_t c = 0; c < data->classes; c++) {
        number[c] = class_names ? -1 : (int32_t)c;
        for (int64_t k = 0; class_names && k < classes; k++)
            if (!strcmp(class_names[k], data->class_names[c]))
                number[c] = (int32_t)k;
    }
    for (int64_t i = 0; i < data->items; i++) {
        problem->labels[i] = data->labels[i] < 0 ? -1 : number[data->labels[i]];
        foreign += data->labels[i] >= 0 && problem->labels[i] < 0;
    }
    release(number);
    if (foreign)
        mg_progress_say("note: %lld labels are of classes that the run does not know; they count as unlabelled",
                        (long long)foreign);
    return 0;
}

static int is_labelled(const mg_problem *problem, int64_t item)
{
    if (problem->labels)
        return problem->labels[item] >= 0;
    for (int64_t c = 0; problem->targets && c < problem->outputs; c++)
        if (!isnan(problem->targets[item * problem->outputs + c]))
            return 1;
    return 0;
}

static int take_split(mg_problem *problem, const mg_config *config, int64_t split)
{
    const mg_dataset *data = problem->data;
    if (!(problem->split = allocate_zeroed(data->items, 1)))
        return -ENOMEM;
    if (split < 0)
        memset(problem->split, MG_DATASET_TEST, (size_t)data->items);
    else if (mg_dataset_split(problem->split, data, split, (int)config->data.folds, (uint64_t)config->seed))
        return relay(-EINVAL, mg_dataset_last_error());
    for (int64_t i = 0; i < data->items; i++) {
        if (!is_labelled(problem, i))
            problem->split[i] = MG_DATASET_UNUSED;
        problem->counts[problem->split[i]]++;
    }
    return 0;
}

/* Mean and deviation of the training targets by column; targets become (target - mean) / deviation. */
static int standardise(mg_problem *problem, const float *mean, const float *deviation)
{
    int64_t columns = problem->outputs, items = problem->data->items;
    problem->mean = allocate_zeroed(columns, sizeof(float));
    problem->deviation = allocate_zeroed(columns, sizeof(float));
    if (!problem->mean || !problem->deviation)
        return -ENOMEM;
    for (int64_t c = 0; c < columns; c++) {
        double sum = 0, square = 0;
        int64_t count = 0;
        for (int64_t i = 0; i < items && !mean; i++) {
            float value = problem->targets[i * columns + c];
            if (problem->split[i] == MG_DATASET_TRAIN && !isnan(value)) {
                sum += value;
                count++;
            }
        }
        double middle = count ? sum / (double)count : 0;
        for (int64_t i = 0; i < items && !mean; i++) {
            float value = problem->targets[i * columns + c];
            if (problem->split[i] == MG_DATASET_TRAIN && !isnan(value))
                square += (value - middle) * (value - middle);
        }
        double spread = count ? sqrt(square / (double)count) : 1;
        problem->mean[c] = mean ? mean[c] : (float)middle;
        problem->deviation[c] = deviation ? deviation[c] : (float)(spread > 1e-12 ? spread : 1);
    }
    for (int64_t i = 0; problem->targets && i < items * columns; i++)
        problem->targets[i] = (problem->targets[i] - problem->mean[i % columns]) / problem->deviation[i % columns];
    return 0;
}

/* Balanced: training items / (classes in training x items of the class). */
static int weigh_classes(mg_problem *problem, const mg_config *config)
{
    int64_t classes = problem->outputs, present = 0, absent, *count = allocate_zeroed(classes, sizeof *count);
    if (!count)
        return -ENOMEM;
    for (int64_t i = 0; i < problem->data->items; i++)
        if (problem->split[i] == MG_DATASET_TRAIN)
            count[problem->labels[i]]++;
    for (int64_t c = 0; c < classes; c++)
        present += count[c] > 0;
    for (absent = 0; absent < classes && count[absent]; absent++)
        ;
    if (present < classes)
        mg_progress_say("note: %lld of %lld classes have no training item and cannot be learnt, as class '%s'",
                        (long long)(classes - present), (long long)classes, problem->data->class_names[absent]);
    if (classes == 1)
        mg_progress_say("note: all labels are of one class, '%s': there is nothing to tell apart",
                        problem->data->class_names[0]);
    if (config->train.class_weights == MG_CLASS_WEIGHTS_BALANCED) {
        problem->class_weights = allocate_zeroed(classes, sizeof(float));
        for (int64_t c = 0; problem->class_weights && c < classes; c++)
            if (count[c])
                problem->class_weights[c] =
                    (float)((double)problem->counts[MG_DATASET_TRAIN] / ((double)present * (double)count[c]));
    }
    release(count);
    return config->train.class_weights == MG_CLASS_WEIGHTS_BALANCED && !problem->class_weights ? -ENOMEM : 0;
}

static int take_truth(mg_problem *problem, char *const *class_names, int64_t classes)
{
    const mg_dataset *data = problem->data;
    int64_t count = data->items * problem->outputs;
    if (data->task == MG_DATASET_NONE)
        return 0;
    if (data->labels)
        return take_labels(problem, class_names, classes);
    if (data->target_count != problem->outputs)
        return fail(-EINVAL, "%s: has %lld target columns, the model has %lld outputs", data->name,
                    (long long)data->target_count, (long long)problem->outputs);
    problem->targets = allocate(count, sizeof(float));
    if (!problem->targets)
        return -ENOMEM;
    memcpy(problem->targets, data->targets, (size_t)count * sizeof(float));
    return 0;
}

static int start_problem(mg_problem **out, const mg_dataset *data, const mg_config *config, int64_t outputs)
{
    static const mg_model_loss losses[] = {MG_MODEL_CROSS_ENTROPY, MG_MODEL_CROSS_ENTROPY, MG_MODEL_ABSOLUTE,
                                           MG_MODEL_BINARY};
    *out = allocate_zeroed(1, sizeof **out);
    if (!*out)
        return -ENOMEM;
    (*out)->data = data;
    (*out)->task = (mg_task)config->task;
    (*out)->metric = (mg_metric)config->metric;
    (*out)->loss = losses[config->task];
    (*out)->outputs = outputs;
    return 0;
}

int mg_problem_create(mg_problem **out, const mg_dataset *data, const mg_config *config, int64_t split)
{
    mg_problem *problem;
    int status = start_problem(&problem, data, config, data->labels ? data->classes : data->target_count);
    *out = NULL;
    if (!status)
        status = take_truth(problem, NULL, 0);
    if (!status)
        status = take_split(problem, config, split);
    if (!status && !problem->counts[MG_DATASET_TRAIN])
        status = fail(-EINVAL, "%s: split %lld has no labelled training item", data->name, (long long)split);
    if (!status && problem->task == MG_TASK_REGRESSION)
        status = standardise(problem, NULL, NULL);
    if (!status && problem->task == MG_TASK_CLASSIFICATION)
        status = weigh_classes(problem, config);
    if (status) {
        mg_problem_destroy(problem);
        return status;
    }
    *out = problem;
    return 0;
}

int mg_problem_create_trained(mg_problem **out, const mg_dataset *data, const mg_config *config, int64_t split,
                              int64_t outputs, char *const *class_names, int64_t classes, const float *mean,
                              const float *deviation)
{
    mg_problem *problem;
    int status = start_problem(&problem, data, config, outputs);
    *out = NULL;
    if (!status)
        status = take_truth(problem, class_names, classes);
    if (!status && (problem->labels || problem->targets))
        status = take_split(problem, config, split);
    if (!status && problem->task == MG_TASK_REGRESSION)
        status = standardise(problem, mean, deviation);
    if (status) {
        mg_problem_destroy(problem);
        return status;
    }
    *out = problem;
    return 0;
}

void mg_problem_destroy(mg_problem *problem)
{
    if (!problem)
        return;
    release(problem->split);
    release(problem->labels);
    release(problem->targets);
    release(problem->mean);
    release(problem->deviation);
    release(problem->class_weights);
    release(problem);
}

/* --- scores --- */

/* The rows of one split, packed: outputs and what is true. */
typedef struct selection {
    float *outputs, *targets;
    int32_t *labels;
    int64_t items;
} selection;

static void clear_selection(selection *s)
{
    release(s->outputs);
    release(s->targets);
    release(s->labels);
}

static int select_items(selection *s, const mg_problem *problem, const float *outputs, int which)
{
    int64_t columns = problem->outputs, count = problem->counts[which];
    *s = (selection){.outputs = allocate(count * columns, sizeof(float)),
                     .targets = problem->targets ? allocate(count * columns, sizeof(float)) : NULL,
                     .labels = problem->labels ? allocate(count, sizeof(int32_t)) : NULL};
    if (!s->outputs || (problem->targets && !s->targets) || (problem->labels && !s->labels)) {
        clear_selection(s);
        return -ENOMEM;
    }
    for (int64_t i = 0; i < problem->data->items; i++) {
        if (problem->split[i] != which)
            continue;
        memcpy(s->outputs + s->items * columns, outputs + i * columns, (size_t)columns * sizeof(float));
        if (s->targets)
            memcpy(s->targets + s->items * columns, problem->targets + i * columns, (size_t)columns * sizeof(float));
        if (s->labels)
            s->labels[s->items] = problem->labels[i];
        s->items++;
    }
    return 0;
}

/* Two classes: the score is how much the second is preferred. In place, into the first `items` floats. */
static double score_two_classes(selection *s, double (*metric)(const float *, const float *, int64_t))
{
    float *truth = allocate(s->items, sizeof *truth);
    if (!truth)
        return NAN;
    for (int64_t i = 0; i < s->items; i++) {
        s->outputs[i] = s->outputs[2 * i + 1] - s->outputs[2 * i];
        truth[i] = (float)s->labels[i];
    }
    double value = metric(s->outputs, truth, s->items);
    release(truth);
    return value;
}

static double score_ranking(selection *s, const mg_problem *problem,
                            double (*metric)(const float *, const float *, int64_t))
{
    if (s->labels)
        return score_two_classes(s, metric);
    return mg_metrics_columns(metric, s->outputs, s->targets, s->items, problem->outputs);
}

static double score_mae(const selection *s, const mg_problem *problem)
{
    for (int64_t i = 0; i < s->items * problem->outputs; i++) {
        int64_t c = i % problem->outputs;
        s->outputs[i] = s->outputs[i] * problem->deviation[c] + problem->mean[c];
        s->targets[i] = s->targets[i] * problem->deviation[c] + problem->mean[c];
    }
    return mg_metrics_mae(s->outputs, s->targets, s->items, problem->outputs);
}

double mg_problem_score(const mg_problem *problem, mg_metric metric, const float *outputs, int which)
{
    selection s;
    double value = NAN;
    if (!problem->counts[which] || select_items(&s, problem, outputs, which))
        return NAN;
    switch (metric) {
    case MG_METRIC_ACCURACY:
        value = mg_metrics_accuracy(s.outputs, s.labels, s.items, problem->outputs);
        break;
    case MG_METRIC_MACRO_F1:
        value = mg_metrics_macro_f1(s.outputs, s.labels, s.items, problem->outputs);
        break;
    case MG_METRIC_ROC_AUC:
        value = score_ranking(&s, problem, mg_metrics_roc_auc);
        break;
    case MG_METRIC_AVERAGE_PRECISION:
        value = score_ranking(&s, problem, mg_metrics_average_precision);
        break;
    default:
        value = score_mae(&s, problem);
    }
    clear_selection(&s);
    return value;
}

int mg_problem_better(mg_metric metric, double value, double than)
{
    if (isnan(value))
        return 0;
    if (isnan(than))
        return 1;
    return metric == MG_METRIC_MAE ? value < than : value > than;
}

void mg_problem_softmax(float *row, int64_t count)
{
    float top = row[0], sum = 0;
    for (int64_t c = 1; c < count; c++)
        top = row[c] > top ? row[c] : top;
    for (int64_t c = 0; c < count; c++)
        sum += row[c] = expf(row[c] - top);
    for (int64_t c = 0; c < count; c++)
        row[c] /= sum;
}

void mg_problem_finish(const mg_problem *problem, float *outputs, int64_t rows)
{
    int64_t columns = problem->outputs;
    for (int64_t i = 0; i < rows; i++) {
        float *row = outputs + i * columns;
        if (problem->task == MG_TASK_CLASSIFICATION)
            mg_problem_softmax(row, columns);
        for (int64_t c = 0; c < columns; c++) {
            if (problem->task == MG_TASK_MULTILABEL)
                row[c] = 1 / (1 + expf(-row[c]));
            else if (problem->task == MG_TASK_REGRESSION)
                row[c] = row[c] * problem->deviation[c] + problem->mean[c];
        }
    }
}
