/* megagraph import: any dataset that can be read, as one npz; and Debian's own archive as a graph. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "app.h"
#include "commands.h"

#include <megagraph/dataset.h>

static const mg_flag flags[] = {
    {"--out", "FILE", "the .npz to write", 0},
    {"--labels", "FILE", "edge lists, METIS, Matrix Market: CSV of id,label", 0},
    {"--features", "FILE", "likewise: CSV of id,value,value,...", 0},
    {"--directed", NULL, "keep edges as given instead of in both directions", 0},
};

/* All that a stream gives; release() it. */
static int read_all(char **text, int64_t *bytes, FILE *file, const char *name)
{
    int64_t room = 1 << 20;
    *bytes = 0;
    *text = allocate(room, 1);
    while (*text) {
        size_t count = fread(*text + *bytes, 1, (size_t)(room - *bytes), file);
        *bytes += (int64_t)count;
        if (!count)
            return ferror(file) ? fail(-EIO, "%s: cannot be read: %s", name, strerror(errno)) : 0;
        if (*bytes < room)
            continue;
        char *more = reallocate(*text, 2 * room, 1);
        if (!more)
            return -ENOMEM;
        *text = more;
        room *= 2;
    }
    return -ENOMEM;
}

/* What `apt-cache dumpavail` prints. */
static int dump_archive(char **text, int64_t *bytes)
{
    int ends[2], ended;
    if (pipe(ends))
        return fail(-errno, "apt-cache: no pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child < 0) {
        close(ends[0]);
        close(ends[1]);
        return fail(-errno, "apt-cache: cannot be started: %s", strerror(errno));
    }
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execlp("apt-cache", "apt-cache", "dumpavail", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *file = fdopen(ends[0], "rb");
    int status = file ? read_all(text, bytes, file, "apt-cache dumpavail") : fail(-ENOMEM, "apt-cache: no memory");
    if (file)
        fclose(file);
    while (waitpid(child, &ended, 0) < 0 && errno == EINTR)
        ;
    if (!status && WIFEXITED(ended) && WEXITSTATUS(ended) == 127)
        return fail(-ENOENT,
                    "apt-cache is not there: this is for Debian and its kin; give a file made by 'apt-cache dumpavail' "
                    "elsewhere: megagraph import debian FILE --out ...");
    if (!status && (!WIFEXITED(ended) || WEXITSTATUS(ended)))
        return fail(-EIO, "apt-cache dumpavail failed with status %d", WIFEXITED(ended) ? WEXITSTATUS(ended) : -1);
    if (!status && !*bytes)
        return fail(-ENODATA, "apt-cache dumpavail lists no package: run apt-get update first");
    return status;
}

static int import_debian(mg_dataset **data, const char *path)
{
    char *text = NULL;
    int64_t bytes = 0;
    int status;
    if (path) {
        FILE *file = fopen(path, "rb");
        if (!file)
            return fail(-errno, "%s: %s", path, strerror(errno));
        status = read_all(&text, &bytes, file, path);
        fclose(file);
    } else {
        status = dump_archive(&text, &bytes);
    }
    if (!status)
        status = relay(mg_dataset_import_debian(data, text, bytes), mg_dataset_last_error());
    release(text);
    return status;
}

static int import_file(mg_dataset **data, const mg_arguments *arguments)
{
    const char *format = arguments->words[0];
    if (arguments->word_count < 2)
        return fail(-EINVAL, "import: no file is named; usage: megagraph import %s", arguments->command->usage);
    mg_dataset_desc desc = {.format = strcmp(format, "auto") ? format : NULL,
                            .directed = mg_arguments_value(arguments, "--directed") != NULL,
                            .labels = mg_arguments_value(arguments, "--labels"),
                            .features = mg_arguments_value(arguments, "--features")};
    return relay(mg_dataset_open(data, arguments->words[1], &desc), mg_dataset_last_error());
}

static int import(const mg_arguments *arguments)
{
    mg_dataset *data = NULL;
    int status = mg_arguments_need(arguments, "--out");
    if (!status && !arguments->word_count)
        status = fail(-EINVAL, "import: no format is named; usage: megagraph import %s", arguments->command->usage);
    if (!status && !strcmp(arguments->words[0], "debian"))
        status = import_debian(&data, arguments->word_count > 1 ? arguments->words[1] : NULL);
    else if (!status)
        status = import_file(&data, arguments);
    if (!status)
        status = relay(mg_dataset_write_npz(data, mg_arguments_value(arguments, "--out")), mg_dataset_last_error());
    if (!status)
        printf("%swritten to %s\n", data->story, mg_arguments_value(arguments, "--out"));
    mg_dataset_close(data);
    return status;
}

static int run(const mg_command *command, int count, char **words)
{
    mg_arguments arguments;
    int status = mg_arguments_parse(&arguments, command, count, words);
    if (status == 1)
        return 0;
    if (!status)
        status = import(&arguments);
    return mg_commands_report(status);
}

const mg_command mg_command_import = {
    .name = "import",
    .summary = "converts a dataset to one npz",
    .usage = "debian|auto|npz|ogb|tu|metis|mtx|edges [PATH] --out FILE",
    .text = "debian: the packages of this machine's archive and what they depend on (runs 'apt-cache dumpavail', or "
            "reads PATH).\n"
            "auto: the format is told from the content of PATH.",
    .flags = flags,
    .flag_count = sizeof flags / sizeof *flags,
    .words = 2,
    .run = run,
};
