#include "commands.h"

#include <megagraph/dataset.h>
#include <signal.h>

#include "app.h"
#include "memory.h"
#include "progress.h"
#include "ranks.h"

int mg_commands_open(mg_dataset **out, const mg_arguments *arguments, const char *path)
{
    mg_dataset_desc desc = {.directed = mg_arguments_value(arguments, "--directed") != NULL,
                            .format = mg_arguments_value(arguments, "--format"),
                            .labels = mg_arguments_value(arguments, "--labels"),
                            .features = mg_arguments_value(arguments, "--features")};
    return relay(mg_dataset_open(out, path, &desc), mg_dataset_last_error());
}

int mg_commands_report(int status)
{
    mg_progress_end();
    if (!status)
        return 0;
    const char *refusal = status == -ENOMEM ? mg_memory_refusal() : "";
    if (status == -ECANCELED && mg_progress_stop_wanted())
        return 128 + mg_progress_stop_wanted();
    if (!mg_ranks_speaks())
        return 1;
    if (*refusal)
        fprintf(stderr, "megagraph: out of memory: %s\n", refusal);
    else
        fprintf(stderr, "megagraph: %s\n", mg_app_last_error());
    return 1;
}
