#include "graph/graphs.h"

/* I - D^-1/2 A D^-1/2 of the symmetrised graph without self loops, as a matrix. */
static double *dense_laplacian(const mg_graph *graph)
{
    int64_t n = graph->nodes;
    double *l = calloc((size_t)(n * n) + 1, sizeof *l), *degree = calloc((size_t)n + 1, sizeof *degree);
    for (int64_t i = 0; i < n; i++)
        for (int64_t e = graph->starts[i]; e < graph->starts[i + 1]; e++)
            if (graph->columns[e] != i)
                l[i * n + graph->columns[e]] = l[graph->columns[e] * n + i] = 1;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            degree[i] += l[i * n + j];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            l[i * n + j] = (i == j && degree[i] > 0) - (l[i * n + j] != 0 ? 1 / sqrt(degree[i] * degree[j]) : 0);
    free(degree);
    return l;
}

static void jacobi_rotate(double *a, int64_t n, int64_t p, int64_t q)
{
    if (a[p * n + q] == 0)
        return;
    double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
    double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1)), c = 1 / sqrt(t * t + 1), s = t * c;
    for (int64_t k = 0; k < n; k++) {
        double x = a[k * n + p], y = a[k * n + q];
        a[k * n + p] = c * x - s * y;
        a[k * n + q] = s * x + c * y;
    }
    for (int64_t k = 0; k < n; k++) {
        double x = a[p * n + k], y = a[q * n + k];
        a[p * n + k] = c * x - s * y;
        a[q * n + k] = s * x + c * y;
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Eigenvalues by cyclic Jacobi, ascending. */
static void jacobi_eigenvalues(double *values, const double *matrix, int64_t n)
{
    double *a = malloc((size_t)(n * n) * sizeof *a), off = 1;
    memcpy(a, matrix, (size_t)(n * n) * sizeof *a);
    for (int sweep = 0; sweep < 40 && off > 1e-22; sweep++) {
        off = 0;
        for (int64_t p = 0; p < n; p++)
            for (int64_t q = p + 1; q < n; q++) {
                off += a[p * n + q] * a[p * n + q];
                jacobi_rotate(a, n, p, q);
            }
    }
    for (int64_t i = 0; i < n; i++)
        values[i] = a[i * n + i];
    qsort(values, (size_t)n, sizeof *values, ascending);
    free(a);
}

static double entry_product(const double *l, const float *x, int64_t n, int count, int k, int64_t row)
{
    double sum = 0;
    for (int64_t j = 0; j < n; j++)
        sum += l[row * n + j] * x[j * count + k];
    return sum;
}

/* ||L x - value x||, with the Rayleigh quotient as value. */
static double residual(double *value, const double *l, const float *x, int64_t n, int count, int k)
{
    double rayleigh = 0, square = 0;
    for (int64_t i = 0; i < n; i++)
        rayleigh += entry_product(l, x, n, count, k, i) * x[i * count + k];
    for (int64_t i = 0; i < n; i++) {
        double r = entry_product(l, x, n, count, k, i) - rayleigh * x[i * count + k];
        square += r * r;
    }
    *value = rayleigh;
    return sqrt(square);
}

static void check_orthonormal(const char *what, const float *x, int64_t n, int count, int wanted)
{
    for (int a = 0; a < wanted; a++)
        for (int b = 0; b <= a; b++) {
            double sum = a == b ? -1 : 0;
            for (int64_t i = 0; i < n; i++)
                sum += (double)x[i * count + a] * x[i * count + b];
            if (!(fabs(sum) < 2e-6))
                fail_msg("%s: vectors %d and %d: product off by %g", what, a, b, sum);
        }
}

/* Index of the first entry that is as large as any, but for `tie`. */
static int64_t first_largest(const float *x, int64_t n, int count, int k, float tie)
{
    float largest = 0;
    int64_t i = 0;
    for (int64_t j = 0; j < n; j++)
        largest = fmaxf(largest, fabsf(x[j * count + k]));
    while (fabsf(x[i * count + k]) < largest * (1 - tie))
        i++;
    return i;
}

/* Ties are 1e-5 wide; what lies on the border of that may fall to either side. */
static void check_sign(const char *what, const float *x, int64_t n, int count, int k)
{
    int64_t narrow = first_largest(x, n, count, k, 0.9e-5f), wide = first_largest(x, n, count, k, 1.1e-5f);
    if (x[narrow * count + k] < 0 && x[wide * count + k] < 0)
        fail_msg("%s: vector %d is negative at %lld", what, k, (long long)narrow);
}

/* A connected graph: eigenvectors, their eigenvalues those of Jacobi, sign, zeros beyond; the graph is destroyed. */
static void check_connected(const char *what, mg_graph *graph, int count)
{
    int64_t n = graph->nodes;
    int wanted = count < n - 1 ? count : (int)n - 1;
    float *x = malloc((size_t)(n * count) * sizeof *x);
    double *l = dense_laplacian(graph), *values = malloc((size_t)n * sizeof *values);
    must(mg_graph_laplacian(x, count, graph));
    jacobi_eigenvalues(values, l, n);
    for (int k = 0; k < wanted; k++) {
        double value, error = residual(&value, l, x, n, count, k);
        if (!(error < 1e-6))
            fail_msg("%s: vector %d: residual %g", what, k, error);
        if (!(fabs(value - values[k + 1]) < 1e-6))
            fail_msg("%s: eigenvalue %d is %.9g, by Jacobi %.9g", what, k, value, values[k + 1]);
        check_sign(what, x, n, count, k);
    }
    check_orthonormal(what, x, n, count, wanted);
    for (int64_t i = 0; i < n; i++)
        for (int k = wanted; k < count; k++)
            assert_true(x[i * count + k] == 0);
    free(x);
    free(l);
    free(values);
    mg_graph_destroy(graph);
}

/* Both sides of the border between the solvers, 128 nodes, on graphs whose eigenvalues repeat and on ones where they do
 * not. */
static void connected_graphs_of_every_size(void **unused)
{
    (void)unused;
    static const int64_t sizes[] = {2, 3, 4, 5, 9, 31, 125, 129};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        check_connected("path", path_graph(sizes[s]), 8);
        check_connected("cycle", cycle_graph(sizes[s] + 1), 8);
        check_connected("star", star_graph(sizes[s]), 8);
        check_connected("complete", complete_graph(sizes[s]), 8);
        check_connected("bipartite", bipartite_graph(sizes[s], 3), 8);
    }
    mg_graph *grid;
    must(mg_graph_generate_grid(&grid, 12, 12)); /* pairs of equal eigenvalues */
    check_connected("grid", grid, 8);
    must(mg_graph_generate_grid(&grid, 3, 50));
    check_connected("long grid", grid, 20);
    must(mg_graph_generate_sbm(&grid, 160, 4, 20, 8, 1));
    check_connected("blocks", grid, 16);
    check_connected("one vector", path_graph(140), 1);
    check_connected("all vectors", path_graph(20), 19);
    check_connected("most vectors", cycle_graph(140), 110);
}

/* Four cliques of 40 nodes hang on one node: eigenvalue near 0 three times, then the cliques' own, dozens of times. */
static void repeated_eigenvalues_are_all_found(void **unused)
{
    (void)unused;
    int64_t sources[4000], targets[4000], edges = 0;
    for (int64_t c = 0; c < 4; c++)
        for (int64_t i = 0; i < 40; i++) {
            for (int64_t j = i + 1; j < 40; j++) {
                sources[edges] = 1 + 40 * c + i;
                targets[edges++] = 1 + 40 * c + j;
            }
            if (i == 0) {
                sources[edges] = 0;
                targets[edges++] = 1 + 40 * c;
            }
        }
    check_connected("cliques", graph_of(161, edges, sources, targets, 0), 10);
}

/* Vectors of a graph with known eigenvalues, twice to the same bytes; the graph is destroyed. */
static void check_eigenvalues(const char *what, mg_graph *graph, const double *expected, int count)
{
    int64_t n = graph->nodes;
    size_t bytes = (size_t)(n * count) * sizeof(float);
    float *x = malloc(bytes), *again = malloc(bytes);
    double *l = dense_laplacian(graph), value;
    must(mg_graph_laplacian(x, count, graph));
    for (int k = 0; k < count; k++) {
        assert_true(residual(&value, l, x, n, count, k) < 1e-6);
        if (!(fabs(value - expected[k]) < 1e-6))
            fail_msg("%s: eigenvalue %d of %d is %.9g, not %.9g", what, k, count, value, expected[k]);
    }
    check_orthonormal(what, x, n, count, count);
    must(mg_graph_laplacian(again, count, graph));
    test_same_bytes(what, again, x, bytes);
    free(x);
    free(again);
    free(l);
    mg_graph_destroy(graph);
}

/* Eigenvalue 2 j / dimension, (dimension over j) times. */
static void hypercube_has_all_copies(void **unused)
{
    (void)unused;
    enum { DIMENSION = 8, N = 1 << DIMENSION, K = 12 };
    static int64_t sources[N * DIMENSION], targets[N * DIMENSION];
    double expected[K];
    for (int64_t e = 0; e < N * DIMENSION; e++) {
        sources[e] = e / DIMENSION;
        targets[e] = sources[e] ^ (int64_t)1 << e % DIMENSION;
    }
    for (int k = 0; k < K; k++)
        expected[k] = (k < DIMENSION ? 2. : 4.) / DIMENSION;
    check_eigenvalues("hypercube", graph_of(N, N * DIMENSION, sources, targets, 0), expected, K);
}

/* Eigenvalues 1 - cos(a) / 2 - cos(b) / 2: four times the smallest, four times the next. ARPACK alone misses some of
 * these. */
static void torus_has_all_copies(void **unused)
{
    (void)unused;
    enum { SIDE = 20, N = SIDE * SIDE, K = 8 };
    static int64_t sources[2 * N], targets[2 * N];
    double expected[K];
    for (int64_t i = 0; i < N; i++) {
        sources[2 * i] = sources[2 * i + 1] = i;
        targets[2 * i] = i / SIDE * SIDE + (i + 1) % SIDE;
        targets[2 * i + 1] = (i + SIDE) % N;
    }
    for (int k = 0; k < K; k++)
        expected[k] = (k < 4 ? 0.5 : 1) * (1 - cos(2 * 3.14159265358979323846 / SIDE));
    for (int count = 1; count <= K; count++)
        check_eigenvalues("torus", graph_of(N, 2 * N, sources, targets, 0), expected, count);
}

/* Closed form: 1 - cos(pi k / (n - 1)). Its eigenvalues crowd at 0, where plain Lanczos iterations hardly move. */
static void long_path_has_its_closed_form(void **unused)
{
    (void)unused;
    enum { N = 2500, K = 4 };
    mg_graph *graph = path_graph(N);
    float *x = malloc(N * K * sizeof *x);
    must(mg_graph_laplacian(x, K, graph));
    for (int k = 0; k < K; k++) {
        double square = 0;
        for (int i = 0; i < N; i++) {
            double end = i == 0 || i == N - 1 ? sqrt(0.5) : 1;
            double exact = end * cos(3.14159265358979323846 * (k + 1) * i / (N - 1)) * sqrt(2. / (N - 1));
            double same = x[k] > 0 ? exact : -exact;
            square += (x[i * K + k] - same) * (x[i * K + k] - same);
        }
        assert_true(sqrt(square) < 1e-4);
    }
    free(x);
    mg_graph_destroy(graph);
}

static void components_are_encoded_by_themselves(void **unused)
{
    (void)unused;
    enum { K = 5 };
    mg_graph *alone[] = {cycle_graph(7), path_graph(150), star_graph(4), graph_of(2, 0, NULL, NULL, 0), path_graph(2)};
    mg_graph *all = NULL;
    float together[200 * K], apart[200 * K], *next = apart;
    for (int g = 0; g < 5; g++) {
        must(mg_graph_laplacian(next, K, alone[g]));
        next += alone[g]->nodes * K;
        all = all ? beside(all, alone[g]) : alone[g];
    }
    assert_int_equal(all->nodes, 165);
    must(mg_graph_laplacian(together, K, all));
    test_same_bytes("encodings", together, apart, 165 * K * sizeof(float));
    mg_graph_destroy(all);
}

/* Directions and self loops make no difference. */
static void directed_graphs_are_symmetrised(void **unused)
{
    (void)unused;
    enum { N = 60, K = 6 };
    float one[N * K], both[N * K];
    mg_graph *directed = random_graph(N, 200, 1, 3), *undirected = random_graph(N, 200, 0, 3);
    must(mg_graph_laplacian(one, K, directed));
    must(mg_graph_laplacian(both, K, undirected));
    test_same_bytes("encodings", one, both, sizeof one);
    mg_graph_destroy(undirected);
    check_connected("directed", directed, K);
}

static void same_bytes_for_any_threads_and_every_time(void **unused)
{
    (void)unused;
    enum { K = 8 };
    mg_graph *big = beside(star_graph(9000), star_graph(300)),
             *graph = beside(big, beside(path_graph(20), cycle_graph(9)));
    size_t bytes = (size_t)graph->nodes * K * sizeof(float);
    float *first = malloc(bytes), *again = malloc(bytes);
    set_threads(1);
    must(mg_graph_laplacian(first, K, graph));
    for (int threads = 1; threads <= 4; threads++) {
        set_threads(threads);
        must(mg_graph_laplacian(again, K, graph));
        test_same_bytes("encodings", again, first, bytes);
    }
    free(first);
    free(again);
    mg_graph_destroy(graph);
}

static void bad_and_empty(void **unused)
{
    (void)unused;
    mg_graph *empty = graph_of(0, 0, NULL, NULL, 0), *path = path_graph(3);
    must(mg_graph_laplacian(NULL, 4, empty));
    must(mg_graph_laplacian(NULL, 0, path));
    assert_int_equal(-EINVAL, mg_graph_laplacian(NULL, -1, path));
    assert_string_equal(mg_graph_last_error(), "laplacian: -1 eigenvectors");
    mg_graph_destroy(empty);
    mg_graph_destroy(path);
}

static float faulty[2000];
static int laplacian_work(void *graph) { return mg_graph_laplacian(faulty, 3, graph); }

static void every_allocation_may_fail(void **unused)
{
    (void)unused;
    mg_graph *graph = beside(random_graph(200, 900, 1, 5), path_graph(30));
    assert_true(test_every_allocation_fails(mg_graph_set_memory_hook, laplacian_work, graph) > 10);
    mg_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connected_graphs_of_every_size),
        cmocka_unit_test(repeated_eigenvalues_are_all_found),
        cmocka_unit_test(hypercube_has_all_copies),
        cmocka_unit_test(torus_has_all_copies),
        cmocka_unit_test(long_path_has_its_closed_form),
        cmocka_unit_test(components_are_encoded_by_themselves),
        cmocka_unit_test(directed_graphs_are_symmetrised),
        cmocka_unit_test(same_bytes_for_any_threads_and_every_time),
        cmocka_unit_test(bad_and_empty),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
