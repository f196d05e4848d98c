/* Text files, plain or gz, read by line, with numbers; every error names file and line. */
#ifndef MG_DATASET_TEXT_H
#define MG_DATASET_TEXT_H
#include <stdint.h>

typedef struct mg_text {
    char *path;   /* what was opened, with .gz where only that was there */
    void *file;   /* gzFile, which reads plain files too */
    char *buffer; /* [capacity + 1] bytes begin..end are read and not yet given out */
    int64_t capacity, begin, end;
    int64_t line; /* of `at`, from 1 */
    char *at;     /* cursor in the current line, which ends with NUL, without its \n or \r\n */
    int started;  /* a number of this line was read: a comma may come before the next */
} mg_text;

/* path, or path.gz when only that is there. -ENOENT and the like name the path. */
int mg_text_open(mg_text *text, const char *path);
void mg_text_close(mg_text *text);
int mg_text_exists(const char *path); /* or path.gz */

/* 1: at is the next line; 0: the file has ended; negative: unreadable, or not text. */
int mg_text_line(mg_text *text);
int mg_text_is_blank(const char *line);

/* -EINVAL and "path:line: ...". */
int mg_text_fail(const mg_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The next number of the line; numbers stand apart by blanks, a comma or a semicolon. what: its name for errors. */
int mg_text_integer(int64_t *value, mg_text *text, const char *what);
int mg_text_real(double *value, mg_text *text, const char *what);
/* 0 when nothing but blanks is left of the line. */
int mg_text_expect_end(mg_text *text);

/* The separator of a line of fields: tab, comma, semicolon, or ' ' for runs of blanks. */
char mg_text_separator(const char *line);
/* Cuts the next field out of *at, trimmed and without quotes; NULL: there are no more. Changes the line. */
char *mg_text_field(char **at, char separator);
/* The whole word as a number: 1, or 0 when it is none. Empty, nan, na, null, none: NaN. */
int mg_text_is_number(double *value, const char *word);
int mg_text_is_integer(int64_t *value, const char *word);
/* A word as it may stand in an error: short, printable. buffer: 48 bytes. */
const char *mg_text_quote(char *buffer, const char *word);

/* A file of numbers, the same count in each line. missing: empty fields are NaN, else they are refused. */
typedef struct mg_matrix {
    int64_t rows, columns;
    double *doubles; /* one of the two */
    float *floats;
} mg_matrix;
int mg_text_read_doubles(mg_matrix *matrix, const char *path, int missing);
int mg_text_read_floats(mg_matrix *matrix, const char *path, int missing);
/* A file of one integer in each line. */
int mg_text_read_integers(int64_t **values, int64_t *count, const char *path);
#endif
