#include "session.h"

#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "config.h"
#include "defaults.h"
#include "files.h"
#include "memory.h"
#include "progress.h"
#include "train.h"

/* One training among several. */
typedef struct child {
    char name[64];
    int64_t split, seed;
} child;

typedef struct session {
    const mg_session *given;
    mg_config config;
    mg_comm *comm;
    const char *run;
    int resumed;
    mg_dataset *data;
    mg_cache cache;
    mg_units *units;
    uint64_t dataset_hash;
    child *children;
    int64_t count;
} session;

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

/* What each rank does by itself. */
static int open_data(session *s)
{
    int status = mg_problem_open(&s->data, &s->config);
    if (status)
        return status;
    if (mg_ranks_rank(s->comm) == 0)
        fprintf(stderr, "%s", s->data->story);
    s->dataset_hash = mg_problem_hash(s->data);
    status = mg_defaults_resolve(&s->config, s->data);
    return status ? status : list_children(s);
}

static void say_what(const session *s)
{
    const mg_config *config = &s->config;
    if (s->comm)
        mg_progress_say("%s, context method %s", mg_ranks_story(s->comm),
                        mg_options_word(config, "parallel.context_method"));
    if (s->resumed && s->given->ranks_before != config->parallel.ranks)
        mg_progress_say("note: on %lld rank%s before, now on %lld; the numbers agree but for rounding",
                        (long long)s->given->ranks_before, s->given->ranks_before == 1 ? "" : "s",
                        (long long)config->parallel.ranks);
    mg_progress_say("model %s, %lld layers of %lld, distance %lld, far %s, codes held as %s; prepared in %s",
                    ((const char *[]){"graphormer", "gt", "gps"})[config->model.kind], (long long)config->model.layers,
                    (long long)config->model.hidden, (long long)config->model.encodings.distance,
                    config->attention.far == MG_FAR_MASK ? "masked" : "seen", mg_options_word(config, "attention.bias"),
                    mg_progress_duration(s->units->seconds));
}

static int prepare(session *s)
{
    int status = mg_ranks_agree(s->comm, open_data(s));
    if (!status)
        status = mg_units_create(&s->units, s->data, &s->config, &s->cache);
    if (status)
        return status;
    mg_units_own_features(s->units, s->data);
    if (s->count > 1 && !s->resumed && mg_ranks_rank(s->comm) == 0)
        status = mg_run_describe(s->run, &s->config);
    status = mg_ranks_agree(s->comm, status);
    if (!status)
        say_what(s);
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
    int status = mg_ranks_rank(s->comm) ? 0 : mg_files_make_folder(folder);
    if (!status)
        status = mg_problem_create(&problem, s->data, &config, one->split);
    status = mg_ranks_agree(s->comm, status);
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

/* "test accuracy 0.8123, validation 0.7911 (epoch 7 of 20)"; a split without items has no score. */
static const char *scores_text(char text[256], const mg_summary *summary)
{
    char test[32] = "none (no test items)", validation[40] = "none (no validation items)", epoch[64];
    if (!isnan(summary->test))
        snprintf(test, sizeof test, "%.4f", summary->test);
    if (!isnan(summary->validation))
        snprintf(validation, sizeof validation, "%.4f", summary->validation);
    snprintf(epoch, sizeof epoch, "epoch %lld of %lld", (long long)summary->best_epoch, (long long)summary->epochs);
    snprintf(text, 256, "test %s %s, validation %s (%s)", summary->metric, test, validation,
             summary->best_epoch < 0 ? "not trained" : epoch);
    return text;
}

static void report_one(const mg_summary *summary, const char *title)
{
    char text[256];
    mg_progress_say("%s%s, %s", title, scores_text(text, summary), mg_progress_duration(summary->total_seconds));
}

/* Means over the children: a file, and a line. */
static int report_all(const session *s, const mg_summary *summaries, char *const *names)
{
    int status = mg_summary_write_all(s->run, summaries, names, s->count);
    if (status)
        return status;
    double mean, deviation, validation, spread, *values = allocate(s->count, sizeof *values);
    for (int64_t c = 0; values && c < s->count; c++)
        values[c] = summaries[c].validation;
    int64_t validated = values ? mg_summary_mean(&validation, &spread, values, s->count) : 0;
    for (int64_t c = 0; values && c < s->count; c++)
        values[c] = summaries[c].test;
    int64_t used = values ? mg_summary_mean(&mean, &deviation, values, s->count) : 0;
    if (validated)
        printf("validation %s %.4f, standard error %.4f\n", summaries[0].metric, validation,
               spread / sqrt((double)validated));
    if (used)
        printf("test %s %.4f, deviation %.4f, standard error %.4f over %lld runs in %s\n", summaries[0].metric, mean,
               deviation, deviation / sqrt((double)used), (long long)used, s->run);
    release(values);
    return 0;
}

static int train_children(session *s)
{
    mg_summary *summaries = allocate_zeroed(s->count, sizeof *summaries);
    char **names = allocate(s->count, sizeof *names);
    int status = summaries && names ? 0 : -ENOMEM, speaks = mg_ranks_rank(s->comm) == 0;
    for (int64_t c = 0; c < s->count && !status; c++) {
        char folder[8192], title[80];
        names[c] = s->children[c].name;
        snprintf(folder, sizeof folder, "%s/%s", s->run, names[c]);
        snprintf(title, sizeof title, "%s: ", names[c]);
        status = train_child(&summaries[c], s, &s->children[c], folder, title);
        if (!status && speaks)
            report_one(&summaries[c], title);
    }
    if (speaks && s->resumed && (!status || status == -ECANCELED) && mg_run_describe(s->run, &s->config))
        status = status ? status : -EIO;
    if (!status && speaks)
        status = report_all(s, summaries, names);
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
    if (status || mg_ranks_rank(s->comm))
        return status;
    mg_progress_end();
    char text[256];
    printf("%s, %s, %s of memory; run in %s\n", scores_text(text, &summary),
           mg_progress_duration(summary.total_seconds + summary.preprocess_seconds),
           mg_memory_text(summary.peak_resident_bytes), s->run);
    return 0;
}

int mg_session_train(mg_comm *comm, void *context)
{
    const mg_session *given = context;
    session s = {.given = given, .config = given->config, .comm = comm, .run = given->run, .resumed = given->resumed};
    int status = given->resumed || mg_ranks_rank(comm) ? 0 : mg_run_begin(given->run);
    status = mg_ranks_agree(comm, status);
    if (!status) {
        mg_encode_open_cache(&s.cache, given->cache, comm);
        status = prepare(&s);
    }
    if (!status)
        status = train_all(&s);
    char line[600];
    snprintf(line, sizeof line, "%s", status ? mg_app_last_error() : "");
    mg_units_destroy(s.units);
    mg_encode_close_cache(&s.cache);
    mg_dataset_close(s.data);
    release(s.children);
    return status ? fail(status, "%s", line) : 0;
}
