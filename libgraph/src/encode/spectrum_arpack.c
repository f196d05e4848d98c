/* Large components: ARPACK finds the largest eigenvalues of an operator that has the eigenvectors of the Laplacian L.
 *
 *     plain     3 - L
 *     filtered  T((2 + c - 2 L) / (2 - c)), T the Chebyshev polynomial of some degree:
 *               within [-1, 1] on [c, 2], and rising to 74 from c to 0
 *
 * Any Ritz value bounds its eigenvalue of L from above, so the c that unfinished runs give is never too low: runs
 * repeat with c falling towards the last wanted eigenvalue, until one converges. Long paths and meshes, with thousands
 * of eigenvalues near 0, need this.
 *
 * Found vectors and the trivial one are projected out. Lanczos iterations may miss copies of repeated eigenvalues: a
 * run with all that was found projected out must see nothing smaller than the largest found, or what it sees is taken
 * in its place.
 *
 * A fixed diagonal below 1e-9 parts equal eigenvalues, which halves how often one is missed, and keeps Krylov spaces
 * from closing: ARPACK would then draw from random numbers of its own, which go on from call to call.
 */
#include <arpack/arpack.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "encode/spectrum.h"
#include "graph/csr.h"
#include "graph/parallel.h"
#include "library.h"
#include "random.h"

enum { RESTARTS = 30, RUNS = 16, SMALLEST_BASIS = 48 };
enum { BLOCK_ROWS = 4096, THREADS_PAY = 1 << 18 }; /* entries below which starting threads costs more than it gives */
#define TOLERANCE 1e-8
#define SHIFT 3.0
#define GROWTH 5.0 /* cosh(5) = 74 */

typedef struct problem {
    const mg_component *component;
    int64_t n, basis; /* basis: Lanczos vectors */
    double cutoff;    /* c; 0: plain */
    int degree;
    double *noise;      /* [n] the small diagonal */
    double *scaled;     /* [n] degree^-1/2 x */
    double *now, *last; /* [n] */
    double *found;      /* [wanted + 1][n], eigenvectors; room for one more than is wanted */
    double *values;     /* [wanted + 1], of L */
    int64_t found_count;
    double *start, *vectors;   /* [n], [basis][n] */
    double *work, *basis_work; /* [3 n], [basis * (basis + 8)] */
    double *ritz;              /* [basis] */
    a_int *select;             /* [basis] */
} problem;

/* --- the operator --- */

typedef struct row_update {
    const problem *p;
    const double *x;
    double *y;
    double product, itself, previous;
} row_update;

static void update_rows(void *context, int thread, int64_t block)
{
    const row_update *u = context;
    const mg_component *c = u->p->component;
    int64_t begin = block * BLOCK_ROWS, end = begin + BLOCK_ROWS < c->nodes ? begin + BLOCK_ROWS : c->nodes;
    const double *scaled = u->p->scaled - c->base;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        double sum = 0;
        for (int64_t e = c->starts[i]; e < c->starts[i + 1]; e++)
            sum += scaled[c->columns[e]];
        double product = c->inverse_root[i] * sum + u->p->noise[i] * u->x[i];
        u->y[i] = u->product * product + u->itself * u->x[i] + (u->previous != 0 ? u->previous * u->y[i] : 0);
    }
}

/* y = product * M x + itself * x + previous * y, M = I - L */
static void update(const problem *p, double *y, const double *x, double product, double itself, double previous)
{
    int64_t blocks = (p->n + BLOCK_ROWS - 1) / BLOCK_ROWS,
            entries = p->component->starts[p->n] - p->component->starts[0];
    for (int64_t i = 0; i < p->n; i++)
        p->scaled[i] = p->component->inverse_root[i] * x[i];
    int threads = entries < THREADS_PAY ? 1 : mg_graph_threads(blocks);
    mg_graph_parallel(threads, blocks, update_rows, &(row_update){p, x, y, product, itself, previous});
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void remove_along(double *x, const double *direction, int64_t n)
{
    double along = dot(x, direction, n);
    for (int64_t i = 0; i < n; i++)
        x[i] -= along * direction[i];
}

static void project(const problem *p, double *x)
{
    remove_along(x, p->component->trivial, p->n);
    for (int64_t k = 0; k < p->found_count; k++)
        remove_along(x, p->found + k * p->n, p->n);
}

static void apply(problem *p, double *y, const double *x)
{
    memcpy(p->now, x, (size_t)p->n * sizeof *x);
    project(p, p->now);
    if (!p->cutoff) {
        update(p, y, p->now, 1, SHIFT - 1, 0);
    } else { /* T1 = B now, T(k + 1) = 2 B T(k) - T(k - 1), B = (M + cutoff / 2) / half */
        double half = 1 - p->cutoff / 2, *older = p->now, *newer = p->last;
        update(p, newer, older, 1 / half, p->cutoff / 2 / half, 0);
        for (int k = 1; k < p->degree; k++) {
            update(p, older, newer, 2 / half, p->cutoff / half, -1);
            double *swap = older;
            older = newer;
            newer = swap;
        }
        memcpy(y, newer, (size_t)p->n * sizeof *y);
    }
    project(p, y);
}

/* The eigenvalue of L that belongs to one of the operator; the cutoff when the filter hides it. */
static double eigenvalue_of(const problem *p, double operator_value)
{
    if (!p->cutoff)
        return SHIFT - operator_value;
    if (operator_value <= 1)
        return p->cutoff;
    return 1 + p->cutoff / 2 - (1 - p->cutoff / 2) * cosh(acosh(operator_value) / p->degree);
}

/* Filters for eigenvalues up to `eigenvalue`. Where most of [0, 2] is wanted, there is nothing to filter. */
static void set_cutoff(problem *p, double eigenvalue)
{
    double cutoff = fmax(1.1 * eigenvalue, 1e-11);
    if (cutoff > 1.5 || (p->cutoff && cutoff > p->cutoff))
        return;
    p->cutoff = cutoff;
    p->degree = (int)fmax(2, ceil(GROWTH / acosh((2 + cutoff) / (2 - cutoff))));
}

/* --- ARPACK --- */

/* One run for the `wanted` largest. 0: converged, vectors[wanted][n] ascending; 1: not, p->ritz holds the bounds; or
 * -EIO. */
static int run_arpack(problem *p, int64_t wanted, int restarts)
{
    a_int n = (a_int)p->n, basis = (a_int)p->basis, length = (a_int)(basis * (basis + 8)), ido = 0, info = 1;
    a_int parameters[11] = {[0] = 1, [2] = restarts, [6] = 1}, places[11] = {0};
    random_stream random = random_seeded(0, 5);
    for (int64_t i = 0; i < p->n; i++)
        p->start[i] = random_unit(&random) - 0.5;
    project(p, p->start);
    do {
        dsaupd_c(&ido, "I", n, "LA", (a_int)wanted, TOLERANCE, p->start, basis, p->vectors, n, parameters, places,
                 p->work, p->basis_work, length, &info);
        if (ido == 1 || ido == -1)
            apply(p, p->work + places[1] - 1, p->work + places[0] - 1);
    } while (ido == 1 || ido == -1);
    if (info != 0 && info != 1 &&
        info != 3) /* 1: out of restarts, 3: no shifts left; both may go on with another filter */
        return fail(-EIO, "laplacian: ARPACK's dsaupd gave %d on a component of %lld nodes", (int)info,
                    (long long)p->n);
    memcpy(p->ritz, p->basis_work + places[5] - 1, (size_t)basis * sizeof *p->ritz);
    if (info)
        return 1;
    a_int error = 0;
    dseupd_c(1, "A", p->select, p->ritz, p->vectors, n, 0, "I", n, "LA", (a_int)wanted, TOLERANCE, p->start, basis,
             p->vectors, n, parameters, places, p->work, p->basis_work, length, &error);
    if (error)
        return fail(-EIO, "laplacian: ARPACK's dseupd gave %d on a component of %lld nodes", (int)error,
                    (long long)p->n);
    return 0;
}

/* The k-th largest of p->ritz (k from 1), which is sorted. */
static double ritz_value(problem *p, int64_t k)
{
    for (int64_t i = 1; i < p->basis; i++)
        for (int64_t j = i; j > 0 && p->ritz[j] > p->ritz[j - 1]; j--) {
            double swap = p->ritz[j];
            p->ritz[j] = p->ritz[j - 1];
            p->ritz[j - 1] = swap;
        }
    return p->ritz[k - 1];
}

/* Puts a unit vector among those found, by its eigenvalue. */
static void insert(problem *p, const double *vector)
{
    update(p, p->now, vector, -1, 1, 0);
    double value = dot(vector, p->now, p->n);
    int64_t place = p->found_count++;
    for (; place > 0 && p->values[place - 1] > value; place--) {
        p->values[place] = p->values[place - 1];
        memcpy(p->found + place * p->n, p->found + (place - 1) * p->n, (size_t)p->n * sizeof *vector);
    }
    p->values[place] = value;
    memcpy(p->found + place * p->n, vector, (size_t)p->n * sizeof *vector);
}

/* Finds `wanted` more. */
static int find(problem *p, int64_t wanted)
{
    for (int run = 0; run < RUNS; run++) {
        int status = run_arpack(p, wanted, RESTARTS);
        if (status < 0)
            return status;
        if (!status) {
            for (int64_t k = wanted - 1; k >= 0; k--)
                insert(p, p->vectors + k * p->n);
            return 0;
        }
        set_cutoff(p, eigenvalue_of(p, ritz_value(p, wanted)));
    }
    return fail(-EIO, "laplacian: ARPACK's dsaupd gave 1: no convergence in %d restarts on a component of %lld nodes",
                RUNS * RESTARTS, (long long)p->n);
}

/* Looks for eigenvalues below the largest found, until there is none. Every one that is taken in drives out the
   largest. One basis is enough to see: the filter lifts what is 1 % below the largest to 2.5, and 48 steps lift that by
   e^70. */
static int take_in_missed(problem *p)
{
    int64_t count = p->found_count;
    for (int64_t round = 0; round < count; round++) {
        double largest = p->values[count - 1];
        set_cutoff(p, largest);
        int status = run_arpack(p, 1, 1);
        if (status < 0)
            return status;
        if (eigenvalue_of(p, status ? ritz_value(p, 1) : p->ritz[0]) > largest - 1e-7 * fmin(1, largest) - 2e-9)
            return 0;
        status = find(p, 1);
        if (status)
            return status;
        p->found_count = count;
    }
    return 0;
}

/* --- a component --- */

static int allocate_problem(problem *p, int64_t count)
{
    int64_t n = p->n, basis = p->basis;
    double *block = allocate(8 * n + basis * (basis + 9) + count + 1, sizeof *block);
    if (!block)
        return -ENOMEM;
    p->noise = block;
    p->scaled = p->noise + n;
    p->now = p->scaled + n;
    p->last = p->now + n;
    p->start = p->last + n;
    p->work = p->start + n;
    p->basis_work = p->work + 3 * n;
    p->ritz = p->basis_work + basis * (basis + 8);
    p->values = p->ritz + basis;
    p->vectors = allocate(basis * n, sizeof *p->vectors);
    p->found = p->vectors ? allocate((count + 1) * n, sizeof *p->found) : NULL;
    p->select = p->found ? allocate(basis, sizeof *p->select) : NULL;
    return p->select ? 0 : -ENOMEM;
}

static int solve(problem *p, int64_t count)
{
    static pthread_mutex_t one_at_a_time =
        PTHREAD_MUTEX_INITIALIZER; /* ARPACK keeps its state between calls in statics */
    random_stream random = random_seeded(0, 6);
    for (int64_t i = 0; i < p->n; i++)
        p->noise[i] = 1e-9 * random_unit(&random);
    pthread_mutex_lock(&one_at_a_time);
    int status = find(p, count);
    if (!status)
        status = take_in_missed(p);
    pthread_mutex_unlock(&one_at_a_time);
    return status;
}

int mg_spectrum_arpack(double *vectors, int64_t count, const mg_component *component)
{
    int64_t n = component->nodes, basis = 2 * count + 16 < SMALLEST_BASIS ? SMALLEST_BASIS : 2 * count + 16;
    if (n > INT32_MAX / 3 || basis > 32768)
        return fail(-EOVERFLOW, "laplacian: %lld eigenvectors of %lld nodes; ARPACK counts its work space in 32 bits",
                    (long long)count, (long long)n);
    problem p = {.component = component, .n = n, .basis = basis};
    int status = allocate_problem(&p, count);
    if (!status)
        status = solve(&p, count);
    if (!status)
        memcpy(vectors, p.found, (size_t)(count * n) * sizeof *vectors);
    RELEASE_ALL(p.noise, p.vectors, p.found, p.select);
    return status;
}
