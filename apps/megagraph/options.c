#include "options.h"

#include "app.h"
#include "ranks.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(mg_config, field)
#define INTEGER(key, field, standard, least, most, help)                                                               \
    {                                                                                                                  \
        key, MG_OPTION_INTEGER, AT(field), standard, least, most, NULL, help, 0, 0, 0                                  \
    }
#define AUTO_INTEGER(key, field, least, most, help)                                                                    \
    {                                                                                                                  \
        key, MG_OPTION_INTEGER, AT(field), "auto", least, most, NULL, help, 1, 0, 0                                    \
    }
#define AUTO_REAL(key, field, least, most, help)                                                                       \
    {                                                                                                                  \
        key, MG_OPTION_REAL, AT(field), "auto", least, most, NULL, help, 1, 0, 0                                       \
    }
#define REAL(key, field, standard, least, most, help)                                                                  \
    {                                                                                                                  \
        key, MG_OPTION_REAL, AT(field), standard, least, most, NULL, help, 0, 0, 0                                     \
    }
#define BYTES(key, field, standard, help)                                                                              \
    {                                                                                                                  \
        key, MG_OPTION_BYTES, AT(field), standard, 0, 9e18, NULL, help, 0, 0, 0                                        \
    }
#define CHOICE(key, field, standard, choices, help)                                                                    \
    {                                                                                                                  \
        key, MG_OPTION_CHOICE, AT(field), standard, 0, 0, choices, help, 0, 0, 0                                       \
    }
#define SWITCH(key, field, standard, choices, help)                                                                    \
    {                                                                                                                  \
        key, MG_OPTION_CHOICE, AT(field), standard, 0, 0, choices, help, 0, 1, 0                                       \
    }
#define TEXT(key, field, standard, help)                                                                               \
    {                                                                                                                  \
        key, MG_OPTION_TEXT, AT(field), standard, 0, 0, NULL, help, 0, 0, 0                                            \
    }
#define FIXED(key, field, standard, help)                                                                              \
    {                                                                                                                  \
        key, MG_OPTION_INTEGER, AT(field), standard, 0, 1e9, NULL, help, 0, 0, 1                                       \
    }
#define FIXED_CHOICE(key, field, standard, choices, help)                                                              \
    {                                                                                                                  \
        key, MG_OPTION_CHOICE, AT(field), standard, 0, 0, choices, help, 0, 0, 1                                       \
    }

static const mg_option options[] = {
    INTEGER("seed", seed, "0", 0, 9e15, "of initial values, dropout, shuffles and seeded splits"),
    INTEGER("seeds", seeds, "1", 1, 10000,
            "train this many times, with seed, seed + 1, ...; report mean and deviation"),
    INTEGER("threads", threads, "0", 0, 4096, "0: all cores; results do not depend on it"),
    BYTES("memory", memory, "0", "refuse to allocate more than this, as 500M or 2G; 0: no limit"),
    CHOICE("precision", precision, "fp32", "fp32", "of the arithmetic"),
    CHOICE("task", task, "auto", "auto|classification|regression|multilabel", "auto: told from the labels"),
    CHOICE("metric", metric, "auto", "auto|accuracy|roc_auc|average_precision|mae|macro_f1",
           "what validation chooses the epoch by, and the test reports; auto: accuracy, roc_auc for two unbalanced "
           "classes, "
           "average_precision for several 0/1 targets, mae for regression"),
    CHOICE("baseline", baseline, "none", "none|dense|dense_rows|flash|edge|edge_rows",
           "attention as others compute it, for comparison; ranks share heads. dense: scores, bias and gradients as "
           "matrices; dense_rows: the same 64 rows at a time; flash: without bias (another model); edge: rows "
           "gathered to near pairs, messages scattered; edge_rows: the same row by row. All but flash have no attention "
           "dropout"),

    TEXT("data.path", data.path, "", "the dataset: a file or folder (--data)"),
    CHOICE("data.format", data.format, "auto", "auto|npz|ogb|tu|metis|mtx|edges", "auto: told from the content"),
    TEXT("data.labels", data.labels, "", "edge lists, METIS, Matrix Market: CSV of id,label"),
    TEXT("data.features", data.features, "", "likewise: CSV of id,value,value,..."),
    SWITCH("data.directed", data.directed, "off", "auto|off|on", "on: keep edges as given; off: in both directions"),
    CHOICE("data.normalise", data.normalise, "none", "none|rows",
           "rows: each node's features are divided by the sum of their magnitudes, as is usual for bags of words"),
    TEXT("data.split", data.split, "0",
         "which split of the file: a number, a range as 0-2, or all (one run each); a file without any: seeded "
         "60/20/20"),
    INTEGER("data.folds", data.folds, "0", 0, 1000, "cross-validation with this many folds instead of a split; 0: off"),
    TEXT("data.fold", data.fold, "all", "which fold is the test: a number, a range as 0-2, or all (one run each)"),

    CHOICE("model.kind", model.kind, "gps", "graphormer|gt|gps",
           "graphormer: attention over all pairs; gt: over near pairs; gps: attention beside message passing"),
    AUTO_INTEGER("model.layers", model.layers, 1, 4096, "blocks"),
    AUTO_INTEGER("model.hidden", model.hidden, 1, 1 << 20, "width of a token; a multiple of heads"),
    AUTO_INTEGER("model.heads", model.heads, 0, 65536, "attention heads; 0: gps without attention"),
    AUTO_INTEGER("model.ffn", model.ffn, 0, 1 << 22,
                 "width inside the feed-forward part; 0: no such part; auto: 2 hidden"),
    AUTO_REAL("model.dropout", model.dropout, 0, 0.99, "of hidden values"),
    AUTO_REAL("model.attention_dropout", model.attention_dropout, 0, 0.99, "of attention probabilities"),
    AUTO_REAL("model.input_dropout", model.input_dropout, 0, 0.99, "of input features"),
    REAL("model.gain", model.gain, "0", 0, 1,
         "start of a learned gain of each column of what attention, local and feed-forward parts give; 0: no gains"),
    CHOICE("model.norms", model.norms, "all", "all|head", "head: one norm before the outputs, none in the blocks"),
    CHOICE("model.local", model.local, "auto", "auto|none|gcn|gine|gatedgcn", "message passing of gps"),
    SWITCH("model.virtual_token", model.virtual_token, "auto", "auto|off|on",
           "a token that sees all of its graph (graph tasks)"),
    CHOICE("model.readout", model.readout, "auto", "auto|mean|sum|virtual",
           "how a graph's tokens become one (graph tasks)"),
    AUTO_INTEGER("model.encodings.degree", model.encodings.degree, 0, 1 << 20,
                 "rows of the degree table; larger degrees share the last; 0: off"),
    AUTO_INTEGER("model.encodings.distance", model.encodings.distance, 0, 253,
                 "distances up to this have a bias of their own; 0: no bias"),
    AUTO_INTEGER("model.encodings.edge_path", model.encodings.edge_path, 0, 253,
                 "steps of the shortest path whose edge features give a bias; 0: off"),
    AUTO_INTEGER("model.encodings.hops", model.encodings.hops, 0, 1024,
                 "features are averaged over so many hops before training; 0: as given"),
    AUTO_INTEGER("model.encodings.laplacian", model.encodings.laplacian, 0, 1024, "Laplacian eigenvectors; 0: off"),
    AUTO_INTEGER("model.encodings.random_walk", model.encodings.random_walk, 0, 1024,
                 "random-walk return probabilities; 0: off"),

    CHOICE(
        "attention.bias", attention.bias, "auto", "auto|dense|near|tiles|stream",
        "how distance codes are held: a byte a pair, near pairs, tiles, or computed again when needed; auto: by bytes"),
    CHOICE(
        "attention.far", attention.far, "auto", "auto|bias|mask",
        "pairs beyond encodings.distance: bias: seen, with one bias; mask: not seen; auto: bias while that is cheap"),

    AUTO_INTEGER("train.epochs", train.epochs, 0, 1e12, "passes over the training set"),
    AUTO_REAL("train.lr", train.lr, 0, 1e6, "largest learning rate"),
    AUTO_REAL("train.weight_decay", train.weight_decay, 0, 1e6,
              "of linear weights, beside the gradient (AdamW); biases, norms and tables take none"),
    AUTO_REAL("train.l2", train.l2, 0, 1e6, "likewise, inside the gradient (Adam with an L2 penalty)"),
    AUTO_INTEGER("train.warmup", train.warmup, 0, 1e12, "steps over which the rate rises"),
    CHOICE("train.schedule", train.schedule, "auto", "auto|constant|linear|cosine", "of the rate after the warm-up"),
    AUTO_REAL("train.clip", train.clip, 0, 1e30, "largest norm of the gradient; 0: off"),
    AUTO_REAL("train.average", train.average, 0, 0.999999,
              "what is validated and used is a running average of the weights, of which a step keeps this share; 0: the "
              "weights themselves"),
    REAL("train.consistency", train.consistency, "0", 0, 1e6,
         "nodes without a training label learn, with this weight, the classes that the averaged weights (train.average) "
         "say without dropout; 0: off"),
    AUTO_INTEGER("train.patience", train.patience, 0, 1e12,
                 "stop after this many epochs without a better validation; 0: never"),
    INTEGER("train.accumulate", train.accumulate, "1", 1, 1e9,
            "clusters or graph batches whose gradients make one step"),
    AUTO_INTEGER("train.batch_graphs", train.batch_graphs, 1, 1e12, "graphs in a batch (datasets of many graphs)"),
    INTEGER("train.clusters", train.clusters, "0", 0, 1 << 30,
            "cut one graph into this many parts, a step each; 0: the whole graph"),
    CHOICE("train.class_weights", train.class_weights, "none", "none|balanced",
           "balanced: rare classes count more in the loss"),
    INTEGER("train.evaluate", train.evaluate, "1", 1, 1e9, "epochs from one validation to the next"),
    INTEGER("train.checkpoint_seconds", train.checkpoint_seconds, "60", 0, 1e9,
            "between checkpoints while training; 0: only at the end"),

    AUTO_INTEGER(
        "parallel.ranks", parallel.ranks, 1, MG_RANKS_MOST,
        "ranks (--ranks), threads of this process; auto: the processes of mpirun, else 1; results do not depend "
        "on it"),
    FIXED("parallel.replicas", parallel.replicas, "1", "copies of the model"),
    FIXED("parallel.stages", parallel.stages, "1", "pipeline stages"),
    AUTO_INTEGER("parallel.context", parallel.context, 1, MG_RANKS_MOST,
                 "ranks that share the nodes of the graph; auto: all"),
    CHOICE(
        "parallel.context_method", parallel.context_method, "auto", "auto|none|ring|all_to_all|halo",
        "how they do: keys and values go round, heads are shared out, or near rows are fetched (attention.far mask); "
        "auto: halo where far pairs are masked, else ring"),
    FIXED("parallel.sharding", parallel.sharding, "0", "what replicas share out"),
    FIXED("parallel.microbatches", parallel.microbatches, "1", "slices of a batch in the pipeline"),
    FIXED_CHOICE("parallel.recompute", parallel.recompute, "false", "false|true",
                 "activations computed again in backward"),
};
enum { OPTIONS = sizeof options / sizeof *options };

const mg_option *mg_options(int *count)
{
    *count = OPTIONS;
    return options;
}

const mg_option *mg_options_find(const char *key)
{
    for (int i = 0; i < OPTIONS; i++)
        if (!strcmp(options[i].key, key))
            return &options[i];
    return NULL;
}

/* Edits (insert, delete, replace) that turn a into b; words beyond 100 letters are cut. */
static int edits(const char *a, const char *b)
{
    enum { LONGEST = 100 };
    int row[LONGEST + 1], m = (int)strnlen(a, LONGEST), n = (int)strnlen(b, LONGEST);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; i <= m; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = corner + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]));
            corner = row[j];
            best = best < row[j] + 1 ? best : row[j] + 1;
            row[j] = best < row[j - 1] + 1 ? best : row[j - 1] + 1;
        }
    }
    return row[n];
}

static const char *last_word(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

const char *mg_options_nearest(const char *key)
{
    int best = 1 << 20;
    const char *nearest = options[0].key;
    for (int i = 0; i < OPTIONS; i++) {
        /* a right word in a wrong section is nearer than a wrong word in the right one */
        int whole = 2 * edits(key, options[i].key), word = 3 * edits(last_word(key), last_word(options[i].key)) + 1;
        int distance = whole < word ? whole : word;
        if (distance < best) {
            best = distance;
            nearest = options[i].key;
        }
    }
    return nearest;
}

const char *mg_options_nearest_word(const char *word, const char *const *words, int count)
{
    int best = 1 << 20;
    const char *nearest = "";
    for (int i = 0; i < count; i++) {
        int distance = edits(word, words[i]);
        if (distance < best) {
            best = distance;
            nearest = words[i];
        }
    }
    return nearest;
}

void mg_options_standard(mg_config *config)
{
    memset(config, 0, sizeof *config);
    for (int i = 0; i < OPTIONS; i++)
        mg_options_set(config, "default", options[i].key, options[i].standard);
}

static void *field(const mg_config *config, const mg_option *option)
{
    return (char *)(uintptr_t)config + option->offset;
}

/* Place of `word` in "a|b|c", or -1. */
static int choice_index(const char *choices, const char *word)
{
    size_t length = strlen(word);
    int index = 0;
    for (const char *at = choices;; at++, index++) {
        const char *end = strchrnul(at, '|');
        if ((size_t)(end - at) == length && !memcmp(at, word, length))
            return index;
        if (!*end)
            return -1;
        at = end;
    }
}

static const char *choice_word(const char *choices, int index, char *word, size_t bytes)
{
    const char *at = choices;
    for (; index > 0; index--)
        at = strchrnul(at, '|') + 1;
    snprintf(word, bytes, "%.*s", (int)(strchrnul(at, '|') - at), at);
    return word;
}

static int set_choice(mg_config *config, const char *where, const mg_option *option, const char *text)
{
    const char *word = text;
    if (option->off) {
        static const char *const on[] = {"true", "yes", "1"}, *const off[] = {"false", "no", "0"};
        for (int i = 0; i < 3; i++)
            word = !strcmp(text, on[i]) ? "on" : !strcmp(text, off[i]) ? "off" : word;
    }
    int index = choice_index(option->choices, word);
    if (index < 0)
        return fail(-EINVAL, "%s: %s is '%.60s', which is not one of: %s", where, option->key, text, option->choices);
    *(int32_t *)field(config, option) = index;
    return 0;
}

int mg_options_bytes(int64_t *bytes, const char *text)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    const char *units = "KMGT", *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (end == text || errno || !(value >= 0) || (*end && !unit))
        return -EINVAL;
    if (unit) {
        end++;
        value *= (double)(1LL << 10 * (unit - units + 1));
    }
    if (!strcmp(end, "iB") || !strcmp(end, "B"))
        end = "";
    if (*end || value > 9e18)
        return -EINVAL;
    *bytes = (int64_t)value;
    return 0;
}

static int set_number(mg_config *config, const char *where, const mg_option *option, const char *text)
{
    char *end;
    const char *kind = option->type == MG_OPTION_REAL ? "a number" : "a whole number",
               *other = option->is_auto ? ", or auto" : "";
    errno = 0;
    if (option->is_auto && !strcmp(text, "auto")) {
        if (option->type == MG_OPTION_REAL)
            *(double *)field(config, option) = MG_AUTO_REAL;
        else
            *(int64_t *)field(config, option) = MG_AUTO;
        return 0;
    }
    double real = strtod(text, &end);
    int64_t whole = (int64_t)(fabs(real) < 9.2e18 ? real : 0);
    if (end != text && option->type == MG_OPTION_INTEGER && !strpbrk(text, ".eExX"))
        whole = strtoll(text, &end, 10);
    if (end == text || *end || errno == ERANGE || strpbrk(text, "xX") || !isfinite(real) ||
        (option->type == MG_OPTION_INTEGER && real != (double)whole))
        return fail(-EINVAL, "%s: %s is '%.60s': %s is expected%s", where, option->key, text, kind, other);
    if (!(real >= option->least && real <= option->most))
        return fail(-EINVAL, "%s: %s is %.60s: it must be from %.12g to %.12g%s", where, option->key, text,
                    option->least, option->most, other);
    if (option->type == MG_OPTION_REAL)
        *(double *)field(config, option) = real;
    else
        *(int64_t *)field(config, option) = whole;
    return 0;
}

static int set_value(mg_config *config, const char *where, const mg_option *option, const char *text)
{
    switch (option->type) {
    case MG_OPTION_CHOICE:
        return set_choice(config, where, option, text);
    case MG_OPTION_BYTES:
        if (mg_options_bytes(field(config, option), text))
            return fail(-EINVAL, "%s: %s is '%.60s': bytes are expected, as 500M or 2G", where, option->key, text);
        return 0;
    case MG_OPTION_TEXT:
        if (strlen(text) >= MG_TEXT_BYTES)
            return fail(-EINVAL, "%s: %s has %zu letters: at most %d are possible", where, option->key, strlen(text),
                        MG_TEXT_BYTES - 1);
        strcpy(field(config, option), text);
        return 0;
    default:
        return set_number(config, where, option, text);
    }
}

int mg_options_set(mg_config *config, const char *where, const char *key, const char *text)
{
    const mg_option *option = mg_options_find(key);
    if (!option)
        return fail(-EINVAL, "%s: '%.100s' is no key; the nearest is '%s'", where, key, mg_options_nearest(key));
    int status = set_value(config, where, option, text);
    if (!status && option->fixed && strcmp(text, option->standard)) {
        set_value(config, where, option, option->standard);
        return fail(-EINVAL, "%s: %s is %.60s: in this version only %s is possible", where, key, text,
                    option->standard);
    }
    return status;
}

/* The shortest text that reads back the same. */
static void print_real(char *text, size_t bytes, double value)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, bytes, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
}

void mg_options_print(char *text, size_t bytes, const mg_config *config, const mg_option *option)
{
    const void *value = field(config, option);
    int is_real = option->type == MG_OPTION_REAL;
    if (option->type == MG_OPTION_TEXT)
        snprintf(text, bytes, "%s", (const char *)value);
    else if (option->type == MG_OPTION_CHOICE)
        choice_word(option->choices, *(const int32_t *)value, text, bytes);
    else if (option->is_auto && (is_real ? isnan(*(const double *)value) : *(const int64_t *)value == MG_AUTO))
        snprintf(text, bytes, "auto");
    else if (is_real)
        print_real(text, bytes, *(const double *)value);
    else
        snprintf(text, bytes, "%lld", (long long)*(const int64_t *)value);
}

const char *mg_options_word(const mg_config *config, const char *key)
{
    static _Thread_local char word[64];
    const mg_option *option = mg_options_find(key);
    return option && option->type == MG_OPTION_CHOICE
               ? choice_word(option->choices, *(int32_t *)field(config, option), word, sizeof word)
               : "";
}

/* Prints words of `text` in lines of at most 110 letters, each after `indent` spaces. */
static void print_wrapped(FILE *file, const char *text, int indent)
{
    int column = 0;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column == 0 || column + 1 + length > 110 - indent) {
            fprintf(file, "%s%*s", column ? "\n" : "", indent, "");
            column = -1;
        }
        fprintf(file, "%s%.*s", column < 0 ? "" : " ", length, text);
        column += 1 + length;
        text += length + (text[length] == ' ');
    }
    fputc('\n', file);
}

void mg_options_list(FILE *file)
{
    for (int i = 0; i < OPTIONS; i++) {
        const mg_option *option = &options[i];
        fprintf(file, "  %s", option->key);
        if (option->type == MG_OPTION_CHOICE && !option->fixed)
            fprintf(file, "  (%s)", option->choices);
        fprintf(file, "  [%s]\n", *option->standard ? option->standard : "none");
        print_wrapped(file, option->fixed ? "not in this version" : option->help, 6);
    }
}
