/* threads.h: how many threads the program's libraries use. */
#ifndef MEGAGRAPH_APPS_THREADS_H
#define MEGAGRAPH_APPS_THREADS_H
void mg_threads_set(int threads); /* 0: all cores */
int mg_threads_count(void);
#endif
