/* What the baselines' files share. */
#ifndef MG_MODEL_BASELINE_INTERNAL_H
#define MG_MODEL_BASELINE_INTERNAL_H
#include "model_baseline.h"
#include "internal.h"

enum {
    BASELINE_ROWS = 64,  /* of dense_rows: scores of so many rows at a time */
    BASELINE_PARTS = 16, /* of edge: runs of rows, each with its own sums for the table's gradient */
    TABLE_ENTRIES = 256  /* kernels read whole registers of them */
};

struct mg_model_baseline {
    mg_model_baseline_kind kind;
    mg_attn_map map;
    int32_t heads, layers;
    int64_t tokens, pairs;
    const mg_model_pair_kernels *pass;
    const mg_model_row_kernels *rows;
    float **p; /* [layers] of [heads][tokens][tokens], edge [pairs][heads] */
    /* edge, by key: the queries that see it, and their pairs */
    int64_t *key_starts; /* [tokens + 1] */
    int32_t *key_queries;
    int64_t *key_pairs;
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
#endif
