/* Dropout masks of tiles and pairs. */
#include "call.h"
#include "philox.h"

#include <math.h>
#include <string.h>

static uint32_t id_of(const uint32_t *ids, int64_t index, int64_t begin)
{
    return ids ? ids[index] : (uint32_t)(begin + index);
}

static void words_of(uint32_t words[4], const mg_attn_dropout *d, uint32_t query, uint32_t key, int32_t head)
{
    const uint32_t counter[4] = {query, key, d->step, d->layer << 16 | (uint32_t)head / 4};
    const uint32_t seed[2] = {(uint32_t)d->seed, (uint32_t)(d->seed >> 32)};
    mg_attn_philox(words, counter, seed);
}

static float keep_of(uint32_t word, double probability)
{
    return word < probability * 0x1p32 ? 0 : (float)(1 / (1 - probability));
}

void mg_attn_dropout_tile(float keep[HEAD_GROUP][PAIRS], const call_state *s, const tile_place *place, int32_t head)
{
    const mg_attn_plan *plan = s->plan;
    const mg_attn_dropout *d = &s->call.dropout;
    const double threshold = ceil(d->probability * 0x1p32);
    const uint64_t limit = (uint64_t)threshold;
    const float kept = keep_of(UINT32_MAX, d->probability);
    const int64_t q0 = place->row * TILE, k0 = (int64_t)place->tile->column * TILE;
    const int rows = (int)smaller_of(TILE, plan->queries - q0), keys = (int)smaller_of(TILE, plan->keys - k0);
    if (rows < TILE || keys < TILE)
        memset(keep, 0, sizeof(float[HEAD_GROUP][PAIRS]));
    for (int row = 0; row < rows; row++)
        for (int key = 0; key < keys; key++) {
            const int at = place->keys_in_lanes ? row * TILE + key : key * TILE + row;
            uint32_t words[4];
            words_of(words, d, id_of(d->query_ids, q0 + row, plan->map.query_begin),
                     id_of(d->key_ids, k0 + key, plan->map.key_begin), head + d->head_begin);
            for (int i = 0; i < HEAD_GROUP; i++)
                keep[i][at] = words[i] < limit ? 0 : kept;
        }
}

float mg_attn_dropout_pair(const call_state *s, int64_t query, int64_t key, int32_t head)
{
    const mg_attn_dropout *d = &s->call.dropout;
    uint32_t words[4];
    words_of(words, d, id_of(d->query_ids, query, s->plan->map.query_begin), id_of(d->key_ids, key, s->plan->map.key_begin),
             head + d->head_begin);
    return keep_of(words[dropout_slot(s, head)], d->probability);
}
