/*
 * What every program of the worker opens: the model's file, its tokenizer, the device, the engine,
 * and, when nodes are named, the transport and the remote. Also the options they share. On the
 * walk: above engine. It refuses to know what is asked of the model. Threads: main; the remote owns
 * its rpc thread. Errors go to `errors` as one clear line before the status returns.
 */
#ifndef PIGPEN_GPU_WORKER_API_WORKER_H
#define PIGPEN_GPU_WORKER_API_WORKER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/options.h"
#include "common/base/stat.h"
#include "common/base/status.h"
#include "common/rpc/security.h"
#include "gpu-worker/engine/engine.h"
#include "gpu-worker/membership/membership.h"
#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/tokenizer.h"
#include "gpu-worker/remote/remote.h"

struct gw_worker_options {
    const char *model;
    const char *device; /* "host", "cuda", "cuda:N"; NULL: host */
    bool no_device_graphs;
    const char *nodes; /* "a=127.0.0.1:7450,b=...", or a source of membership.h; "": none */
    int shard;         /* enum gw_shard */
    int kv_dtype;      /* index into gw_worker_kv_dtype's order */
    uint64_t threads;
    uint64_t context;
    uint64_t chunk_tokens;
    uint64_t hash_seed;
    uint64_t node_timeout_us;
    uint64_t replicas, hedge_us;
    uint64_t nodes_min;       /* open is content with so many; 0: all that are listed */
    uint64_t tokens_reserved; /* behind the prompt, kept memory for from the start */
    uint64_t nodes_wait_us;   /* for nodes that do not serve yet, at open */
    const char *dense_layers; /* "0,16"; "": none */
    bool nodes_plan;
    bool worker_signatures;
    bool sketch_balance;
    const char *cache_dir;    /* "" or NULL: nothing is kept */
    bool errors;              /* nodes say how far off their answers may be */
    const char *metrics_file; /* "" or NULL: none */
    const char *tune_at_seal; /* the error that layers are tuned for; "" or NULL: they are not */
    const char *target_error; /* of an estimator that names none; "" or NULL: none */
    int log_level;
    bool quiet; /* no progress on stderr */
    /* PEM files and a name; "" or NULL: none. Without an authority: plain text. */
    const char *tls_ca_file, *tls_cert_file, *tls_key_file, *tls_server_name;
};

/* The options of these, for a program's table: writes at most GW_WORKER_OPTIONS_MAX entries. */
#define GW_WORKER_OPTIONS_MAX 40u
size_t gw_worker_option_table(struct gw_worker_options *options, struct pp_option *table_out);

/* Those of them that are about errors: gpu-worker/api/worker_errors.c. */
size_t gw_worker_error_options(struct gw_worker_options *options, struct pp_option *table_out);

/* What they alone tell to be wrong: PP_INVALID_ARGUMENT with a line on errors. */
PP_MUST_USE enum pp_status gw_worker_options_check(const struct gw_worker_options *options,
                                                   FILE *errors);

struct gw_worker {
    struct pp_clock clock;
    struct pp_stats stats;    /* of engine and remote */
    const char *metrics_path; /* where they are written at close; NULL: nowhere */
    struct gw_gguf *gguf;
    struct gw_tokenizer *tokenizer;
    struct gw_device *device;
    struct gw_engine *engine;
    struct pp_tls *tls; /* NULL: plain text */
    struct pp_transport *transport;
    struct gw_membership *membership; /* NULL: no nodes */
    struct gw_remote *remote;         /* NULL: no nodes */
    struct gw_remote_config remote_config;
    uint32_t dense_layers[PP_LAYERS_MAX]; /* attended exactly whatever the estimator */
    uint32_t dense_layer_count;
};

/* Opens everything and waits until the nodes are ready. On failure nothing is left open.
 * PP_CANCELLED when interrupted while it waited. */
PP_MUST_USE enum pp_status gw_worker_open(struct gw_worker *worker,
                                          const struct gw_worker_options *options, FILE *errors);
void gw_worker_close(struct gw_worker *worker);
/* Between steps: takes nodes that came or went since; the failure to do so is told in the log. */
void gw_worker_follow_nodes(struct gw_worker *worker);

/* Writes the series to the path that --metrics-file names, if any; a failure is said on stderr. */
void gw_worker_metrics_write(const struct gw_worker *worker);

/* A relative error as options name it: above 0, at most 1. PP_INVALID_ARGUMENT with a line on
 * errors that names the option and says what to write. */
PP_MUST_USE enum pp_status gw_error_parse(const char *option, const char *text, FILE *errors,
                                          float *error_out);

/* Gives --target-error to the estimators that sample and name none themselves. PP_INVALID_ARGUMENT
 * with a line on errors when it is no error, or none samples. */
PP_MUST_USE enum pp_status gw_worker_target(const struct gw_worker_options *options,
                                            struct pp_estimators *estimators, FILE *errors);

/* "0,16" to layers below `layers`, ascending. PP_INVALID_ARGUMENT with a line on errors. */
PP_MUST_USE enum pp_status gw_layers_parse(const char *text, uint32_t layers, FILE *errors,
                                           uint32_t *layers_out, uint32_t *count_out);

/* Whether all layers that they name exist. PP_INVALID_ARGUMENT with a line on errors. */
PP_MUST_USE enum pp_status gw_estimators_check(const char *option,
                                               const struct pp_estimators *estimators,
                                               uint32_t layers, FILE *errors);

/* Whether --tune-at-seal is given. */
bool gw_tune_wanted(const struct gw_worker_options *options);
/* Whether tuning is what sets an estimator's budget: it samples and names none for all its layers.
 */
bool gw_tune_open(const struct pp_estimators *estimators);
/* Its error. PP_INVALID_ARGUMENT with a line on errors when it is none, stands beside
 * --target-error, or no estimator (`open` of those asked for) leaves its budget to it. */
PP_MUST_USE enum pp_status gw_tune_check(const struct gw_worker_options *options, uint32_t open,
                                         FILE *errors, float *error_out);

/* Reads a whole file; - is stdin. *text_out is malloc'ed, NUL-ended behind its bytes. PP_IO with a
 * line on errors that names path and cause; PP_MEMORY. */
PP_MUST_USE enum pp_status gw_file_read(const char *path, FILE *errors, char **text_out,
                                        size_t *bytes_out);

/* Says why a sequence's call failed, naming node and cause when it was a node. */
void gw_worker_explain(FILE *errors, const char *what, enum pp_status status,
                       const struct gw_sequence *sequence);

#endif
