/* Checks the arguments of a call, for every backend. */
#ifndef MG_ATTN_CHECK_H
#define MG_ATTN_CHECK_H
#include "megagraph/attn.h"

/* Copies call to *normal with value_dim filled in. 0, or -EINVAL with the error line written. Workspace is not looked
   at: the reference needs none. */
int mg_attn_check_call(mg_attn_call *normal, const mg_attn_plan *plan, const mg_attn_call *call, int backward);

#endif
