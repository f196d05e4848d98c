/* files.h: small files written so that a reader sees the old or the new one, never half of one. */
#ifndef MEGAGRAPH_APPS_FILES_H
#define MEGAGRAPH_APPS_FILES_H
#include <stddef.h>

/* folder + "/" + name; static, six calls long. */
const char *mg_files_path(const char *folder, const char *name);
int mg_files_exists(const char *path);
/* Makes a folder and those above it. */
int mg_files_make_folder(const char *path);
/* Removes a folder with all that lies in it; what is not there is fine. */
int mg_files_remove_folder(const char *path);
int mg_files_sync_folder(const char *path);
/* Writes text to path.new, syncs, renames. */
int mg_files_write(const char *path, const char *text, size_t bytes);
#endif
