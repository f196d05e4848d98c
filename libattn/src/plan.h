/* What a plan holds: the map with every default filled in, and its tiles. */
#ifndef MG_ATTN_PLAN_H
#define MG_ATTN_PLAN_H
#include "megagraph/attn.h"

struct mg_attn_plan {
    /* A copy with defaults filled in: codes >= 1; 0 <= query_begin <= query_end <= queries and the same for keys;
       segments 0 and both arrays NULL, or both arrays set (owned by the plan); `tiles` points to a copy of the struct
       (arrays borrowed); stream_rows > 0. near_codes may be NULL: all 0. */
    mg_attn_map map;
};

#endif
