/* The table's gradient of a tile: dS summed by code, on every instruction set. Few codes are usual in a tile (distances
 * of neighbouring nodes), so each code that may occur is compared with all pairs, several codes in one pass over dS;
 * with many codes each pair adds to its code's sum instead. */
#include "kernel.h"
#include "lanes.h"

void KERNEL(mg_attn_table_tile)(const table_tile *t);

enum { TOGETHER = 4, MANY = 24 };

INLINE double total(vec x)
{
    double sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += x[i];
    return sum;
}

static void add_codes(const table_tile *t, const int32_t codes[TOGETHER], int count)
{
    vec sum[TOGETHER] = {{0}};
    for (int at = 0; at < t->rows * TILE; at += LANES) {
        vec y = load(t->ds + half_lane(at % TILE, TILE) + at / TILE * HALF);
        ivec c = load_codes(t->codes + at);
        UNROLL
        for (int i = 0; i < TOGETHER; i++)
            sum[i] = add_where(sum[i], c, codes[i], y);
    }
    for (int i = 0; i < count; i++)
        t->sums[codes[i]] += total(sum[i]);
}

static void add_pairs(const table_tile *t)
{
    double sums[4][256];
    memset(sums, 0, sizeof sums);
    for (int at = 0; at < t->rows * TILE; at += 4)
        for (int i = 0; i < 4; i++)
            sums[i][t->codes[at + i]] += t->ds[half_lane(at % TILE, TILE) + at / TILE * HALF + i];
    for (int c = 0; c < t->entries; c++)
        t->sums[c] += sums[0][c] + sums[1][c] + (sums[2][c] + sums[3][c]);
}

void KERNEL(mg_attn_table_tile)(const table_tile *t)
{
    int32_t codes[TOGETHER];
    int count = 0;
    if (t->present >> 63 || __builtin_popcountll(t->present) > MANY) {
        add_pairs(t);
        return;
    }
    for (uint64_t left = t->present; left; left &= left - 1) {
        codes[count++] = __builtin_ctzll(left);
        if (count == TOGETHER || !(left & (left - 1))) {
            for (int i = count; i < TOGETHER; i++)
                codes[i] = -1;
            add_codes(t, codes, count);
            count = 0;
        }
    }
}
