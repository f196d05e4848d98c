/* Files that appear whole or not at all: written under another name beside the path, then renamed. */
#ifndef MG_DATASET_ASIDE_H
#define MG_DATASET_ASIDE_H

/* The name to write to, which is now an empty file, as a new block; NULL with the error line set and *status negative.
   A path that is there and is no regular file (a device, a pipe) is written to by way of a temporary file. */
char *mg_aside_begin(int *status, const char *path);
/* Moves what was written to the path; takes `aside` over. status negative: removes it and returns status. */
int mg_aside_end(char *aside, const char *path, int status);
#endif
