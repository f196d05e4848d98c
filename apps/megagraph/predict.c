/* megagraph predict: a trained run's answers for a dataset, in the dataset's own order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "checkpoint.h"
#include "commands.h"
#include "config.h"
#include "evaluate.h"
#include "files.h"
#include "memory.h"
#include "problem.h"
#include "progress.h"

static const mg_flag flags[] = {
    {"--run", "RUN", "the folder of a training", 0},
    {"--data", "FILE", "another dataset than the run's own", 0},
    {"--out", "FILE", ".npy: fp32 probabilities (or values), a row an item; .csv: class names too", 0},
    {"--embeddings", "FILE", "also what the model makes of each item before its head, .npy or .csv", 0},
    {"--memory", "LIMIT", "refuse to allocate more, as 500M or 2G", 0},
    {"--threads", "N", "all cores unless given", 0},
    {"--cache", "DIR", "where orders and encodings are kept", 0},
    {"--ranks", "N", "share one graph among N ranks, threads of this process; mpirun starts processes", 0},
};

/* What was asked, the same for all ranks. */
typedef struct request {
    mg_config config;
    const char *run, *out, *embeddings, *cache;
    int foreign; /* --data names another dataset */
} request;

typedef struct prediction {
    const request *asked;
    mg_config config;
    mg_comm *comm;
    mg_checkpoint state;
    mg_dataset *data;
    mg_problem *problem;
    mg_cache cache;
    mg_units *units;
    mg_model *model;
    float *parameters, *targets; /* targets: mean, then deviation */
    float *outputs, *embeddings;
} prediction;

static int read_request(request *r, const mg_arguments *arguments)
{
    static const char *const short_for[][2] = {
        {"--data", "data.path"}, {"--memory", "memory"}, {"--threads", "threads"}};
    mg_config *config = &r->config;
    mg_options_standard(config);
    int status = mg_config_read(config, mg_files_path(r->run, "config.yaml"));
    if (status == -ENOENT)
        return fail(status, "%s: is no run: it has no config.yaml", r->run);
    r->foreign = mg_arguments_value(arguments, "--data") != NULL;
    for (size_t f = 0; f < sizeof short_for / sizeof *short_for && !status; f++)
        if (mg_arguments_value(arguments, short_for[f][0]))
            status = mg_options_set(config, short_for[f][0], short_for[f][1],
                                    mg_arguments_value(arguments, short_for[f][0]));
    config->parallel.ranks = config->parallel.context = MG_AUTO;
    config->parallel.context_method = MG_METHOD_AUTO;
    return status ? status : mg_ranks_resolve(config, mg_arguments_value(arguments, "--ranks"));
}

static int open_checkpoint(prediction *p)
{
    const char *run = p->asked->run;
    int status = mg_checkpoint_open(&p->state, run);
    if (status != -ENOENT)
        return status;
    return fail(status,
                "%s: has no checkpoint; the runs of several seeds, splits or folds lie in its folders (as %s/seed-0)",
                run, run);
}

static int open_data(prediction *p)
{
    mg_config config = p->config;
    if (p->asked->foreign)
        config.task = MG_TASK_AUTO; /* it may have no labels */
    int status = mg_problem_open(&p->data, &config);
    if (status)
        return status;
    if (mg_ranks_rank(p->comm) == 0)
        fprintf(stderr, "%s", p->data->story);
    if (p->data->feature_count != p->state.inputs || p->data->edge_feature_count != p->state.edge_inputs)
        return fail(-EINVAL, "%s: has %lld node and %lld edge features, the run was trained with %lld and %lld",
                    p->data->name, (long long)p->data->feature_count, (long long)p->data->edge_feature_count,
                    (long long)p->state.inputs, (long long)p->state.edge_inputs);
    int graphs = p->config.model.readout != MG_READOUT_AUTO;
    if (graphs && p->data->level == MG_DATASET_NODE && p->data->task != MG_DATASET_NONE)
        return fail(-EINVAL, "%s: has labels of nodes, the run was trained on labels of graphs", p->data->name);
    if (!p->asked->foreign && mg_problem_hash(p->data) != p->state.dataset_hash)
        mg_progress_say("note: %s is not what the run was trained on: it was changed since", p->config.data.path);
    return 0;
}

static int open_model(prediction *p)
{
    mg_model_desc desc = mg_prepare_model(&p->config, p->state.inputs, p->state.edge_inputs, p->state.outputs);
    int regression = p->config.task == MG_TASK_REGRESSION;
    int status = relay(mg_model_create(&p->model, &desc), mg_model_last_error());
    if (status)
        return status;
    p->parameters = allocate(mg_model_parameter_count(p->model), sizeof(float));
    p->targets = allocate_zeroed(p->state.outputs, 2 * sizeof(float));
    if (!p->parameters || !p->targets)
        return -ENOMEM;
    mg_checkpoint_arrays arrays = {.model = p->model,
                                   .best = p->parameters,
                                   .target_mean = p->targets,
                                   .target_deviation = p->targets + p->state.outputs,
                                   .targets = regression ? p->state.outputs : 0};
    status = mg_checkpoint_read(&p->state, &arrays);
    if (status)
        return status;
    int64_t first, last, split = -1;
    if (!p->asked->foreign || p->data->splits) {
        const char *text = p->config.data.folds ? p->config.data.fold : p->config.data.split;
        status = mg_config_range(&first, &last, "data.split", text, mg_problem_splits(p->data, &p->config));
        split = status ? -1 : first;
    }
    return mg_problem_create_trained(&p->problem, p->data, &p->config, split, p->state.outputs, p->state.class_names,
                                     p->state.classes, regression ? p->targets : NULL,
                                     regression ? p->targets + p->state.outputs : NULL);
}

static int64_t item_count(const prediction *p)
{
    return p->data->level == MG_DATASET_GRAPH || p->config.model.readout != MG_READOUT_AUTO ? p->data->graphs
                                                                                            : p->data->graph->nodes;
}

/* Outputs and embeddings are rank 0's. */
static int allocate_tables(prediction *p)
{
    int64_t items = mg_ranks_rank(p->comm) ? 0 : item_count(p);
    p->outputs = allocate_zeroed(items * p->state.outputs, sizeof(float));
    p->embeddings = p->asked->embeddings ? allocate_zeroed(items * p->config.model.hidden, sizeof(float)) : NULL;
    return p->outputs && (!p->asked->embeddings || p->embeddings) ? 0 : -ENOMEM;
}

static int compute(prediction *p)
{
    mg_runner runner = {.model = p->model, .threads = (int)p->config.threads};
    mg_epoch epoch = {0};
    int64_t hidden = p->asked->embeddings ? p->config.model.hidden : 0;
    int status = mg_units_create(&p->units, p->data, &p->config, &p->cache);
    if (!status && p->comm)
        mg_progress_say("%s, context method %s", mg_ranks_story(p->comm),
                        mg_options_word(&p->config, "parallel.context_method"));
    if (!status)
        status = mg_epoch_create(&epoch, p->units, NULL, 0, 0, 0, 0);
    if (!status)
        status = mg_evaluate(p->outputs, p->embeddings, &runner, p->parameters, &epoch, p->state.outputs, hidden);
    mg_epoch_clear(&epoch);
    mg_runner_clear(&runner);
    return status;
}

static void report(const prediction *p)
{
    static const char *const names[] = {"", "train", "validation", "test"};
    for (int which = MG_DATASET_TEST; which >= MG_DATASET_TRAIN; which--)
        if (p->problem->split && p->problem->counts[which])
            printf("%s %s %.6f over %lld items\n", names[which], mg_options_word(&p->config, "metric"),
                   mg_problem_score(p->problem, p->problem->metric, p->outputs, which),
                   (long long)p->problem->counts[which]);
}

/* --- writing --- */

/* A CSV field, quoted where it must be. */
static void put_field(FILE *file, const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, file);
        return;
    }
    fputc('"', file);
    for (; *text; text++)
        fprintf(file, *text == '"' ? "\"%c" : "%c", *text);
    fputc('"', file);
}

static void put_item(FILE *file, const prediction *p, int64_t item)
{
    if (p->data->node_names && item_count(p) == p->data->graph->nodes)
        put_field(file, p->data->node_names[item]);
    else
        fprintf(file, "%lld", (long long)item);
}

/* Classes: the name of the likeliest, then probabilities; otherwise the values. */
static void put_predictions(FILE *file, const prediction *p)
{
    int64_t columns = p->state.outputs;
    int classes = p->config.task == MG_TASK_CLASSIFICATION;
    fputs(classes ? "id,class" : "id", file);
    for (int64_t c = 0; c < columns; c++) {
        fputc(',', file);
        if (classes && c < p->state.classes)
            put_field(file, p->state.class_names[c]);
        else
            fprintf(file, "target_%lld", (long long)c);
    }
    fputc('\n', file);
    for (int64_t i = 0; i < item_count(p); i++) {
        const float *row = p->outputs + i * columns;
        int64_t best = 0;
        for (int64_t c = 1; c < columns; c++)
            best = row[c] > row[best] ? c : best;
        put_item(file, p, i);
        if (classes) {
            fputc(',', file);
            put_field(file, best < p->state.classes ? p->state.class_names[best] : "?");
        }
        for (int64_t c = 0; c < columns; c++)
            fprintf(file, ",%.9g", (double)row[c]);
        fputc('\n', file);
    }
}

static void put_embeddings(FILE *file, const prediction *p)
{
    int64_t hidden = p->config.model.hidden;
    fputs("id", file);
    for (int64_t c = 0; c < hidden; c++)
        fprintf(file, ",%lld", (long long)c);
    fputc('\n', file);
    for (int64_t i = 0; i < item_count(p); i++) {
        put_item(file, p, i);
        for (int64_t c = 0; c < hidden; c++)
            fprintf(file, ",%.9g", (double)p->embeddings[i * hidden + c]);
        fputc('\n', file);
    }
}

static int ends_with(const char *path, const char *ending)
{
    size_t length = strlen(path), tail = strlen(ending);
    return length > tail && !strcmp(path + length - tail, ending);
}

/* Before anything is computed. */
static int check_name(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    char folder[8192];
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 0, path ? path : "");
    if (*folder && !mg_files_exists(folder))
        return fail(-ENOENT, "%s: cannot be written: there is no folder %s", path, folder);
    if (!path || ends_with(path, ".npy") || ends_with(path, ".csv"))
        return 0;
    return fail(-EINVAL, "%s: the name must end in .npy or .csv", path);
}

static int write_table(const prediction *p, const char *path, const float *values, int64_t columns,
                       void (*put)(FILE *file, const prediction *p))
{
    if (ends_with(path, ".npy"))
        return relay(mg_dataset_write_npy(path, values, item_count(p), columns), mg_dataset_last_error());
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (file)
        put(file, p);
    int status = file && !ferror(file) && !fclose(file) ? mg_files_write(path, text, bytes)
                                                        : fail(-ENOMEM, "%s: no memory to write it", path);
    free(text);
    return status;
}

static int write_all(prediction *p)
{
    const request *asked = p->asked;
    report(p);
    mg_problem_finish(p->problem, p->outputs, item_count(p));
    int status = write_table(p, asked->out, p->outputs, p->state.outputs, put_predictions);
    if (!status && asked->embeddings)
        status = write_table(p, asked->embeddings, p->embeddings, p->config.model.hidden, put_embeddings);
    return status;
}

static int predict(prediction *p)
{
    int status = open_checkpoint(p);
    if (!status)
        status = open_data(p);
    if (!status)
        status = open_model(p);
    if (!status)
        status = allocate_tables(p);
    status = mg_ranks_agree(p->comm, status);
    if (!status)
        status = compute(p);
    return status || mg_ranks_rank(p->comm) ? status : write_all(p);
}

static int work(mg_comm *comm, void *context)
{
    const request *asked = context;
    prediction p = {.asked = asked, .config = asked->config, .comm = comm};
    mg_encode_open_cache(&p.cache, asked->cache, comm);
    int status = predict(&p);
    char line[600];
    snprintf(line, sizeof line, "%s", status ? mg_app_last_error() : "");
    mg_problem_destroy(p.problem);
    mg_units_destroy(p.units);
    mg_encode_close_cache(&p.cache);
    mg_model_destroy(p.model);
    mg_dataset_close(p.data);
    mg_checkpoint_clear(&p.state);
    void *const blocks[] = {p.parameters, p.targets, p.outputs, p.embeddings};
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        release(blocks[b]);
    return status ? fail(status, "%s", line) : 0;
}

static int take_arguments(request *r, const mg_arguments *arguments)
{
    r->run = mg_arguments_value(arguments, "--run");
    r->out = mg_arguments_value(arguments, "--out");
    r->embeddings = mg_arguments_value(arguments, "--embeddings");
    r->cache = mg_arguments_value(arguments, "--cache");
    int status = mg_arguments_need(arguments, "--run");
    if (!status)
        status = mg_arguments_need(arguments, "--out");
    if (!status)
        status = check_name(r->out);
    if (!status)
        status = check_name(r->embeddings);
    return status ? status : read_request(r, arguments);
}

static int run(const mg_command *command, int count, char **words)
{
    mg_arguments arguments;
    request r = {0};
    int status = mg_arguments_parse(&arguments, command, count, words);
    if (status == 1)
        return 0;
    if (!status)
        status = take_arguments(&r, &arguments);
    if (!status) {
        mg_memory_watch(r.config.memory);
        status = mg_ranks_run(&r.config, work, &r);
    }
    return mg_commands_report(status);
}

const mg_command mg_command_predict = {
    .name = "predict",
    .summary = "writes what a trained run says of a dataset",
    .usage = "--run RUN --out FILE [--data FILE] [--embeddings FILE] [--ranks N]",
    .text = "Rows are in the order of the dataset's own nodes (or graphs). Prints the metric where there are labels.",
    .flags = flags,
    .flag_count = sizeof flags / sizeof *flags,
    .run = run,
};
