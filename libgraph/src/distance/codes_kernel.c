/* From the blocks of a search (a node's 512 sources) to rows of codes: 64 nodes of a bit plane are eight 64 x 64 bit
 * matrices, side by side in the lanes of 64 blocks, and all eight are transposed at once. After that, lane w of block r
 * holds the 64 nodes' bits for source w * 64 + r: a row of a tile. */
#include "block.h"

void KERNEL(codes)(const mg_graph_search *search, int64_t row, int64_t rows, int64_t column, int64_t columns,
                   uint8_t *codes, int64_t stride);
void KERNEL(tiles)(const mg_graph_search *search, const mg_graph_tile_rows *rows);
void KERNEL(near_counts)(const mg_graph_search *search, int64_t *counts);
void KERNEL(near_pairs)(const mg_graph_search *search, int64_t *places, int32_t *columns, uint8_t *codes);

typedef bits512 matrix[CHUNK];

static inline uint64_t matrix_word(const matrix rows, int64_t source) { return rows[source % CHUNK][source / CHUNK]; }

/* Swaps the high half of `upper` with the low half of `lower`, in groups of 2 x shift bits. */
INLINE void swap_halves(bits512 *upper, bits512 *lower, int shift, uint64_t low)
{
    bits512 change = (*upper >> shift ^ *lower) & low;
    *lower ^= change;
    *upper ^= change << shift;
}

/* Three levels of a 64 x 64 transpose on rows[0], rows[step], ... rows[7 * step]; shift is the largest of the three. */
INLINE void transpose_levels(bits512 *rows, int step, int shift, const uint64_t *lows)
{
    bits512 r[8];
    for (int i = 0; i < 8; i++)
        r[i] = rows[i * step];
    for (int i = 0; i < 4; i++)
        swap_halves(&r[i], &r[i + 4], shift, lows[0]);
    for (int i = 0; i < 8; i += i % 4 ? 3 : 1)
        swap_halves(&r[i], &r[i + 2], shift / 2, lows[1]);
    for (int i = 0; i < 8; i += 2)
        swap_halves(&r[i], &r[i + 1], shift / 4, lows[2]);
    for (int i = 0; i < 8; i++)
        rows[i * step] = r[i];
}

static void transpose(matrix rows)
{
    static const uint64_t coarse[] = {0x00000000ffffffff, 0x0000ffff0000ffff, 0x00ff00ff00ff00ff};
    static const uint64_t fine[] = {0x0f0f0f0f0f0f0f0f, 0x3333333333333333, 0x5555555555555555};
    for (int i = 0; i < 8; i++)
        transpose_levels(rows + i, 8, 32, coarse);
    for (int i = 0; i < 8; i++)
        transpose_levels(rows + 8 * i, 1, 4, fine);
}

static int is_active(const mg_graph_search *search, int64_t node, int64_t width)
{
    int active = 0;
    for (int64_t chunk = node / CHUNK; chunk <= (node + width - 1) / CHUNK; chunk++)
        active |= search->active[chunk];
    return active;
}

/* Code planes of nodes [node, node + width), far where not visited, 0 beyond width. */
INLINE void read_planes(matrix *planes, const mg_graph_search *search, int64_t node, int64_t width, int plane_count)
{
    int far = search->stream->hops + 1;
    for (int64_t c = 0; c < width; c++) {
        bits512 visited = search->visited[node + c];
        const bits512 *plane = search->planes + (node + c) * plane_count;
        int reached = !is_zero(&visited);
        for (int p = 0; p < plane_count; p++) {
            bits512 bits = reached ? plane[p] : (bits512){0};
            planes[p][c] = far >> p & 1 ? bits | ~visited : bits;
        }
    }
    for (int p = 0; p < plane_count; p++)
        memset(planes[p] + width, 0, (size_t)(CHUNK - width) * sizeof(bits512));
}

/* --- bytes ---
 * SPAN chunks at a time: rows of codes are far apart in memory, and four lines of one are cheaper than one of four.
 * What no cache near the core holds is written past the caches: half of the time of a large block is reading lines to
 * overwrite. */

enum { SPAN = 4, BLOCK_PAST_CACHES = 4 << 20 };

static void fill_far(const mg_graph_search *search, int64_t rows, int64_t width, uint8_t *codes, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++)
        memset(codes + r * stride, search->stream->hops + 1, (size_t)width);
}

/* Columns [0, width) of one row of a span, from its chunks' transposed planes. */
INLINE void write_row(uint8_t *codes, matrix (*planes)[MOST_PLANES], int64_t source, int64_t width, int plane_count,
                      int past_caches)
{
    for (int64_t done = 0; done < width; done += CHUNK) {
        uint64_t words[MOST_PLANES] = {0};
        for (int p = 0; p < plane_count; p++)
            words[p] = matrix_word(planes[done / CHUNK][p], source);
        if (width - done >= CHUNK) {
            expand_bits(codes + done, words, plane_count, past_caches);
        } else {
            uint8_t bytes[CHUNK];
            expand_bits(bytes, words, plane_count, 0);
            memcpy(codes + done, bytes, (size_t)(width - done));
        }
    }
}

INLINE void write_span(const mg_graph_search *search, int64_t row, int64_t rows, int64_t node, int64_t width,
                       uint8_t *codes, int64_t stride, int plane_count, int past_caches)
{
    matrix planes[SPAN][MOST_PLANES];
    for (int64_t done = 0; done < width; done += CHUNK) {
        matrix *chunk = planes[done / CHUNK];
        read_planes(chunk, search, node + done, width - done < CHUNK ? width - done : CHUNK, plane_count);
        for (int p = 0; p < plane_count; p++)
            transpose(chunk[p]);
    }
    if (width == SPAN * CHUNK)
        for (int64_t r = 0; r < rows; r++)
            write_row(codes + r * stride, planes, row + r, SPAN * CHUNK, plane_count, past_caches);
    else
        for (int64_t r = 0; r < rows; r++)
            write_row(codes + r * stride, planes, row + r, width, plane_count, 0);
}

INLINE void write_spans(const mg_graph_search *search, int64_t row, int64_t rows, int64_t column, int64_t columns,
                        uint8_t *codes, int64_t stride, int plane_count, int past_caches)
{
    for (int64_t done = 0; done < columns; done += SPAN * CHUNK) {
        int64_t width = columns - done < SPAN * CHUNK ? columns - done : SPAN * CHUNK, node = column + done;
        if (is_active(search, node, width))
            write_span(search, row, rows, node, width, codes + done, stride, plane_count, past_caches);
        else
            fill_far(search, rows, width, codes + done, stride);
    }
    if (past_caches)
        finish_writes();
}

void KERNEL(codes)(const mg_graph_search *search, int64_t row, int64_t rows, int64_t column, int64_t columns,
                   uint8_t *codes, int64_t stride)
{
    int planes = search->stream->plane_count;
    int past_caches = rows * columns >= BLOCK_PAST_CACHES && ((uintptr_t)codes | (uintptr_t)stride) % CHUNK == 0;
    switch (2 * planes + past_caches) {
    case 4:
        write_spans(search, row, rows, column, columns, codes, stride, 2, 0);
        break;
    case 5:
        write_spans(search, row, rows, column, columns, codes, stride, 2, 1);
        break;
    case 6:
        write_spans(search, row, rows, column, columns, codes, stride, 3, 0);
        break;
    case 7:
        write_spans(search, row, rows, column, columns, codes, stride, 3, 1);
        break;
    case 8:
        write_spans(search, row, rows, column, columns, codes, stride, 4, 0);
        break;
    case 9:
        write_spans(search, row, rows, column, columns, codes, stride, 4, 1);
        break;
    default:
        write_spans(search, row, rows, column, columns, codes, stride, planes, 0);
    }
}

/* --- tiles --- */

/* One tile: lane `lane` of the transposed planes; rows x width of its pairs are real. */
typedef struct tile_view {
    const matrix *planes;
    int64_t lane, rows, width;
    int plane_count, constant;
    int64_t exceptions; /* pairs that are not constant */
} tile_view;

static uint64_t width_bits(int64_t width) { return width == CHUNK ? ~(uint64_t)0 : ((uint64_t)1 << width) - 1; }

/* Key bits of row r where the code is not the constant. */
INLINE uint64_t row_exceptions(const tile_view *tile, int64_t r)
{
    uint64_t differs = 0;
    for (int p = 0; p < tile->plane_count; p++)
        differs |= matrix_word(tile->planes[p], tile->lane * CHUNK + r) ^ -(uint64_t)(tile->constant >> p & 1);
    return differs & width_bits(tile->width);
}

/* A code that more than half of the pairs have is the majority in every bit plane; where no code is that common, the
   exceptions are too many for a patch or the tile is tiny. */
static void find_constant(tile_view *tile, int far)
{
    tile->constant = 0;
    for (int p = 0; p < tile->plane_count; p++) {
        int64_t ones = 0;
        for (int64_t r = 0; r < tile->rows; r++)
            ones +=
                __builtin_popcountll(matrix_word(tile->planes[p], tile->lane * CHUNK + r) & width_bits(tile->width));
        tile->constant |= (2 * ones > tile->rows * tile->width) << p;
    }
    if (tile->constant > far)
        tile->constant = far;
    tile->exceptions = 0;
    for (int64_t r = 0; r < tile->rows; r++)
        tile->exceptions += __builtin_popcountll(row_exceptions(tile, r));
}

static int64_t round_up8(int64_t bytes) { return (bytes + 7) & ~(int64_t)7; }

static void write_patch(uint8_t *payload, const tile_view *tile)
{
    uint16_t count = (uint16_t)tile->exceptions, *positions = (uint16_t *)payload + 1;
    uint8_t *codes = (uint8_t *)(positions + count), *end = payload + round_up8(2 + 3 * (int64_t)count);
    memcpy(payload, &count, sizeof count);
    for (int64_t r = 0; r < tile->rows; r++)
        for (uint64_t left = row_exceptions(tile, r); left; left &= left - 1) {
            int c = __builtin_ctzll(left), code = 0;
            for (int p = 0; p < tile->plane_count; p++)
                code |= (int)(matrix_word(tile->planes[p], tile->lane * CHUNK + r) >> c & 1) << p;
            *positions++ = (uint16_t)(r * CHUNK + c);
            *codes++ = (uint8_t)code;
        }
    memset(codes, 0, (size_t)(end - codes));
}

static void write_planes(uint8_t *payload, const tile_view *tile)
{
    uint64_t *words = (uint64_t *)payload, real = width_bits(tile->width);
    for (int p = 0; p < tile->plane_count; p++)
        for (int64_t r = 0; r < CHUNK; r++)
            *words++ = r < tile->rows ? matrix_word(tile->planes[p], tile->lane * CHUNK + r) & real : 0;
}

static void measure_tile(const mg_graph_tile_rows *rows, int64_t at, const tile_view *tile)
{
    int64_t patch = round_up8(2 + 3 * tile->exceptions);
    rows->constants[at] = (uint8_t)tile->constant;
    if (!tile->exceptions) {
        rows->classes[at] = MG_GRAPH_TILE_CONSTANT;
        rows->offsets[at] = 0;
    } else if (tile->exceptions <= LONGEST_PATCH) {
        rows->classes[at] = MG_GRAPH_TILE_PATCH;
        rows->offsets[at] = patch;
    } else {
        rows->classes[at] = MG_GRAPH_TILE_PLANES;
        rows->constants[at] = 0;
        rows->offsets[at] = (int64_t)tile->plane_count * CHUNK * 8;
    }
}

static void fill_tile(const mg_graph_tile_rows *rows, int64_t at, tile_view *tile)
{
    uint8_t *payload = rows->payload + rows->offsets[at];
    if (rows->classes[at] == MG_GRAPH_TILE_PATCH)
        write_patch(payload, tile);
    else
        write_planes(payload, tile);
}

/* Before any transpose: is the tile of each lane constant, and on which code? */
static void constant_lanes(uint8_t *is_constant, uint8_t *codes, const mg_graph_search *search, const matrix *planes,
                           int64_t width)
{
    int plane_count = search->stream->plane_count;
    memset(is_constant, 1, 8);
    memset(codes, 0, 8);
    for (int p = 0; p < plane_count; p++) {
        bits512 any = planes[p][0], all = planes[p][0];
        for (int64_t c = 1; c < width; c++) {
            any |= planes[p][c];
            all &= planes[p][c];
        }
        for (int64_t w = 0; w * CHUNK < search->count; w++) {
            int64_t rows = search->count - w * CHUNK;
            uint64_t real = width_bits(rows < CHUNK ? rows : CHUNK);
            int ones = (all[w] & real) == real;
            is_constant[w] &= ones || !(any[w] & real);
            codes[w] |= (uint8_t)(ones << p);
        }
    }
}

static void tile_chunk(const mg_graph_search *search, const mg_graph_tile_rows *rows, int64_t node, int64_t width)
{
    matrix planes[MOST_PLANES];
    uint8_t is_constant[8], codes[8];
    int plane_count = search->stream->plane_count, transposed = 0, far = search->stream->hops + 1;
    read_planes(planes, search, node, width, plane_count);
    constant_lanes(is_constant, codes, search, planes, width);
    for (int64_t w = 0; w * CHUNK < search->count; w++) {
        int64_t left = search->count - w * CHUNK, at = w * rows->tile_columns + node / CHUNK;
        tile_view tile = {planes, w, left < CHUNK ? left : CHUNK, width, plane_count, codes[w], 0};
        if (!is_constant[w]) {
            for (int p = 0; !transposed && p < plane_count; p++)
                transpose(planes[p]);
            transposed = 1;
            find_constant(&tile, far);
        }
        if (!rows->payload)
            measure_tile(rows, at, &tile);
        else if (!is_constant[w])
            fill_tile(rows, at, &tile);
    }
}

void KERNEL(tiles)(const mg_graph_search *search, const mg_graph_tile_rows *rows)
{
    int64_t nodes = search->stream->graph->nodes;
    tile_view all_far = {.constant = search->stream->hops + 1};
    for (int64_t node = 0; node < nodes; node += CHUNK) {
        if (search->active[node / CHUNK])
            tile_chunk(search, rows, node, nodes - node < CHUNK ? nodes - node : CHUNK);
        else if (!rows->payload)
            for (int64_t w = 0; w * CHUNK < search->count; w++)
                measure_tile(rows, w * rows->tile_columns + node / CHUNK, &all_far);
    }
}

/* --- near pairs --- */

static void read_visited(matrix visited, const mg_graph_search *search, int64_t node, int64_t width)
{
    memcpy(visited, search->visited + node, (size_t)width * sizeof(bits512));
    memset(visited + width, 0, (size_t)(CHUNK - width) * sizeof(bits512));
    transpose(visited);
}

void KERNEL(near_counts)(const mg_graph_search *search, int64_t *counts)
{
    int64_t nodes = search->stream->graph->nodes;
    matrix visited;
    memset(counts, 0, (size_t)search->count * sizeof *counts);
    for (int64_t node = 0; node < nodes; node += CHUNK) {
        if (!search->active[node / CHUNK])
            continue;
        read_visited(visited, search, node, nodes - node < CHUNK ? nodes - node : CHUNK);
        for (int64_t r = 0; r < search->count; r++)
            counts[r] += __builtin_popcountll(matrix_word(visited, r));
    }
}

void KERNEL(near_pairs)(const mg_graph_search *search, int64_t *places, int32_t *columns, uint8_t *codes)
{
    int64_t nodes = search->stream->graph->nodes;
    int plane_count = search->stream->plane_count;
    matrix visited, planes[MOST_PLANES];
    for (int64_t node = 0; node < nodes; node += CHUNK) {
        if (!search->active[node / CHUNK])
            continue;
        int64_t width = nodes - node < CHUNK ? nodes - node : CHUNK;
        read_visited(visited, search, node, width);
        read_planes(planes, search, node, width, plane_count);
        for (int p = 0; p < plane_count; p++)
            transpose(planes[p]);
        for (int64_t r = 0; r < search->count; r++) {
            uint64_t words[MOST_PLANES] = {0}, near = matrix_word(visited, r);
            uint8_t bytes[CHUNK];
            if (!near)
                continue;
            for (int p = 0; p < plane_count; p++)
                words[p] = matrix_word(planes[p], r);
            expand_bits(bytes, words, plane_count, 0);
            places[r] += write_chosen(columns + places[r], codes + places[r], near, bytes, node);
        }
    }
}
