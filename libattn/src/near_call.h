/* The part of a call that goes by listed pairs: all of it, or what its tiles leave out. */
#ifndef MG_ATTN_NEAR_CALL_H
#define MG_ATTN_NEAR_CALL_H
#include "backward.h"

/* What kernels want to be known before. */
void mg_attn_near_begin(call_state *s);
/* To out and lse; where the call has tiles, to s->part and s->part_lse, which tiles go on from. */
void mg_attn_near_forward(call_state *s);
/* To dq, dk, dv, dvalues, dkey_bias and the table's sums. Where the call has tiles, theirs, which
   mg_attn_tile_gradients gives, are added. 0, or what last->then returned. */
int mg_attn_near_backward(call_state *s, const last_keys *last);

#endif
