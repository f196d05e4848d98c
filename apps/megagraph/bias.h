/* bias.h: how the distance codes of a unit are held, and the attention plan over them. */
#ifndef MEGAGRAPH_APPS_BIAS_H
#define MEGAGRAPH_APPS_BIAS_H
#include "prepare.h"

/* Codes of the bias table: 0..D, far, and with a virtual token its own; 0: distance is off. */
int32_t mg_bias_codes(const mg_config *config);

/* The storage of config->attention.bias; where that is auto, the one that fits by bytes:
 *     near    while far pairs are masked or near pairs are fewer than a twentieth, or edge paths need it
 *     dense   while N x N bytes are at most 64 MiB
 *     tiles   while they take at most 1 GiB, which mg_bias_plan finds out; it goes on to
 *     stream
 * -ENOMEM with the bytes where near pairs or dense codes cannot fit the memory limit or the machine. */
/* shares: the rows of pairs are spread over so many ranks. masked: near, whatever the bytes (halo needs it). */
int mg_bias_choose(mg_bias *storage, const mg_graph *graph, const mg_config *config, int shares, int masked);
/* Packs of graphs are always near: another wish is refused. */
int mg_bias_check_packs(mg_config *config);

/* Fills unit's codes of queries [begin, end) of a graph, all its nodes being keys, and the map over them; *storage
   becomes stream where automatic tiles are too large. */
int mg_bias_hold(mg_attn_map *map, mg_unit *unit, mg_bias *storage, const mg_config *config, const mg_graph *graph,
                 int64_t begin, int64_t end);
/* The same for all of unit->batch, and unit->plan over it. */
int mg_bias_plan(mg_unit *unit, mg_bias *storage, const mg_config *config);
/* Gives back what hold filled. */
void mg_bias_clear(mg_unit *unit);
#endif
