#include "npy.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "parts.h"

enum { HEADER_MOST = 1 << 16, CHUNK = 1 << 14 /* elements */ };

int mg_npy_fail(const mg_npy *array, const char *format, ...)
{
    char text[400];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return fail(-EINVAL, "%s: member %s: %s", array->path, array->member, text);
}

static int read_bytes(mg_npy *array, void *bytes, int64_t count)
{
    char *at = bytes;
    while (count > 0) {
        zip_int64_t got = zip_fread(array->file, at, (zip_uint64_t)count);
        if (got < 0)
            return mg_npy_fail(array, "is damaged: %s", zip_error_strerror(zip_file_get_error(array->file)));
        if (got == 0)
            return mg_npy_fail(array, "ends early");
        at += got;
        count -= got;
    }
    return 0;
}

/* The checksum is compared when the end is read. */
static int read_end(mg_npy *array)
{
    char byte;
    zip_int64_t got = zip_fread(array->file, &byte, 1);
    return got < 0   ? mg_npy_fail(array, "is damaged: %s", zip_error_strerror(zip_file_get_error(array->file)))
           : got > 0 ? mg_npy_fail(array, "holds more than its shape says")
                     : 0;
}

/* --- header: {'descr': '<f4', 'fortran_order': False, 'shape': (2708, 1433), } --- */

static void skip_blanks(const char **at)
{
    while (**at == ' ' || **at == '\n' || **at == '\t')
        ++*at;
}

static int accept(const char **at, const char *word)
{
    skip_blanks(at);
    size_t length = strlen(word);
    if (strncmp(*at, word, length))
        return 0;
    *at += length;
    return 1;
}

static int parse_type(mg_npy *array, const char **at)
{
    skip_blanks(at);
    char type[32] = "";
    int used = 0;
    if (**at == '[')
        return mg_npy_fail(array, "is a structured array: save each field as a member of its own");
    if (sscanf(*at, "'%31[^']'%n", type, &used) != 1 || !used)
        return mg_npy_fail(array, "the header has no readable descr");
    *at += used;
    const int one = 1;
    char ours = *(const char *)&one ? '<' : '>', order = type[0];
    const char *rest = strchr("<>|=", order) ? type + 1 : type;
    if (rest[0] == 'O')
        return mg_npy_fail(array,
                           "holds Python objects (a pickle), which are not read: save numbers or strings instead");
    array->kind = rest[0] == '?' ? 'b' : rest[0];
    array->swapped = (order == '<' || order == '>') && order != ours;
    char *end = "";
    int64_t size = array->size = rest[0] == '?' ? 1 : strtoll(rest + 1, &end, 10);
    int fits = array->kind == 'f'                         ? size == 2 || size == 4 || size == 8
               : array->kind == 'i' || array->kind == 'u' ? size == 1 || size == 2 || size == 4 || size == 8
               : array->kind == 'b'                       ? size == 1
               : array->kind == 'S'                       ? size >= 1 && size < INT32_MAX
               : array->kind == 'U'                       ? size >= 1 && size < INT32_MAX / 4
                                                          : 0;
    if (!fits || *end)
        return mg_npy_fail(array, "has type '%s': read are f2, f4, f8, i1 to i8, u1 to u8, b1, S and U", type);
    if (array->kind == 'U')
        array->size *= 4;
    return 0;
}

static int parse_shape(mg_npy *array, const char **at)
{
    if (!accept(at, "("))
        return mg_npy_fail(array, "the header has no readable shape");
    array->dims = 0;
    array->count = 1;
    for (int d = 0; d < 3; d++)
        array->shape[d] = 1;
    while (!accept(at, ")")) {
        char *end;
        skip_blanks(at);
        errno = 0;
        long long extent = strtoll(*at, &end, 10);
        if (end == *at || extent < 0 || errno)
            return mg_npy_fail(array, "the header has no readable shape");
        if (array->dims == 3)
            return mg_npy_fail(array, "has more than 3 dimensions");
        *at = end;
        array->shape[array->dims++] = extent;
        if (__builtin_mul_overflow(array->count, (int64_t)extent, &array->count))
            return mg_npy_fail(array, "its shape overflows");
        accept(at, ",");
    }
    return 0;
}

static int parse_header(mg_npy *array, const char *at)
{
    int seen = 0;
    if (!accept(&at, "{"))
        return mg_npy_fail(array, "the header is not a dictionary");
    while (!accept(&at, "}")) {
        int status = 0;
        if (accept(&at, "'descr':")) {
            status = parse_type(array, &at);
            seen |= 1;
        } else if (accept(&at, "'fortran_order':")) {
            array->fortran = accept(&at, "True");
            if (!array->fortran && !accept(&at, "False"))
                return mg_npy_fail(array, "fortran_order is neither True nor False");
            seen |= 2;
        } else if (accept(&at, "'shape':")) {
            status = parse_shape(array, &at);
            seen |= 4;
        } else {
            return mg_npy_fail(array, "the header has something else than descr, fortran_order and shape: %.40s", at);
        }
        if (status)
            return status;
        accept(&at, ",");
    }
    return seen == 7 ? 0 : mg_npy_fail(array, "the header lacks descr, fortran_order or shape");
}

/* The bytes of the array that follow the header must be what the archive's directory says. */
static int check_length(mg_npy *array, int64_t header, int64_t stored)
{
    int64_t bytes;
    if (__builtin_mul_overflow(array->count, array->size, &bytes) || bytes != stored - header)
        return mg_npy_fail(array, "its shape needs %lld elements of %lld bytes, but %lld bytes follow the header",
                           (long long)array->count, (long long)array->size, (long long)(stored - header));
    return 0;
}

static int read_header(mg_npy *array, int64_t stored)
{
    unsigned char prefix[12];
    if (read_bytes(array, prefix, 10))
        return -EINVAL;
    if (memcmp(prefix, "\x93NUMPY", 6) || prefix[6] < 1 || prefix[6] > 3)
        return mg_npy_fail(array, "is not a .npy array of version 1, 2 or 3");
    int64_t length = prefix[8] | prefix[9] << 8, before = 10;
    if (prefix[6] > 1) {
        if (read_bytes(array, prefix + 10, 2))
            return -EINVAL;
        length |= (int64_t)prefix[10] << 16 | (int64_t)prefix[11] << 24;
        before = 12;
    }
    if (length > HEADER_MOST)
        return mg_npy_fail(array, "its header claims %lld bytes", (long long)length);
    char *text = allocate_zeroed(length + 1, 1);
    if (!text)
        return -ENOMEM;
    int status = read_bytes(array, text, length);
    if (!status)
        status = parse_header(array, text);
    if (!status)
        status = check_length(array, before + length, stored);
    release(text);
    return status;
}

/* Deflate cannot grow by more than 1032 times, and a stored member has its size: other claims are refused before any
   memory is obtained for them. */
static int check_member(const mg_npy *array, const zip_stat_t *stat, int64_t archive_bytes)
{
    if (!(stat->valid & ZIP_STAT_SIZE) || !(stat->valid & ZIP_STAT_COMP_SIZE) || !(stat->valid & ZIP_STAT_COMP_METHOD))
        return mg_npy_fail(array, "the archive does not say its size");
    if ((stat->valid & ZIP_STAT_ENCRYPTION_METHOD) && stat->encryption_method != ZIP_EM_NONE)
        return mg_npy_fail(array, "is encrypted");
    if (stat->comp_method != ZIP_CM_STORE && stat->comp_method != ZIP_CM_DEFLATE)
        return mg_npy_fail(array, "is compressed by method %d; read are stored and deflated members",
                           stat->comp_method);
    uint64_t most = stat->comp_method == ZIP_CM_STORE ? stat->comp_size : stat->comp_size * 1032 + 64;
    if (stat->comp_size > (uint64_t)archive_bytes || stat->size > most)
        return mg_npy_fail(array, "claims %llu bytes from %llu in a file of %lld", (unsigned long long)stat->size,
                           (unsigned long long)stat->comp_size, (long long)archive_bytes);
    return 0;
}

static int64_t file_bytes(const char *path)
{
    FILE *file = fopen(path, "rb");
    int64_t bytes = file && !fseek(file, 0, SEEK_END) ? ftell(file) : -1;
    if (file)
        fclose(file);
    return bytes;
}

int mg_npy_open(mg_npy *array, zip_t *archive, const char *path, const char *member)
{
    *array = (mg_npy){.path = path};
    char name[80];
    zip_stat_t stat;
    snprintf(array->member, sizeof array->member, "%s", member);
    snprintf(name, sizeof name, "%s.npy", array->member);
    if (zip_stat(archive, name, 0, &stat))
        return 0;
    int status = check_member(array, &stat, file_bytes(path));
    if (status)
        return status;
    array->file = zip_fopen(archive, name, 0);
    if (!array->file)
        return mg_npy_fail(array, "cannot be opened: %s", zip_strerror(archive));
    status = read_header(array, (int64_t)stat.size);
    if (status)
        mg_npy_close(array);
    return status ? status : 1;
}

void mg_npy_close(mg_npy *array)
{
    if (array->file)
        zip_fclose(array->file);
    array->file = NULL;
}

/* --- elements --- */

static void swap_elements(unsigned char *bytes, int64_t count, int64_t size)
{
    for (int64_t i = 0; i < count; i++, bytes += size)
        for (int64_t a = 0, b = size - 1; a < b; a++, b--) {
            unsigned char byte = bytes[a];
            bytes[a] = bytes[b];
            bytes[b] = byte;
        }
}

static double half_to_double(uint16_t half)
{
    int exponent = half >> 10 & 31, mantissa = half & 1023;
    double value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                   : exponent     ? ldexp(mantissa + 1024, exponent - 25)
                                  : ldexp(mantissa, -24);
    return half & 0x8000 ? -value : value;
}

#define EACH(type, expression)                                                                                         \
    for (int64_t i = 0; i < count; i++) {                                                                              \
        type x;                                                                                                        \
        memcpy(&x, bytes + i * (int64_t)sizeof x, sizeof x);                                                           \
        values[i] = (expression);                                                                                      \
    }                                                                                                                  \
    break

/* Selects on the kind and size of an element. */
#define TYPE(kind, size) ((kind) << 8 | (size))

static void decode_doubles(double *values, const unsigned char *bytes, int64_t count, int type)
{
    switch (type) {
    case TYPE('f', 2):
        EACH(uint16_t, half_to_double(x));
    case TYPE('f', 4):
        EACH(float, x);
    case TYPE('f', 8):
        EACH(double, x);
    case TYPE('i', 1):
        EACH(int8_t, x);
    case TYPE('i', 2):
        EACH(int16_t, x);
    case TYPE('i', 4):
        EACH(int32_t, x);
    case TYPE('i', 8):
        EACH(int64_t, (double)x);
    case TYPE('u', 1):
        EACH(uint8_t, x);
    case TYPE('u', 2):
        EACH(uint16_t, x);
    case TYPE('u', 4):
        EACH(uint32_t, x);
    case TYPE('u', 8):
        EACH(uint64_t, (double)x);
    default:
        EACH(uint8_t, x != 0); /* bool */
    }
}

/* NaN and fractions give INT64_MIN, which no array may hold. */
static int64_t whole(double x) { return x == floor(x) && fabs(x) <= 0x1p53 ? (int64_t)x : INT64_MIN; }

static void decode_integers(int64_t *values, const unsigned char *bytes, int64_t count, int type)
{
    switch (type) {
    case TYPE('f', 2):
        EACH(uint16_t, whole(half_to_double(x)));
    case TYPE('f', 4):
        EACH(float, whole(x));
    case TYPE('f', 8):
        EACH(double, whole(x));
    case TYPE('i', 1):
        EACH(int8_t, x);
    case TYPE('i', 2):
        EACH(int16_t, x);
    case TYPE('i', 4):
        EACH(int32_t, x);
    case TYPE('i', 8):
        EACH(int64_t, x);
    case TYPE('u', 1):
        EACH(uint8_t, x);
    case TYPE('u', 2):
        EACH(uint16_t, x);
    case TYPE('u', 4):
        EACH(uint32_t, x);
    case TYPE('u', 8):
        EACH(uint64_t, x <= INT64_MAX ? (int64_t)x : INT64_MIN);
    default:
        EACH(uint8_t, x != 0); /* bool */
    }
}

/* Where element `index` of the stream belongs in C order. */
static int64_t place_of(const mg_npy *array, int64_t index)
{
    if (!array->fortran)
        return index;
    int64_t a = index % array->shape[0], rest = index / array->shape[0];
    int64_t b = rest % array->shape[1], c = rest / array->shape[1];
    return (a * array->shape[1] + b) * array->shape[2] + c;
}

static int read_chunk(mg_npy *array, unsigned char *bytes, int64_t count)
{
    int status = read_bytes(array, bytes, count * array->size);
    if (!status && array->swapped)
        swap_elements(bytes, count, array->size);
    return status;
}

static int numbers_only(const mg_npy *array)
{
    return strchr("SU", array->kind) ? mg_npy_fail(array, "holds strings where numbers are needed") : 0;
}

typedef int put_chunk(void *out, const mg_npy *array, const unsigned char *bytes, int64_t first, int64_t count);

static int read_numbers(void *out, mg_npy *array, put_chunk *put)
{
    int status = numbers_only(array);
    unsigned char *bytes = status ? NULL : allocate(CHUNK, 8);
    if (!bytes)
        return status ? status : -ENOMEM;
    for (int64_t first = 0; first < array->count && !status; first += CHUNK) {
        int64_t count = array->count - first < CHUNK ? array->count - first : CHUNK;
        status = read_chunk(array, bytes, count);
        if (!status)
            status = put(out, array, bytes, first, count);
    }
    release(bytes);
    return status ? status : read_end(array);
}

static int put_doubles(void *out, const mg_npy *array, const unsigned char *bytes, int64_t first, int64_t count)
{
    double some[256], *values = out;
    int type = TYPE(array->kind, (int)array->size), wide = array->kind != 'f' && array->size == 8;
    for (int64_t begin = 0; begin < count; begin += 256) {
        int64_t part = count - begin < 256 ? count - begin : 256;
        decode_doubles(some, bytes + begin * array->size, part, type);
        for (int64_t i = 0; i < part; i++) {
            if (wide && fabs(some[i]) > 0x1p53)
                return mg_npy_fail(array, "element %lld is %.0f, beyond 2^53", (long long)(first + begin + i), some[i]);
            values[place_of(array, first + begin + i)] = some[i];
        }
    }
    return 0;
}

static int put_floats(void *out, const mg_npy *array, const unsigned char *bytes, int64_t first, int64_t count)
{
    double some[256];
    float *values = out;
    for (int64_t begin = 0; begin < count; begin += 256) {
        int64_t part = count - begin < 256 ? count - begin : 256;
        decode_doubles(some, bytes + begin * array->size, part, TYPE(array->kind, (int)array->size));
        if (array->fortran)
            for (int64_t i = 0; i < part; i++)
                values[place_of(array, first + begin + i)] = (float)some[i];
        else
            for (int64_t i = 0; i < part; i++)
                values[first + begin + i] = (float)some[i];
    }
    return 0;
}

static int put_integers(void *out, const mg_npy *array, const unsigned char *bytes, int64_t first, int64_t count)
{
    int64_t some[256], *values = out;
    for (int64_t begin = 0; begin < count; begin += 256) {
        int64_t part = count - begin < 256 ? count - begin : 256;
        decode_integers(some, bytes + begin * array->size, part, TYPE(array->kind, (int)array->size));
        for (int64_t i = 0; i < part; i++) {
            if (some[i] == INT64_MIN)
                return mg_npy_fail(array, "element %lld is no whole number in range", (long long)(first + begin + i));
            values[place_of(array, first + begin + i)] = some[i];
        }
    }
    return 0;
}

int mg_npy_read_floats(float *values, mg_npy *array)
{
    if (array->kind != 'f' || array->size != sizeof *values || array->swapped || array->fortran)
        return read_numbers(values, array, put_floats);
    int status = read_bytes(array, values, array->count * array->size); /* as they are */
    return status ? status : read_end(array);
}

int mg_npy_read_doubles(double *values, mg_npy *array) { return read_numbers(values, array, put_doubles); }
int mg_npy_read_integers(int64_t *values, mg_npy *array) { return read_numbers(values, array, put_integers); }

/* --- strings --- */

static int put_utf8(char *out, uint32_t code)
{
    if (code < 0x80)
        return out[0] = (char)code, 1;
    if (code < 0x800)
        return out[0] = (char)(0xc0 | code >> 6), out[1] = (char)(0x80 | (code & 63)), 2;
    if (code < 0x10000)
        return out[0] = (char)(0xe0 | code >> 12), out[1] = (char)(0x80 | (code >> 6 & 63)),
               out[2] = (char)(0x80 | (code & 63)), 3;
    return out[0] = (char)(0xf0 | (code >> 18 & 7)), out[1] = (char)(0x80 | (code >> 12 & 63)),
           out[2] = (char)(0x80 | (code >> 6 & 63)), out[3] = (char)(0x80 | (code & 63)), 4;
}

/* One element as text ended by NUL; out has room for its bytes + 1. */
static int64_t decode_string(char *out, const mg_npy *array, unsigned char *bytes)
{
    int64_t length = 0;
    if (array->kind == 'S') {
        length = (int64_t)strnlen((char *)bytes, (size_t)array->size);
        memcpy(out, bytes, (size_t)length);
    } else {
        if (array->swapped)
            swap_elements(bytes, array->size / 4, 4);
        for (int64_t c = 0; c < array->size; c += 4) {
            uint32_t code;
            memcpy(&code, bytes + c, 4);
            if (!code)
                break;
            length += put_utf8(out + length, code);
        }
    }
    out[length] = 0;
    return length + 1;
}

/* Text of all elements grows as they are read: a long element size costs nothing where elements are short. */
static int gather_strings(mg_npy *array, char **text, int64_t *bytes)
{
    int64_t capacity = 0;
    unsigned char *element = allocate(array->size, 1);
    int status = element ? 0 : -ENOMEM;
    for (int64_t i = 0; i < array->count && !status; i++) {
        if (*bytes + array->size + 1 > capacity) {
            int64_t wanted = 2 * capacity + array->size + 256;
            char *larger = reallocate(*text, wanted, 1);
            if (!larger) {
                status = -ENOMEM;
                break;
            }
            *text = larger;
            capacity = wanted;
        }
        status = array->size ? read_bytes(array, element, array->size) : 0;
        if (!status)
            *bytes += decode_string(*text + *bytes, array, element);
    }
    release(element);
    return status ? status : read_end(array);
}

int mg_npy_read_strings(char ***strings, mg_npy *array)
{
    if (!strchr("SU", array->kind))
        return mg_npy_fail(array, "holds numbers where strings are needed");
    char *text = NULL;
    int64_t bytes = 0;
    int status = gather_strings(array, &text, &bytes);
    if (!status && !(*strings = mg_strings_pack(text ? text : "", bytes, array->count)))
        status = -ENOMEM;
    release(text);
    return status;
}
