/* megagraph/attn.h: exact softmax attention with a topology bias, forward and backward, in memory that grows with the
 * tokens, never with heads x tokens x tokens.
 *
 *     S[h][i][j] = scale * q[h][i] . k[h][j] + table[h][code(i,j)] + value[h][pair(i,j)] + key_bias[h][j]
 *     P = softmax of S over the keys j that query i sees;  out[h][i] = sum_j dropout(P[h][i][j]) * v[h][j]
 *
 * Attention as in Vaswani et al. 2017, section 3.2.1; the bias by distance code as in Graphormer (Ying et al. 2021,
 * section 3.1.2), whose edge encoding (3.1.3) is `value`; softmax by blocks as in FlashAttention (Dao et al. 2022,
 * section 3.1) and FlashAttention-2.
 *
 * Example: 1000 tokens, 8 heads of 16, dense codes.
 *
 *     mg_attn_plan *plan;
 *     if (mg_attn_plan_create(&plan, &(mg_attn_map){.kind = MG_ATTN_DENSE, .queries = 1000, .keys = 1000,
 *                                                   .codes = 8, .dense = codes, .dense_stride = 1000}))
 *         puts(mg_attn_last_error());
 *     mg_attn_call call = {.heads = 8, .dim = 16, .scale = 0.25f, .table = table,
 *                          .q = {q, 128, 16}, .k = {k, 128, 16}, .v = {v, 128, 16}, .out = {out, 128, 16}};
 *     call.workspace = aligned_alloc(64, (mg_attn_workspace_bytes(plan, &call, 0) + 63) / 64 * 64);
 *     mg_attn_forward(plan, &call);
 *     mg_attn_plan_destroy(plan);
 *
 * Status: functions return 0 or a negative <errno.h> value: -EINVAL a value is wrong, -ENOMEM memory, -EOVERFLOW a size
 * is too large, -ECANCELED a stream callback gave up; mg_attn_last_error() then holds one line with the values. After an
 * error the outputs are unspecified.
 * Memory: pointers in are borrowed. Only create allocates; calls use the caller's workspace. Maps borrow their arrays:
 * dense codes, tiles and the near CSR must outlive the plan.
 * Threads: a plan is read-only once made and may be used by many threads at once, each call with its own workspace. A
 * call runs on `threads` OpenMP threads; its result is bitwise the same for any number of them.
 * Errors in values: a NaN or Inf in a row of q reaches that output row alone; in a row of k or v that nobody sees, none.
 */
#ifndef MEGAGRAPH_ATTN_H
#define MEGAGRAPH_ATTN_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#define MG_ATTN_API __attribute__((visibility("default")))
#else
#define MG_ATTN_API
#endif

MG_ATTN_API const char *mg_attn_last_error(void); /* this thread's last error, one line; owned by the library */

/* hook(bytes) is told of every block the library obtains (> 0) and gives back (< 0); a value other than 0 for an
   obtained block refuses it (the call then returns -ENOMEM). Process-wide, NULL to remove; must be thread-safe. */
MG_ATTN_API void mg_attn_set_memory_hook(int (*hook)(int64_t bytes));

/* --- the bias map: which pairs are seen, and with which code --- */

enum {
    MG_ATTN_TILE = 64,       /* queries and keys of a tile */
    MG_ATTN_MAX_CODES = 256, /* codes are one byte */
    MG_ATTN_MAX_DIM = 256    /* of q, k and of v */
};

typedef enum mg_attn_map_kind {
    MG_ATTN_NONE,   /* all pairs have code 0 (a table, if given, has one code) */
    MG_ATTN_DENSE,  /* a byte per pair */
    MG_ATTN_NEAR,   /* listed pairs have their codes, all others `far_code` */
    MG_ATTN_TILES,  /* a tile store */
    MG_ATTN_STREAM  /* codes are written by a callback when they are needed */
} mg_attn_map_kind;

/* Classes of a stored tile. */
enum {
    MG_ATTN_TILE_CONSTANT, /* every pair has the constant code */
    MG_ATTN_TILE_PATCH,    /* every pair but a short list has the constant code */
    MG_ATTN_TILE_PLANES    /* bit planes */
};

/* Codes by 64 x 64 tile; libgraph makes the same fields (mg_graph_tiles). Tile t = tile_row * tile_columns + tile_column,
 * rows of tiles are queries. Pairs beyond queries or keys hold anything.
 * Payload of a patch tile at offsets[t]:  uint16 count; count x uint16 position (query-in-tile * 64 + key-in-tile,
 *     ascending); count x uint8 code. Of a planes tile: planes x 64 x uint64: word r of plane p holds bit p of the codes
 *     of query r, key c in bit c (bit plane 0 is the lowest bit of the code). Of a constant tile: nothing. */
typedef struct mg_attn_tiles {
    int64_t tile_rows, tile_columns; /* ceil(queries / 64), ceil(keys / 64) */
    int32_t planes;                  /* bit planes of a planes tile, 1..8 */
    const uint8_t *classes;          /* [tile_rows * tile_columns] MG_ATTN_TILE_* */
    const uint8_t *constants;        /* [tile_rows * tile_columns] */
    const int64_t *offsets;          /* [tile_rows * tile_columns] bytes into payload, multiples of 8 */
    const uint8_t *payload;          /* 8-byte aligned */
    int64_t payload_bytes;
} mg_attn_tiles;

/* Writes the codes of queries [q0, q0+nq) x keys [k0, k0+nk) to codes[(i-q0) * stride + (j-k0)]. Called once per block of
   queries for all heads, from several threads at once, each with its own `thread` in 0..threads-1. Not 0: the call that
   needed it returns -ECANCELED. */
typedef int (*mg_attn_stream_codes)(void *context, int thread, int64_t q0, int64_t nq, int64_t k0, int64_t nk,
                                    uint8_t *codes, int64_t stride);

/* Describes all pairs of queries x keys. Zero is the default of each field but the sizes. */
typedef struct mg_attn_map {
    mg_attn_map_kind kind;
    int64_t queries, keys;
    int32_t codes;          /* codes are 0..codes-1, at most 256; 0: 1 */
    int32_t far_code;       /* NEAR: the code of all pairs that are not listed; any kind: what mask_far hides */
    int mask_far;           /* not 0: pairs with code far_code are not seen */

    const uint8_t *dense;   /* DENSE: [queries][keys] with row stride dense_stride (bytes, >= keys) */
    int64_t dense_stride;

    const int64_t *near_starts;  /* NEAR: [queries + 1] */
    const int32_t *near_columns; /* NEAR: [pairs] keys, strictly ascending in each row (else refused, the row named) */
    const uint8_t *near_codes;   /* NEAR: [pairs]; NULL: all 0 */

    const mg_attn_tiles *tiles;  /* TILES */

    mg_attn_stream_codes stream; /* STREAM */
    void *stream_context;
    int64_t stream_rows;         /* queries a callback likes to write at once, 0: 512; a multiple of 64 */

    /* Packed graphs: query i of segment s sees keys of segment s only. [segments + 1] each, ascending from 0 to queries
       or keys; empty segments are fine. key_segments NULL: the same as query_segments. segments 0: one segment. */
    int64_t segments;
    const int64_t *query_segments, *key_segments;

    /* Uses only queries [query_begin, query_end) x keys [key_begin, key_end) of the map: tensors of a call then hold just
       those rows. query_end 0 (or key_end 0) with its begin 0: all. Any begin, not only multiples of 64. */
    int64_t query_begin, query_end, key_begin, key_end;
} mg_attn_map;

typedef struct mg_attn_plan mg_attn_plan;

/* Checks the map (every code below `codes`, columns in range, with the row named in the error; STREAM is checked as it is
   written) and lists its tiles by class. Time O(near pairs + tiles), for DENSE O(queries x keys) once; memory O(tiles +
   near pairs). Reusable over heads, layers and steps. -EINVAL, -ENOMEM. */
MG_ATTN_API int mg_attn_plan_create(mg_attn_plan **out, const mg_attn_map *map);
MG_ATTN_API void mg_attn_plan_destroy(mg_attn_plan *plan); /* NULL is fine */

/* What a plan found: for choosing a bias storage, for logs and for cost models. */
typedef struct mg_attn_plan_info {
    int64_t seen_pairs;                                       /* -1 for STREAM: not known */
    int64_t tiles_skip, tiles_constant, tiles_patch, tiles_codes, tiles_pairs; /* -1 each for STREAM */
    int64_t plan_bytes;                                       /* allocated by the plan */
    const char *backend;                                      /* "portable", "v3", "v4", ... */
    int64_t queries, keys;                                    /* of the plan's range: rows of a call's tensors */
    int64_t map_pairs;                                        /* near pairs of the map: columns of values; else 0 */
    int32_t codes;                                            /* columns of table */
} mg_attn_plan_info;
MG_ATTN_API void mg_attn_plan_describe(mg_attn_plan_info *info, const mg_attn_plan *plan);

/* Names the backend of plans created from now on ("reference" is slow and fp64 inside); NULL: the best this processor
   runs. -EINVAL names the known ones. Also read once from the environment: MEGAGRAPH_ATTN_BACKEND. */
MG_ATTN_API int mg_attn_use_backend(const char *name);

/* --- a call --- */

/* In bf16 softmax and all sums are fp32. Where out (in backward also the gradients) is bf16 too, P and dS may be rounded
   to it where they are multiplied (backend avx512_bf16); partial results in fp32 come from P and dS of 16 bits or more. */
typedef enum mg_attn_type { MG_ATTN_FP32, MG_ATTN_BF16 } mg_attn_type;

/* [token][head][dim], dim contiguous; strides in elements, any value (0 broadcasts an input; outputs may not overlap
   themselves). data NULL: not given. Listed pairs are read fastest where k and v of a token lie side by side
   ([token][2][heads][dim]) and q by itself: q, k and v as thirds of one row took 9 to 15 % longer. */
typedef struct mg_attn_tensor {
    void *data;
    int64_t token_stride, head_stride;
} mg_attn_tensor;

/* Dropout of the probabilities: pair (i, j) of a head is dropped when its 16 bits of Philox 4x32-7 (Salmon et al. 2011,
 * where seven rounds pass BigCrush) are below drop = probability * 2^16, rounded up but at most 2^16 - 1; the
 * rest is scaled by 2^16 / (2^16 - drop), so that the mean is exact.
 *     key = {seed low, seed high}, counter = {query id, key id, step, layer << 16 | head / 8},
 *     bits = low (head even) or high half of word head % 8 / 2
 * so the mask depends on ids, not on order, plan or threads, and eight heads share one counter. */
typedef struct mg_attn_dropout {
    float probability;         /* 0: none; below 1 */
    uint64_t seed;
    uint32_t step, layer;      /* layer < 65536 */
    int32_t head_begin;        /* added to the head's index: for calls that hold some of the heads */
    const uint32_t *query_ids; /* [queries of the plan] original ids; NULL: index in the map */
    const uint32_t *key_ids;   /* [keys of the plan]; NULL: index in the map */
} mg_attn_dropout;

/* One call, forward or backward. Everything not named "out" or "d..." is input. Zero is "not given". */
typedef struct mg_attn_call {
    int32_t heads, dim, value_dim; /* value_dim 0: dim */
    mg_attn_type type;             /* of q, k, v, out and their gradients; everything else is fp32 */
    float scale;                   /* used as given: pass 1/sqrt(dim) yourself */
    int threads;                   /* 0: OpenMP's default */

    mg_attn_tensor q, k, v;
    const float *table;            /* [heads][codes of the map]; NULL: none. Finite values are values, however negative;
                                      -inf hides the pair */
    const float *values;           /* [heads][pairs of the map], NEAR only; NULL: none */
    const float *key_bias;         /* [heads][keys of the plan]; NULL: none; -inf hides the key */
    mg_attn_dropout dropout;

    mg_attn_tensor out;            /* forward: written. backward: what forward wrote. fp32 when out_fp32 */
    int out_fp32;                  /* out (and dout) are fp32 though type is bf16: partial results to merge stay exact */
    float *lse;                    /* [heads][queries] natural log of the sum of exp(S); -inf for a row that sees nothing.
                                      forward: written unless NULL. backward: input, required */

    /* backward only */
    mg_attn_tensor dout;           /* gradient of out */
    const float *dlse;             /* gradient of lse [heads][queries]; NULL: 0 */
    mg_attn_tensor dq, dk, dv;     /* each written unless data is NULL; fp32 when gradients_fp32 */
    int gradients_fp32;
    float *dtable;                 /* [heads][codes]; written unless NULL */
    float *dvalues;                /* [heads][pairs of the map]; pairs outside the plan's range are left alone */
    float *dkey_bias;              /* [heads][keys of the plan] */

    void *workspace;               /* mg_attn_workspace_bytes(), 64-byte aligned */
} mg_attn_call;

/* Bytes of workspace for this call with this many threads; backward not 0: for mg_attn_backward (which asks for what the
   gradients given need). O(heads x (queries + keys) x dim + threads x block); negative: the call is wrong, as by forward. */
MG_ATTN_API int64_t mg_attn_workspace_bytes(const mg_attn_plan *plan, const mg_attn_call *call, int backward);

/* Time O(seen pairs x heads x dim). A combination that is not possible (values without NEAR, ...) is -EINVAL. */
MG_ATTN_API int mg_attn_forward(const mg_attn_plan *plan, const mg_attn_call *call);

/* Gradients of sum(dout * out) + sum(dlse * lse). P is made again from q, k and lse, so lse and out may be those of a
   larger whole of which this plan holds some keys (ring attention): the gradients are then this plan's share.
       dS = P * (dropout(dout . v) - D + dlse),  D[h][i] = dout . out;   dtable[h][c] = sum of dS with code c */
MG_ATTN_API int mg_attn_backward(const mg_attn_plan *plan, const mg_attn_call *call);

/* Merges a partial result over other keys into a running one, fp32, in place:
       lse = log(exp(lse) + exp(part_lse)), out = exp(lse_old - lse) * out + exp(part_lse - lse) * part
   for `queries` rows of `heads` heads; both empty: out 0, lse -inf. lse arrays are [heads][queries]. */
MG_ATTN_API int mg_attn_merge(mg_attn_tensor out, float *lse, mg_attn_tensor part, const float *part_lse,
                              int64_t queries, int32_t heads, int32_t value_dim);

/* --- the specification: slow, obvious, fp64 inside, one thread; the same arguments and results --- */
MG_ATTN_API int mg_attn_reference_forward(const mg_attn_plan *plan, const mg_attn_call *call);
MG_ATTN_API int mg_attn_reference_backward(const mg_attn_plan *plan, const mg_attn_call *call);

#ifdef __cplusplus
}
#endif
#endif
