/* Calls in bf16 on processors with matrix tiles (AMX): what kernels and drivers share.
 *
 * A tile of the plan is cut into four groups of 16 queries. Products take bf16 and sum in fp32, and those of q and k
 * are exact: the scale is applied to the scores. Probabilities are given to the second product as two numbers in bf16
 * whose sum has 16 bits. Keys lie in an order that suits the codes as they are stored, four to a word:
 *
 *     key 4 l + r is column l of score tile r                              (codes: a load r bytes further)
 *     k  [steps][4 r][16 pairs of dims][16 l][2]                           steps: of 32 dims, zeros behind
 *     v  [2 halves][value_tiles][16 l][16 dims][keys 4 l + 2 half, and + 1]    value_tiles: of 16 dims
 *
 * Backward takes 32 queries at a time, v for dP as k for S, and P and dS as two numbers as well. Every product has one
 * side as it was packed, and the other as rows of keys in the lanes come, two rows or two keys to a word:
 *
 *     S = q k, dP = dout v                  q, dout [64][steps * 32]
 *     dv += dout P, dk += q dS              dout, q turned: [tiles][2 halves][16 dims][32 queries]; dv, dk [4
 * r][tiles][16 dims][16 l] dq += dS k                            k in pairs, as v in forward; dq [64][tiles * 16]
 */
#ifndef MG_ATTN_AMX_H
#define MG_ATTN_AMX_H
#include "kernel.h"

enum { GROUP = 16, STEP = 32 };

typedef struct bf16_tile {
    int32_t steps, value_tiles;
    int32_t queries;   /* rows in use, 1..64 */
    const uint16_t *q; /* [64][steps * 32], not scaled */
    const uint16_t *k, *v;
    float scale;
    tile_bias bias; /* codes and tile are query-major: [64][stride], [64][64] */
    int64_t codes_stride;
    /* By row: out = sum of 2^(s - maximum) v, sums[16] parts of sum of 2^(s - maximum), s the score times log2 e.
       maximum is -inf at first. */
    float *maximum, *sums; /* [64], [64][16] */
    float *out;            /* [64][value_tiles * 16] */
    void *room;            /* BF16_ROOM bytes */
} bf16_tile;
enum { BF16_ROOM = 4 * 1024 + 4 * 1024 };

typedef struct bf16_gradient_tile {
    int32_t steps, value_steps, tiles, value_tiles; /* of dim and value_dim */
    int32_t queries;                                /* rows in use, 1..64 */
    const uint16_t *q, *dout, *turned_q, *turned_dout;
    const uint16_t *k, *v, *paired_k;
    const float *lse, *delta; /* [64], as in backward_tile */
    float scale;
    tile_bias bias;      /* codes and tile are query-major [64][64], key 4 l + r at 16 r + l */
    float *dq, *dk, *dv; /* NULL: not wanted; scale left out */
    float *ds;           /* out: [2][64][32], keys in that order */
    void *room;          /* BF16_GRADIENT_ROOM bytes */
} bf16_gradient_tile;
enum { BF16_GRADIENT_ROOM = 40 * 1024 };

int mg_attn_amx_supported(void); /* and asks the system for leave, once */
void mg_attn_amx_begin(void);    /* a thread, before its tiles */
void mg_attn_amx_end(void);
void mg_attn_amx_forward(const bf16_tile *t);
void mg_attn_amx_backward(const bf16_gradient_tile *t);
/* Puts key 4 l + r of each row of a tile's codes at 16 r + l. */
void mg_attn_amx_order_codes(uint8_t *codes);

#endif
