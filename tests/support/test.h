/* What every test includes: CMocka and its needs, comparison with all norms, memory faults, real data. */
#ifndef TESTS_SUPPORT_TEST_H
#define TESTS_SUPPORT_TEST_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <math.h>
#include <cmocka.h>

/* Fails unless max |actual - expected| <= tolerance * max(1e-30, max |expected|). Prints the largest error, its place, and
   the relative 2-norm. NaN never passes, and where expected is +-Inf actual must be the same. */
void test_near(const char *what, const float *actual, const double *expected, int64_t count, double tolerance);
/* The same, relative to `scale` instead of max |expected|. */
void test_near_scaled(const char *what, const float *actual, const double *expected, int64_t count, double tolerance,
                      double scale);
/* Fails unless all bytes are equal; names the first that is not. */
void test_same_bytes(const char *what, const void *actual, const void *expected, size_t bytes);

/* Repeatable values: splitmix64 by seed and index. */
uint64_t test_random_bits(uint64_t seed, uint64_t index);
float test_random(uint64_t seed, uint64_t index); /* uniform in [-1, 1) */
void test_fill(float *values, int64_t count, uint64_t seed, float scale);

/* Runs `work` again and again; the n-th allocation of the library whose set_memory_hook is given fails, n = 1, 2, ...,
   until work succeeds without a fault being reached. work returns the library's status; it must be -ENOMEM whenever a fault
   was reached, and afterwards everything obtained must have been given back. Returns how many allocations were tried. */
int64_t test_every_allocation_fails(void (*set_memory_hook)(int (*hook)(int64_t bytes)), int (*work)(void *context),
                                    void *context);

/* work(context, t) for t in 0..count-1, each on a thread of its own, all let go at once; returns when all are done. A check
   that fails on one of them ends the program. */
void test_at_once(int count, void (*work)(void *context, int thread), void *context);

/* Path of a file below the real data (MEGAGRAPH_DATA); skips the running test where it is not there. Static buffer. */
const char *test_data(const char *name);
#endif
