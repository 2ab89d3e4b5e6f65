/*
 * The remote side of decode steps alone: K/V and queries are made up, one attend a layer after
 * another as a model would ask for them, those of all sequences in flight together. It refuses to
 * know models, so any shape can be measured; device_ms is 0.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/decode_bench.h"
#include "common/base/rng.h"
#include "common/rpc/grpc_transport.h"
#include "gpu-worker/api/nodes.h"
#include "gpu-worker/remote/remote.h"

#define APPEND_TOKENS 1024u
#define SPIN_US       200u

static struct {
    struct pp_clock clock;
    struct pp_transport *transport;
    struct gw_remote *remote;
    struct gw_remote_config config;
    struct gw_remote_sequence *sequences[DECODE_SEQUENCES_MAX];
    struct pp_shape shape;
    uint64_t held_tokens;
    float *q, *o, *lse;
    void *k, *v;
} side;

static enum pp_status connect_nodes(void)
{
    struct pp_grpc_config grpc = {.clock = side.clock, .spin_us = SPIN_US};
    PP_TRY(pp_grpc_transport_new(&grpc, &side.transport));
    side.config.transport = side.transport;
    side.config.clock = side.clock;
    side.config.shard = GW_SHARD_TOKENS;
    side.config.attend_timeout_us = 10000000;
    side.config.call_timeout_us = 60000000;
    side.config.outbox_bytes_max = 64u << 20;
    PP_TRY(gw_remote_new(&side.config, &side.remote));
    PP_TRY(gw_remote_start(side.remote));
    return gw_remote_ready(side.remote, 20000000, NULL, NULL);
}

static enum pp_status make_up_rows(const struct decode_settings *settings)
{
    struct pp_rng rng = {.seed = 11};
    uint64_t values = APPEND_TOKENS * settings->kv_heads * settings->dim;
    uint64_t heads = settings->q_heads * settings->dim;
    float *draws = malloc(values * sizeof(float));
    side.k = malloc(values * 2);
    side.v = malloc(values * 2);
    side.q = malloc(heads * sizeof(float));
    side.o = malloc(heads * sizeof(float));
    side.lse = malloc(settings->q_heads * sizeof(float));
    if (draws == NULL || side.k == NULL || side.v == NULL || side.q == NULL || side.o == NULL ||
        side.lse == NULL) {
        free(draws);
        return PP_MEMORY;
    }
    for (int tensor = 0; tensor < 2; ++tensor) {
        for (uint64_t i = 0; i < values; ++i) {
            draws[i] = (float)pp_rng_normal(&rng);
        }
        pp_dtype_from_f32(PP_BF16, draws, values, tensor == 0 ? side.k : side.v);
    }
    for (uint64_t i = 0; i < heads; ++i) {
        side.q[i] = (float)pp_rng_normal(&rng);
    }
    free(draws);
    return PP_OK;
}

/* Fills one sequence layer by layer, as a prefill would, until it is sealed and indexed. */
static enum pp_status fill(const struct decode_settings *settings, uint32_t index)
{
    struct gw_remote_sequence_config config = {
        .shape = side.shape,
        .fingerprint = "decode_bench",
        .fingerprint_bytes = 12,
        .estimator = settings->estimator,
        .hash_seed = 1,
        .tokens_expected = side.held_tokens,
    };
    PP_TRY(gw_remote_sequence_open(side.remote, &config, &side.sequences[index]));
    struct gw_remote_sequence *sequence = side.sequences[index];
    for (uint32_t layer = 0; layer < side.shape.layers; ++layer) {
        for (uint64_t start = 0; start < side.held_tokens; start += APPEND_TOKENS) {
            uint64_t left = side.held_tokens - start;
            uint32_t count = (uint32_t)(left < APPEND_TOKENS ? left : APPEND_TOKENS);
            PP_TRY(gw_remote_append(sequence, layer, start, count, side.k, side.v, true));
        }
    }
    return gw_remote_seal(sequence, NULL, NULL);
}

static enum pp_status remote_open(const struct decode_settings *settings, const char *nodes,
                                  struct decode_start *start_out)
{
    side.clock = pp_clock_system();
    side.shape = (struct pp_shape){.layers = (uint32_t)settings->layers,
                                   .q_heads = (uint32_t)settings->q_heads,
                                   .kv_heads = (uint32_t)settings->kv_heads,
                                   .head_dim = (uint32_t)settings->dim,
                                   .scale = 0.08838835f,
                                   .kv_dtype = PP_BF16};
    side.held_tokens = settings->synthetic_kv > 0 ? settings->synthetic_kv : settings->context;
    PP_TRY(gw_nodes_parse(nodes, stderr, side.config.nodes, &side.config.node_count));
    PP_TRY(connect_nodes());
    PP_TRY(make_up_rows(settings));
    uint64_t begun_us = pp_clock_now_us(&side.clock);
    for (uint32_t i = 0; i < settings->sequences; ++i) {
        PP_TRY(fill(settings, i));
    }
    double seconds = (double)(pp_clock_now_us(&side.clock) - begun_us) * 1e-6;
    *start_out = (struct decode_start){
        .held_tokens = side.held_tokens,
        .layers = side.shape.layers,
        .prefill_tokens_per_s = (double)(side.held_tokens * settings->sequences) / seconds};
    return PP_OK;
}

static enum pp_status one_layer(const struct decode_settings *settings,
                                const struct pp_estimator *estimator, uint32_t layer,
                                struct decode_times *times)
{
    struct gw_remote_attend attend = {.errors = true,
                                      .layer = layer,
                                      .held_tokens = side.held_tokens,
                                      .q_rows = 1,
                                      .q = side.q,
                                      .estimator = *estimator};
    for (uint32_t i = 0; i < settings->sequences; ++i) {
        PP_TRY(gw_remote_attend_begin(side.sequences[i], &attend));
    }
    for (uint32_t i = 0; i < settings->sequences; ++i) {
        struct gw_remote_answer answer = {.o = side.o, .lse = side.lse};
        uint64_t begun_us = pp_clock_now_us(&side.clock);
        PP_TRY(gw_remote_attend_wait(side.sequences[i], &answer));
        times->wait_ms += (double)(pp_clock_now_us(&side.clock) - begun_us) * 1e-3;
        times->node_ms += (double)answer.node_us * 1e-3;
        times->network_ms += (double)answer.network_us * 1e-3;
        times->keys_read += answer.keys_read;
        times->keys_held += answer.keys_held;
        times->used = times->used && answer.estimator_used;
    }
    return PP_OK;
}

static enum pp_status remote_step(const struct decode_settings *settings,
                                  const struct pp_estimator *estimator, struct decode_times *times)
{
    uint64_t begun_us = pp_clock_now_us(&side.clock);
    for (uint32_t layer = 0; layer < side.shape.layers; ++layer) {
        PP_TRY(one_layer(settings, estimator, layer, times));
    }
    times->ms[times->steps++] = (double)(pp_clock_now_us(&side.clock) - begun_us) * 1e-3;
    return PP_OK;
}

static void remote_close(void)
{
    for (uint32_t i = 0; i < DECODE_SEQUENCES_MAX; ++i) {
        gw_remote_sequence_close(side.sequences[i]);
    }
    if (side.remote != NULL) {
        gw_remote_stop(side.remote);
    }
    gw_remote_destroy(side.remote);
    if (side.transport != NULL) {
        side.transport->ops->destroy(side.transport);
    }
    free(side.k);
    free(side.v);
    free(side.q);
    free(side.o);
    free(side.lse);
}

const struct decode_side decode_remote = {remote_open, remote_step, remote_close};
