/* megagraph/context.h: attention over tokens that are spread over ranks, forward and backward, exactly: the result is that of
 * one rank but for the order of a few fp32 sums.
 *
 * Tokens lie in one order; rank r holds the rows [first[r], first[r + 1]) of q, k, v, out and their gradients. The grid is
 * ranks = across x along: `across` ranks that follow each other share their rows out by heads (all-to-all, as Ulysses:
 * Jacobs et al. 2023), `along` such groups pass keys and values (ring attention: Liu et al. 2023).
 *
 *     ring          across 1, along R     a rank computes its rows for all heads; keys and values of each shard come to it
 *     all-to-all    across R, along 1     a rank computes all rows for some heads
 *     both          across A, along R/A   where ranks exceed heads
 *     halo          rows of keys and values that a rank's near pairs name are fetched, no others: sparse attention
 *
 * Shards that nobody in the group sees are not sent. Receives are posted before what came before them is computed. Partial
 * results are fp32 and merge by log-sum-exp; backward uses the lse of the whole; dk and dv travel home in fp32 and are
 * added in a fixed order, so a plan's result is the same bits for any number of threads and any timing.
 *
 * Per rank and layer, n its rows, B = n x heads x dim x 4 bytes, R ranks:
 *     ring          sends 2 B to each rank that sees its shard forward; 2 B + 2 B (dk, dv of each shard it sees) backward
 *     all-to-all    (R-1)/R of 3 B + 1 B (out) + lse forward; of 3 B + 2 B (out, dout) + lse and 3 B backward
 *     halo          2 rows for each row another rank needs forward; 2 again (keys_kept: 0), and 2 for each row it needs, backward
 *     memory        ring: two shards of k and v, and in backward of dk and dv; all-to-all: all rows of the rank's heads;
 *                   halo: fetched and sent rows of k and v as messages, and the fetched ones behind the caller's; a gradient of k or
 *                   v that the caller does not want, of own and fetched rows. Never heads x tokens x tokens.
 *
 * Status, errors, threads: as megagraph/attn.h, plus what the port returns. Every call is collective: all ranks of the
 * context make it, in the same order, one call at a time. Creating fails on all ranks or on none, with one status.
 * A call that cannot compute on one rank (a STREAM callback gives up) returns its status there, after its messages went
 * their way; the others return 0 and hold anything, so a failed rank ends the step for all.
 */
#ifndef MEGAGRAPH_CONTEXT_H
#define MEGAGRAPH_CONTEXT_H
#include "megagraph/attn.h"
#ifdef __cplusplus
extern "C" {
#endif

/* How bytes reach other ranks: four callbacks, each returning 0 or a negative errno. Messages of a pair of ranks with one
   tag arrive in order; sends never wait for their receive. test and wait set *request to NULL when it is done. Memory is
   the port's from send or receive until then. A port that returned an error is dead: it touches no memory given to it any
   more, and calls return its status at once, also on ranks that wait. Called on the thread that made the call only, also
   between its tiles (test). Tags: 0x61000 to 0x610ff. */
typedef struct mg_attn_port {
    void *context;
    int rank, ranks;
    int (*send)(void *context, void **request, int to, int tag, const void *data, int64_t bytes);
    int (*receive)(void *context, void **request, int from, int tag, void *data, int64_t bytes);
    int (*test)(void *context, void **request, int *done);
    int (*wait)(void *context, void **request);
} mg_attn_port;

typedef enum mg_attn_method { MG_ATTN_RING, MG_ATTN_ALL_TO_ALL, MG_ATTN_HALO } mg_attn_method;

/* How `ranks` are laid out: ALL_TO_ALL has across = the largest divisor of ranks that is at most heads. */
typedef struct mg_attn_grid {
    int across, along;
} mg_attn_grid;
MG_ATTN_API mg_attn_grid mg_attn_grid_of(mg_attn_method method, int ranks, int heads);

/* Queries whose pairs a rank computes, [*begin, *end): the rows that its map must have. */
MG_ATTN_API void mg_attn_context_rows(int64_t *begin, int64_t *end, mg_attn_grid grid, const int64_t *first, int rank);

/* Another way to compute a rank's part, to compare with: given the rows of all ranks, the heads of this one, and dropout
   ids; `workspace` is its own. lse need not be written, and what forward wrote there comes back in backward. dtable is
   to be written where it is given. workspace_bytes: negative with a status. */
typedef struct mg_attn_engine {
    void *context;
    int64_t (*workspace_bytes)(void *context, const mg_attn_call *call, int backward);
    int (*forward)(void *context, const mg_attn_call *call);
    int (*backward)(void *context, const mg_attn_call *call);
} mg_attn_engine;

typedef struct mg_attn_context_desc {
    mg_attn_method method;
    int32_t heads;
    mg_attn_port port;
    const int64_t *first;   /* [ranks + 1] ascending; ranks may be empty */
    /* Rows: the queries of mg_attn_context_rows(), counted from 0, also in a STREAM callback and in query_segments; keys:
       all tokens, first[ranks] of them, also in key_segments, which packed graphs need. Any kind; HALO: NEAR with mask_far.
       query_begin.. key_end are the context's own and must be 0. Borrowed, as by mg_attn_plan. */
    const mg_attn_map *map;
    const uint32_t *ids;    /* [tokens] of dropout; NULL: places in the order */
    int keys_kept; /* HALO: backward finds k and v as forward left them, fetched rows too, and does not fetch again */
    const mg_attn_engine *engine; /* copied; NULL: libattn's own. Only where along is 1; nothing is planned then */
} mg_attn_context_desc;

typedef struct mg_attn_context mg_attn_context;
/* Plans each shard, learns who sees whom. HALO refuses a map that is not masked NEAR: -EINVAL, the line says why. */
MG_ATTN_API int mg_attn_context_create(mg_attn_context **out, const mg_attn_context_desc *desc);
MG_ATTN_API void mg_attn_context_destroy(mg_attn_context *context); /* NULL is fine; not collective */

/* As in megagraph/attn.h; tensors hold this rank's rows, lse is [heads][rows of this rank]. values, dvalues: [heads][pairs
   of the map], of which a rank reads only what it computes; dvalues of other heads and of unseen pairs are 0. dtable and
   dvalues are this rank's share: their sum over ranks is the gradient. Which gradients are given may differ from rank to
   rank: others' dk and dv are made all the same. HALO: behind this rank's rows k and v, dk and dv have room for halo_rows
   (below) more at the same strides, which calls write: what is fetched, and its gradients on their way home. dropout ids are the context's; key_bias, dlse and bf16 are refused. */
MG_ATTN_API int64_t mg_attn_context_workspace_bytes(const mg_attn_context *context, const mg_attn_call *call,
                                                    int backward);
MG_ATTN_API int mg_attn_context_forward(const mg_attn_context *context, const mg_attn_call *call);
MG_ATTN_API int mg_attn_context_backward(const mg_attn_context *context, const mg_attn_call *call);

typedef struct mg_attn_context_info {
    int64_t seen_pairs;                    /* in the rank's rows of its map; -1 for STREAM and with an engine */
    int64_t forward_bytes, backward_bytes; /* this rank sends per call, by the formula above, for `heads` heads of `dim` */
    int64_t halo_rows;                     /* HALO: rows fetched; else 0 */
    int64_t plan_bytes;                    /* allocated by the context, its plans included */
} mg_attn_context_info;
MG_ATTN_API void mg_attn_context_describe(mg_attn_context_info *info, const mg_attn_context *context, int32_t dim);

/* --- rows of others: what HALO is made of, and what message passing needs --- */

/* Local rows: own ones first, [0, own), then the fetched ones, [own, own + halo), by rank and ascending. */
typedef struct mg_attn_halo mg_attn_halo;
/* starts [rows + 1], columns: this rank's lists (rows = first[rank + 1] - first[rank]), columns global. Learns which rows go
   where. Collective. */
MG_ATTN_API int mg_attn_halo_create(mg_attn_halo **out, const mg_attn_port *port, const int64_t *first,
                                    const int64_t *starts, const int32_t *columns);
MG_ATTN_API void mg_attn_halo_destroy(mg_attn_halo *halo);
MG_ATTN_API int64_t mg_attn_halo_rows(const mg_attn_halo *halo); /* fetched */
MG_ATTN_API int64_t mg_attn_halo_sent(const mg_attn_halo *halo); /* rows that go out, once per rank that needs them */
/* local [entries of the lists]: each column as a local row. Order within a list is kept (not always ascending). */
MG_ATTN_API void mg_attn_halo_localise(int32_t *local, const mg_attn_halo *halo, const int64_t *starts,
                                       const int32_t *columns);
/* rows [own + halo][stride]: `width` floats of the fetched rows are filled from their owners'. begin posts, end waits; between
   them own rows may be read, not written. One exchange at a time. buffer: [sent + halo][width] floats, the caller's. */
MG_ATTN_API int mg_attn_halo_fetch_begin(mg_attn_halo *halo, const float *rows, int64_t stride, int64_t width, float *buffer);
MG_ATTN_API int mg_attn_halo_fetch_end(mg_attn_halo *halo, float *rows, int64_t stride, int64_t width, float *buffer);
/* The way back: gradients of fetched rows are sent home and added to their owners' own rows, by rank in order. */
MG_ATTN_API int mg_attn_halo_return_begin(mg_attn_halo *halo, const float *rows, int64_t stride, int64_t width, float *buffer);
MG_ATTN_API int mg_attn_halo_return_end(mg_attn_halo *halo, float *rows, int64_t stride, int64_t width, float *buffer);

#ifdef __cplusplus
}
#endif
#endif
