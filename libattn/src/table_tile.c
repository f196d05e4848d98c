/* The table's gradient of a tile: dS summed by code, on every instruction set. Few codes are usual in a tile (distances
 * of neighbouring nodes), so each code that may occur is compared with all pairs, several codes in one pass over dS;
 * with many codes each pair adds to its code's sum instead.
 *
 * A code costs AVX-512 a comparison and a masked addition a vector: one of the two pipes makes all masks, whether they
 * are compared, shifted or loaded, so masks made before would save nothing. */
#include "kernel.h"
#include "lanes.h"

void KERNEL(mg_attn_table_tile)(const table_tile *t);

enum { TOGETHER = LANES == 16 ? 8 : 4 };

/* Sums of `count` codes, two chains of additions each; `only`: every pair has the one code. */
INLINE void add_some(const table_tile *t, const int32_t *codes, const int count, const int only)
{
    vec sum[TOGETHER][VECS];
    memset(sum, 0, sizeof sum);
    for (int at = 0; at < TILE; at += STRIP) {
        const float *ds = t->ds + half_lane(at, TILE);
        const uint8_t *c = t->codes + at;
        for (int row = 0; row < t->rows; row++, ds += HALF, c += TILE) {
            UNROLL
            for (int v = 0; v < VECS; v++) {
                const vec y = load(ds + v * LANES);
                const ivec of = only ? (ivec){0} : load_codes(c + v * LANES);
                UNROLL
                for (int i = 0; i < count; i++)
                    sum[i][v] = only ? sum[i][v] + y : add_where(sum[i][v], of, codes[i], y);
            }
        }
    }
    for (int i = 0; i < count; i++)
        t->sums[codes[i]] += total(sum[i][0] + sum[i][1]);
}

#define DEFINE(name, count, only)                                                                                      \
    static void name(const table_tile *t, const int32_t *codes) { add_some(t, codes, count, only); }
DEFINE(add_only, 1, 1)
DEFINE(add_1, 1, 0)
DEFINE(add_2, 2, 0)
DEFINE(add_3, 3, 0)
DEFINE(add_4, 4, 0)
#if defined(__AVX512F__)
DEFINE(add_5, 5, 0)
DEFINE(add_6, 6, 0)
DEFINE(add_7, 7, 0)
DEFINE(add_8, 8, 0)
#endif

static void (*const adders[TOGETHER + 1])(const table_tile *, const int32_t *) = {
    add_only, add_1, add_2, add_3, add_4,
#if defined(__AVX512F__)
    add_5,    add_6, add_7, add_8,
#endif
};

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
    int32_t codes[64];
    int count = 0;
    if (many_codes(t->present)) {
        add_pairs(t);
        return;
    }
    for (uint64_t left = t->present; left; left &= left - 1)
        codes[count++] = __builtin_ctzll(left);
    if (t->one) {
        add_only(t, codes);
        return;
    }
    for (int done = 0, passes = (count + TOGETHER - 1) / TOGETHER; passes; passes--) {
        const int now = (count - done + passes - 1) / passes;
        adders[now](t, codes + done);
        done += now;
    }
}
