#define _GNU_SOURCE
#include "dataset_files.h"

#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>
#include <zlib.h>

static char folder[128];

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static void remove_folder(void) { nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

const char *file_path(const char *name)
{
    static char paths[256][512];
    static int turn;
    if (!folder[0]) {
        const char *parent = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%.80s/megagraph-test-XXXXXX", parent ? parent : "/tmp");
        assert_non_null(mkdtemp(folder));
        atexit(remove_folder);
    }
    char *path = paths[turn = (turn + 1) % 256];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void make_folders(const char *name)
{
    char part[256];
    for (size_t i = 0; name[i]; i++)
        if (name[i] == '/') {
            snprintf(part, sizeof part, "%.*s", (int)i, name);
            mkdir(file_path(part), 0700);
        }
}

const char *file_bytes(const char *name, const void *bytes, size_t size)
{
    make_folders(name);
    const char *path = file_path(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    return path;
}

const char *file_text(const char *name, const char *text) { return file_bytes(name, text, strlen(text)); }

const char *file_gz(const char *name, const char *text)
{
    make_folders(name);
    const char *path = file_path(name);
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, text, (unsigned)strlen(text)), strlen(text));
    assert_int_equal(gzclose(file), Z_OK);
    return path;
}

int file_count(void)
{
    DIR *listing = opendir(folder);
    int count = 0;
    for (struct dirent *found; (found = readdir(listing));)
        count += found->d_name[0] != '.';
    closedir(listing);
    return count;
}

const char *file_npz(const char *name, const file_member *members, int count)
{
    const char *path = file_path(name);
    remove(path);
    zip_t *archive = zip_open(path, ZIP_CREATE | ZIP_TRUNCATE, NULL);
    assert_non_null(archive);
    for (int m = 0; m < count; m++) {
        char header[256], member[80];
        int length = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n",
                              members[m].descr, members[m].fortran ? "True" : "False", members[m].shape);
        char *array = malloc(10 + (size_t)length + members[m].size);
        memcpy(array, "\x93NUMPY\x01\x00", 8);
        array[8] = (char)length;
        array[9] = 0;
        memcpy(array + 10, header, (size_t)length);
        memcpy(array + 10 + length, members[m].bytes, members[m].size);
        snprintf(member, sizeof member, "%s.npy", members[m].name);
        zip_source_t *source = zip_source_buffer(archive, array, 10 + (size_t)length + members[m].size, 1);
        zip_int64_t index = zip_file_add(archive, member, source, 0);
        assert_true(index >= 0);
        zip_set_file_compression(archive, (zip_uint64_t)index, members[m].stored ? ZIP_CM_STORE : ZIP_CM_DEFLATE, 0);
    }
    assert_int_equal(zip_close(archive), 0);
    return path;
}

mg_dataset *open_with(const char *path, const mg_dataset_desc *desc)
{
    mg_dataset *data = NULL;
    if (mg_dataset_open(&data, path, desc))
        fail_msg("%s: %s", path, mg_dataset_last_error());
    return data;
}

mg_dataset *open_plain(const char *path) { return open_with(path, &(mg_dataset_desc){0}); }

void refuse(const char *path, const mg_dataset_desc *desc, int status, const char *const *words)
{
    mg_dataset *data = NULL;
    int got = mg_dataset_open(&data, path, desc);
    if (got != status || data)
        fail_msg("%s: status %d, expected %d", path, got, status);
    for (; *words; words++)
        if (!strstr(mg_dataset_last_error(), *words))
            fail_msg("the line should say '%s': %s", *words, mg_dataset_last_error());
}

static int64_t find(const mg_dataset *data, int64_t row, int32_t column)
{
    for (int64_t e = data->graph->starts[row]; e < data->graph->starts[row + 1]; e++)
        if (data->graph->columns[e] == column)
            return e;
    return -1;
}

int has_edge(const mg_dataset *data, int64_t row, int32_t column) { return find(data, row, column) >= 0; }

int64_t entry(const mg_dataset *data, int64_t row, int32_t column)
{
    int64_t found = find(data, row, column);
    if (found < 0)
        fail_msg("there is no edge %lld to %d", (long long)row, column);
    return found;
}

void story_has(const mg_dataset *data, const char *words)
{
    if (!strstr(data->story, words))
        fail_msg("the story should say '%s':\n%s", words, data->story);
}
