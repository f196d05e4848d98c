/* memory.h: counts what every library of the program holds, keeps the peak, and refuses beyond a limit; for each rank
 * of this process by itself. */
#ifndef MEGAGRAPH_APPS_MEMORY_H
#define MEGAGRAPH_APPS_MEMORY_H
#include <stdint.h>

/* Counts from now on; limit 0: none. Call before the first allocation and again to change the limit. */
void mg_memory_watch(int64_t limit);
/* From now on this thread is that rank of this process: what it allocates and gives back is counted there. Other
   threads are rank 0. Libraries allocate on the thread that calls them. */
void mg_memory_rank(int rank);
/* Of this thread's rank, likewise the limit. */
int64_t mg_memory_held(void);
int64_t mg_memory_peak(void);
/* The peak of resident memory of the process (VmHWM), 0 where the system does not tell. */
int64_t mg_memory_resident_peak(void);
int64_t mg_memory_machine(void); /* physical bytes of the machine */
/* What the limit refused last: "1.2 GB more were needed beside ..."; "" when it refused nothing. */
const char *mg_memory_refusal(void);
/* "1.23 GB"; static, four calls long. */
const char *mg_memory_text(int64_t bytes);
#endif
