/* The begin and end of a collective: its name, its number, and under options.check whether all ranks call the same. */
#include "endpoint.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {[KIND_BARRIER] = "barrier",
                                    [KIND_BROADCAST] = "broadcast",
                                    [KIND_ALL_REDUCE] = "all_reduce",
                                    [KIND_REDUCE_SCATTER] = "reduce_scatter",
                                    [KIND_ALL_GATHER] = "all_gather",
                                    [KIND_ALL_TO_ALL] = "all_to_all",
                                    [KIND_SPLIT] = "split",
                                    [KIND_AGREE] = "agree",
                                    [KIND_CHECK] = "check"};

/* "all_reduce of 8 fp32, sum, as collective 3" */
static void describe(char *text, size_t size, const call *c)
{
    static const char *const types[] = {"fp32", "fp64", "int32", "int64", "byte"};
    static const char *const operations[] = {"sum", "max", "min"};
    char count[64] = "", operation[32] = "", root[32] = "";
    if (c->count >= 0)
        snprintf(count, sizeof count, " of %lld", (long long)c->count);
    if (c->operation >= 0)
        snprintf(operation, sizeof operation, ", %s", operations[c->operation]);
    if (c->root >= 0)
        snprintf(root, sizeof root, ", root %d", c->root);
    snprintf(text, size, "%s%s%s%s%s%s as collective %lld", names[c->kind], count, c->type >= 0 ? " " : "",
             c->type >= 0 ? types[c->type] : "", operation, root, (long long)c->number);
}

static int mismatch(int rank, const call *mine, int other, const call *theirs)
{
    char left[128], right[128];
    describe(left, sizeof left, mine);
    describe(right, sizeof right, theirs);
    const char *hint = strcmp(left, right) ? "" : " (the slices differ)";
    return fail(-EPROTO, "ranks call different collectives: rank %d %s, rank %d %s%s", rank, left, other, right, hint);
}

/* What rank 0 tells all: the first rank whose call differs from its own, or -1; and both calls. */
typedef struct verdict {
    int64_t other;
    call zero, theirs;
} verdict;

static verdict judge(const call *calls, int count)
{
    for (int r = 1; r < count; r++)
        if (memcmp(&calls[r], &calls[0], sizeof calls[0]))
            return (verdict){.other = r, .zero = calls[0], .theirs = calls[r]};
    return (verdict){.other = -1};
}

static int compare(mg_comm *comm, call mine)
{
    call *calls = (call *)comm->end->scratch;
    verdict v = {.other = -1};
    calls[comm->rank] = mine;
    int status = mg_dp_collect(comm, KIND_CHECK, calls, sizeof *calls);
    if (status)
        return status;
    if (comm->rank == 0)
        v = judge(calls, comm->size);
    status = mg_dp_broadcast(comm, KIND_CHECK, &v, sizeof v, 0);
    if (status || v.other < 0)
        return status;
    return mismatch(comm->ranks[0], &v.zero, comm->ranks[v.other], &v.theirs);
}

int mg_dp_enter(mg_comm *comm, call c)
{
    int status = mg_dp_health(comm->end);
    if (status)
        return status;
    comm->collective = names[c.kind];
    c.number = comm->collectives++;
    status = comm->end->options.check && comm->size > 1 ? compare(comm, c) : 0;
    return status ? mg_dp_leave(comm, status) : 0;
}

int mg_dp_leave(mg_comm *comm, int status)
{
    comm->collective = NULL;
    return status;
}
