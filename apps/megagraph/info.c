/* megagraph info: what a dataset holds, and what training on it would begin with. */
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "commands.h"
#include "defaults.h"
#include "encode.h"
#include "memory.h"
#include "problem.h"

#include <megagraph/dataset.h>

static const mg_flag flags[] = {MG_FLAGS_DATASET};

static int show_graph(const mg_dataset *data)
{
    const mg_graph *graph = data->graph;
    int64_t components = 0, largest = 0, isolated = 0, biggest = 0;
    int32_t *component = allocate(graph->nodes, sizeof *component);
    int status = component ? relay(mg_graph_components(component, &components, graph), mg_graph_last_error()) : -ENOMEM;
    for (int64_t i = 0; i < graph->nodes && !status; i++) {
        int64_t degree = graph->starts[i + 1] - graph->starts[i];
        biggest = degree > biggest ? degree : biggest;
        isolated += !degree;
        largest += component[i] == 0;
    }
    release(component);
    if (status)
        return status;
    printf("degree: mean %.2f, largest %lld, nodes without edges %lld\n",
           graph->nodes ? (double)graph->edges / (double)graph->nodes : 0, (long long)biggest, (long long)isolated);
    if (data->graphs == 1)
        printf("components: %lld, the largest of %lld nodes\n", (long long)components, (long long)largest);
    else
        printf("graphs: %lld, of %.1f nodes each in the mean\n", (long long)data->graphs,
               (double)graph->nodes / (double)data->graphs);
    return 0;
}

static int show_pairs(const mg_dataset *data)
{
    double shares[6], nodes = (double)data->graph->nodes;
    if (data->graphs > 1 || data->graph->nodes == 0)
        return 0;
    int status = mg_encode_near_shares(shares, data->graph, 5);
    if (status)
        return status;
    printf("pairs: %.4g; within 1, 2, 3, 5 hops: %.3g %%, %.3g %%, %.3g %%, %.3g %% (sampled)\n", nodes * nodes,
           100 * shares[1], 100 * shares[2], 100 * shares[3], 100 * shares[5]);
    printf("scores and bias as matrices, 8 heads, fp32: %s a layer\n",
           mg_memory_text((int64_t)(2 * 8 * 4 * nodes * nodes)));
    return 0;
}

static void show_classes(const mg_dataset *data)
{
    enum { SHOWN = 12 };
    int64_t *counts = data->labels ? allocate_zeroed(data->classes + 1, sizeof *counts) : NULL;
    if (!counts)
        return;
    for (int64_t i = 0; i < data->items; i++)
        counts[data->labels[i] < 0 ? data->classes : data->labels[i]]++;
    printf("classes:");
    for (int64_t c = 0; c < data->classes && c < SHOWN; c++)
        printf(" %s (%lld)", data->class_names[c], (long long)counts[c]);
    printf("%s\n", data->classes > SHOWN ? " ..." : "");
    release(counts);
}

/* The settings that training would begin with. */
static void show_defaults(const mg_dataset *data)
{
    mg_config config;
    char value[MG_TEXT_BYTES];
    static const char *const keys[] = {"task",
                                       "metric",
                                       "model.kind",
                                       "model.local",
                                       "model.layers",
                                       "model.hidden",
                                       "model.encodings.distance",
                                       "attention.far",
                                       "train.lr",
                                       "train.epochs"};
    mg_options_standard(&config);
    if (data->task == MG_DATASET_NONE || mg_defaults_resolve(&config, data))
        return;
    printf("train would use:");
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        mg_options_print(value, sizeof value, &config, mg_options_find(keys[k]));
        printf(" %s=%s", keys[k], value);
    }
    printf("\n");
}

static int show(const mg_dataset *data)
{
    printf("%s", data->story);
    int status = show_graph(data);
    if (!status)
        status = show_pairs(data);
    if (status)
        return status;
    show_classes(data);
    show_defaults(data);
    printf("hash: %016llx\n", (unsigned long long)mg_problem_hash(data));
    return 0;
}

static int run(const mg_command *command, int count, char **words)
{
    mg_arguments arguments;
    mg_dataset *data = NULL;
    int status = mg_arguments_parse(&arguments, command, count, words);
    if (status == 1)
        return 0;
    if (!status && !arguments.word_count)
        status = fail(-EINVAL, "info: no dataset is named; usage: megagraph info %s", command->usage);
    if (!status)
        status = mg_commands_open(&data, &arguments, arguments.words[0]);
    if (!status)
        status = show(data);
    mg_dataset_close(data);
    return mg_commands_report(status);
}

const mg_command mg_command_info = {
    .name = "info",
    .summary = "tells what a dataset holds",
    .usage = "FILE",
    .text =
        "Nodes, edges, features, labels, splits, degrees, components, near pairs, and what training would begin with.",
    .flags = flags,
    .flag_count = sizeof flags / sizeof *flags,
    .words = 1,
    .run = run,
};
