/* What the two ways over edges share: the table by code, [codes][heads], and its gradient by parts of the pairs. */
#ifndef MG_MODEL_BASELINE_EDGE_H
#define MG_MODEL_BASELINE_EDGE_H
#include "baseline_internal.h"

/* table: [codes][heads] */
void mg_model_edge_table(float *table, const mg_model_baseline *b, const mg_attn_call *call);
/* parts: [BASELINE_PARTS][TABLE_ENTRIES][heads]; those of the part are set. */
void mg_model_edge_part_table(const mg_model_baseline *b, float *parts, int part, const float *ds, const uint8_t *codes,
                              int64_t count);
void mg_model_edge_table_gradient(float *dtable, const mg_model_baseline *b, const float *parts);
#endif
