/* megagraph partition: cuts a graph into parts of equal work. */
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "commands.h"
#include "files.h"

#include <megagraph/dataset.h>

static const mg_flag flags[] = {
    {"--parts", "K", "how many", 0},
    {"--out", "FILE", ".npy (fp32) or .csv: the part of each node, in the dataset's order", 0},
    {"--imbalance", "SHARE", "allowed above the mean, 0.01 unless given", 0},
    {"--seed", "N", "of METIS", 0},
    MG_FLAGS_DATASET,
};

static int write_csv(const char *path, const int32_t *parts, const mg_dataset *data)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (file)
        fprintf(file, "id,part\n");
    for (int64_t i = 0; file && i < data->graph->nodes; i++)
        if (data->node_names)
            fprintf(file, "%s,%d\n", data->node_names[i], parts[i]);
        else
            fprintf(file, "%lld,%d\n", (long long)i, parts[i]);
    int status =
        file && !fclose(file) ? mg_files_write(path, text, bytes) : fail(-ENOMEM, "%s: no memory to write it", path);
    free(text);
    return status;
}

static int write_npy(const char *path, const int32_t *parts, int64_t nodes)
{
    float *values = allocate(nodes, sizeof *values);
    if (!values)
        return -ENOMEM;
    for (int64_t i = 0; i < nodes; i++)
        values[i] = (float)parts[i];
    int status = relay(mg_dataset_write_npy(path, values, nodes, 1), mg_dataset_last_error());
    release(values);
    return status;
}

static int cut(const mg_dataset *data, const mg_arguments *arguments)
{
    const char *out = mg_arguments_value(arguments, "--out");
    size_t length = out ? strlen(out) : 0;
    int64_t count, seed;
    double imbalance;
    int status = mg_arguments_integer(&count, arguments, "--parts", 1, 1, INT32_MAX);
    if (!status)
        status = mg_arguments_integer(&seed, arguments, "--seed", 0, 0, INT64_MAX);
    if (!status)
        status = mg_arguments_real(&imbalance, arguments, "--imbalance", 0, 0, 1e3);
    if (!status && out && (length < 5 || (strcmp(out + length - 4, ".npy") && strcmp(out + length - 4, ".csv"))))
        status = fail(-EINVAL, "%s: the name must end in .npy or .csv", out);
    int32_t *parts = status ? NULL : allocate(data->graph->nodes, sizeof *parts);
    if (!status && !parts)
        status = -ENOMEM;
    mg_graph_partition_report report = {0};
    if (!status)
        status = relay(mg_graph_partition(parts, &report, data->graph,
                                          &(mg_graph_partition_desc){
                                              .parts = (int32_t)count, .imbalance = imbalance, .seed = (uint64_t)seed}),
                       mg_graph_last_error());
    if (!status && out)
        status =
            strcmp(out + length - 4, ".csv") ? write_npy(out, parts, data->graph->nodes) : write_csv(out, parts, data);
    if (!status)
        printf("%lld parts: %lld edges cut (%.2f %%), largest part %.3f of the mean by nodes, %.3f by edges, %lld "
               "nodes moved into "
               "empty parts, %lld components\n",
               (long long)count, (long long)report.cut,
               data->graph->edges ? 200.0 * (double)report.cut / (double)data->graph->edges : 0, report.node_balance,
               report.weight_balance, (long long)report.repaired, (long long)report.components);
    release(parts);
    return status;
}

static int run(const mg_command *command, int count, char **words)
{
    mg_arguments arguments;
    mg_dataset *data = NULL;
    int status = mg_arguments_parse(&arguments, command, count, words);
    if (status == 1)
        return 0;
    if (!status && !arguments.word_count)
        status = fail(-EINVAL, "partition: no dataset is named; usage: megagraph partition %s", command->usage);
    if (!status)
        status = mg_arguments_need(&arguments, "--parts");
    if (!status)
        status = mg_commands_open(&data, &arguments, arguments.words[0]);
    if (!status)
        status = cut(data, &arguments);
    mg_dataset_close(data);
    return mg_commands_report(status);
}

const mg_command mg_command_partition = {
    .name = "partition",
    .summary = "cuts a graph into parts of equal work",
    .usage = "FILE --parts K [--out FILE]",
    .text = "By METIS, with cut and balance counted here.",
    .flags = flags,
    .flag_count = sizeof flags / sizeof *flags,
    .words = 1,
    .run = run,
};
