#define _GNU_SOURCE
#include "text.h"

#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <zlib.h>

#include "library.h"

enum { BUFFER = 1 << 17, LINE_MOST = 1 << 28 };

/* --- lines --- */

static char *with_gz(const char *path)
{
    int64_t length = (int64_t)strlen(path);
    char *longer = allocate(length + 4, 1);
    if (longer)
        sprintf(longer, "%s", path);
    struct stat status;
    if (longer && stat(longer, &status)) {
        strcpy(longer + length, ".gz");
        if (stat(longer, &status))
            longer[length] = 0; /* neither is there: the error names the plain one */
    }
    return longer;
}

int mg_text_exists(const char *path)
{
    struct stat status;
    char longer[4200];
    if (snprintf(longer, sizeof longer, "%s.gz", path) >= (int)sizeof longer)
        return 0;
    return !stat(path, &status) || !stat(longer, &status);
}

int mg_text_open(mg_text *text, const char *path)
{
    *text = (mg_text){0};
    text->path = with_gz(path);
    text->buffer = text->path ? allocate(BUFFER + 1, 1) : NULL;
    if (!text->buffer) {
        mg_text_close(text);
        return -ENOMEM;
    }
    text->capacity = BUFFER;
    errno = 0;
    text->file = gzopen(text->path, "rb");
    if (!text->file) {
        int code = errno ? errno : ENOMEM;
        fail(-code, "%s: %s", text->path, strerror(code));
        mg_text_close(text);
        return -code;
    }
    gzbuffer(text->file, BUFFER);
    return 0;
}

void mg_text_close(mg_text *text)
{
    if (text->file)
        gzclose(text->file);
    release(text->path);
    release(text->buffer);
    *text = (mg_text){0};
}

const char *mg_text_quote(char *buffer, const char *word)
{
    int64_t length = 0;
    for (; word[length] && length < 40; length++)
        buffer[length] = (char)(isprint((unsigned char)word[length]) ? word[length] : '?');
    strcpy(buffer + length, word[length] ? "..." : "");
    return buffer;
}

int mg_text_fail(const mg_text *text, const char *format, ...)
{
    char message[400];
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    return fail(-EINVAL, "%s:%lld: %s", text->path, (long long)text->line, message);
}

/* Reads on behind what is held; 1, 0 at the end, or negative. */
static int fill(mg_text *text)
{
    if (text->begin) {
        memmove(text->buffer, text->buffer + text->begin, (size_t)(text->end - text->begin));
        text->end -= text->begin;
        text->begin = 0;
    }
    if (text->end == text->capacity) {
        if (text->capacity >= LINE_MOST)
            return mg_text_fail(text, "the next line is longer than %d bytes", LINE_MOST);
        char *larger = reallocate(text->buffer, 2 * text->capacity + 1, 1);
        if (!larger)
            return -ENOMEM;
        text->buffer = larger;
        text->capacity *= 2;
    }
    errno = 0;
    int got = gzread(text->file, text->buffer + text->end, (unsigned)(text->capacity - text->end));
    int code = Z_OK;
    const char *message = gzerror(text->file, &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END)) {
        int system = code == Z_ERRNO && errno ? errno : EINVAL;
        return fail(-system, "%s: after line %lld: %s", text->path, (long long)text->line,
                    code == Z_ERRNO       ? strerror(system)
                    : code == Z_BUF_ERROR ? "the compressed file ends early"
                                          : message);
    }
    text->end += got;
    return got > 0;
}

static void skip_mark(mg_text *text)
{
    if (text->end - text->begin >= 3 && !memcmp(text->buffer + text->begin, "\xef\xbb\xbf", 3))
        text->begin += 3;
}

int mg_text_line(mg_text *text)
{
    int64_t looked = 0;
    char *newline;
    for (;;) {
        newline = memchr(text->buffer + text->begin + looked, '\n', (size_t)(text->end - text->begin - looked));
        if (newline)
            break;
        looked = text->end - text->begin;
        int more = fill(text);
        if (more < 0)
            return more;
        if (!more && text->begin == text->end)
            return 0;
        if (!more)
            break; /* the last line has no newline */
    }
    if (text->line++ == 0)
        skip_mark(text);
    text->at = text->buffer + text->begin;
    char *end = newline ? newline : text->buffer + text->end;
    text->begin = end - text->buffer + (newline != NULL);
    if (end > text->at && end[-1] == '\r')
        end--;
    *end = 0;
    text->started = 0;
    return memchr(text->at, 0, (size_t)(end - text->at)) ? mg_text_fail(text, "has a NUL byte: this is not a text file")
                                                         : 1;
}

static const char *skip_blanks(const char *at) { return at + strspn(at, " \t"); }

int mg_text_is_blank(const char *line) { return !*skip_blanks(line); }

/* --- numbers --- */

/* Digits of a decimal number as one integer (up to 18 of them) times a power of ten. */
typedef struct decimal {
    uint64_t digits;
    int64_t exponent;
    int count, exact, any;
} decimal;

static void take_digit(decimal *number, char digit, int behind_point)
{
    number->any = 1;
    if (number->count < 18) {
        number->digits = 10 * number->digits + (uint64_t)(digit - '0');
        number->count += number->digits != 0;
        number->exponent -= behind_point;
    } else {
        number->exact &= digit == '0';
        number->exponent += !behind_point;
    }
}

/* Correctly rounded where digits and power are exact in a double, which is nearly always; else by strtod. */
static double slow_real(const char *at, char **end)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double value = plain ? strtod_l(at, end, plain) : strtod(at, end);
    if (plain)
        freelocale(plain);
    return value;
}

static double parse_real(const char *start, char **end)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    decimal number = {.exact = 1};
    const char *at = start;
    int negative = *at == '-';
    at += *at == '-' || *at == '+';
    for (; isdigit((unsigned char)*at); at++)
        take_digit(&number, *at, 0);
    if (*at == '.')
        for (at++; isdigit((unsigned char)*at); at++)
            take_digit(&number, *at, 1);
    if (!number.any) {
        *end = (char *)start;
        return 0;
    }
    if (*at == 'e' || *at == 'E' || !number.exact || number.digits > (uint64_t)1 << 53 || number.exponent > 22 ||
        number.exponent < -22)
        return slow_real(start, end);
    *end = (char *)at;
    double value = number.exponent < 0 ? (double)number.digits / powers[-number.exponent]
                                       : (double)number.digits * powers[number.exponent];
    return negative ? -value : value;
}

static int parse_integer(int64_t *value, const char *start, char **end)
{
    const char *at = start;
    int negative = *at == '-', any = 0, overflow = 0;
    int64_t sum = 0;
    at += *at == '-' || *at == '+';
    for (; isdigit((unsigned char)*at); at++, any = 1)
        overflow |=
            __builtin_mul_overflow(sum, (int64_t)10, &sum) || __builtin_add_overflow(sum, (int64_t)(*at - '0'), &sum);
    *end = (char *)at;
    *value = negative ? -sum : sum;
    return any && !overflow;
}

static int ends_number(char c) { return !c || strchr(" \t,;", c); }

/* Moves to the next number: blanks, and one comma or semicolon after the first. */
static void next_number(mg_text *text)
{
    text->at = (char *)skip_blanks(text->at);
    if (text->started && (*text->at == ',' || *text->at == ';'))
        text->at = (char *)skip_blanks(text->at + 1);
    text->started = 1;
}

static int no_number(const mg_text *text, const char *what, const char *kind)
{
    char buffer[48];
    if (mg_text_is_blank(text->at))
        return mg_text_fail(text, "%s is missing", what);
    return mg_text_fail(text, "%s is '%s', not %s", what, mg_text_quote(buffer, text->at), kind);
}

int mg_text_integer(int64_t *value, mg_text *text, const char *what)
{
    char *end;
    next_number(text);
    if (!parse_integer(value, text->at, &end) || !ends_number(*end))
        return no_number(text, what, "an integer");
    text->at = end;
    return 0;
}

int mg_text_real(double *value, mg_text *text, const char *what)
{
    char *end;
    next_number(text);
    *value = parse_real(text->at, &end);
    if (end == text->at || !ends_number(*end) || !isfinite(*value))
        return no_number(text, what, "a finite number");
    text->at = end;
    return 0;
}

int mg_text_expect_end(mg_text *text)
{
    char buffer[48];
    const char *rest = skip_blanks(text->at);
    return *rest ? mg_text_fail(text, "'%s' is left at the end of the line", mg_text_quote(buffer, rest)) : 0;
}

/* --- fields --- */

char mg_text_separator(const char *line)
{
    return strchr(line, '\t') ? '\t' : strchr(line, ',') ? ',' : strchr(line, ';') ? ';' : ' ';
}

/* A quoted field ends at its quote; two quotes are one. *at: behind the quote. */
static char *quoted_field(char **at)
{
    char *field = *at + 1, *from = field, *put = field;
    while (*from && (*from != '"' || from[1] == '"')) {
        from += *from == '"';
        *put++ = *from++;
    }
    *at = from + (*from == '"');
    *put = 0; /* before the quote, or the end of the line */
    return field;
}

char *mg_text_field(char **at, char separator)
{
    if (!*at)
        return NULL;
    *at += separator == '\t' ? strspn(*at, " ") : strspn(*at, " \t");
    if (separator == ' ' && !**at)
        return *at = NULL;
    char *field = *at, *end;
    if (*field == '"') {
        field = quoted_field(at);
        end = *at + strspn(*at, separator == ' ' ? "" : " ");
        *at = *end == separator ? end + 1 : !*end ? NULL : end;
        return field;
    }
    end = field + (separator == ' ' ? strcspn(field, " \t") : strcspn(field, (char[2]){separator, 0}));
    *at = *end ? end + 1 : NULL;
    while (end > field && strchr(" \t", end[-1]))
        end--;
    *end = 0;
    return field;
}

int mg_text_is_number(double *value, const char *word)
{
    static const char *const missing[] = {"", "nan", "na", "null", "none", "?"};
    char *end;
    *value = parse_real(word, &end);
    if (end != word && !*end)
        return isfinite(*value);
    *value = NAN;
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        if (!strcasecmp(word, missing[i]))
            return 1;
    return 0;
}

int mg_text_is_integer(int64_t *value, const char *word)
{
    char *end;
    return parse_integer(value, word, &end) && !*end;
}
