/* The forward kernel in bf16 on matrix tiles: header of amx.h. Lanes are keys. */
#include "amx.h"
#include "amx_lanes.h"

#include <sys/syscall.h>
#include <unistd.h>

typedef struct row_room {
    float s[4][GROUP][16]; /* score tiles */
    uint16_t high[2][GROUP][STEP], low[2][GROUP][STEP];
} row_room;
_Static_assert(sizeof(row_room) == BF16_ROOM, "the room of a call");

int mg_attn_amx_supported(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

void mg_attn_amx_begin(void)
{
    struct {
        uint8_t palette, start, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* gcc 12 takes it that 8 bytes are read */
    _tile_loadconfig(&config);
}

void mg_attn_amx_end(void) { _tile_release(); }

/* Tiles 0 to 3: sums; 4, 5: rows of the left side; 6, 7: the right side. */

INLINE void score_tiles(float s[4][GROUP][16], const bf16_tile *t, int group)
{
    const int64_t row = (int64_t)t->steps * STEP;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int32_t step = 0; step < t->steps; step++) {
        const uint16_t *k = t->k + (int64_t)step * 4 * 512;
        _tile_loadd(4, t->q + group * GROUP * row + step * STEP, (size_t)row * 2);
        _tile_loadd(6, k, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, k + 512, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(6, k + 1024, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, k + 1536, 64);
        _tile_dpbf16ps(3, 4, 7);
    }
    _tile_stored(0, s[0], 64);
    _tile_stored(1, s[1], 64);
    _tile_stored(2, s[2], 64);
    _tile_stored(3, s[3], 64);
}

/* Tiles [first, first + count) of out, count 1..4. */
INLINE void add_values(const row_room *r, const bf16_tile *t, int group, int32_t first, const int count)
{
    const size_t stride = (size_t)t->value_tiles * 64;
    float *out = t->out + (int64_t)group * GROUP * t->value_tiles * 16 + first * 16;
    _tile_loadd(0, out, stride);
    if (count > 1)
        _tile_loadd(1, out + 16, stride);
    if (count > 2)
        _tile_loadd(2, out + 32, stride);
    if (count > 3)
        _tile_loadd(3, out + 48, stride);
    for (int half = 0; half < 2; half++) {
        const uint16_t *v = t->v + ((int64_t)half * t->value_tiles + first) * 512;
        _tile_loadd(4, r->high[half], 64);
        _tile_loadd(5, r->low[half], 64);
        /* Sums that follow each other wait three times as long as a product takes. */
        _tile_loadd(6, v, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (count > 1) {
            _tile_loadd(7, v + 512, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        _tile_dpbf16ps(0, 5, 6);
        if (count > 1)
            _tile_dpbf16ps(1, 5, 7);
        if (count > 2) {
            _tile_loadd(6, v + 1024, 64);
            _tile_dpbf16ps(2, 4, 6);
        }
        if (count > 3) {
            _tile_loadd(7, v + 1536, 64);
            _tile_dpbf16ps(3, 4, 7);
        }
        if (count > 2)
            _tile_dpbf16ps(2, 5, 6);
        if (count > 3)
            _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, out, stride);
    if (count > 1)
        _tile_stored(1, out + 16, stride);
    if (count > 2)
        _tile_stored(2, out + 32, stride);
    if (count > 3)
        _tile_stored(3, out + 48, stride);
}

/* --- rows: scores to probabilities --- */

/* Biases of keys 4 l + r of a row, in units of log2. */
INLINE __m512 bias_of(const bf16_tile *t, lookup table, int row, const int r, const int kind)
{
    if (kind == BIAS_CONSTANT)
        return table.low;
    if (kind == BIAS_TILE) {
        const __m512i at = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
        return _mm512_mul_ps(_mm512_i32gather_ps(at, t->bias.tile + row * TILE + r, 4), _mm512_set1_ps(LOG2_E));
    }
    const __m512i codes = _mm512_loadu_si512(t->bias.codes + row * t->codes_stride + r);
    return kind == BIAS_LOOKUP16 ? _mm512_permutexvar_ps(codes, table.low)
                                 : _mm512_permutex2var_ps(table.low, codes, table.high);
}

/* A row that has seen nothing, has to be raised, or holds NaN. */
__attribute__((noinline)) static void rare_row(__m512 p[4], const bf16_tile *t, int row, const __m512 s[4])
{
    float *maximum = t->maximum + row, *out = t->out + (int64_t)row * t->value_tiles * 16;
    const __m512 all = _mm512_max_ps(_mm512_max_ps(s[0], s[1]), _mm512_max_ps(s[2], s[3]));
    const float top = _mm512_reduce_max_ps(all), nothing = -__builtin_inff();
    float raised = *maximum;
    if (raised == nothing)
        raised = top;
    else if (raised == raised)
        raised = top > raised + 60 ? top : raised + 60;
    const __m512 scale = *maximum == nothing ? _mm512_setzero_ps() : power_of_two(_mm512_set1_ps(*maximum - raised));
    for (int32_t d = 0; d < t->value_tiles; d++)
        _mm512_storeu_ps(out + 16 * d, _mm512_mul_ps(_mm512_loadu_ps(out + 16 * d), scale));
    __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(t->sums + row * 16), scale);
    for (int r = 0; r < 4; r++) {
        p[r] = raised == nothing ? _mm512_setzero_ps() : power_of_two(_mm512_sub_ps(s[r], _mm512_set1_ps(raised)));
        sum = _mm512_add_ps(sum, p[r]);
    }
    *maximum = raised;
    _mm512_storeu_ps(t->sums + row * 16, sum);
}

INLINE void one_row(row_room *room, const bf16_tile *t, lookup table, int group, int i, const int kind)
{
    const int row = group * GROUP + i;
    const __m512 maximum = _mm512_set1_ps(t->maximum[row]), scale = _mm512_set1_ps(t->scale * LOG2_E);
    lookup shifted = {_mm512_sub_ps(table.low, maximum), _mm512_sub_ps(table.high, maximum)};
    __m512 p[4], sum = _mm512_loadu_ps(t->sums + row * 16);
    UNROLL
    for (int r = 0; r < 4; r++) {
        __m512 bias = bias_of(t, shifted, row, r, kind);
        if (kind == BIAS_TILE)
            bias = _mm512_sub_ps(bias, maximum);
        p[r] = power_of_two(_mm512_fmadd_ps(_mm512_load_ps(room->s[r][i]), scale, bias));
    }
    sum = _mm512_add_ps(sum, _mm512_add_ps(_mm512_add_ps(p[0], p[1]), _mm512_add_ps(p[2], p[3])));
    if (__builtin_expect(_mm512_cmp_ps_mask(sum, _mm512_set1_ps(RAISE_ABOVE), _CMP_NLE_UQ), 0)) {
        __m512 s[4];
        for (int r = 0; r < 4; r++)
            s[r] = _mm512_fmadd_ps(_mm512_load_ps(room->s[r][i]), scale, bias_of(t, table, row, r, kind));
        rare_row(p, t, row, s);
    } else {
        _mm512_storeu_ps(t->sums + row * 16, sum);
    }
    UNROLL
    for (int half = 0; half < 2; half++) {
        const __m512 a = rounded(p[2 * half]), b = rounded(p[2 * half + 1]);
        _mm512_store_si512(room->high[half][i], upper_halves(a, b));
        _mm512_store_si512(room->low[half][i],
                           upper_halves(_mm512_sub_ps(p[2 * half], a), _mm512_sub_ps(p[2 * half + 1], b)));
    }
}

INLINE void tile(const bf16_tile *t, const int kind)
{
    row_room *room = t->room;
    const lookup table = table_of(&t->bias, kind);
    for (int group = 0; group * GROUP < t->queries; group++) {
        score_tiles(room->s, t, group);
        for (int i = 0; i < GROUP; i++)
            one_row(room, t, table, group, i, kind);
        int32_t n = 0;
        for (; n + 4 <= t->value_tiles; n += 4)
            add_values(room, t, group, n, 4);
        switch (t->value_tiles - n) {
        case 1:
            add_values(room, t, group, n, 1);
            break;
        case 2:
            add_values(room, t, group, n, 2);
            break;
        case 3:
            add_values(room, t, group, n, 3);
            break;
        default:
            break;
        }
    }
}

__attribute__((noinline)) static void constant_tile(const bf16_tile *t) { tile(t, BIAS_CONSTANT); }
__attribute__((noinline)) static void lookup16_tile(const bf16_tile *t) { tile(t, BIAS_LOOKUP16); }
__attribute__((noinline)) static void lookup32_tile(const bf16_tile *t) { tile(t, BIAS_LOOKUP32); }
__attribute__((noinline)) static void bias_tile(const bf16_tile *t) { tile(t, BIAS_TILE); }

void mg_attn_amx_forward(const bf16_tile *t)
{
    static void (*const kernels[4])(const bf16_tile *) = {[BIAS_CONSTANT] = constant_tile,
                                                          [BIAS_LOOKUP16] = lookup16_tile,
                                                          [BIAS_LOOKUP32] = lookup32_tile,
                                                          [BIAS_TILE] = bias_tile};
    kernels[t->bias.kind](t);
}
