/* The backward kernel in bf16 on matrix tiles: header of amx.h. Lanes are keys. */
#include "amx.h"
#include "amx_lanes.h"

enum { PASS = 32, HALVES = 2, PARTS = 2 }; /* queries at a time; of 32 keys or queries; high and low */

/* Rows 2 i and 2 i + 1 of s and dp become, in place, row i of the high and the low part of P and dS, two queries to a
   word. */
typedef struct gradient_room {
    float s[4][TILE][16], dp[4][TILE][16];
    uint16_t ds[PARTS][HALVES][PASS][32]; /* of 32 rows, two keys to a word */
} gradient_room;
_Static_assert(sizeof(gradient_room) == BF16_GRADIENT_ROOM, "the room of a call");

/* s[r] = rows . columns of r, 32 rows. Tiles 0 to 3: sums; 4, 5: rows of the left side; 6, 7: the right side. */
static void products(float (*s)[TILE][16], int from, const uint16_t *rows, const uint16_t *columns, int32_t steps)
{
    const size_t row = (size_t)steps * STEP * 2;
    for (int r = 0; r < 4; r += 2) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int32_t step = 0; step < steps; step++) {
            const uint16_t *right = columns + (int64_t)(step * 4 + r) * 512, *left = rows + step * STEP;
            _tile_loadd(4, left, row);
            _tile_loadd(6, right, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, right + 512, 64);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, left + (int64_t)GROUP * steps * STEP, row);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, s[r] + from, 64);
        _tile_stored(1, s[r + 1] + from, 64);
        _tile_stored(2, s[r] + from + GROUP, 64);
        _tile_stored(3, s[r + 1] + from + GROUP, 64);
    }
}

/* Blocks r, r + 1 and n, n + two of sum [4 r][tiles]: += turned x pairs, where pairs [4 r] has its parts side by side.
 */
INLINE void add_turned(float *sum, const uint16_t *turned, float (*pairs)[TILE][16], int32_t tiles, int r, int32_t n,
                       int halves, const int two)
{
    float *at = sum + ((int64_t)r * tiles + n) * 256, *below = at + (int64_t)tiles * 256;
    _tile_loadd(0, at, 64);
    _tile_loadd(1, below, 64);
    if (two) {
        _tile_loadd(2, at + 256, 64);
        _tile_loadd(3, below + 256, 64);
    }
    for (int i = 0; i < halves * PARTS; i++) {
        const int half = i / PARTS, from = half * PASS + i % PARTS;
        if (i % PARTS == 0) {
            _tile_loadd(4, turned + (n * HALVES + half) * 512, 64);
            if (two)
                _tile_loadd(5, turned + ((n + 1) * HALVES + half) * 512, 64);
        }
        _tile_loadd(6, pairs[r] + from, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, pairs[r + 1] + from, 128);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, at, 64);
    _tile_stored(1, below, 64);
    if (two) {
        _tile_stored(2, at + 256, 64);
        _tile_stored(3, below + 256, 64);
    }
}

static void add_keys(float *sum, const uint16_t *turned, float (*pairs)[TILE][16], int32_t tiles, int halves)
{
    for (int r = 0; r < 4; r += 2) {
        int32_t n = 0;
        for (; n + 2 <= tiles; n += 2)
            add_turned(sum, turned, pairs, tiles, r, n, halves, 1);
        if (n < tiles)
            add_turned(sum, turned, pairs, tiles, r, n, halves, 0);
    }
}

/* Tiles n and, with two, n + 1 of 32 rows of dq. */
INLINE void add_row_tiles(float *dq, const gradient_room *room, const uint16_t *k, int32_t tiles, int32_t n,
                          const int two)
{
    const size_t stride = (size_t)tiles * 64;
    float *at = dq + n * 16, *below = at + (int64_t)GROUP * tiles * 16;
    _tile_loadd(0, at, stride);
    _tile_loadd(1, below, stride);
    if (two) {
        _tile_loadd(2, at + 16, stride);
        _tile_loadd(3, below + 16, stride);
    }
    for (int half = 0; half < HALVES; half++) {
        _tile_loadd(6, k + (int64_t)(half * tiles + n) * 512, 64);
        if (two)
            _tile_loadd(7, k + (int64_t)(half * tiles + n + 1) * 512, 64);
        for (int part = 0; part < PARTS; part++) {
            _tile_loadd(4, room->ds[part][half], 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, room->ds[part][half] + GROUP, 64);
            _tile_dpbf16ps(1, 5, 6);
            if (two) {
                _tile_dpbf16ps(2, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
    _tile_stored(0, at, stride);
    _tile_stored(1, below, stride);
    if (two) {
        _tile_stored(2, at + 16, stride);
        _tile_stored(3, below + 16, stride);
    }
}

static void add_queries(float *dq, const gradient_room *room, const uint16_t *k, int32_t tiles)
{
    int32_t n = 0;
    for (; n + 2 <= tiles; n += 2)
        add_row_tiles(dq, room, k, tiles, n, 1);
    if (n < tiles)
        add_row_tiles(dq, room, k, tiles, n, 0);
}

/* --- rows --- */

/* The bias of keys 4 l + r of a row, less what is in `table`'s place of it. */
INLINE __m512 bias_of(const bf16_gradient_tile *t, lookup table, int row, const int r, const int kind)
{
    if (kind == BIAS_CONSTANT)
        return table.low;
    if (kind == BIAS_TILE)
        return _mm512_fmadd_ps(_mm512_loadu_ps(t->bias.tile + row * TILE + 16 * r), _mm512_set1_ps(LOG2_E), table.low);
    const __m512i codes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(t->bias.codes + row * TILE + 16 * r)));
    return kind == BIAS_LOOKUP16 ? _mm512_permutexvar_ps(codes, table.low)
                                 : _mm512_permutex2var_ps(table.low, codes, table.high);
}

/* P and dS of a row. */
INLINE void one_row(__m512 p[4], __m512 ds[4], const gradient_room *room, const bf16_gradient_tile *t, lookup table,
                    int row, const int kind)
{
    const __m512 scale = _mm512_set1_ps(t->scale * LOG2_E), lse = _mm512_set1_ps(t->lse[row] * LOG2_E),
                 delta = _mm512_set1_ps(t->delta[row]);
    const lookup shifted = {_mm512_sub_ps(table.low, lse), _mm512_sub_ps(table.high, lse)};
    UNROLL
    for (int r = 0; r < 4; r++) {
        const __m512 s = _mm512_fmadd_ps(_mm512_load_ps(room->s[r][row]), scale, bias_of(t, shifted, row, r, kind));
        p[r] = power_of_two(s);
        ds[r] = _mm512_mul_ps(p[r], _mm512_sub_ps(_mm512_load_ps(room->dp[r][row]), delta));
        if (t->ds)
            _mm512_store_ps(t->ds + half_lane(16 * r, TILE) + row * HALF, ds[r]);
    }
}

/* Two rows of one r as pairs, where they stood. */
INLINE void store_pairs(float rows[2][16], __m512 a, __m512 b, __m512 high[2])
{
    high[0] = rounded(a);
    high[1] = rounded(b);
    _mm512_store_si512(rows[0], upper_halves(high[0], high[1]));
    _mm512_store_si512(rows[1], upper_halves(_mm512_sub_ps(a, high[0]), _mm512_sub_ps(b, high[1])));
}

INLINE void two_rows(gradient_room *room, const bf16_gradient_tile *t, lookup table, int row, const int kind)
{
    __m512 p[2][4], ds[2][4], high[4][2], unused[2];
    one_row(p[0], ds[0], room, t, table, row, kind);
    one_row(p[1], ds[1], room, t, table, row + 1, kind);
    UNROLL
    for (int r = 0; r < 4; r++) {
        store_pairs(&room->s[r][row], p[0][r], p[1][r], unused);
        store_pairs(&room->dp[r][row], ds[0][r], ds[1][r], high[r]);
    }
    UNROLL
    for (int i = 0; i < 2; i++)
        UNROLL
    for (int half = 0; half < HALVES; half++) {
        const int r = 2 * half;
        _mm512_store_si512(room->ds[0][half][row % PASS + i], upper_halves(high[r][i], high[r + 1][i]));
        _mm512_store_si512(
            room->ds[1][half][row % PASS + i],
            upper_halves(_mm512_sub_ps(ds[i][r], high[r][i]), _mm512_sub_ps(ds[i][r + 1], high[r + 1][i])));
    }
}

INLINE void tile(const bf16_gradient_tile *t, const int kind)
{
    gradient_room *room = t->room;
    lookup table = table_of(&t->bias, kind);
    if (kind == BIAS_TILE)
        table.low = _mm512_setzero_ps();
    const int halves = (t->queries + PASS - 1) / PASS;
    for (int half = 0; half < halves; half++) {
        products(room->s, half * PASS, t->q + (int64_t)half * PASS * t->steps * STEP, t->k, t->steps);
        products(room->dp, half * PASS, t->dout + (int64_t)half * PASS * t->value_steps * STEP, t->v, t->value_steps);
        for (int i = 0; i < PASS; i += 2)
            two_rows(room, t, table, half * PASS + i, kind);
        if (t->dq)
            add_queries(t->dq + (int64_t)half * PASS * t->tiles * 16, room, t->paired_k, t->tiles);
    }
    if (t->dv)
        add_keys(t->dv, t->turned_dout, room->s, t->value_tiles, halves);
    if (t->dk)
        add_keys(t->dk, t->turned_q, room->dp, t->tiles, halves);
}

__attribute__((noinline)) static void constant_tile(const bf16_gradient_tile *t) { tile(t, BIAS_CONSTANT); }
__attribute__((noinline)) static void lookup16_tile(const bf16_gradient_tile *t) { tile(t, BIAS_LOOKUP16); }
__attribute__((noinline)) static void lookup32_tile(const bf16_gradient_tile *t) { tile(t, BIAS_LOOKUP32); }
__attribute__((noinline)) static void bias_tile(const bf16_gradient_tile *t) { tile(t, BIAS_TILE); }

void mg_attn_amx_backward(const bf16_gradient_tile *t)
{
    static void (*const kernels[4])(const bf16_gradient_tile *) = {[BIAS_CONSTANT] = constant_tile,
                                                                   [BIAS_LOOKUP16] = lookup16_tile,
                                                                   [BIAS_LOOKUP32] = lookup32_tile,
                                                                   [BIAS_TILE] = bias_tile};
    kernels[t->bias.kind](t);
}

void mg_attn_amx_order_codes(uint8_t *codes)
{
    uint8_t from[TILE];
    for (int i = 0; i < TILE; i++)
        from[i] = (uint8_t)(i % 16 * 4 + i / 16);
    const __m512i order = _mm512_loadu_si512(from);
    for (int row = 0; row < TILE; row++)
        _mm512_storeu_si512(codes + row * TILE, _mm512_permutexvar_epi8(order, _mm512_loadu_si512(codes + row * TILE)));
}
