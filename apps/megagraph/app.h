/* app.h: what every file of the program shares: the error line, counted memory, and handing on a library's error. */
#ifndef MEGAGRAPH_APPS_APP_H
#define MEGAGRAPH_APPS_APP_H
#include "library.h"

const char *mg_app_last_error(void);
void mg_app_set_memory_hook(int (*hook)(int64_t bytes));

/* return relay(status, mg_graph_last_error()); */
static inline int relay(int status, const char *line) { return status ? fail(status, "%s", line) : 0; }
#endif
