/* What tiles and listed pairs share in backward. */
#ifndef MG_ATTN_BACKWARD_H
#define MG_ATTN_BACKWARD_H
#include "call.h"

#include <stddef.h>

static inline float *part_of(float *array, int64_t unit, int32_t dim)
{
    return array ? array + unit * dim * TILE : NULL;
}

static inline double *sums_of(const call_state *s, int32_t head, int64_t tile_row)
{
    return s->sums + (head * s->sum_rows + tile_row) * s->sum_row;
}

/* --- backward.c --- */
/* Where somebody waits for the gradients of the last keys, from `from` on: dk and dv of these, and of up to a tile's
   before them, come first, then `then`, once, then the rest. Where tiles make them, all come first. */
typedef struct last_keys {
    int64_t from;
    int (*then)(void *context);
    void *context;
} last_keys;
/* As mg_attn_backward, or what `then` returned. last NULL: nobody waits. */
int mg_attn_backward_last_first(const mg_attn_plan *plan, const mg_attn_call *call, const last_keys *last);
typedef enum gradient { GRADIENT_Q, GRADIENT_K, GRADIENT_V } gradient;
/* What tiles give to one token of one head, to a row that ends with zeros. */
void mg_attn_tile_gradient(float *row, const call_state *s, gradient which, int64_t token, int32_t head);
float mg_attn_tile_key_bias(const call_state *s, int64_t key, int32_t head);

/* --- backward_bf16.c --- */
/* One tile, whose dS go to w->ds; 0: all its pairs are hidden. */
int mg_attn_bf16_backward_tile(const call_state *s, const scratch *w, const tile_place *place, int32_t head);

#endif
