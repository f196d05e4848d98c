/* Which format a path is, told from content first and name second. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "library.h"
#include "parts.h"
#include "text.h"

typedef struct format {
    const char *name;
    int (*read)(mg_parts *parts);
    int takes_side_files; /* labels and features of a descriptor */
} format;

enum { NPZ, OGB, TU, METIS, MTX, EDGES, FORMATS };
static const format formats[FORMATS] = {
    [NPZ] = {"npz", mg_read_npz, 0},       [OGB] = {"ogb", mg_read_ogb, 0}, [TU] = {"tu", mg_read_tu, 0},
    [METIS] = {"metis", mg_read_metis, 1}, [MTX] = {"mtx", mg_read_mtx, 1}, [EDGES] = {"edges", mg_read_edges, 1}};

static int find_named(const char *path, const char *name)
{
    for (int f = 0; f < FORMATS; f++)
        if (!strcmp(formats[f].name, name))
            return f;
    return fail(-EINVAL, "%s: format '%s' is not one of npz, ogb, tu, metis, mtx, edges", path, name);
}

static int has_file(const char *folder, const char *name)
{
    char *path = mg_path("%s/%s", folder, name);
    int found = path ? mg_text_exists(path) : -ENOMEM;
    release(path);
    return found;
}

static int has_ending(const char *folder, const char *inside, const char *ending)
{
    struct stat status;
    int64_t count = 0;
    char *name = NULL, *path = mg_path("%s%s", folder, inside);
    int failed = !path ? -ENOMEM : stat(path, &status) ? 0 : mg_folder_find(&name, &count, path, ending);
    release(name);
    release(path);
    return failed ? failed : count > 0;
}

static int tell_folder(const char *path)
{
    int found = has_file(path, "raw/num-node-list.csv");
    if (!found)
        found = has_file(path, "num-node-list.csv");
    if (found)
        return found < 0 ? found : OGB;
    static const char *const endings[] = {"_A.txt", "_A.txt.gz"};
    for (int e = 0; e < 4 && !found; e++)
        found = has_ending(path, e / 2 ? "/raw" : "", endings[e % 2]);
    if (found)
        return found < 0 ? found : TU;
    return fail(-EINVAL, "%s: this folder is neither OGB (num-node-list.csv) nor TU (*_A.txt)", path);
}

static int ends_with(const char *path, const char *ending)
{
    size_t length = strlen(path), tail = strlen(ending);
    if (length > 3 && !strcmp(path + length - 3, ".gz"))
        length -= 3;
    return length > tail && !memcmp(path + length - tail, ending, tail);
}

static int tell_by_name(const char *path)
{
    static const struct {
        const char *ending;
        int format;
    } endings[] = {{".graph", METIS}, {".metis", METIS}, {".mtx", MTX},   {".edges", EDGES}, {".edgelist", EDGES},
                   {".el", EDGES},    {".csv", EDGES},   {".tsv", EDGES}, {".txt", EDGES},   {".npz", NPZ}};
    for (size_t e = 0; e < sizeof endings / sizeof *endings; e++)
        if (ends_with(path, endings[e].ending))
            return endings[e].format;
    return fail(-EINVAL,
                "%s: no known format: read are .npz, OGB and TU folders, .graph, .mtx, .edges, .csv, .tsv and .txt "
                "(or name the format)",
                path);
}

static int tell_file(const char *path)
{
    char start[16] = "";
    FILE *file = fopen(path, "rb");
    if (!file)
        return fail(-errno, "%s: %s", path, strerror(errno));
    size_t length = fread(start, 1, sizeof start - 1, file);
    int failed = ferror(file) ? errno : 0;
    fclose(file);
    if (failed)
        return fail(-failed, "%s: %s", path, strerror(failed));
    if (length >= 4 && (!memcmp(start, "PK\3\4", 4) || !memcmp(start, "PK\5\6", 4)))
        return NPZ;
    if (length >= 6 && !memcmp(start, "\x93NUMPY", 6))
        return fail(-EINVAL, "%s: is one .npy array; a dataset is an .npz of edges, node_features, ...", path);
    return !memcmp(start, "%%MatrixMarket", 14) ? MTX : tell_by_name(path);
}

static int tell_format(const char *path, const char *name)
{
    struct stat status;
    if (name)
        return find_named(path, name);
    if (stat(path, &status)) {
        int code = errno;
        return fail(-code, "%s: %s", path, strerror(code));
    }
    return S_ISDIR(status.st_mode) ? tell_folder(path) : tell_file(path);
}

int mg_dataset_open(mg_dataset **out, const char *path, const mg_dataset_desc *desc)
{
    *out = NULL;
    int chosen = tell_format(path, desc->format);
    if (chosen < 0)
        return chosen;
    if ((desc->labels || desc->features) && !formats[chosen].takes_side_files)
        return fail(-EINVAL,
                    "%s: files of labels and features go with edge lists, METIS and Matrix Market; %s has its own",
                    path, formats[chosen].name);
    mg_parts parts = {.desc = desc, .path = path, .nodes = -1};
    mg_story_add(&parts.story, "%s\n", path);
    int status = formats[chosen].read(&parts);
    if (!status)
        status = mg_parts_finish(out, &parts);
    mg_parts_release(&parts);
    return status;
}
