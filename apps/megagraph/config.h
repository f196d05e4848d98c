/* config.h: a configuration from YAML and back. The keys are those of options.h, nested ("model:" / "  layers: 3") or
 * dotted ("model.layers: 3"). Every refusal is one line with file, line, key and value.
 */
#ifndef MEGAGRAPH_APPS_CONFIG_H
#define MEGAGRAPH_APPS_CONFIG_H
#include "options.h"

/* Sets what the file gives; the rest is left alone. -ENOENT, -EINVAL. */
int mg_config_read(mg_config *config, const char *path);
int mg_config_parse(mg_config *config, const char *name, const char *text, size_t bytes);
/* One "key=value". */
int mg_config_assign(mg_config *config, const char *assignment);
/* The whole configuration as YAML that reads back the same; free() it. NULL: no memory, with the error line. */
char *mg_config_text(const mg_config *config);
/* Settings that decide the result: all but seeds, threads, memory, data.path, checkpoint_seconds, epochs and patience.
 */
uint64_t mg_config_hash(const mg_config *config);

/* A list "3", "0-2" or "all" over 0..count-1 as [*first, *last]. */
int mg_config_range(int64_t *first, int64_t *last, const char *key, const char *text, int64_t count);
#endif
