#include "run.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app.h"
#include "config.h"
#include "files.h"

int mg_run_begin(const char *run)
{
    const char *probe = mg_files_path(run, ".probe");
    int status = mg_files_make_folder(run);
    if (status)
        return status;
    if (mg_files_exists(mg_files_path(run, "config.yaml")))
        return fail(-EEXIST, "%s: holds a run already: go on with it by --resume %s, or choose another --out", run,
                    run);
    status = mg_files_write(probe, "", 0);
    if (status)
        return fail(status, "%s: the folder cannot be written: %s", run, strerror(-status));
    unlink(probe);
    return 0;
}

/* A plan of one stage, in the words of plan.yaml. */
static char *plan_text(const mg_config *config)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    if (!file)
        return NULL;
    fprintf(file, "version: 1\nranks: %lld\nreplicas: 1\nstages:\n  - {blocks: [embedding, ",
            (long long)config->parallel.ranks);
    for (int64_t l = 0; l < config->model.layers; l++)
        fprintf(file, "%lld, ", (long long)l);
    fprintf(file, "head], context: %lld, context_method: %s, recompute: false}\nsharding: 0\nsharding_group: all\n",
            (long long)config->parallel.context, mg_options_word(config, "parallel.context_method"));
    fprintf(file, "schedule: 1f1b\nmicrobatches: 1\nbias: %s\nplacement: []\n",
            mg_options_word(config, "attention.bias"));
    fprintf(file, "predicted: {step_seconds: null, memory_bytes: null}\n");
    fprintf(file, "hashes: {graph: null, model: null, machine: null, profile: null}\n");
    return fclose(file) ? NULL : text;
}

static int write_text(const char *run, const char *name, char *text)
{
    int status =
        text ? mg_files_write(mg_files_path(run, name), text, strlen(text)) : fail(-ENOMEM, "no memory for %s", name);
    free(text);
    return status;
}

int mg_run_describe(const char *run, const mg_config *config)
{
    int status = write_text(run, "config.yaml", mg_config_text(config));
    return status ? status : write_text(run, "plan.yaml", plan_text(config));
}

/* --- the log --- */

struct mg_log {
    char *path;
    int descriptor;
    int64_t bytes;
};

int mg_log_open(mg_log **out, const char *run, int64_t keep)
{
    mg_log *log = allocate_zeroed(1, sizeof *log);
    struct stat info;
    *out = NULL;
    if (!log)
        return -ENOMEM;
    log->path = strdup(mg_files_path(run, "log.jsonl"));
    log->descriptor = log->path ? open(log->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;
    int status = log->path ? 0 : -ENOMEM;
    if (!status && (log->descriptor < 0 || fstat(log->descriptor, &info)))
        status = fail(-errno, "%s: %s", log->path, strerror(errno));
    if (!status) {
        log->bytes = keep < info.st_size ? keep : info.st_size;
        if (ftruncate(log->descriptor, log->bytes) || lseek(log->descriptor, log->bytes, SEEK_SET) < 0)
            status = fail(-errno, "%s: %s", log->path, strerror(errno));
    }
    if (status) {
        mg_log_close(log);
        return status;
    }
    *out = log;
    return 0;
}

int mg_log_close(mg_log *log)
{
    if (!log)
        return 0;
    int status = log->descriptor >= 0 && close(log->descriptor) ? -errno : 0;
    if (status)
        fail(status, "%s: cannot be written: %s", log->path, strerror(-status));
    free(log->path);
    release(log);
    return status;
}

int64_t mg_log_bytes(const mg_log *log) { return log->bytes; }

static json_t *real(double value) { return isfinite(value) ? json_real(value) : json_null(); }

/* Takes the line. */
static int write_line(mg_log *log, json_t *line)
{
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(line);
    if (!text)
        return fail(-ENOMEM, "%s: no memory for a line", log->path);
    size_t length = strlen(text), done = 0;
    text[length++] = '\n'; /* in place of the zero */
    int status = 0;
    while (done < length && !status) {
        ssize_t written = write(log->descriptor, text + done, length - done);
        if (written > 0)
            done += (size_t)written;
        else if (errno != EINTR)
            status = fail(written < 0 ? -errno : -EIO, "%s: cannot be written: %s", log->path, strerror(errno));
    }
    free(text);
    log->bytes += (int64_t)done;
    return status;
}

static json_t *whole_numbers(const double *values, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_integer((json_int_t)values[i]));
    return list;
}

int mg_log_write_step(mg_log *log, const mg_log_step *step)
{
    json_t *line = json_pack("{s:I, s:I, s:o, s:o, s:o, s:o}", "step", (json_int_t)step->step, "epoch",
                             (json_int_t)step->epoch, "loss", real(step->loss), "lr", real(step->rate), "norm",
                             real(step->norm), "seconds", real(step->seconds));
    if (step->ranks > 1)
        json_object_set_new(line, "sent_bytes", whole_numbers(step->sent_bytes, step->ranks));
    return write_line(log, line);
}

static json_t *phases_object(const mg_phases *phases)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "attention", real(phases->attention), "local",
                     real(phases->local), "dense", real(phases->dense), "other", real(phases->other), "reduce",
                     real(phases->reduce), "evaluate", real(phases->evaluate));
}

int mg_log_write_epoch(mg_log *log, const mg_log_epoch *epoch)
{
    json_t *seconds = phases_object(&epoch->phases);
    json_object_set_new(seconds, "all", real(epoch->seconds));
    return write_line(log, json_pack("{s:I, s:I, s:o, s:s, s:o, s:o, s:o, s:o, s:o}", "epoch", (json_int_t)epoch->epoch,
                                     "steps", (json_int_t)epoch->step, "loss", real(epoch->loss), "metric",
                                     epoch->metric, "validation", real(epoch->validation), "validation_loss",
                                     real(epoch->validation_loss), "lr", real(epoch->rate), "phase_seconds", seconds,
                                     "peak_memory_bytes", whole_numbers(epoch->peak_bytes, epoch->ranks)));
}

/* --- the summary --- */

static json_t *summary_object(const mg_summary *summary)
{
    json_t *peaks = json_array();
    for (int64_t r = 0; r < summary->ranks; r++)
        json_array_append_new(peaks, json_integer((json_int_t)summary->peak_memory_bytes[r]));
    return json_pack("{s:s, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:o, s:n, s:n, s:I, s:I, s:I, s:o}",
                     "metric", summary->metric, "test", real(summary->test), "validation", real(summary->validation),
                     "train", real(summary->train), "best_epoch", (json_int_t)summary->best_epoch, "epochs",
                     (json_int_t)summary->epochs, "steps", (json_int_t)summary->steps, "parameters",
                     (json_int_t)summary->parameters, "step_seconds_median", real(summary->step_seconds_median),
                     "preprocess_seconds", real(summary->preprocess_seconds), "total_seconds",
                     real(summary->total_seconds), "ranks", (json_int_t)summary->ranks, "peak_memory_bytes", peaks,
                     "predicted_step_seconds", "predicted_memory_bytes", "peak_resident_bytes",
                     (json_int_t)summary->peak_resident_bytes, "seed", (json_int_t)summary->seed, "split",
                     (json_int_t)summary->split, "phase_seconds", phases_object(&summary->phases));
}

static int write_object(const char *run, json_t *object)
{
    char *text = object ? json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) : NULL;
    json_decref(object);
    return write_text(run, "summary.json", text);
}

int mg_summary_write(const char *run, const mg_summary *summary) { return write_object(run, summary_object(summary)); }

static double real_of(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static int64_t integer_of(json_t *object, const char *key) { return json_integer_value(json_object_get(object, key)); }

int mg_summary_read(mg_summary *summary, const char *run)
{
    json_error_t error;
    const char *path = mg_files_path(run, "summary.json"), *metric;
    json_t *object = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    *summary = (mg_summary){0};
    if (!object)
        return fail(mg_files_exists(path) ? -EINVAL : -ENOENT, "%s: %s", path, error.text);
    metric = json_string_value(json_object_get(object, "metric"));
    snprintf(summary->metric, sizeof summary->metric, "%s", metric ? metric : "");
    summary->test = real_of(object, "test");
    summary->validation = real_of(object, "validation");
    summary->train = real_of(object, "train");
    summary->best_epoch = integer_of(object, "best_epoch");
    summary->epochs = integer_of(object, "epochs");
    summary->steps = integer_of(object, "steps");
    summary->parameters = integer_of(object, "parameters");
    summary->step_seconds_median = real_of(object, "step_seconds_median");
    summary->preprocess_seconds = real_of(object, "preprocess_seconds");
    summary->total_seconds = real_of(object, "total_seconds");
    json_t *peaks = json_object_get(object, "peak_memory_bytes"), *phases = json_object_get(object, "phase_seconds");
    summary->ranks = (int64_t)json_array_size(peaks) < MG_RANKS_MOST ? (int64_t)json_array_size(peaks) : MG_RANKS_MOST;
    for (int64_t r = 0; r < summary->ranks; r++)
        summary->peak_memory_bytes[r] = json_integer_value(json_array_get(peaks, (size_t)r));
    summary->phases = (mg_phases){real_of(phases, "attention"), real_of(phases, "local"),  real_of(phases, "dense"),
                                  real_of(phases, "other"),     real_of(phases, "reduce"), real_of(phases, "evaluate")};
    summary->peak_resident_bytes = integer_of(object, "peak_resident_bytes");
    summary->seed = integer_of(object, "seed");
    summary->split = integer_of(object, "split");
    json_decref(object);
    return 0;
}

int64_t mg_summary_mean(double *mean, double *deviation, const double *values, int64_t count)
{
    double sum = 0, square = 0;
    int64_t used = 0;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(values[i])) {
            sum += values[i];
            used++;
        }
    *mean = used ? sum / (double)used : (double)NAN;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(values[i]))
            square += (values[i] - *mean) * (values[i] - *mean);
    *deviation = used > 1 ? sqrt(square / (double)(used - 1)) : 0;
    return used;
}

/* Mean of a field of all summaries; deviation may be NULL. */
static double mean_of(double *deviation, const mg_summary *summaries, int64_t count, size_t offset)
{
    double mean, spread, *values = allocate(count, sizeof *values);
    if (!values)
        return (double)NAN;
    for (int64_t i = 0; i < count; i++)
        memcpy(&values[i], (const char *)&summaries[i] + offset, sizeof *values);
    mg_summary_mean(&mean, &spread, values, count);
    release(values);
    if (deviation)
        *deviation = spread;
    return mean;
}

int mg_summary_write_all(const char *run, const mg_summary *summaries, char *const *names, int64_t count)
{
    mg_summary all = summaries[0];
    double deviation, validation_deviation, total = 0;
    json_t *runs = json_object();
    all.test = mean_of(&deviation, summaries, count, offsetof(mg_summary, test));
    all.validation = mean_of(&validation_deviation, summaries, count, offsetof(mg_summary, validation));
    all.train = mean_of(NULL, summaries, count, offsetof(mg_summary, train));
    all.step_seconds_median = mean_of(NULL, summaries, count, offsetof(mg_summary, step_seconds_median));
    for (int64_t i = 0; i < count; i++) {
        total += summaries[i].total_seconds;
        for (int64_t r = 0; r < all.ranks; r++)
            if (summaries[i].peak_memory_bytes[r] > all.peak_memory_bytes[r])
                all.peak_memory_bytes[r] = summaries[i].peak_memory_bytes[r];
        if (summaries[i].peak_resident_bytes > all.peak_resident_bytes)
            all.peak_resident_bytes = summaries[i].peak_resident_bytes;
        json_object_set_new(runs, names[i], summary_object(&summaries[i]));
    }
    all.total_seconds = total;
    json_t *object = summary_object(&all);
    const char *const of_one[] = {"seed", "split", "best_epoch", "epochs", "steps"};
    for (size_t k = 0; k < sizeof of_one / sizeof *of_one; k++)
        json_object_del(object, of_one[k]);
    json_object_set_new(object, "test_deviation", real(deviation));
    json_object_set_new(object, "test_standard_error", real(deviation / sqrt((double)count)));
    json_object_set_new(object, "validation_deviation", real(validation_deviation));
    json_object_set_new(object, "runs", runs);
    return write_object(run, object);
}
