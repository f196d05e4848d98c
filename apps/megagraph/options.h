/* options.h: every setting of a training run, in one table. The table drives the YAML reader, --set, the resolved
 * config.yaml, `megagraph train --help` and the suggestion for a misspelt key. Add a setting: a field in mg_config, a
 * row in options.c.
 */
#ifndef MEGAGRAPH_APPS_OPTIONS_H
#define MEGAGRAPH_APPS_OPTIONS_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Values of choices, in the order in which options.c lists their words. */
typedef enum mg_task { MG_TASK_AUTO, MG_TASK_CLASSIFICATION, MG_TASK_REGRESSION, MG_TASK_MULTILABEL } mg_task;
typedef enum mg_metric {
    MG_METRIC_AUTO,
    MG_METRIC_ACCURACY,
    MG_METRIC_ROC_AUC,
    MG_METRIC_AVERAGE_PRECISION,
    MG_METRIC_MAE,
    MG_METRIC_MACRO_F1
} mg_metric;
typedef enum mg_switch { MG_SWITCH_AUTO, MG_SWITCH_OFF, MG_SWITCH_ON } mg_switch;
typedef enum mg_normalise { MG_NORMALISE_NONE, MG_NORMALISE_ROWS } mg_normalise;
typedef enum mg_local { MG_LOCAL_AUTO, MG_LOCAL_NONE, MG_LOCAL_GCN, MG_LOCAL_GINE, MG_LOCAL_GATEDGCN } mg_local;
typedef enum mg_readout { MG_READOUT_AUTO, MG_READOUT_MEAN, MG_READOUT_SUM, MG_READOUT_VIRTUAL } mg_readout;
typedef enum mg_norms { MG_NORMS_ALL, MG_NORMS_HEAD } mg_norms;
typedef enum mg_bias { MG_BIAS_AUTO, MG_BIAS_DENSE, MG_BIAS_NEAR, MG_BIAS_TILES, MG_BIAS_STREAM } mg_bias;
typedef enum mg_far { MG_FAR_AUTO, MG_FAR_BIAS, MG_FAR_MASK } mg_far;
typedef enum mg_schedule { MG_SCHEDULE_AUTO, MG_SCHEDULE_CONSTANT, MG_SCHEDULE_LINEAR, MG_SCHEDULE_COSINE } mg_schedule;
typedef enum mg_method {
    MG_METHOD_AUTO,
    MG_METHOD_NONE,
    MG_METHOD_RING,
    MG_METHOD_ALL_TO_ALL,
    MG_METHOD_HALO
} mg_method;
typedef enum mg_baseline {
    MG_BASELINE_NONE,
    MG_BASELINE_DENSE,
    MG_BASELINE_DENSE_ROWS,
    MG_BASELINE_FLASH,
    MG_BASELINE_EDGE,
    MG_BASELINE_EDGE_ROWS
} mg_baseline;
typedef enum mg_class_weights { MG_CLASS_WEIGHTS_NONE, MG_CLASS_WEIGHTS_BALANCED } mg_class_weights;

enum { MG_TEXT_BYTES = 4096 };

/* "auto" of a number, until it is resolved from the dataset. */
#define MG_AUTO INT64_MIN
#define MG_AUTO_REAL ((double)NAN)

typedef struct mg_config {
    int64_t seed, seeds, threads, memory;
    int32_t precision, task, metric, baseline;
    struct {
        char path[MG_TEXT_BYTES], labels[MG_TEXT_BYTES], features[MG_TEXT_BYTES], split[MG_TEXT_BYTES],
            fold[MG_TEXT_BYTES];
        int32_t format, directed, normalise;
        int64_t folds;
    } data;
    struct {
        int32_t kind, local, virtual_token, readout, norms;
        int64_t layers, hidden, heads, ffn;
        double dropout, attention_dropout, input_dropout, gain;
        struct {
            int64_t degree, distance, edge_path, hops, laplacian, random_walk;
        } encodings;
    } model;
    struct {
        int32_t bias, far;
    } attention;
    struct {
        int64_t epochs, warmup, patience, accumulate, batch_graphs, clusters, evaluate, checkpoint_seconds;
        double lr, weight_decay, l2, clip, average, consistency;
        int32_t schedule, class_weights;
    } train;
    struct {
        int64_t ranks, replicas, stages, context, sharding, microbatches;
        int32_t context_method, recompute;
    } parallel;
} mg_config;

typedef enum mg_option_type {
    MG_OPTION_INTEGER, /* int64_t */
    MG_OPTION_REAL,    /* double */
    MG_OPTION_BYTES,   /* int64_t, written with K, M, G, T (powers of 1024) */
    MG_OPTION_CHOICE,  /* int32_t: place in `choices` */
    MG_OPTION_TEXT     /* char [MG_TEXT_BYTES] */
} mg_option_type;

typedef struct mg_option {
    const char *key; /* full path: "model.encodings.distance" */
    mg_option_type type;
    size_t offset;        /* in mg_config */
    const char *standard; /* the default, as one would write it */
    double least, most;   /* numbers */
    const char *choices;  /* "auto|dense|near" */
    const char *help;
    int is_auto; /* numbers: "auto" is a value */
    int off;     /* choices: word on, true, yes, 1 or off, false, no, 0 */
    int fixed;   /* only its default works in this version */
} mg_option;

const mg_option *mg_options(int *count);
const mg_option *mg_options_find(const char *key); /* NULL: unknown */
/* The known key nearest to a misspelt one. */
const char *mg_options_nearest(const char *key);
/* The nearest of words[count]; for flags and commands. */
const char *mg_options_nearest_word(const char *word, const char *const *words, int count);

void mg_options_standard(mg_config *config);
/* Sets one option from text. `where` begins the error line ("config.yaml:3", "--set"). 0 or -EINVAL with the line. */
int mg_options_set(mg_config *config, const char *where, const char *key, const char *text);
/* The value as it is written in config.yaml, without quotes. */
void mg_options_print(char *text, size_t bytes, const mg_config *config, const mg_option *option);
/* The listing of `train --help`. */
void mg_options_list(FILE *file);

/* "1.5G", "300M", "4096" to bytes; 0 or -EINVAL. */
int mg_options_bytes(int64_t *bytes, const char *text);
const char *mg_options_word(const mg_config *config, const char *key); /* of a choice; static */
#endif
