#include "safetensors.h"

#include <fcntl.h>
#include <jansson.h>
#include <megagraph/graph.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are written as they lie in memory");

enum { LARGEST_HEADER = 100 << 20, BLOCK = 1 << 20 };

struct mg_safetensors {
    char *path;
    int descriptor;
    int64_t data_begin; /* in the file */
    json_t *header;
};

static int64_t tensor_count(const mg_tensor *tensor)
{
    int64_t count = 1;
    for (int32_t d = 0; d < tensor->rank; d++)
        count *= tensor->shape[d];
    return count;
}

/* --- writing --- */

static json_t *describe(const mg_tensor *tensor, int64_t begin)
{
    json_t *shape = json_array();
    for (int32_t d = 0; d < tensor->rank; d++)
        json_array_append_new(shape, json_integer(tensor->shape[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets", (json_int_t)begin,
                     (json_int_t)(begin + 4 * tensor_count(tensor)));
}

/* The header, padded so that data begins at a multiple of 8; free() it. */
static char *header_text(const mg_tensor *tensors, int64_t count, size_t *length)
{
    json_t *header = json_object();
    int64_t begin = 0;
    json_object_set_new(header, "__metadata__", json_pack("{s:s}", "format", "pt"));
    for (int64_t t = 0; t < count; t++) {
        json_object_set_new(header, tensors[t].name, describe(&tensors[t], begin));
        begin += 4 * tensor_count(&tensors[t]);
    }
    char *text = json_dumps(header, JSON_COMPACT), *padded = NULL;
    json_decref(header);
    if (text) {
        *length = (strlen(text) + 7) / 8 * 8;
        padded = malloc(*length + 1);
        if (padded)
            snprintf(padded, *length + 1, "%-*s", (int)*length, text);
        free(text);
    }
    return padded;
}

/* A file that is hashed as it is written: blocks of BLOCK bytes, whatever the sizes of the writes. */
typedef struct writer {
    int descriptor;
    char *block;
    int64_t filled, bytes;
    uint64_t hash;
} writer;

static int flush_block(writer *to)
{
    to->hash = mg_graph_hash_bytes(to->hash, to->block, to->filled);
    for (int64_t done = 0; done < to->filled;) {
        ssize_t written = write(to->descriptor, to->block + done, (size_t)(to->filled - done));
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? -errno : -EIO;
        done += written;
    }
    to->bytes += to->filled;
    to->filled = 0;
    return 0;
}

static int put(writer *to, const void *data, int64_t bytes)
{
    int status = 0;
    for (int64_t done = 0; done < bytes && !status;) {
        int64_t part = bytes - done < BLOCK - to->filled ? bytes - done : BLOCK - to->filled;
        memcpy(to->block + to->filled, (const char *)data + done, (size_t)part);
        to->filled += part;
        done += part;
        if (to->filled == BLOCK)
            status = flush_block(to);
    }
    return status;
}

static int put_all(writer *to, const char *header, size_t length, const mg_tensor *tensors, int64_t count)
{
    uint64_t prefix = length;
    int status = put(to, &prefix, sizeof prefix);
    if (!status)
        status = put(to, header, (int64_t)length);
    for (int64_t t = 0; t < count && !status; t++)
        status = put(to, tensors[t].data, 4 * tensor_count(&tensors[t]));
    if (!status && to->filled)
        status = flush_block(to);
    if (!status && fsync(to->descriptor) && errno != EINVAL && errno != EROFS) /* some devices cannot be synced */
        status = -errno;
    return status;
}

int mg_safetensors_write(int64_t *bytes, uint64_t *hash, const char *path, const mg_tensor *tensors, int64_t count)
{
    size_t length = 0;
    char *header = header_text(tensors, count, &length);
    writer to = {.descriptor = -1, .block = allocate(BLOCK, 1)};
    int status = header && to.block ? 0 : fail(-ENOMEM, "%s: no memory to write it", path);
    if (!status) {
        to.descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        status = to.descriptor < 0 ? -errno : put_all(&to, header, length, tensors, count);
        if (to.descriptor >= 0 && close(to.descriptor) && !status)
            status = -errno;
        if (status)
            fail(status, "%s: cannot be written: %s", path, strerror(-status));
    }
    *bytes = to.bytes;
    *hash = to.hash;
    free(header);
    release(to.block);
    return status;
}

/* --- reading --- */

/* Reads exactly `bytes` at `offset`. */
static int get(int descriptor, void *data, int64_t bytes, int64_t offset)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t count = pread(descriptor, (char *)data + done, (size_t)(bytes - done), offset + done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return count < 0 ? -errno : -EIO;
        done += count;
    }
    return 0;
}

int mg_safetensors_hash(int64_t *bytes, uint64_t *hash, const char *path)
{
    struct stat info;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC), status = 0;
    if (descriptor < 0 || fstat(descriptor, &info)) {
        status = fail(-errno, "%s: %s", path, strerror(errno));
        if (descriptor >= 0)
            close(descriptor);
        return status;
    }
    char *block = allocate(BLOCK, 1);
    *bytes = info.st_size;
    *hash = 0;
    status = block ? 0 : -ENOMEM;
    for (int64_t at = 0; at < *bytes && !status; at += BLOCK) {
        int64_t part = *bytes - at < BLOCK ? *bytes - at : BLOCK;
        status = get(descriptor, block, part, at);
        if (status)
            fail(status, "%s: cannot be read: %s", path, strerror(-status));
        else
            *hash = mg_graph_hash_bytes(*hash, block, part);
    }
    release(block);
    close(descriptor);
    return status;
}

/* Begin and end of an entry; its shape must multiply to its bytes. */
static int check_entry(int64_t *begin, int64_t *end, const char *file, const char *name, json_t *entry)
{
    const char *type;
    json_t *shape;
    json_int_t from, to;
    json_error_t error;
    size_t d;
    json_t *size;
    if (json_unpack_ex(entry, &error, 0, "{s:s, s:o, s:[I, I!]}", "dtype", &type, "shape", &shape, "data_offsets",
                       &from, &to))
        return fail(-EINVAL, "%s: tensor '%.80s' needs dtype, shape and data_offsets: %s", file, name, error.text);
    if (strcmp(type, "F32"))
        return fail(-EINVAL, "%s: tensor '%.80s' has dtype %.20s, F32 is expected", file, name, type);
    if (!json_is_array(shape))
        return fail(-EINVAL, "%s: tensor '%.80s' has a shape that is no list", file, name);
    int64_t bytes = 4;
    json_array_foreach(shape, d, size)
    {
        json_int_t value = json_is_integer(size) ? json_integer_value(size) : -1;
        if (value < 0 || __builtin_mul_overflow(bytes, (int64_t)value, &bytes))
            return fail(-EINVAL, "%s: tensor '%.80s' has an impossible shape", file, name);
    }
    if (from < 0 || to < from || to - from != bytes)
        return fail(-EINVAL, "%s: tensor '%.80s' takes bytes %lld to %lld, its shape needs %lld bytes", file, name,
                    (long long)from, (long long)to, (long long)bytes);
    *begin = from;
    *end = to;
    return 0;
}

typedef struct extent {
    int64_t begin, end;
} extent;

static int by_begin(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin) : (x->end > y->end) - (x->end < y->end);
}

/* All entries, one after another without holes, end where the data ends. */
static int check_header(const char *file, json_t *header, int64_t data_bytes)
{
    const char *name;
    json_t *entry;
    extent *extents = allocate((int64_t)json_object_size(header), sizeof *extents);
    int64_t count = 0, at = 0;
    int status = extents ? 0 : -ENOMEM;
    if (extents) {
        json_object_foreach(header, name, entry)
        {
            if (!status && strcmp(name, "__metadata__")) {
                status = check_entry(&extents[count].begin, &extents[count].end, file, name, entry);
                count++;
            }
        }
    }
    if (!status)
        qsort(extents, (size_t)count, sizeof *extents, by_begin);
    for (int64_t t = 0; t < count && !status; t++) {
        if (extents[t].begin != at)
            status =
                fail(-EINVAL,
                     "%s: a tensor begins at byte %lld of the data, %lld is expected: tensors overlap or leave a hole",
                     file, (long long)extents[t].begin, (long long)at);
        at = extents[t].end;
    }
    release(extents);
    if (!status && at != data_bytes)
        status =
            fail(-EINVAL, "%s: its tensors take %lld bytes, the file holds %lld: it is truncated or not what it was",
                 file, (long long)at, (long long)data_bytes);
    return status;
}

static int parse_header(json_t **header, const char *file, const char *text, int64_t header_bytes, int64_t data_bytes)
{
    json_error_t error;
    *header = json_loadb(text, (size_t)header_bytes, JSON_REJECT_DUPLICATES, &error);
    if (!*header || !json_is_object(*header)) {
        json_decref(*header);
        *header = NULL;
        return fail(-EINVAL, "%s: its header is no JSON object: %s", file, *error.text ? error.text : "another type");
    }
    int status = check_header(file, *header, data_bytes);
    if (status) {
        json_decref(*header);
        *header = NULL;
    }
    return status;
}

int mg_safetensors_check(const char *name, const char *header, int64_t header_bytes, int64_t data_bytes)
{
    json_t *parsed;
    int status = parse_header(&parsed, name, header, header_bytes, data_bytes);
    json_decref(parsed);
    return status;
}

static int read_header(mg_safetensors *file, int64_t file_bytes)
{
    uint64_t length = 0;
    if (file_bytes < 8 || get(file->descriptor, &length, 8, 0))
        return fail(-EINVAL, "%s: %lld bytes are no safetensors file: 8 bytes of header length are expected first",
                    file->path, (long long)file_bytes);
    if (length < 2 || length > LARGEST_HEADER || (int64_t)length > file_bytes - 8)
        return fail(-EINVAL,
                    "%s: a header of %llu bytes is expected, the file has %lld bytes after its length: truncated, or "
                    "not safetensors",
                    file->path, (unsigned long long)length, (long long)(file_bytes - 8));
    char *text = allocate((int64_t)length, 1);
    int status = text ? get(file->descriptor, text, (int64_t)length, 8) : -ENOMEM;
    if (!status)
        status = parse_header(&file->header, file->path, text, (int64_t)length, file_bytes - 8 - (int64_t)length);
    else if (text)
        fail(status, "%s: cannot be read: %s", file->path, strerror(-status));
    file->data_begin = 8 + (int64_t)length;
    release(text);
    return status;
}

int mg_safetensors_open(mg_safetensors **out, const char *path)
{
    struct stat info;
    mg_safetensors *file = allocate_zeroed(1, sizeof *file);
    *out = NULL;
    if (!file)
        return -ENOMEM;
    file->descriptor = open(path, O_RDONLY | O_CLOEXEC);
    file->path = strdup(path);
    int status = 0;
    if (!file->path)
        status = fail(-ENOMEM, "%s: no memory to read it", path);
    else if (file->descriptor < 0 || fstat(file->descriptor, &info))
        status = fail(-errno, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = fail(-EINVAL, "%s: is no file", path);
    else
        status = read_header(file, info.st_size);
    if (status) {
        mg_safetensors_close(file);
        return status;
    }
    *out = file;
    return 0;
}

void mg_safetensors_close(mg_safetensors *file)
{
    if (!file)
        return;
    if (file->descriptor >= 0)
        close(file->descriptor);
    json_decref(file->header);
    free(file->path);
    release(file);
}

int mg_safetensors_shape(int32_t *rank, int64_t shape[3], const mg_safetensors *file, const char *name)
{
    json_t *entry = strcmp(name, "__metadata__") ? json_object_get(file->header, name) : NULL,
           *sizes = json_object_get(entry, "shape");
    if (!entry)
        return fail(-ENOENT, "%s: tensor '%s' is expected and is not there", file->path, name);
    *rank = (int32_t)json_array_size(sizes);
    for (size_t d = 0; d < 3; d++)
        shape[d] = json_integer_value(json_array_get(sizes, d));
    return 0;
}

static const char *shape_text(int32_t rank, const int64_t shape[3])
{
    static _Thread_local char ring[2][80];
    static _Thread_local int turn;
    char *text = ring[turn++ % 2];
    int length = snprintf(text, sizeof ring[0], "[");
    for (int32_t d = 0; d < rank && d < 3; d++)
        length +=
            snprintf(text + length, sizeof ring[0] - (size_t)length, "%s%lld", d ? ", " : "", (long long)shape[d]);
    snprintf(text + length, sizeof ring[0] - (size_t)length, rank > 3 ? ", ...]" : "]");
    return text;
}

int mg_safetensors_read(float *data, const mg_safetensors *file, const mg_tensor *tensor)
{
    int32_t rank;
    int64_t shape[3];
    int status = mg_safetensors_shape(&rank, shape, file, tensor->name);
    if (status)
        return status;
    int same = rank == tensor->rank;
    for (int32_t d = 0; d < tensor->rank && d < 3; d++)
        same &= shape[d] == tensor->shape[d];
    if (!same)
        return fail(-EINVAL, "%s: tensor '%s' is %s, the model expects %s", file->path, tensor->name,
                    shape_text(rank, shape), shape_text(tensor->rank, tensor->shape));
    json_t *offsets = json_object_get(json_object_get(file->header, tensor->name), "data_offsets");
    status = get(file->descriptor, data, 4 * tensor_count(tensor),
                 file->data_begin + json_integer_value(json_array_get(offsets, 0)));
    return status ? fail(status, "%s: tensor '%s' cannot be read: %s", file->path, tensor->name, strerror(-status)) : 0;
}
