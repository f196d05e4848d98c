#include "files.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app.h"

const char *mg_files_path(const char *folder, const char *name)
{
    static _Thread_local char ring[6][8192];
    static _Thread_local int turn;
    char *path = ring[turn++ % 6];
    size_t length = strlen(folder);
    snprintf(path, sizeof ring[0], "%s%s%s", folder, length && folder[length - 1] == '/' ? "" : "/", name);
    return path;
}

int mg_files_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

int mg_files_make_folder(const char *path)
{
    char part[8192];
    struct stat info;
    if (!*path)
        return fail(-EINVAL, "a folder is needed, its name is empty");
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return fail(-ENAMETOOLONG, "'%.60s...' is no folder name", path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(part, 0777); /* what is wrong shows at the last one */
        *slash = '/';
    }
    if (mkdir(part, 0777) && errno != EEXIST)
        return fail(-errno, "%s: the folder cannot be made: %s", path, strerror(errno));
    if (stat(part, &info) || !S_ISDIR(info.st_mode))
        return fail(-ENOTDIR, "%s: is no folder", path);
    return 0;
}

int mg_files_remove_folder(const char *path)
{
    DIR *folder = opendir(path);
    if (!folder)
        return errno == ENOENT ? 0 : fail(-errno, "%s: %s", path, strerror(errno));
    int status = 0;
    for (struct dirent *entry; !status && (entry = readdir(folder));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        char name[8192];
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (unlink(name) && errno != ENOENT)
            status = errno == EISDIR || errno == EPERM
                         ? mg_files_remove_folder(name)
                         : fail(-errno, "%s: cannot be removed: %s", name, strerror(errno));
    }
    closedir(folder);
    if (!status && rmdir(path))
        status = fail(-errno, "%s: cannot be removed: %s", path, strerror(errno));
    return status;
}

int mg_files_sync_folder(const char *path)
{
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return fail(-errno, "%s: %s", path, strerror(errno));
    int status = fsync(descriptor) && errno != EINVAL ? -errno : 0; /* EINVAL: a file system without it */
    close(descriptor);
    return status ? fail(status, "%s: cannot be synced: %s", path, strerror(-status)) : 0;
}

int mg_files_write(const char *path, const char *text, size_t bytes)
{
    char aside[8192 + 8];
    snprintf(aside, sizeof aside, "%.8191s.new", path);
    FILE *file = fopen(aside, "wb");
    int status = file ? 0 : -errno;
    if (file && (fwrite(text, 1, bytes, file) != bytes || fflush(file) || (fsync(fileno(file)) && errno != EINVAL)))
        status = -errno;
    if (file && fclose(file) && !status)
        status = -errno;
    if (!status && rename(aside, path))
        status = -errno;
    if (status) {
        unlink(aside);
        return fail(status, "%s: cannot be written: %s", path, strerror(-status));
    }
    return 0;
}
