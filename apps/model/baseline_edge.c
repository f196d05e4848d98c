/* Attention by gather and scatter over edges, one operation after the other over buffers [pairs][heads][dim]. */
#include "baseline_edge.h"

#include <string.h>

typedef struct work {
    const mg_model_baseline *b;
    const mg_attn_call *call;
    float *q, *k, *v, *p; /* kept from forward to backward: gathered rows, and P [pairs][heads] */
    float *t, *g;         /* a product or a message; gathered dout */
    float *ds;            /* [pairs][heads] */
    float *table, *sums;  /* [codes][heads], and its gradients of each part */
    int past;             /* edge buffers are larger than the caches */
} work;

typedef void (*pass)(const work *, int part);

static work work_of(const mg_model_baseline *b, const mg_attn_call *call, int backward)
{
    const int64_t weights = b->pairs * b->heads, floats = weights * b->dim;
    float *kept = b->p[call->dropout.layer], *space = call->workspace;
    work w = {b, call, kept, kept + floats, kept + 2 * floats, kept + 3 * floats, space, NULL, NULL, NULL, NULL, 0};
    space += floats;
    if (backward) {
        w.g = space, space += floats;
        w.ds = space, space += weights;
        w.sums = space;
    } else
        w.table = space;
    w.past = floats * 4 > BASELINE_CACHE;
    return w;
}

static int64_t first_pair(const work *w, int part) { return w->b->map.near_starts[w->b->row_parts[part]]; }
static int64_t pairs_of(const work *w, int part) { return first_pair(w, part + 1) - first_pair(w, part); }
static int64_t columns_of(const work *w) { return (int64_t)w->b->heads * w->b->dim; }

/* --- from nodes to edges --- */

static void gather(const work *w, int part, float *to, mg_attn_tensor from, const int32_t *rows)
{
    const int64_t e = first_pair(w, part);
    w->b->edges->gather(to + e * columns_of(w), from.data, from.token_stride, rows + e, pairs_of(w, part),
                        columns_of(w), w->past);
}

static void gather_q(const work *w, int part) { gather(w, part, w->q, w->call->q, w->b->pair_queries); }
static void gather_k(const work *w, int part) { gather(w, part, w->k, w->call->k, w->b->map.near_columns); }
static void gather_v(const work *w, int part) { gather(w, part, w->v, w->call->v, w->b->map.near_columns); }
static void gather_dout(const work *w, int part) { gather(w, part, w->g, w->call->dout, w->b->pair_queries); }

/* --- edge by edge --- */

static void multiply(const work *w, int part, const float *a, const float *b)
{
    const int64_t e = first_pair(w, part) * columns_of(w);
    w->b->edges->multiply(w->t + e, a + e, b + e, pairs_of(w, part) * columns_of(w), w->past);
}

static void multiply_qk(const work *w, int part) { multiply(w, part, w->q, w->k); }
static void multiply_dout_v(const work *w, int part) { multiply(w, part, w->g, w->v); }

static void sum(const work *w, int part, float *to)
{
    const int64_t e = first_pair(w, part);
    w->b->edges->group_sums(to + e * w->b->heads, w->t + e * columns_of(w), pairs_of(w, part) * w->b->heads, w->b->dim);
}

static void sum_scores(const work *w, int part)
{
    const mg_model_baseline *b = w->b;
    const int64_t e = first_pair(w, part);
    sum(w, part, w->p);
    b->edges->add_bias(w->p + e * b->heads, b->map.near_codes + e, w->table, w->call->scale, pairs_of(w, part),
                       b->heads);
}

static void sum_dp(const work *w, int part) { sum(w, part, w->ds); }

static void scale(const work *w, int part, const float *x, const float *by, float factor)
{
    const int64_t e = first_pair(w, part), c = columns_of(w), h = w->b->heads;
    w->b->edges->scale_groups(w->t + e * c, x + e * c, by + e * h, factor, pairs_of(w, part), w->b->heads, w->b->dim,
                              w->past);
}

static void message_v(const work *w, int part) { scale(w, part, w->v, w->p, 1); }
static void message_dv(const work *w, int part) { scale(w, part, w->g, w->p, 1); }
static void message_dq(const work *w, int part) { scale(w, part, w->k, w->ds, w->call->scale); }
static void message_dk(const work *w, int part) { scale(w, part, w->q, w->ds, w->call->scale); }

/* --- query by query --- */

static void softmax(const work *w, int part)
{
    const mg_model_baseline *b = w->b;
    const int64_t *starts = b->map.near_starts;
    for (int64_t i = b->row_parts[part]; i < b->row_parts[part + 1]; i++)
        b->edges->softmax(w->p + starts[i] * b->heads, starts[i + 1] - starts[i], b->heads);
}

static void softmax_backward(const work *w, int part)
{
    const mg_model_baseline *b = w->b;
    const int64_t *starts = b->map.near_starts;
    for (int64_t i = b->row_parts[part]; i < b->row_parts[part + 1]; i++)
        b->edges->softmax_backward(w->ds + starts[i] * b->heads, w->p + starts[i] * b->heads, starts[i + 1] - starts[i],
                                   b->heads);
}

static void table_gradient(const work *w, int part)
{
    const int64_t e = first_pair(w, part);
    mg_model_edge_part_table(w->b, w->sums, part, w->ds + e * w->b->heads, w->b->map.near_codes + e, pairs_of(w, part));
}

/* --- from edges to nodes: to queries in the order of the edges, to keys by the transposed list --- */

static void to_queries(const work *w, int part, mg_attn_tensor to)
{
    const mg_model_baseline *b = w->b;
    const int64_t *starts = b->map.near_starts, c = columns_of(w);
    for (int64_t i = b->row_parts[part]; i < b->row_parts[part + 1]; i++)
        b->edges->sum_rows(head_at(to, 0, i), w->t + starts[i] * c, c, NULL, NULL, NULL, starts[i + 1] - starts[i],
                           b->heads, b->dim);
}

static void to_keys(const work *w, int part, mg_attn_tensor to)
{
    const mg_model_baseline *b = w->b;
    const int64_t *starts = b->key_starts, c = columns_of(w);
    for (int64_t j = b->key_parts[part]; j < b->key_parts[part + 1]; j++)
        b->edges->sum_rows(head_at(to, 0, j), w->t, c, b->key_pairs + starts[j], NULL, NULL, starts[j + 1] - starts[j],
                           b->heads, b->dim);
}

static void sum_out(const work *w, int part) { to_queries(w, part, w->call->out); }
static void sum_dq(const work *w, int part) { to_queries(w, part, w->call->dq); }
static void sum_dk(const work *w, int part) { to_keys(w, part, w->call->dk); }
static void sum_dv(const work *w, int part) { to_keys(w, part, w->call->dv); }

/* --- all of them, in order --- */

static void run_passes(const work *w, const pass *passes, int count)
{
    const int threads = mg_model_threads(w->call->threads);
    (void)threads;
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < count; i++) {
#pragma omp for schedule(dynamic, 1)
        for (int part = 0; part < BASELINE_PARTS; part++)
            passes[i](w, part);
    }
}

int mg_model_edge_forward(const mg_model_baseline *b, const mg_attn_call *call)
{
    static const pass passes[] = {gather_q, gather_k, multiply_qk, sum_scores, softmax, gather_v, message_v, sum_out};
    const work w = work_of(b, call, 0);
    mg_model_edge_table(w.table, b, call);
    run_passes(&w, passes, sizeof passes / sizeof *passes);
    return 0;
}

int mg_model_edge_backward(const mg_model_baseline *b, const mg_attn_call *call)
{
    static const pass passes[] = {gather_dout,    message_dv, sum_dv, multiply_dout_v, sum_dp, softmax_backward,
                                  table_gradient, message_dq, sum_dq, message_dk,      sum_dk};
    const work w = work_of(b, call, 1);
    run_passes(&w, passes, sizeof passes / sizeof *passes);
    mg_model_edge_table_gradient(call->dtable, b, w.sums);
    return 0;
}
