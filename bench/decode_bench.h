/*
 * What decode_bench measures and on what: a whole worker with a model (decode_bench_model.c), or
 * the remote side of one alone, of any shape (decode_bench_remote.c). One thread.
 */
#ifndef PIGPEN_BENCH_DECODE_BENCH_H
#define PIGPEN_BENCH_DECODE_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/attn/shape.h"
#include "common/base/status.h"

#define DECODE_SEQUENCES_MAX 64u
#define DECODE_STEPS_MAX     4096u
#define DECODE_WARM_STEPS    4u

struct decode_settings {
    const char *model, *text, *nodes, *program, *estimator_text, *json;
    uint64_t context, synthetic_kv, sequences, steps, threads, node_threads;
    uint64_t layers, q_heads, kv_heads, dim;
    struct pp_estimator estimator;
};

/* Of the steps with one estimator. */
struct decode_times {
    double ms[DECODE_STEPS_MAX]; /* of a step of all sequences */
    uint64_t steps;
    double device_ms, node_ms, network_ms, wait_ms; /* sums over steps, sequences and layers */
    uint64_t keys_read, keys_held;
    bool used; /* by every attend */
};

/* What was there when the steps began. */
struct decode_start {
    uint64_t held_tokens; /* of a sequence, on the nodes */
    uint32_t layers;
    double prefill_tokens_per_s;
};

/* A thing whose steps are timed. */
struct decode_side {
    /* nodes: what --nodes of a worker takes. A clear line has gone to stderr on an error of
     * people's. */
    enum pp_status (*open)(const struct decode_settings *settings, const char *nodes,
                           struct decode_start *start_out);
    /* One token of every sequence, added to times. */
    enum pp_status (*step)(const struct decode_settings *settings,
                           const struct pp_estimator *estimator, struct decode_times *times);
    void (*close)(void);
};

extern const struct decode_side decode_model, decode_remote;

#endif
