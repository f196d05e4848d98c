/* Debian's archive as a graph, from the text of `apt-cache dumpavail`: paragraphs of "Field: value" with continuation
   lines that start with a blank.

   Nodes: packages, by name. Edges: Depends, Pre-Depends and Recommends, all alternatives, any version, where the name
   is a package of the text; names that only Provides gives (virtual packages) have no node, so such dependencies are
   dropped. Label: the section without its component ("universe/libs" is "libs"). Features: 128, each word of the
   description sets two. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "names.h"
#include "parts.h"

enum { FEATURES = 128, NAME_MOST = 256, DEPENDENCIES = 3, SPLIT_SEED = 0 };

typedef struct slice {
    const char *at, *end; /* NULL: the field is not there */
} slice;

typedef struct package {
    slice name, section, description, depends[DEPENDENCIES];
} package;

typedef struct archive {
    mg_parts *parts;
    package *packages;
    int64_t count, capacity;
    mg_names names; /* of packages, by number */
    int64_t *rank;  /* place of each package by name */
    int64_t repeated, virtual_names, self;
} archive;

/* --- paragraphs --- */

static int is_field(slice line, const char *name, slice *value)
{
    size_t length = strlen(name);
    if ((size_t)(line.end - line.at) <= length || memcmp(line.at, name, length) || line.at[length] != ':')
        return 0;
    *value = (slice){line.at + length + 1, line.end};
    return 1;
}

/* The next line with the lines that continue it. */
static slice next_field(const char **at, const char *end)
{
    slice field = {*at, end};
    while (*at < end) {
        const char *newline = memchr(*at, '\n', (size_t)(end - *at));
        field.end = newline ? newline : end;
        *at = newline ? newline + 1 : end;
        if (*at >= end || (**at != ' ' && **at != '\t'))
            break;
    }
    return field;
}

static slice trim(slice text)
{
    while (text.at < text.end && isspace((unsigned char)*text.at))
        text.at++;
    while (text.end > text.at && isspace((unsigned char)text.end[-1]))
        text.end--;
    return text;
}

/* Copies into buffer[NAME_MOST]; a NUL byte or too long a name: NULL. */
static const char *as_word(char *buffer, slice text)
{
    text = trim(text);
    int64_t length = text.end - text.at;
    if (length >= NAME_MOST || memchr(text.at, 0, (size_t)length))
        return NULL;
    memcpy(buffer, text.at, (size_t)length);
    buffer[length] = 0;
    return buffer;
}

static int keep_package(archive *set, const package *found)
{
    char buffer[NAME_MOST];
    const char *name = as_word(buffer, found->name);
    if (!name || !*name)
        return fail(-EINVAL, "Debian archive: the name of package %lld is empty, over %d bytes or not text",
                    (long long)set->count + set->repeated + 1, NAME_MOST - 1);
    int64_t number = mg_names_add(&set->names, name);
    if (number < 0)
        return -ENOMEM;
    if (number < set->count) {
        set->repeated++;
        return 0;
    }
    if (set->count == set->capacity) {
        int64_t capacity = 2 * set->capacity + 1024;
        package *larger = reallocate(set->packages, capacity, sizeof *larger);
        if (!larger)
            return -ENOMEM;
        set->packages = larger;
        set->capacity = capacity;
    }
    set->packages[set->count++] = *found;
    return 0;
}

static void take_field(package *found, slice line)
{
    static const char *const depends[DEPENDENCIES] = {"Depends", "Pre-Depends", "Recommends"};
    slice translated;
    if (is_field(line, "Package", &found->name) || is_field(line, "Section", &found->section) ||
        is_field(line, "Description", &found->description))
        return;
    if (!found->description.at && is_field(line, "Description-en", &translated))
        found->description = translated;
    for (int d = 0; d < DEPENDENCIES; d++)
        is_field(line, depends[d], &found->depends[d]);
}

static int read_packages(archive *set, const char *at, const char *end)
{
    package found = {0};
    int status = 0;
    while (at < end && !status) {
        slice line = next_field(&at, end);
        if (trim(line).at == trim(line).end) { /* a blank line ends a paragraph */
            status = found.name.at ? keep_package(set, &found) : 0;
            found = (package){0};
        } else {
            take_field(&found, line);
        }
    }
    if (!status && found.name.at)
        status = keep_package(set, &found);
    if (!status && !set->count)
        status = fail(-EINVAL,
                      "Debian archive: the text has no 'Package:' paragraph; is it the output of apt-cache dumpavail?");
    return status;
}

/* --- nodes, by name --- */

static int compare_words(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int rank_packages(archive *set)
{
    char **order = allocate(set->count, sizeof *order);
    set->rank = order ? allocate(set->count, sizeof *set->rank) : NULL;
    if (set->rank) {
        for (int64_t n = 0; n < set->count; n++)
            order[n] = set->names.text + set->names.offsets[n];
        qsort(order, (size_t)set->count, sizeof *order, compare_words);
        for (int64_t n = 0; n < set->count; n++)
            set->rank[mg_names_find(&set->names, order[n])] = n;
        set->parts->node_names = mg_strings_copy(order, set->count);
    }
    release(order);
    return set->rank && set->parts->node_names ? 0 : -ENOMEM;
}

/* --- edges --- */

/* "libc6:any (>= 2.34) [amd64]" is libc6. */
static slice bare_name(slice text)
{
    text = trim(text);
    const char *end = text.at;
    while (end < text.end && !isspace((unsigned char)*end) && !strchr("([<:", *end ? *end : '('))
        end++;
    return (slice){text.at, end};
}

static int add_dependency(archive *set, int64_t from, slice text)
{
    char buffer[NAME_MOST];
    const char *name = as_word(buffer, bare_name(text));
    if (name && !*name)
        return 0;
    int64_t to = name ? mg_names_find(&set->names, name) : -1;
    set->virtual_names += to < 0;
    set->self += to == from;
    return to < 0 || to == from ? 0 : mg_parts_add_edge(set->parts, set->rank[from], set->rank[to], NULL);
}

static int add_dependencies(archive *set, int64_t from, slice text)
{
    int status = 0;
    for (const char *at = text.at; at && at < text.end && !status;) {
        const char *end = at;
        while (end < text.end && *end != ',' && *end != '|')
            end++;
        status = add_dependency(set, from, (slice){at, end});
        at = end + 1;
    }
    return status;
}

/* --- features and labels --- */

/* Each word, in small letters, sets two features: two words seldom share both. */
static void hash_words(float *features, slice text)
{
    char word[64];
    int64_t length = 0;
    for (const char *at = text.at; at && at <= text.end; at++) {
        int letter = at < text.end && isalnum((unsigned char)*at);
        if (letter && length < (int64_t)sizeof word)
            word[length++] = (char)tolower((unsigned char)*at);
        if (letter || length < 2) {
            length = letter ? length : 0;
            continue;
        }
        uint64_t hash = mg_graph_hash_bytes(0, word, length);
        features[hash % FEATURES] = 1;
        features[(hash >> 32) % FEATURES] = 1;
        length = 0;
    }
}

static slice without_component(slice section)
{
    section = trim(section);
    for (const char *at = section.at; at && at < section.end; at++)
        if (*at == '/')
            section.at = at + 1;
    return section;
}

/* Sections by node as one block of text, in the order of names. */
static int label_packages(archive *set)
{
    char buffer[NAME_MOST];
    mg_names sections = {0};
    char **labels = allocate_zeroed(set->count, sizeof *labels);
    int64_t *section_of = labels ? allocate(set->count, sizeof *section_of) : NULL;
    int status = section_of ? 0 : -ENOMEM;
    for (int64_t n = 0; n < set->count && !status; n++) {
        const char *word =
            set->packages[n].section.at ? as_word(buffer, without_component(set->packages[n].section)) : NULL;
        section_of[n] = word && *word ? mg_names_add(&sections, word) : -1;
        status = section_of[n] < -1 ? -ENOMEM : 0;
    }
    for (int64_t n = 0; n < set->count && !status; n++)
        labels[set->rank[n]] = section_of[n] < 0 ? NULL : (char *)mg_names_word(&sections, section_of[n]);
    if (!status && !(set->parts->label_strings = mg_strings_copy(labels, set->count)))
        status = -ENOMEM;
    set->parts->label_columns = 1;
    set->parts->labels_from = "sections";
    release(labels);
    release(section_of);
    mg_names_release(&sections);
    return status;
}

static int describe_packages(archive *set)
{
    mg_parts *parts = set->parts;
    parts->features = allocate_zeroed(set->count, FEATURES * sizeof(float));
    if (!parts->features)
        return -ENOMEM;
    parts->feature_count = FEATURES;
    int64_t bare = 0;
    for (int64_t n = 0; n < set->count; n++) {
        bare += !set->packages[n].description.at;
        hash_words(parts->features + set->rank[n] * FEATURES, set->packages[n].description);
    }
    mg_story_add(&parts->story,
                 "features: each word of the description sets 2 of %d; %lld packages have no description\n", FEATURES,
                 (long long)bare);
    return label_packages(set);
}

/* --- the whole --- */

static int read_archive(archive *set, const char *dump, int64_t bytes)
{
    int status = read_packages(set, dump, dump + bytes);
    if (!status)
        status = rank_packages(set);
    for (int64_t n = 0; n < set->count && !status; n++)
        for (int d = 0; d < DEPENDENCIES && !status; d++)
            status = add_dependencies(set, n, set->packages[n].depends[d]);
    set->parts->nodes = set->count;
    if (status)
        return status;
    mg_story_add(
        &set->parts->story,
        "Debian archive: %lld packages; %lld paragraphs dropped, being other versions or architectures of one\n"
        "dependencies: Depends, Pre-Depends, Recommends with all alternatives, versions ignored; dropped: %lld on "
        "names that are no package (virtual ones), %lld of a package on itself\n",
        (long long)set->count, (long long)set->repeated, (long long)set->virtual_names, (long long)set->self);
    return describe_packages(set);
}

/* A split of 60, 20 and 20 %, kept with the dataset. */
static int add_split(mg_dataset *data)
{
    uint8_t *split = allocate(data->items, 1);
    if (!split)
        return -ENOMEM;
    int status = mg_dataset_split(split, data, 0, 0, SPLIT_SEED);
    mg_story story = {0};
    mg_story_add(&story, "%ssplit: made, 60 %% train, 20 %% validation, 20 %% test of each class, by seed %d\n",
                 data->story, SPLIT_SEED);
    status = status ? status : story.status;
    if (status) {
        release(split);
        release(story.text);
        return status;
    }
    data->split = split;
    data->splits = 1;
    release(data->story);
    data->story = story.text;
    return 0;
}

int mg_dataset_import_debian(mg_dataset **out, const char *dump, int64_t bytes)
{
    mg_dataset_desc desc = {0};
    mg_parts parts = {.desc = &desc, .path = "debian", .nodes = -1, .split_follows = 1};
    archive set = {.parts = &parts};
    *out = NULL;
    int status = bytes < 0 || (bytes && !dump) ? fail(-EINVAL, "Debian archive: there is no text")
                                               : read_archive(&set, dump, bytes);
    release(set.packages);
    release(set.rank);
    mg_names_release(&set.names);
    mg_dataset *data = NULL;
    if (!status)
        status = mg_parts_finish(&data, &parts);
    mg_parts_release(&parts);
    if (!status && mg_dataset_labelled(data))
        status = add_split(data);
    if (status)
        mg_dataset_close(data);
    else
        *out = data;
    return status;
}
