/* What one thread does to a few rows. The frame around it (threads, chunks, sums over chunks) is in the layers' files;
 * these are compiled once per instruction set, and a model takes the best table its processor runs.
 *
 * Rows are contiguous unless a stride is given; "added" means that a result is added to what is there. */
#ifndef MG_MODEL_KERNELS_H
#define MG_MODEL_KERNELS_H
#include <stdint.h>

/* Dropout of hidden values as model.h defines it. */
typedef struct mg_model_mask {
    uint32_t threshold; /* 16 bits below drop; 0: nothing drops */
    float scale;        /* of what stays */
    uint32_t key[2], site, step;
} mg_model_mask;

/* A list of neighbours per row, either the graph's rows or its transposed ones. */
typedef struct mg_model_lists {
    int64_t rows;
    const int64_t *starts; /* [rows + 1] */
    const int32_t *others; /* [entries] the token at the other end */
    const int64_t *edges;  /* [entries] row of edge_features; NULL: the entry's own index */
    const float *features; /* [edges][features_count]; NULL: none */
    int64_t feature_count;
    const float *weight; /* [feature_count][columns]: We transposed */
} mg_model_lists;

typedef struct mg_model_row_kernels {
    /* Layer norm of each row, epsilon 1e-5. */
    void (*norm)(float *y, const float *x, const float *weight, const float *bias, int64_t rows, int64_t columns);
    /* dx, dweight and dbias added; y = norm(x) is not needed. */
    void (*norm_backward)(float *dx, float *dweight, float *dbias, const float *dy, const float *x, const float *weight,
                          int64_t rows, int64_t columns);

    void (*fill)(float *y, const float *bias, int64_t rows, int64_t columns);        /* every row = bias; NULL: 0 */
    void (*add)(float *y, const float *x, int64_t count);                            /* y += x */
    void (*add_scaled)(float *y, const float *x, float scale, int64_t count);        /* y += scale x */
    void (*column_sums)(float *sums, const float *x, int64_t rows, int64_t columns); /* added */
    void (*gain)(float *y, const float *gain, int64_t rows, int64_t columns);        /* y_i = gain * y_i */
    /* dy becomes that of the rows y before their gain; dgain added. */
    void (*gain_backward)(float *dy, float *dgain, const float *y, const float *gain, int64_t rows, int64_t columns);

    void (*gelu)(float *y, const float *x, int64_t count);
    void (*gelu_backward)(float *dy, const float *x, int64_t count);          /* dy becomes dx */
    void (*relu)(float *y, uint8_t *positive, int64_t count);                 /* in place; positive may be NULL */
    void (*relu_backward)(float *dy, const uint8_t *positive, int64_t count); /* dy becomes dx */
    void (*relu_backward_by)(float *dy, const float *y, int64_t count);       /* y: what relu gave */

    /* In place: columns [first, first + columns) of rows with these ids; first a multiple of 8. */
    void (*dropout)(float *y, const uint32_t *ids, int64_t rows, int64_t first, int64_t columns,
                    const mg_model_mask *mask);

    /* Softmax of one row into p (fp32); returns log(sum exp(x - max)), and max in *most. */
    float (*softmax)(float *p, float *most, const float *x, int64_t count);
    /* p = 1 / (1 + exp(-x)) */
    void (*logistic)(float *p, const float *x, int64_t count);
} mg_model_row_kernels;

/* Rows [begin, end) of lists; x, y, ... [tokens][columns]. */
typedef struct mg_model_list_kernels {
    /* y_i = r_i (r_i x_i + sum of r_j x_j over j in list i, j != i) */
    void (*gcn)(float *y, const float *x, const float *roots, const mg_model_lists *lists, int64_t begin, int64_t end,
                int64_t columns);
    /* u_i = self h_i + sum of relu(h_j + We e_ij) */
    void (*gine)(float *u, const float *h, float self, const mg_model_lists *lists, int64_t begin, int64_t end,
                 int64_t columns);
    /* For the transposed lists: dh_j = self du_j + sum of du_i where h_j + We e_ij > 0; dweight
       [feature_count][columns] added; returns the sum of h_j . du_j. */
    float (*gine_backward)(float *dh, float *dweight, const float *du, const float *h, float self,
                           const mg_model_lists *lists, int64_t begin, int64_t end, int64_t columns);
    /* abuv: [tokens][4 columns]. y_i = U_i + sum g V_j / (sum g + 1e-6), not yet relu'd. */
    void (*gated)(float *y, const float *abuv, const mg_model_lists *lists, int64_t begin, int64_t end,
                  int64_t columns);
    /* Rows i: from dy the parts dA_i and dU_i of dabuv; w_i = dy_i / (sum g + 1e-6) and q_i = the quotient above. */
    void (*gated_backward_rows)(float *dabuv, float *w, float *q, const float *dy, const float *abuv,
                                const mg_model_lists *lists, int64_t begin, int64_t end, int64_t columns);
    /* Transposed lists, rows j: the parts dB_j and dV_j; dweight added. */
    void (*gated_backward_columns)(float *dabuv, float *dweight, const float *w, const float *q, const float *abuv,
                                   const mg_model_lists *lists, int64_t begin, int64_t end, int64_t columns);
} mg_model_list_kernels;

/* Between the products of attention elsewhere (model_baseline.h), for the pairs of one query. table: 256 floats at
 * least. */
typedef struct mg_model_pair_kernels {
    void (*bias)(float *b, const uint8_t *codes, const float *table, int32_t code_count, int64_t count);
    void (*softmax_biased)(float *s, const float *bias, int64_t count); /* of s + bias, in place */
    void (*softmax_coded)(float *s, const uint8_t *codes, const float *table, int32_t code_count, int64_t count);
    void (*score_gradient)(float *ds, const float *t, const float *p, float d, int64_t count); /* p (t - d) */
    /* sums[code] += t */
    void (*table_gradient)(float *sums, const float *t, const uint8_t *codes, int32_t code_count, int64_t count);
    float (*dot)(const float *a, const float *b, int64_t count);
} mg_model_pair_kernels;

/* Over edges (model_baseline.h): a row is heads x dim floats, heads side by side; weights are [edges][heads]. rows: which
 * row of the others an edge has; NULL: the edge's own number. past: what is written is not read soon, and goes past the
 * caches. */
typedef struct mg_model_edge_kernels {
    void (*gather)(float *to, const float *from, int64_t stride, const int32_t *rows, int64_t count, int64_t columns,
                   int past);
    void (*multiply)(float *y, const float *a, const float *b, int64_t count, int past);
    void (*group_sums)(float *y, const float *x, int64_t groups, int32_t dim); /* of dim floats each */
    /* s = scale s + table[code], table [codes][heads] */
    void (*add_bias)(float *s, const uint8_t *codes, const float *table, float scale, int64_t count, int32_t heads);
    void (*softmax)(float *p, int64_t count, int32_t heads);                          /* of one query's edges */
    void (*softmax_backward)(float *dp, const float *p, int64_t count, int32_t heads); /* dp becomes ds */
    void (*table_sums)(float *sums, const float *ds, const uint8_t *codes, int64_t count, int32_t heads); /* added */
    /* y_e = scale w_e x_e, head by head */
    void (*scale_groups)(float *y, const float *x, const float *w, float scale, int64_t count, int32_t heads,
                         int32_t dim, int past);
    /* y = sum of w[pairs_e] x[rows_e], head by head; w NULL: of x */
    void (*sum_rows)(float *y, const float *x, int64_t stride, const int32_t *rows, const float *w,
                     const int32_t *pairs, int64_t count, int32_t heads, int32_t dim);
    /* s [count][heads] = q . k[rows_e], head by head */
    void (*row_scores)(float *s, const float *q, const float *k, int64_t stride, const int32_t *rows, int64_t count,
                       int32_t heads, int32_t dim);
} mg_model_edge_kernels;

/* One instruction set's. */
typedef struct mg_model_kernels {
    const char *name;
    const mg_model_row_kernels *rows;
    const mg_model_list_kernels *lists;
    const mg_model_pair_kernels *pairs;
    const mg_model_edge_kernels *edges;
} mg_model_kernels;

/* The tables this processor runs, best first; *count of them. */
const mg_model_kernels *mg_model_kernels_list(int *count);

#define MG_MODEL_KERNELS(isa)                                                                                          \
    extern const mg_model_row_kernels mg_model_rows_##isa;                                                             \
    extern const mg_model_list_kernels mg_model_lists_##isa;                                                           \
    extern const mg_model_pair_kernels mg_model_pairs_##isa;                                                           \
    extern const mg_model_edge_kernels mg_model_edges_##isa
MG_MODEL_KERNELS(portable);
MG_MODEL_KERNELS(v3);
MG_MODEL_KERNELS(v4);
#endif
