/* Dropout masks, on every instruction set: Philox 4x32-7 (philox.h) of LANES pairs at once. A pair takes a 64-bit lane,
 * even pairs first, then odd ones, whose words then go between theirs; each half of a word is a head's. Little-endian.
 */
#include "kernel.h"
#include "lanes.h"
#include "philox.h"

void KERNEL(mg_attn_dropout_tile)(const dropout_tile *t);
void KERNEL(mg_attn_near_dropout)(const dropout_list *l);

typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));

/* High halves of lanes may hold anything. */
INLINE void philox(wide x[4], const uint32_t seed[2])
{
    uint32_t k0 = seed[0], k1 = seed[1];
    for (int round = 0; round < MG_ATTN_MASK_ROUNDS; round++) {
        const wide a = multiply_low(x[0], 0xD2511F53u), b = multiply_low(x[2], 0xCD9E8D57u);
        x[0] = (b >> 32) ^ x[1] ^ k0;
        x[1] = b;
        x[2] = (a >> 32) ^ x[3] ^ k1;
        x[3] = a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* Of pairs of queries and keys, to keep + head * apart. */
INLINE void masks(float *keep, int64_t apart, wide queries, wide keys, const dropout_words *w)
{
    const wide step = (wide){0} + w->step, last = (wide){0} + w->layer_and_heads;
    wide even[4] = {queries, keys, step, last}, odd[4] = {queries >> 32, keys >> 32, step, last};
    int32_t kept;
    memcpy(&kept, &w->kept, sizeof kept);
    philox(even, w->seed);
    philox(odd, w->seed);
    UNROLL
    for (int i = 0; i < 4; i++) {
        const wide both = (even[i] & UINT32_MAX) | odd[i] << 32;
        ivec words;
        memcpy(&words, &both, sizeof words);
        const ivec low = words & 0xFFFF, high = (ivec)((uvec)words >> 16);
        const ivec first = ~(low < w->limit) & kept, second = ~(high < w->limit) & kept;
        memcpy(keep + 2 * i * apart, &first, sizeof first);
        memcpy(keep + (2 * i + 1) * apart, &second, sizeof second);
    }
}

INLINE wide load_ids(const uint32_t *ids)
{
    wide x;
    memcpy(&x, ids, sizeof x);
    return x;
}
INLINE wide same_ids(uint32_t id) { return (wide){0} + (id | (uint64_t)id << 32); }

void KERNEL(mg_attn_dropout_tile)(const dropout_tile *t)
{
    for (int row = 0; row < TILE; row++)
        for (int lane = 0; lane < TILE; lane += LANES) {
            const wide of_row = same_ids(t->rows[row]), in_lanes = load_ids(t->lanes + lane);
            masks(t->keep + row * TILE + lane, TILE * TILE, t->keys_in_lanes ? of_row : in_lanes,
                  t->keys_in_lanes ? in_lanes : of_row, &t->words);
        }
}

void KERNEL(mg_attn_near_dropout)(const dropout_list *l)
{
    for (int32_t at = 0; at < l->count; at += LANES)
        masks(l->keep + at, NEAR_BATCH, load_ids(l->queries + at), load_ids(l->keys + at), &l->words);
}
