/* megagraph train: a configuration from its places, a dataset, and one run or several (seeds, splits, folds). */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "commands.h"
#include "config.h"
#include "defaults.h"
#include "files.h"
#include "memory.h"
#include "progress.h"
#include "threads.h"
#include "train.h"

static const mg_flag flags[] = {
    {"--data", "FILE", "the dataset: npz, OGB or TU folder, METIS, Matrix Market, edge list (data.path)", 0},
    {"--out", "RUN", "the folder to make: configuration, log, checkpoint, summary", 0},
    {"--config", "FILE", "YAML with the keys below", 0},
    {"--set", "KEY=VALUE ...", "one key; may be given many times", 1},
    {"--seeds", "K", "train K times, with seed, seed + 1, ...; report mean and deviation (seeds)", 0},
    {"--resume", "RUN", "go on with a run that was stopped, or for more epochs (--set train.epochs=...)", 0},
    {"--memory", "LIMIT", "refuse to allocate more, as 500M or 2G (memory)", 0},
    {"--threads", "N", "all cores unless given (threads)", 0},
    {"--cache", "DIR", "where orders and encodings are kept; $XDG_CACHE_HOME/megagraph unless given", 0},
    {"--ranks", "N", "1: this version trains on one rank", 0},
    {"--plan", "FILE", "not in this version", 0},
};

/* One training among several. */
typedef struct child {
    char name[64];
    int64_t split, seed;
} child;

typedef struct session {
    mg_config config;
    const char *run;
    int resumed, made; /* made: the folder was not there before */
    mg_dataset *data;
    mg_cache cache;
    mg_units *units;
    uint64_t dataset_hash;
    child *children;
    int64_t count;
} session;

static int refuse_parallel(const mg_arguments *arguments)
{
    const char *ranks = mg_arguments_value(arguments, "--ranks");
    if (ranks && strcmp(ranks, "1"))
        return fail(-EINVAL, "--ranks is %.20s: this version trains on one rank, with all cores (--threads)", ranks);
    if (mg_arguments_value(arguments, "--plan"))
        return fail(-EINVAL, "--plan: this version trains on one rank and takes no plan");
    return 0;
}

/* A flag that is short for a key. */
static int set_from_flag(mg_config *config, const mg_arguments *arguments, const char *flag, const char *key)
{
    const char *value = mg_arguments_value(arguments, flag);
    return value ? mg_options_set(config, flag, key, value) : 0;
}

/* Paths are kept absolute: a run is read from any folder. */
static int make_absolute(char *path, const char *key)
{
    char absolute[PATH_MAX];
    if (!*path)
        return 0;
    if (!realpath(path, absolute))
        return fail(-errno, "%s: %s", path, strerror(errno));
    if (strlen(absolute) >= MG_TEXT_BYTES)
        return fail(-ENAMETOOLONG, "%s: is too long a path", key);
    strcpy(path, absolute);
    return 0;
}

static int read_config(session *s, const mg_arguments *arguments)
{
    mg_config *config = &s->config;
    const char *file = mg_arguments_value(arguments, "--config");
    int status = 0;
    mg_options_standard(config);
    if (s->resumed && file)
        return fail(-EINVAL, "--config: a resumed run has its own; change keys by --set");
    if (s->resumed)
        file = mg_files_path(s->run, "config.yaml");
    if (file)
        status = mg_config_read(config, file);
    static const char *const short_for[][2] = {
        {"--data", "data.path"}, {"--seeds", "seeds"}, {"--memory", "memory"}, {"--threads", "threads"}};
    for (size_t f = 0; f < sizeof short_for / sizeof *short_for && !status; f++)
        status = set_from_flag(config, arguments, short_for[f][0], short_for[f][1]);
    for (int g = 0; g < arguments->given_count && !status; g++)
        if (!strcmp(arguments->given[g].flag->name, "--set"))
            status = mg_config_assign(config, arguments->given[g].value);
    if (!status && config->data.folds == 1)
        status = fail(-EINVAL, "data.folds is 1: two or more make a cross-validation, 0 none");
    if (!status && !*config->data.path)
        status = fail(-EINVAL, "no dataset is named: give --data FILE, or data.path in the configuration");
    char *const paths[] = {config->data.path, config->data.labels, config->data.features};
    for (size_t p = 0; p < sizeof paths / sizeof *paths && !status; p++)
        status = make_absolute(paths[p], "data");
    return status;
}

/* Splits (or folds) times seeds. */
static int list_children(session *s)
{
    const mg_config *config = &s->config;
    int64_t first, last, seeds = config->seeds;
    const char *key = config->data.folds ? "data.fold" : "data.split", *word = config->data.folds ? "fold" : "split";
    int status = mg_config_range(&first, &last, key, config->data.folds ? config->data.fold : config->data.split,
                                 mg_problem_splits(s->data, config));
    if (status)
        return status;
    s->count = (last - first + 1) * seeds;
    s->children = allocate_zeroed(s->count, sizeof *s->children);
    if (!s->children)
        return -ENOMEM;
    for (int64_t c = 0; c < s->count; c++) {
        child *one = &s->children[c];
        one->split = first + c / seeds;
        one->seed = config->seed + c % seeds;
        if (last == first)
            snprintf(one->name, sizeof one->name, "seed-%lld", (long long)one->seed);
        else if (seeds == 1)
            snprintf(one->name, sizeof one->name, "%s-%lld", word, (long long)one->split);
        else
            snprintf(one->name, sizeof one->name, "%s-%lld-seed-%lld", word, (long long)one->split,
                     (long long)one->seed);
    }
    return 0;
}

static int prepare(session *s)
{
    int status = mg_problem_open(&s->data, &s->config);
    if (status)
        return status;
    fprintf(stderr, "%s", s->data->story);
    s->dataset_hash = mg_problem_hash(s->data);
    status = mg_defaults_resolve(&s->config, s->data);
    if (!status)
        status = list_children(s);
    if (!status)
        status = mg_units_create(&s->units, s->data, &s->config, &s->cache);
    if (!status && s->count > 1 && !s->resumed)
        status = mg_run_describe(s->run, &s->config);
    if (!status)
        mg_progress_say("model %s, %lld layers of %lld, distance %lld, far %s, codes held as %s; prepared in %s",
                        ((const char *[]){"graphormer", "gt", "gps"})[s->config.model.kind],
                        (long long)s->config.model.layers, (long long)s->config.model.hidden,
                        (long long)s->config.model.encodings.distance,
                        s->config.attention.far == MG_FAR_MASK ? "masked" : "seen",
                        mg_options_word(&s->config, "attention.bias"), mg_progress_duration(s->units->seconds));
    return status;
}

/* One run in `folder`, with a configuration that repeats just it. */
static int train_child(mg_summary *summary, session *s, const child *one, const char *folder, const char *title)
{
    mg_config config = s->config;
    mg_problem *problem = NULL;
    config.seed = one->seed;
    config.seeds = 1;
    snprintf(config.data.folds ? config.data.fold : config.data.split, MG_TEXT_BYTES, "%lld", (long long)one->split);
    int status = mg_files_make_folder(folder);
    if (!status)
        status = mg_problem_create(&problem, s->data, &config, one->split);
    if (!status)
        status = mg_train(summary, &(mg_training){.run = folder,
                                                  .config = &config,
                                                  .problem = problem,
                                                  .units = s->units,
                                                  .dataset_hash = s->dataset_hash,
                                                  .preprocess_seconds = s->units->seconds,
                                                  .split = one->split,
                                                  .title = title});
    mg_problem_destroy(problem);
    return status;
}

static void report_one(const mg_summary *summary, const char *title)
{
    mg_progress_say("%stest %s %.4f, validation %.4f (epoch %lld of %lld), %s", title, summary->metric, summary->test,
                    summary->validation, (long long)summary->best_epoch, (long long)summary->epochs,
                    mg_progress_duration(summary->total_seconds));
}

static int train_children(session *s)
{
    mg_summary *summaries = allocate_zeroed(s->count, sizeof *summaries);
    char **names = allocate(s->count, sizeof *names);
    int status = summaries && names ? 0 : -ENOMEM;
    for (int64_t c = 0; c < s->count && !status; c++) {
        char folder[8192], title[80];
        names[c] = s->children[c].name;
        snprintf(folder, sizeof folder, "%s/%s", s->run, names[c]);
        snprintf(title, sizeof title, "%s: ", names[c]);
        status = train_child(&summaries[c], s, &s->children[c], folder, title);
        if (!status)
            report_one(&summaries[c], title);
    }
    if (s->resumed && (!status || status == -ECANCELED) && mg_run_describe(s->run, &s->config))
        status = status ? status : -EIO;
    if (!status)
        status = mg_summary_write_all(s->run, summaries, names, s->count);
    if (!status) {
        double mean, deviation, *values = allocate(s->count, sizeof *values);
        for (int64_t c = 0; values && c < s->count; c++)
            values[c] = summaries[c].test;
        int64_t used = values ? mg_summary_mean(&mean, &deviation, values, s->count) : 0;
        if (used)
            printf("test %s %.4f, deviation %.4f, standard error %.4f over %lld runs in %s\n", summaries[0].metric,
                   mean, deviation, deviation / sqrt((double)used), (long long)used, s->run);
        release(values);
    }
    release(summaries);
    release(names);
    return status;
}

static int train_all(session *s)
{
    mg_summary summary;
    if (s->count > 1)
        return train_children(s);
    int status = train_child(&summary, s, &s->children[0], s->run, "");
    if (status)
        return status;
    mg_progress_end();
    printf("test %s %.4f, validation %.4f (epoch %lld of %lld), %s, %s of memory; run in %s\n", summary.metric,
           summary.test, summary.validation, (long long)summary.best_epoch, (long long)summary.epochs,
           mg_progress_duration(summary.total_seconds + summary.preprocess_seconds),
           mg_memory_text(summary.peak_resident_bytes), s->run);
    return 0;
}

static int run_session(session *s, const mg_arguments *arguments)
{
    const char *resume = mg_arguments_value(arguments, "--resume");
    s->run = resume ? resume : mg_arguments_value(arguments, "--out");
    s->resumed = resume != NULL;
    int status = refuse_parallel(arguments);
    if (!status && resume && mg_arguments_value(arguments, "--out"))
        status = fail(-EINVAL, "--out and --resume are given: a resumed run goes on in its folder");
    if (!status && !s->run)
        status = mg_arguments_need(arguments, "--out");
    if (!status)
        status = read_config(s, arguments);
    s->made = !status && !resume && !mg_files_exists(s->run);
    if (!status && !resume)
        status = mg_run_begin(s->run);
    if (status)
        return status;
    mg_memory_watch(s->config.memory);
    mg_threads_set((int)s->config.threads);
    mg_progress_catch_stop();
    mg_encode_open_cache(&s->cache, mg_arguments_value(arguments, "--cache"));
    status = prepare(s);
    return status ? status : train_all(s);
}

static int run(const mg_command *command, int count, char **words)
{
    mg_arguments arguments;
    session s = {0};
    int status = mg_arguments_parse(&arguments, command, count, words);
    if (status == 1) {
        printf("\nKeys of --set and of the configuration, with their [defaults]:\n\n");
        mg_options_list(stdout);
        return 0;
    }
    if (!status)
        status = run_session(&s, &arguments);
    int code = mg_commands_report(status);
    if (code && s.made)
        rmdir(s.run); /* where nothing was written */
    if (code > 128)
        fprintf(stderr, "megagraph: stopped; the checkpoint is saved; go on with: megagraph train --resume %s\n",
                s.run);
    mg_units_destroy(s.units);
    mg_encode_close_cache(&s.cache);
    mg_dataset_close(s.data);
    release(s.children);
    return code;
}

const mg_command mg_command_train = {
    .name = "train",
    .summary = "trains a model on a dataset",
    .usage = "--data FILE --out RUN [--config FILE] [--set KEY=VALUE ...] [--seeds K] | --resume RUN",
    .text = "Trains, chooses the epoch by validation, tests, and keeps all in RUN. Every setting has a default; those "
            "that are\n"
            "auto are settled from the dataset and written to RUN/config.yaml. Ctrl-C saves a checkpoint.",
    .flags = flags,
    .flag_count = sizeof flags / sizeof *flags,
    .run = run,
};
