#include "defaults.h"

#include <string.h>

#include "app.h"
#include "baseline.h"
#include "encode.h"
#include "model.h"
#include "progress.h"

/* Dense attention is cheap while a layer's pairs are few: 8192 nodes squared. */
static const int64_t cheap_pairs = 1LL << 26;
static const int64_t cheap_gates = 200000; /* edges */

static void integer(int64_t *value, int64_t choice)
{
    if (*value == MG_AUTO)
        *value = choice;
}

static void real(double *value, double choice)
{
    if (isnan(*value))
        *value = choice;
}

static void choice(int32_t *value, int32_t chosen)
{
    if (*value == 0) /* auto is the first word of each */
        *value = chosen;
}

static int resolve_task(mg_config *config, const mg_dataset *data)
{
    static const mg_task tasks[] = {MG_TASK_AUTO, MG_TASK_CLASSIFICATION, MG_TASK_REGRESSION, MG_TASK_MULTILABEL};
    if (data->task == MG_DATASET_NONE)
        return fail(-EINVAL,
                    "%s: has no labels to learn from; npz has them as node_labels, edge lists, METIS and Matrix Market "
                    "take them from a CSV of id,label: --set data.labels=FILE",
                    data->name);
    if (config->task && (mg_task)config->task != tasks[data->task])
        return fail(-EINVAL, "task is %s, which the labels of %s are not fit for", mg_options_word(config, "task"),
                    data->name);
    config->task = tasks[data->task];
    return 0;
}

/* Share of the rarer of two classes among labelled items. */
static double rare_share(const mg_dataset *data)
{
    int64_t counts[2] = {0, 0};
    for (int64_t i = 0; i < data->items; i++)
        if (data->labels[i] >= 0)
            counts[data->labels[i]]++;
    int64_t rare = counts[0] < counts[1] ? counts[0] : counts[1], all = counts[0] + counts[1];
    return all ? (double)rare / (double)all : 0;
}

static int resolve_metric(mg_config *config, const mg_dataset *data)
{
    int ranking = config->metric == MG_METRIC_ROC_AUC || config->metric == MG_METRIC_AVERAGE_PRECISION;
    int of_classes = config->metric == MG_METRIC_ACCURACY || config->metric == MG_METRIC_MACRO_F1;
    int fits = config->task == MG_TASK_CLASSIFICATION ? of_classes || (ranking && data->classes == 2)
               : config->task == MG_TASK_MULTILABEL   ? ranking
                                                      : config->metric == MG_METRIC_MAE;
    if (config->metric && !fits)
        return fail(-EINVAL, "metric is %s, which is not possible for %s%s", mg_options_word(config, "metric"),
                    mg_options_word(config, "task"),
                    ranking && config->task == MG_TASK_CLASSIFICATION ? " of more than two classes" : "");
    if (config->task == MG_TASK_REGRESSION)
        choice(&config->metric, MG_METRIC_MAE);
    else if (config->task == MG_TASK_MULTILABEL)
        choice(&config->metric, MG_METRIC_AVERAGE_PRECISION);
    else
        choice(&config->metric, data->classes == 2 && rare_share(data) < 0.3 ? MG_METRIC_ROC_AUC : MG_METRIC_ACCURACY);
    if (config->train.class_weights == MG_CLASS_WEIGHTS_BALANCED && config->task != MG_TASK_CLASSIFICATION)
        return fail(-EINVAL, "train.class_weights is balanced, which only classification has");
    return 0;
}

/* Nodes that attend to each other: the whole graph, a cluster, or the mean graph. */
static int64_t attended_nodes(const mg_config *config, const mg_dataset *data)
{
    int64_t parts = data->graphs > 1 ? data->graphs : config->train.clusters > 1 ? config->train.clusters : 1;
    return data->graph->nodes / parts + 1;
}

static int64_t training_size(const mg_dataset *data)
{
    int64_t count = 0;
    if (!data->splits)
        return data->items * 6 / 10;
    for (int64_t i = 0; i < data->items; i++)
        count += data->split[i] == MG_DATASET_TRAIN;
    return count;
}

/* So few labels that what matters is not to learn them by heart. */
static int few_labels(const mg_dataset *data) { return data->graphs == 1 && training_size(data) < 2000; }

static int resolve_far(mg_config *config, const mg_dataset *data)
{
    int64_t nodes = attended_nodes(config, data);
    double pairs = (double)nodes * (double)nodes;
    int gps = config->model.kind == MG_MODEL_GPS, cheap = pairs <= (double)cheap_pairs, few = few_labels(data);
    if (config->attention.far == MG_FAR_AUTO && gps && !cheap)
        mg_progress_say(
            "note: %lld nodes make %.3g pairs; nodes see only those within model.encodings.distance (attention.far: "
            "bias lets them see all, at a price)",
            (long long)nodes, pairs);
    int mask = config->model.kind == MG_MODEL_GT || (gps && (few || !cheap));
    choice(&config->attention.far, mask ? MG_FAR_MASK : MG_FAR_BIAS);
    return 0;
}

/* The largest distance up to 3 whose near pairs are few: at most 64 a node and 30 million in all. */
static int sparse_distance(int64_t *distance, const mg_dataset *data)
{
    double shares[4];
    int64_t nodes = data->graph->nodes;
    int status = mg_encode_near_shares(shares, data->graph, 3);
    *distance = 1;
    for (int d = 2; d <= 3 && !status; d++) {
        double pairs = shares[d] * (double)nodes * (double)nodes;
        if (pairs <= 64.0 * (double)nodes && pairs <= 3e7)
            *distance = d;
    }
    return status;
}

static int resolve_distance(mg_config *config, const mg_dataset *data)
{
    int64_t distance = data->graphs > 1 ? 4 : 5;
    int status = 0;
    if (config->model.heads == 0) { /* nothing attends */
        integer(&config->model.encodings.distance, 0);
        if (config->model.encodings.distance)
            return fail(-EINVAL, "model.heads is 0 and model.encodings.distance %lld: there is no attention to bias",
                        (long long)config->model.encodings.distance);
        config->attention.far = MG_FAR_BIAS;
        return 0;
    }
    if (config->model.encodings.distance == MG_AUTO && config->attention.far == MG_FAR_MASK && data->graphs == 1)
        status = sparse_distance(&distance, data);
    integer(&config->model.encodings.distance, distance);
    if (!status && !config->model.encodings.distance && config->attention.far == MG_FAR_MASK)
        return fail(-EINVAL,
                    "model.encodings.distance is 0 and attention.far is mask: a node would see nothing but itself");
    return status;
}

static int resolve_graph_level(mg_config *config, const mg_dataset *data)
{
    if (data->level == MG_DATASET_NODE) {
        if (config->model.virtual_token == MG_SWITCH_ON)
            return fail(
                -EINVAL,
                "model.virtual_token is on, which is for datasets whose graphs have labels; %s has labels of nodes",
                data->name);
        if (config->model.readout)
            return fail(-EINVAL,
                        "model.readout is %s, which is for datasets whose graphs have labels; %s has labels of nodes",
                        mg_options_word(config, "model.readout"), data->name);
        choice(&config->model.virtual_token, MG_SWITCH_OFF);
        return 0;
    }
    int wanted = config->model.readout == MG_READOUT_VIRTUAL ||
                 (!config->model.readout && config->model.kind == MG_MODEL_GRAPHORMER);
    choice(&config->model.virtual_token, wanted ? MG_SWITCH_ON : MG_SWITCH_OFF);
    int has_virtual = config->model.virtual_token == MG_SWITCH_ON;
    choice(&config->model.readout, has_virtual ? MG_READOUT_VIRTUAL : MG_READOUT_MEAN);
    if (config->model.readout == MG_READOUT_VIRTUAL && !has_virtual)
        return fail(-EINVAL, "model.readout is virtual and model.virtual_token is off");
    return 0;
}

static int resolve_local(mg_config *config, const mg_dataset *data)
{
    int edges = data->edge_feature_count > 0;
    if (config->model.kind != MG_MODEL_GPS) {
        if (config->model.local > MG_LOCAL_NONE)
            return fail(-EINVAL, "model.local is %s, which only model.kind gps has",
                        mg_options_word(config, "model.local"));
        config->model.local = MG_LOCAL_NONE;
    }
    /* gates cost four products where gcn costs one: for graphs that are small, or of low degree, and have labels to
     * learn them */
    int gates = !few_labels(data) && data->graph->edges <= cheap_gates;
    choice(&config->model.local, edges || data->graphs > 1 ? MG_LOCAL_GINE : gates ? MG_LOCAL_GATEDGCN : MG_LOCAL_GCN);
    integer(&config->model.encodings.edge_path,
            config->model.kind == MG_MODEL_GRAPHORMER && edges && data->graphs > 1 ? 5 : 0);
    if (config->model.encodings.edge_path && !edges)
        return fail(-EINVAL, "model.encodings.edge_path is %lld, but %s has no edge features",
                    (long long)config->model.encodings.edge_path, data->name);
    if (config->model.encodings.edge_path && !config->model.encodings.distance)
        return fail(-EINVAL, "model.encodings.edge_path needs model.encodings.distance");
    return 0;
}

static void resolve_encodings(mg_config *config, const mg_dataset *data)
{
    int featureless = !data->feature_count, graphs = data->graphs > 1, gt = config->model.kind == MG_MODEL_GT;
    int small = data->graph->nodes <= 20000;
    integer(&config->model.encodings.degree, featureless ? 512 : few_labels(data) ? 0 : 64);
    integer(&config->model.encodings.hops, 0);
    integer(&config->model.encodings.laplacian, gt && (small || graphs) ? 8 : 0);
    integer(&config->model.encodings.random_walk, graphs ? 16 : 0);
}

static int check_inputs(const mg_config *config, const mg_dataset *data)
{
    if (!data->feature_count && !config->model.encodings.degree && !config->model.encodings.laplacian &&
        !config->model.encodings.random_walk)
        return fail(-EINVAL,
                    "%s has no node features and all encodings are off: all nodes would look the same; set "
                    "model.encodings.degree",
                    data->name);
    if (config->model.heads && config->model.hidden % config->model.heads)
        return fail(-EINVAL, "model.hidden is %lld, no multiple of model.heads %lld", (long long)config->model.hidden,
                    (long long)config->model.heads);
    if (data->graphs > 1 && config->train.clusters)
        return fail(-EINVAL,
                    "train.clusters is %lld, which is for one graph; %s has %lld: train.batch_graphs batches them",
                    (long long)config->train.clusters, data->name, (long long)data->graphs);
    if (config->train.clusters > data->graph->nodes)
        return fail(-EINVAL, "train.clusters is %lld, more than the %lld nodes of %s",
                    (long long)config->train.clusters, (long long)data->graph->nodes, data->name);
    return 0;
}

/* Sizes and regularisation by the number of training items: few labels want much dropout and decay, many want width. */
static void resolve_sizes(mg_config *config, const mg_dataset *data)
{
    int graphs = data->graphs > 1, few = few_labels(data), gates = config->model.local == MG_LOCAL_GATEDGCN;
    integer(&config->model.layers, graphs ? 3 : gates ? 4 : 2);
    integer(&config->model.hidden, !graphs && training_size(data) >= 20000 ? 128 : 64);
    integer(&config->model.heads, 4);
    integer(&config->model.ffn, few && config->model.kind == MG_MODEL_GPS ? 0 : 2 * config->model.hidden);
    real(&config->model.dropout, few ? 0.5 : 0.2);
    real(&config->model.attention_dropout, mg_baseline_is_engine(config) ? 0 : few ? 0.5 : 0.1);
    real(&config->model.input_dropout, few && data->feature_count >= 256 ? 0.5 : 0);
}

static void resolve_training(mg_config *config, const mg_dataset *data)
{
    int graphs = data->graphs > 1, few = few_labels(data);
    integer(&config->train.batch_graphs, !graphs ? 1 : data->graphs >= 10000 ? 128 : 32);
    integer(&config->train.epochs, graphs ? 100 : few ? 200 : 150);
    real(&config->train.lr, graphs ? 3e-3 : few ? 1e-2 : 5e-3);
    real(&config->train.weight_decay, few ? 0.5 : 1e-2);
    real(&config->train.l2, 0);
    real(&config->train.average, 0);
    integer(&config->train.warmup, graphs ? 50 : few ? 0 : 10);
    choice(&config->train.schedule, few ? MG_SCHEDULE_CONSTANT : MG_SCHEDULE_COSINE);
    real(&config->train.clip, 1);
    integer(&config->train.patience, graphs ? 30 : 50);
}

static int check_consistency(const mg_config *config, const mg_dataset *data)
{
    double weight = config->train.consistency;
    if (weight > 0 && (data->level != MG_DATASET_NODE || config->task != MG_TASK_CLASSIFICATION))
        return fail(-EINVAL, "train.consistency is %g, which is for classes of nodes; %s has %s of %s", weight,
                    data->name, config->task == MG_TASK_CLASSIFICATION ? "classes" : "other labels",
                    data->level == MG_DATASET_NODE ? "nodes" : "graphs");
    if (weight > 0 && config->train.average == 0)
        return fail(-EINVAL,
                    "train.consistency is %g, but train.average is 0: there are no averaged weights to agree with",
                    weight);
    return 0;
}

int mg_defaults_resolve(mg_config *config, const mg_dataset *data)
{
    int status = 0;
    int (*const steps[])(mg_config *, const mg_dataset *) = {resolve_task, resolve_metric,   resolve_graph_level,
                                                             resolve_far,  resolve_distance, resolve_local};
    for (size_t s = 0; s < sizeof steps / sizeof *steps && !status; s++)
        status = steps[s](config, data);
    if (status)
        return status;
    choice(&config->data.directed, MG_SWITCH_OFF);
    resolve_encodings(config, data);
    resolve_sizes(config, data);
    resolve_training(config, data);
    status = check_inputs(config, data);
    if (!status)
        status = check_consistency(config, data);
    return status ? status : mg_baseline_resolve(config, data);
}
