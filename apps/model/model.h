/* model.h: the graph transformers of this house, as layers with hand-written gradients.
 *
 * x: [tokens][hidden] fp32. All linear maps are y = x W^T + b with W [out][in] row-major.
 *
 * Embedding     x_i = W f_i + b                              (features, after input dropout)
 *                   + degree[min(degree_i, size-1)] + Wl laplacian_i + Wr random_walk_i;  a virtual token: a learned row
 * Block l       h = norm1(x)                                 (layer norm, epsilon 1e-5: Ba et al. 2016)
 *               x = x + drop(attention(h)) + drop(local(h))  (one of the two may be absent; local is 0 for virtual tokens)
 *               x = x + drop(W2 drop(gelu(W1 norm2(x) + b1)) + b2)       (absent when ffn = 0)
 *   attention   q, k, v = Wqkv h + b  ([3][heads][dim] rows of Wqkv), megagraph/attn.h with scale 1/sqrt(dim), then Wo o + b
 *               bias: table[heads][codes]; edge paths: value(i,j) = mean over the steps s of the path of
 *               path[s][head] . edge_features(step s)        (Graphormer, Ying et al. 2021, section 3.1.3)
 *   local gcn        relu(W sum_j a_ij h_j + b), a = D^-1/2 (A + I) D^-1/2, D_ii = degree_i + 1      (Kipf and Welling 2017);
 *                    A and degree are those of the batch's graph without its self loops
 *         gine       W2 relu(W1 ((1 + eps) h_i + sum_j relu(h_j + We e_ij)) + b1) + b2           (Hu et al. 2020)
 *         gatedgcn   relu(U h_i + sum_j g_ij * V h_j / (sum_j g_ij + 1e-6)),
 *                    g_ij = sigmoid(A h_i + B h_j + We e_ij); [A, B, U, V] = rows of one [4 hidden][hidden] map
 *                                                            (Bresson and Laurent 2017; edge state is not carried)
 *   gains       where desc.gain is not 0: each column of the three parts times a learned gain, before dropout, so that
 *               blocks begin near the identity (LayerScale: Touvron et al. 2021, "Going deeper with image transformers")
 *   gelu        x sigmoid(1.5957691216 (x + 0.044715 x^3))
 * Head          y = norm(x); node level: Wh drop(y_i) + b per token; graph level: the same on the virtual token's row, the mean
 *               or the sum of y over the graph's nodes
 *
 * graphormer: attention over all pairs, no local part (Ying et al. 2021). gt: attention over near pairs, no local part
 * (Dwivedi and Bresson 2021). gps: attention beside a local part (Rampasek et al. 2022). Layer norm in all: no statistic crosses tokens.
 *
 * Parameters are one flat range; a gradient is one of the same shape, added to. Names are those of the checkpoint:
 *   embedding.{input.weight,input.bias,degree,laplacian.weight,random_walk.weight,virtual}
 *   blocks.L.{norm1.weight,norm1.bias,attention.qkv.weight,attention.qkv.bias,attention.out.weight,attention.out.bias,
 *             attention.table,attention.path,local.*,norm2.weight,norm2.bias,ffn.up.weight,ffn.up.bias,ffn.down.weight,
 *             ffn.down.bias,attention.gain,local.gain,ffn.gain}
 *   local.*: gcn weight, bias; gine eps, edge.weight, up.weight, up.bias, down.weight, down.bias;
 *            gatedgcn weight [4 hidden][hidden], bias [4 hidden], edge.weight
 *   head.{norm.weight,norm.bias,weight,bias}
 * Those that would be empty (no features, no edge features, encoding off) are absent.
 *
 * Dropout of hidden values: 16 bits of Philox 4x32-7 below drop = probability * 2^16 (rounded up, at most 2^16 - 1) drop, the rest is
 *   scaled by 2^16 / (2^16 - drop), as in megagraph/attn.h; key = {seed low, seed high ^ 0x9E3779B9},
 *   counter = {token id, column / 8, site, step}, bits = low (column even) or high half of word column % 8 / 2;
 *   site = 16 L + 0 attention, 1 local, 2 inside ffn, 3 after ffn; 0xFFFF0000 input features, 0xFFFF0001 head. A pooled row's
 *   token id is the lowest of the tokens it is made of.
 * Initial values: linear weights uniform in +-sqrt(6 / (in + out)); biases, tables, paths, eps 0; norm weights 1; gains
 *   desc.gain; degree and virtual uniform in +-0.05; drawn by Philox from the seed and the parameter's name, so no other parameter moves them.
 *
 * Sums over tokens (weight gradients) go by fixed chunks of rows, added in order: bitwise equal for any thread count.
 * Status: 0 or negative <errno.h>, with mg_model_last_error().
 */
#ifndef MEGAGRAPH_APPS_MODEL_H
#define MEGAGRAPH_APPS_MODEL_H
#include <megagraph/attn.h>
#include <megagraph/context.h>
#include <megagraph/graph.h>

const char *mg_model_last_error(void);
void mg_model_set_memory_hook(int (*hook)(int64_t bytes)); /* as in megagraph/attn.h */

typedef enum mg_model_kind { MG_MODEL_GRAPHORMER, MG_MODEL_GT, MG_MODEL_GPS } mg_model_kind;
typedef enum mg_model_local { MG_MODEL_LOCAL_NONE, MG_MODEL_LOCAL_GCN, MG_MODEL_LOCAL_GINE, MG_MODEL_LOCAL_GATEDGCN } mg_model_local;
typedef enum mg_model_readout { MG_MODEL_NODES, MG_MODEL_MEAN, MG_MODEL_SUM, MG_MODEL_VIRTUAL } mg_model_readout;
/* HEAD: only the one before the outputs; norm1 and norm2 then are x itself, and have no parameters. */
typedef enum mg_model_norms { MG_MODEL_NORMS_ALL, MG_MODEL_NORMS_HEAD } mg_model_norms;
typedef enum mg_model_loss {
    MG_MODEL_CROSS_ENTROPY, /* outputs = classes, labels */
    MG_MODEL_BINARY,        /* per output, targets 0, 1, NaN */
    MG_MODEL_ABSOLUTE       /* |output - target|, NaN unlabelled */
} mg_model_loss;

typedef struct mg_model_desc {
    mg_model_kind kind;
    int64_t inputs, edge_inputs, outputs; /* feature columns (0: none), edge feature columns, outputs */
    int32_t layers, hidden, heads;        /* hidden a multiple of heads; gps with heads 0 has no attention */
    int64_t ffn;                          /* width inside; 0: no feed-forward part */
    mg_model_local local;                 /* gps only */
    mg_model_readout readout;
    float dropout, attention_dropout, input_dropout;
    int32_t codes;                        /* of the bias table; 0: no table */
    int32_t path_steps;                   /* edge-path encoding: steps of a path, 0: off; needs edge_inputs */
    int32_t degree, laplacian, random_walk; /* sizes of the encodings, 0: off */
    int virtual_token;                    /* the last token of each graph is virtual */
    float gain;                           /* what the gains of a block's parts start as; 0: no gains */
    mg_model_norms norms;                 /* which layer norms there are */
} mg_model_desc;

typedef struct mg_model mg_model;
/* -EINVAL names the field and value. */
int mg_model_create(mg_model **out, const mg_model_desc *desc);
/* Whether backward finds q, k, v as forward left them; or they are made again. */
int mg_model_keeps_keys(mg_model_kind kind);
void mg_model_destroy(mg_model *model);

typedef struct mg_model_parameter {
    const char *name;    /* owned by the model */
    int64_t shape[3];    /* unused: 0 */
    int32_t rank;        /* 1..3 */
    int64_t begin, end;  /* in the flat range */
    int decay;           /* takes weight decay: linear weights only */
} mg_model_parameter;
const mg_model_parameter *mg_model_parameters(const mg_model *model, int64_t *count);
int64_t mg_model_parameter_count(const mg_model *model); /* floats in all */
void mg_model_initialise(const mg_model *model, float *parameters, uint64_t seed);

/* What the model looks at: all borrowed, packed tokens in one order.
 *
 * One graph over many ranks: each rank's batch holds its own rows alone (it may have none), `context` in place of
 * `plan`, and for local parts `halo`: graph has a list per own row, whose columns are the halo's local rows (own ones
 * first, then those of others). Forward and backward are then collective, a rank's outputs are those of its rows, and
 * its gradients are its share: their sum over the ranks is the gradient. Node level, no virtual token, no edge paths. */
typedef struct mg_model_batch {
    int64_t tokens, graphs;
    const int64_t *segments;     /* [graphs + 1] token ranges; one graph: {0, tokens} */
    const uint32_t *ids;         /* [tokens] for dropout */
    const float *features;       /* [tokens][inputs]; rows of virtual tokens are not read, here and in the next three */
    const int32_t *degrees;      /* [tokens] */
    const float *laplacian;      /* [tokens][laplacian] */
    const float *random_walk;    /* [tokens][random_walk] */
    const mg_graph *graph;       /* over tokens, for local parts; virtual tokens have no edges */
    const float *edge_features;  /* [graph->edges][edge_inputs] */
    const mg_attn_plan *plan;    /* over the same tokens; or */
    const mg_attn_context *context;
    mg_attn_halo *halo;          /* NULL: graph's columns are tokens */
    const mg_graph_near *near;   /* edge paths: the plan's near pairs, */
    const mg_graph_paths *paths; /*             and their paths over `graph` (empty for pairs with a virtual token) */
} mg_model_batch;

/* Activations of one batch. Made for a batch's sizes; may be used for any batch that is not larger (tokens, graphs,
   edges, near pairs, rows of others). O(layers x tokens x hidden); training 0 keeps only what a forward needs, the same
   for any number of layers. A step with more threads, or a plan that needs more workspace, than at create makes the pass
   grow. A graph is known by its address and hash: its transposed lists are made once. */
typedef struct mg_model_pass mg_model_pass;
int mg_model_pass_create(mg_model_pass **out, const mg_model *model, const mg_model_batch *largest, int training);
void mg_model_pass_destroy(mg_model_pass *pass);

typedef struct mg_model_step {
    int training;   /* dropout on */
    uint64_t seed;
    uint32_t step;
    int threads;    /* 0: OpenMP's default */
} mg_model_step;

/* outputs: [rows][outputs], rows = tokens (node level) or graphs. */
int mg_model_forward(const mg_model *model, const float *parameters, mg_model_pass *pass, const mg_model_batch *batch,
                     const mg_model_step *step, float *outputs);
/* Adds to gradients. After a forward with training on the same pass, batch and step. */
int mg_model_backward(const mg_model *model, const float *parameters, float *gradients, mg_model_pass *pass,
                      const mg_model_batch *batch, const mg_model_step *step, const float *doutputs);
/* [tokens][hidden] after the last norm, valid until the next forward (graph level: what the readout pools). */
const float *mg_model_embeddings(const mg_model_pass *pass);
/* Seconds spent in attention, local parts, dense products, the rest, since create: for logs. */
typedef struct mg_model_times { double attention, local, dense, other; } mg_model_times;
mg_model_times mg_model_pass_times(const mg_model_pass *pass);

/* Loss as a sum, and its gradient times `scale` (1 / the batch's global weight). rows [count]: output rows that count, NULL: all
   `count` rows. labels or targets are indexed by output row. Terms with label -1 or NaN are left out. *weight: sum of the
   class weights (or number of terms): loss / weight is the mean. fp64 sums in fixed order, on the caller's thread.
   class_weights: [outputs] by label for cross entropy, [outputs][2] by target 0 and 1 for binary. doutputs may be NULL; its
   rows that do not count are left alone, so zero them before the first step. */
int mg_model_loss_sum(double *loss, double *weight, float *doutputs, const mg_model *model, mg_model_loss kind,
                      const float *outputs, const int64_t *rows, int64_t count, const int32_t *labels, const float *targets,
                      const float *class_weights, double scale);
/* The weight alone, without outputs: needed before the gradient's scale is known. */
double mg_model_loss_weight(const mg_model *model, mg_model_loss kind, const int64_t *rows, int64_t count,
                            const int32_t *labels, const float *targets, const float *class_weights);
#endif
