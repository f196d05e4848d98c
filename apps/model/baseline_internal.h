/* What the baselines' files share. */
#ifndef MG_MODEL_BASELINE_INTERNAL_H
#define MG_MODEL_BASELINE_INTERNAL_H
#include "model_baseline.h"
#include "internal.h"

enum {
    BASELINE_ROWS = 64,  /* of dense_rows: scores of so many rows at a time */
    BASELINE_PARTS = 32, /* of edges: runs of rows of about equal pairs, each with its sums for the table's gradient */
    BASELINE_CACHE = 1 << 20, /* bytes from which an edge buffer is written past the caches */
    TABLE_ENTRIES = 256       /* kernels read whole registers of them */
};

struct mg_model_baseline {
    mg_model_baseline_kind kind;
    mg_attn_map map;
    int32_t heads, dim, layers;
    int64_t tokens, pairs;
    const mg_model_pair_kernels *pass;
    const mg_model_edge_kernels *edges;
    /* [layers] of P [heads][tokens][tokens]; edge_rows: P [pairs][heads]; edge: q, k, v [pairs][heads][dim], then P */
    float **p;
    /* Of edges: */
    int64_t row_parts[BASELINE_PARTS + 1], key_parts[BASELINE_PARTS + 1];
    int32_t *pair_queries; /* [pairs] edge */
    int64_t *key_starts;   /* [tokens + 1] by key: its pairs, edge_rows: and their queries */
    int32_t *key_pairs, *key_queries;
};

static inline float *head_at(mg_attn_tensor t, int32_t head, int64_t row)
{
    return (float *)t.data + head * t.head_stride + row * t.token_stride;
}

/* Of one head, far pairs hidden where they are masked. */
void mg_model_baseline_table(float table[TABLE_ENTRIES], const mg_model_baseline *b, const mg_attn_call *call,
                             int32_t head);

int mg_model_dense_forward(const mg_model_baseline *b, const mg_attn_call *call);
int mg_model_dense_backward(const mg_model_baseline *b, const mg_attn_call *call);
int mg_model_edge_forward(const mg_model_baseline *b, const mg_attn_call *call);
int mg_model_edge_backward(const mg_model_baseline *b, const mg_attn_call *call);
int mg_model_edge_rows_forward(const mg_model_baseline *b, const mg_attn_call *call);
int mg_model_edge_rows_backward(const mg_model_baseline *b, const mg_attn_call *call);
#endif
