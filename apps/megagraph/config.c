#include "config.h"

#include <megagraph/graph.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "app.h"

enum { DEEPEST = 8, KEY_BYTES = 256, MOST_OPTIONS = 256 };

/* Where the reader stands: the path of open mappings, and whether the next scalar is a key or its value. */
typedef struct reader {
    mg_config *config;
    const char *name;
    char key[KEY_BYTES];         /* "model.encodings." + the key whose value comes next */
    size_t section[DEEPEST + 1]; /* length of key's prefix at each depth */
    int depth, has_key;
    uint8_t given[MOST_OPTIONS];
} reader;

static const char *place(const reader *at, const yaml_event_t *event)
{
    static _Thread_local char text[300];
    snprintf(text, sizeof text, "%.200s:%zu", at->name, event->start_mark.line + 1);
    return text;
}

static int is_section(const char *key)
{
    int count;
    const mg_option *options = mg_options(&count);
    size_t length = strlen(key);
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i].key, key, length) && options[i].key[length] == '.')
            return 1;
    return 0;
}

static int take_value(reader *at, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value, *where = place(at, event);
    int count;
    const mg_option *options = mg_options(&count), *option = mg_options_find(at->key);
    if (strlen(text) != event->data.scalar.length)
        return fail(-EINVAL, "%s: %s has a zero byte in its value", where, at->key);
    if (is_section(at->key)) {
        if (*text)
            return fail(-EINVAL, "%s: '%s' is a section of keys, not a value", where, at->key);
        return 0;
    }
    if (option && at->given[option - options]++)
        return fail(-EINVAL, "%s: %s is given twice", where, at->key);
    return mg_options_set(at->config, where, at->key, text);
}

static int take_scalar(reader *at, const yaml_event_t *event)
{
    if (at->depth == 0) {
        if (event->data.scalar.length)
            return fail(-EINVAL, "%s: a configuration is keys and values ('seed: 1'), here is only '%.40s'",
                        place(at, event), (const char *)event->data.scalar.value);
        return 0;
    }
    size_t prefix = at->section[at->depth];
    if (!at->has_key) {
        size_t length = event->data.scalar.length;
        if (prefix + length + 1 >= KEY_BYTES || strlen((const char *)event->data.scalar.value) != length)
            return fail(-EINVAL, "%s: '%.60s...' is no key", place(at, event), (const char *)event->data.scalar.value);
        memcpy(at->key + prefix, event->data.scalar.value, length + 1);
        at->has_key = 1;
        return 0;
    }
    at->has_key = 0;
    return take_value(at, event);
}

static int open_mapping(reader *at, const yaml_event_t *event)
{
    if (at->depth > 0 && (!at->has_key || !is_section(at->key))) {
        if (at->has_key)
            return fail(-EINVAL, "%s: '%.100s' is no section; the nearest key is '%s'", place(at, event), at->key,
                        mg_options_nearest(at->key));
        return fail(-EINVAL, "%s: a key must be a word", place(at, event));
    }
    if (at->depth == DEEPEST)
        return fail(-EINVAL, "%s: sections are nested more than %d deep", place(at, event), DEEPEST);
    size_t length = at->depth > 0 ? strlen(at->key) : 0;
    if (at->depth > 0)
        at->key[length++] = '.';
    at->key[length] = 0;
    at->section[++at->depth] = length;
    at->has_key = 0;
    return 0;
}

static int take_event(reader *at, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return take_scalar(at, event);
    case YAML_MAPPING_START_EVENT:
        return open_mapping(at, event);
    case YAML_MAPPING_END_EVENT:
        at->depth--;
        at->has_key = 0;
        return 0;
    case YAML_SEQUENCE_START_EVENT:
        return fail(-EINVAL, "%s: %s%sa list is given where one value is expected", place(at, event),
                    at->has_key ? at->key : "", at->has_key ? ": " : "");
    case YAML_ALIAS_EVENT:
        return fail(-EINVAL, "%s: aliases (*name) are not used in configurations", place(at, event));
    default:
        return 0;
    }
}

int mg_config_parse(mg_config *config, const char *name, const char *text, size_t bytes)
{
    yaml_parser_t parser;
    reader at = {.config = config, .name = name};
    int status = 0, done = 0, documents = 0;
    if (!yaml_parser_initialize(&parser))
        return fail(-ENOMEM, "%s: no memory for the YAML reader", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    while (!status && !done) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = fail(-EINVAL, "%s:%zu: this is not YAML: %s", name, parser.problem_mark.line + 1,
                          parser.problem ? parser.problem : "unreadable");
            break;
        }
        done = event.type == YAML_STREAM_END_EVENT;
        documents += event.type == YAML_DOCUMENT_START_EVENT;
        status = documents > 1
                     ? fail(-EINVAL, "%s: a second document (---) begins; one is expected", place(&at, &event))
                     : take_event(&at, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return status;
}

int mg_config_read(mg_config *config, const char *path)
{
    enum { LARGEST = 1 << 20 };
    FILE *file = fopen(path, "rb");
    if (!file)
        return fail(-errno, "%s: %s", path, strerror(errno));
    char *text = allocate(LARGEST + 1, 1);
    size_t bytes = text ? fread(text, 1, LARGEST + 1, file) : 0;
    int status = !text ? -ENOMEM : 0;
    if (!status && ferror(file))
        status = fail(-EIO, "%s: cannot be read: %s", path, strerror(errno));
    else if (!status && bytes > LARGEST)
        status = fail(-EINVAL, "%s: more than 1 MiB is no configuration", path);
    fclose(file);
    if (!status)
        status = mg_config_parse(config, path, text, bytes);
    release(text);
    return status;
}

int mg_config_assign(mg_config *config, const char *assignment)
{
    char key[KEY_BYTES];
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment || (size_t)(equals - assignment) >= sizeof key)
        return fail(-EINVAL, "--set: '%.100s' is not key=value", assignment);
    memcpy(key, assignment, (size_t)(equals - assignment));
    key[equals - assignment] = 0;
    return mg_options_set(config, "--set", key, equals + 1);
}

/* A text in double quotes, as YAML (and JSON) reads it. */
static void print_quoted(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text; text++) {
        unsigned char letter = (unsigned char)*text;
        if (letter == '"' || letter == '\\')
            fprintf(file, "\\%c", letter);
        else if (letter < 32 || letter == 127)
            fprintf(file, "\\x%02x", letter);
        else
            fputc(letter, file);
    }
    fputc('"', file);
}

/* Writes the section names in which `key` differs from `previous`, and indents for its last word. */
static const char *open_sections(FILE *file, const char *previous, const char *key)
{
    const char *word = key;
    int depth = 0;
    for (const char *dot; (dot = strchr(word, '.')); word = dot + 1, depth++) {
        size_t length = (size_t)(dot + 1 - key);
        if (strncmp(previous, key, length))
            fprintf(file, "%*s%.*s:\n", 2 * depth, "", (int)(dot - word), word);
    }
    fprintf(file, "%*s", 2 * depth, "");
    return word;
}

char *mg_config_text(const mg_config *config)
{
    char *text = NULL, value[MG_TEXT_BYTES];
    size_t bytes;
    int count;
    const mg_option *options = mg_options(&count);
    FILE *file = open_memstream(&text, &bytes);
    const char *previous = "";
    for (int i = 0; file && i < count; i++) {
        mg_options_print(value, sizeof value, config, &options[i]);
        fprintf(file, "%s: ", open_sections(file, previous, options[i].key));
        if (options[i].type == MG_OPTION_TEXT)
            print_quoted(file, value);
        else
            fputs(value, file);
        fputc('\n', file);
        previous = options[i].key;
    }
    if (!file || fclose(file)) {
        fail(-ENOMEM, "no memory for the configuration's text");
        return NULL;
    }
    return text;
}

uint64_t mg_config_hash(const mg_config *config)
{
    static const char *const apart[] = {
        "seeds",        "threads",        "memory",         "data.path",        "train.checkpoint_seconds",
        "train.epochs", "train.patience", "parallel.ranks", "parallel.context", "parallel.context_method"};
    char value[MG_TEXT_BYTES];
    int count;
    const mg_option *options = mg_options(&count);
    uint64_t hash = 0;
    for (int i = 0; i < count; i++) {
        int skip = 0;
        for (size_t a = 0; a < sizeof apart / sizeof *apart; a++)
            skip |= !strcmp(options[i].key, apart[a]);
        mg_options_print(value, sizeof value, config, &options[i]);
        if (!skip)
            hash = mg_graph_hash_bytes(hash, value, (int64_t)strlen(value) + 1);
    }
    return hash;
}

int mg_config_range(int64_t *first, int64_t *last, const char *key, const char *text, int64_t count)
{
    char *end;
    *first = 0;
    *last = count - 1;
    if (!strcmp(text, "all"))
        return 0;
    errno = 0;
    *first = *last = strtoll(text, &end, 10);
    int bad = end == text || errno;
    if (!bad && *end == '-') {
        const char *second = end + 1;
        *last = strtoll(second, &end, 10);
        bad = end == second || errno;
    }
    if (bad || *end)
        return fail(-EINVAL, "%s is '%.60s': a number, a range as 0-2, or all is expected", key, text);
    if (*first < 0 || *last < *first || *last >= count)
        return fail(-EINVAL, "%s is %.60s: the dataset has %lld of them, numbered from 0", key, text, (long long)count);
    return 0;
}
