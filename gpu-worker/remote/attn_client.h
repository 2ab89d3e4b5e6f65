/*
 * Attends: one AttendStream a node, requests matched to answers by id, answers checked before a
 * number of theirs is used (laws 1 and 3). On the walk: remote/route > attn_client > rpc and back.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_ATTN_CLIENT_H
#define PIGPEN_GPU_WORKER_REMOTE_ATTN_CLIENT_H

#include "gpu-worker/remote/internal.h"

/* The estimator as the wire says it. Pure. */
void gw_estimator_pack(const struct pp_estimator *estimator, Pigpen__V1__Estimator *out);

/* Engine thread: room for q_rows rows in a dispatch. PP_MEMORY. */
PP_MUST_USE enum pp_status gw_dispatch_reserve(struct gw_dispatch *dispatch, uint32_t q_rows);
void gw_dispatch_deinit(struct gw_dispatch *dispatch);

/* Engine thread: fills q, signatures and header for the sequence's attend over held_tokens tokens
 * of the part. PP_DEADLINE_EXCEEDED when both request buffers are still with the sender. */
PP_MUST_USE enum pp_status gw_dispatch_prepare(struct gw_dispatch *dispatch,
                                               const struct gw_remote_attend *attend,
                                               uint64_t held_tokens);

/* rpc thread: the command's body. */
void gw_attn_client_run(struct gw_remote *remote, struct gw_command *command);
/* rpc thread: opens the stream when there is none. */
PP_MUST_USE enum pp_status gw_attn_client_open(struct gw_node *node);
/* rpc thread: ends requests past their deadline. Returns the next deadline. */
uint64_t gw_attn_client_tick(struct gw_node *node, uint64_t now_us);
/* rpc thread: takes a dispatch out of its node's list; it counts as done. */
void gw_attn_client_drop(struct gw_dispatch *dispatch);

/* Checks an answer against its dispatch and copies it there. NULL when right, else the cause in
 * words; status_out then says how the sequence ends. Pure. */
const char *gw_attn_client_take(struct gw_dispatch *dispatch,
                                const Pigpen__V1__AttendResponse *answer,
                                const struct pp_payload_view *payload, enum pp_status *status_out);

#endif
