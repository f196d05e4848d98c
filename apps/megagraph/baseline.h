/* baseline.h: `baseline`: attention as others compute it (apps/model/model_baseline.h), all-to-all where there are many
 * ranks.
 */
#ifndef MEGAGRAPH_APPS_BASELINE_H
#define MEGAGRAPH_APPS_BASELINE_H
#include <megagraph/dataset.h>

#include "model_baseline.h"
#include "options.h"

/* Whether attention is computed by apps/model/model_baseline.h: not for flash, which is libattn without bias. */
int mg_baseline_is_engine(const mg_config *config);
/* Settles what it decides, once all else is resolved. -EINVAL: what it cannot do. */
int mg_baseline_resolve(mg_config *config, const mg_dataset *data);
/* Settles parallel.context_method; more ranks than heads are refused. */
int mg_baseline_method(mg_config *config);
/* -ENOMEM with the bytes each rank needs, where matrices fit neither the limit nor, for `local` ranks at once, the
   machine. */
int mg_baseline_check(const mg_config *config, const mg_dataset *data, int local);
/* For this rank's heads; edge: checks the bytes likewise. */
int mg_baseline_create(mg_model_baseline **out, const mg_config *config, const mg_attn_map *map, int rank, int ranks);
#endif
