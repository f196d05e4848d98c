/* progress.h: what a person sees while the program works: one live line on a terminal, plain lines in a log (stderr).
 * Also the wish to stop (Ctrl-C), since it is a person's too.
 */
#ifndef MEGAGRAPH_APPS_PROGRESS_H
#define MEGAGRAPH_APPS_PROGRESS_H
#include <stdint.h>

void mg_progress_quiet(int quiet); /* this thread says nothing: it is not rank 0 */

/* A line that stays; the live line is moved out of its way. */
void mg_progress_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The live line. In a log it is printed when `important` or ten seconds after the last. */
void mg_progress_show(int important, const char *format, ...) __attribute__((format(printf, 2, 3)));
void mg_progress_end(void);                       /* clears the live line */
double mg_progress_seconds(void);                 /* a steady clock */
const char *mg_progress_duration(double seconds); /* "1 h 02 min", "3.4 s"; static */

/* SIGINT and SIGTERM ask to stop; a second one ends the program at once. */
void mg_progress_catch_stop(void);
int mg_progress_stop_wanted(void); /* the signal, or 0 */
#endif
