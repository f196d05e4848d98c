/* A call under way: where its workspace lies, and the rows of tiles at hand.
 *
 * Workspace, in order; dim1 is dim, and one more where the key bias is an element of k (its partner in q is 1):
 *     tables     twice [heads][table_row]               entry plan->hidden is -inf
 *     the band of a STREAM map: its codes and its list of tiles
 *     keys       blocks (forward) or lanes (backward), and rows where kernels want them
 *     queries    (backward) blocks
 *     gradients  (backward) dq by rows, dk and dv lane-major
 *     near       where pairs are listed: rows of tokens, tables, P and dS of the heads at hand; where all are, keys,
 *                queries and gradients are empty
 *     sums       (backward) [heads][rows of tiles][codes] table gradients
 *     scratch    [threads]
 */
#ifndef MG_ATTN_CALL_H
#define MG_ATTN_CALL_H
#include "plan.h"

#include <stdatomic.h>

enum {
    HEAD_GROUP = 4, /* heads of a task of backward, which share decoded codes */
    MASK_HEADS = 8, /* heads that share dropout's words */
    SPAN = 8,       /* tiles whose codes forward keeps at once */
    SOFTMAX = 4,    /* rows of it: maximum, limit, sum, weight */
    CELL = 4        /* backward keeps those of CELL x CELL */
};

/* Rows of tiles whose codes are at hand: all of them, or a band of a STREAM map. */
typedef struct band {
    int64_t first, rows; /* in rows of tiles */
    plan_tile *tiles;    /* STREAM: [rows][tile_columns] */
    int64_t *counts;     /* STREAM: [rows] */
    uint8_t *codes;      /* STREAM: [rows * 64][stride] */
    int64_t stride;
} band;

/* Tokens of one side, head by head. */
typedef struct packed {
    float
        *tiled[2]; /* [heads][tiles][dim1 x 64], [heads][tiles][value_dim x 64]: q, dout or k, v as kernels want them */
    float *rows;   /* [heads][tiles * 64][row] of k, for dq; else NULL */
    uint8_t *bad;  /* [heads][tiles] an element is not finite */
    int64_t tiles;
    int64_t tile_floats[2]; /* of a tile of `tiled` */
} packed;

/* Tokens as listed pairs want them: heads side by side. */
typedef struct near_rows {
    float *room; /* [tokens][heads][row] where the caller's tensor will not do */
    const float *data;
    int64_t stride; /* of a token */
} near_rows;
enum { NEAR_Q, NEAR_K, NEAR_V, NEAR_DOUT, NEAR_OUT, NEAR_TENSORS };

/* Tokens of calls in bf16. In forward V is in pairs, and the queries are in a thread's scratch. */
enum { HALF_K, HALF_V, HALF_PAIRED_K, HALF_Q, HALF_DOUT, HALF_TURNED_Q, HALF_TURNED_DOUT, HALF_TENSORS };

typedef struct scratch {
    float *q, *out, *softmax; /* forward: [heads][dim1][64], [heads][value_dim][64], [heads][SOFTMAX][64] */
    uint16_t *half_q;         /* forward in bf16: [heads][64][steps x 32]; out [heads][64][value tiles x 16], softmax
                                 [heads][64 + 64 x 16] */
    void *room;               /* bf16: BF16_ROOM, backward BF16_GRADIENT_ROOM */
    uint8_t *codes;           /* [SPAN][64][64] */
    float *bias, *keep, *ds;  /* [64][64], [MASK_HEADS][64][64], [64][64] */
    float *careful;           /* mg_attn_careful_floats() */
} scratch;

typedef struct call_state {
    const mg_attn_plan *plan;
    const attn_backend *backend;
    mg_attn_call call;
    int threads, backward;
    int has_tiles, has_pairs, has_bias_element, table_hides, any_bad;
    int32_t dim1, row, value_row, table_row, entries;

    float score_unit; /* scores and biases of tiles are times this: log2 e where kernels want that, or 1 */
    float *tables, *tile_tables; /* the latter times score_unit */
    band band;
    packed keys, queries;
    int paired, could_be_paired; /* tokens are words of two elements (paired.c); the workspace has room for that */
    float *turned[2];            /* backward: [heads][tile_rows][8 blocks][dim][4] of q, [value_dim] of dout */
    int bf16, could_bf16;             /* done in bf16, with tokens in `half`; the workspace has room for that */
    uint16_t *half[HALF_TENSORS];     /* [heads][tiles] as in amx.h */
    float *lse, *delta;               /* backward: [heads][tile_rows * 64], as in backward_tile */
    float *dq;                        /* [heads][tile_rows * 64][dq_row] */
    float *dk, *dv;                   /* [heads][tile_columns][dk_rows or dv_rows x 64] */
    int32_t dq_row, dk_rows, dv_rows; /* row, dim1, value_dim; in bf16 up to multiples of 16, as in amx.h */
    int pairs_hide;                   /* some heads hide listed pairs */
    near_rows near[NEAR_TENSORS];
    float *near_tables;     /* [heads][codes], as near_list has them */
    float *near_p_ds;       /* [pairs][2][heads at once] */
    float *part, *part_lse; /* forward, with tiles: what pairs gave, [queries][heads][value_row], [heads][queries] */
    double *sums;           /* [heads][sum_rows][sum_row]: rows of tiles of a band, and codes */
    int64_t sum_rows;
    int32_t sum_row;
    char *scratch;
    int64_t scratch_bytes; /* of a thread */
    int64_t bytes;         /* of the workspace */

    atomic_int status;
} call_state;

/* Checks the call and lays out its workspace; bytes is then set. */
int mg_attn_call_prepare(call_state *s, const mg_attn_plan *plan, const mg_attn_call *call, int backward);
/* The same, with the workspace itself, whose fixed parts are filled: tables, and the keys packed. */
int mg_attn_call_begin(call_state *s, const mg_attn_plan *plan, const mg_attn_call *call, int backward);
scratch mg_attn_call_scratch(const call_state *s, int thread);

/* --- pack.c --- */
void mg_attn_pack_keys(call_state *s);
void mg_attn_pack_queries(call_state *s); /* backward */
/* Log-sum-exp and D - dlse of a tile's `count` queries; returns whether all are finite. */
int mg_attn_pack_statistics(call_state *s, int64_t unit, int64_t token, int count, int32_t head);
/* Tokens of one tile in the lanes: out [dim][64]; what is beyond count is 0. Returns whether all is finite. */
int mg_attn_pack_lanes(float *out, const mg_attn_tensor *from, mg_attn_type type, int64_t token, int count,
                       int32_t head, int32_t dim, float scale);
/* One token's elements. */
void mg_attn_load_row(float *out, const mg_attn_tensor *from, mg_attn_type type, int64_t token, int32_t head,
                      int32_t dim);
void mg_attn_store_row(const mg_attn_tensor *to, const float *row, int bf16, int64_t token, int32_t head, int32_t dim);

/* --- paired.c --- */
int mg_attn_paired_wanted(const call_state *s);
int mg_attn_paired_pack(call_state *s); /* 0: the call needs fp32 after all, for the sake of tokens */
/* As mg_attn_pack_lanes. */
void mg_attn_paired_lanes(float *out, const mg_attn_tensor *from, int64_t token, int count, int32_t head, int32_t dim);

/* --- forward_bf16.c --- */
int mg_attn_bf16_wanted(const call_state *s);
int32_t mg_attn_bf16_steps(const call_state *s);
int32_t mg_attn_bf16_value_tiles(const call_state *s);
int mg_attn_bf16_pack(call_state *s); /* 0: the call needs fp32 after all, for the sake of tokens or biases */
void mg_attn_bf16_rows(call_state *s, int64_t rows, int32_t groups); /* of the band */

/* --- backward_bf16.c --- */
int mg_attn_bf16_pack_backward(call_state *s); /* as mg_attn_bf16_pack */
/* --- band.c --- */
/* Makes the band that begins at row of tiles `first`: 0, or -ECANCELED, or -EINVAL for a wrong code. */
int mg_attn_band_load(call_state *s, int64_t first);
/* Tiles of a row of tiles, columns ascending. */
const plan_tile *mg_attn_band_row(const call_state *s, int64_t tile_row, int64_t *count);
/* Where the codes of a tile stand as they are, query-major; NULL: they do not. */
const uint8_t *mg_attn_band_memory(const call_state *s, const plan_tile *tile, int64_t tile_row, int64_t *stride);
void mg_attn_band_codes(uint8_t out[PAIRS], const call_state *s, const plan_tile *tile, int64_t tile_row);

/* --- bias.c --- */
/* A tile of one head: what its kernel is to be given. */
typedef struct tile_place {
    const plan_tile *tile;
    int64_t row;          /* of tiles */
    const uint8_t *codes; /* lanes last, or by four as a backend's turn_codes makes them */
    int keys_in_lanes;    /* else queries */
} tile_place;

int mg_attn_tile_needs_codes(const call_state *s, const plan_tile *tile);
/* 0: all its pairs are hidden. whole: make a BIAS_TILE. */
int mg_attn_tile_bias(tile_bias *bias, float tile[PAIRS], const call_state *s, const tile_place *place, int32_t head,
                      int whole);
int mg_attn_tile_hides(const call_state *s, const plan_tile *tile);
/* Chooses score_unit, and fills the tiles' tables from `tables`. */
void mg_attn_bias_begin(call_state *s);
/* Whether some finite bias is beyond 1e30: log2 e times the largest is no float. */
int mg_attn_bias_is_huge(const call_state *s);

/* Where values and their gradients have a listed pair of a NEAR map. */
static inline int64_t mg_attn_map_pair(const call_state *s, int32_t head, int64_t query, int32_t offset)
{
    const mg_attn_map *map = &s->plan->map;
    return head * map->near_starts[map->queries] + map->near_starts[map->query_begin + query] + offset;
}

/* --- dropout.c --- */
/* 0, or what is kept is scaled by, for all pairs of a tile, lanes last, for the heads whose words come together with head's. */
void mg_attn_dropout_tile(float keep[MASK_HEADS][PAIRS], const call_state *s, const tile_place *place, int32_t head);
/* For the pairs of some queries with listed keys of the plan, starts from 0; rows of NEAR_BATCH. */
void mg_attn_dropout_list(float keep[MASK_HEADS][NEAR_BATCH], const call_state *s, int64_t query, int32_t queries,
                          const int32_t *starts, const int32_t *keys, int32_t head);
static inline int dropout_slot(const call_state *s, int32_t head)
{
    return (head + s->call.dropout.head_begin) % MASK_HEADS;
}

static inline int32_t round_up(int32_t x, int32_t multiple) { return (x + multiple - 1) / multiple * multiple; }

#endif
