/* Groups: the one of all ranks, and those split from it. */
#include "endpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CHUNK = 256 << 20, LARGEST_CHUNK = 1 << 30 };

int mg_dp_check_options(const mg_comm_options *options)
{
    if (options && (options->chunk_bytes < 0 || options->chunk_bytes > LARGEST_CHUNK))
        return fail(-EINVAL, "chunk_bytes %lld; it is at most %d, and 0 means %d", (long long)options->chunk_bytes,
                    LARGEST_CHUNK, DEFAULT_CHUNK);
    if (options && !(options->late_seconds >= 0))
        return fail(-EINVAL, "late_seconds %g; it is 0 or more", options->late_seconds);
    return 0;
}

/* A group of `size` ranks, whose list is to be filled. */
static mg_comm *make_group(endpoint *end, int size, int context)
{
    mg_comm *comm = allocate_zeroed(1, sizeof *comm);
    int *ranks = allocate(size, sizeof *ranks);
    if (!comm || !ranks) {
        release(comm);
        release(ranks);
        return NULL;
    }
    comm->end = end;
    comm->size = size;
    comm->ranks = ranks;
    comm->context = (uint32_t)context << (TAG_BITS + 1);
    end->free_contexts[context] = 0;
    return comm;
}

int mg_dp_open(mg_comm **out, endpoint *end, const mg_comm_options *options)
{
    int ranks = end->ranks;
    *out = NULL;
    if (options)
        end->options = *options;
    if (!end->options.chunk_bytes)
        end->options.chunk_bytes = DEFAULT_CHUNK;
    memset(end->free_contexts, 0, sizeof end->free_contexts);
    memset(end->free_contexts, 1, (size_t)(end->contexts < CONTEXTS ? end->contexts : CONTEXTS));
    int64_t each = SCRATCH_BYTES / ranks / 64 * 64;
    end->scratch_bytes = (each < SCRATCH_PER_RANK ? SCRATCH_PER_RANK : each) * ranks;
    mg_comm *comm = make_group(end, ranks, 0);
    end->batch = comm ? allocate_zeroed(2 * (int64_t)ranks, sizeof *end->batch) : NULL;
    end->slices = end->batch ? allocate((int64_t)ranks + 1, sizeof *end->slices) : NULL;
    end->scratch = end->slices ? allocate(end->scratch_bytes, 1) : NULL;
    if (!end->scratch) {
        release(end->slices);
        release(end->batch);
        if (comm)
            release(comm->ranks);
        release(comm);
        return -ENOMEM;
    }
    comm->whole = 1;
    comm->rank = end->rank;
    for (int r = 0; r < ranks; r++)
        comm->ranks[r] = r;
    *out = comm;
    return 0;
}

void mg_dp_forget(mg_comm *comm)
{
    endpoint *end = comm->end;
    while (end->active) { /* never waited for */
        mg_comm_request *request = end->active;
        mg_dp_cancel(end, &request);
    }
    while (end->spare) {
        mg_comm_request *request = end->spare;
        end->spare = request->next;
        release(request);
    }
    release(end->batch);
    release(end->slices);
    release(end->scratch);
    release(comm->ranks);
    release(comm);
}

void mg_dp_close(mg_comm *comm)
{
    endpoint *end = comm->end;
    mg_dp_forget(comm);
    end->backend->close(end); /* may free it */
}

static int above_one(const char *variable)
{
    const char *value = getenv(variable);
    return value && atoi(value) > 1;
}

/* By what the starters set: Open MPI's mpirun; MPICH's, or srun --mpi=pmi2; srun --mpi=pmix. */
int mg_comm_under_mpi(void)
{
    return above_one("OMPI_COMM_WORLD_SIZE") || above_one("PMI_SIZE") ||
           (getenv("PMIX_RANK") && above_one("SLURM_STEP_NUM_TASKS"));
}

int mg_comm_rank(const mg_comm *comm) { return comm->rank; }

int mg_comm_size(const mg_comm *comm) { return comm->size; }

const char *mg_comm_backend(const mg_comm *comm) { return comm->end->backend->name; }

mg_comm_traffic mg_comm_sent(const mg_comm *comm) { return comm->whole ? comm->end->sent : comm->sent; }

void mg_comm_abort(mg_comm *comm, int status, const char *line)
{
    char text[LINE];
    snprintf(text, sizeof text, "%s", line && *line ? line : "it gave up");
    comm->end->backend->abort(comm->end, status < 0 ? status : -ECANCELED, text);
    mg_dp_surrender(comm->end, NULL);
}

typedef struct place {
    int64_t color, key;
} place;

/* Ranks of the group with this rank's color, by key, then rank, into list; returns how many. */
static int members(int *list, const mg_comm *comm, const place *places)
{
    int count = 0;
    for (int r = 0; r < comm->size; r++) {
        if (places[r].color != places[comm->rank].color)
            continue;
        int at = count++;
        for (; at > 0 && places[list[at - 1]].key > places[r].key; at--)
            list[at] = list[at - 1];
        list[at] = r;
    }
    return count;
}

/* The first context that is free on all ranks, or -1. */
static int agree_context(int *context, mg_comm *comm)
{
    uint8_t contexts[CONTEXTS];
    memcpy(contexts, comm->end->free_contexts, sizeof contexts);
    int status = mg_dp_all_reduce(comm, KIND_SPLIT, contexts, CONTEXTS, MG_COMM_BYTE, MG_COMM_MIN);
    const uint8_t *found = status ? NULL : memchr(contexts, 1, sizeof contexts);
    *context = found ? (int)(found - contexts) : -1;
    if (!status && !found)
        return fail(-ENOSPC, "no more groups: %d are open on these ranks; close some", comm->end->contexts);
    return status;
}

/* Everyone's color and key, and a context for the new groups: what the ranks must exchange. Places are in scratch. */
static int exchange_places(mg_comm *comm, int color, int key, int *context)
{
    int status = agree_context(context, comm);
    if (status)
        return status;
    int64_t *starts = comm->end->slices;
    place *places = (place *)comm->end->scratch;
    for (int r = 0; r <= comm->size; r++)
        starts[r] = r;
    places[comm->rank] = (place){.color = color, .key = key};
    return mg_dp_gather(comm, KIND_SPLIT, (char *)places, starts, sizeof *places);
}

static mg_comm *make_split(const mg_comm *comm, int context)
{
    const place *places = (const place *)comm->end->scratch;
    int *list = (int *)(comm->end->scratch + comm->size * (int64_t)sizeof *places);
    int size = members(list, comm, places);
    mg_comm *group = make_group(comm->end, size, context);
    for (int m = 0; group && m < size; m++) {
        group->ranks[m] = comm->ranks[list[m]];
        if (list[m] == comm->rank)
            group->rank = m;
    }
    return group;
}

static void close_group(mg_comm *comm)
{
    mg_dp_surrender(comm->end, comm);
    comm->end->free_contexts[comm->context >> (TAG_BITS + 1)] = 1;
    release(comm->ranks);
    release(comm);
}

int mg_comm_split(mg_comm **out, mg_comm *comm, int color, int key)
{
    *out = NULL;
    int context,
        status = mg_dp_enter(comm, (call){.kind = KIND_SPLIT, .type = -1, .operation = -1, .root = -1, .count = -1});
    if (status)
        return status;
    status = exchange_places(comm, color, key, &context);
    if (!status) {
        *out = color < 0 ? NULL : make_split(comm, context);
        status = mg_dp_agree(comm, KIND_SPLIT, color < 0 || *out ? 0 : -ENOMEM, mg_dp_last_error()); /* fail alike */
    }
    if (status && *out) {
        close_group(*out);
        *out = NULL;
    }
    return mg_dp_leave(comm, status);
}

void mg_comm_close(mg_comm *comm)
{
    if (!comm)
        return;
    if (!comm->whole)
        close_group(comm);
    else if (!comm->end->lent)
        mg_dp_close(comm);
}
