/* Rows of other ranks, fetched and returned, against a copy of all rows. */
#include "megagraph/context.h"
#include "problem.h"
#include "support/port.h"

enum { TOKENS = 90, PER = 4, WIDTH = 5, STRIDE = 7, MOST = 8 };

typedef struct halos {
    test_ports *ports;
    int ranks;
    int64_t first[MOST + 1];
    int64_t starts[TOKENS + 1];
    int32_t columns[TOKENS * PER];
    float sums[TOKENS][WIDTH]; /* what returns should add up to */
    int64_t halo_rows[MOST], sent_rows[MOST];
} halos;

static float value_of(int64_t row, int64_t d) { return (float)(row * WIDTH + d); }
/* A whole number, so that sums are exact: the gradient that rank r gives to a row it fetched. */
static float gradient_of(int rank, int64_t row, int64_t d) { return (float)((rank + 1) * 1000 + row + d); }

static mg_attn_port port_of(const halos *h, int rank)
{
    return (mg_attn_port){.context = test_ports_of(h->ports, rank),
                          .rank = rank,
                          .ranks = h->ranks,
                          .send = test_port_send,
                          .receive = test_port_receive,
                          .test = test_port_test,
                          .wait = test_port_wait};
}

static void check_fetched(const halos *h, int rank, const float *rows, const int32_t *local)
{
    const int64_t begin = h->first[rank];
    for (int64_t e = h->starts[begin]; e < h->starts[h->first[rank + 1]]; e++)
        for (int64_t d = 0; d < STRIDE; d++) {
            const float at = rows[local[e - h->starts[begin]] * STRIDE + d];
            if (d < WIDTH ? at != value_of(h->columns[e], d) : at != -1)
                fail_msg("rank %d, column %d: %g in element %d", rank, h->columns[e], (double)at, (int)d);
        }
}

/* The order of local rows: own, then by rank and ascending, which is ascending over all. */
static void check_order(const halos *h, int rank, const int32_t *local, int64_t fetched)
{
    int64_t begin = h->first[rank], own = h->first[rank + 1] - begin;
    int32_t *global = malloc((size_t)(own + fetched) * sizeof *global + 1);
    for (int64_t i = 0; i < own + fetched; i++)
        global[i] = i < own ? (int32_t)(begin + i) : -1;
    for (int64_t e = h->starts[begin]; e < h->starts[begin + own]; e++)
        global[local[e - h->starts[begin]]] = h->columns[e];
    for (int64_t i = own; i < own + fetched; i++)
        assert_true(global[i] >= 0 && (i == own || global[i] > global[i - 1]));
    free(global);
}

/* Fetched rows: each once, its gradient set. */
static int give_back(const halos *h, mg_attn_halo *halo, int rank, float *rows, const int32_t *local, float *buffer)
{
    const int64_t begin = h->first[rank], own = h->first[rank + 1] - begin;
    for (int64_t i = 0; i < own; i++)
        for (int64_t d = 0; d < WIDTH; d++)
            rows[i * STRIDE + d] = 0;
    for (int64_t e = h->starts[begin]; e < h->starts[begin + own]; e++)
        for (int64_t d = 0; d < WIDTH && local[e - h->starts[begin]] >= own; d++)
            rows[local[e - h->starts[begin]] * STRIDE + d] = gradient_of(rank, h->columns[e], d);
    int status = mg_attn_halo_return_begin(halo, rows, STRIDE, WIDTH, buffer);
    for (int64_t i = 0; i < own; i++) /* own rows may be written between the two */
        for (int64_t d = 0; d < WIDTH; d++)
            rows[i * STRIDE + d] = 1;
    if (!status)
        status = mg_attn_halo_return_end(halo, rows, STRIDE, WIDTH, buffer);
    for (int64_t i = 0; i < own && !status; i++)
        for (int64_t d = 0; d < WIDTH; d++)
            if (rows[i * STRIDE + d] != 1 + h->sums[begin + i][d])
                fail_msg("row %d got %g, expected %g", (int)(begin + i), (double)rows[i * STRIDE + d],
                         (double)(1 + h->sums[begin + i][d]));
    return status;
}

static int exchange(void *context, int rank)
{
    halos *h = context;
    const mg_attn_port port = port_of(h, rank);
    const int64_t begin = h->first[rank], own = h->first[rank + 1] - begin;
    int64_t starts[TOKENS + 1];
    int32_t local[TOKENS * PER + 1];
    mg_attn_halo *halo;
    for (int64_t i = 0; i <= own; i++)
        starts[i] = h->starts[begin + i] - h->starts[begin];
    int status = mg_attn_halo_create(&halo, &port, h->first, starts, h->columns + h->starts[begin]);
    if (status)
        return status;
    const int64_t fetched = h->halo_rows[rank] = mg_attn_halo_rows(halo),
                  sent = h->sent_rows[rank] = mg_attn_halo_sent(halo);
    float *rows = malloc((size_t)((own + fetched) * STRIDE) * sizeof *rows + 1),
          *buffer = malloc((size_t)((sent + fetched) * WIDTH) * sizeof *buffer + 1);
    for (int64_t i = 0; i < (own + fetched) * STRIDE; i++)
        rows[i] = i / STRIDE < own && i % STRIDE < WIDTH ? value_of(begin + i / STRIDE, i % STRIDE) : -1;
    mg_attn_halo_localise(local, halo, starts, h->columns + h->starts[begin]);
    check_order(h, rank, local, fetched);
    const int64_t before = test_ports_sent(h->ports, rank);
    status = mg_attn_halo_fetch_begin(halo, rows, STRIDE, WIDTH, buffer);
    if (!status)
        status = mg_attn_halo_fetch_end(halo, rows, STRIDE, WIDTH, buffer);
    if (!status) {
        assert_int_equal(test_ports_sent(h->ports, rank) - before, sent * WIDTH * (int64_t)sizeof(float));
        check_fetched(h, rank, rows, local);
        status = give_back(h, halo, rank, rows, local, buffer);
    }
    free(rows);
    free(buffer);
    mg_attn_halo_destroy(halo);
    return status;
}

static void make(halos *h, int ranks, uint64_t seed)
{
    *h = (halos){.ranks = ranks};
    for (int r = 0; r <= ranks; r++)
        h->first[r] = seed & 1 ? TOKENS * r * r / ranks / ranks : r < 2 ? r : TOKENS * (r / 2 * 2) / (ranks / 2 * 2);
    h->first[ranks] = TOKENS;
    for (int i = 0; i < TOKENS; i++) {
        const int64_t count = (int64_t)(test_random_bits(seed, (uint64_t)i) % (PER + 1));
        h->starts[i + 1] = h->starts[i] + count;
        for (int64_t e = h->starts[i]; e < h->starts[i + 1]; e++) /* in any order, also twice */
            h->columns[e] = (int32_t)(test_random_bits(seed + 9, (uint64_t)(i / 20 * PER + e)) % TOKENS);
    }
}

static int owner(const halos *h, int64_t row)
{
    int r = 0;
    while (h->first[r + 1] <= row)
        r++;
    return r;
}

/* Counts each (rank, row) once; sums what the rows will get. */
static int64_t expect(halos *h)
{
    static char needed[MOST][TOKENS];
    int64_t count = 0;
    memset(needed, 0, sizeof needed);
    for (int i = 0; i < TOKENS; i++)
        for (int64_t e = h->starts[i]; e < h->starts[i + 1]; e++)
            needed[owner(h, i)][h->columns[e]] |= owner(h, i) != owner(h, h->columns[e]);
    for (int r = 0; r < h->ranks; r++)
        for (int row = 0; row < TOKENS; row++)
            for (int d = 0; d < WIDTH && needed[r][row]; d++) {
                count += d == 0;
                h->sums[row][d] += gradient_of(r, row, d);
            }
    return count;
}

static void rows_come_and_gradients_return(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= MOST; ranks++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            halos h;
            make(&h, ranks, seed);
            const int64_t moved = expect(&h);
            h.ports = test_ports_open(ranks);
            test_ports_delay(h.ports, seed == 3 ? 100 : 0);
            assert_int_equal(test_ports_run(h.ports, exchange, &h), 0);
            test_ports_close(h.ports);
            int64_t fetched = 0, sent = 0;
            for (int r = 0; r < ranks; r++) {
                fetched += h.halo_rows[r];
                sent += h.sent_rows[r];
            }
            assert_int_equal(fetched, moved);
            assert_int_equal(sent, moved);
        }
}

/* --- faults --- */

static int run_exchange(void *context)
{
    halos *h = context;
    h->ports = test_ports_open(h->ranks);
    const int status = test_ports_run(h->ports, exchange, h);
    test_ports_close(h->ports);
    return status;
}

static void every_allocation_fails(void **state)
{
    (void)state;
    halos h;
    make(&h, 3, 1);
    expect(&h);
    assert_true(test_every_allocation_fails(mg_attn_set_memory_hook, run_exchange, &h) > 10);
}

static void every_call_of_the_port_fails(void **state)
{
    (void)state;
    halos h;
    make(&h, 3, 1);
    expect(&h);
    for (int64_t n = 1, reached = 1; reached; n++) {
        h.ports = test_ports_open(h.ranks);
        test_ports_fail(h.ports, n);
        const int status = test_ports_run(h.ports, exchange, &h);
        reached = test_ports_failed(h.ports);
        test_ports_close(h.ports);
        assert_int_equal(status, reached ? -EIO : 0);
    }
}

static void wrong_lists_are_refused(void **state)
{
    (void)state;
    const int64_t first[] = {0, 3}, starts[] = {0, 1, 2, 2}, falling[] = {0, 2, 1, 2};
    const int32_t columns[] = {2, 3}, good[] = {2, 0};
    const mg_attn_port alone = {.ranks = 1};
    mg_attn_halo *halo;
    assert_int_equal(mg_attn_halo_create(&halo, &alone, first, starts, columns), -EINVAL);
    assert_error_says("row 1 names column 3 of 3");
    assert_int_equal(mg_attn_halo_create(&halo, &alone, first, falling, good), -EINVAL);
    assert_error_says("row 1");
    assert_int_equal(mg_attn_halo_create(&halo, &alone, first, starts, NULL), -EINVAL);
    assert_int_equal(mg_attn_halo_create(&halo, &alone, NULL, starts, good), -EINVAL);
    assert_int_equal(mg_attn_halo_create(NULL, &alone, first, starts, good), -EINVAL);
    assert_int_equal(mg_attn_halo_create(&halo, &alone, first, starts, good), 0);
    assert_int_equal(mg_attn_halo_rows(halo), 0);
    float row[3] = {0};
    assert_int_equal(mg_attn_halo_fetch_begin(halo, row, 1, 2, row), -EINVAL);
    assert_error_says("2 floats at a stride of 1");
    mg_attn_halo_destroy(halo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_and_gradients_return),
        cmocka_unit_test(every_allocation_fails),
        cmocka_unit_test(every_call_of_the_port_fails),
        cmocka_unit_test(wrong_lists_are_refused),
    };
    return cmocka_run_group_tests_name("rows of other ranks", tests, NULL, NULL);
}
