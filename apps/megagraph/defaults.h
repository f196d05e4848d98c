/* defaults.h: every "auto" of a configuration, settled from the dataset. What it chooses is meant to train well on a
 * graph never seen before; README.md has the rules and what they reach.
 */
#ifndef MEGAGRAPH_APPS_DEFAULTS_H
#define MEGAGRAPH_APPS_DEFAULTS_H
#include <megagraph/dataset.h>

#include "options.h"

/* Afterwards no value is auto but attention.bias (settled with the batches, by bytes). Refuses what cannot be with this
   dataset, with the key named. Says what a person should know (far pairs are not seen, ...). */
int mg_defaults_resolve(mg_config *config, const mg_dataset *data);
#endif
