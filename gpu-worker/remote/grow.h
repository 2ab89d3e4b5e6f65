/*
 * Where a sequence grows: see grow.c. Threads: the engine thread, between steps.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_GROW_H
#define PIGPEN_GPU_WORKER_REMOTE_GROW_H

#include "gpu-worker/remote/internal.h"

/* A node is short of memory when it has no room for so many of a part's next tokens, and is grown
 * on when it has room for so many. */
#define GW_GROW_AHEAD_TOKENS 128u
#define GW_GROW_TOKENS       512u

/* Tokens of the part that a node is asked to keep memory for. */
uint64_t gw_grow_reserve(const struct gw_remote_sequence *sequence, uint32_t index);

/* Parts on nodes that run short end here; what comes then goes to others. Where none has room they
 * stay as they are. */
void gw_grow_maintain(struct gw_remote_sequence *sequence);

/* Part `index` ends at token `at` of the sequence, the rest of its span becomes the last part of
 * the route, on no node yet; that part's index. PP_RESOURCE_EXHAUSTED: as many parts as there may
 * be. */
PP_MUST_USE enum pp_status gw_grow_cut(struct gw_remote_sequence *sequence, uint32_t index,
                                       uint64_t at, uint32_t *index_out);
/* Cuts parts that were refused rows behind what every layer of theirs has acknowledged; where that
 * is nothing they leave their nodes. */
PP_MUST_USE enum pp_status gw_grow_cut_full(struct gw_remote_sequence *sequence);
/* Cuts a part that no node has room for behind what the roomiest takes; false: that is nothing. */
bool gw_grow_cut_fitting(struct gw_remote_sequence *sequence, uint32_t index);
/* For people: what parts that are on no node need and what there is. text_out [bytes]. */
void gw_grow_explain(const struct gw_remote_sequence *sequence, char *text_out, size_t bytes);

#endif
