/* What the two halves of backward share. */
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

/* --- gathered.c --- */
/* P and dS of the gathered pairs of heads [head_begin, head_end), at most HEAD_GROUP, and their share of dq, of the
   table's and of the values' gradients. */
void mg_attn_gathered_rows(call_state *s, int32_t head_begin, int32_t head_end);
/* Adds their share of one key: to dk [row], dv [value_row], dkey_bias. Rows that are not wanted are NULL. */
void mg_attn_gathered_key(const call_state *s, float *dk, float *dv, float *dkey_bias, int64_t key, int32_t head);

#endif
