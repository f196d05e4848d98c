/* session.h: what `megagraph train` does once its configuration is known, on each rank: the dataset, its units, and one
 * training for each seed, split or fold. */
#ifndef MEGAGRAPH_APPS_SESSION_H
#define MEGAGRAPH_APPS_SESSION_H
#include "ranks.h"

typedef struct mg_session {
    mg_config config;        /* not yet resolved from the dataset */
    const char *run, *cache; /* folders */
    int resumed;
    int64_t ranks_before; /* resumed: of the last sitting */
} mg_session;

/* context: the mg_session. -ECANCELED: stopped by a signal, with a checkpoint saved. */
int mg_session_train(mg_comm *comm, void *context);
#endif
