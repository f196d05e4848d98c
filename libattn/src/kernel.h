/* What a backend is: a name and the kernels that work on one tile, or on listed pairs.
 *
 * A tile is 64 queries x 64 keys of one head. The kernels put queries (forward) or keys (backward) in the lanes of
 * vectors; "lane-major" data of one row or column of the tile is 64 floats, one for each lane:
 *
 *     lanes   [dim][64]        the side in the lanes         (forward: queries; backward: keys)
 *     blocks  [8][dim][8]      the other side, broadcast     (forward: keys; backward: queries), 8 tokens a block
 *     rows    [64][row]        a token's elements side by side, row = dim rounded up to 8, zeros behind
 *
 * Backward has its lanes in two halves, [2][dim][32], so that the part of a half lies together: a quarter of 256-byte
 * rows would use a part of the first cache's sets only.
 */
#ifndef MG_ATTN_KERNEL_H
#define MG_ATTN_KERNEL_H
#include "megagraph/attn.h"

enum { TILE = MG_ATTN_TILE, PAIRS = TILE * TILE, BLOCK = 8, HALF = 32 };

/* Where lane i of row 0 is in halves of `rows` rows; the next row is HALF further on. */
static inline int64_t half_lane(int i, int32_t rows) { return (int64_t)(i / HALF) * rows * HALF + i % HALF; }

/* Where the bias of a tile's pairs comes from. */
typedef enum bias_kind { BIAS_CONSTANT, BIAS_LOOKUP16, BIAS_LOOKUP32, BIAS_TILE } bias_kind;

typedef struct tile_bias {
    bias_kind kind;
    float constant;
    const float *table; /* LOOKUP: [16] or [32] */
    const uint8_t
        *codes;        /* LOOKUP: [64][64], lanes last; forward with codes by four: [16][64][4], four keys of a lane */
    const float *tile; /* TILE: [64][64], lanes last; -inf hides a pair */
} tile_bias;

/* Adds the keys of one tile to the running softmax of its queries. Lanes are queries. */
typedef struct forward_tile {
    int32_t dim, value_dim;
    int bias_element;   /* the last element of k is the key bias, that of q is 1 */
    int32_t lanes;      /* queries in use, 1..64: the others hold anything */
    int32_t key_blocks; /* blocks of 8 keys in use; keys beyond the last are hidden by the bias */
    const float *q;     /* [dim][64], scaled */
    const float *k, *v; /* [8][dim][8], [8][value_dim][8] */
    float scale;        /* of scores, where tokens are words of two elements (paired.c): then q is not scaled */
    int log2_scores;    /* scores and biases are times log2 e: q, or scale, and the bias have it */
    tile_bias bias;
    const float *keep; /* dropout: [64 keys][64 queries], 0 or 1/(1-p); NULL: none */
    /* The softmax so far, by query: out = sum of exp(S - maximum) v, sum = sum of exp(S - maximum). `maximum` is one of
       the largest scores, not always the largest: it is raised when a score exceeds `limit` = maximum + 20, or -inf at
       first. */
    float *maximum, *limit, *sum; /* [64] */
    float *weight;                /* [64] of words: what the rounded probabilities add up to */
    float *out;                   /* [value_dim][64] */
    const float *next_k, *next_v; /* of the next tile, to be fetched on the side */
} forward_tile;

/* Sums of dS by code: sums[c] += sum of ds where codes = c, for the codes in `present`. A tile of many codes adds pair by
   pair; with less, a code's sum goes by lane, strip after strip, in whatever kernel it is made. */
typedef struct table_tile {
    const float *ds;      /* [2][64][32] */
    const uint8_t *codes; /* [64][64] */
    int32_t rows;         /* rows in use, a multiple of 8 */
    uint64_t present;     /* bit c: code c < 63 may occur; bit 63: codes from 63 on may occur */
    int one;              /* all pairs have the one code of `present` */
    int32_t entries;      /* all codes are below */
    double *sums;         /* [entries] */
} table_tile;

enum { MOST_CODES = 24 };
static inline int many_codes(uint64_t present) { return present >> 63 || __builtin_popcountll(present) > MOST_CODES; }

enum { AHEAD = 8 }; /* k, v, dk, dv, k_rows, q, dout, dq */

/* Adds one tile's share to the gradients. Lanes are keys. dS = P * (keep * (dout . v) - delta). */
typedef struct backward_tile {
    int32_t dim, value_dim;
    int bias_element;      /* as above; the last row of dk is then dkey_bias */
    int32_t query_blocks;  /* blocks of 8 queries in use */
    int32_t row;           /* elements of a row of k and dq */
    const float *q, *dout; /* [8][dim][8] scaled, [8][value_dim][8] */
    const float *sum_q, *sum_dout; /* what dk and dv add up: the same, or, in words of two (paired.c), those of queries */
    float scale;                   /* of scores, with words: then q is not scaled, and neither is dk */
    int log2_scores;       /* as above; lse does not have log2 e */
    const float *lse;      /* [64]; +inf for a row that sees nothing or is not there */
    const float *delta;    /* [64] D - dlse */
    const float *k, *v;    /* [2][dim][32], [2][value_dim][32] */
    const float *k_rows;   /* [64][row] */
    tile_bias bias;
    const float *keep; /* [64 queries][64 keys] or NULL */
    float *dq;         /* [64][row], scale left out; NULL: not wanted, as below */
    float *dk, *dv;    /* as k and v */
    float *ds;         /* [2][64][32] scratch: dS on return, unless only dv is wanted (all else NULL, need_ds 0) */
    int need_ds;  /* for anything but dv */
    int half_pipes; /* mg_attn_half_pipes() */
    int store_ds; /* else ds may be left as it is, where tokens are words of two */
    table_tile *table; /* whose sums may be made on the way: these codes are taken out of `present`; or NULL */
    /* What the next tile will need, to be fetched on the side: its arrays, NULL where there is none, and the codes of
       another tile, NULL or 64 rows of 64 bytes. */
    const float *ahead[AHEAD];
    const uint8_t *codes_ahead;
    int64_t codes_stride;
} backward_tile;

/* Sparse attention: listed pairs of some queries that follow each other, for some heads at once, whose elements lie
   side by side in a token's row. Lists are short, so a kernel gets several. Arrays [..][heads] have NEAR_PAD more
   elements, which may be read and written. */
enum { NEAR_BATCH = 64, NEAR_QUERIES = 64, NEAR_HEADS = 8, NEAR_PAD = 16, NEAR_SUMS = 32 };
typedef struct near_list {
    int32_t heads;          /* 1, 2, 4 or 8 */
    int32_t row, value_row; /* of a head, multiples of 8 */
    int32_t queries, count; /* 1..NEAR_QUERIES; pairs, 0..NEAR_BATCH */
    const int32_t *starts;  /* [queries + 1] of their pairs, from 0 to count */
    const int32_t *keys;    /* [count] rows of k and v; NEAR_PAD more are tokens too; those up to `ahead` come next */
    int64_t ahead;
    const uint8_t *codes; /* [count], NEAR_PAD more are below code_count */
    int32_t code_count;
    const float *table; /* [codes][heads], no entry that is used is -inf */
    const float *bias;  /* [count][heads] instead of the table's, or NULL */
    const float *keep;  /* [count][heads] or NULL */
    float scale;        /* of q . k */
    const float *q, *k, *v;
    int64_t q_stride, k_stride, v_stride;
    /* forward: the softmax so far of one query, unless this is its `first` part; out is divided in the `last` */
    int first, last;
    float *maximum, *sum; /* [queries][heads] */
    float *log_sums;      /* [queries][heads] out in the last, or NULL: log of the sum of exp(S), -inf of nothing */
    float *out;           /* [heads][value_row] of each */
    int64_t out_stride;
    /* backward */
    const float *dout;
    int64_t dout_stride;
    const float *lse, *delta; /* [queries][heads] */
    float *dq;                /* [heads][row] of each, or NULL */
    int64_t dq_stride;
    int add;           /* to dq: there is something already */
    float *p_ds;       /* [count][2][heads] out, not beyond: P with dropout, dS */
    float *table_sums; /* [codes][NEAR_SUMS] += dS, of head i % heads in i, or NULL */
    /* What is not read before the cache has lost it may be stored past it: out and dq, of whole lines; p_ds */
    int rows_past, p_ds_past;
} near_list;

/* D of queries: delta [queries][heads] = out . dout */
typedef struct near_delta {
    int32_t heads, value_row, queries;
    const float *out, *dout;
    int64_t out_stride, dout_stride;
    float *delta;
} near_delta;

/* Pairs of some keys that follow each other: dk and dv are what their queries give. */
typedef struct near_sums {
    int32_t heads, row, value_row, keys;
    const int64_t *starts;  /* [keys + 1] of their pairs in queries and at */
    const int32_t *queries; /* those up to `ahead` come next */
    const int64_t *at;      /* of the pair in p_ds */
    int64_t ahead;
    const float *p_ds;
    const float *q, *dout;
    int64_t q_stride, dout_stride;
    float scale;    /* of dk */
    float *dk, *dv; /* [heads][row], [heads][value_row] of each; NULL: not wanted */
    int64_t dk_stride, dv_stride;
    int add;       /* there is something already */
    int rows_past; /* dk and dv, of whole lines, may be stored past the cache */
} near_sums;

/* Dropout for the eight heads whose words come together: header of mg_attn_dropout. */
typedef struct dropout_words {
    uint32_t seed[2], step, layer_and_heads; /* key, and the last two words of the counter */
    int32_t limit;                           /* halves below are dropped */
    float kept;                              /* what the rest is multiplied by */
} dropout_words;

/* Of listed pairs. */
typedef struct dropout_list {
    dropout_words words;
    int32_t count;                  /* up to NEAR_BATCH */
    const uint32_t *queries, *keys; /* [NEAR_BATCH] ids of each pair's tokens */
    float *keep;                    /* out: [8][NEAR_BATCH] */
} dropout_list;

/* Of a tile. */
typedef struct dropout_tile {
    dropout_words words;
    const uint32_t *lanes, *rows; /* [64] ids of the tokens in the lanes, and of the others */
    int keys_in_lanes;
    float *keep; /* out: [8][64][64], lanes last */
} dropout_tile;

struct bf16_tile;
struct bf16_gradient_tile;

typedef struct attn_backend {
    const char *name;
    int (*supported)(void);
    int32_t lookup; /* tables of up to 0, 16 or 32 entries are looked up in registers; larger ones make a BIAS_TILE */
    int log2_scores; /* `forward` and `backward`, or the paired ones, want scores times log2 e where biases allow it */
    void (*forward)(const forward_tile *);
    /* Lookups of `forward` want codes by four: turns the codes of a tile, query-major in rows `stride` apart. NULL:
       they are lanes last. */
    void (*turn_codes)(uint8_t *out, const uint8_t *in, int64_t stride);
    /* Calls in bf16, of amx.h; NULL: as in fp32. Tiles are worked on between begin and end. */
    void (*bf16)(const struct bf16_tile *);
    void (*bf16_backward)(const struct bf16_gradient_tile *);
    void (*bf16_order_codes)(uint8_t *codes);
    void (*bf16_begin)(void);
    void (*bf16_end)(void);
    void (*backward)(const backward_tile *);
    /* Of tokens in words of two bf16 (paired.c), their sums in fp32; NULL: none. */
    void (*paired_forward)(const forward_tile *);
    void (*paired_backward)(const backward_tile *);
    void (*table)(const table_tile *);
    void (*dropout)(const dropout_tile *);
    /* Codes of a stored tile of bit planes (attn.h). */
    void (*expand_planes)(uint8_t out[PAIRS], const uint64_t *planes, int count);
    void (*near_forward)(const near_list *);
    void (*near_backward)(const near_list *);
    void (*near_delta)(const near_delta *);
    void (*near_add)(const near_sums *);
    void (*near_dropout)(const dropout_list *);
    /* A backend that does without tiles and without workspace. */
    int (*whole_forward)(const mg_attn_plan *, const mg_attn_call *);
    int (*whole_backward)(const mg_attn_plan *, const mg_attn_call *);
} attn_backend;

/* NULL: the best this processor runs, or the one that MEGAGRAPH_ATTN_BACKEND names. NULL on error, with the line set.
 */
const attn_backend *mg_attn_backend_chosen(void);

/* Whether instructions of 512 bits take pipes of 256 in two halves, as Zen 4 says of itself: then those of 256 bits may be
   as fast, and waste less. */
int mg_attn_half_pipes(void);

/* A tile where a token is not finite and some pairs are hidden. Pairs of such tokens that are seen are added one by one
   in plain C, hidden ones are passed over, where a kernel would multiply them by 0; for the kernel those tokens are
   zero and hidden, so that everybody else's results are the same bits as if they were finite. The bias is a BIAS_TILE,
   and is changed. `room` has mg_attn_careful_floats(). */
int64_t mg_attn_careful_floats(int32_t dim, int32_t value_dim, int32_t row);
void mg_attn_careful_forward(const forward_tile *t, float *bias, float *room, void (*kernel)(const forward_tile *));
void mg_attn_careful_backward(const backward_tile *t, float *bias, float *room, void (*kernel)(const backward_tile *));

#endif
