/* prepare.h: a dataset cut into units, each with all that the model looks at. A unit is one of
 *
 *     the whole graph   its nodes in an order that keeps near pairs together (mg_graph_order); with many ranks, this
 *                       rank's rows of it (shard.h)
 *     a cluster         one of train.clusters parts, in such an order
 *     a pack of graphs  train.batch_graphs of them, made when needed and given back after
 *
 * Rows of a unit's outputs know their item (node or graph of the dataset), so every result comes out in the input's
 * order.
 */
#ifndef MEGAGRAPH_APPS_PREPARE_H
#define MEGAGRAPH_APPS_PREPARE_H
#include <megagraph/dataset.h>

#include "encode.h"
#include "model.h"

typedef struct mg_shard mg_shard;

typedef struct mg_unit {
    mg_dataset_batch *batch; /* or */
    mg_shard *shard;
    mg_model_batch view; /* what the model is given */
    int64_t rows;        /* of the outputs */
    int64_t *row_items;  /* [rows] item, -1 for a virtual token */
    mg_attn_plan *plan;  /* all below are owned; NULL where not used */
    mg_attn_tiles tile_fields;
    mg_graph_near *near;
    mg_graph_paths *paths;
    mg_graph_tiles *tiles;
    mg_graph_stream *stream;
    int64_t stream_begin; /* the row that is its first query */
    uint8_t *dense;
    float *features, *laplacian, *random_walk, *edge_features;
    int32_t *degrees;
} mg_unit;

typedef struct mg_units {
    const mg_dataset *data; /* borrowed */
    mg_config config;
    mg_comm *comm;          /* NULL: one rank */
    mg_encodings encodings; /* packs only, once the units are made */
    int64_t fixed_count;    /* 0: packs of graphs */
    mg_unit **fixed;        /* [fixed_count] */
    double seconds;         /* it took */
} mg_units;

/* config is resolved; its attention.bias becomes the storage that was chosen, likewise parallel.context_method. Says
 * what is not seen (edges between clusters). Collective over the cache's ranks. */
int mg_units_create(mg_units **out, const mg_dataset *data, mg_config *config, mg_cache *cache);
void mg_units_destroy(mg_units *units);
/* Fixed units have copies of all rows: gives back the dataset's own features, which are then gone from it. */
void mg_units_own_features(const mg_units *units, mg_dataset *data);

/* For shard.c. */
void mg_unit_destroy(mg_unit *unit);
/* Rows `nodes` (-1: zeros) of the features and encodings, and degrees. */
int mg_unit_gather(mg_unit *unit, const mg_units *units, const int64_t *nodes, int64_t count);

/* The units of one pass over the data, in order. */
typedef struct mg_epoch {
    const mg_units *units;
    int64_t count;
    int64_t *order; /* fixed units: [count]; packs: graphs [graphs] */
    int64_t graphs, per_unit;
} mg_epoch;
/* graphs [count]: those to pack (NULL: all); fixed units come all. shuffle: by seed and number, else in order. */
int mg_epoch_create(mg_epoch *epoch, const mg_units *units, const int64_t *graphs, int64_t count, int shuffle,
                    uint64_t seed, int64_t number);
void mg_epoch_clear(mg_epoch *epoch);
/* Unit k; give it back with mg_epoch_return. */
int mg_epoch_take(mg_unit **out, const mg_epoch *epoch, int64_t k);
void mg_epoch_return(const mg_epoch *epoch, mg_unit *unit);
/* Items of unit k without making it: calls visit(context, item) for each. */
void mg_epoch_items(const mg_epoch *epoch, int64_t k, void (*visit)(void *context, int64_t item), void *context);

/* The model that a resolved configuration asks for. */
mg_model_desc mg_prepare_model(const mg_config *config, int64_t inputs, int64_t edge_inputs, int64_t outputs);
#endif
