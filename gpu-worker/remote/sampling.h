/*
 * How the layers of a sequence are attended: what is kept of it here, and its words on the wire. On
 * the walk: remote/sequence at open, remote/attn_client and remote/append after it. It refuses to
 * know parts and nodes.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_SAMPLING_H
#define PIGPEN_GPU_WORKER_REMOTE_SAMPLING_H

#include "gpu-worker/remote/internal.h"

/* Checks config's estimators and makes what queries and balances need. config.shape is checked.
 * PP_INVALID_ARGUMENT, PP_MEMORY: deinit all the same. */
PP_MUST_USE enum pp_status gw_sampling_init(struct gw_remote_sequence *sequence);
void gw_sampling_deinit(struct gw_remote_sequence *sequence);

/* What an open says of single layers; the caller frees it. */
struct gw_layer_words {
    Pigpen__V1__LayerEstimator **list;
    uint32_t count;
};
/* PP_MEMORY. */
PP_MUST_USE enum pp_status gw_layer_words_new(const struct gw_remote_sequence *sequence,
                                              struct gw_layer_words *words_out);

#endif
