/*
 * Inside the engine: a step of one or several sequences under way. Its rows keep their places in
 * the engine's buffers (engine_state.h) from its start to its end: x, o, lse and the host's side of
 * attends are a row's own; the others are free again between two calls of what is declared here.
 */
#ifndef PIGPEN_GPU_WORKER_ENGINE_STEP_STATE_H
#define PIGPEN_GPU_WORKER_ENGINE_STEP_STATE_H

#include "gpu-worker/engine/engine_state.h"

/* One sequence's token. */
struct gw_step_row {
    struct gw_step *step; /* the caller's */
    uint64_t seed;        /* of its attends */
    uint32_t recoveries;
    enum pp_status status; /* another than PP_OK: it takes no part in the rest of the pass */
    /* Of the layer at hand. */
    uint64_t held;  /* tokens that the nodes are asked for; 0: none */
    bool target;    /* they are told what is attended here */
    bool in_flight; /* they were asked, and not waited for */
    bool answered;
};

struct gw_batch {
    struct gw_engine *engine;
    struct gw_step_row rows[GW_BATCH_MAX];
    uint32_t count;
    uint64_t wait_us;        /* for nodes with nothing left to do */
    uint64_t device_wait_us; /* for what the device is to send them */
};

/* Rows that go through a layer together. */
struct gw_micro_batch {
    uint32_t begin, count;
    uint32_t number;
};

/* step_layer.c. Takes a micro-batch from where a layer's answers are needed to where the next one's
 * are: answers of layer - 1, their merge, output projection and feed-forward; then queries out, k
 * and v, and what is attended here of `layer`. The first time `layer` is 0, the last time the
 * number of layers: half of it then. A failure of a row is its status; of the device, returned. */
PP_MUST_USE enum pp_status gw_step_layer(struct gw_batch *batch, const struct gw_micro_batch *micro,
                                         uint32_t layer);
/* Waits for what is in flight, and forgets it. */
void gw_step_drain(struct gw_batch *batch);

#endif
