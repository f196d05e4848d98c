#include "evaluate.h"

#include <string.h>

#include "app.h"
#include "progress.h"
#include "shard.h"

static void remake_sizes(mg_runner *runner, const mg_unit *unit)
{
    runner->tokens = unit->view.tokens;
    runner->graphs = unit->view.graphs;
    runner->edges = unit->view.graph ? unit->view.graph->edges : 0;
    runner->pairs = unit->near ? unit->near->pairs : 0;
}

int mg_runner_fit(mg_runner *runner, const mg_unit *unit, int64_t outputs)
{
    int64_t pairs = unit->near ? unit->near->pairs : 0, room = unit->rows * outputs;
    int64_t edges = unit->view.graph ? unit->view.graph->edges : 0;
    if (!runner->outputs || room > runner->outputs_room) {
        release(runner->outputs);
        runner->outputs = allocate(room, sizeof(float));
        runner->outputs_room = runner->outputs ? room : 0;
        if (!runner->outputs)
            return -ENOMEM;
    }
    if (runner->pass && unit->view.tokens <= runner->tokens && unit->view.graphs <= runner->graphs &&
        edges <= runner->edges && pairs <= runner->pairs)
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

static int keep_rows(float *outputs, float *embeddings, const mg_runner *runner, const mg_unit *unit,
                     int64_t output_count, int64_t hidden)
{
    const float *tokens = mg_model_embeddings(runner->pass);
    if (unit->shard) {
        int status = mg_shard_collect(outputs, runner->outputs, output_count, unit);
        return status || !hidden ? status : mg_shard_collect(embeddings, tokens, hidden, unit);
    }
    scatter(outputs, runner->outputs, output_count, unit);
    if (hidden)
        scatter_embeddings(embeddings, tokens, hidden, unit);
    return 0;
}

int mg_evaluate(float *outputs, float *embeddings, mg_runner *runner, const float *parameters, const mg_epoch *epoch,
                int64_t output_count, int64_t hidden)
{
    int status = 0;
    for (int64_t k = 0; k < epoch->count && !status; k++) {
        mg_unit *unit;
        if (!epoch->units->comm && mg_progress_stop_wanted())
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
            status = keep_rows(outputs, embeddings, runner, unit, output_count, hidden);
        mg_epoch_return(epoch, unit);
    }
    return status;
}
