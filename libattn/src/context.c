/* Contexts: laying out the grid, planning shards, learning who sees whom, describing. */
#include "context.h"
#include "library.h"

#include <string.h>

mg_attn_grid mg_attn_grid_of(mg_attn_method method, int ranks, int heads)
{
    mg_attn_grid grid = {.across = 1, .along = ranks};
    if (method == MG_ATTN_ALL_TO_ALL)
        for (int across = 1; across <= heads && across <= ranks; across++)
            if (ranks % across == 0)
                grid = (mg_attn_grid){.across = across, .along = ranks / across};
    return grid;
}

void mg_attn_context_rows(int64_t *begin, int64_t *end, mg_attn_grid grid, const int64_t *first, int rank)
{
    const int group = rank / grid.across;
    *begin = first[group * grid.across];
    *end = first[(group + 1) * grid.across];
}

/* --- create --- */

static int check_engine(const mg_attn_context_desc *desc)
{
    const mg_attn_grid grid = mg_attn_grid_of(desc->method, desc->port.ranks, desc->heads);
    if (!desc->engine->workspace_bytes || !desc->engine->forward || !desc->engine->backward)
        return fail(-EINVAL, "mg_attn_context_create: the engine lacks a callback");
    if (desc->method == MG_ATTN_HALO || grid.along != 1)
        return fail(-EINVAL,
                    "mg_attn_context_create: an engine computes whole heads, but %d ranks of %d heads are %d across x "
                    "%d along; take ALL_TO_ALL and as many ranks as divide among the heads, not HALO",
                    desc->port.ranks, desc->heads, grid.across, grid.along);
    return 0;
}

static int check_desc(const mg_attn_context_desc *desc)
{
    int status = mg_attn_port_check("mg_attn_context_create", &desc->port, desc->first);
    if (status)
        return status;
    if (desc->method != MG_ATTN_RING && desc->method != MG_ATTN_ALL_TO_ALL && desc->method != MG_ATTN_HALO)
        return fail(-EINVAL, "mg_attn_context_create: %d is no method", (int)desc->method);
    if (desc->heads < 1)
        return fail(-EINVAL, "mg_attn_context_create: %d heads; at least 1 is needed", desc->heads);
    if (!desc->map)
        return fail(-EINVAL, "mg_attn_context_create: map is NULL");
    return desc->engine ? check_engine(desc) : 0;
}

static int check_map(mg_attn_context *c, const mg_attn_map *map)
{
    const int64_t tokens = c->first[c->port.ranks];
    if (map->queries != c->rows || map->keys != tokens)
        return fail(-EINVAL,
                    "mg_attn_context_create: a map of %lld queries x %lld keys; rank %d of %d needs %lld (of "
                    "mg_attn_context_rows) x %lld (all tokens)",
                    (long long)map->queries, (long long)map->keys, c->port.rank, c->port.ranks, (long long)c->rows,
                    (long long)tokens);
    if (map->query_begin || map->query_end || map->key_begin || map->key_end)
        return fail(-EINVAL, "mg_attn_context_create: the ranges of the map are the context's own; leave them 0");
    if (c->method == MG_ATTN_HALO && (map->kind != MG_ATTN_NEAR || !map->mask_far))
        return fail(
            -EINVAL,
            "mg_attn_context_create: HALO fetches only rows that near pairs name, but here %s: every query sees "
            "all keys; take RING or ALL_TO_ALL, or a NEAR map with mask_far",
            map->kind == MG_ATTN_NEAR ? "far pairs are not masked" : "the map is not of kind MG_ATTN_NEAR");
    return mg_attn_plan_check_map(&c->map, map);
}

static void *obtain(mg_attn_context *c, int64_t count, size_t size)
{
    void *block = allocate_zeroed(count, size);
    c->bytes += block ? count * (int64_t)size : 0;
    return block;
}

static void place_rank(mg_attn_context *c, const mg_attn_context_desc *desc)
{
    int64_t end;
    c->method = desc->method;
    c->port = desc->port;
    c->heads = desc->heads;
    c->grid = mg_attn_grid_of(c->method, c->port.ranks, c->heads);
    c->group = c->port.rank / c->grid.across;
    c->place = c->port.rank % c->grid.across;
    c->head_begin = head_begin_of(c, c->place);
    c->head_end = head_begin_of(c, c->place + 1);
    mg_attn_context_rows(&c->begin, &end, c->grid, desc->first, c->port.rank);
    c->rows = end - c->begin;
    c->own = desc->first[c->port.rank + 1] - desc->first[c->port.rank];
    c->bytes = sizeof *c;
}

static int prepare(mg_attn_context *c, const mg_attn_context_desc *desc)
{
    c->first = obtain(c, c->port.ranks + 1, sizeof *c->first);
    c->shards = obtain(c, c->grid.along, sizeof *c->shards);
    c->readers = obtain(c, c->grid.along, sizeof *c->readers);
    if (!desc->ids)
        c->places = obtain(c, c->rows, sizeof *c->places);
    if (!c->first || !c->shards || !c->readers || (!desc->ids && !c->places))
        return -ENOMEM;
    memcpy(c->first, desc->first, (size_t)(c->port.ranks + 1) * sizeof *c->first);
    for (int64_t i = 0; i < c->rows && c->places; i++)
        c->places[i] = (uint32_t)(c->begin + i);
    c->ids = desc->ids;
    c->query_ids = desc->ids ? desc->ids + c->begin : c->places;
    return check_map(c, desc->map);
}

static int reads_from(const mg_attn_context *c, int rank)
{
    const int32_t group = rank / c->grid.across;
    if (c->method == MG_ATTN_HALO || rank % c->grid.across != c->place)
        return 0;
    for (int32_t i = 0; i < c->shard_count; i++)
        if (group_after(c, c->shards[i].step) == group)
            return 1;
    return 0;
}

/* Tells each rank whether its shard is read here, and is told; or that this rank failed. c may be NULL then. */
static int learn(mg_attn_context *c, const mg_attn_port *port, int status)
{
    int other = 0;
    for (int s = 1; s < port->ranks; s++) {
        const int to = rank_after(port, s), from = rank_before(port, s);
        const int64_t mine = status ? status : reads_from(c, to);
        int64_t theirs = 0;
        const int failed = mg_attn_port_swap(port, TAG_LEARN, to, &mine, sizeof mine, from, &theirs, sizeof theirs);
        if (failed)
            return status ? status : failed;
        if (theirs < 0 && !status && !other)
            other = mg_attn_port_other_failed(from, (int)theirs);
        if (theirs > 0 && !status)
            c->readers[c->reader_count++] = s / c->grid.across;
    }
    return status ? status : other;
}

int mg_attn_context_create(mg_attn_context **out, const mg_attn_context_desc *desc)
{
    if (!out || !desc)
        return fail(-EINVAL, "mg_attn_context_create: %s is NULL", out ? "desc" : "out");
    *out = NULL;
    int told = 0, status = check_desc(desc);
    if (status)
        return status;
    mg_attn_context *c = allocate_zeroed(1, sizeof *c);
    status = c ? 0 : -ENOMEM;
    if (c) {
        place_rank(c, desc);
        status = prepare(c, desc);
    }
    if (c && desc->engine)
        c->engine = *desc->engine;
    if (desc->method == MG_ATTN_HALO)
        status = mg_attn_context_make_halo(c, desc, status, &told);
    else if (!status && !desc->engine)
        status = mg_attn_context_make_ring(c);
    if (!told)
        status = learn(c, &desc->port, status);
    if (status) {
        mg_attn_context_destroy(c);
        return status;
    }
    *out = c;
    return 0;
}

void mg_attn_context_destroy(mg_attn_context *c)
{
    if (!c)
        return;
    for (int32_t i = 0; i < c->shard_count; i++)
        mg_attn_plan_destroy(c->shards[i].plan);
    mg_attn_halo_destroy(c->halo);
    void *const blocks[] = {c->first,         c->places,      c->shards,        c->readers,  c->pairs.starts,
                            c->pairs.columns, c->pairs.codes, c->pairs.offsets, c->pairs.ids};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        release(blocks[i]);
    release(c);
}

/* --- describe --- */

void mg_attn_context_describe(mg_attn_context_info *info, const mg_attn_context *c, int32_t dim)
{
    const int64_t row = (int64_t)(c->head_end - c->head_begin) * 2 * dim * (int64_t)sizeof(float);
    int64_t foreign = 0;
    *info = (mg_attn_context_info){.plan_bytes = c->bytes};
    for (int32_t i = 0; i < c->shard_count; i++) {
        mg_attn_plan_info of;
        mg_attn_plan_describe(&of, c->shards[i].plan);
        info->plan_bytes += of.plan_bytes;
        info->seen_pairs += of.seen_pairs;
        foreign += c->shards[i].step ? c->shards[i].keys : 0;
    }
    if (c->map.kind == MG_ATTN_STREAM || c->engine.forward)
        info->seen_pairs = -1;
    if (c->halo) {
        info->plan_bytes += c->halo->bytes;
        info->halo_rows = halo_rows(c->halo);
        info->forward_bytes = halo_sent(c->halo) * row;
        info->backward_bytes = ((c->keys_kept ? 0 : halo_sent(c->halo)) + halo_rows(c->halo)) * row;
        return;
    }
    info->forward_bytes = c->reader_count * c->rows * row + mg_attn_context_heads_bytes(c, dim, 0);
    info->backward_bytes = (c->reader_count * c->rows + foreign) * row + mg_attn_context_heads_bytes(c, dim, 1);
}
