#include "integration/ranks_case.h"

#include <megagraph/dataset.h>

const char *ranks_mpirun = "";

/* --- data --- */

enum { CLASSES = 3, FEATURES = 6, EDGE_FEATURES = 3 };

static void must(int status)
{
    if (status)
        fail_msg("%s", mg_graph_last_error());
}

/* Directed edges within and between three blocks; node 7 has none, node 5 one to itself. */
static mg_graph *make_graph(int64_t nodes)
{
    mg_graph *graph;
    int64_t *sources = malloc((size_t)(nodes * nodes + 1) * sizeof *sources), edges = 0;
    int64_t *targets = malloc((size_t)(nodes * nodes + 1) * sizeof *targets);
    for (int64_t i = 0; i < nodes; i++)
        for (int64_t j = 0; j < nodes; j++) {
            double chance = i % CLASSES == j % CLASSES ? 8.0 / (double)nodes : 1.0 / (double)nodes;
            if (i == j || i == 7 || j == 7 || (test_random(1, (uint64_t)(i * 1000 + j)) + 1) / 2 > chance)
                continue;
            sources[edges] = i;
            targets[edges++] = j;
        }
    if (nodes > 5)
        sources[edges] = targets[edges] = 5, edges++;
    must(mg_graph_create(
        &graph, &(mg_graph_desc){.nodes = nodes, .edges = edges, .sources = sources, .targets = targets, .directed = 1},
        NULL));
    free(sources);
    free(targets);
    return graph;
}

static void write_data(const char *path, int64_t nodes)
{
    char *names[CLASSES] = {"0", "1", "2"};
    mg_graph *graph = make_graph(nodes);
    float *features = malloc((size_t)(nodes * FEATURES) * sizeof *features);
    float *edge_features = malloc((size_t)(graph->edges * EDGE_FEATURES + 1) * sizeof *edge_features);
    int32_t *labels = malloc((size_t)nodes * sizeof *labels);
    test_fill(features, nodes * FEATURES, 2, 1);
    test_fill(edge_features, graph->edges * EDGE_FEATURES, 3, 1);
    for (int64_t i = 0; i < nodes; i++) {
        labels[i] = i % 11 ? (int32_t)(i % CLASSES) : -1;
        features[i * FEATURES + i % CLASSES] += 1;
    }
    mg_dataset *data;
    must(mg_dataset_create(&data, &(mg_dataset){.name = "made",
                                                .graph = graph,
                                                .graphs = 1,
                                                .segments = (int64_t[]){0, nodes},
                                                .feature_count = FEATURES,
                                                .features = features,
                                                .edge_feature_count = EDGE_FEATURES,
                                                .edge_features = edge_features,
                                                .level = MG_DATASET_NODE,
                                                .task = MG_DATASET_CLASSIFICATION,
                                                .items = nodes,
                                                .classes = CLASSES,
                                                .class_names = names,
                                                .labels = labels}));
    must(mg_dataset_write_npz(data, path));
    mg_dataset_close(data);
    mg_graph_destroy(graph);
    free(features);
    free(edge_features);
    free(labels);
}

int ranks_make_data(void **state)
{
    int status = program_setup(state);
    if (!status) {
        write_data("graph.npz", 150);
        write_data("tiny.npz", 5);
    }
    return status;
}

int64_t ranks_boundary_rows(const int32_t *parts)
{
    enum { NODES = 150, MOST = 16 };
    static uint8_t needed[MOST][NODES];
    mg_graph *graph = make_graph(NODES);
    int64_t rows = 0;
    memset(needed, 0, sizeof needed);
    for (int64_t i = 0; i < NODES; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++) {
            const int32_t j = graph->columns[e];
            if (parts[i] != parts[j])
                needed[parts[i]][j] = 1;
        }
    for (int part = 0; part < MOST; part++)
        for (int64_t j = 0; j < NODES; j++)
            rows += needed[part][j];
    mg_graph_destroy(graph);
    return rows;
}

/* --- runs --- */

void ranks_run(int ranks, const char *format, ...)
{
    char words[4096];
    va_list values;
    va_start(values, format);
    vsnprintf(words, sizeof words, format, values);
    va_end(values);
    int processes = *ranks_mpirun && ranks > 1;
    program_before[0] = 0;
    if (processes)
        snprintf(program_before, sizeof program_before, "%s --oversubscribe --allow-run-as-root -n %d", ranks_mpirun,
                 ranks);
    if (processes)
        program_works("%s", words);
    else
        program_works("%s --ranks %d", words, ranks);
    program_before[0] = 0;
}

void ranks_train(const char *name, const char *data, const char *settings, int ranks)
{
    static const char fixed[] = "model.layers=2 model.hidden=16 model.dropout=0.1 model.attention_dropout=0.1 "
                                "model.input_dropout=0.1 train.lr=3e-3 train.schedule=constant";
    char command[512];
    ranks_run(ranks, "train --data %s --out %s --set train.epochs=1 %s %s", data, name, fixed, settings);
    snprintf(command, sizeof command, "cp -r %s %s-first", name, name);
    assert_int_equal(system(command), 0);
    ranks_run(ranks, "train --resume %s --set train.epochs=10", name);
}

/* --- how far apart --- */

typedef struct tensors {
    char *bytes;
    float *data; /* within bytes */
    json_t *header;
} tensors;

static tensors read_tensors(const char *name)
{
    char path[512];
    uint64_t length;
    tensors t = {0};
    snprintf(path, sizeof path, "%s-first/checkpoint/state.safetensors", name);
    FILE *file = fopen(path, "rb");
    t.bytes = malloc(1 << 24);
    size_t bytes = file ? fread(t.bytes, 1, 1 << 24, file) : 0;
    assert_true(file && bytes > 8 && bytes < 1 << 24);
    fclose(file);
    memcpy(&length, t.bytes, sizeof length);
    t.header = json_loadb(t.bytes + 8, length, 0, NULL);
    t.data = (float *)(void *)(t.bytes + 8 + length);
    assert_non_null(t.header);
    return t;
}

/* After one step the first moment is the gradient, times what is the same for all. */
static void compare_gradients(const char *name, const char *reference)
{
    tensors a = read_tensors(name), b = read_tensors(reference);
    double distance = 0, norm = 0;
    const char *key;
    json_t *value;
    json_object_foreach(a.header, key, value)
    {
        json_int_t begin, end, other, other_end;
        if (strncmp(key, "optimizer.first.", 16))
            continue;
        assert_int_equal(json_unpack(value, "{s:[I, I]}", "data_offsets", &begin, &end), 0);
        assert_int_equal(json_unpack(json_object_get(b.header, key), "{s:[I, I]}", "data_offsets", &other, &other_end),
                         0);
        assert_int_equal(end - begin, other_end - other);
        for (json_int_t i = 0; i < (end - begin) / 4; i++) {
            double x = a.data[begin / 4 + i], y = b.data[other / 4 + i];
            distance += (x - y) * (x - y);
            norm += y * y;
        }
    }
    if (!(sqrt(distance) <= 1e-5 * sqrt(norm)) || !(norm > 0))
        fail_msg("%s: gradients of the first step are %g from those of one rank, whose norm is %g", name,
                 sqrt(distance), sqrt(norm));
    json_decref(a.header);
    json_decref(b.header);
    free(a.bytes);
    free(b.bytes);
}

/* The lines of steps. */
static json_t *read_steps(const char *name)
{
    char path[512], line[65536];
    json_t *steps = json_array();
    snprintf(path, sizeof path, "%s/log.jsonl", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        json_t *object = json_loads(line, 0, NULL);
        if (json_object_get(object, "step"))
            json_array_append(steps, object);
        json_decref(object);
    }
    fclose(file);
    return steps;
}

static void compare_losses(const char *name, const char *reference)
{
    json_t *a = read_steps(name), *b = read_steps(reference);
    assert_int_equal(json_array_size(a), 10);
    assert_int_equal(json_array_size(b), 10);
    for (size_t i = 0; i < 10; i++) {
        double x = json_number_value(json_object_get(json_array_get(a, i), "loss"));
        double y = json_number_value(json_object_get(json_array_get(b, i), "loss"));
        if (!(fabs(x - y) <= 1e-5 * y))
            fail_msg("%s: the loss of step %zu is %.9g, on one rank %.9g", name, i + 1, x, y);
    }
    json_decref(a);
    json_decref(b);
}

void ranks_compare(const char *name, const char *reference)
{
    compare_gradients(name, reference);
    compare_losses(name, reference);
}

double ranks_sent(const char *name, int rank)
{
    json_t *steps = read_steps(name);
    json_t *last = json_array_get(steps, json_array_size(steps) - 1);
    double bytes = json_number_value(json_array_get(json_object_get(last, "sent_bytes"), (size_t)rank));
    json_decref(steps);
    return bytes;
}
