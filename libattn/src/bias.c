/* From codes to a kernel's bias: a constant, a lookup by the kernel, or the values of all pairs of a tile. */
#include "call.h"

#include <float.h>
#include <math.h>
#include <string.h>

static int any_huge(const float *biases, int64_t count)
{
    int huge = 0;
    for (int64_t i = 0; i < count; i++)
        huge |= fabsf(biases[i]) > 1e30f && fabsf(biases[i]) <= FLT_MAX;
    return huge;
}

int mg_attn_bias_is_huge(const call_state *s)
{
    const mg_attn_map *map = &s->plan->map;
    const mg_attn_call *call = &s->call;
    int huge = any_huge(s->tables, call->heads * (int64_t)s->table_row);
    if (call->key_bias)
        huge |= any_huge(call->key_bias, call->heads * s->plan->keys);
    for (int32_t head = 0; head < call->heads && call->values; head++)
        huge |= any_huge(call->values + head * map->near_starts[map->queries] + map->near_starts[map->query_begin],
                         map->near_starts[map->query_end] - map->near_starts[map->query_begin]);
    return huge;
}

void mg_attn_bias_begin(call_state *s)
{
    s->score_unit =
        s->backend->log2_scores && s->has_tiles && !s->bf16 && !mg_attn_bias_is_huge(s) ? (float)M_LOG2E : 1;
    for (int64_t i = 0; i < s->call.heads * (int64_t)s->table_row; i++)
        s->tile_tables[i] = s->tables[i] * s->score_unit;
}

static int has_values(const call_state *s, const plan_tile *tile)
{
    return (s->call.values || (s->backward && s->call.dvalues)) && tile->entry_count;
}

int mg_attn_tile_needs_codes(const call_state *s, const plan_tile *tile)
{
    return tile->class != CLASS_CONSTANT || tile->cut || s->any_bad || has_values(s, tile) ||
           (s->backward && s->call.dtable);
}

int mg_attn_tile_hides(const call_state *s, const plan_tile *tile)
{
    return tile->cut || s->plan->map.mask_far || s->table_hides || s->call.key_bias || s->call.values;
}

/* Hides what segments hide, where no code was free to say so. */
static void hide_unseen(float tile[PAIRS], const call_state *s, const tile_place *place)
{
    const int rows = (int)smaller_of(TILE, s->plan->queries - place->row * TILE);
    for (int row = 0; row < rows; row++) {
        int64_t begin, end;
        seen_keys(s->plan, place->row * TILE + row, &begin, &end);
        for (int key = 0; key < TILE; key++) {
            const int64_t at = (int64_t)place->tile->column * TILE + key;
            if (at < begin || at >= end)
                tile[place->keys_in_lanes ? row * TILE + key : key * TILE + row] = -__builtin_inff();
        }
    }
}

static void add_values(float tile[PAIRS], const call_state *s, const tile_place *place, int32_t head)
{
    const mg_attn_plan *plan = s->plan;
    for (int64_t e = place->tile->entries; e < place->tile->entries + place->tile->entry_count; e++) {
        const int position = plan->entry_positions[e], row = position / TILE, key = position % TILE;
        tile[place->keys_in_lanes ? position : key * TILE + row] +=
            s->score_unit * s->call.values[mg_attn_map_pair(s, head, place->row * TILE + row, plan->entry_offsets[e])];
    }
}

int mg_attn_tile_bias(tile_bias *bias, float tile[PAIRS], const call_state *s, const tile_place *place, int32_t head,
                      int whole)
{
    const float *table = s->tile_tables + (int64_t)head * s->table_row;
    const int values = s->call.values && place->tile->entry_count;
    const int unsaid = place->tile->cut && s->plan->hidden < 0;
    if (place->tile->class == CLASS_CONSTANT && !place->tile->cut && !values && !whole) {
        *bias = (tile_bias){.kind = BIAS_CONSTANT, .constant = table[place->tile->code]};
        return bias->constant != -__builtin_inff();
    }
    const int32_t entries =
        place->tile->cut ? s->entries : s->plan->map.codes; /* without the hidden code, if it can be */
    if (entries <= s->backend->lookup && !values && !unsaid && !whole) {
        *bias =
            (tile_bias){.kind = entries <= 16 ? BIAS_LOOKUP16 : BIAS_LOOKUP32, .table = table, .codes = place->codes};
        return 1;
    }
    if (!place->keys_in_lanes && s->backend->turn_codes)
        for (int at = 0; at < PAIRS; at++) /* key / 4, lane, key % 4 */
            tile[(at / (4 * TILE) * 4 + at % 4) * TILE + at / 4 % TILE] = table[place->codes[at]];
    else
        for (int at = 0; at < PAIRS; at++)
            tile[at] = table[place->codes[at]];
    if (values)
        add_values(tile, s, place, head);
    if (unsaid)
        hide_unseen(tile, s, place);
    *bias = (tile_bias){.kind = BIAS_TILE, .tile = tile};
    return 1;
}
