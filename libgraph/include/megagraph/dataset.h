/* megagraph/dataset.h: datasets from the files people have, and batches of them.
 *
 *     mg_dataset *data;
 *     if (mg_dataset_open(&data, "cora.npz", &(mg_dataset_desc){0}))
 *         puts(mg_dataset_last_error());
 *     printf("%s", data->story);                   // what was read: nodes, edges, features, classes, splits, mirrored, dropped
 *
 * Formats, told apart by content and name: .npz (heterophilous-graphs and gnn-benchmark members), OGB raw folders, TU
 * folders, METIS .graph, Matrix Market .mtx, edge lists and CSV (.edges, .csv, .tsv, .txt).
 * Every reader names file, line or member, and value in its error, survives hostile input, and tells in `story` what it did.
 * Status, memory, threads: as megagraph/graph.h; mg_dataset_last_error() is mg_graph_last_error().
 */
#ifndef MEGAGRAPH_DATASET_H
#define MEGAGRAPH_DATASET_H
#include <megagraph/graph.h>
#ifdef __cplusplus
extern "C" {
#endif

#define mg_dataset_last_error mg_graph_last_error

typedef enum mg_dataset_level { MG_DATASET_NODE, MG_DATASET_GRAPH } mg_dataset_level; /* what has a target */

typedef enum mg_dataset_task {
    MG_DATASET_NONE,           /* no targets */
    MG_DATASET_CLASSIFICATION, /* labels */
    MG_DATASET_REGRESSION,     /* targets, target_count >= 1 */
    MG_DATASET_MULTILABEL      /* targets 0, 1 or NaN (unlabelled), target_count >= 1 */
} mg_dataset_task;

enum { MG_DATASET_UNUSED, MG_DATASET_TRAIN, MG_DATASET_VALIDATION, MG_DATASET_TEST }; /* values of a split */

/* Everything of a dataset; all graphs as one disjoint union. Items are nodes or graphs, by level. */
typedef struct mg_dataset {
    char *name;                /* file or folder without its ending */
    mg_graph *graph;           /* undirected unless asked; many graphs: their union, node ranges by segments */
    int64_t graphs;
    int64_t *segments;         /* [graphs + 1] */
    int64_t feature_count;     /* 0: none */
    float *features;           /* [nodes][feature_count] or NULL */
    int64_t edge_feature_count;
    float *edge_features;      /* [graph->edges][edge_feature_count] in the order of graph->columns, or NULL */

    mg_dataset_level level;
    mg_dataset_task task;
    int64_t items;
    int64_t classes;           /* classification; else 0 */
    char **class_names;        /* [classes] as the file wrote them, for predictions; ascending (numbers as numbers) */
    int32_t *labels;           /* classification: [items] 0..classes-1, -1 unlabelled; else NULL */
    int64_t target_count;      /* regression, multilabel; else 0 */
    float *targets;            /* [items][target_count], NaN unlabelled; else NULL */

    int64_t splits;            /* 0: the file has none: mg_dataset_split() makes one */
    uint8_t *split;            /* [splits][items] MG_DATASET_TRAIN, ... */
    char **node_names;         /* [nodes] ids of edge lists with string ids; else NULL */
    char *story;               /* lines of text, each ended by \n */
} mg_dataset;

typedef struct mg_dataset_desc {
    int directed;         /* keep edges as given */
    const char *format;   /* NULL: told from the content; else npz, ogb, tu, metis, mtx, edges */
    mg_dataset_task task; /* NONE: told from the labels (integers: classification; several columns: multilabel when all are
                             0, 1 or NaN, else regression; fractions: regression) */
    const char *labels;   /* edge lists, METIS, mtx: CSV "id,label" of node labels, or NULL. Ids are those of the file:
                             words of an edge list, numbers from 1 of METIS and mtx. Several columns: targets */
    const char *features; /* likewise CSV "id,value,value,..." */
} mg_dataset_desc;

MG_GRAPH_API int mg_dataset_open(mg_dataset **out, const char *path, const mg_dataset_desc *desc);
MG_GRAPH_API void mg_dataset_close(mg_dataset *data);

/* Writes npz (heterophilous-graphs members; graph-level sets add graph_segments, graph_labels or graph_targets; all that a
   dataset holds comes back from open). Written aside and renamed. -ENOSPC and the like name the path. */
MG_GRAPH_API int mg_dataset_write_npz(const mg_dataset *data, const char *path);
/* One .npy of fp32 (fortran_order False), for predictions and embeddings. */
MG_GRAPH_API int mg_dataset_write_npy(const char *path, const float *values, int64_t rows, int64_t columns);

/* A dataset in memory from parts that the caller made, for generators, importers and tests; arrays are copied, NULL and 0
   are "none"; checked as a file would be. story NULL: made here. */
MG_GRAPH_API int mg_dataset_create(mg_dataset **out, const mg_dataset *parts);

/* Debian's archive as a dataset: packages and what they depend on (Depends, Pre-Depends, Recommends... as in README), features
   hashed words of the description, label the section, seeded 60/20/20 split. dump: text of `apt-cache dumpavail`. */
MG_GRAPH_API int mg_dataset_import_debian(mg_dataset **out, const char *dump, int64_t bytes);
/* Stochastic block model with noisy class features, labels = blocks, seeded 60/20/20 split. */
MG_GRAPH_API int mg_dataset_generate_sbm(mg_dataset **out, int64_t nodes, int blocks, double degree_inside,
                                         double degree_across, int64_t feature_count, double noise, uint64_t seed);
/* Small graphs to classify or regress: cycles against paths and trees of the same sizes, with degree features. */
MG_GRAPH_API int mg_dataset_generate_graphs(mg_dataset **out, int64_t graphs, int64_t mean_nodes, uint64_t seed);

/* split_out[items]: row `split` of the file's; where it has none: 60/20/20 by seed, stratified by label, labelled items only.
   folds > 0: fold `split` of `folds` (stratified, by seed): its items are the test set, a tenth of the rest is validation. */
MG_GRAPH_API int mg_dataset_split(uint8_t *split_out, const mg_dataset *data, int64_t split, int folds, uint64_t seed);

/* --- batches --- */

/* Some graphs packed into one token range. Token order: the nodes of graph 0 in order, then, with virtual tokens, its virtual
   token, then graph 1, ... */
typedef struct mg_dataset_batch {
    int64_t graphs, tokens, edges;
    int64_t *segments;      /* [graphs + 1] token ranges */
    int64_t *items;         /* [graphs] graph index in the dataset; clusters: NULL */
    int64_t *nodes;         /* [tokens] node index in the dataset, -1 for a virtual token */
    uint32_t *ids;          /* [tokens] identity for dropout: node index, or dataset nodes + graph index for a virtual token */
    mg_graph *graph;        /* CSR over tokens; virtual tokens have no edges in it */
    int64_t *dataset_edges; /* [edges] entry of the dataset's graph->columns that each edge is (for edge features) */
} mg_dataset_batch;

/* Packs graphs items[count] in that order. */
MG_GRAPH_API int mg_dataset_pack(mg_dataset_batch **out, const mg_dataset *data, const int64_t *items, int64_t count,
                                 int virtual_token);
/* Subgraph induced by nodes[count] of a one-graph dataset, as a batch (a cluster; all nodes in some order: the whole graph). */
MG_GRAPH_API int mg_dataset_pack_nodes(mg_dataset_batch **out, const mg_dataset *data, const int32_t *nodes,
                                       int64_t count);
MG_GRAPH_API void mg_dataset_batch_destroy(mg_dataset_batch *batch);

/* Near pairs of a batch for attention: those of batch->graph within D hops; with virtual tokens also all pairs between a
   virtual token and its graph's tokens, with code D+2 (the virtual token with itself: 0). */
MG_GRAPH_API int mg_dataset_batch_near(mg_graph_near **out, const mg_dataset_batch *batch, int hops);

/* The order of one epoch over items[count]: a seeded shuffle into out[count]. */
MG_GRAPH_API void mg_dataset_shuffle(int64_t *out, const int64_t *items, int64_t count, uint64_t seed, int64_t epoch);

#ifdef __cplusplus
}
#endif
#endif
