/* A context, and a call of it under way.
 *
 * One mechanism: a rank has `shards`, sets of keys with a plan each, and goes through them; the first result is written
 * in place, the others are merged or added to it. RING and ALL_TO_ALL: a shard is a group's keys, first the own group's
 * (context_ring.c). HALO: one shard, own and fetched keys (context_halo.c). ALL_TO_ALL wraps the ring in an exchange of
 * rows for heads (context_heads.c), after which `call` has the rows of the group and the heads of the rank.
 *
 *     rank = group * across + place;  step t of a group works on the shard of group (own + t) modulo along
 */
#ifndef MG_ATTN_CONTEXT_INTERNAL_H
#define MG_ATTN_CONTEXT_INTERNAL_H
#include "backward.h"
#include "context_port.h"
#include "context_rows.h"
#include "halo.h"
#include "plan.h"

#include <stddef.h>

typedef struct shard {
    mg_attn_plan *plan;
    int32_t step; /* t; HALO: 0 */
    int64_t keys;
    const uint32_t *key_ids; /* [keys]; NULL: their places */
} shard;

/* HALO: the seen pairs, keys as local rows: own keys first, then fetched ones, ascending. */
typedef struct local_pairs {
    int64_t *starts;  /* [rows + 1] */
    int32_t *columns; /* [pairs] */
    uint8_t *codes;   /* [pairs] */
    int32_t *offsets; /* [pairs] from near_starts of the row in the context's map */
    uint32_t *ids;    /* [rows + fetched] */
} local_pairs;

struct mg_attn_context {
    mg_attn_method method;
    mg_attn_port port;
    mg_attn_map map; /* defaults filled in */
    mg_attn_grid grid;
    int32_t heads, head_begin, head_end; /* of all; this rank's */
    int32_t group, place;
    int64_t *first;            /* [ranks + 1] */
    int64_t begin, rows, own;  /* rows [begin, begin + rows) are the group's; own: of this rank */
    const uint32_t *ids;       /* [tokens] */
    uint32_t *places;          /* [rows] begin, begin + 1, ...; where no ids are given */
    const uint32_t *query_ids; /* [rows] */
    shard *shards;             /* [shard_count] with seen pairs, by step */
    int32_t shard_count;
    int32_t *readers; /* [reader_count] steps in which another group works on this group's shard */
    int32_t reader_count;
    mg_attn_halo *halo;
    int keys_kept; /* HALO */
    local_pairs pairs;
    mg_attn_engine engine; /* forward NULL: shards */
    int64_t bytes;         /* allocated, plans not included */
};

static inline int rank_of(const mg_attn_context *c, int32_t group, int32_t place)
{
    return group * c->grid.across + place;
}
/* The group whose shard is worked on in a step, and the group that works on this one's then. */
static inline int32_t group_after(const mg_attn_context *c, int32_t step) { return (c->group + step) % c->grid.along; }
static inline int32_t group_before(const mg_attn_context *c, int32_t step)
{
    return (c->group + c->grid.along - step) % c->grid.along;
}
static inline int64_t rows_of_rank(const mg_attn_context *c, int rank) { return c->first[rank + 1] - c->first[rank]; }
static inline int32_t head_begin_of(const mg_attn_context *c, int32_t place)
{
    return (int32_t)((int64_t)c->heads * place / c->grid.across);
}
static inline int32_t heads_of(const mg_attn_context *c, int32_t place)
{
    return head_begin_of(c, place + 1) - head_begin_of(c, place);
}

/* --- a call under way --- */

typedef struct context_run {
    const mg_attn_context *c;
    mg_attn_call given; /* rows of this rank, all heads; value_dim filled in */
    mg_attn_call call;  /* rows of the group, heads of this rank */
    int backward;
    int64_t key_floats; /* of a row of k and v that travels: heads x (dim + value_dim) */
    messages messages;
    int status; /* of the first shard whose computing failed: its messages are sent all the same, so that no rank waits
                   for ever and none reads memory that is gone */

    /* The workspace. kv, dkv, ...: [rows][heads][dim] and behind it [rows][heads][value_dim]: one message. */
    float *kv;                                      /* own shard, packed */
    float *keys[2];                                 /* of other shards */
    float *gradients[2];                            /* backward: of other shards, on their way */
    float *contributions[2];                        /* backward: to the own shard, from others */
    float *part, *part_lse, *dq_part, *dtable_part; /* of a shard, to be merged or added */
    float *lse;
    /* ALL_TO_ALL: rows of the group, heads of this rank. */
    float *q, *out, *dout, *dq, *dkv;
    float *away;     /* own rows, other ranks' heads: what goes, then what comes back */
    float *away_lse; /* [heads][rows] by rank */
    /* HALO */
    float *given_rows;       /* [sent] rows of key_floats, then their gradients; keys[0]: [fetched] likewise, unless in place */
    float *values, *dvalues; /* [heads][local pairs] */
    void *workspace;         /* of a shard's call */

    /* Hands the workspace out; base NULL: only measures. */
    char *base;
    int64_t used;
    int overflow;
} context_run;

/* a x b x c floats where wanted, else NULL. */
float *mg_attn_context_carve(context_run *r, int wanted, int64_t a, int64_t b, int64_t c);

/* Attention to one shard: into `call` the first time, else merged or added. k, v, dk, dv are the shard's. May set
   r->status. */
void mg_attn_context_forward_shard(context_run *r, int32_t shard, mg_attn_tensor k, mg_attn_tensor v, int first);
void mg_attn_context_backward_shard(context_run *r, int32_t shard, mg_attn_tensor k, mg_attn_tensor v,
                                    mg_attn_tensor dk, mg_attn_tensor dv, int first, const last_keys *last);

/* The two halves of rows [rows][heads][dim], [rows][heads][value_dim]. */
static inline mg_attn_tensor keys_of(const context_run *r, float *kv)
{
    return packed_rows(kv, r->call.heads, r->call.dim);
}
static inline mg_attn_tensor values_of(const context_run *r, float *kv, int64_t rows)
{
    return packed_rows(kv ? kv + rows * r->call.heads * r->call.dim : NULL, r->call.heads, r->call.value_dim);
}

/* --- context_ring.c --- */
int mg_attn_context_make_ring(mg_attn_context *c);
int32_t mg_attn_context_ring_slots(const mg_attn_context *c);
void mg_attn_context_carve_ring(context_run *r);
int mg_attn_context_ring_forward(context_run *r);
int mg_attn_context_ring_backward(context_run *r);

/* --- context_heads.c: before and after the ring --- */
int32_t mg_attn_context_heads_slots(const mg_attn_context *c);
void mg_attn_context_carve_heads(context_run *r); /* and makes r->call of them */
int mg_attn_context_heads_in(context_run *r);
int mg_attn_context_heads_out(context_run *r);
/* Bytes sent per call. */
int64_t mg_attn_context_heads_bytes(const mg_attn_context *c, int32_t dim, int backward);

/* --- context_halo.c --- */
/* Collective, c may be NULL where status is not 0; *told: the other ranks know of the status, or the port is broken. */
int mg_attn_context_make_halo(mg_attn_context *c, const mg_attn_context_desc *desc, int status, int *told);
void mg_attn_context_carve_halo(context_run *r);
int mg_attn_context_halo_forward(context_run *r);
int mg_attn_context_halo_backward(context_run *r);

#endif
