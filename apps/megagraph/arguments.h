/* arguments.h: command lines. A command lists its flags once; the list parses, makes --help, and names the nearest
 * flag.
 */
#ifndef MEGAGRAPH_APPS_ARGUMENTS_H
#define MEGAGRAPH_APPS_ARGUMENTS_H
#include <stdint.h>
#include <stdio.h>

enum { MG_ARGUMENTS_MOST = 32, MG_ARGUMENTS_VALUES = 256 };

typedef struct mg_flag {
    const char *name;  /* "--data" */
    const char *value; /* "FILE"; NULL: a switch */
    const char *help;
    int many; /* may be given again, and takes all words that follow and hold a '=' */
} mg_flag;

typedef struct mg_command {
    const char *name, *summary; /* "train", "trains a model" */
    const char *usage;          /* what follows the name */
    const char *text;           /* of --help, after the usage */
    const mg_flag *flags;
    int flag_count, words; /* words: how many arguments without a flag there may be */
    int (*run)(const struct mg_command *command, int count, char **arguments);
} mg_command;

typedef struct mg_arguments {
    const mg_command *command;
    const char *words[8];
    int word_count;
    struct {
        const mg_flag *flag;
        const char *value;
    } given[MG_ARGUMENTS_VALUES];
    int given_count;
} mg_arguments;

/* 0, 1 when help was asked for and printed, or -EINVAL with the line. */
int mg_arguments_parse(mg_arguments *out, const mg_command *command, int count, char **arguments);
/* The last value given, or NULL; a switch's is "". */
const char *mg_arguments_value(const mg_arguments *arguments, const char *flag);
/* A whole number within [least, most]; `standard` when the flag is not given. */
int mg_arguments_integer(int64_t *value, const mg_arguments *arguments, const char *flag, int64_t standard,
                         int64_t least, int64_t most);
int mg_arguments_real(double *value, const mg_arguments *arguments, const char *flag, double standard, double least,
                      double most);
/* -EINVAL that names the flag when it is not given. */
int mg_arguments_need(const mg_arguments *arguments, const char *flag);
void mg_arguments_help(const mg_command *command, FILE *file);
#endif
