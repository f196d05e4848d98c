/* Edge lists and CSV: "source target [value ...]" with tabs, commas, semicolons or blanks; comments, a header line, ids
   that are words or numbers. Nodes are the ids that occur: numbers ascending, words as they come. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "library.h"
#include "names.h"
#include "parts.h"
#include "text.h"

enum { FIELDS_MOST = 512 };

typedef struct edge_list {
    mg_parts *parts;
    mg_names names;
    char separator;
    int source, target;        /* which fields are the ends */
    int fields;                /* of each line */
    int is_value[FIELDS_MOST]; /* field is a number, so an edge feature */
    int64_t dropped;           /* fields that are neither */
    int64_t new_nodes;         /* made by the files of labels and features */
    int header;
} edge_list;

static int cut(char **fields, mg_text *text, char *line, char separator)
{
    int count = 0;
    for (char *field; (field = mg_text_field(&line, separator)); count++) {
        if (count == FIELDS_MOST)
            return mg_text_fail(text, "has more than %d fields", FIELDS_MOST);
        fields[count] = field;
    }
    return count;
}

static int is_word(const char *field, const char *const *words)
{
    for (; *words; words++)
        if (!strcasecmp(field, *words))
            return 1;
    return 0;
}

static int find_field(char **fields, int count, const char *const *words)
{
    for (int f = 0; f < count; f++)
        if (is_word(fields[f], words))
            return f;
    return -1;
}

/* A header names both ends; or its ids are words where those of the next line are numbers. */
static int header_by_words(edge_list *list, char **fields, int count)
{
    static const char *const sources[] = {"source", "src",  "from", "fromnodeid", "u",         "node1", "node_1",
                                          "id1",    "id_1", "head", "subject",    "source_id", "start", NULL};
    static const char *const targets[] = {"target", "dst",  "to",     "tonodeid",  "v",   "node2", "node_2",      "id2",
                                          "id_2",   "tail", "object", "target_id", "end", "dest",  "destination", NULL};
    int source = find_field(fields, count, sources), target = find_field(fields, count, targets);
    if (source < 0 || target < 0)
        return 0;
    list->source = source;
    list->target = target;
    return 1;
}

static int header_by_numbers(char **first, int first_count, char **second, int second_count)
{
    int64_t value;
    double real;
    if (first_count != second_count)
        return 0;
    if (!mg_text_is_integer(&value, first[0]) && !mg_text_is_integer(&value, first[1]) &&
        mg_text_is_integer(&value, second[0]) && mg_text_is_integer(&value, second[1]))
        return 1;
    for (int f = 2; f < first_count; f++)
        if (!mg_text_is_number(&real, first[f]) && mg_text_is_number(&real, second[f]))
            return 1;
    return 0;
}

/* Fields of the first edge decide which columns are numbers. */
static int choose_columns(edge_list *list, mg_text *text, char **fields, int count)
{
    double value;
    if (count < 2 || list->source >= count || list->target >= count)
        return mg_text_fail(text, "has %d fields; an edge needs two ids", count);
    list->fields = count;
    for (int f = 0; f < count; f++) {
        list->is_value[f] =
            f != list->source && f != list->target && mg_text_is_number(&value, fields[f]) && !isnan(value);
        list->parts->edge_columns += list->is_value[f];
        list->dropped += f != list->source && f != list->target && !list->is_value[f];
    }
    return 0;
}

static int take_edge(edge_list *list, mg_text *text, char **fields, int count)
{
    float values[FIELDS_MOST];
    char buffer[48];
    int columns = 0;
    if (count != list->fields)
        return mg_text_fail(text, "has %d fields, but the first edge has %d", count, list->fields);
    for (int f = 0; f < count; f++) {
        double value;
        if (!list->is_value[f])
            continue;
        if (!mg_text_is_number(&value, fields[f]) || !(fabs(value) < 3.4e38))
            return mg_text_fail(text, "field %d is '%s', not a finite number", f + 1, mg_text_quote(buffer, fields[f]));
        values[columns++] = (float)value;
    }
    if (!*fields[list->source] || !*fields[list->target])
        return mg_text_fail(text, "an end of the edge is empty");
    int64_t source = mg_names_add(&list->names, fields[list->source]);
    int64_t target = source < 0 ? source : mg_names_add(&list->names, fields[list->target]);
    return target < 0 ? -ENOMEM : mg_parts_add_edge(list->parts, source, target, values);
}

/* --- the first two lines together tell whether there is a header --- */

typedef struct held_line {
    char *text;
    int64_t line;
} held_line;

static int hold(held_line *held, const mg_text *text)
{
    int64_t bytes = (int64_t)strlen(text->at) + 1;
    held->text = allocate(bytes, 1);
    if (!held->text)
        return -ENOMEM;
    memcpy(held->text, text->at, (size_t)bytes);
    held->line = text->line;
    return 0;
}

/* Decides on the held line with the fields of the next (count 0: there is none), and takes it as an edge if it is one.
 */
static int settle_first(edge_list *list, held_line *held, mg_text *text, char **next, int next_count)
{
    char *fields[FIELDS_MOST];
    int64_t line = text->line;
    text->line = held->line;
    int count = cut(fields, text, held->text, list->separator);
    if (count < 0)
        return count;
    list->header = header_by_words(list, fields, count) ||
                   (count >= 2 && next_count >= 2 && header_by_numbers(fields, count, next, next_count));
    int status = 0;
    if (!list->header) {
        status = choose_columns(list, text, fields, count);
        if (!status)
            status = take_edge(list, text, fields, count);
    }
    text->line = line;
    if (!status && list->header && next_count)
        status = choose_columns(list, text, next, next_count);
    return status;
}

static int read_edge_line(edge_list *list, held_line *held, mg_text *text, int *lines)
{
    char *fields[FIELDS_MOST];
    if (++*lines == 1) {
        list->separator = mg_text_separator(text->at);
        return hold(held, text);
    }
    int count = cut(fields, text, text->at, list->separator);
    if (count < 0)
        return count;
    int status = *lines == 2 ? settle_first(list, held, text, fields, count) : 0;
    return status ? status : take_edge(list, text, fields, count);
}

static int read_lines(edge_list *list, mg_text *text)
{
    held_line held = {0};
    int status = 0, more = 0, lines = 0;
    while (!status && (more = mg_text_line(text)) > 0)
        if (!mg_text_is_blank(text->at) && *text->at != '#' && *text->at != '%')
            status = read_edge_line(list, &held, text, &lines);
    status = status ? status : more;
    if (!status && lines == 1)
        status = settle_first(list, &held, text, NULL, 0);
    release(held.text);
    return status;
}

/* --- numbering --- */

static int all_numbers(const mg_names *names)
{
    int64_t value;
    for (int64_t n = 0; n < names->count; n++) {
        const char *word = mg_names_word(names, n);
        const char *digits = word + (*word == '-');
        if (!mg_text_is_integer(&value, word) || *word == '+' || (*digits == '0' && word[1]))
            return 0; /* 007 and 7 are different names */
    }
    return 1;
}

typedef struct numbered {
    int64_t value, word;
} numbered;

static int compare(const void *a, const void *b)
{
    int64_t x = ((const numbered *)a)->value, y = ((const numbered *)b)->value;
    return (x > y) - (x < y);
}

/* rank[word]: the place of the word, numbers ascending. */
static int rank_numbers(int64_t *rank, int *plain, const mg_names *names)
{
    numbered *order = allocate(names->count, sizeof *order);
    if (!order)
        return -ENOMEM;
    for (int64_t n = 0; n < names->count; n++) {
        order[n].word = n;
        mg_text_is_integer(&order[n].value, mg_names_word(names, n));
    }
    qsort(order, (size_t)names->count, sizeof *order, compare);
    *plain = 1;
    for (int64_t n = 0; n < names->count; n++) {
        rank[order[n].word] = n;
        *plain &= order[n].value == n;
    }
    release(order);
    return 0;
}

static int name_nodes(mg_parts *parts, const mg_names *names, const int64_t *rank)
{
    char **words = allocate(names->count, sizeof *words);
    for (int64_t n = 0; words && n < names->count; n++)
        words[rank[n]] = names->text + names->offsets[n];
    parts->node_names = words ? mg_strings_copy(words, names->count) : NULL;
    release(words);
    return parts->node_names ? 0 : -ENOMEM;
}

/* Moves rows of any size to their ranks. */
static int permute(void **rows, const int64_t *rank, int64_t count, size_t size)
{
    if (!*rows)
        return 0;
    char *moved = allocate(count, size);
    if (!moved)
        return -ENOMEM;
    for (int64_t i = 0; i < count; i++)
        memcpy(moved + rank[i] * (int64_t)size, (char *)*rows + i * (int64_t)size, size);
    release(*rows);
    *rows = moved;
    return 0;
}

static int renumber(mg_parts *parts, const int64_t *rank)
{
    for (int64_t e = 0; e < parts->edges; e++) {
        parts->sources[e] = rank[parts->sources[e]];
        parts->targets[e] = rank[parts->targets[e]];
    }
    int status = permute((void **)&parts->features, rank, parts->nodes, (size_t)parts->feature_count * sizeof(float));
    if (!status)
        status =
            permute((void **)&parts->label_values, rank, parts->nodes, (size_t)parts->label_columns * sizeof(double));
    if (!status && parts->label_strings) { /* the pointers move, the text behind them stays */
        char **words = allocate(parts->nodes, sizeof *words);
        if (!words)
            return -ENOMEM;
        memcpy(words, parts->label_strings, (size_t)parts->nodes * sizeof *words);
        for (int64_t i = 0; i < parts->nodes; i++)
            parts->label_strings[rank[i]] = words[i];
        release(words);
    }
    return status;
}

static int number_nodes(edge_list *list)
{
    mg_parts *parts = list->parts;
    int plain = 0, numbers = all_numbers(&list->names), status = 0;
    int64_t *rank = allocate(list->names.count, sizeof *rank);
    if (!rank)
        return -ENOMEM;
    for (int64_t n = 0; n < list->names.count; n++)
        rank[n] = n;
    if (numbers)
        status = rank_numbers(rank, &plain, &list->names);
    if (!status && numbers)
        status = renumber(parts, rank);
    if (!status && !plain)
        status = name_nodes(parts, &list->names, rank);
    release(rank);
    mg_story_add(&parts->story, "ids: %s\n",
                 plain     ? "0 to nodes-1"
                 : numbers ? "numbers with gaps or not from 0: nodes are those that occur, ascending; ids kept as names"
                           : "words: nodes in the order in which they come; ids kept as names");
    return status;
}

static int64_t find_node(void *context, const char *id)
{
    edge_list *list = context;
    int64_t before = list->names.count, node = *id ? mg_names_add(&list->names, id) : -1;
    list->new_nodes += list->names.count - before;
    return node < -1 ? -ENOMEM : node;
}

static int64_t count_nodes(void *context) { return ((edge_list *)context)->names.count; }

static void tell(const edge_list *list)
{
    mg_story *story = &list->parts->story;
    mg_story_add(story, "format: edge list, %s",
                 list->separator == '\t'  ? "tabs"
                 : list->separator == ' ' ? "blanks"
                 : list->separator == ',' ? "commas"
                                          : "semicolons");
    if (list->header)
        mg_story_add(story, "; the first line is a header");
    if (list->parts->edge_columns)
        mg_story_add(story, "; %lld columns of numbers read as edge features", (long long)list->parts->edge_columns);
    if (list->dropped)
        mg_story_add(story, "; %lld columns of words dropped", (long long)list->dropped);
    mg_story_add(story, "\n");
    if (list->new_nodes)
        mg_story_add(story, "%lld nodes have no edge and come from the files of labels and features\n",
                     (long long)list->new_nodes);
}

static int read_list(edge_list *list)
{
    mg_text text;
    int status = mg_text_open(&text, list->parts->path);
    if (!status)
        status = read_lines(list, &text);
    mg_text_close(&text);
    if (!status)
        status = mg_parts_read_side_files(list->parts, find_node, list, count_nodes);
    if (!status) {
        tell(list);
        status = number_nodes(list);
    }
    return status;
}

int mg_read_edges(mg_parts *parts)
{
    edge_list *list = allocate_zeroed(1, sizeof *list);
    if (!list)
        return -ENOMEM;
    list->parts = parts;
    list->target = 1;
    int status = read_list(list);
    mg_names_release(&list->names);
    release(list);
    return status;
}
