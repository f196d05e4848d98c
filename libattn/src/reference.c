/* The specification of attention: the header's formulas written down in fp64, one pair after the other, on one thread.
 * It reads only the map of the plan, never its tiles, so that it shares no step with what it is compared to.
 *
 * Pairs come in blocks of 32 queries x 32 keys: enough for sums over keys (a row of q) and over queries (a row of k) to
 * stand in fp64 on the stack, with no scratch that grows with the tokens. All indices here are those of the plan, not
 * of the map, unless a name says map. */
#include "check.h"
#include "library.h"
#include "philox.h"
#include "plan.h"

#include <math.h>
#include <string.h>

enum { SIDE = 32 };

/* Queries [q0, q0 + nq) x keys [k0, k0 + nk) of the plan. */
typedef struct block {
    int64_t q0, k0;
    int nq, nk;
    uint8_t seen[SIDE][SIDE];  /* by segments and mask_far */
    uint8_t codes[SIDE][SIDE]; /* of seen pairs */
    int64_t pairs[SIDE][SIDE]; /* near pair of the map, listed though it may be unseen; or -1 */
} block;

typedef struct walk {
    const mg_attn_map *map;
    mg_attn_call call; /* checked */
    int64_t queries, keys;
    block b;
} walk;

/* --- rows of a tensor --- */

static double from_bf16(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* To nearest, ties to even; NaN stays NaN. */
static uint16_t to_bf16(double x)
{
    float value = (float)x;
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    if (isnan(value))
        return (uint16_t)(word >> 16 | 0x40);
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

static void load_row(double *to, mg_attn_tensor from, mg_attn_type type, int64_t token, int32_t head, int32_t dim)
{
    int64_t at = token * from.token_stride + head * from.head_stride;
    if (type == MG_ATTN_BF16)
        for (int32_t d = 0; d < dim; d++)
            to[d] = from_bf16(((const uint16_t *)from.data)[at + d]);
    else
        for (int32_t d = 0; d < dim; d++)
            to[d] = ((const float *)from.data)[at + d];
}

static void store_row(mg_attn_tensor to, const double *from, mg_attn_type type, int64_t token, int32_t head,
                      int32_t dim)
{
    int64_t at = token * to.token_stride + head * to.head_stride;
    for (int32_t d = 0; d < dim; d++)
        if (type == MG_ATTN_BF16)
            ((uint16_t *)to.data)[at + d] = to_bf16(from[d]);
        else
            ((float *)to.data)[at + d] = (float)from[d];
}

static mg_attn_type out_type(const mg_attn_call *call) { return call->out_fp32 ? MG_ATTN_FP32 : call->type; }
static mg_attn_type gradient_type(const mg_attn_call *call) { return call->gradients_fp32 ? MG_ATTN_FP32 : call->type; }

static double dot(const double *a, const double *b, int32_t dim)
{
    double sum = 0;
    for (int32_t d = 0; d < dim; d++)
        sum += a[d] * b[d];
    return sum;
}

/* --- a block of the map --- */

/* The segment that holds token: the last one to start at or before it (empty ones start and end there). */
static int64_t segment_of(const int64_t *starts, int64_t segments, int64_t token)
{
    int64_t low = 0, high = segments;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (starts[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Of a patch tile: looks for the position, by halves, among the ascending ones. */
static uint8_t patch_code(const uint8_t *payload, int wanted, uint8_t constant)
{
    uint16_t count, position;
    memcpy(&count, payload, 2);
    for (int low = 0, high = count; low < high;) {
        int middle = (low + high) / 2;
        memcpy(&position, payload + 2 + 2 * middle, 2);
        if (position == wanted)
            return payload[2 + 2 * count + middle];
        if (position < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return constant;
}

static uint8_t tile_code(const mg_attn_tiles *tiles, int64_t map_query, int64_t map_key)
{
    int64_t t = map_query / MG_ATTN_TILE * tiles->tile_columns + map_key / MG_ATTN_TILE;
    int row = (int)(map_query % MG_ATTN_TILE), column = (int)(map_key % MG_ATTN_TILE);
    uint8_t code = tiles->constants[t];
    if (tiles->classes[t] == MG_ATTN_TILE_CONSTANT)
        return code;
    const uint8_t *payload = tiles->payload + tiles->offsets[t];
    if (tiles->classes[t] == MG_ATTN_TILE_PATCH)
        return patch_code(payload, row * MG_ATTN_TILE + column, code);
    code = 0;
    for (int p = 0; p < tiles->planes; p++) {
        uint64_t word;
        memcpy(&word, payload + 8 * (p * MG_ATTN_TILE + row), 8);
        code = (uint8_t)(code | (word >> column & 1) << p);
    }
    return code;
}

/* Codes of one listed row; all others have the far code. Pairs not seen are listed too: their gradient is 0. */
static void near_row(walk *run, int r)
{
    const mg_attn_map *map = run->map;
    block *b = &run->b;
    int64_t row = map->query_begin + b->q0 + r, first = map->key_begin + b->k0;
    for (int c = 0; c < b->nk; c++)
        b->codes[r][c] = (uint8_t)map->far_code;
    int64_t low = map->near_starts[row], end = map->near_starts[row + 1];
    for (int64_t high = end; low < high;) { /* the first pair from this block on */
        int64_t middle = low + (high - low) / 2;
        if (map->near_columns[middle] < first)
            low = middle + 1;
        else
            high = middle;
    }
    for (int64_t e = low; e < end && map->near_columns[e] < first + b->nk; e++) {
        int64_t c = map->near_columns[e] - first;
        b->codes[r][c] = map->near_codes ? map->near_codes[e] : 0;
        b->pairs[r][c] = e;
    }
}

static int stream_block(walk *run)
{
    const mg_attn_map *map = run->map;
    block *b = &run->b;
    int64_t q0 = map->query_begin + b->q0, k0 = map->key_begin + b->k0;
    int status = map->stream(map->stream_context, 0, q0, b->nq, k0, b->nk, b->codes[0], SIDE);
    if (status)
        return fail(-ECANCELED, "the stream callback returned %d for queries [%lld, %lld) x keys [%lld, %lld)", status,
                    (long long)q0, (long long)(q0 + b->nq), (long long)k0, (long long)(k0 + b->nk));
    for (int r = 0; r < b->nq; r++)
        for (int c = 0; c < b->nk; c++)
            if (b->seen[r][c] && b->codes[r][c] >= map->codes)
                return fail(-EINVAL, "stream: query %lld, key %lld has code %d, but codes are 0..%d",
                            (long long)(q0 + r), (long long)(k0 + c), b->codes[r][c], map->codes - 1);
    return 0;
}

/* Marks the pairs of equal segments; says whether there are any. */
static int see_segments(walk *run)
{
    const mg_attn_map *map = run->map;
    block *b = &run->b;
    int64_t of_key[SIDE], any = 0;
    for (int c = 0; c < b->nk; c++)
        of_key[c] = map->segments ? segment_of(map->key_segments, map->segments, map->key_begin + b->k0 + c) : 0;
    for (int r = 0; r < b->nq; r++) {
        int64_t mine = map->segments ? segment_of(map->query_segments, map->segments, map->query_begin + b->q0 + r) : 0;
        for (int c = 0; c < b->nk; c++)
            any |= b->seen[r][c] = of_key[c] == mine;
    }
    return any != 0;
}

static int load_block(walk *run, int64_t q0, int64_t k0)
{
    const mg_attn_map *map = run->map;
    block *b = &run->b;
    b->q0 = q0;
    b->k0 = k0;
    b->nq = (int)(run->queries - q0 < SIDE ? run->queries - q0 : SIDE);
    b->nk = (int)(run->keys - k0 < SIDE ? run->keys - k0 : SIDE);
    memset(b->codes, 0, sizeof b->codes);
    memset(b->pairs, -1, sizeof b->pairs);
    if (see_segments(run) && map->kind == MG_ATTN_STREAM) {
        int status = stream_block(run);
        if (status)
            return status;
    }
    for (int r = 0; r < b->nq; r++) {
        int64_t row = map->query_begin + q0 + r, first = map->key_begin + k0;
        if (map->kind == MG_ATTN_DENSE)
            memcpy(b->codes[r], map->dense + row * map->dense_stride + first, (size_t)b->nk);
        else if (map->kind == MG_ATTN_NEAR)
            near_row(run, r);
        else if (map->kind == MG_ATTN_TILES)
            for (int c = 0; c < b->nk; c++)
                b->codes[r][c] = tile_code(map->tiles, row, first + c);
        for (int c = 0; c < b->nk; c++)
            if (map->mask_far && b->codes[r][c] == map->far_code)
                b->seen[r][c] = 0;
    }
    return 0;
}

/* --- one pair --- */

/* The score of a pair of the block, or 0 returned when it is hidden: then its row of k is not read. */
static int score(double *s, const walk *run, int32_t head, int r, int c, const double *q)
{
    const mg_attn_call *call = &run->call;
    const block *b = &run->b;
    if (!b->seen[r][c])
        return 0;
    double bias = 0, k[MG_ATTN_MAX_DIM];
    if (call->table)
        bias += call->table[(int64_t)head * run->map->codes + b->codes[r][c]];
    if (call->values && b->pairs[r][c] >= 0)
        bias += call->values[head * run->map->near_starts[run->map->queries] + b->pairs[r][c]];
    if (call->key_bias)
        bias += call->key_bias[head * run->keys + b->k0 + c];
    if (bias == -INFINITY)
        return 0;
    load_row(k, call->k, call->type, b->k0 + c, head, call->dim);
    *s = call->scale * dot(q, k, call->dim) + bias;
    return 1;
}

/* What dropout multiplies the probability of a pair with. */
static double keep(const walk *run, int32_t head, int64_t query, int64_t key)
{
    const mg_attn_dropout *dropout = &run->call.dropout;
    if (dropout->probability == 0)
        return 1;
    uint32_t of = (uint32_t)(dropout->head_begin + head), words[4];
    uint32_t seed[2] = {(uint32_t)dropout->seed, (uint32_t)(dropout->seed >> 32)};
    uint32_t counter[4] = {
        dropout->query_ids ? dropout->query_ids[query] : (uint32_t)(run->map->query_begin + query),
        dropout->key_ids ? dropout->key_ids[key] : (uint32_t)(run->map->key_begin + key),
        dropout->step,
        dropout->layer << 16 | of / 8,
    };
    mg_attn_philox_rounds(words, counter, seed, MG_ATTN_MASK_ROUNDS);
    const uint32_t limit = mg_attn_mask_limit(dropout->probability);
    return (words[of % 8 / 2] >> of % 2 * 16 & 0xFFFF) < limit ? 0 : 0x1p16 / (0x1p16 - limit);
}

/* --- forward --- */

/* Adds the block to out of its rows, not yet divided by sum; or, before that, to the row maxima alone. */
static void forward_block(const walk *run, int32_t head, double *most, double *sum, double (*out)[MG_ATTN_MAX_DIM],
                          int only_most)
{
    const mg_attn_call *call = &run->call;
    const block *b = &run->b;
    double q[MG_ATTN_MAX_DIM], v[MG_ATTN_MAX_DIM], s;
    for (int r = 0; r < b->nq; r++) {
        load_row(q, call->q, call->type, b->q0 + r, head, call->dim);
        for (int c = 0; c < b->nk; c++) {
            if (!score(&s, run, head, r, c, q))
                continue;
            if (only_most) {
                most[r] = s > most[r] || isnan(s) ? s : most[r];
                continue;
            }
            double p = exp(s - most[r]), kept = p * keep(run, head, b->q0 + r, b->k0 + c);
            load_row(v, call->v, call->type, b->k0 + c, head, call->value_dim);
            sum[r] += p;
            for (int32_t d = 0; d < call->value_dim; d++)
                out[r][d] += kept * v[d];
        }
    }
}

static int forward_rows(walk *run, int32_t head, int64_t q0)
{
    const mg_attn_call *call = &run->call;
    double most[SIDE], sum[SIDE] = {0}, out[SIDE][MG_ATTN_MAX_DIM] = {{0}};
    for (int r = 0; r < SIDE; r++)
        most[r] = -INFINITY;
    for (int only_most = 1; only_most >= 0; only_most--)
        for (int64_t k0 = 0; k0 < run->keys; k0 += SIDE) {
            int status = load_block(run, q0, k0);
            if (status)
                return status;
            forward_block(run, head, most, sum, out, only_most);
        }
    for (int r = 0; r < SIDE && q0 + r < run->queries; r++) {
        for (int32_t d = 0; d < call->value_dim && sum[r] != 0; d++)
            out[r][d] /= sum[r];
        store_row(call->out, out[r], out_type(call), q0 + r, head, call->value_dim);
        if (call->lse)
            call->lse[head * run->queries + q0 + r] = (float)(most[r] + log(sum[r]));
    }
    return 0;
}

static int begin(walk *run, const mg_attn_plan *plan, const mg_attn_call *call, int backward)
{
    int status = mg_attn_check_call(&run->call, plan, call, backward);
    if (status)
        return status;
    run->map = &plan->map;
    run->queries = plan->map.query_end - plan->map.query_begin;
    run->keys = plan->map.key_end - plan->map.key_begin;
    return 0;
}

int mg_attn_reference_forward(const mg_attn_plan *plan, const mg_attn_call *call)
{
    walk run;
    int status = begin(&run, plan, call, 0);
    for (int32_t head = 0; !status && head < call->heads; head++)
        for (int64_t q0 = 0; !status && q0 < run.queries; q0 += SIDE)
            status = forward_rows(&run, head, q0);
    return status;
}

/* --- backward --- */

/* What a query brings to the gradients of its pairs. */
typedef struct query_row {
    double q[MG_ATTN_MAX_DIM], dout[MG_ATTN_MAX_DIM];
    double lse, less; /* less: dout . out - dlse */
} query_row;

static void load_query(query_row *row, const walk *run, int32_t head, int64_t query)
{
    const mg_attn_call *call = &run->call;
    double out[MG_ATTN_MAX_DIM];
    load_row(row->q, call->q, call->type, query, head, call->dim);
    load_row(row->dout, call->dout, out_type(call), query, head, call->value_dim);
    load_row(out, call->out, out_type(call), query, head, call->value_dim);
    row->lse = call->lse[head * run->queries + query];
    row->less = dot(row->dout, out, call->value_dim) - (call->dlse ? call->dlse[head * run->queries + query] : 0);
}

/* dropout(P) and dS of a pair; 0 returned, and both 0, where it is hidden. */
static int pair_gradient(double *kept, double *ds, const walk *run, int32_t head, int r, int c, const query_row *row)
{
    const mg_attn_call *call = &run->call;
    double s, v[MG_ATTN_MAX_DIM];
    *kept = *ds = 0;
    if (row->lse == -INFINITY || !score(&s, run, head, r, c, row->q))
        return 0;
    double p = exp(s - row->lse), drop = keep(run, head, run->b.q0 + r, run->b.k0 + c);
    load_row(v, call->v, call->type, run->b.k0 + c, head, call->value_dim);
    *kept = p * drop;
    *ds = p * (drop * dot(row->dout, v, call->value_dim) - row->less);
    return 1;
}

/* Sums of a block of keys over all queries. */
typedef struct key_sums {
    double dk[SIDE][MG_ATTN_MAX_DIM], dv[SIDE][MG_ATTN_MAX_DIM], dkey_bias[SIDE];
} key_sums;

static void key_block(const walk *run, int32_t head, key_sums *sums, double *dtable)
{
    const mg_attn_call *call = &run->call;
    const block *b = &run->b;
    query_row row;
    double kept, ds;
    for (int r = 0; r < b->nq; r++) {
        load_query(&row, run, head, b->q0 + r);
        for (int c = 0; c < b->nk; c++) {
            int seen = pair_gradient(&kept, &ds, run, head, r, c, &row);
            if (call->dvalues && b->pairs[r][c] >= 0)
                call->dvalues[head * run->map->near_starts[run->map->queries] + b->pairs[r][c]] = (float)ds;
            if (!seen)
                continue;
            dtable[b->codes[r][c]] += ds;
            sums->dkey_bias[c] += ds;
            for (int32_t d = 0; d < call->dim; d++)
                sums->dk[c][d] += call->scale * ds * row.q[d];
            for (int32_t d = 0; d < call->value_dim; d++)
                sums->dv[c][d] += kept * row.dout[d];
        }
    }
}

static int backward_keys(walk *run, int32_t head, int64_t k0, double *dtable)
{
    const mg_attn_call *call = &run->call;
    key_sums sums;
    memset(&sums, 0, sizeof sums);
    for (int64_t q0 = 0; q0 < run->queries; q0 += SIDE) {
        int status = load_block(run, q0, k0);
        if (status)
            return status;
        key_block(run, head, &sums, dtable);
    }
    for (int c = 0; c < SIDE && k0 + c < run->keys; c++) {
        if (call->dk.data)
            store_row(call->dk, sums.dk[c], gradient_type(call), k0 + c, head, call->dim);
        if (call->dv.data)
            store_row(call->dv, sums.dv[c], gradient_type(call), k0 + c, head, call->value_dim);
        if (call->dkey_bias)
            call->dkey_bias[head * run->keys + k0 + c] = (float)sums.dkey_bias[c];
    }
    return 0;
}

static void query_block(const walk *run, int32_t head, double (*dq)[MG_ATTN_MAX_DIM])
{
    const mg_attn_call *call = &run->call;
    const block *b = &run->b;
    query_row row;
    double k[MG_ATTN_MAX_DIM], kept, ds;
    for (int r = 0; r < b->nq; r++) {
        load_query(&row, run, head, b->q0 + r);
        for (int c = 0; c < b->nk; c++) {
            if (!pair_gradient(&kept, &ds, run, head, r, c, &row))
                continue;
            load_row(k, call->k, call->type, b->k0 + c, head, call->dim);
            for (int32_t d = 0; d < call->dim; d++)
                dq[r][d] += call->scale * ds * k[d];
        }
    }
}

static int backward_queries(walk *run, int32_t head, int64_t q0)
{
    const mg_attn_call *call = &run->call;
    double dq[SIDE][MG_ATTN_MAX_DIM] = {{0}};
    for (int64_t k0 = 0; k0 < run->keys; k0 += SIDE) {
        int status = load_block(run, q0, k0);
        if (status)
            return status;
        query_block(run, head, dq);
    }
    for (int r = 0; r < SIDE && q0 + r < run->queries; r++)
        store_row(call->dq, dq[r], gradient_type(call), q0 + r, head, call->dim);
    return 0;
}

int mg_attn_reference_backward(const mg_attn_plan *plan, const mg_attn_call *call)
{
    walk run;
    int status = begin(&run, plan, call, 1);
    for (int32_t head = 0; !status && head < call->heads; head++) {
        double dtable[MG_ATTN_MAX_CODES] = {0};
        for (int64_t k0 = 0; !status && k0 < run.keys; k0 += SIDE)
            status = backward_keys(&run, head, k0, dtable);
        for (int64_t q0 = 0; !status && call->dq.data && q0 < run.queries; q0 += SIDE)
            status = backward_queries(&run, head, q0);
        for (int32_t code = 0; !status && call->dtable && code < run.map->codes; code++)
            call->dtable[(int64_t)head * run.map->codes + code] = (float)dtable[code];
    }
    return status;
}
