/* Eigenvectors of a dense symmetric matrix: Householder reflections make it tridiagonal, implicit QR with Wilkinson's
 * shift makes that diagonal (Golub and Van Loan, Matrix Computations, 8.3). Both work on rows of the transposed basis.
 */
#include <float.h>
#include <math.h>

#include "encode/spectrum.h"
#include "library.h"

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Reflects so that column k has nothing below the subdiagonal. The reflector I - factor v v' stays in row k, from k + 1
 * on. */
static double reflect(double *matrix, double *product, double *below, int64_t n, int64_t k)
{
    int64_t rest = n - k - 1;
    double *v = matrix + k * n + k + 1, length = sqrt(dot(v, v, rest));
    *below = v[0] > 0 ? -length : length;
    v[0] -= *below;
    double square = dot(v, v, rest), factor = square > 0 ? 2 / square : 0;
    for (int64_t i = 0; i < rest; i++)
        product[i] = factor * dot(matrix + (k + 1 + i) * n + k + 1, v, rest);
    double half = factor / 2 * dot(product, v, rest);
    for (int64_t i = 0; i < rest; i++)
        product[i] -= half * v[i];
    for (int64_t i = 0; i < rest; i++) {
        double *row = matrix + (k + 1 + i) * n + k + 1;
        for (int64_t j = 0; j < rest; j++)
            row[j] -= v[i] * product[j] + product[i] * v[j];
    }
    return factor;
}

/* matrix = basis' T basis, T with diagonal d[n] and e[n - 1] beside it. */
static void make_tridiagonal(double *basis, double *d, double *e, double *matrix, double *product, double *factors,
                             int64_t n)
{
    for (int64_t k = 0; k < n; k++) {
        d[k] = matrix[k * n + k];
        if (k + 1 < n)
            factors[k] = reflect(matrix, product, e + k, n, k);
    }
    for (int64_t i = 0; i < n * n; i++)
        basis[i] = i % (n + 1) == 0;
    for (int64_t k = n - 2; k >= 0; k--) {
        const double *v = matrix + k * n + k + 1;
        for (int64_t r = k + 1; r < n; r++) {
            double *row = basis + r * n + k + 1, along = factors[k] * dot(row, v, n - k - 1);
            for (int64_t j = 0; j < n - k - 1; j++)
                row[j] -= along * v[j];
        }
    }
}

static void rotate_rows(double *restrict a, double *restrict b, double c, double s, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        double x = a[j], y = b[j];
        a[j] = c * x + s * y;
        b[j] = c * y - s * x;
    }
}

/* One implicit QR step on rows low..high, none of whose e is negligible. */
static void qr_step(double *basis, double *d, double *e, int64_t low, int64_t high, int64_t n)
{
    double middle = (d[high - 1] - d[high]) / 2, last = e[high - 1];
    double shift = d[high] - last * last / (middle + copysign(hypot(middle, last), middle));
    double x = d[low] - shift, z = e[low];
    for (int64_t k = low; k < high; k++) {
        double r = hypot(x, z), c = r > 0 ? x / r : 1, s = r > 0 ? z / r : 0;
        double upper = d[k], beside = e[k], lower = d[k + 1];
        if (k > low)
            e[k - 1] = r;
        d[k] = c * c * upper + 2 * c * s * beside + s * s * lower;
        d[k + 1] = s * s * upper - 2 * c * s * beside + c * c * lower;
        e[k] = (c * c - s * s) * beside + c * s * (lower - upper);
        x = e[k];
        if (k + 1 < high) {
            z = s * e[k + 1];
            e[k + 1] *= c;
        }
        rotate_rows(basis + k * n, basis + (k + 1) * n, c, s, n);
    }
}

int mg_spectrum_symmetric(double *vectors, double *values, double *matrix, double *scratch, int64_t n)
{
    double *e = scratch, *product = scratch + n, *factors = scratch + 2 * n, size = 0;
    make_tridiagonal(vectors, values, e, matrix, product, factors, n);
    for (int64_t k = 0; k < n; k++)
        size = fmax(size, fabs(values[k]) + (k + 1 < n ? fabs(e[k]) : 0));
    double negligible = DBL_EPSILON * size;
    int64_t steps = 60 * n + 60;
    for (int64_t high = n - 1; high > 0;) {
        int64_t low = high;
        while (low > 0 && fabs(e[low - 1]) > negligible)
            low--;
        if (low == high) {
            high--;
            continue;
        }
        if (!steps--)
            return fail(-EIO, "eigenvectors of a matrix of %lld rows: the iteration does not end", (long long)n);
        qr_step(vectors, values, e, low, high, n);
    }
    return 0;
}
