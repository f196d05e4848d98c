/* Messages over a context's port, with an error line for each that fails. */
#ifndef MG_ATTN_CONTEXT_PORT_H
#define MG_ATTN_CONTEXT_PORT_H
#include "megagraph/context.h"

enum {
    TAG_LEARN = 0x61000,
    TAG_LISTS,
    TAG_KEYS,
    TAG_GRADIENTS,
    TAG_HEADS,
    TAG_FETCH,
    TAG_RETURN,
};

/* Requests under way, by slot. */
typedef struct messages {
    const mg_attn_port *port;
    void **requests; /* [count] NULL: none, or done */
    int32_t count, next;
    int status; /* of mg_attn_messages_progress */
} messages;

/* No bytes: no message. */
int mg_attn_messages_send(messages *m, int32_t slot, int to, int tag, const void *data, int64_t bytes);
int mg_attn_messages_receive(messages *m, int32_t slot, int from, int tag, void *data, int64_t bytes);
int mg_attn_messages_wait(messages *m, int32_t slot);
int mg_attn_messages_wait_all(messages *m);
/* Tests one of them, by turns: any test lets a port move them all. For mg_attn_parallel_between. */
void mg_attn_messages_progress(void *messages);

/* Sends to one rank and receives from another, or the same, and waits for both. Ranks that do this with (rank + s, rank
   - s) for s = 1, 2, ... cannot block each other. */
int mg_attn_port_swap(const mg_attn_port *port, int tag, int to, const void *sent, int64_t sent_bytes, int from,
                      void *received, int64_t received_bytes);
/* Collective: 0 where every rank gives 0, else this rank's own status, or that of the nearest rank before it that
 * failed. */
int mg_attn_port_agree(const mg_attn_port *port, int status);
/* Of mg_attn_port_agree and its like: the line about another rank. */
int mg_attn_port_other_failed(int rank, int status);

int mg_attn_port_check(const char *caller, const mg_attn_port *port, const int64_t *first);

static inline int rank_after(const mg_attn_port *port, int s) { return (port->rank + s) % port->ranks; }
static inline int rank_before(const mg_attn_port *port, int s) { return (port->rank + port->ranks - s) % port->ranks; }

#endif
