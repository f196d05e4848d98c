#define _GNU_SOURCE
#include "fuzz.h"

#include <errno.h>
#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MEMORY_MOST = 16 << 20 /* more makes runs slow, not deeper */, NODES_COMPARED = 20000 };

void fuzz_check(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "fuzz: %s; the last error line: %s\n", what, mg_dataset_last_error());
    abort();
}

/* --- sections --- */

static const char *listed(const char *const *names, const uint8_t *name, size_t length)
{
    for (; *names; names++)
        if (strlen(*names) == length && !memcmp(*names, name, length))
            return *names;
    return NULL;
}

int fuzz_cut(fuzz_section *sections, int most, const uint8_t *data, size_t size, const char *const *names)
{
    int count = 0;
    const char *name = listed(names, data, 0);
    for (size_t begin = 0; begin <= size && count < most;) {
        const uint8_t *rest = data + begin, *next = NULL;
        size_t left = size - begin, length = left;
        if (left >= 4 && !memcmp(rest, "=== ", 4)) {
            next = rest;
            length = 0;
        } else if ((next = memmem(rest, left, "\n=== ", 5))) {
            length = (size_t)(next++ - rest); /* the newline before a name belongs to neither */
        }
        if (name && (length || begin))
            sections[count++] = (fuzz_section){name, rest, length};
        if (!next)
            break;
        const uint8_t *line = next + 4, *end = memchr(line, '\n', size - (size_t)(line - data));
        if (!end)
            break;
        name = listed(names, line, (size_t)(end - line));
        begin = (size_t)(end + 1 - data);
    }
    return count;
}

/* --- files --- */

static char folder[64];

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static void remove_folder(void) { nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

const char *fuzz_folder(void)
{
    if (folder[0])
        return folder;
    snprintf(folder, sizeof folder, "%s/megagraph-fuzz-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    fuzz_check(mkdtemp(folder) != NULL, "no folder for temporary files");
    atexit(remove_folder);
    return folder;
}

const char *fuzz_path(const char *name)
{
    static char paths[4][256];
    static int turn;
    char *path = paths[turn = (turn + 1) % 4];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
    return path;
}

static void make_folders(const char *name)
{
    char part[128];
    for (size_t i = 0; name[i]; i++)
        if (name[i] == '/') {
            snprintf(part, sizeof part, "%.*s", (int)i, name);
            fuzz_check(mkdir(fuzz_path(part), 0700) == 0 || errno == EEXIST, "a folder cannot be made");
        }
}

void fuzz_write(const char *name, const uint8_t *data, size_t size)
{
    make_folders(name);
    FILE *file = fopen(fuzz_path(name), "wb");
    fuzz_check(file != NULL, "a file cannot be made");
    fuzz_check(fwrite(data, 1, size, file) == size && fclose(file) == 0, "a file cannot be written");
}

void fuzz_remove(const char *name) { remove(fuzz_path(name)); }

/* --- oracles --- */

static _Atomic int64_t held;

static int limit(int64_t bytes)
{
    if (bytes > 0 && atomic_load(&held) + bytes > MEMORY_MOST)
        return 1;
    atomic_fetch_add(&held, bytes);
    return 0;
}

void fuzz_limit_memory(void) { mg_graph_set_memory_hook(limit); }

static int same(const void *a, const void *b, int64_t count, size_t size)
{
    return (!a && !b) || (a && b && !memcmp(a, b, (size_t)count * size));
}

static int same_numbers(const float *a, const float *b, int64_t count)
{
    for (int64_t i = 0; a && b && i < count; i++)
        if (!(a[i] == b[i] || (a[i] != a[i] && b[i] != b[i])))
            return 0;
    return (!a || !b) ? count == 0 || a == b : 1;
}

static int same_strings(char *const *a, char *const *b, int64_t count)
{
    for (int64_t i = 0; a && b && i < count; i++)
        if (strcmp(a[i], b[i]))
            return 0;
    return (a == NULL) == (b == NULL);
}

static void compare(const mg_dataset *a, const mg_dataset *b)
{
    fuzz_check(mg_graph_hash(a->graph) == mg_graph_hash(b->graph), "the graph changed when written and read");
    fuzz_check(a->graphs == b->graphs && same(a->segments, b->segments, a->graphs + 1, sizeof(int64_t)),
               "segments changed");
    fuzz_check(a->feature_count == b->feature_count &&
                   same_numbers(a->features, b->features, a->graph->nodes * a->feature_count),
               "features changed");
    fuzz_check(a->edge_feature_count == b->edge_feature_count &&
                   same_numbers(a->edge_features, b->edge_features, a->graph->edges * a->edge_feature_count),
               "edge features changed");
    fuzz_check(a->level == b->level && a->task == b->task && a->items == b->items, "level, task or items changed");
    fuzz_check(a->classes == b->classes && same(a->labels, b->labels, a->items, sizeof(int32_t)), "labels changed");
    fuzz_check(same_strings(a->class_names, b->class_names, a->classes), "names of classes changed");
    fuzz_check(a->target_count == b->target_count && same_numbers(a->targets, b->targets, a->items * a->target_count),
               "targets changed");
    fuzz_check(a->splits == b->splits && same(a->split, b->split, a->splits * a->items, 1), "splits changed");
    fuzz_check(same_strings(a->node_names, b->node_names, a->graph->nodes), "names of nodes changed");
}

void fuzz_round_trip(mg_dataset *data)
{
    const char *path = fuzz_path("again.npz");
    mg_dataset *again = NULL, *copy = NULL;
    fuzz_check(mg_dataset_create(&copy, data) == 0, "a dataset that opened does not pass its check");
    mg_dataset_close(copy);
    fuzz_check(mg_dataset_write_npz(data, path) == 0, "a dataset that opened cannot be written");
    fuzz_check(mg_dataset_open(&again, path, &(mg_dataset_desc){0}) == 0, "a dataset that was written does not open");
    compare(data, again);
    mg_dataset_close(again);
    remove(path);
}

void fuzz_open(const char *path, const mg_dataset_desc *desc)
{
    mg_dataset *data = NULL;
    fuzz_limit_memory();
    int64_t before = atomic_load(&held);
    int status = mg_dataset_open(&data, path, desc);
    fuzz_check(status <= 0 && (status == 0) == (data != NULL), "status and dataset disagree");
    fuzz_check(status == 0 || mg_dataset_last_error()[0], "an error has no line");
    if (data && data->graph->nodes < NODES_COMPARED)
        fuzz_round_trip(data);
    mg_dataset_close(data);
    fuzz_check(atomic_load(&held) == before, "memory was lost");
}
