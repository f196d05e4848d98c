#include "parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "library.h"

void mg_story_add(mg_story *story, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int length = vsnprintf(NULL, 0, format, values);
    va_end(values);
    if (story->status || length < 0)
        return;
    if (story->length + length + 1 > story->capacity) {
        int64_t capacity = 2 * story->capacity + length + 512;
        char *text = reallocate(story->text, capacity, 1);
        if (!text) {
            story->status = -ENOMEM;
            return;
        }
        story->text = text;
        story->capacity = capacity;
    }
    va_start(values, format);
    vsnprintf(story->text + story->length, (size_t)length + 1, format, values);
    va_end(values);
    story->length += length;
}

void mg_parts_release(mg_parts *parts)
{
    void *blocks[] = {parts->sources,  parts->targets,      parts->edge_values,   parts->features,
                      parts->segments, parts->label_values, parts->label_strings, parts->class_names,
                      parts->split,    parts->node_names,   parts->story.text};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        release(blocks[i]);
    *parts = (mg_parts){0};
}

char **mg_strings_copy(char *const *strings, int64_t count)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; i++)
        bytes += strings[i] ? (int64_t)strlen(strings[i]) + 1 : 0;
    char **copy = allocate(count * (int64_t)sizeof(char *) + bytes, 1);
    if (!copy)
        return NULL;
    char *at = (char *)(copy + count);
    for (int64_t i = 0; i < count; i++) {
        copy[i] = strings[i] ? at : NULL;
        if (strings[i])
            at = stpcpy(at, strings[i]) + 1;
    }
    return copy;
}

char **mg_strings_pack(const char *text, int64_t bytes, int64_t count)
{
    char **strings = allocate(count * (int64_t)sizeof(char *) + bytes, 1);
    if (!strings)
        return NULL;
    char *at = (char *)(strings + count);
    memcpy(at, text, (size_t)bytes);
    for (int64_t i = 0; i < count; i++) {
        strings[i] = at;
        at += strlen(at) + 1;
    }
    return strings;
}

char *mg_dataset_name(const char *path)
{
    static const char *const endings[] = {".gz",       ".npz", ".graph", ".metis", ".mtx", ".edges",
                                          ".edgelist", ".el",  ".csv",   ".tsv",   ".txt"};
    int64_t end = (int64_t)strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    if (end > 4 && !memcmp(path + end - 4, "/raw", 4))
        end -= 4; /* OGB and TU folders inside raw/ */
    int64_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        int64_t length = (int64_t)strlen(endings[i]);
        if (end - begin > length && !memcmp(path + end - length, endings[i], (size_t)length))
            end -= length;
    }
    char *name = allocate(end - begin + 1, 1);
    if (name) {
        memcpy(name, path + begin, (size_t)(end - begin));
        name[end - begin] = 0;
    }
    return name;
}

/* --- edges and columns that grow --- */

static int grow(void **block, int64_t count, size_t size)
{
    void *larger = reallocate(*block, count, size);
    if (!larger)
        return -ENOMEM;
    *block = larger;
    return 0;
}

static int grow_edges(mg_parts *parts)
{
    int64_t capacity = 2 * parts->edge_capacity + 1024;
    if (grow((void **)&parts->sources, capacity, sizeof *parts->sources) ||
        grow((void **)&parts->targets, capacity, sizeof *parts->targets) ||
        (parts->edge_columns &&
         grow((void **)&parts->edge_values, capacity, (size_t)parts->edge_columns * sizeof *parts->edge_values)))
        return -ENOMEM;
    parts->edge_capacity = capacity;
    return 0;
}

int mg_parts_add_edge(mg_parts *parts, int64_t source, int64_t target, const float *values)
{
    if (parts->edges == parts->edge_capacity && grow_edges(parts))
        return -ENOMEM;
    parts->sources[parts->edges] = source;
    parts->targets[parts->edges] = target;
    if (parts->edge_columns)
        memcpy(parts->edge_values + parts->edges * parts->edge_columns, values,
               (size_t)parts->edge_columns * sizeof(float));
    parts->edges++;
    return 0;
}

int mg_parts_append_columns(float **matrix, int64_t *matrix_columns, float *values, int64_t columns, int64_t rows)
{
    if (!*matrix) {
        *matrix = values;
        *matrix_columns = columns;
        return 0;
    }
    int64_t both = *matrix_columns + columns;
    float *joined = allocate(rows * both, sizeof *joined);
    for (int64_t r = 0; joined && r < rows; r++) {
        memcpy(joined + r * both, *matrix + r * *matrix_columns, (size_t)*matrix_columns * sizeof *joined);
        memcpy(joined + r * both + *matrix_columns, values + r * columns, (size_t)columns * sizeof *joined);
    }
    release(values);
    if (!joined)
        return -ENOMEM;
    release(*matrix);
    *matrix = joined;
    *matrix_columns = both;
    return 0;
}
