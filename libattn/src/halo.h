/* Rows of other ranks: who needs which, and the messages that carry them. */
#ifndef MG_ATTN_HALO_INTERNAL_H
#define MG_ATTN_HALO_INTERNAL_H
#include "context_port.h"

/*
 *     fetch    gives [sent] --pack--> [sent][width] ~~> [halo][width] of those who need them
 *     return   [halo][width] ~~> [sent][width] --add, by rank--> own rows
 */
struct mg_attn_halo {
    mg_attn_port port;
    int64_t begin, own;   /* own rows [begin, begin + own) of all */
    int64_t *need_starts; /* [ranks + 1] */
    int32_t *needs;       /* [need_starts[ranks]] rows of others, of all: ascending */
    int64_t *give_starts; /* [ranks + 1] */
    int32_t *gives;       /* [give_starts[ranks]] own rows counted from 0, ascending for each rank */
    void **requests;      /* [2 ranks] of the public calls */
    int64_t bytes;        /* allocated */
};

static inline int64_t halo_rows(const mg_attn_halo *h) { return h->need_starts[h->port.ranks]; }
static inline int64_t halo_sent(const mg_attn_halo *h) { return h->give_starts[h->port.ranks]; }

/* As mg_attn_halo_create, arguments checked. A rank with a status other than 0 takes part, and all fail. */
int mg_attn_halo_make(mg_attn_halo **out, const mg_attn_port *port, const int64_t *first, const int64_t *starts,
                      const int32_t *columns, int status);
/* Posts all messages of one way in slots 0..2 ranks - 1: sent [sent][width] and received [halo][width], or back: the
   other way round. */
int mg_attn_halo_post(const mg_attn_halo *halo, messages *m, const float *sent, float *received, int64_t width,
                      int back);

#endif
