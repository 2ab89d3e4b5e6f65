/*
 * Opens and closes what the worker's programs run on. On the walk: above engine. It refuses to know
 * what is asked of the model.
 */
#include "gpu-worker/api/worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/rpc/grpc_transport.h"
#include "gpu-worker/api/nodes.h"
#include "gpu-worker/api/worker_device.h"

#define WORKER_DEFAULT_MODEL ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define WORKER_CALL_US       (120u * 1000u * 1000u)
#define WORKER_OUTBOX_BYTES  (64ull << 20)
#define WORKER_STATS_MAX     256u
#define WORKER_SPIN_US       200u

static const char *const worker_shards[] = {"tokens", "kv-heads", "both", NULL};
static const char *const worker_kv_dtypes[] = {"bf16", "f16", "f32", "int8", NULL};
static const char *const worker_log_levels[] = {"debug", "info", "warn", "error", "off", NULL};

static enum pp_dtype worker_kv_dtype(int choice)
{
    const enum pp_dtype dtypes[] = {PP_BF16, PP_F16, PP_F32, PP_I8};
    return dtypes[choice];
}

static size_t worker_node_options(struct gw_worker_options *options, struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "nodes",
         .kind = PP_OPTION_TEXT,
         .target = &options->nodes,
         .group = "Attention nodes",
         .default_text = "",
         .value_name = "NAME=HOST:PORT,...",
         .help = "Attention nodes that hold the keys and values. Without any the worker keeps and "
                 "attends everything itself, exactly. Or where their list is: file:PATH (one a "
                 "line), dns:NAME:PORT (every address), etcd:HOST:PORT/PREFIX (as nodes register "
                 "there)."},
        {.name = "shard",
         .kind = PP_OPTION_CHOICE,
         .target = &options->shard,
         .group = "Attention nodes",
         .default_text = "tokens",
         .value_name = "HOW",
         .choices = worker_shards,
         .help =
             "How a sequence is cut over the nodes: by spans of tokens, by kv heads, or by both "
             "where their number has a divisor."},
        {.name = "dense-layers",
         .kind = PP_OPTION_TEXT,
         .target = &options->dense_layers,
         .group = "Attention nodes",
         .default_text = "",
         .value_name = "LAYERS",
         .help = "Layers that nodes attend exactly whatever the estimator, counted from 0: 0,16."},
        {.name = "nodes-plan",
         .kind = PP_OPTION_BOOL,
         .target = &options->nodes_plan,
         .group = "Attention nodes",
         .default_text = "false",
         .help =
             "Nodes read all keys of a span where they expect that to be faster than sampling."},
        {.name = "worker-signatures",
         .kind = PP_OPTION_BOOL,
         .target = &options->worker_signatures,
         .group = "Attention nodes",
         .default_text = "false",
         .help = "The worker hashes the keys of a prompt for lsh and sends the signatures along, "
                 "instead of the nodes. Worth it where it has more computing power than they."},
        {.name = "sketch-balance",
         .kind = PP_OPTION_BOOL,
         .target = &options->sketch_balance,
         .group = "Attention nodes",
         .default_text = "true",
         .help =
             "A prompt of 1,024 tokens or more is measured for what evens out the dimensions of "
             "queries and keys before a sketch codes them."},
        {.name = "hash-seed",
         .kind = PP_OPTION_U64,
         .target = &options->hash_seed,
         .group = "Attention nodes",
         .default_text = "1",
         .value_name = "N",
         .help = "Seed of the signatures: hash of lsh, rotation of sketch."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

static size_t worker_node_start_options(struct gw_worker_options *options,
                                        struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "nodes-wait",
         .kind = PP_OPTION_DURATION,
         .target = &options->nodes_wait_us,
         .group = "Attention nodes",
         .default_text = "30s",
         .value_name = "TIME",
         .help = "How long to wait at start for nodes that do not serve yet."},
        {.name = "nodes-min",
         .kind = PP_OPTION_U64,
         .target = &options->nodes_min,
         .group = "Attention nodes",
         .default_text = "0",
         .value_name = "N",
         .max = GW_NODES_MAX,
         .help =
             "How many nodes have to be listed and serve at start; others are used once they do. "
             "0: all that are listed."},
        {.name = "reserve-tokens",
         .kind = PP_OPTION_U64,
         .target = &options->tokens_reserved,
         .group = "Attention nodes",
         .default_text = "1048576",
         .value_name = "N",
         .max = 1u << 20,
         .help = "So many tokens behind the prompt have memory kept on the nodes from the start. "
                 "Those behind them go where there is room, and where there is none left they are "
                 "an error."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

static size_t worker_loss_options(struct gw_worker_options *options, struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "replicas",
         .kind = PP_OPTION_U64,
         .target = &options->replicas,
         .group = "Attention nodes",
         .default_text = "1",
         .value_name = "N",
         .min = 1,
         .max = GW_REPLICAS_MAX,
         .help = "Nodes that hold each part of a sequence. With two a node may be lost without its "
                 "keys being computed again."},
        {.name = "hedge-after",
         .kind = PP_OPTION_DURATION,
         .target = &options->hedge_us,
         .group = "Attention nodes",
         .default_text = "0s",
         .value_name = "TIME",
         .help = "With replicas: another node is asked when one has not answered for so long. 0: "
                 "twice what all but one of a hundred answers take; of a node that has given none "
                 "yet, a quarter of --node-timeout."},
        {.name = "node-timeout",
         .kind = PP_OPTION_DURATION,
         .target = &options->node_timeout_us,
         .group = "Attention nodes",
         .default_text = "1500ms",
         .value_name = "TIME",
         .min = 1000,
         .help = "How long a node may be silent before it is lost to the request."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

static size_t worker_tls_options(struct gw_worker_options *options, struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "tls-ca-file",
         .kind = PP_OPTION_TEXT,
         .target = &options->tls_ca_file,
         .group = "Security",
         .default_text = "",
         .value_name = "PATH",
         .help = "PEM authorities that the nodes' certificates must come from. Turns TLS on."},
        {.name = "tls-cert-file",
         .kind = PP_OPTION_TEXT,
         .target = &options->tls_cert_file,
         .group = "Security",
         .default_text = "",
         .value_name = "PATH",
         .help = "PEM certificate of this worker, which nodes ask for."},
        {.name = "tls-key-file",
         .kind = PP_OPTION_TEXT,
         .target = &options->tls_key_file,
         .group = "Security",
         .default_text = "",
         .value_name = "PATH",
         .help = "PEM key of the certificate."},
        {.name = "tls-server-name",
         .kind = PP_OPTION_TEXT,
         .target = &options->tls_server_name,
         .group = "Security",
         .default_text = "",
         .value_name = "NAME",
         .help =
             "Name that every node's certificate carries, where their addresses are not in it."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

static size_t worker_model_options(struct gw_worker_options *options, struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "model",
         .kind = PP_OPTION_TEXT,
         .target = &options->model,
         .group = "Model",
         .default_text = WORKER_DEFAULT_MODEL,
         .value_name = "PATH",
         .help = "The model, a GGUF file of the Llama family. `deploy/fetch-model` fetches the "
                 "default one."},
        {.name = "context",
         .kind = PP_OPTION_U64,
         .target = &options->context,
         .group = "Model",
         .default_text = "0",
         .value_name = "TOKENS",
         .max = 1u << 26,
         .help =
             "Longest sequence, prompt and answer together. 0: what the model was trained for."},
        {.name = "kv-dtype",
         .kind = PP_OPTION_CHOICE,
         .target = &options->kv_dtype,
         .group = "Model",
         .default_text = "bf16",
         .value_name = "TYPE",
         .choices = worker_kv_dtypes,
         .help =
             "What keys and values are rounded to when they are made. Everything else is "
             "computed in f32, so f32 here gives the reference path. int8 keeps a scale for the "
             "key and one for the value of each token and head: half the memory of bf16."},
        {.name = "chunk-tokens",
         .kind = PP_OPTION_U64,
         .target = &options->chunk_tokens,
         .group = "Model",
         .default_text = "512",
         .value_name = "N",
         .min = 1,
         .max = 65536,
         .help = "Tokens of a prompt computed at once in a layer."},
        {.name = "log-level",
         .kind = PP_OPTION_CHOICE,
         .target = &options->log_level,
         .group = "Output",
         .default_text = "warn",
         .value_name = "LEVEL",
         .choices = worker_log_levels,
         .help = "Log lines on stderr from this level on."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

size_t gw_worker_option_table(struct gw_worker_options *options, struct pp_option *table_out)
{
    size_t count = worker_node_options(options, table_out);
    count += worker_node_start_options(options, table_out + count);
    count += gw_worker_error_options(options, table_out + count);
    count += worker_loss_options(options, table_out + count);
    count += worker_tls_options(options, table_out + count);
    count += worker_model_options(options, table_out + count);
    count += gw_worker_device_options(options, table_out + count);
    PP_ASSERT(count <= GW_WORKER_OPTIONS_MAX);
    return count;
}

enum pp_status gw_worker_options_check(const struct gw_worker_options *options, FILE *errors)
{
    bool tls = options->tls_cert_file[0] != '\0' || options->tls_key_file[0] != '\0' ||
               options->tls_server_name[0] != '\0';
    if (tls && options->tls_ca_file[0] == '\0') {
        fprintf(errors, "--tls-cert-file, --tls-key-file and --tls-server-name need --tls-ca-file, "
                        "the authority of the nodes' certificates\n");
        return PP_INVALID_ARGUMENT;
    }
    /* How many layers there are only the model tells (gw_worker_open). */
    uint32_t layers[PP_LAYERS_MAX], layer_count;
    PP_TRY(gw_layers_parse(options->dense_layers, PP_LAYERS_MAX, errors, layers, &layer_count));
    PP_TRY(gw_worker_device_check(options, errors));
    return gw_nodes_check(options->nodes, errors);
}

enum pp_status gw_layers_parse(const char *text, uint32_t layers, FILE *errors,
                               uint32_t *layers_out, uint32_t *count_out)
{
    uint32_t count = 0;
    const char *whole = text;
    while (*text != '\0') {
        char *end;
        unsigned long layer = strtoul(text, &end, 10);
        bool ascending = count == 0 || layer > layers_out[count - 1];
        if (*text < '0' || *text > '9' || (*end != ',' && *end != '\0') || layer >= layers ||
            !ascending) {
            fprintf(errors, "--dense-layers: '%s' is no ascending list of layers below %u\n", whole,
                    layers);
            return PP_INVALID_ARGUMENT;
        }
        layers_out[count++] = (uint32_t)layer;
        text = *end == ',' ? end + 1 : end;
    }
    *count_out = count;
    return PP_OK;
}

enum pp_status gw_estimators_check(const char *option, const struct pp_estimators *estimators,
                                   uint32_t layers, FILE *errors)
{
    for (uint32_t i = 0; i < estimators->range_count; i++) {
        uint32_t last = estimators->ranges[i].last;
        if (last >= layers) {
            fprintf(errors, "%s: names layer %u, but the model's layers are 0 to %u\n", option,
                    last, layers - 1);
            return PP_INVALID_ARGUMENT;
        }
    }
    return PP_OK;
}

static enum pp_status worker_open_model(struct gw_worker *worker,
                                        const struct gw_worker_options *options, FILE *errors)
{
    char error[512] = "";
    enum pp_status status = gw_gguf_open(options->model, error, sizeof(error), &worker->gguf);
    if (status == PP_OK) {
        status = gw_tokenizer_new(worker->gguf, error, sizeof(error), &worker->tokenizer);
    }
    if (status == PP_OK) {
        struct gw_engine_config config = {.device = worker->device,
                                          .gguf = worker->gguf,
                                          .kv_dtype = worker_kv_dtype(options->kv_dtype),
                                          .tokens_max = (uint32_t)options->context,
                                          .chunk_tokens = (uint32_t)options->chunk_tokens,
                                          .no_graphs = options->no_device_graphs,
                                          .clock = worker->clock,
                                          .stats = &worker->stats};
        status = gw_engine_new(&config, error, sizeof(error), &worker->engine);
    }
    if (status != PP_OK) {
        fprintf(errors, "cannot load the model %s: %s\n", options->model,
                error[0] == '\0' ? pp_status_name(status) : error);
        if (status == PP_IO && strcmp(options->model, WORKER_DEFAULT_MODEL) == 0) {
            fprintf(errors, "fetch the default model with deploy/fetch-model, or name another one "
                            "with --model\n");
        }
    }
    return status;
}

static const char *worker_or_null(const char *text)
{
    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* The options have been checked: there is no certificate without an authority. */
static enum pp_status worker_open_tls(struct gw_worker *worker,
                                      const struct gw_worker_options *options, FILE *errors)
{
    const struct pp_tls_config config = {
        .ca_file = worker_or_null(options->tls_ca_file),
        .cert_file = worker_or_null(options->tls_cert_file),
        .key_file = worker_or_null(options->tls_key_file),
        .server_name = worker_or_null(options->tls_server_name),
    };
    if (config.ca_file == NULL) {
        return PP_OK;
    }
    enum pp_status status = pp_tls_new(&config, &worker->tls);
    if (status != PP_OK) {
        fprintf(errors, "the --tls-* files cannot be used: %s\n", pp_status_name(status));
    }
    return status;
}

static uint64_t worker_tick(void *membership, uint64_t now_us)
{
    return gw_membership_tick(membership, now_us);
}

/* The first list of nodes, which the remote starts with. */
static enum pp_status worker_open_membership(struct gw_worker *worker,
                                             const struct gw_worker_options *options, FILE *errors)
{
    struct gw_remote_config *config = &worker->remote_config;
    const struct gw_membership_config membership = {.source = options->nodes,
                                                    .transport = worker->transport,
                                                    .clock = worker->clock,
                                                    .stats = &worker->stats};
    struct gw_members members;
    enum pp_status status = gw_membership_new(&membership, &worker->membership);
    if (status != PP_OK) {
        fprintf(errors, "--nodes cannot be followed: %s\n", pp_status_name(status));
        return status;
    }
    PP_TRY(gw_nodes_list(worker->membership, worker->transport, options->nodes,
                         (uint32_t)options->nodes_min, options->nodes_wait_us, errors, &members));
    memcpy(config->nodes, members.nodes, sizeof(config->nodes));
    config->node_count = members.count;
    config->nodes_min = (uint32_t)options->nodes_min;
    config->tick = worker_tick;
    config->tick_context = worker->membership;
    return PP_OK;
}

void gw_worker_follow_nodes(struct gw_worker *worker)
{
    struct gw_members members;
    if (worker->membership != NULL && gw_membership_take(worker->membership, &members)) {
        enum pp_status status = gw_remote_update(worker->remote, members.nodes, members.count);
        if (status != PP_OK) {
            PP_LOG_WARNF("worker", "not every node could be taken", "reason=%s",
                         pp_status_name(status));
        }
    }
}

static enum pp_status worker_open_remote(struct gw_worker *worker,
                                         const struct gw_worker_options *options, FILE *errors)
{
    struct gw_remote_config *config = &worker->remote_config;
    if (options->nodes[0] == '\0') {
        return PP_OK;
    }
    PP_TRY(worker_open_tls(worker, options, errors));
    struct pp_grpc_config grpc = {.clock = worker->clock, .spin_us = WORKER_SPIN_US};
    enum pp_status status = pp_grpc_transport_new(&grpc, &worker->transport);
    if (status == PP_OK) {
        PP_TRY(worker_open_membership(worker, options, errors));
        config->transport = worker->transport;
        config->tls = worker->tls;
        config->clock = worker->clock;
        config->stats = &worker->stats;
        config->shard = (enum gw_shard)options->shard;
        config->replicas = (uint32_t)options->replicas;
        config->hedge_us = options->hedge_us;
        config->attend_timeout_us = options->node_timeout_us;
        config->call_timeout_us = WORKER_CALL_US;
        config->outbox_bytes_max = WORKER_OUTBOX_BYTES;
        status = gw_remote_new(config, &worker->remote);
    }
    if (status == PP_OK) {
        status = gw_remote_start(worker->remote);
    }
    if (status != PP_OK) {
        fprintf(errors, "the connection to the nodes could not be set up: %s\n",
                pp_status_name(status));
        return status;
    }
    return gw_nodes_wait(worker->remote, config, options->nodes_wait_us,
                         options->quiet ? NULL : errors, errors);
}

enum pp_status gw_worker_open(struct gw_worker *worker, const struct gw_worker_options *options,
                              FILE *errors)
{
    memset(worker, 0, sizeof(*worker));
    worker->clock = pp_clock_system();
    pp_log_configure((enum pp_log_level)options->log_level, PP_LOG_TEXT);
    worker->metrics_path = worker_or_null(options->metrics_file);
    PP_TRY(pp_stats_init(&worker->stats, WORKER_STATS_MAX));
    enum pp_status status = gw_worker_device_open(options, errors, &worker->device);
    if (status == PP_OK) {
        status = worker_open_model(worker, options, errors);
    }
    if (status == PP_OK) {
        status =
            gw_layers_parse(options->dense_layers, gw_engine_info(worker->engine)->shape.layers,
                            errors, worker->dense_layers, &worker->dense_layer_count);
    }
    if (status == PP_OK && worker_or_null(options->cache_dir) != NULL) {
        status = gw_engine_keep_balances(worker->engine, options->cache_dir);
    }
    if (status == PP_OK) {
        status = worker_open_remote(worker, options, errors);
    }
    if (status != PP_OK) {
        gw_worker_close(worker);
    }
    return status;
}

void gw_worker_close(struct gw_worker *worker)
{
    if (worker->remote != NULL) {
        gw_remote_stop(worker->remote);
    }
    gw_worker_metrics_write(worker);
    gw_remote_destroy(worker->remote);
    gw_membership_destroy(worker->membership);
    if (worker->transport != NULL) {
        worker->transport->ops->destroy(worker->transport);
    }
    pp_tls_destroy(worker->tls);
    gw_engine_destroy(worker->engine);
    if (worker->device != NULL) {
        worker->device->ops->destroy(worker->device);
    }
    if (worker->tokenizer != NULL) {
        gw_tokenizer_destroy(worker->tokenizer);
    }
    if (worker->gguf != NULL) {
        gw_gguf_close(worker->gguf);
    }
    pp_stats_deinit(&worker->stats);
    memset(worker, 0, sizeof(*worker));
}

enum pp_status gw_file_read(const char *path, FILE *errors, char **text_out, size_t *bytes_out)
{
    bool standard = strcmp(path, "-") == 0;
    const char *name = standard ? "stdin" : path;
    /* Not /dev/stdin: a socket cannot be opened by its name. */
    FILE *file = standard ? stdin : fopen(path, "rb");
    if (file == NULL) {
        fprintf(errors, "cannot read %s: %s\n", name, strerror(errno));
        return PP_IO;
    }
    size_t bytes = 0, capacity = 1u << 16;
    char *text = malloc(capacity + 1);
    while (text != NULL) {
        size_t got = fread(text + bytes, 1, capacity - bytes, file);
        bytes += got;
        if (bytes < capacity) {
            break;
        }
        capacity *= 2;
        char *larger = realloc(text, capacity + 1);
        if (larger == NULL) {
            free(text);
        }
        text = larger;
    }
    int cause = ferror(file) != 0 ? errno : 0;
    if (!standard) {
        fclose(file);
    }
    if (cause != 0 || text == NULL) {
        fprintf(errors, "cannot read %s: %s\n", name, cause != 0 ? strerror(cause) : "no memory");
        free(text);
        return cause != 0 ? PP_IO : PP_MEMORY;
    }
    text[bytes] = '\0';
    *text_out = text;
    *bytes_out = bytes;
    return PP_OK;
}

void gw_worker_explain(FILE *errors, const char *what, enum pp_status status,
                       const struct gw_sequence *sequence)
{
    const char *node = sequence == NULL ? "" : gw_sequence_error(sequence);
    fprintf(errors, "%s failed: %s%s%s\n", what, pp_status_name(status),
            node[0] == '\0' ? "" : ": ", node);
    if (status == PP_MEMORY) {
        fprintf(errors, "memory is used up: raise --memory-limit of the nodes, name more nodes, or "
                        "shorten the text\n");
    }
}
