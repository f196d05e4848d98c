/* Dropout masks of tiles and lists. */
#include "call.h"
#include "philox.h"

static uint32_t id_of(const uint32_t *ids, int64_t index, int64_t begin)
{
    return ids ? ids[index] : (uint32_t)(begin + index);
}

static dropout_words words_of(const mg_attn_dropout *d, int32_t head)
{
    const uint32_t limit = mg_attn_mask_limit(d->probability);
    return (dropout_words){.seed = {(uint32_t)d->seed, (uint32_t)(d->seed >> 32)},
                           .step = d->step,
                           .layer_and_heads = d->layer << 16 | (uint32_t)(head + d->head_begin) / MASK_HEADS,
                           .limit = (int32_t)limit,
                           .kept = mg_attn_mask_scale(limit)};
}

void mg_attn_dropout_tile(float keep[MASK_HEADS][PAIRS], const call_state *s, const tile_place *place, int32_t head)
{
    const mg_attn_plan *plan = s->plan;
    const mg_attn_dropout *d = &s->call.dropout;
    const int64_t q0 = place->row * TILE, k0 = (int64_t)place->tile->column * TILE;
    uint32_t queries[TILE] = {0}, keys[TILE] = {0};
    for (int i = 0; i < TILE; i++) {
        if (q0 + i < plan->queries)
            queries[i] = id_of(d->query_ids, q0 + i, plan->map.query_begin);
        if (k0 + i < plan->keys)
            keys[i] = id_of(d->key_ids, k0 + i, plan->map.key_begin);
    }
    s->backend->dropout(&(dropout_tile){.lanes = place->keys_in_lanes ? keys : queries,
                                        .rows = place->keys_in_lanes ? queries : keys,
                                        .keys_in_lanes = place->keys_in_lanes,
                                        .words = words_of(d, head),
                                        .keep = keep[0]});
}

void mg_attn_dropout_list(float keep[MASK_HEADS][NEAR_BATCH], const call_state *s, int64_t query, int32_t queries,
                          const int32_t *starts, const int32_t *keys, int32_t head)
{
    const mg_attn_dropout *d = &s->call.dropout;
    uint32_t query_ids[NEAR_BATCH] = {0}, key_ids[NEAR_BATCH] = {0};
    for (int32_t j = 0; j < queries; j++)
        for (int32_t i = starts[j]; i < starts[j + 1]; i++) {
            query_ids[i] = id_of(d->query_ids, query + j, s->plan->map.query_begin);
            key_ids[i] = id_of(d->key_ids, keys[i], s->plan->map.key_begin);
        }
    s->backend->near_dropout(&(dropout_list){
        .words = words_of(d, head), .count = starts[queries], .queries = query_ids, .keys = key_ids, .keep = keep[0]});
}
