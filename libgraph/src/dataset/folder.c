/* Paths and folders. */
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "library.h"
#include "parts.h"

char *mg_path(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int length = vsnprintf(NULL, 0, format, values);
    va_end(values);
    char *path = allocate(length + 1, 1);
    if (path) {
        va_start(values, format);
        vsnprintf(path, (size_t)length + 1, format, values);
        va_end(values);
    }
    return path;
}

static int ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), tail = strlen(ending);
    return length >= tail && !strcmp(name + length - tail, ending);
}

int mg_folder_find(char **found, int64_t *count, const char *folder, const char *ending)
{
    *found = NULL;
    *count = 0;
    DIR *listing = opendir(folder);
    if (!listing)
        return fail(-errno, "%s: %s", folder, strerror(errno));
    int status = 0;
    for (struct dirent *entry; !status && (entry = readdir(listing));) {
        if (entry->d_name[0] == '.' || !ends_with(entry->d_name, ending))
            continue;
        ++*count;
        if (*found && strcmp(*found, entry->d_name) <= 0)
            continue;
        release(*found);
        *found = mg_path("%s", entry->d_name);
        status = *found ? 0 : -ENOMEM;
    }
    closedir(listing);
    return status;
}
