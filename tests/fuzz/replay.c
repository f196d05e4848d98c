/* Runs a fuzz target over files and folders of inputs, in the order of their names, without libFuzzer. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "fuzz.h"

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        return fprintf(stderr, "%s: cannot be read\n", path), -1;
    size_t size = (size_t)ftell(file);
    uint8_t *data = malloc(size ? size : 1);
    rewind(file);
    if (!data || fread(data, 1, size, file) != size)
        return fprintf(stderr, "%s: cannot be read\n", path), -1;
    fclose(file);
    fprintf(stderr, "%s\n", path); /* the last line names the input that ended the program */
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 1;
}

static int visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static int replay_folder(const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, visible, alphasort), run = 0;
    for (int i = 0; i < count; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        run += replay_file(name) > 0;
        free(entries[i]);
    }
    if (count > 0)
        free(entries);
    return run == count ? run : -1;
}

int main(int count, char **paths)
{
    int run = 0;
    for (int i = 1; i < count; i++) {
        struct stat status;
        int more = stat(paths[i], &status)   ? -1
                   : S_ISDIR(status.st_mode) ? replay_folder(paths[i])
                                             : replay_file(paths[i]);
        if (more < 0)
            return fprintf(stderr, "%s: not all inputs could be read\n", paths[i]), 1;
        run += more;
    }
    printf("%d inputs\n", run);
    return run == 0;
}
