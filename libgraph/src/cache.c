/* Caches: one file per name and key, <folder>/<name>-<key in hex>.mgc:
 *
 *     byte 0   8         16         24         32         40
 *     MGCACHE1 | key u64 | name u64 | bytes i64 | sum u64 | payload
 *
 * name: hash of the name; sum: hash of the payload, seeded by key. Written aside, synced, renamed: a reader sees all
 * or nothing.
 */
#define _GNU_SOURCE
#include "megagraph/graph.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "library.h"

struct mg_graph_cache {
    char *folder;
};

typedef struct header {
    char magic[8];
    uint64_t key, name;
    int64_t bytes;
    uint64_t sum;
} header;

enum { PATH_BYTES = 4096 };

/* --- folder --- */

static int write_folder(char path[PATH_BYTES], const char *folder)
{
    const char *cache_home = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (folder)
        length = snprintf(path, PATH_BYTES, "%s", folder);
    else if (cache_home && cache_home[0] == '/') /* relative ones are to be ignored, says the XDG base directory rule */
        length = snprintf(path, PATH_BYTES, "%s/megagraph", cache_home);
    else if (home && home[0] == '/')
        length = snprintf(path, PATH_BYTES, "%s/.cache/megagraph", home);
    else
        return fail(-EINVAL, "cache: neither XDG_CACHE_HOME nor HOME is a folder; say which folder to use");
    if (length == 0 || length >= PATH_BYTES - 128)
        return fail(-ENAMETOOLONG, "cache: the folder's path has %d bytes; it has 1 to %d", length, PATH_BYTES - 129);
    return 0;
}

static int make_folder(char *path)
{
    for (char *slash = path + 1; *slash; slash++)
        if (*slash == '/') {
            *slash = 0;
            mkdir(path, 0700); /* what fails here fails below, where it is told */
            *slash = '/';
        }
    struct stat status;
    if (mkdir(path, 0700) && errno != EEXIST)
        return fail(-errno, "cache: %s cannot be made: %s", path, strerror(errno));
    if (stat(path, &status) || !S_ISDIR(status.st_mode))
        return fail(-ENOTDIR, "cache: %s is not a folder", path);
    return 0;
}

int mg_graph_cache_open(mg_graph_cache **out, const char *folder)
{
    char path[PATH_BYTES];
    *out = NULL;
    int status = write_folder(path, folder);
    if (!status)
        status = make_folder(path);
    if (status)
        return status;
    mg_graph_cache *cache = allocate(1, sizeof *cache);
    char *copy = cache ? allocate((int64_t)strlen(path) + 1, 1) : NULL;
    if (!copy) {
        release(cache);
        return -ENOMEM;
    }
    cache->folder = strcpy(copy, path);
    *out = cache;
    return 0;
}

void mg_graph_cache_close(mg_graph_cache *cache)
{
    if (cache)
        release(cache->folder);
    release(cache);
}

static int write_path(char path[PATH_BYTES], const mg_graph_cache *cache, const char *name, uint64_t key)
{
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");
    if (!length || name[length] || length > 64)
        return fail(-EINVAL, "cache: the name \"%s\"; it has 1 to 64 of a-z, 0-9, _ and -", name);
    snprintf(path, PATH_BYTES, "%s/%s-%016llx.mgc", cache->folder, name, (unsigned long long)key);
    return 0;
}

static header make_header(const char *name, uint64_t key, const void *data, int64_t bytes)
{
    header made = {.key = key, .bytes = bytes};
    memcpy(made.magic, "MGCACHE1", 8);
    made.name = mg_graph_hash_bytes(0, name, (int64_t)strlen(name));
    made.sum = mg_graph_hash_bytes(key, data, bytes);
    return made;
}

/* --- get --- */

/* Bytes read, fewer than asked only at the end; or -1 with errno. */
static int64_t read_all(int file, void *to, int64_t bytes)
{
    int64_t done = 0;
    while (done < bytes) {
        ssize_t got = read(file, (char *)to + done, (size_t)(bytes - done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (!got)
            break;
        done += got;
    }
    return done;
}

/* What is wrong with the file, or NULL; *data when nothing is, or on lack of memory. */
static const char *read_payload(void **data, header *found, int file, const char *name, uint64_t key)
{
    struct stat status;
    if (fstat(file, &status) || read_all(file, found, sizeof *found) != (int64_t)sizeof *found)
        return "it is shorter than its header";
    if (memcmp(found->magic, "MGCACHE1", 8))
        return "it is no cache file of this version";
    if (found->key != key || found->name != make_header(name, key, NULL, 0).name)
        return "it is of another key";
    if (found->bytes < 0 || status.st_size - (int64_t)sizeof *found != found->bytes)
        return "its length is wrong";
    *data = allocate(found->bytes, 1);
    if (!*data)
        return NULL;
    if (read_all(file, *data, found->bytes) != found->bytes ||
        mg_graph_hash_bytes(key, *data, found->bytes) != found->sum) {
        release(*data);
        *data = NULL;
        return "its checksum is wrong";
    }
    return NULL;
}

int mg_graph_cache_get(void **data, int64_t *bytes, mg_graph_cache *cache, const char *name, uint64_t key)
{
    char path[PATH_BYTES];
    *data = NULL;
    *bytes = 0;
    int status = write_path(path, cache, name, key);
    if (status)
        return status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return fail(-errno, "cache: %s: %s", path, strerror(errno));
    header found;
    const char *wrong = read_payload(data, &found, file, name, key);
    close(file);
    if (wrong) {
        unlink(path);
        return fail(-ENOENT, "cache: %s was removed: %s", path, wrong);
    }
    if (!*data)
        return -ENOMEM;
    *bytes = found.bytes;
    return 0;
}

/* --- put --- */

static int write_all(int file, const void *from, int64_t bytes)
{
    int64_t done = 0;
    while (done < bytes) {
        ssize_t put = write(file, (const char *)from + done, (size_t)(bytes - done));
        if (put < 0 && errno != EINTR)
            return -1;
        done += put > 0 ? put : 0;
    }
    return 0;
}

static int write_file(int file, const header *head, const void *data)
{
    if (write_all(file, head, sizeof *head) || write_all(file, data, head->bytes) || fsync(file)) {
        int error = errno;
        close(file);
        errno = error;
        return -1;
    }
    return close(file);
}

/* The rename itself must last; a file system that cannot sync folders is no reason to fail. */
static void sync_folder(const char *folder)
{
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file >= 0) {
        fsync(file);
        close(file);
    }
}

int mg_graph_cache_put(mg_graph_cache *cache, const char *name, uint64_t key, const void *data, int64_t bytes)
{
    char path[PATH_BYTES], aside[PATH_BYTES + 16];
    int status = write_path(path, cache, name, key);
    if (status)
        return status;
    if (bytes < 0)
        return fail(-EINVAL, "cache: %lld bytes for %s", (long long)bytes, path);
    header head = make_header(name, key, data, bytes);
    snprintf(aside, sizeof aside, "%s.XXXXXX", path);
    int file = mkostemp(aside, O_CLOEXEC);
    if (file < 0)
        return fail(-errno, "cache: %s cannot be written: %s", aside, strerror(errno));
    if (write_file(file, &head, data) || rename(aside, path)) {
        int error = errno;
        unlink(aside);
        return fail(-error, "cache: %s cannot be written: %s", path, strerror(error));
    }
    sync_folder(cache->folder);
    return 0;
}
