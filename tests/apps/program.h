/* program.h: runs the program as a person would, in a folder of its own, and looks at what it left. */
#ifndef TESTS_APPS_PROGRAM_H
#define TESTS_APPS_PROGRAM_H
#include <jansson.h>

#include "support/test.h"

/* What the last run printed, stdout then stderr. */
extern char program_said[1 << 16];

int program_setup(void **state); /* makes the folder and goes there */
int program_teardown(void **state);

/* Words before the program's, as "mpirun -n 2"; "" at first. */
extern char program_before[4096];

/* megagraph with these arguments, one thread; its exit status. */
int program(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Fails unless it ends with 0. */
void program_works(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Fails unless it ends with 1 and its last line is one line of "megagraph: ..." that holds `part`. */
void program_refuses(const char *part, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Starts it and interrupts it when `path` has `lines` lines; its exit status. */
int program_interrupted(const char *path, int lines, const char *format, ...) __attribute__((format(printf, 3, 4)));

json_t *program_json(const char *path); /* of a file; json_decref it */
double program_number(const char *path, const char *key);
int program_same(const char *a, const char *b); /* files are equal to the byte */
int program_lines(const char *path);
char *program_text(const char *path); /* of a file; free it */
#endif
