#include "context_trial.h"

static void spread_tokens(trial *t)
{
    const int64_t tokens = t->p->queries;
    for (int r = 0; r <= t->ranks; r++)
        t->first[r] = t->spread == ALL_ON_LAST ? (r == t->ranks) * tokens : tokens * r / t->ranks;
    if (t->spread != UNEVEN || t->ranks == 1)
        return;
    for (int r = 1; r < t->ranks; r++)
        t->first[r] = tokens * r * r / t->ranks / t->ranks;
    t->first[1] = 1;
    if (t->ranks > 2)
        t->first[2] = 1;
    for (int r = 2; r < t->ranks; r++)
        t->first[r + 1] = t->first[r + 1] > t->first[r] ? t->first[r + 1] : t->first[r];
}

encoded *trial_map(mg_attn_map *map, problem *part, const problem *p, int64_t begin, int64_t end)
{
    *part = *p;
    part->queries = end - begin;
    part->codes_of = p->codes_of + begin * p->keys;
    for (int s = 0; s < 6; s++) {
        int64_t at = p->query_segments[s] < begin ? begin : p->query_segments[s] > end ? end : p->query_segments[s];
        part->query_segments[s] = at - begin;
    }
    return map_encode(map, part);
}

/* A rank's tensors, [row][heads][dim] and `pad` floats between rows. */
enum { PAD = 3 };
static mg_attn_tensor rows_of(float **memory, const float *from, int64_t begin, int64_t rows, int64_t behind,
                              int32_t heads, int32_t dim, int64_t pad)
{
    int64_t stride = heads * dim + pad;
    float *data = malloc((size_t)((rows + behind) * stride) * sizeof *data + 1);
    memset(data, 0xff, (size_t)((rows + behind) * stride) * sizeof *data);
    for (int64_t i = 0; from && i < rows; i++)
        memcpy(data + i * stride, from + (begin + i) * heads * dim, (size_t)(heads * dim) * sizeof *data);
    *memory = data;
    return (mg_attn_tensor){data, stride, dim};
}

typedef struct rank_call {
    trial *t;
    const mg_attn_context *context;
    int rank;
    mg_attn_call call;
    float *memory[9];
    float *values;
    int64_t begin, rows, map_begin, pairs;
} rank_call;

/* k and v, or their gradients: of an even number of ranks side by side in one row, as messages have them. */
static void pair_of(const rank_call *rc, float *memory[2], mg_attn_tensor *k, mg_attn_tensor *v, const float *from_k,
                    const float *from_v)
{
    const problem *p = rc->t->p;
    const int64_t behind = rc->t->info[rc->rank].halo_rows, width = p->heads * p->dim;
    if (rc->t->ranks % 2) {
        *k = rows_of(&memory[0], from_k, rc->begin, rc->rows, behind, p->heads, p->dim, PAD);
        *v = rows_of(&memory[1], from_v, rc->begin, rc->rows, behind, p->heads, p->value_dim, PAD);
        return;
    }
    *k = rows_of(&memory[0], from_k, rc->begin, rc->rows, behind, p->heads, p->dim, p->heads * p->value_dim);
    *v = (mg_attn_tensor){memory[0] + width, k->token_stride, p->value_dim};
    for (int64_t i = 0; from_v && i < rc->rows; i++)
        memcpy(memory[0] + i * k->token_stride + width, from_v + (rc->begin + i) * p->heads * p->value_dim,
               (size_t)(p->heads * p->value_dim) * sizeof(float));
}

static void take_rows(float *to, const mg_attn_tensor *from, int64_t begin, int64_t rows, int32_t heads, int32_t dim)
{
    for (int64_t i = 0; from->data && i < rows; i++)
        memcpy(to + (begin + i) * heads * dim, (float *)from->data + i * from->token_stride,
               (size_t)(heads * dim) * sizeof *to);
}

static int asked(const trial *t, int which) { return !(t->p->skip >> which & 1); }

static void make_call(rank_call *rc, const mg_attn_map *map)
{
    const trial *t = rc->t;
    const problem *p = t->p;
    mg_attn_call *call = &rc->call;
    *call = (mg_attn_call){.heads = p->heads,
                           .dim = p->dim,
                           .value_dim = p->value_dim,
                           .scale = p->scale,
                           .threads = t->threads ? t->threads : 1,
                           .table = p->with & TABLE ? p->table : NULL,
                           .dropout = p->dropout};
    call->q = rows_of(&rc->memory[0], p->q, rc->begin, rc->rows, 0, p->heads, p->dim, PAD);
    pair_of(rc, &rc->memory[1], &call->k, &call->v, p->k, p->v);
    call->out = rows_of(&rc->memory[3], NULL, 0, rc->rows, 0, p->heads, p->value_dim, PAD);
    call->dout = rows_of(&rc->memory[4], p->dout, rc->begin, rc->rows, 0, p->heads, p->value_dim, PAD);
    call->dq = rows_of(&rc->memory[5], NULL, 0, rc->rows, 0, p->heads, p->dim, PAD);
    pair_of(rc, &rc->memory[6], &call->dk, &call->dv, NULL, NULL);
    rc->memory[8] = call->lse = malloc((size_t)(p->heads * rc->rows) * sizeof(float) + 1);
    if (!(p->with & VALUES))
        return;
    rc->pairs = map->near_starts[map->queries];
    rc->values = malloc((size_t)(p->heads * rc->pairs) * sizeof(float) + 1);
    for (int32_t h = 0; h < p->heads; h++)
        for (int64_t i = 0; i < map->queries; i++)
            for (int64_t e = map->near_starts[i]; e < map->near_starts[i + 1]; e++)
                rc->values[h * rc->pairs + e] =
                    p->values[(h * p->queries + rc->map_begin + i) * p->keys + map->near_columns[e]];
    call->values = rc->values;
}

static void free_call(rank_call *rc)
{
    for (int m = 0; m < 9; m++)
        free(rc->memory[m]);
    free(rc->values);
}

static int with_workspace(rank_call *rc, int backward)
{
    const int64_t bytes = mg_attn_context_workspace_bytes(rc->context, &rc->call, backward);
    if (bytes < 0)
        return (int)bytes;
    assert_int_equal(posix_memalign(&rc->call.workspace, 64, (size_t)bytes + (bytes == 0)), 0);
    memset(rc->call.workspace, 0xff, (size_t)bytes);
    int64_t sent = test_ports_sent(rc->t->ports, rc->rank);
    int status = (backward ? mg_attn_context_backward : mg_attn_context_forward)(rc->context, &rc->call);
    sent = test_ports_sent(rc->t->ports, rc->rank) - sent;
    *(backward ? &rc->t->backward_bytes[rc->rank] : &rc->t->forward_bytes[rc->rank]) = sent;
    free(rc->call.workspace);
    return status;
}

static int backward(rank_call *rc)
{
    trial *t = rc->t;
    const problem *p = t->p;
    const int64_t codes = (int64_t)p->heads * p->codes, values = p->heads * rc->pairs;
    t->dtables[rc->rank] = malloc((size_t)codes * sizeof(float));
    memset(t->dtables[rc->rank], 0xff, (size_t)codes * sizeof(float));
    t->dvalues[rc->rank] = malloc((size_t)values * sizeof(float) + 1);
    memset(t->dvalues[rc->rank], 0xff, (size_t)values * sizeof(float));
    rc->call.dq.data = asked(t, DQ) ? rc->call.dq.data : NULL;
    rc->call.dk.data = asked(t, DK) ? rc->call.dk.data : NULL;
    rc->call.dv.data = asked(t, DV) ? rc->call.dv.data : NULL;
    rc->call.dtable = asked(t, DTABLE) ? t->dtables[rc->rank] : NULL;
    rc->call.dvalues = asked(t, DVALUES) && p->with & VALUES ? t->dvalues[rc->rank] : NULL;
    return with_workspace(rc, 1);
}

static void take_results(rank_call *rc)
{
    const trial *t = rc->t;
    const problem *p = t->p;
    const mg_attn_call *call = &rc->call;
    float *const *of = t->whole.of;
    take_rows(of[OUT], &call->out, rc->begin, rc->rows, p->heads, p->value_dim);
    for (int32_t h = 0; h < p->heads && call->lse; h++)
        memcpy(of[LSE] + h * p->queries + rc->begin, call->lse + h * rc->rows, (size_t)rc->rows * sizeof(float));
    if (t->no_lse)
        return;
    take_rows(of[DQ], &call->dq, rc->begin, rc->rows, p->heads, p->dim);
    take_rows(of[DK], &call->dk, rc->begin, rc->rows, p->heads, p->dim);
    take_rows(of[DV], &call->dv, rc->begin, rc->rows, p->heads, p->value_dim);
}

/* Of all ranks, after they are done. */
static void sum_shares(trial *t)
{
    const problem *p = t->p;
    for (int r = 0; r < t->ranks; r++) {
        for (int64_t i = 0; asked(t, DTABLE) && t->dtables[r] && i < (int64_t)p->heads * p->codes; i++)
            t->whole.of[DTABLE][i] += t->dtables[r][i];
        if (!(p->with & VALUES) || !asked(t, DVALUES) || !t->dvalues[r])
            continue;
        int64_t begin, end;
        problem part;
        mg_attn_map map;
        mg_attn_context_rows(&begin, &end, mg_attn_grid_of(t->method, t->ranks, p->heads), t->first, r);
        encoded *e = trial_map(&map, &part, p, begin, end);
        const int64_t pairs = map.near_starts[map.queries];
        for (int32_t h = 0; h < p->heads; h++)
            for (int64_t i = 0; i < map.queries; i++)
                for (int64_t at = map.near_starts[i]; at < map.near_starts[i + 1]; at++)
                    t->whole.of[DVALUES][(h * p->queries + begin + i) * p->keys + map.near_columns[at]] +=
                        t->dvalues[r][h * pairs + at];
        map_free(e);
    }
}

static int rank_work(void *context, int rank)
{
    trial *t = context;
    const problem *p = t->p;
    rank_call rc = {.t = t, .rank = rank, .begin = t->first[rank], .rows = t->first[rank + 1] - t->first[rank]};
    int64_t end;
    problem part;
    mg_attn_map map;
    mg_attn_context *made;
    mg_attn_context_rows(&rc.map_begin, &end, mg_attn_grid_of(t->method, t->ranks, p->heads), t->first, rank);
    encoded *e = trial_map(&map, &part, p, rc.map_begin, end);
    mg_attn_context_desc desc = {.method = t->method,
                                 .heads = p->heads,
                                 .port = {.context = test_ports_of(t->ports, rank),
                                          .rank = rank,
                                          .ranks = t->ranks,
                                          .send = test_port_send,
                                          .receive = test_port_receive,
                                          .test = test_port_test,
                                          .wait = test_port_wait},
                                 .first = t->first,
                                 .map = &map,
                                 .ids = t->ids,
                                 .keys_kept = t->keys_kept};
    int status = mg_attn_context_create(&made, &desc);
    if (!status) {
        rc.context = made;
        mg_attn_context_describe(&t->info[rank], made, p->dim);
        make_call(&rc, &map);
        if (t->no_lse)
            rc.call.lse = NULL;
        status = with_workspace(&rc, 0);
        if (!status && !t->no_lse)
            status = backward(&rc);
        if (!status)
            take_results(&rc);
        free_call(&rc);
        mg_attn_context_destroy(made);
    }
    map_free(e);
    return status;
}

int trial_run(trial *t)
{
    const problem *p = t->p;
    const int64_t n = p->queries, h = p->heads;
    t->whole = (result){.count = {n * h * p->value_dim, h * n, n * h * p->dim, n * h * p->dim, n * h * p->value_dim,
                                  h * p->codes, h * n * n}};
    for (int which = OUT; which <= DVALUES; which++)
        t->whole.of[which] = calloc((size_t)t->whole.count[which] + 1, sizeof(float));
    spread_tokens(t);
    t->ports = test_ports_open(t->ranks);
    test_ports_delay(t->ports, t->delay);
    test_ports_fail(t->ports, t->fail_at);
    const int status = test_ports_run(t->ports, rank_work, t);
    t->reached = test_ports_failed(t->ports);
    test_ports_close(t->ports);
    if (!status)
        sum_shares(t);
    return status;
}

void trial_free(trial *t)
{
    result_free(&t->whole);
    for (int r = 0; r < t->ranks; r++) {
        free(t->dtables[r]);
        free(t->dvalues[r]);
        t->dtables[r] = t->dvalues[r] = NULL;
    }
}

void trial_near(const char *what, const trial *t, const result *expected, double tolerance)
{
    static const char *const names[] = {"out", "lse", "dq", "dk", "dv", "dtable", "dvalues"};
    for (int which = OUT; which <= (t->no_lse ? OUT : DVALUES); which++) {
        /* Sums that cancel: dS of a row sums to 0, so a table with one code has the gradient 0. */
        const double least = which == DTABLE ? fmax(1, 3e-2 * (double)t->p->queries) : 1;
        double error = 0, norm = 0;
        const float *e = expected->of[which], *a = t->whole.of[which];
        if (!e || !asked(t, which))
            continue;
        for (int64_t i = 0; i < t->whole.count[which]; i++) {
            if (isinf(e[i]) && a[i] == e[i])
                continue;
            error += ((double)a[i] - (double)e[i]) * ((double)a[i] - (double)e[i]);
            norm += (double)e[i] * (double)e[i];
        }
        if (!(sqrt(error) <= tolerance * fmax(sqrt(norm), least)))
            fail_msg("%s: %s: error %.3g of norm %.3g, more than %.3g", what, names[which], sqrt(error), sqrt(norm),
                     tolerance);
    }
}
