/* megagraph: trains graph transformers and looks at graphs. One subcommand each in its file; this one picks. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "commands.h"
#include "memory.h"
#include "options.h"
#include "progress.h"
#include "ranks.h"

static const mg_command *const commands[] = {&mg_command_train,  &mg_command_predict,  &mg_command_info,
                                             &mg_command_import, &mg_command_generate, &mg_command_partition};
enum { COMMANDS = sizeof commands / sizeof *commands };

static int help(FILE *file)
{
    fprintf(file, "megagraph: trains graph transformers on whole graphs and on many graphs\n\n");
    for (int c = 0; c < COMMANDS; c++)
        fprintf(file, "  megagraph %-10s %s\n", commands[c]->name, commands[c]->summary);
    fprintf(file, "\nBegin with: megagraph train --data FILE --out RUN\nmegagraph COMMAND --help tells more; --version "
                  "tells the version.\n");
    return file == stderr ? 2 : 0;
}

static int refuse(const char *word)
{
    const char *names[COMMANDS];
    for (int c = 0; c < COMMANDS; c++)
        names[c] = commands[c]->name;
    fprintf(stderr, "megagraph: '%.60s' is no command; the nearest is %s (megagraph --help lists all)\n", word,
            mg_options_nearest_word(word, names, COMMANDS));
    return 2;
}

int main(int count, char **arguments)
{
    signal(SIGPIPE, SIG_IGN); /* a closed pipe and a file size limit are write errors, said by the one who writes */
    signal(SIGXFSZ, SIG_IGN);
    if (count < 2)
        return help(stderr);
    if (!strcmp(arguments[1], "--help") || !strcmp(arguments[1], "-h") || !strcmp(arguments[1], "help"))
        return help(stdout);
    if (!strcmp(arguments[1], "--version")) {
        printf("megagraph %s\n", MEGAGRAPH_VERSION);
        return 0;
    }
    for (int c = 0; c < COMMANDS; c++)
        if (!strcmp(arguments[1], commands[c]->name)) {
            mg_memory_watch(0);
            mg_progress_quiet(!mg_ranks_speaks());
            return commands[c]->run(commands[c], count - 2, arguments + 2);
        }
    return refuse(arguments[1]);
}
