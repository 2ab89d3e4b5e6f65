/*
 * What the worker's programs share about errors of answers: their options, the target that
 * estimators get, and the series of a run as a file. On the walk: above engine. It refuses to know
 * how errors are estimated.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/obs/metrics.h"
#include "gpu-worker/api/worker.h"

size_t gw_worker_error_options(struct gw_worker_options *options, struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "target-error",
         .kind = PP_OPTION_TEXT,
         .target = &options->target_error,
         .group = "Attention nodes",
         .default_text = "",
         .value_name = "E",
         .help = "Relative error that every answer of a node is to be within, above 0 to 1, 0.1 "
                 "for instance: sketch reads as many keys as that takes, and what misses it is "
                 "attended exactly. Without it a fixed share of the keys is read."},
        {.name = "tune-at-seal",
         .kind = PP_OPTION_TEXT,
         .target = &options->tune_at_seal,
         .group = "Attention nodes",
         .default_text = "",
         .value_name = "E",
         .help =
             "Once the prompt is on the nodes they find out, by its last queries, what share of "
             "the keys each layer must read for a relative error of E in the mean, 0.05 for "
             "instance; layers that no share does it for are attended exactly. Then every "
             "answer costs the same, unlike with --target-error."},
        {.name = "cache-dir",
         .kind = PP_OPTION_TEXT,
         .target = &options->cache_dir,
         .group = "Attention nodes",
         .default_text = "",
         .value_name = "DIR",
         .help = "Where --sketch-balance keeps what it measured, by model, for later starts and "
                 "short prompts."},
        {.name = "errors",
         .kind = PP_OPTION_BOOL,
         .target = &options->errors,
         .group = "Attention nodes",
         .default_text = "true",
         .help = "Nodes say how far off their answers may be; reported by layer."},
        {.name = "metrics-file",
         .kind = PP_OPTION_TEXT,
         .target = &options->metrics_file,
         .group = "Output",
         .default_text = "",
         .value_name = "PATH",
         .help =
             "Write what was counted there at the end, as Prometheus text for a node exporter's "
             "textfile collector."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

enum pp_status gw_error_parse(const char *option, const char *text, FILE *errors, float *error_out)
{
    char *end;
    float error = strtof(text, &end);
    if (*end != '\0' || !(error > 0.0f && error <= 1.0f)) {
        fprintf(errors,
                "%s: '%s' is no error that a sample can be within: give one above 0, at most 1, as "
                "0.1; leave the option out to read a fixed share of the keys, or name the "
                "estimator exact for no error at all\n",
                option, text);
        return PP_INVALID_ARGUMENT;
    }
    *error_out = error;
    return PP_OK;
}

static void worker_target_one(float target, struct pp_estimator *estimator)
{
    if (estimator->kind != PP_EXACT && estimator->target_error == 0.0f) {
        estimator->target_error = target;
    }
}

enum pp_status gw_worker_target(const struct gw_worker_options *options,
                                struct pp_estimators *estimators, FILE *errors)
{
    float target;
    if (options->target_error == NULL || options->target_error[0] == '\0') {
        return PP_OK;
    }
    PP_TRY(gw_error_parse("--target-error", options->target_error, errors, &target));
    if (!pp_estimators_sample(estimators)) {
        fprintf(errors, "--target-error: exact has no error; name lsh or sketch\n");
        return PP_INVALID_ARGUMENT;
    }
    worker_target_one(target, &estimators->common);
    for (uint32_t i = 0; i < estimators->range_count; i++) {
        worker_target_one(target, &estimators->ranges[i].estimator);
    }
    return PP_OK;
}

bool gw_tune_wanted(const struct gw_worker_options *options)
{
    return options->tune_at_seal != NULL && options->tune_at_seal[0] != '\0';
}

static bool tune_open_one(const struct pp_estimator *estimator)
{
    return estimator->kind == PP_EXACT || (estimator->rows == 0 && estimator->rows_share == 0.0f &&
                                           estimator->target_error == 0.0f);
}

bool gw_tune_open(const struct pp_estimators *estimators)
{
    bool open = pp_estimators_sample(estimators) && tune_open_one(&estimators->common);
    for (uint32_t i = 0; i < estimators->range_count; i++) {
        open = open && tune_open_one(&estimators->ranges[i].estimator);
    }
    return open;
}

enum pp_status gw_tune_check(const struct gw_worker_options *options, uint32_t open, FILE *errors,
                             float *error_out)
{
    *error_out = 0.0f;
    if (!gw_tune_wanted(options)) {
        return PP_OK;
    }
    PP_TRY(gw_error_parse("--tune-at-seal", options->tune_at_seal, errors, error_out));
    if (options->target_error != NULL && options->target_error[0] != '\0') {
        fprintf(errors, "--tune-at-seal sets a share of keys by layer, --target-error a bound for "
                        "every answer: give one of them\n");
        return PP_INVALID_ARGUMENT;
    }
    if (open == 0) {
        fprintf(errors,
                "--tune-at-seal finds the share of keys to read: name sketch or lsh without "
                "share=, rows= and error=\n");
        return PP_INVALID_ARGUMENT;
    }
    return PP_OK;
}

void gw_worker_metrics_write(const struct gw_worker *worker)
{
    if (worker->metrics_path == NULL) {
        return;
    }
    FILE *file = fopen(worker->metrics_path, "wb");
    if (file != NULL) {
        pp_metrics_render(&worker->stats, file);
    }
    if (file == NULL || fclose(file) != 0) {
        fprintf(stderr, "--metrics-file: cannot write %s: %s\n", worker->metrics_path,
                strerror(errno));
    }
}
