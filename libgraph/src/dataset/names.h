/* Words numbered in the order in which they first came. */
#ifndef MG_DATASET_NAMES_H
#define MG_DATASET_NAMES_H
#include <stdint.h>

typedef struct mg_names {
    int64_t count, capacity;
    int64_t *offsets; /* [capacity] of each word in text, ended by NUL */
    char *text;
    int64_t bytes, text_capacity;
    int64_t slot_count; /* a power of two, more than twice count */
    int64_t *slots;     /* [slot_count] a word's number, or -1 */
} mg_names;

/* The number of the word, which is new when it equals the count before; negative: a status. */
int64_t mg_names_add(mg_names *names, const char *word);
/* The number of the word, or -1. */
int64_t mg_names_find(const mg_names *names, const char *word);
const char *mg_names_word(const mg_names *names, int64_t number);
void mg_names_release(mg_names *names);
#endif
