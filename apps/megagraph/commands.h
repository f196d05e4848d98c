/* commands.h: the subcommands of megagraph; main.c picks one. */
#ifndef MEGAGRAPH_APPS_COMMANDS_H
#define MEGAGRAPH_APPS_COMMANDS_H
#include "arguments.h"

extern const mg_command mg_command_train, mg_command_predict, mg_command_info, mg_command_partition, mg_command_import,
    mg_command_generate;

/* What all commands that open a dataset share. */
#define MG_FLAGS_DATASET                                                                                               \
    {"--format", "NAME", "npz, ogb, tu, metis, mtx or edges; told from the content unless given", 0},                  \
        {"--labels", "FILE", "edge lists, METIS, Matrix Market: CSV of id,label", 0},                                  \
        {"--features", "FILE", "likewise: CSV of id,value,value,...", 0},                                              \
    {                                                                                                                  \
        "--directed", NULL, "keep edges as given instead of in both directions", 0                                     \
    }

struct mg_dataset;
/* Opens `path` by those flags. */
int mg_commands_open(struct mg_dataset **out, const mg_arguments *arguments, const char *path);
/* Prints "megagraph: LINE", with what the memory limit refused, and gives the exit status: 1, or 130 when stopped. */
int mg_commands_report(int status);
#endif
