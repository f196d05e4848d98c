#include "megagraph/graph.h"

#include <stdlib.h>

#include "graph/csr.h"
#include "library.h"

static int check_parts(int64_t nodes, const int64_t *starts, const int32_t *columns, const int32_t *part_of,
                       int32_t parts)
{
    if (parts < 1 || nodes < 0 || nodes > INT32_MAX)
        return fail(-EINVAL, "halo: %d parts of %lld nodes", parts, (long long)nodes);
    for (int64_t i = 0; i < nodes; i++)
        if (part_of[i] < 0 || part_of[i] >= parts)
            return fail(-EINVAL, "halo: node %lld is in part %d, but parts are 0 to %d", (long long)i, part_of[i],
                        parts - 1);
    for (int64_t e = 0; e < starts[nodes]; e++)
        if (columns[e] < 0 || columns[e] >= nodes)
            return fail(-EINVAL, "halo: entry %lld names node %d, but nodes are 0 to %lld", (long long)e, columns[e],
                        (long long)nodes - 1);
    return 0;
}

/* members[begins[p] .. begins[p + 1]): the nodes of part p, ascending. */
static void group_by_part(int64_t *begins, int32_t *members, int64_t nodes, const int32_t *part_of, int32_t parts)
{
    for (int32_t p = 0; p <= parts; p++)
        begins[p] = 0;
    for (int64_t i = 0; i < nodes; i++)
        begins[part_of[i] + 1]++;
    for (int32_t p = 0; p < parts; p++)
        begins[p + 1] += begins[p];
    for (int64_t i = 0; i < nodes; i++)
        members[begins[part_of[i]]++] = (int32_t)i;
    for (int32_t p = parts; p > 0; p--)
        begins[p] = begins[p - 1];
    begins[0] = 0;
}

typedef struct halo_work {
    int64_t nodes;
    const int64_t *starts;
    const int32_t *columns, *part_of;
    int32_t parts;
    int64_t *begins;  /* [parts + 1] */
    int32_t *members; /* [nodes] */
    int64_t *seen;    /* [nodes] 1 + the last part that was found to need this node */
    int64_t *places;  /* [parts] where the next node of each part goes, for the part in work */
} halo_work;

/* Counts (needs NULL) or writes what part p needs, in the order found. */
static void visit_part(const halo_work *work, int32_t p, int64_t stamp, int32_t *needs)
{
    for (int64_t m = work->begins[p]; m < work->begins[p + 1]; m++) {
        int32_t row = work->members[m];
        for (int64_t e = work->starts[row]; e < work->starts[row + 1]; e++) {
            int32_t column = work->columns[e], owner = work->part_of[column];
            if (owner == p || work->seen[column] == stamp)
                continue;
            work->seen[column] = stamp;
            int64_t place = work->places[owner]++;
            if (needs)
                needs[place] = column;
        }
    }
}

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int fill_halo(mg_graph_halo *halo, const halo_work *work)
{
    int64_t parts = work->parts, *starts = halo->starts;
    starts[0] = 0;
    for (int32_t p = 0; p < parts; p++) {
        for (int64_t s = 0; s < parts; s++)
            work->places[s] = 0;
        visit_part(work, p, 1 + p, NULL);
        for (int64_t s = 0; s < parts; s++)
            starts[p * parts + s + 1] = starts[p * parts + s] + work->places[s];
    }
    halo->needs = allocate(starts[parts * parts], sizeof *halo->needs);
    if (!halo->needs)
        return -ENOMEM;
    for (int32_t p = 0; p < parts; p++) {
        for (int64_t s = 0; s < parts; s++)
            work->places[s] = starts[p * parts + s];
        visit_part(work, p, 1 + parts + p, halo->needs);
        for (int64_t s = 0; s < parts; s++) {
            int64_t begin = starts[p * parts + s], end = starts[p * parts + s + 1];
            if (end > begin)
                qsort(halo->needs + begin, (size_t)(end - begin), sizeof *halo->needs, by_number);
        }
    }
    return 0;
}

int mg_graph_halo_create(mg_graph_halo **out, int64_t nodes, const int64_t *starts, const int32_t *columns,
                         const int32_t *part_of, int32_t parts)
{
    *out = NULL;
    int status = check_parts(nodes, starts, columns, part_of, parts);
    if (status)
        return status;
    halo_work work = {nodes, starts, columns, part_of, parts, NULL, NULL, NULL, NULL};
    mg_graph_halo *halo = allocate_zeroed(1, sizeof *halo);
    work.begins = halo ? allocate((int64_t)parts + 1, sizeof *work.begins) : NULL;
    work.members = work.begins ? allocate(nodes, sizeof *work.members) : NULL;
    work.seen = work.members ? allocate_zeroed(nodes, sizeof *work.seen) : NULL;
    work.places = work.seen ? allocate(parts, sizeof *work.places) : NULL;
    if (work.places)
        halo->starts = allocate((int64_t)parts * parts + 1, sizeof *halo->starts);
    if (halo && halo->starts) {
        halo->parts = parts;
        group_by_part(work.begins, work.members, nodes, part_of, parts);
        status = fill_halo(halo, &work);
    } else {
        status = -ENOMEM;
    }
    RELEASE_ALL(work.begins, work.members, work.seen, work.places);
    if (status)
        mg_graph_halo_destroy(halo);
    else
        *out = halo;
    return status;
}

void mg_graph_halo_destroy(mg_graph_halo *halo)
{
    if (halo)
        RELEASE_ALL(halo->starts, halo->needs, halo);
}
