#include "aside.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "library.h"
#include "parts.h"

static int failed(const char *path, int code) { return fail(-code, "%s: cannot be written: %s", path, strerror(code)); }

static int is_special(const char *path)
{
    struct stat status;
    return !stat(path, &status) && !S_ISREG(status.st_mode);
}

char *mg_aside_begin(int *status, const char *path)
{
    static atomic_uint counter;
    const char *folder = getenv("TMPDIR");
    unsigned number = atomic_fetch_add(&counter, 1);
    char *aside = is_special(path) ? mg_path("%s/megagraph-%ld-%u", folder ? folder : "/tmp", (long)getpid(), number)
                                   : mg_path("%s.%ld-%u.partial", path, (long)getpid(), number);
    if (!aside) {
        *status = -ENOMEM;
        return NULL;
    }
    int file = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) {
        *status = failed(path, errno);
        release(aside);
        return NULL;
    }
    close(file);
    *status = 0;
    return aside;
}

/* Errors of closing count: some file systems tell of a full disk only then. */
static int copy_over(const char *aside, const char *path)
{
    char bytes[1 << 14];
    int from = open(aside, O_RDONLY | O_CLOEXEC), to = open(path, O_WRONLY | O_CLOEXEC), code = 0;
    if (from < 0 || to < 0)
        code = errno;
    while (!code) {
        ssize_t got = read(from, bytes, sizeof bytes), put = 0;
        code = got < 0 ? errno : 0;
        if (got <= 0)
            break;
        for (ssize_t wrote; put < got && !code; put += wrote)
            if ((wrote = write(to, bytes + put, (size_t)(got - put))) < 0)
                code = errno, wrote = 0;
    }
    if (from >= 0)
        close(from);
    if (to >= 0 && close(to) && !code)
        code = errno;
    return code;
}

static int sync_file(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC), code = 0;
    if (file < 0)
        return errno;
    if (fsync(file) && errno != EINVAL && errno != EROFS)
        code = errno;
    close(file);
    return code;
}

int mg_aside_end(char *aside, const char *path, int status)
{
    if (!aside)
        return status;
    if (!status) {
        int special = is_special(path);
        int code = special ? copy_over(aside, path) : sync_file(aside);
        if (!code && !special && rename(aside, path))
            code = errno;
        status = code ? failed(path, code) : 0;
    }
    unlink(aside); /* already renamed: there is nothing to remove */
    release(aside);
    return status;
}
