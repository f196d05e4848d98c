/* Rows of other ranks: learning who needs which, fetching them, returning their gradients. */
#include "halo.h"
#include "library.h"

#include <string.h>

/* --- learning --- */

static int mark(uint64_t *marks, const int64_t *first, const mg_attn_port *port, const int64_t *starts,
                const int32_t *columns)
{
    const int64_t begin = first[port->rank], end = first[port->rank + 1], all = first[port->ranks];
    for (int64_t row = 0; row < end - begin; row++) {
        if (starts[row] < 0 || starts[row + 1] < starts[row])
            return fail(-EINVAL, "mg_attn_halo_create: starts of row %lld go from %lld to %lld", (long long)row,
                        (long long)starts[row], (long long)starts[row + 1]);
        for (int64_t e = starts[row]; e < starts[row + 1]; e++) {
            const int32_t column = columns[e];
            if (column < 0 || column >= all)
                return fail(-EINVAL, "mg_attn_halo_create: row %lld names column %d of %lld", (long long)row, column,
                            (long long)all);
            if (column < begin || column >= end)
                marks[column / 64] |= UINT64_C(1) << column % 64;
        }
    }
    return 0;
}

/* need_starts and needs from the marks. */
static int list_marked(mg_attn_halo *h, const uint64_t *marks, const int64_t *first)
{
    const int ranks = h->port.ranks;
    int64_t count = 0;
    for (int64_t w = 0; w <= first[ranks] / 64; w++)
        count += __builtin_popcountll(marks[w]);
    h->needs = allocate(count, sizeof *h->needs);
    if (!h->needs)
        return -ENOMEM;
    h->bytes += count * (int64_t)sizeof *h->needs;
    int rank = 0;
    count = 0;
    for (int64_t w = 0; w <= first[ranks] / 64; w++)
        for (uint64_t left = marks[w]; left; left &= left - 1) {
            const int64_t row = w * 64 + __builtin_ctzll(left);
            while (row >= first[rank + 1])
                h->need_starts[++rank] = count;
            h->needs[count++] = (int32_t)row;
        }
    while (rank < ranks)
        h->need_starts[++rank] = count;
    return 0;
}

static int list_needs(mg_attn_halo *h, const int64_t *first, const int64_t *starts, const int32_t *columns)
{
    const int ranks = h->port.ranks;
    h->need_starts = allocate_zeroed(ranks + 1, sizeof *h->need_starts);
    h->give_starts = allocate_zeroed(ranks + 1, sizeof *h->give_starts);
    h->requests = allocate_zeroed(2 * (int64_t)ranks, sizeof *h->requests);
    uint64_t *marks = allocate_zeroed(first[ranks] / 64 + 1, sizeof *marks);
    int status = h->need_starts && h->give_starts && h->requests && marks ? 0 : -ENOMEM;
    h->bytes = (int64_t)sizeof *h + (2 * (int64_t)ranks + 2) * (int64_t)sizeof(int64_t) +
               2 * (int64_t)ranks * (int64_t)sizeof(void *);
    if (!status)
        status = mark(marks, first, &h->port, starts, columns);
    if (!status)
        status = list_marked(h, marks, first);
    release(marks);
    return status;
}

/* Tells each rank how many of its rows are needed here, and is told; or that this rank failed. */
static int swap_counts(mg_attn_halo *h, const mg_attn_port *port, int status)
{
    int other = 0;
    for (int s = 1; s < port->ranks; s++) {
        const int to = rank_after(port, s), from = rank_before(port, s);
        const int64_t mine = status ? status : h->need_starts[to + 1] - h->need_starts[to];
        int64_t theirs = 0;
        const int failed = mg_attn_port_swap(port, TAG_LEARN, to, &mine, sizeof mine, from, &theirs, sizeof theirs);
        if (failed)
            return status ? status : failed;
        if (theirs < 0 && !status && !other)
            other = mg_attn_port_other_failed(from, (int)theirs);
        if (!status)
            h->give_starts[from + 1] = theirs;
    }
    return status ? status : other;
}

static int allocate_gives(mg_attn_halo *h)
{
    for (int r = 0; r < h->port.ranks; r++)
        h->give_starts[r + 1] += h->give_starts[r];
    h->gives = allocate(halo_sent(h), sizeof *h->gives);
    h->bytes += halo_sent(h) * (int64_t)sizeof *h->gives;
    return h->gives ? 0 : -ENOMEM;
}

static int swap_lists(mg_attn_halo *h)
{
    const mg_attn_port *port = &h->port;
    int status = 0;
    for (int s = 1; s < port->ranks && !status; s++) {
        const int to = rank_after(port, s), from = rank_before(port, s);
        const int64_t needed = h->need_starts[to + 1] - h->need_starts[to],
                      given = h->give_starts[from + 1] - h->give_starts[from];
        status =
            mg_attn_port_swap(port, TAG_LISTS, to, h->needs + h->need_starts[to], needed * (int64_t)sizeof *h->needs,
                              from, h->gives + h->give_starts[from], given * (int64_t)sizeof *h->gives);
    }
    for (int64_t i = 0; i < halo_sent(h) && !status; i++) {
        h->gives[i] -= (int32_t)h->begin;
        if (h->gives[i] < 0 || h->gives[i] >= h->own)
            status = fail(-EPROTO,
                          "another rank wants row %lld, which is not one of the %lld here: do all ranks have "
                          "the same `first`?",
                          (long long)(h->begin + h->gives[i]), (long long)h->own);
    }
    return status;
}

int mg_attn_halo_make(mg_attn_halo **out, const mg_attn_port *port, const int64_t *first, const int64_t *starts,
                      const int32_t *columns, int status)
{
    mg_attn_halo *h = status ? NULL : allocate_zeroed(1, sizeof *h);
    *out = NULL;
    if (!status && !h)
        status = -ENOMEM;
    if (!status) {
        h->port = *port;
        h->begin = first[port->rank];
        h->own = first[port->rank + 1] - h->begin;
        status = list_needs(h, first, starts, columns);
    }
    status = swap_counts(h, port, status);
    if (!status)
        status = mg_attn_port_agree(port, allocate_gives(h));
    if (!status)
        status = swap_lists(h);
    if (status) {
        mg_attn_halo_destroy(h);
        return status;
    }
    *out = h;
    return 0;
}

int mg_attn_halo_create(mg_attn_halo **out, const mg_attn_port *port, const int64_t *first, const int64_t *starts,
                        const int32_t *columns)
{
    if (!out)
        return fail(-EINVAL, "mg_attn_halo_create: out is NULL");
    *out = NULL;
    int status = mg_attn_port_check("mg_attn_halo_create", port, first);
    if (status)
        return status;
    const int64_t rows = first[port->rank + 1] - first[port->rank];
    if (rows && (!starts || (!columns && starts[rows] > starts[0])))
        status = fail(-EINVAL, "mg_attn_halo_create: %s is NULL", starts ? "columns" : "starts");
    return mg_attn_halo_make(out, port, first, starts, columns, status);
}

void mg_attn_halo_destroy(mg_attn_halo *h)
{
    if (!h)
        return;
    release(h->need_starts);
    release(h->needs);
    release(h->give_starts);
    release(h->gives);
    release(h->requests);
    release(h);
}

int64_t mg_attn_halo_rows(const mg_attn_halo *h) { return halo_rows(h); }
int64_t mg_attn_halo_sent(const mg_attn_halo *h) { return halo_sent(h); }

static int64_t place_of(const mg_attn_halo *h, int32_t row)
{
    int64_t begin = 0, end = halo_rows(h);
    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (h->needs[middle] < row)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

void mg_attn_halo_localise(int32_t *local, const mg_attn_halo *h, const int64_t *starts, const int32_t *columns)
{
    for (int64_t e = h->own ? starts[0] : 0; h->own && e < starts[h->own]; e++) {
        const int64_t column = columns[e] - h->begin;
        local[e] = (int32_t)(column >= 0 && column < h->own ? column : h->own + place_of(h, columns[e]));
    }
}

/* --- exchanging --- */

int mg_attn_halo_post(const mg_attn_halo *h, messages *m, const float *sent, float *received, int64_t width, int back)
{
    const int ranks = h->port.ranks, tag = back ? TAG_RETURN : TAG_FETCH;
    const int64_t *in = back ? h->give_starts : h->need_starts, *out = back ? h->need_starts : h->give_starts;
    const int64_t row = width * (int64_t)sizeof(float);
    int status = 0;
    for (int s = 1; s < ranks && !status; s++) {
        const int from = rank_before(&h->port, s);
        status = mg_attn_messages_receive(m, ranks + from, from, tag, received + in[from] * width,
                                          (in[from + 1] - in[from]) * row);
    }
    for (int s = 1; s < ranks && !status; s++) {
        const int to = rank_after(&h->port, s);
        status = mg_attn_messages_send(m, to, to, tag, sent + out[to] * width, (out[to + 1] - out[to]) * row);
    }
    return status;
}

static messages own_messages(const mg_attn_halo *h)
{
    return (messages){.port = &h->port, .requests = h->requests, .count = 2 * h->port.ranks};
}

static int check_rows(const char *caller, const mg_attn_halo *h, const float *rows, int64_t stride, int64_t width,
                      const float *buffer)
{
    const int64_t moved = h ? halo_rows(h) + halo_sent(h) : 0;
    if (!h || (moved && (!rows || !buffer)))
        return fail(-EINVAL, "%s: %s is NULL", caller, !h ? "halo" : !rows ? "rows" : "buffer");
    if (width < 1 || stride < width)
        return fail(-EINVAL, "%s: rows of %lld floats at a stride of %lld", caller, (long long)width,
                    (long long)stride);
    return 0;
}

int mg_attn_halo_fetch_begin(mg_attn_halo *h, const float *rows, int64_t stride, int64_t width, float *buffer)
{
    int status = check_rows("mg_attn_halo_fetch_begin", h, rows, stride, width, buffer);
    if (status)
        return status;
    for (int64_t i = 0; i < halo_sent(h); i++)
        memcpy(buffer + i * width, rows + h->gives[i] * stride, (size_t)width * sizeof *rows);
    messages m = own_messages(h);
    return mg_attn_halo_post(h, &m, buffer, buffer + halo_sent(h) * width, width, 0);
}

int mg_attn_halo_fetch_end(mg_attn_halo *h, float *rows, int64_t stride, int64_t width, float *buffer)
{
    int status = check_rows("mg_attn_halo_fetch_end", h, rows, stride, width, buffer);
    if (status)
        return status;
    messages m = own_messages(h);
    status = mg_attn_messages_wait_all(&m);
    for (int64_t i = 0; i < halo_rows(h) && !status; i++)
        memcpy(rows + (h->own + i) * stride, buffer + (halo_sent(h) + i) * width, (size_t)width * sizeof *rows);
    return status;
}

int mg_attn_halo_return_begin(mg_attn_halo *h, const float *rows, int64_t stride, int64_t width, float *buffer)
{
    int status = check_rows("mg_attn_halo_return_begin", h, rows, stride, width, buffer);
    if (status)
        return status;
    float *out = buffer + halo_sent(h) * width;
    for (int64_t i = 0; i < halo_rows(h); i++)
        memcpy(out + i * width, rows + (h->own + i) * stride, (size_t)width * sizeof *rows);
    messages m = own_messages(h);
    return mg_attn_halo_post(h, &m, out, buffer, width, 1);
}

int mg_attn_halo_return_end(mg_attn_halo *h, float *rows, int64_t stride, int64_t width, float *buffer)
{
    int status = check_rows("mg_attn_halo_return_end", h, rows, stride, width, buffer);
    if (status)
        return status;
    messages m = own_messages(h);
    status = mg_attn_messages_wait_all(&m);
    for (int64_t i = 0; i < halo_sent(h) && !status; i++)
        for (int64_t d = 0; d < width; d++)
            rows[h->gives[i] * stride + d] += buffer[i * width + d];
    return status;
}
