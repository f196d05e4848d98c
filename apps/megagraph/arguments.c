#include "arguments.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "options.h"

static const mg_flag *find_flag(const mg_command *command, const char *name, size_t length)
{
    for (int f = 0; f < command->flag_count; f++)
        if (strlen(command->flags[f].name) == length && !memcmp(command->flags[f].name, name, length))
            return &command->flags[f];
    return NULL;
}

/* --epochs for train.epochs: the key of which the flag is the last word, or NULL. */
static const char *key_of_flag(const mg_command *command, const char *name)
{
    int count;
    const mg_option *options = mg_options(&count);
    size_t length = strcspn(name, "=");
    if (!find_flag(command, "--set", 5) || length < 3)
        return NULL;
    for (int o = 0; o < count; o++) {
        const char *dot = strrchr(options[o].key, '.'), *last = dot ? dot + 1 : options[o].key;
        if (strlen(last) == length - 2 && !memcmp(last, name + 2, length - 2))
            return options[o].key;
    }
    return NULL;
}

static int refuse_flag(const mg_command *command, const char *name)
{
    const char *names[MG_ARGUMENTS_MOST];
    int count = 0;
    for (; count < command->flag_count; count++)
        names[count] = command->flags[count].name;
    const char *key = key_of_flag(command, name);
    if (key)
        return fail(-EINVAL, "%s: '%.60s' is no flag, but %s is a key: --set %s=VALUE", command->name, name, key, key);
    if (!count)
        return fail(-EINVAL, "%s: takes no flag, '%.60s' is given", command->name, name);
    return fail(-EINVAL, "%s: '%.60s' is no flag; the nearest is %s (megagraph %s --help lists all)", command->name,
                name, mg_options_nearest_word(name, names, count), command->name);
}

static int add(mg_arguments *out, const mg_flag *flag, const char *value)
{
    if (out->given_count == MG_ARGUMENTS_VALUES)
        return fail(-EINVAL, "%s: more than %d flags", out->command->name, MG_ARGUMENTS_VALUES);
    if (!flag->many && mg_arguments_value(out, flag->name))
        return fail(-EINVAL, "%s: %s is given twice", out->command->name, flag->name);
    out->given[out->given_count].flag = flag;
    out->given[out->given_count++].value = value;
    return 0;
}

/* The flag at arguments[*at] with its values; *at moves on. */
static int take_flag(mg_arguments *out, int count, char **arguments, int *at)
{
    const char *word = arguments[*at], *equals = strchr(word, '=');
    const mg_flag *flag = find_flag(out->command, word, equals ? (size_t)(equals - word) : strlen(word));
    if (!flag)
        return refuse_flag(out->command, word);
    ++*at;
    if (!flag->value)
        return equals ? fail(-EINVAL, "%s: %s takes no value", out->command->name, flag->name) : add(out, flag, "");
    if (!equals && *at == count)
        return fail(-EINVAL, "%s: %s needs a value: %s", out->command->name, flag->name, flag->value);
    int status = add(out, flag, equals ? equals + 1 : arguments[(*at)++]);
    while (!status && flag->many && *at < count && arguments[*at][0] != '-' && strchr(arguments[*at], '='))
        status = add(out, flag, arguments[(*at)++]);
    return status;
}

int mg_arguments_parse(mg_arguments *out, const mg_command *command, int count, char **arguments)
{
    int at = 0, status = 0;
    *out = (mg_arguments){.command = command};
    for (int a = 0; a < count; a++)
        if (!strcmp(arguments[a], "--help") || !strcmp(arguments[a], "-h")) {
            mg_arguments_help(command, stdout);
            return 1;
        }
    while (at < count && !status) {
        if (arguments[at][0] == '-' && arguments[at][1])
            status = take_flag(out, count, arguments, &at);
        else if (out->word_count == command->words)
            status = fail(-EINVAL, "%s: '%.60s' is one word too many; usage: megagraph %s %s", command->name,
                          arguments[at], command->name, command->usage);
        else
            out->words[out->word_count++] = arguments[at++];
    }
    return status;
}

const char *mg_arguments_value(const mg_arguments *arguments, const char *flag)
{
    for (int g = arguments->given_count - 1; g >= 0; g--)
        if (!strcmp(arguments->given[g].flag->name, flag))
            return arguments->given[g].value;
    return NULL;
}

int mg_arguments_integer(int64_t *value, const mg_arguments *arguments, const char *flag, int64_t standard,
                         int64_t least, int64_t most)
{
    const char *text = mg_arguments_value(arguments, flag);
    char *end;
    *value = standard;
    if (!text)
        return 0;
    errno = 0;
    *value = strtoll(text, &end, 10);
    if (end == text || *end || errno || *value < least || *value > most)
        return fail(-EINVAL, "%s: %s is '%.60s': a whole number from %lld to %lld is expected",
                    arguments->command->name, flag, text, (long long)least, (long long)most);
    return 0;
}

int mg_arguments_real(double *value, const mg_arguments *arguments, const char *flag, double standard, double least,
                      double most)
{
    const char *text = mg_arguments_value(arguments, flag);
    char *end;
    *value = standard;
    if (!text)
        return 0;
    *value = strtod(text, &end);
    if (end == text || *end || !(*value >= least && *value <= most))
        return fail(-EINVAL, "%s: %s is '%.60s': a number from %g to %g is expected", arguments->command->name, flag,
                    text, least, most);
    return 0;
}

int mg_arguments_need(const mg_arguments *arguments, const char *flag)
{
    if (mg_arguments_value(arguments, flag))
        return 0;
    return fail(-EINVAL, "%s: %s is missing; usage: megagraph %s %s", arguments->command->name, flag,
                arguments->command->name, arguments->command->usage);
}

void mg_arguments_help(const mg_command *command, FILE *file)
{
    fprintf(file, "megagraph %s %s\n\n%s\n", command->name, command->usage, command->text);
    if (command->flag_count)
        fputc('\n', file);
    for (int f = 0; f < command->flag_count; f++) {
        char left[64];
        const mg_flag *flag = &command->flags[f];
        snprintf(left, sizeof left, "%s%s%s", flag->name, flag->value ? " " : "", flag->value ? flag->value : "");
        fprintf(file, "  %-24s %s\n", left, flag->help);
    }
}
