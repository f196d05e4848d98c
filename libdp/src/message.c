/* Messages between two ranks. One of at most chunk_bytes is one piece; a longer one is a header that names its size,
 * and pieces of chunk_bytes. All pieces start at once, so the messages of a pair and match keep their order. */
#include "endpoint.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Tells a header from data where the receiver expects no header. */
static const uint64_t header_mark = 0x6d676e616d6f7265u;

double mg_dp_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static mg_comm_request *take_request(endpoint *end)
{
    mg_comm_request *request = end->spare;
    if (request)
        end->spare = request->next;
    else
        request = allocate(1, sizeof *request);
    return request;
}

/* Out of active, into spare. */
static void free_request(endpoint *end, mg_comm_request *request)
{
    if (request->pieces != &request->one)
        release(request->pieces);
    *request->link = request->next;
    if (request->next)
        request->next->link = request->link;
    request->next = end->spare;
    end->spare = request;
}

static void activate(endpoint *end, mg_comm_request *request)
{
    request->next = end->active;
    request->link = &end->active;
    if (request->next)
        request->next->link = &request->next;
    end->active = request;
}

static void set_piece(mg_comm_request *request, int64_t index, void *data, int64_t bytes)
{
    piece *p = &request->pieces[index];
    p->data = data;
    p->bytes = bytes;
    p->arrived = 0;
    p->peer = request->peer;
    p->match = request->match;
    p->sending = request->sending;
}

static int cut(mg_comm_request *request, char *data, int64_t chunk)
{
    if (request->bytes <= chunk) {
        request->pieces = &request->one;
        request->count = 1;
        set_piece(request, 0, data, request->bytes);
        return 0;
    }
    request->count = 1 + (request->bytes - 1) / chunk + 1;
    request->pieces = allocate(request->count, sizeof *request->pieces);
    if (!request->pieces)
        return -ENOMEM;
    request->header[0] = request->sending ? header_mark : 0;
    request->header[1] = request->sending ? (uint64_t)request->bytes : 0;
    set_piece(request, 0, request->header, sizeof request->header);
    for (int64_t i = 1; i < request->count; i++) {
        int64_t begin = (i - 1) * chunk, left = request->bytes - begin;
        set_piece(request, i, data + begin, left < chunk ? left : chunk);
    }
    return 0;
}

static void count_traffic(mg_comm *comm, const mg_comm_request *request)
{
    if (!request->sending || request->peer == comm->end->rank)
        return;
    int64_t bytes = request->bytes + (request->count > 1 ? (int64_t)sizeof request->header : 0);
    comm->end->sent.messages += request->count;
    comm->end->sent.bytes += bytes;
    comm->sent.messages += request->count;
    comm->sent.bytes += bytes;
}

int mg_dp_start(mg_comm *comm, mg_comm_request **out, int sending, int peer, uint32_t match, void *data, int64_t bytes)
{
    endpoint *end = comm->end;
    *out = NULL;
    int status = mg_dp_health(end);
    if (status)
        return status;
    mg_comm_request *request = take_request(end);
    if (!request)
        return -ENOMEM;
    request->comm = comm;
    request->name = comm->collective;
    request->sending = sending;
    request->peer = comm->ranks[peer];
    request->match = match;
    request->bytes = bytes;
    request->done = request->cancelled = 0;
    request->pieces = &request->one;
    activate(end, request);
    status = cut(request, data, end->options.chunk_bytes);
    int64_t started = 0;
    while (!status && started < request->count) {
        status = end->backend->start(end, &request->pieces[started]);
        started += !status;
    }
    if (status) {
        request->count = started; /* those are taken back */
        mg_dp_cancel(end, &request);
        return status;
    }
    count_traffic(comm, request);
    *out = request;
    return 0;
}

/* The last piece first, so that a peer who still posts never meets a later piece in place of an earlier one. */
static void take_back(endpoint *end, mg_comm_request *request)
{
    if (!request->cancelled)
        for (int64_t i = request->count - 1; i >= request->done; i--)
            end->backend->cancel(end, &request->pieces[i]);
    request->cancelled = 1;
}

void mg_dp_cancel(endpoint *end, mg_comm_request **request)
{
    if (*request) {
        take_back(end, *request);
        free_request(end, *request);
    }
    *request = NULL;
}

void mg_dp_surrender(endpoint *end, const mg_comm *comm)
{
    for (mg_comm_request *request = end->active; request; request = request->next)
        if (!comm || request->comm == comm)
            take_back(end, request);
}

int mg_dp_health(endpoint *end)
{
    int status = end->backend->health(end);
    if (status)
        mg_dp_surrender(end, NULL);
    return status;
}

/* What a rank waits for, in words: "all_reduce", "40 bytes to receive (tag 3)". */
static void describe(char *text, size_t size, const mg_comm_request *request)
{
    if (request->name)
        snprintf(text, size, "%s", request->name);
    else
        snprintf(text, size, "%lld bytes to %s, tag %u", (long long)request->bytes,
                 request->sending ? "send" : "receive", request->match & ((1u << TAG_BITS) - 1));
}

static int sizes_differ(const mg_comm_request *request, uint64_t sent)
{
    char text[96] = "";
    if (request->name)
        snprintf(text, sizeof text, " in %s", request->name);
    else
        snprintf(text, sizeof text, " with tag %u", request->match & ((1u << TAG_BITS) - 1));
    return fail(-EMSGSIZE,
                "rank %d receives %lld bytes from rank %d%s, but %llu were sent: both sides must name one size",
                request->comm->end->rank, (long long)request->bytes, request->peer, text, (unsigned long long)sent);
}

/* Whether the piece that has arrived has the size that the receive named. */
static int check_arrived(const mg_comm_request *request, const piece *p)
{
    uint64_t header[2] = {0};
    if (p->arrived == (int64_t)sizeof header && p->bytes >= (int64_t)sizeof header)
        memcpy(header, p->data, sizeof header);
    int headed = header[0] == header_mark, expects = request->count > 1 && p == request->pieces;
    if (headed && header[1] != (uint64_t)request->bytes)
        return sizes_differ(request, header[1]);
    if (p->arrived != p->bytes || headed != expects)
        return sizes_differ(request, (uint64_t)p->arrived);
    return 0;
}

static int progress(mg_comm_request *request, int *done)
{
    endpoint *end = request->comm->end;
    int status = request->cancelled ? mg_dp_health(end) : 0;
    if (request->cancelled)
        return status ? status : fail(-ECANCELED, "rank %d waits for a message that was taken back", end->rank);
    while (request->done < request->count) {
        piece *p = &request->pieces[request->done];
        int piece_done;
        status = end->backend->test(end, p, &piece_done);
        if (status == -ECONNRESET) {
            char text[96];
            describe(text, sizeof text, request);
            return fail(status, "rank %d waits for rank %d (%s), which has ended", end->rank, request->peer, text);
        }
        if (status)
            return status;
        if (!piece_done)
            break;
        request->done++;
        status = p->sending ? 0 : check_arrived(request, p);
        if (status)
            return status;
    }
    *done = request->done == request->count;
    return 0;
}

/* Frees what is over. */
static int conclude(mg_comm_request **request, int status, int done)
{
    endpoint *end = (*request)->comm->end;
    if (status == -ECONNABORTED)
        mg_dp_surrender(end, NULL);
    if (status)
        mg_dp_cancel(end, request);
    else if (done) {
        free_request(end, *request);
        *request = NULL;
    }
    return status;
}

/* "rank 0 has waited 5.0 s for rank 1 (all_reduce), which waits for rank 2" */
static void warn_late(const mg_comm_request *request, double seconds)
{
    endpoint *end = request->comm->end;
    char what[96], line[LINE];
    describe(what, sizeof what, request);
    int length = snprintf(line, sizeof line, "rank %d has waited %.1f s for rank %d (%s)", end->rank, seconds,
                          request->peer, what);
    int last = request->peer;
    for (int hop = 0; hop < end->ranks && length > 0 && length < LINE - 64; hop++) {
        int before = last;
        last = end->backend->awaits(end, before);
        if (last < 0 || last == end->rank || last == before)
            break;
        length += snprintf(line + length, sizeof line - (size_t)length, ", which waits for rank %d", last);
    }
    if (last == end->rank && length > 0 && length < LINE - 64)
        snprintf(line + length, sizeof line - (size_t)length, ", which waits for rank %d: a circle", last);
    end->options.warn(end->options.context, line);
}

static int wait_for(mg_comm_request **request)
{
    endpoint *end = (*request)->comm->end;
    int done = 0, status = progress(*request, &done);
    int watch = end->options.late_seconds > 0 && end->options.warn;
    double begin = watch && !status && !done ? mg_dp_now() : 0;
    for (int64_t round = 0; !status && !done; round++) {
        double left = watch ? begin + end->options.late_seconds - mg_dp_now() : INFINITY;
        if (left <= 0) {
            warn_late(*request, mg_dp_now() - begin);
            watch = 0;
            left = INFINITY;
        }
        end->backend->rest(end, &(*request)->pieces[(*request)->done], round, left);
        status = progress(*request, &done);
    }
    return conclude(request, status, done);
}

static int check_message(mg_comm *comm, mg_comm_request **out, const char *verb, int peer, int tag, const void *data,
                         int64_t bytes)
{
    *out = NULL;
    if (peer < 0 || peer >= comm->size)
        return fail(-EINVAL, "%s: rank %d is not one of %d", verb, peer, comm->size);
    if (tag < 0 || tag >= 1 << TAG_BITS)
        return fail(-EINVAL, "%s: tag %d; tags are 0 to %d", verb, tag, (1 << TAG_BITS) - 1);
    if (bytes < 0 || (bytes && !data))
        return fail(-EINVAL, "%s: %lld bytes at %p", verb, (long long)bytes, data);
    return 0;
}

int mg_comm_send(mg_comm *comm, mg_comm_request **out, int to, int tag, const void *data, int64_t bytes)
{
    int status = check_message(comm, out, "send", to, tag, data, bytes);
    return status ? status : mg_dp_start(comm, out, 1, to, comm->context | (uint32_t)tag, (void *)data, bytes);
}

int mg_comm_receive(mg_comm *comm, mg_comm_request **out, int from, int tag, void *data, int64_t bytes)
{
    int status = check_message(comm, out, "receive", from, tag, data, bytes);
    return status ? status : mg_dp_start(comm, out, 0, from, comm->context | (uint32_t)tag, data, bytes);
}

int mg_comm_test(mg_comm *comm, mg_comm_request **request, int *done)
{
    *done = 1;
    if (!*request)
        return mg_dp_health(comm->end);
    *done = 0;
    int status = progress(*request, done);
    return conclude(request, status, *done);
}

int mg_comm_wait(mg_comm *comm, mg_comm_request **request)
{
    return *request ? wait_for(request) : mg_dp_health(comm->end);
}

int mg_comm_wait_all(mg_comm *comm, mg_comm_request **requests, int64_t count)
{
    int status = 0;
    int64_t i = 0;
    for (; i < count && !status; i++)
        status = mg_comm_wait(comm, &requests[i]);
    for (; i < count; i++)
        mg_dp_cancel(comm->end, &requests[i]);
    return status;
}
