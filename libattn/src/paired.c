/* Calls in bf16 on processors that multiply pairs of bf16 (AVX512-BF16) and have no matrix tiles: the kernels of fp32,
 * whose "elements" are words of two that a product adds up, so that each product takes half as many instructions.
 *
 *     S = q k, dP = dout v       two dims of a token      q, k, dout, v: [words of dim] where fp32 has [dim]
 *     out += P v                 two keys                 v, as blocks: [8 blocks][value_dim][4]
 *     dv += P dout, dk += dS q   two queries              dout, q once more, as such blocks
 *     dq += dS k                 two keys                 k: [32 pairs of keys][row]
 *
 * Products of tokens are exact, and sums are in fp32. P and dS are rounded to bf16 where they are multiplied, to
 * within 2^-9 of each, as the results are: calls that want partial results in fp32 go the way of fp32. The rounded P
 * of a query are divided by their own sum, so that out is a weighted mean of values to the last bit; the lse is of
 * those that were not rounded. */
#include "call.h"
#include "numbers.h"
#include "parallel.h"

#include <string.h>

int mg_attn_paired_wanted(const call_state *s)
{
    const mg_attn_call *call = &s->call;
    return s->backend->paired_forward && call->type == MG_ATTN_BF16 && !call->out_fp32 &&
           !(s->backward && call->gradients_fp32) && call->dim > 8 && !s->has_pairs && !s->has_bias_element;
}

static int32_t words_of(int32_t elements) { return (elements + 1) / 2; }

/* Eight tokens of one head, as words: zeros behind the last dim and token. */
enum { EIGHT = 8, WORDS = MG_ATTN_MAX_DIM / 2 };
typedef struct eight {
    uint32_t of_dims[EIGHT][WORDS + 1];           /* dims 2 w and 2 w + 1 of a token */
    uint32_t of_tokens[EIGHT / 2][2 * WORDS + 1]; /* dim d of tokens 2 i and 2 i + 1 */
} eight;

/* Returns whether all are finite. `hidden[i]`: take zeros. */
static int load_eight(eight *e, const mg_attn_tensor *from, int64_t token, int count, int32_t head, int32_t dim)
{
    uint16_t rows[EIGHT][2 * WORDS + 2];
    int good = 1;
    for (int i = 0; i < EIGHT; i++) {
        if (i < count) {
            memcpy(rows[i], (const uint16_t *)from->data + (token + i) * from->token_stride + head * from->head_stride,
                   (size_t)dim * sizeof **rows);
            good &= all_finite_bf16(rows[i], dim);
        } else {
            memset(rows[i], 0, (size_t)dim * sizeof **rows);
        }
        rows[i][dim] = 0;
        memcpy(e->of_dims[i], rows[i], (size_t)words_of(dim) * sizeof **e->of_dims);
    }
    for (int i = 0; i < EIGHT / 2; i++)
        for (int32_t d = 0; d < dim; d++)
            e->of_tokens[i][d] = rows[2 * i][d] | (uint32_t)rows[2 * i + 1][d] << 16;
    return good;
}

/* Column w of the rows to out + w * step. */
static void put_rows(float *out, int64_t step, const uint32_t *rows, int64_t row, const int count, int32_t words)
{
    for (int32_t w = 0; w < words; w++) {
        uint32_t column[EIGHT];
        for (int i = 0; i < count; i++)
            column[i] = rows[i * row + w];
        memcpy(out + w * step, column, (size_t)count * sizeof *column);
    }
}

static void put_dims(float *out, int64_t step, const eight *e, int32_t dim)
{
    put_rows(out, step, *e->of_dims, WORDS + 1, EIGHT, words_of(dim));
}
static void put_tokens(float *out, const eight *e, int32_t dim)
{
    put_rows(out, EIGHT / 2, *e->of_tokens, 2 * WORDS + 1, EIGHT / 2, dim);
}

void mg_attn_paired_lanes(float *out, const mg_attn_tensor *from, int64_t token, int count, int32_t head, int32_t dim)
{
    eight e;
    for (int i = 0; i < TILE; i += EIGHT) {
        load_eight(&e, from, token + i, count - i, head, dim);
        put_dims(out + i, TILE, &e, dim);
    }
}

static void pack_keys(call_state *s, int64_t tile, int32_t head)
{
    const int64_t unit = head * s->keys.tiles + tile, token = tile * TILE;
    const int count = (int)smaller_of(TILE, s->plan->keys - token);
    const int32_t dim = s->call.dim, value_dim = s->call.value_dim, words = words_of(dim);
    float *k = s->keys.tiled[0] + unit * s->keys.tile_floats[0], *v = s->keys.tiled[1] + unit * s->keys.tile_floats[1];
    int good = 1;
    eight e;
    for (int i = 0; i < TILE; i += EIGHT) {
        good &= load_eight(&e, &s->call.k, token + i, count - i, head, dim);
        if (s->backward)
            put_dims(k + half_lane(i, words), HALF, &e, dim);
        else
            put_dims(k + (int64_t)i * words, EIGHT, &e, dim);
        for (int pair = 0; pair < EIGHT / 2 && s->keys.rows; pair++) {
            float *row = s->keys.rows + (unit * TILE / 2 + i / 2 + pair) * s->row;
            memcpy(row, e.of_tokens[pair], (size_t)dim * sizeof *row);
            memset(row + dim, 0, (size_t)(s->row - dim) * sizeof *row);
        }
        good &= load_eight(&e, &s->call.v, token + i, count - i, head, value_dim);
        if (s->backward)
            put_dims(v + half_lane(i, words_of(value_dim)), HALF, &e, value_dim);
        else
            put_tokens(v + (int64_t)i / 2 * value_dim, &e, value_dim);
    }
    s->keys.bad[unit] = !good;
}

static void pack_queries(call_state *s, int64_t tile, int32_t head)
{
    const int64_t unit = head * s->queries.tiles + tile, token = tile * TILE;
    const int count = (int)smaller_of(TILE, s->plan->queries - token);
    const mg_attn_tensor *from[2] = {&s->call.q, &s->call.dout};
    int good = mg_attn_pack_statistics(s, unit, token, count, head);
    eight e;
    for (int part = 0; part < 2; part++) {
        const int32_t dim = part ? s->call.value_dim : s->call.dim;
        float *tiled = s->queries.tiled[part] + unit * s->queries.tile_floats[part],
              *turned = s->turned[part] + unit * dim * (TILE / 2);
        for (int i = 0; i < TILE; i += EIGHT) {
            good &= load_eight(&e, from[part], token + i, count - i, head, dim);
            put_dims(tiled + (int64_t)i * words_of(dim), EIGHT, &e, dim);
            put_tokens(turned + (int64_t)i / 2 * dim, &e, dim);
        }
    }
    s->queries.bad[unit] = !good;
}

/* All heads of a tile together: they share the tensor's cache lines. */
static void pack_tile(void *context, int thread, int64_t step, int64_t tile)
{
    call_state *s = context;
    (void)thread, (void)step;
    for (int32_t head = 0; head < s->call.heads; head++) {
        if (tile < s->keys.tiles)
            pack_keys(s, tile, head);
        if (s->backward && tile < s->queries.tiles)
            pack_queries(s, tile, head);
    }
}

static int any_bad(const call_state *s, const packed *side)
{
    int bad = 0;
    for (int64_t i = 0; i < s->call.heads * side->tiles; i++)
        bad |= side->bad[i];
    return bad;
}

int mg_attn_paired_pack(call_state *s)
{
    mg_attn_parallel(s->threads, 1, larger_of(s->keys.tiles, s->queries.tiles), pack_tile, s);
    return !any_bad(s, &s->keys) && !(s->backward && any_bad(s, &s->queries));
}
