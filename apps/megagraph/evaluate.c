#include "evaluate.h"

#include <string.h>

#include "app.h"
#include "progress.h"

static void remake_sizes(mg_runner *runner, const mg_unit *unit)
{
    runner->tokens = unit->batch->tokens;
    runner->graphs = unit->batch->graphs;
    runner->edges = unit->batch->edges;
    runner->pairs = unit->near ? unit->near->pairs : 0;
}

int mg_runner_fit(mg_runner *runner, const mg_unit *unit, int64_t outputs)
{
    int64_t pairs = unit->near ? unit->near->pairs : 0, room = unit->rows * outputs;
    if (room > runner->outputs_room) {
        release(runner->outputs);
        runner->outputs = allocate(room, sizeof(float));
        runner->outputs_room = runner->outputs ? room : 0;
        if (!runner->outputs)
            return -ENOMEM;
    }
    if (runner->pass && unit->batch->tokens <= runner->tokens && unit->batch->graphs <= runner->graphs &&
        unit->batch->edges <= runner->edges && pairs <= runner->pairs)
        return 0;
    mg_model_pass_destroy(runner->pass);
    runner->pass = NULL;
    remake_sizes(runner, unit);
    return relay(mg_model_pass_create(&runner->pass, runner->model, &unit->view, runner->training),
                 mg_model_last_error());
}

void mg_runner_clear(mg_runner *runner)
{
    mg_model_pass_destroy(runner->pass);
    release(runner->outputs);
    runner->pass = NULL;
    runner->outputs = NULL;
    runner->outputs_room = 0;
}

static void scatter(float *table, const float *rows, int64_t columns, const mg_unit *unit)
{
    for (int64_t r = 0; r < unit->rows; r++)
        if (unit->row_items[r] >= 0)
            memcpy(table + unit->row_items[r] * columns, rows + r * columns, (size_t)columns * sizeof *rows);
}

/* Graph level: a graph's row is its virtual token's, or the mean over its tokens. */
static void scatter_embeddings(float *table, const float *tokens, int64_t hidden, const mg_unit *unit)
{
    const mg_dataset_batch *batch = unit->batch;
    if (unit->rows == batch->tokens) {
        scatter(table, tokens, hidden, unit);
        return;
    }
    for (int64_t g = 0; g < batch->graphs; g++) {
        float *row = table + unit->row_items[g] * hidden;
        int64_t begin = batch->segments[g], end = batch->segments[g + 1];
        if (end > begin && batch->nodes[end - 1] < 0)
            begin = end - 1;
        memset(row, 0, (size_t)hidden * sizeof *row);
        for (int64_t t = begin; t < end; t++)
            for (int64_t c = 0; c < hidden; c++)
                row[c] += tokens[t * hidden + c] / (float)(end - begin);
    }
}

int mg_evaluate(float *outputs, float *embeddings, mg_runner *runner, const float *parameters, const mg_epoch *epoch,
                int64_t output_count, int64_t hidden)
{
    int status = 0;
    for (int64_t k = 0; k < epoch->count && !status; k++) {
        mg_unit *unit;
        if (mg_progress_stop_wanted())
            return fail(-ECANCELED, "stopped");
        status = mg_epoch_take(&unit, epoch, k);
        if (status)
            break;
        status = mg_runner_fit(runner, unit, output_count);
        if (!status)
            status = relay(mg_model_forward(runner->model, parameters, runner->pass, &unit->view,
                                            &(mg_model_step){.threads = runner->threads}, runner->outputs),
                           mg_model_last_error());
        if (!status)
            scatter(outputs, runner->outputs, output_count, unit);
        if (!status && embeddings)
            scatter_embeddings(embeddings, mg_model_embeddings(runner->pass), hidden, unit);
        mg_epoch_return(epoch, unit);
    }
    return status;
}
