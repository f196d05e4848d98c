/* What the layers' files share: where parameters lie, what a pass holds, and the frame that runs chunks of rows.
 *
 * Work on tokens goes by chunks of CHUNK rows, so small that what a chunk needs between two products stays in a core's
 * cache. Sums over tokens go by groups: fixed runs of chunks, each summed in order by one thread into its own partial,
 * the partials added in order. Neither depends on the number of threads. */
#ifndef MG_MODEL_INTERNAL_H
#define MG_MODEL_INTERNAL_H
#include "model.h"
#include "kernels.h"
#include "library.h"

enum {
    CHUNK = 256,      /* rows */
    INPUT_TILE = 512, /* input columns that are dropped out, or whose gradient is made, at a time */
    GROUPS_MOST = 32, /* partials of a sum over tokens, ... */
    GROUPS_LEAST = 8, /* ... where they are large, and then about */
    GROUPS_BYTES = 16 << 20,
    ENTRY_RANGE = 4096, /* rows + entries that one range of a sweep over neighbours takes, at least */
    ENTRY_RANGES = 256,
    PAIR_RANGES = 64 /* of near pairs with edge paths */
};

/* --- parameters: places in the flat range, -1 where absent --- */

typedef struct embedding_places {
    int64_t begin, end; /* of all of them */
    int64_t weight, bias, degree, laplacian, random_walk, virtual_row;
} embedding_places;

typedef struct block_places {
    int64_t begin, rest, end; /* [begin, rest): norm1 and qkv */
    int64_t norm1_weight, norm1_bias, qkv_weight, qkv_bias, out_weight, out_bias, table, path;
    int64_t local_begin, local_end;
    int64_t local_eps, local_weight, local_bias, local_edge; /* gcn and gatedgcn; edge also of gine */
    int64_t local_up_weight, local_up_bias, local_down_weight, local_down_bias;
    int64_t norm2_weight, norm2_bias, up_weight, up_bias, down_weight, down_bias;
    int64_t attention_gain, local_gain, ffn_gain;
} block_places;

typedef struct head_places {
    int64_t begin, end;
    int64_t norm_weight, norm_bias, weight, bias;
} head_places;

struct mg_model {
    mg_model_desc desc;
    const mg_model_row_kernels *rows;
    const mg_model_list_kernels *lists;
    mg_model_parameter *parameters;
    int64_t parameter_count; /* entries of the list */
    int64_t floats;
    char *names;
    embedding_places embedding;
    block_places *blocks; /* [layers] */
    head_places head;
};

/* Writes model->parameters, names and places. */
int mg_model_layout(mg_model *model);

/* --- checks: -EINVAL with the line --- */

int mg_model_check_desc(const mg_model_desc *desc);
int mg_model_check_batch(const mg_model *model, const mg_model_batch *batch);

/* --- the pass --- */

/* What one block keeps until its backward. */
typedef struct block_kept {
    float *x, *next;   /* [tokens][hidden] what came in, what goes out; the same buffer when not training */
    float *middle;     /* [tokens][hidden] after attention and local; NULL: made again */
    float *q;          /* [tokens][hidden]; one buffer for all blocks when the pass makes q, k, v again */
    float *kv;         /* [tokens + fetched][2][hidden]; likewise */
    float *attended;   /* [tokens][hidden] before the output map */
    float *lse;        /* [heads][tokens] */
    float *local;      /* gcn: sums [tokens][hidden]; gine: u [tokens][hidden]; gatedgcn: A, B, U, V
                          [local rows][4 hidden] */
    float *branch;     /* [tokens][hidden] what the local part gave, before its gain; NULL: no gains */
    uint8_t *positive; /* gcn, gatedgcn: [tokens][hidden] where the relu let pass */
} block_kept;

/* The transposed graph, and what gcn divides by; made once per graph. */
typedef struct graph_index {
    const mg_graph *graph; /* that it was made of, */
    uint64_t hash;         /* with this content; NULL: none */
    int transposed;        /* starts, others and edges are filled in */
    int64_t *starts;       /* [local rows + 1] */
    int32_t *others;       /* [edges] rows of the graph that name this column */
    int64_t *edges;        /* [edges] their entries */
    float *roots;          /* [local rows] 1 / sqrt(neighbours + 1) */
} graph_index;

/* One thread's scratch. */
typedef struct scratch {
    float *hidden[4]; /* [CHUNK][hidden] */
    float *inside[2]; /* [CHUNK][ffn] */
    float *input;     /* [CHUNK][INPUT_TILE] */
    double dense_seconds;
    int status; /* of oneDNN, 0 or the first that failed */
} scratch;

struct mg_model_pass {
    const mg_model *model;
    int training;
    int64_t tokens, graphs, edges, pairs; /* largest; */
    int64_t halo, sent;                   /*          rows fetched from and sent to other ranks by local parts */
    int64_t fetched;                      /*          and fetched by attention */
    int threads;
    scratch *scratch; /* [threads] */
    float *scratch_floats;
    block_kept *blocks; /* [layers] */
    int again;          /* middle is not kept and blocks share q and kv: all are made again for backward */
    int qkv_of;         /* the block whose q and kv the shared buffers hold */

    float *last;        /* [tokens][hidden] after the last block */
    float *embeddings;  /* [tokens][hidden] after the last norm */
    float *normal;      /* [local rows][hidden] norm1(x), for local parts; NULL: no local part */
    float *local_out;   /* [tokens][hidden] */
    float *pooled;      /* [graphs][hidden] */
    float *edge_weight; /* [edge_inputs][hidden] We transposed */
    float *path_weight; /* [path_steps][edge_inputs][heads] */
    float *outputs;     /* the caller's, during forward */
    float *values;      /* [heads][pairs] */
    graph_index index;
    float *exchange; /* [sent + halo][hidden] rows on their way; NULL: no other ranks */
    int exchanging;  /* begun and not ended */
    void *workspace; /* of attention */
    int64_t workspace_bytes;

    /* training */
    float *dx;             /* [tokens][hidden] gradient of the current block's output, then input */
    float *dattended;      /* [tokens][hidden] */
    float *dq, *dkv;       /* [tokens][hidden], [tokens + fetched][2][hidden] */
    float *dnormal;        /* [local rows][hidden] from the local part */
    float *local_scratch;  /* gcn, gine: [local rows][hidden]; gatedgcn: [local rows][6 hidden] */
    float *dpooled;        /* [graphs][hidden] */
    float *dtable;         /* [heads][codes] */
    float *dvalues;        /* [heads][pairs] */
    float *path_partials;  /* [PAIR_RANGES][path_steps][edge_inputs][heads] */
    const float *doutputs; /* the caller's, during backward */
    float *partials;       /* a sum's groups, one after the other */
    float *entry_partials; /* [ENTRY_RANGES][entry_floats]: gradients of We, and of eps last */
    int64_t entry_floats;

    mg_model_times times;
    struct owned *owned; /* blocks that destroy releases */
};

/* --- a run: one forward or backward --- */

typedef struct run {
    const mg_model *model;
    const float *parameters;
    float *gradients; /* NULL in forward */
    mg_model_pass *pass;
    const mg_model_batch *batch;
    mg_model_step step;
    int threads;
} run;

int mg_model_pass_reserve_threads(mg_model_pass *pass, int threads); /* their scratch */
/* Partials of a sum whose range has so many floats. */
int64_t mg_model_groups(int64_t floats);

/* The weight or bias at a place; NULL for place -1. */
static inline const float *parameter(const run *r, int64_t place) { return place < 0 ? NULL : r->parameters + place; }

/* Ids of the rows from begin on; NULL where the batch has none (no dropout then). */
static inline const uint32_t *ids_at(const run *r, int64_t begin)
{
    return r->batch->ids ? r->batch->ids + begin : NULL;
}

/* A group's sums: gradients of the range that begins at `begin` in the flat one. */
typedef struct sums {
    float *floats; /* NULL in forward sweeps */
    int64_t begin;
} sums;
static inline float *sum_of(const sums *s, int64_t place) { return place < 0 ? NULL : s->floats + (place - s->begin); }

/* Rows that local parts look at: tokens, then those fetched from other ranks. */
static inline int64_t local_rows(const run *r)
{
    return r->batch->tokens + (r->batch->halo ? mg_attn_halo_rows(r->batch->halo) : 0);
}

/* --- sweep.c: the frame; the only file with threads --- */

int mg_model_threads(int wanted); /* 0: OpenMP's default */
int mg_model_this_thread(void);
void mg_model_work_alone(void); /* inside a region: oneDNN then runs on this thread alone */
double mg_model_seconds(void);

/* One chunk of rows: [begin, begin + rows). */
typedef void chunk_work(const run *r, scratch *s, int64_t layer, const sums *to, int64_t begin, int64_t rows);
/* Runs work on every chunk of `rows` rows, in any order. */
int mg_model_sweep(const run *r, chunk_work *work, int64_t layer, int64_t rows, double *seconds);
/* The same for sums: chunks in groups; adds the groups' sums to the gradients of [begin, end). */
int mg_model_sweep_sums(const run *r, chunk_work *work, int64_t layer, int64_t rows, int64_t begin, int64_t end,
                        double *seconds);

/* Runs work on each of so many ranges. */
typedef void range_work(const run *r, scratch *s, int64_t layer, int64_t range);
void mg_model_sweep_ranges(const run *r, range_work *work, int64_t layer, int64_t ranges);

/* The first graph that ends after a token; its last token is the first virtual one from there on. */
int64_t mg_model_graph_at(const mg_model_batch *batch, int64_t token);
/* Zeroes rows [begin, begin + rows) of y ([rows][columns], y holds row begin first) that are virtual tokens'. */
void mg_model_zero_virtual(const run *r, float *y, int64_t begin, int64_t rows, int64_t columns);

/* A range of rows with about equally many entries; partial: [entry_floats] zeroed, or NULL. */
typedef void entry_work(const run *r, int64_t layer, const mg_model_lists *lists, float *partial, int64_t begin,
                        int64_t end);
/* with_sums: each range has a partial; they are added up, in order, into the first, which stays in
 * pass->entry_partials. */
void mg_model_sweep_entries(const run *r, entry_work *work, int64_t layer, const mg_model_lists *lists, int with_sums,
                            double *seconds);

/* --- linear.c --- */

/* c [m][n] = op(a) op(b) + keep c, row-major; oneDNN on this thread alone. keep: 0 or 1. */
void mg_model_product(scratch *s, char a_transposed, char b_transposed, int64_t m, int64_t n, int64_t k, const float *a,
                      int64_t lda, const float *b, int64_t ldb, float keep, float *c, int64_t ldc);
/* y = x W^T + b */
void mg_model_linear(const run *r, scratch *s, float *y, const float *x, int64_t rows, int64_t weight, int64_t bias,
                     int64_t in, int64_t out);
/* dx = keep dx + dy W */
void mg_model_linear_input(const run *r, scratch *s, float *dx, float keep, const float *dy, int64_t rows,
                           int64_t weight, int64_t in, int64_t out);
/* dW += dy^T x, db += sum dy */
void mg_model_linear_weight(const run *r, scratch *s, const sums *to, const float *dy, const float *x, int64_t rows,
                            int64_t weight, int64_t bias, int64_t in, int64_t out);

/* --- norm.c: at place -1 there is no norm, or no gain, and rows stay as they are --- */

void mg_model_norm(const run *r, float *y, const float *x, int64_t rows, int64_t weight, int64_t bias);
/* dx += */
void mg_model_norm_backward(const run *r, const sums *to, float *dx, const float *dy, const float *x, int64_t rows,
                            int64_t weight, int64_t bias);
void mg_model_gain(const run *r, float *y, int64_t rows, int64_t gain);
/* dy becomes the gradient of y before its gain. */
void mg_model_gain_backward(const run *r, const sums *to, float *dy, const float *y, int64_t rows, int64_t gain);

/* --- dropout.c --- */

enum { SITE_ATTENTION, SITE_LOCAL, SITE_INSIDE, SITE_AFTER, SITE_INPUT = -2, SITE_HEAD = -1 };
/* In place, when this run trains and the probability is not 0; y holds columns [first, first + columns) of rows with
   these ids. site: one of the above; layer only for the first four. */
void mg_model_drop(const run *r, float *y, const uint32_t *ids, int64_t rows, int64_t first, int64_t columns,
                   int64_t layer, int site);
int mg_model_drops(const run *r, int site);

/* --- the layers, forward beside backward --- */

int mg_model_embedding_forward(const run *r); /* to the first block */
int mg_model_embedding_backward(const run *r);

int mg_model_attention_forward(const run *r, int64_t layer);
/* From pass->dattended to pass->dqkv; adds to the gradients of table and path. */
int mg_model_attention_backward(const run *r, int64_t layer);
int mg_model_attention_reserve(const run *r); /* its workspace */
int64_t mg_model_fetched(const mg_model_batch *batch); /* rows that attention fetches from other ranks */
/* edge_paths.c */
void mg_model_path_values(const run *r, int64_t layer);
void mg_model_path_values_backward(const run *r, int64_t layer);

/* index.c: the graph's lists, and transposed. */
int mg_model_index_make(const run *r);
void mg_model_edge_weight_add(const run *r, int64_t layer); /* gradient of We, from pass->entry_partials */
mg_model_lists mg_model_index_rows(const run *r);
mg_model_lists mg_model_index_columns(const run *r);

/* exchange.c: rows of other ranks, and their gradients' way back; nothing where the batch has no halo. What was begun
   is ended, also after a failure, which `status` hands on. */
int mg_model_exchange_roots(const run *r);
int mg_model_exchange_fetch_begin(const run *r, int64_t layer); /* of pass->normal */
int mg_model_exchange_fetch_end(const run *r, int64_t layer, int status);
int mg_model_exchange_return_begin(const run *r, int64_t layer); /* of pass->dnormal */
int mg_model_exchange_return_end(const run *r, int64_t layer, int status);

/* local.c: pass->normal to pass->local_out, 0 for virtual tokens; from pass->dx (its masked part) to pass->dnormal. */
int mg_model_local_forward(const run *r, int64_t layer);
int mg_model_local_backward(const run *r, int64_t layer);
int mg_model_local_reads_normal(const run *r);
void mg_model_local_zero_halo(const run *r, float *y, int64_t columns);
/* One of local_*.c each; dy: gradient of local_out is pass->local_out itself, masked, in backward. */
typedef struct local_kind {
    int (*forward)(const run *r, int64_t layer);
    int (*backward)(const run *r, int64_t layer);
    int reads_normal; /* backward does */
} local_kind;
extern const local_kind mg_model_gcn, mg_model_gine, mg_model_gatedgcn;

int mg_model_block_forward(const run *r, int64_t layer);
/* pass->dx: from the gradient of what came out to that of what came in. */
int mg_model_block_backward(const run *r, int64_t layer);

/* ffn.c: y (scratch) = the part before its last dropout, of `rows` rows of middle; dy likewise. */
void mg_model_ffn_rows(const run *r, scratch *s, int64_t layer, float *y, const float *middle, int64_t begin,
                       int64_t rows);
void mg_model_ffn_rows_backward(const run *r, scratch *s, int64_t layer, const sums *to, float *dmiddle,
                                const float *dy, const float *middle, int64_t begin, int64_t rows);

int mg_model_head_forward(const run *r, float *outputs);
/* To pass->dx. */
int mg_model_head_backward(const run *r, const float *doutputs);

#endif
