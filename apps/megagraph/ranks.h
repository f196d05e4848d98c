/* ranks.h: the ranks that train one model together: threads of this process, or the processes of mpirun. A communicator
 * that is NULL is one rank alone, and everything here then does nothing.
 *
 * Failing: what ranks agree on (mg_ranks_agree), or what is the same on all anyway (mg_ranks_alike), ends them all by
 * returning. Any other status that work returns ends the others too: where one rank fails alone, they do not wait for
 * it.
 */
#ifndef MEGAGRAPH_APPS_RANKS_H
#define MEGAGRAPH_APPS_RANKS_H
#include <megagraph/comm.h>
#include <megagraph/context.h>

#include "options.h"

enum { MG_RANKS_MOST = 4096, MG_RANKS_TAG = 1 << 19 }; /* the first tag of the program's own messages */

/* Settles parallel.ranks and parallel.context: from --ranks (NULL: not given), the processes of mpirun, or the
   configuration. -EINVAL with both numbers where they differ. */
int mg_ranks_resolve(mg_config *config, const char *flag);

/* Runs work on config's ranks and waits for them; each has its own threads (config->threads, or its share of the
   cores), its own count of memory, and only rank 0 says anything. Returns the first failure, with a line that names the
   rank where it was one alone. */
int mg_ranks_run(const mg_config *config, int (*work)(mg_comm *comm, void *context), void *context);

/* Whether this process is the one of mpirun's that says things: before there is a communicator. */
int mg_ranks_speaks(void);
int mg_ranks_rank(const mg_comm *comm);          /* 0 alone */
int mg_ranks_count(const mg_comm *comm);         /* 1 alone */
const char *mg_ranks_story(const mg_comm *comm); /* "4 ranks as threads of this process, 2 threads each"; "" alone */

/* All ranks get 0 or the same failure, with its line in mg_app_last_error(). */
int mg_ranks_agree(mg_comm *comm, int status);
/* Of a status that all ranks have without having asked each other. */
int mg_ranks_alike(int status);

int mg_ranks_sum(mg_comm *comm, void *data, int64_t count, mg_comm_type type);
int mg_ranks_most(mg_comm *comm, int64_t *values, int64_t count);
int mg_ranks_broadcast(mg_comm *comm, void *data, int64_t count, mg_comm_type type); /* from rank 0 */
/* data: slice r has counts[r] elements and is rank r's; all are filled in. */
int mg_ranks_gather(mg_comm *comm, void *data, const int64_t *counts, mg_comm_type type);
/* Bytes to rank 0 from each other rank, bytes[r]: it gets them one after the other, take(context, rank) after each. */
int mg_ranks_collect(mg_comm *comm, void *data, const int64_t *bytes, void (*take)(void *context, int rank),
                     void *context);
int64_t mg_ranks_sent_bytes(const mg_comm *comm);

mg_attn_port mg_ranks_port(mg_comm *comm);
#endif
