/* The frame: runs chunks of rows and ranges of neighbour lists on threads, adds up what they summed. The only file that
 * knows of OpenMP. */
#include "internal.h"

#include <string.h>
#include <time.h>

#ifdef _OPENMP
#include <omp.h>
static int default_threads(void) { return omp_get_max_threads(); }
int mg_model_this_thread(void) { return omp_get_thread_num(); }
/* Inside a region: oneDNN then runs on this thread alone, also where the region has one thread and so counts as none.
 */
void mg_model_work_alone(void) { omp_set_num_threads(1); }
#else
static int default_threads(void) { return 1; }
int mg_model_this_thread(void) { return 0; }
void mg_model_work_alone(void) {}
#endif

int mg_model_threads(int wanted) { return wanted > 0 ? wanted : default_threads(); }

double mg_model_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* --- chunks --- */

typedef struct tally {
    double begun;
    int threads;
} tally;

static tally begin_tally(const run *r, int64_t tasks)
{
    tally t = {mg_model_seconds(), (int)smaller(r->threads, tasks)};
    for (int i = 0; i < t.threads; i++)
        r->pass->scratch[i].dense_seconds = r->pass->scratch[i].status = 0;
    return t;
}

/* Splits the time of a sweep into dense products and the rest; says whether oneDNN failed. */
static int end_tally(const run *r, tally t, double *seconds)
{
    double dense = 0;
    int status = 0;
    for (int i = 0; i < t.threads; i++) {
        dense += r->pass->scratch[i].dense_seconds / t.threads;
        status = status ? status : r->pass->scratch[i].status;
    }
    r->pass->times.dense += dense;
    *seconds += mg_model_seconds() - t.begun - dense;
    return status ? fail(-EIO, "model: oneDNN's sgemm failed with status %d", status) : 0;
}

static void run_chunk(const run *r, chunk_work *work, int64_t layer, const sums *to, int64_t chunk, int64_t rows)
{
    int64_t begin = chunk * CHUNK;
    work(r, &r->pass->scratch[mg_model_this_thread()], layer, to, begin, smaller(CHUNK, rows - begin));
}

int mg_model_sweep(const run *r, chunk_work *work, int64_t layer, int64_t rows, double *seconds)
{
    int64_t chunks = (rows + CHUNK - 1) / CHUNK;
    if (!chunks)
        return 0;
    tally t = begin_tally(r, chunks);
#pragma omp parallel num_threads(t.threads)
    {
        mg_model_work_alone();
#pragma omp for schedule(dynamic)
        for (int64_t c = 0; c < chunks; c++)
            run_chunk(r, work, layer, NULL, c, rows);
    }
    return end_tally(r, t, seconds);
}

/* --- sums --- */

int64_t mg_model_groups(int64_t floats)
{
    int64_t fit = GROUPS_BYTES / (int64_t)sizeof(float) / (floats ? floats : 1);
    return fit < GROUPS_LEAST ? GROUPS_LEAST : smaller(fit, GROUPS_MOST);
}

/* to += the partials, in order; the first partial is used up. */
static void add_partials(const run *r, float *to, float *partials, int64_t count, int64_t floats)
{
    enum { PIECE = 4096 };
    int64_t pieces = (floats + PIECE - 1) / PIECE;
#pragma omp parallel for num_threads((int)smaller(r->threads, pieces)) schedule(static)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t at = p * PIECE, n = smaller(PIECE, floats - at);
        for (int64_t g = 1; g < count; g++)
            r->model->rows->add(partials + at, partials + g * floats + at, n);
        if (to)
            r->model->rows->add(to + at, partials + at, n);
    }
}

int mg_model_sweep_sums(const run *r, chunk_work *work, int64_t layer, int64_t rows, int64_t begin, int64_t end,
                        double *seconds)
{
    int64_t floats = end - begin, chunks = (rows + CHUNK - 1) / CHUNK;
    int64_t groups = smaller(chunks, mg_model_groups(floats));
    if (!chunks)
        return 0;
    tally t = begin_tally(r, groups);
#pragma omp parallel num_threads(t.threads)
    {
        mg_model_work_alone();
#pragma omp for schedule(dynamic)
        for (int64_t g = 0; g < groups; g++) {
            sums to = {r->pass->partials + g * floats, begin};
            memset(to.floats, 0, (size_t)floats * sizeof *to.floats);
            for (int64_t c = g * chunks / groups; c < (g + 1) * chunks / groups; c++)
                run_chunk(r, work, layer, &to, c, rows);
        }
    }
    if (floats)
        add_partials(r, r->gradients + begin, r->pass->partials, groups, floats);
    return end_tally(r, t, seconds);
}

/* --- neighbours --- */

/* The first row at or after which `work` rows and entries lie. */
static int64_t row_after(const int64_t *starts, int64_t rows, int64_t work)
{
    int64_t low = 0, high = rows;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (starts[middle] + middle < work)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void mg_model_sweep_entries(const run *r, entry_work *work, int64_t layer, const mg_model_lists *lists, int with_sums,
                            double *seconds)
{
    int64_t rows = lists->rows, all = rows + lists->starts[rows], floats = with_sums ? r->pass->entry_floats : 0;
    int64_t ranges = all < ENTRY_RANGE ? 1 : smaller(all / ENTRY_RANGE, ENTRY_RANGES);
    double begun = mg_model_seconds();
#pragma omp parallel for num_threads((int)smaller(r->threads, ranges)) schedule(dynamic)
    for (int64_t k = 0; k < ranges; k++) {
        float *partial = floats ? r->pass->entry_partials + k * floats : NULL;
        if (partial)
            memset(partial, 0, (size_t)floats * sizeof *partial);
        int64_t begin = row_after(lists->starts, rows, k * (all / ranges));
        int64_t end = k + 1 == ranges ? rows : row_after(lists->starts, rows, (k + 1) * (all / ranges));
        work(r, layer, lists, partial, begin, end);
    }
    if (floats)
        add_partials(r, NULL, r->pass->entry_partials, ranges, floats);
    *seconds += mg_model_seconds() - begun;
}

void mg_model_sweep_ranges(const run *r, range_work *work, int64_t layer, int64_t ranges)
{
#pragma omp parallel for num_threads((int)smaller(r->threads, ranges)) schedule(dynamic)
    for (int64_t k = 0; k < ranges; k++)
        work(r, &r->pass->scratch[mg_model_this_thread()], layer, k);
}

/* --- virtual tokens --- */

int64_t mg_model_graph_at(const mg_model_batch *batch, int64_t token)
{
    int64_t low = 0, high = batch->graphs;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (batch->segments[middle + 1] <= token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void mg_model_zero_virtual(const run *r, float *y, int64_t begin, int64_t rows, int64_t columns)
{
    const mg_model_batch *batch = r->batch;
    if (!r->model->desc.virtual_token)
        return;
    for (int64_t g = mg_model_graph_at(batch, begin); g < batch->graphs && batch->segments[g + 1] <= begin + rows; g++)
        memset(y + (batch->segments[g + 1] - 1 - begin) * columns, 0, (size_t)columns * sizeof *y);
}
