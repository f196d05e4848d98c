#define _GNU_SOURCE
#include "program.h"

#include <ftw.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

char program_said[1 << 16], program_before[4096];
static char folder[4096];

int program_setup(void **state)
{
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/megagraph-apps-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(folder) || chdir(folder))
        return -1;
    setenv("XDG_CACHE_HOME", folder, 1);
    return setenv("OMP_NUM_THREADS", "1", 1);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(path);
}

int program_teardown(void **state)
{
    (void)state;
    return chdir("/") || nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void read_said(void)
{
    program_said[0] = 0;
    for (int f = 0; f < 2; f++) {
        char *text = program_text(f ? "stderr" : "stdout");
        strncat(program_said, text, sizeof program_said - strlen(program_said) - 1);
        free(text);
    }
}

/* A child that becomes the program; words are parted by the shell. */
static pid_t start(const char *format, va_list values)
{
    char words[8192], line[16384];
    vsnprintf(words, sizeof words, format, values);
    snprintf(line, sizeof line, "exec %s " MEGAGRAPH_PROGRAM " %s >stdout 2>stderr", program_before, words);
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    return child;
}

static int finish(pid_t child)
{
    int status;
    waitpid(child, &status, 0);
    read_said();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int program(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int status = finish(start(format, values));
    va_end(values);
    return status;
}

void program_works(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int status = finish(start(format, values));
    va_end(values);
    if (status)
        fail_msg("'%s' ended with %d: %s", format, status, program_said);
}

void program_refuses(const char *part, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int status = finish(start(format, values));
    va_end(values);
    char *text = program_text("stderr"), *line = strstr(text, "megagraph: ");
    if (status != 1 || !line || !strstr(line, part) || strchr(line, '\n') != line + strlen(line) - 1)
        fail_msg("'%s' ended with %d and said, where one line with '%s' is expected: %s", format, status, part, text);
    free(text);
}

int program_interrupted(const char *path, int lines, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    pid_t child = start(format, values);
    va_end(values);
    for (int wait = 0; wait < 60000 && program_lines(path) < lines; wait++)
        usleep(1000);
    kill(child, SIGINT);
    return finish(child);
}

char *program_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (file) {
        text[fread(text, 1, (1 << 20) - 1, file)] = 0;
        fclose(file);
    }
    return text;
}

int program_lines(const char *path)
{
    char *text = program_text(path);
    int lines = 0;
    for (char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    free(text);
    return lines;
}

json_t *program_json(const char *path)
{
    json_error_t error;
    json_t *value = json_load_file(path, 0, &error);
    if (!value)
        fail_msg("%s: %s", path, error.text);
    return value;
}

double program_number(const char *path, const char *key)
{
    json_t *object = program_json(path), *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("%s: has no number '%s'", path, key);
    double number = json_number_value(value);
    json_decref(object);
    return number;
}

int program_same(const char *a, const char *b)
{
    char command[8192];
    snprintf(command, sizeof command, "cmp -s %s %s", a, b);
    return system(command) == 0;
}
