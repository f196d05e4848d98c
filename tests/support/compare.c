#include "support/test.h"

#include <sys/stat.h>

void test_near_scaled(const char *what, const float *actual, const double *expected, int64_t count, double tolerance,
                      double scale)
{
    double worst = 0, square = 0, reference = 0;
    int64_t place = -1;
    for (int64_t i = 0; i < count; i++) {
        double error = isinf(expected[i]) && (double)actual[i] == expected[i] ? 0 : fabs(actual[i] - expected[i]);
        if (!(error <= worst)) { /* NaN comes here too, and stays the worst */
            worst = isnan(error) ? INFINITY : error;
            place = i;
        }
        if (!isinf(expected[i])) {
            square += error * error;
            reference += expected[i] * expected[i];
        }
    }
    if (!(worst <= tolerance * scale))
        fail_msg("%s: at %lld of %lld: %.9g, expected %.9g; largest error %.3g of scale %.3g, tolerance %.3g, relative 2-norm %.3g",
                 what, (long long)place, (long long)count, place < 0 ? 0. : (double)actual[place],
                 place < 0 ? 0. : expected[place], worst, scale, tolerance, sqrt(square / fmax(reference, 1e-300)));
}

void test_near(const char *what, const float *actual, const double *expected, int64_t count, double tolerance)
{
    double scale = 1e-30;
    for (int64_t i = 0; i < count; i++)
        if (!isinf(expected[i]))
            scale = fmax(scale, fabs(expected[i]));
    test_near_scaled(what, actual, expected, count, tolerance, scale);
}

void test_same_bytes(const char *what, const void *actual, const void *expected, size_t bytes)
{
    const unsigned char *a = actual, *b = expected;
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s: byte %zu of %zu is %u, expected %u", what, i, bytes, a[i], b[i]);
}

uint64_t test_random_bits(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * 0xd1342543de82ef95u + index * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float test_random(uint64_t seed, uint64_t index)
{
    return (float)(test_random_bits(seed, index) >> 40) * 0x1p-23f - 1;
}

void test_fill(float *values, int64_t count, uint64_t seed, float scale)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = scale * test_random(seed, (uint64_t)i);
}

const char *test_data(const char *name)
{
    static char path[4096];
    const char *folder = getenv("MEGAGRAPH_DATA");
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "", name);
    if (!folder || stat(path, &status)) {
        print_message("SKIPPED: real data %s is not there\n", name);
        skip();
    }
    return path;
}
