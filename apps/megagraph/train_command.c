/* megagraph train: a configuration from its places, for the ranks that session.c runs on. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "commands.h"
#include "config.h"
#include "files.h"
#include "memory.h"
#include "progress.h"
#include "session.h"

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
    {"--ranks", "N", "share one graph among N ranks, threads of this process (parallel.ranks); mpirun starts processes",
     0},
    {"--plan", "FILE", "not in this version", 0},
};

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

/* A resumed run has the ranks that it is given now, or else as many as before. */
static void forget_ranks(mg_session *s, const char *flag)
{
    mg_config *config = &s->config;
    s->ranks_before = config->parallel.ranks == MG_AUTO ? 1 : config->parallel.ranks;
    config->parallel.context = MG_AUTO;
    if (config->parallel.context_method == MG_METHOD_NONE)
        config->parallel.context_method = MG_METHOD_AUTO;
    if (flag || mg_comm_under_mpi())
        config->parallel.ranks = MG_AUTO;
}

/* What decides which parameters there are, and what they mean, is the run's. */
static int check_same_model(const mg_config *began, const mg_config *now)
{
    int count;
    const mg_option *options = mg_options(&count);
    for (int o = 0; o < count; o++) {
        char before[MG_TEXT_BYTES], after[MG_TEXT_BYTES];
        if (strncmp(options[o].key, "model.", 6) || strstr(options[o].key, "dropout"))
            continue;
        mg_options_print(before, sizeof before, began, &options[o]);
        mg_options_print(after, sizeof after, now, &options[o]);
        if (strcmp(before, after))
            return fail(-EINVAL, "%s is %s in the run that is resumed, not %s: a run's model stays; train another by --out",
                        options[o].key, before, after);
    }
    return 0;
}

static int read_config(mg_session *s, const mg_arguments *arguments)
{
    mg_config *config = &s->config;
    const char *file = mg_arguments_value(arguments, "--config");
    int status = 0;
    mg_options_standard(config);
    if (s->resumed && file)
        return fail(-EINVAL, "--config: a resumed run has its own; change keys by --set");
    if (s->resumed)
        file = mg_files_path(s->run, "config.yaml");
    if (s->resumed && !mg_files_exists(file))
        return fail(-ENOENT, "%s: is no run: it has no config.yaml", s->run);
    if (file)
        status = mg_config_read(config, file);
    if (!status && s->resumed)
        forget_ranks(s, mg_arguments_value(arguments, "--ranks"));
    const mg_config began = *config;
    static const char *const short_for[][2] = {
        {"--data", "data.path"}, {"--seeds", "seeds"}, {"--memory", "memory"}, {"--threads", "threads"}};
    for (size_t f = 0; f < sizeof short_for / sizeof *short_for && !status; f++)
        status = set_from_flag(config, arguments, short_for[f][0], short_for[f][1]);
    for (int g = 0; g < arguments->given_count && !status; g++)
        if (!strcmp(arguments->given[g].flag->name, "--set"))
            status = mg_config_assign(config, arguments->given[g].value);
    if (!status && s->resumed)
        status = check_same_model(&began, config);
    if (!status && config->data.folds && strcmp(config->data.split, "0"))
        status = fail(-EINVAL, "data.split is %.60s and data.folds %lld: folds take the place of splits, so give one of them",
                      config->data.split, (long long)config->data.folds);
    if (!status && config->data.folds == 1)
        status = fail(-EINVAL, "data.folds is 1: two or more make a cross-validation, 0 none");
    if (!status && !config->data.folds && strcmp(config->data.fold, "all"))
        status = fail(-EINVAL, "data.fold is %.60s, but data.folds is 0: give how many folds there are, as data.folds=10",
                      config->data.fold);
    if (!status && !*config->data.path)
        status = fail(-EINVAL, "no dataset is named: give --data FILE, or data.path in the configuration");
    char *const paths[] = {config->data.path, config->data.labels, config->data.features};
    for (size_t p = 0; p < sizeof paths / sizeof *paths && !status; p++)
        status = make_absolute(paths[p], "data");
    return status ? status : mg_ranks_resolve(config, mg_arguments_value(arguments, "--ranks"));
}

static int read_session(mg_session *s, const mg_arguments *arguments)
{
    const char *resume = mg_arguments_value(arguments, "--resume");
    s->run = resume ? resume : mg_arguments_value(arguments, "--out");
    s->cache = mg_arguments_value(arguments, "--cache");
    s->resumed = resume != NULL;
    int status = 0;
    if (mg_arguments_value(arguments, "--plan"))
        status =
            fail(-EINVAL, "--plan: this version takes no plan file; --ranks and --set parallel.* say how to train");
    if (!status && resume && mg_arguments_value(arguments, "--out"))
        status = fail(-EINVAL, "--out and --resume are given: a resumed run goes on in its folder");
    if (!status && !s->run)
        status = mg_arguments_need(arguments, "--out");
    return status ? status : read_config(s, arguments);
}

static int run(const mg_command *command, int count, char **words)
{
    mg_arguments arguments;
    mg_session s = {0};
    int status = mg_arguments_parse(&arguments, command, count, words), made = 0;
    if (status == 1) {
        printf("\nKeys of --set and of the configuration, with their [defaults]:\n\n");
        mg_options_list(stdout);
        return 0;
    }
    if (!status)
        status = read_session(&s, &arguments);
    if (!status) {
        made = !s.resumed && mg_ranks_speaks() && !mg_files_exists(s.run);
        mg_memory_watch(s.config.memory);
        mg_progress_catch_stop();
        status = mg_ranks_run(&s.config, mg_session_train, &s);
    }
    int code = mg_commands_report(status);
    if (code && made)
        rmdir(s.run); /* where nothing was written */
    if (code > 128 && mg_ranks_speaks())
        fprintf(stderr, "megagraph: stopped; the checkpoint is saved; go on with: megagraph train --resume %s\n",
                s.run);
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
