/* Calls whose pairs are all gathered. */
#ifndef MG_ATTN_NEAR_CALL_H
#define MG_ATTN_NEAR_CALL_H
#include "call.h"

void mg_attn_near_call_forward(call_state *s);
void mg_attn_near_call_backward(call_state *s); /* all but storing the table's gradient */

#endif
