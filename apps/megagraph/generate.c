/* megagraph generate: datasets made up, for trials and tests. */
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "commands.h"

#include <megagraph/dataset.h>

static const mg_flag flags[] = {
    {"--out", "FILE", "the .npz to write", 0},
    {"--nodes", "N", "sbm, rmat: nodes (1000); grid: nodes, as a square; graphs: nodes of a graph in the mean (20)", 0},
    {"--edges", "M", "rmat: edges (8 a node)", 0},
    {"--blocks", "K", "sbm: blocks, that is classes (5)", 0},
    {"--inside", "D", "sbm: mean degree inside a block (8)", 0},
    {"--across", "D", "sbm: mean degree to other blocks (2)", 0},
    {"--features", "F", "sbm: feature columns (16)", 0},
    {"--noise", "X", "sbm: noise of the features (1)", 0},
    {"--graphs", "G", "graphs: how many (200)", 0},
    {"--seed", "N", "0 unless given", 0},
};

typedef struct sizes {
    int64_t nodes, edges, blocks, features, graphs, seed;
    double inside, across, noise;
} sizes;

static int read_sizes(sizes *s, const mg_arguments *arguments, int64_t nodes)
{
    int status = mg_arguments_integer(&s->nodes, arguments, "--nodes", nodes, 1, INT32_MAX);
    if (!status)
        status = mg_arguments_integer(&s->edges, arguments, "--edges", 8 * s->nodes, 0, INT64_MAX / 64);
    if (!status)
        status = mg_arguments_integer(&s->blocks, arguments, "--blocks", 5, 1, 1 << 20);
    if (!status)
        status = mg_arguments_integer(&s->features, arguments, "--features", 16, 0, 1 << 20);
    if (!status)
        status = mg_arguments_integer(&s->graphs, arguments, "--graphs", 200, 1, INT32_MAX);
    if (!status)
        status = mg_arguments_integer(&s->seed, arguments, "--seed", 0, 0, INT64_MAX);
    if (!status)
        status = mg_arguments_real(&s->inside, arguments, "--inside", 8, 0, 1e9);
    if (!status)
        status = mg_arguments_real(&s->across, arguments, "--across", 2, 0, 1e9);
    if (!status)
        status = mg_arguments_real(&s->noise, arguments, "--noise", 1, 0, 1e9);
    return status;
}

/* A bare graph as a dataset without labels; takes the graph. */
static int wrap_graph(mg_dataset **out, mg_graph *graph, const char *name)
{
    int64_t segments[2] = {0, graph->nodes};
    mg_dataset parts = {.name = (char *)(uintptr_t)name,
                        .graph = graph,
                        .graphs = 1,
                        .segments = segments,
                        .level = MG_DATASET_NODE,
                        .items = graph->nodes};
    int status = relay(mg_dataset_create(out, &parts), mg_dataset_last_error());
    mg_graph_destroy(graph);
    return status;
}

static int make_sbm(mg_dataset **out, const sizes *s)
{
    return relay(mg_dataset_generate_sbm(out, s->nodes, (int)s->blocks, s->inside, s->across, s->features, s->noise,
                                         (uint64_t)s->seed),
                 mg_dataset_last_error());
}

static int make_rmat(mg_dataset **out, const sizes *s)
{
    mg_graph *graph;
    int status = mg_graph_generate_rmat(&graph, s->nodes, s->edges, (uint64_t)s->seed);
    return status ? relay(status, mg_graph_last_error()) : wrap_graph(out, graph, "rmat");
}

static int make_grid(mg_dataset **out, const sizes *s)
{
    mg_graph *graph;
    int64_t side = 1;
    while ((side + 1) * (side + 1) <= s->nodes)
        side++;
    int status = mg_graph_generate_grid(&graph, side, side);
    return status ? relay(status, mg_graph_last_error()) : wrap_graph(out, graph, "grid");
}

static int make_graphs(mg_dataset **out, const sizes *s)
{
    return relay(mg_dataset_generate_graphs(out, s->graphs, s->nodes, (uint64_t)s->seed), mg_dataset_last_error());
}

static const struct kind {
    const char *name;
    int64_t nodes;
    int (*make)(mg_dataset **out, const sizes *s);
} kinds[] = {
    {"sbm", 1000, make_sbm}, {"rmat", 1000, make_rmat}, {"grid", 1024, make_grid}, {"graphs", 20, make_graphs}};

static const struct kind *find_kind(const char *name)
{
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (!strcmp(kinds[k].name, name))
            return &kinds[k];
    return NULL;
}

static int generate(const mg_arguments *arguments)
{
    const char *name = arguments->word_count ? arguments->words[0] : "";
    const struct kind *kind = find_kind(name);
    mg_dataset *data = NULL;
    sizes s;
    if (!arguments->word_count)
        return fail(-EINVAL, "generate: no kind is named; it is one of sbm, rmat, grid, graphs");
    if (!kind)
        return fail(-EINVAL, "generate: '%.60s' is no kind; it is one of sbm, rmat, grid, graphs", name);
    int status = mg_arguments_need(arguments, "--out");
    const char *out = mg_arguments_value(arguments, "--out");
    if (!status && (strlen(out) < 4 || strcmp(out + strlen(out) - 4, ".npz"))) /* it is read by this ending */
        status = fail(-EINVAL, "generate: %.200s: the name must end in .npz", out);
    if (!status)
        status = read_sizes(&s, arguments, kind->nodes);
    if (!status)
        status = kind->make(&data, &s);
    if (!status)
        status = relay(mg_dataset_write_npz(data, mg_arguments_value(arguments, "--out")), mg_dataset_last_error());
    if (!status)
        printf("%swritten to %s\n", data->story ? data->story : "", mg_arguments_value(arguments, "--out"));
    mg_dataset_close(data);
    return status;
}

static int run(const mg_command *command, int count, char **words)
{
    mg_arguments arguments;
    int status = mg_arguments_parse(&arguments, command, count, words);
    if (status == 1)
        return 0;
    if (!status)
        status = generate(&arguments);
    return mg_commands_report(status);
}

const mg_command mg_command_generate = {
    .name = "generate",
    .summary = "makes up a dataset",
    .usage = "sbm|rmat|grid|graphs --out FILE [sizes]",
    .text =
        "sbm: a stochastic block model with noisy class features and labels; rmat: a power-law graph; grid: a square;\n"
        "graphs: small graphs to classify. The same flags make the same file.",
    .flags = flags,
    .flag_count = sizeof flags / sizeof *flags,
    .words = 1,
    .run = run,
};
