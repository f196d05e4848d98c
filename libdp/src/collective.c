/* Collectives, made of messages. Every rank exchanges with every other directly: what a rank waits for is the rank that
 * is late, and a sum can be taken in rank order. */
#include "endpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Messages that are started together and then waited for. */
typedef struct batch {
    mg_comm *comm;
    uint32_t match;
    int count, status;
} batch;

static batch begin(mg_comm *comm, comm_kind kind)
{
    return (batch){.comm = comm, .match = comm->context | 1u << TAG_BITS | (uint32_t)kind};
}

static void post(batch *b, int sending, int peer, const void *data, int64_t bytes)
{
    if (b->status)
        return;
    b->status = mg_dp_start(b->comm, &b->comm->end->batch[b->count], sending, peer, b->match, (void *)data, bytes);
    b->count += !b->status;
}

static int complete(batch *b)
{
    mg_comm_request **requests = b->comm->end->batch;
    if (!b->status)
        return mg_comm_wait_all(b->comm, requests, b->count);
    for (int i = 0; i < b->count; i++)
        mg_dp_cancel(b->comm->end, &requests[i]);
    return b->status;
}

/* The n-th other rank, so that not all begin with the same. */
static int other(const mg_comm *comm, int n, int sending)
{
    return (comm->rank + (sending ? n : comm->size - n)) % comm->size;
}

int mg_dp_collect(mg_comm *comm, comm_kind kind, void *items, int64_t size)
{
    batch b = begin(comm, kind);
    char *item = items;
    if (comm->rank)
        post(&b, 1, 0, item + comm->rank * size, size);
    else
        for (int r = 1; r < comm->size; r++)
            post(&b, 0, r, item + r * size, size);
    return complete(&b);
}

/* A tree: the rank at distance d from the root has it from d without its lowest bit. */
int mg_dp_broadcast(mg_comm *comm, comm_kind kind, void *data, int64_t bytes, int root)
{
    int size = comm->size, distance = (comm->rank - root + size) % size, bit = 1;
    batch b = begin(comm, kind);
    while (bit < size && !(distance & bit))
        bit *= 2;
    if (distance) {
        post(&b, 0, (distance - bit + root) % size, data, bytes);
        int status = complete(&b);
        if (status)
            return status;
        b = begin(comm, kind);
    }
    for (bit /= 2; bit; bit /= 2)
        if (distance + bit < size)
            post(&b, 1, (distance + bit + root) % size, data, bytes);
    return complete(&b);
}

/* Slice r is elements [starts[r], starts[r + 1]). */
int mg_dp_gather(mg_comm *comm, comm_kind kind, char *data, const int64_t *starts, int64_t size)
{
    int me = comm->rank;
    batch b = begin(comm, kind);
    for (int n = 1; n < comm->size; n++) {
        int r = other(comm, n, 0);
        if (starts[r + 1] > starts[r])
            post(&b, 0, r, data + starts[r] * size, (starts[r + 1] - starts[r]) * size);
    }
    for (int n = 1; n < comm->size && starts[me + 1] > starts[me]; n++)
        post(&b, 1, other(comm, n, 1), data + starts[me] * size, (starts[me + 1] - starts[me]) * size);
    return complete(&b);
}

typedef struct reduction {
    char *data;
    const int64_t *starts;
    mg_comm_type type;
    mg_comm_operation operation;
    int64_t size, block; /* bytes of an element, elements of a block */
} reduction;

/* Elements of block number n of a slice. */
static int64_t block_length(const reduction *red, int slice, int64_t n)
{
    int64_t left = red->starts[slice + 1] - red->starts[slice] - n * red->block;
    return left < 0 ? 0 : left < red->block ? left : red->block;
}

static char *block_data(const reduction *red, int slice, int64_t n)
{
    return red->data + (red->starts[slice] + n * red->block) * red->size;
}

/* Block n of every slice goes to the slice's rank, which reduces it in rank order:
 *
 *     scratch:  [block of rank 0][of rank 1] ... [of rank size - 1], its own place unused
 */
static int reduce_blocks(mg_comm *comm, comm_kind kind, const reduction *red, int64_t n)
{
    int me = comm->rank, size = comm->size;
    int64_t mine = block_length(red, me, n), stride = red->block * red->size;
    batch b = begin(comm, kind);
    for (int r = 0; r < size && mine; r++)
        if (r != me)
            post(&b, 0, r, comm->end->scratch + r * stride, mine * red->size);
    for (int k = 1; k < size; k++) {
        int r = other(comm, k, 1);
        int64_t length = block_length(red, r, n);
        if (length)
            post(&b, 1, r, block_data(red, r, n), length * red->size);
    }
    int status = complete(&b);
    if (!status && mine) {
        char *own = block_data(red, me, n);
        mg_dp_reduce(own, comm->end->scratch, stride, own, me, size, mine, red->type, red->operation);
    }
    return status;
}

static int reduce_slices(mg_comm *comm, comm_kind kind, char *data, const int64_t *starts, mg_comm_type type,
                         mg_comm_operation operation)
{
    int64_t size = mg_dp_type_bytes(type), blocks = 0;
    reduction red = {.data = data,
                     .starts = starts,
                     .type = type,
                     .operation = operation,
                     .size = size,
                     .block = comm->end->scratch_bytes / comm->size / 64 * 64 / size};
    for (int r = 0; r < comm->size; r++) {
        int64_t length = starts[r + 1] - starts[r], needs = length / red.block + (length % red.block != 0);
        blocks = blocks > needs ? blocks : needs;
    }
    int status = 0;
    for (int64_t n = 0; n < blocks && !status && comm->size > 1; n++)
        status = reduce_blocks(comm, kind, &red, n);
    return status;
}

int mg_dp_all_reduce(mg_comm *comm, comm_kind kind, void *data, int64_t count, mg_comm_type type,
                     mg_comm_operation operation)
{
    int64_t *starts = comm->end->slices, each = count / comm->size, rest = count % comm->size;
    for (int r = 0; r <= comm->size; r++)
        starts[r] = each * r + (r < rest ? r : rest);
    int status = reduce_slices(comm, kind, data, starts, type, operation);
    return status ? status : mg_dp_gather(comm, kind, data, starts, mg_dp_type_bytes(type));
}

int mg_dp_agree(mg_comm *comm, comm_kind kind, int status, const char *line)
{
    struct {
        int32_t status;
        char line[LINE];
    } said = {.status = status};
    int32_t first = status ? comm->rank : comm->size;
    snprintf(said.line, sizeof said.line, "%s", !status ? "" : line && *line ? line : strerror(abs(status)));
    int failed = mg_dp_all_reduce(comm, kind, &first, 1, MG_COMM_INT32, MG_COMM_MIN);
    if (!failed && first < comm->size)
        failed = mg_dp_broadcast(comm, kind, &said, sizeof said, first);
    if (failed || first == comm->size)
        return failed;
    return fail(said.status, "rank %d: %s", comm->ranks[first], said.line);
}

/* --- the public ones: arguments, then the check, then the work --- */

static int check_arguments(const mg_comm *comm, const char *name, const void *data, int64_t count, mg_comm_type type,
                           int operation)
{
    int64_t size = mg_dp_type_bytes(type), bytes;
    if (!size)
        return fail(-EINVAL, "%s: type %d is none of mg_comm_type", name, (int)type);
    if (operation < 0 || operation > MG_COMM_MIN || (type == MG_COMM_BYTE && operation == MG_COMM_SUM))
        return fail(-EINVAL, "%s: operation %d on type %d; bytes have no sum", name, operation, (int)type);
    if (count < 0 || __builtin_mul_overflow(count, size, &bytes) || (count && !data))
        return fail(-EINVAL, "%s: %lld elements of %lld bytes at %p on rank %d", name, (long long)count,
                    (long long)size, data, comm->end->rank);
    return 0;
}

/* starts[r] = sum of counts before r. */
static int sum_slices(int64_t *starts, const mg_comm *comm, const char *name, const int64_t *counts)
{
    starts[0] = 0;
    for (int r = 0; r < comm->size; r++)
        if (counts[r] < 0 || __builtin_add_overflow(starts[r], counts[r], &starts[r + 1]))
            return fail(-EINVAL, "%s: slice %d has %lld elements", name, r, (long long)counts[r]);
    return 0;
}

static uint64_t hash_slices(const int64_t *counts, int size)
{
    uint64_t hash = 0;
    for (int r = 0; r < size; r++)
        hash = (hash ^ (uint64_t)counts[r]) * 0x9E3779B97F4A7C15u + (hash >> 29);
    return hash;
}

static call call_of(comm_kind kind)
{
    return (call){.kind = (int32_t)kind, .type = -1, .operation = -1, .root = -1, .count = -1};
}

int mg_comm_barrier(mg_comm *comm)
{
    char nothing = 0;
    int status = mg_dp_enter(comm, call_of(KIND_BARRIER));
    if (status)
        return status;
    status = mg_dp_collect(comm, KIND_BARRIER, &nothing, 0);
    if (!status)
        status = mg_dp_broadcast(comm, KIND_BARRIER, &nothing, 0, 0);
    return mg_dp_leave(comm, status);
}

int mg_comm_broadcast(mg_comm *comm, void *data, int64_t count, mg_comm_type type, int root)
{
    call c = call_of(KIND_BROADCAST);
    int status = check_arguments(comm, "broadcast", data, count, type, MG_COMM_MAX);
    if (!status && (root < 0 || root >= comm->size))
        status = fail(-EINVAL, "broadcast: root %d is not one of %d ranks", root, comm->size);
    c.count = count;
    c.type = (int32_t)type;
    c.root = root;
    if (!status)
        status = mg_dp_enter(comm, c);
    if (status)
        return status;
    return mg_dp_leave(comm, mg_dp_broadcast(comm, KIND_BROADCAST, data, count * mg_dp_type_bytes(type), root));
}

int mg_comm_all_reduce(mg_comm *comm, void *data, int64_t count, mg_comm_type type, mg_comm_operation operation)
{
    call c = call_of(KIND_ALL_REDUCE);
    int status = check_arguments(comm, "all_reduce", data, count, type, (int)operation);
    c.count = count;
    c.type = (int32_t)type;
    c.operation = (int32_t)operation;
    if (!status)
        status = mg_dp_enter(comm, c);
    if (status)
        return status;
    return mg_dp_leave(comm, mg_dp_all_reduce(comm, KIND_ALL_REDUCE, data, count, type, operation));
}

/* The common begin of reduce_scatter and all_gather, whose slices are then in end->slices. */
static int enter_slices(mg_comm *comm, comm_kind kind, const char *name, const void *data, const int64_t *counts,
                        mg_comm_type type, int operation)
{
    call c = call_of(kind);
    int64_t *starts = comm->end->slices;
    int status = sum_slices(starts, comm, name, counts);
    if (!status)
        status =
            check_arguments(comm, name, data, starts[comm->size], type, operation < 0 ? (int)MG_COMM_MAX : operation);
    if (status)
        return status;
    c.type = (int32_t)type;
    c.operation = operation;
    c.count = starts[comm->size];
    c.slices = hash_slices(counts, comm->size);
    return mg_dp_enter(comm, c);
}

int mg_comm_reduce_scatter(mg_comm *comm, void *data, const int64_t *counts, mg_comm_type type,
                           mg_comm_operation operation)
{
    int status = enter_slices(comm, KIND_REDUCE_SCATTER, "reduce_scatter", data, counts, type, (int)operation);
    if (status)
        return status;
    return mg_dp_leave(comm, reduce_slices(comm, KIND_REDUCE_SCATTER, data, comm->end->slices, type, operation));
}

int mg_comm_all_gather(mg_comm *comm, void *data, const int64_t *counts, mg_comm_type type)
{
    int status = enter_slices(comm, KIND_ALL_GATHER, "all_gather", data, counts, type, -1);
    if (status)
        return status;
    return mg_dp_leave(comm, mg_dp_gather(comm, KIND_ALL_GATHER, data, comm->end->slices, mg_dp_type_bytes(type)));
}

/* Empty slices are sent too, so that sizes which do not agree are found. */
static int exchange(mg_comm *comm, const char *send, const int64_t *send_counts, char *receive,
                    const int64_t *receive_counts, int64_t size)
{
    int64_t *starts = comm->end->slices, own = 0, first = 0;
    int me = comm->rank;
    batch b = begin(comm, KIND_ALL_TO_ALL);
    sum_slices(starts, comm, "all_to_all", receive_counts);
    own = starts[me];
    for (int n = 1; n < comm->size; n++) {
        int r = other(comm, n, 0);
        post(&b, 0, r, receive + starts[r] * size, receive_counts[r] * size);
    }
    sum_slices(starts, comm, "all_to_all", send_counts);
    first = starts[me];
    for (int n = 1; n < comm->size; n++) {
        int r = other(comm, n, 1);
        post(&b, 1, r, send + starts[r] * size, send_counts[r] * size);
    }
    if (send_counts[me])
        memcpy(receive + own * size, send + first * size, (size_t)(send_counts[me] * size));
    return complete(&b);
}

int mg_comm_all_to_all(mg_comm *comm, const void *send, const int64_t *send_counts, void *receive,
                       const int64_t *receive_counts, mg_comm_type type)
{
    call c = call_of(KIND_ALL_TO_ALL);
    int64_t *starts = comm->end->slices;
    int status = sum_slices(starts, comm, "all_to_all", send_counts);
    if (!status)
        status = check_arguments(comm, "all_to_all", send, starts[comm->size], type, MG_COMM_MAX);
    if (!status)
        status = sum_slices(starts, comm, "all_to_all", receive_counts);
    if (!status)
        status = check_arguments(comm, "all_to_all", receive, starts[comm->size], type, MG_COMM_MAX);
    if (!status && send_counts[comm->rank] != receive_counts[comm->rank])
        status = fail(-EINVAL, "all_to_all: rank %d sends itself %lld elements and receives %lld", comm->end->rank,
                      (long long)send_counts[comm->rank], (long long)receive_counts[comm->rank]);
    c.type = (int32_t)type;
    if (!status)
        status = mg_dp_enter(comm, c);
    if (status)
        return status;
    status = exchange(comm, send, send_counts, receive, receive_counts, mg_dp_type_bytes(type));
    return mg_dp_leave(comm, status);
}

int mg_comm_agree(mg_comm *comm, int status, const char *line)
{
    int entered = mg_dp_enter(comm, call_of(KIND_AGREE));
    return entered ? entered : mg_dp_leave(comm, mg_dp_agree(comm, KIND_AGREE, status, line));
}
