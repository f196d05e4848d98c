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

#if defined(__AVX512BW__)
/* 64 codes are compared at once. `last`: every pair that has none of the other codes has the last one, or a dS of 0. */
INLINE void add_some(const table_tile *t, const int32_t *codes, int wanted, const int count, const int last)
{
    __m512 sum[TOGETHER][2] = {{{0}}};
    for (int row = 0; row < t->rows; row++) {
        const __m512i c = _mm512_loadu_si512(t->codes + row * TILE);
        uint64_t found[TOGETHER], rest = ~UINT64_C(0);
        UNROLL
        for (int i = 0; i < count - last; i++) {
            found[i] = _cvtmask64_u64(_mm512_cmpeq_epi8_mask(c, _mm512_set1_epi8((char)codes[i])));
            rest &= ~found[i];
        }
        if (last)
            found[count - 1] = rest;
        UNROLL
        for (int v = 0; v < TILE / LANES; v++) {
            const __m512 y = _mm512_loadu_ps(t->ds + half_lane(v * LANES, TILE) + row * HALF);
            UNROLL
            for (int i = 0; i < count; i++)
                sum[i][v % 2] =
                    count == 1 && last
                        ? _mm512_add_ps(sum[i][v % 2], y)
                        : _mm512_mask_add_ps(sum[i][v % 2], (__mmask16)(found[i] >> v * LANES), sum[i][v % 2], y);
        }
    }
    for (int i = 0; i < wanted; i++)
        t->sums[codes[i]] += total((vec)sum[i][0]) + total((vec)sum[i][1]);
}

static void add_codes(const table_tile *t, const int32_t codes[TOGETHER], int count, int last)
{
    if (!last)
        add_some(t, codes, count, TOGETHER, 0);
    else if (count == 1)
        add_some(t, codes, count, 1, 1);
    else if (count == 2)
        add_some(t, codes, count, 2, 1);
    else if (count == 3)
        add_some(t, codes, count, 3, 1);
    else
        add_some(t, codes, count, 4, 1);
}
#else
static void add_codes(const table_tile *t, const int32_t codes[TOGETHER], int count, int last)
{
    vec sum[TOGETHER] = {{0}};
    (void)last;
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
#endif

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
    const int few = __builtin_popcountll(t->present) <= TOGETHER;
    for (uint64_t left = t->present; left; left &= left - 1) {
        codes[count++] = __builtin_ctzll(left);
        if (count == TOGETHER || !(left & (left - 1))) {
            for (int i = count; i < TOGETHER; i++)
                codes[i] = -1;
            add_codes(t, codes, count, few);
            count = 0;
        }
    }
}
