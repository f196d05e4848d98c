/* Dropout masks of a tile, on every instruction set: Philox 4x32-10 (philox.h) with a pair in each 64-bit lane. */
#include "kernel.h"
#include "lanes.h"

void KERNEL(mg_attn_dropout_tile)(const dropout_tile *t);
void KERNEL(mg_attn_near_dropout)(const dropout_list *l);

typedef int64_t swide __attribute__((vector_size(4 * LANES)));
typedef int32_t narrow __attribute__((vector_size(2 * LANES)));

INLINE void philox(wide x[4], const uint32_t seed[2])
{
    uint32_t k0 = seed[0], k1 = seed[1];
    for (int round = 0; round < 10; round++) {
        const wide a = multiply_low(x[0], 0xD2511F53u), b = multiply_low(x[2], 0xCD9E8D57u);
        x[0] = (b >> 32) ^ x[1] ^ k0;
        x[1] = b;
        x[2] = (a >> 32) ^ x[3] ^ k1;
        x[3] = a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

void KERNEL(mg_attn_dropout_tile)(const dropout_tile *t)
{
    int32_t kept;
    memcpy(&kept, &t->kept, sizeof kept);
    for (int row = 0; row < TILE; row++)
        for (int lane = 0; lane < TILE; lane += WIDE) {
            wide in_lanes, x[4];
            for (int i = 0; i < WIDE; i++)
                in_lanes[i] = t->lanes[lane + i];
            const wide of_row = (wide){0} + t->rows[row];
            x[0] = t->keys_in_lanes ? of_row : in_lanes;
            x[1] = t->keys_in_lanes ? in_lanes : of_row;
            x[2] = (wide){0} + t->step;
            x[3] = (wide){0} + t->layer_and_heads;
            philox(x, t->seed);
            UNROLL
            for (int i = 0; i < 4; i++) {
                const swide dropped = (swide)(x[i] & UINT32_MAX) < (swide){0} + (int64_t)t->limit;
                const narrow keep = ~__builtin_convertvector(dropped, narrow) & kept;
                memcpy(t->keep + (i * TILE + row) * TILE + lane, &keep, sizeof keep);
            }
        }
}

void KERNEL(mg_attn_near_dropout)(const dropout_list *l)
{
    int32_t kept;
    memcpy(&kept, &l->kept, sizeof kept);
    for (int32_t at = 0; at < l->count; at += WIDE) {
        wide keys;
        for (int i = 0; i < WIDE; i++)
            keys[i] = l->keys[at + i];
        wide x[4] = {(wide){0} + l->query, keys, (wide){0} + l->step, (wide){0} + l->layer_and_heads};
        philox(x, l->seed);
        UNROLL
        for (int i = 0; i < 4; i++) {
            const swide dropped = (swide)(x[i] & UINT32_MAX) < (swide){0} + (int64_t)l->limit;
            const narrow keep = ~__builtin_convertvector(dropped, narrow) & kept;
            memcpy(l->keep + i * NEAR_BATCH + at, &keep, sizeof keep);
        }
    }
}
