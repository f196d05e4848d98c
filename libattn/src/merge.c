/* Merging partial results over disjoint keys. */
#include "library.h"
#include "megagraph/attn.h"

#include <math.h>

/* Both shares of the merged row, by exp(x - max): no argument is above 0, so nothing overflows. */
static void merge_row(float *out, float *lse, const float *part, float part_lse, int32_t dim)
{
    if (part_lse == -INFINITY && *lse != -INFINITY)
        return;
    if (*lse == -INFINITY) { /* out holds nothing yet, whatever its bytes are */
        for (int32_t d = 0; d < dim; d++)
            out[d] = part_lse == -INFINITY ? 0 : part[d];
        *lse = part_lse;
        return;
    }
    double most = *lse > part_lse ? *lse : part_lse;
    double old = exp(*lse - most), added = exp(part_lse - most), sum = old + added;
    float old_share = (float)(old / sum), added_share = (float)(added / sum);
    for (int32_t d = 0; d < dim; d++)
        out[d] = old_share * out[d] + added_share * part[d];
    *lse = (float)(most + log(sum));
}

int mg_attn_merge(mg_attn_tensor out, float *lse, mg_attn_tensor part, const float *part_lse, int64_t queries,
                  int32_t heads, int32_t value_dim)
{
    if (queries < 0 || heads < 1 || value_dim < 1 || value_dim > MG_ATTN_MAX_DIM)
        return fail(-EINVAL, "merge of %lld queries, %d heads of %d: queries must be >= 0, heads >= 1, value_dim 1..%d",
                    (long long)queries, heads, value_dim, MG_ATTN_MAX_DIM);
    if (queries && (!out.data || !lse || !part.data || !part_lse))
        return fail(-EINVAL, "merge needs out, lse, part and part_lse, but %s is NULL",
                    !out.data    ? "out"
                    : !lse       ? "lse"
                    : !part.data ? "part"
                                 : "part_lse");
    for (int32_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < queries; i++)
            merge_row((float *)out.data + i * out.token_stride + h * out.head_stride, lse + h * queries + i,
                      (const float *)part.data + i * part.token_stride + h * part.head_stride,
                      part_lse[h * queries + i], value_dim);
    return 0;
}
