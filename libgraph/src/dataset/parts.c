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
    void *blocks[] = {parts->sources,     parts->targets,       parts->edge_values,   parts->features,
                      parts->segments,    parts->label_values,  parts->label_strings, parts->class_names,
                      parts->split,       parts->node_names,    parts->story.text};
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
    static const char *const endings[] = {".gz",    ".npz", ".graph", ".metis", ".mtx", ".edges",
                                          ".edgelist", ".el", ".csv",   ".tsv",   ".txt"};
    int64_t end = (int64_t)strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
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
