/* Which format a path is, told from content first and name second. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "library.h"
#include "parts.h"

typedef struct format {
    const char *name;
    int (*read)(mg_parts *parts);
    int takes_side_files; /* labels and features of a descriptor */
} format;

static const format formats[] = {
    {"npz", mg_read_npz, 0},
};
enum { FORMATS = sizeof formats / sizeof *formats };

static int find(const format **out, const char *path, const char *name)
{
    for (int f = 0; f < FORMATS; f++)
        if (!strcmp(formats[f].name, name)) {
            *out = &formats[f];
            return 0;
        }
    return fail(-EINVAL, "%s: format '%s' is not one of npz, ogb, tu, metis, mtx, edges", path, name);
}

int mg_dataset_open(mg_dataset **out, const char *path, const mg_dataset_desc *desc)
{
    const format *chosen;
    *out = NULL;
    int status = find(&chosen, path, "npz");
    if (status)
        return status;
    mg_parts parts = {.desc = desc, .path = path, .nodes = -1};
    mg_story_add(&parts.story, "%s\n", path);
    status = chosen->read(&parts);
    if (!status)
        status = mg_parts_finish(out, &parts);
    mg_parts_release(&parts);
    return status;
}
