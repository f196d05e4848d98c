/* model_baseline.h: attention as others compute it, in place of libattn, to compare with: an engine of
 * megagraph/context.h.
 *
 *     dense        one operation after the other over matrices [heads][tokens][tokens], as a framework's autograd does
 *                  it: the bias gathered from the table, P kept for each layer until backward; at the layer at work the
 *                  bias, then dP and dS besides. Products by oneDNN, vectorised passes
 *     dense_rows   the best that can be made of it: 64 rows at a time, whose scores stay in the second cache between
 *                  products and passes, the bias looked up in the pass that seeks the maximum; only P is a matrix
 *     edge         one operation after the other over near pairs, as a framework's programs for graphs do: q and k gathered to
 *                  buffers [pairs][heads][dim], multiplied to a third, summed; softmax; v gathered, scaled to messages,
 *                  summed by query. The three gathered buffers and P are kept for each layer until backward, which
 *                  gathers dout, makes a message for each of dv, dq, dk, and sums those by query or by key
 *     edge_rows    the best that can be made of it: row by row, P [pairs][heads] alone is kept, nothing is gathered;
 *                  gradients of keys and values over the transposed list
 *
 * Edges lie in the order of their queries and have a transposed list: better than most do. Results are those of libattn but
 * for rounding. Heads (edges: rows) are shared out to the threads; the same bits for any number of them. No dropout, no
 * pair values; over edges the heads of a token lie side by side.
 */
#ifndef MG_MODEL_BASELINE_H
#define MG_MODEL_BASELINE_H
#include <megagraph/context.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef enum mg_model_baseline_kind {
    MG_MODEL_BASELINE_DENSE,
    MG_MODEL_BASELINE_DENSE_ROWS,
    MG_MODEL_BASELINE_EDGE,
    MG_MODEL_BASELINE_EDGE_ROWS
} mg_model_baseline_kind;

typedef struct mg_model_baseline_desc {
    mg_model_baseline_kind kind;
    const mg_attn_map *map; /* square; DENSE or, for edges, NEAR with mask_far and codes; its arrays are borrowed */
    int32_t heads, dim;     /* of this rank */
    int32_t layers;         /* calls say their layer in dropout.layer */
} mg_model_baseline_desc;

typedef struct mg_model_baseline mg_model_baseline;
/* Bytes that create, and then workspaces of calls on so many threads, take. pairs: tokens^2, for edges the near pairs;
   infinity where they overflow. Looks at nothing of the map. */
double mg_model_baseline_bytes(const mg_model_baseline_desc *desc, int64_t tokens, int64_t pairs, int threads);
/* -EINVAL names what the map lacks; -ENOMEM. */
int mg_model_baseline_create(mg_model_baseline **out, const mg_model_baseline_desc *desc);
void mg_model_baseline_destroy(mg_model_baseline *baseline);
mg_attn_engine mg_model_baseline_engine(mg_model_baseline *baseline);
#ifdef __cplusplus
}
#endif
#endif
