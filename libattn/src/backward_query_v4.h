/* dq of a tile by AVX-512, part of backward_tile.c: keys one by one, dS broadcast. A sum of 8 queries x 16 elements
 * needs 16 registers to hide the additions' latency: those of 32 elements, or of 16 for two halves of the keys. The last
 * 8 elements of a row go in pairs of queries, or in vectors of 8, with the same bits. */

enum { HALVES = TILE / HALF, KEYS = HALF / PER_WORD }; /* words of keys of a half */

/* Which of 16 keys is where after unpacking: 0 1 4 5 8 9 12 13, 2 3 6 7 10 11 14 15. */
INLINE int unpacked(int at) { return at % 8 / 2 * 4 + at / 8 * 2 + at % 2; }

/* Vectors of 16 elements: elements[v] of them from `from` on; unless `both`, one vector and two halves of the keys. */
INLINE void query_gradient(const backward_tile *t, const float *ds, int query, int32_t from, const __mmask16 elements,
                           const int both)
{
    float *dq = t->dq + (int64_t)query * t->row + from;
    const float *k = t->k_rows + from;
    ds += query * KEYS;
    const int32_t row = t->row;
    __m512 sum[BLOCK][2];
    UNROLL
    for (int r = 0; r < BLOCK; r++) {
        sum[r][0] = _mm512_maskz_loadu_ps(elements, dq + r * row);
        sum[r][1] = both ? _mm512_loadu_ps(dq + r * row + 16) : _mm512_setzero_ps();
    }
    for (int half = 0; half < (both ? HALVES : 1); half++) {
        const float *s = ds + half * TILE * KEYS;
        for (int key = 0; key < KEYS; key++) {
            const float *x = k + (int64_t)(half * KEYS + key) * row;
            const __m512 x0 = _mm512_maskz_loadu_ps(elements, x);
            const __m512 x1 = both ? _mm512_loadu_ps(x + 16) : _mm512_maskz_loadu_ps(elements, x + KEYS * row);
            if (both)
                multiply_add(sum, (const __m512[]){x0, x1}, s + key, KEYS, BLOCK);
            UNROLL
            for (int r = 0; r < BLOCK && !both; r++) {
                const float *one = s + r * KEYS + key;
                sum[r][0] = multiply_add_one(sum[r][0], x0, one);
                sum[r][1] = multiply_add_one(sum[r][1], x1, one + TILE * KEYS);
            }
        }
    }
    UNROLL
    for (int r = 0; r < BLOCK; r++) {
        if (both) {
            _mm512_storeu_ps(dq + r * row, sum[r][0]);
            _mm512_storeu_ps(dq + r * row + 16, sum[r][1]);
        } else
            _mm512_mask_storeu_ps(dq + r * row, elements, _mm512_add_ps(sum[r][0], sum[r][1]));
    }
}

/* Eight elements in vectors of 8, which pipes of 256 bits take two at once: half of the instructions of pairs of queries
 * do nothing else there. Sums are those of query_pairs where keys go `in_turns`, else those of query_gradient. */
INLINE void query_gradient_of_8(const backward_tile *t, const float *ds, int query, int32_t from, const int in_turns)
{
    float *dq = t->dq + (int64_t)query * t->row + from;
    const float *k = t->k_rows + from;
    ds += query * KEYS;
    const int32_t row = t->row;
    __m256 sum[BLOCK][2];
    UNROLL
    for (int r = 0; r < BLOCK; r++) {
        sum[r][0] = in_turns ? _mm256_setzero_ps() : _mm256_loadu_ps(dq + r * row);
        sum[r][1] = _mm256_setzero_ps();
    }
    for (int group = 0; group < (in_turns ? TILE : KEYS); group += 16) {
        UNROLL
        for (int at = 0; at < 16; at += in_turns ? 2 : 1) {
            const int key = in_turns ? (group & (HALF - 1)) + unpacked(at) : group + at, next = in_turns ? 1 : KEYS;
            const int half = in_turns ? group / HALF : 0;
            const float *x = k + (int64_t)(half * KEYS + key) * row, *one = ds + half * TILE * KEYS + key;
            const __m256 x0 = _mm256_loadu_ps(x), x1 = _mm256_loadu_ps(x + next * row);
            UNROLL
            for (int r = 0; r < BLOCK; r++) {
                sum[r][0] = multiply_add_one_of_8(sum[r][0], x0, one + r * KEYS);
                sum[r][1] = multiply_add_one_of_8(sum[r][1], x1, one + r * KEYS + (in_turns ? 1 : TILE * KEYS));
            }
        }
    }
    UNROLL
    for (int r = 0; r < BLOCK; r++) {
        const __m256 both = _mm256_add_ps(sum[r][0], sum[r][1]);
        _mm256_storeu_ps(dq + r * row, in_turns ? _mm256_add_ps(_mm256_loadu_ps(dq + r * row), both) : both);
    }
}

/* `count` pairs of queries from `query` on, rows of 8. */
INLINE void query_pairs(const backward_tile *t, float k[TILE][16], int query, const int count)
{
    const __m512i apart = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    float pairs[BLOCK][TILE][2] __attribute__((aligned(64)));
    __m512 sum[BLOCK][2];
    UNROLL
    for (int r = 0; r < count; r++) {
        for (int at = 0; at < TILE; at += 16) {
            const float *ds = t->ds + half_lane(at, TILE) + (query + 2 * r) * HALF;
            const __m512 a = _mm512_loadu_ps(ds), b = _mm512_loadu_ps(ds + HALF);
            _mm512_store_ps(pairs[r][at], _mm512_unpacklo_ps(a, b));
            _mm512_store_ps(pairs[r][at + 8], _mm512_unpackhi_ps(a, b));
        }
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    }
    for (int at = 0; at < TILE; at += 2) {
        const __m512 x0 = _mm512_load_ps(k[at]), x1 = _mm512_load_ps(k[at + 1]);
        UNROLL
        for (int r = 0; r < count; r++) {
            double two[2];
            memcpy(two, pairs[r][at], sizeof two);
            sum[r][0] = _mm512_fmadd_ps(x0, _mm512_castpd_ps(_mm512_set1_pd(two[0])), sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(x1, _mm512_castpd_ps(_mm512_set1_pd(two[1])), sum[r][1]);
        }
    }
    UNROLL
    for (int r = 0; r < count; r++) {
        float *dq = t->dq + (query + 2 * r) * 8;
        const __m512 two_rows = _mm512_permutexvar_ps(apart, _mm512_add_ps(sum[r][0], sum[r][1]));
        _mm512_storeu_ps(dq, _mm512_add_ps(_mm512_loadu_ps(dq), two_rows));
    }
}

/* Rows of 8: a vector holds two queries, their elements in turns, so that one 64-bit broadcast of dS serves both.
 *     sum  d0q0 d0q1 d1q0 d1q1 ... d7q1      dS  q0 q1 q0 q1 ...      k  d0 d0 d1 d1 ... d7 */
static void query_gradients_of_8(const backward_tile *t)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    float k[TILE][16] __attribute__((aligned(64)));
    for (int at = 0; at < TILE; at++) {
        const float *row = t->k_rows + ((at & ~15) + unpacked(at & 15)) * 8;
        const __m512 x = _mm512_castps256_ps512(_mm256_loadu_ps(row));
        _mm512_store_ps(k[at], _mm512_permutexvar_ps(twice, x));
    }
    for (int query = 0; query < t->query_blocks * BLOCK; query += 2 * BLOCK) {
        if (query + BLOCK < t->query_blocks * BLOCK)
            query_pairs(t, k, query, BLOCK);
        else
            query_pairs(t, k, query, BLOCK / 2);
    }
}

static void query_gradients(const backward_tile *t, const float *ds)
{
    const int queries = t->query_blocks * BLOCK;
    if (PER_WORD == 1 && t->row == 8) {
        if (!t->half_pipes)
            query_gradients_of_8(t);
        for (int query = 0; query < queries && t->half_pipes; query += BLOCK)
            query_gradient_of_8(t, ds, query, 0, 1);
        return;
    }
    for (int32_t from = 0; from < t->row;) {
        const int32_t left = t->row - from;
        for (int query = 0; query < queries; query += BLOCK) {
            if (left >= 32)
                query_gradient(t, ds, query, from, 0xFFFF, 1);
            else if (left == 8 && t->half_pipes)
                query_gradient_of_8(t, ds, query, from, 0);
            else
                query_gradient(t, ds, query, from, left == 8 ? 0xFF : 0xFFFF, 0);
        }
        from += left >= 32 ? 32 : 16;
    }
}
