/* run.h: the RUN folder of a training: config.yaml, plan.yaml, log.jsonl, summary.json, checkpoint/. */
#ifndef MEGAGRAPH_APPS_RUN_H
#define MEGAGRAPH_APPS_RUN_H
#include "options.h"
#include "ranks.h"

/* Makes the folder and tries to write there; refuses one that holds a run already. */
int mg_run_begin(const char *run);
/* config.yaml and plan.yaml of a resolved configuration. */
int mg_run_describe(const char *run, const mg_config *config);

/* log.jsonl: one JSON object a line, flushed line by line. */
typedef struct mg_log mg_log;
/* keep: bytes of an earlier sitting that count, the rest is cut off. */
int mg_log_open(mg_log **out, const char *run, int64_t keep);
int mg_log_close(mg_log *log);
int64_t mg_log_bytes(const mg_log *log);
typedef struct mg_log_step {
    int64_t step, epoch;
    double loss, rate, norm, seconds;
    int ranks;
    const double *sent_bytes; /* [ranks] by each rank in this step; written where there are several */
} mg_log_step;
int mg_log_write_step(mg_log *log, const mg_log_step *step);
/* Seconds of rank 0. */
typedef struct mg_phases {
    double attention, local, dense, other, reduce, evaluate; /* reduce: gradients over ranks */
} mg_phases;
typedef struct mg_log_epoch {
    int64_t epoch, step;
    double loss, validation, validation_loss, rate, seconds;
    mg_phases phases;
    int ranks;
    const double *peak_bytes; /* [ranks] */
    const char *metric;
} mg_log_epoch;
int mg_log_write_epoch(mg_log *log, const mg_log_epoch *epoch);

typedef struct mg_summary {
    char metric[32];
    double test, validation, train;
    int64_t best_epoch, epochs, steps, parameters, peak_resident_bytes, seed, split, ranks;
    int64_t peak_memory_bytes[MG_RANKS_MOST]; /* [ranks] own allocations of each */
    double step_seconds_median, preprocess_seconds, total_seconds;
    mg_phases phases;
} mg_summary;
int mg_summary_write(const char *run, const mg_summary *summary);
int mg_summary_read(mg_summary *summary, const char *run);
/* Of several runs: means, the deviation and standard error of the test, and the runs by name. */
int mg_summary_write_all(const char *run, const mg_summary *summaries, char *const *names, int64_t count);
/* Mean and sample deviation (0 for one value) of the values that are not NaN; their number. */
int64_t mg_summary_mean(double *mean, double *deviation, const double *values, int64_t count);
#endif
