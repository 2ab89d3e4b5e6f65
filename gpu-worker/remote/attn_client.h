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

/* Engine thread: fills in q and signatures for the sequence's attend over held_tokens tokens of the
 * part. PP_DEADLINE_EXCEEDED when all request buffers are still with senders. */
PP_MUST_USE enum pp_status gw_dispatch_prepare(struct gw_dispatch *dispatch,
                                               const struct gw_remote_attend *attend,
                                               uint64_t held_tokens);
/* Engine thread: the header of the sequence's attend for one of the nodes that hold the part. */
PP_MUST_USE enum pp_status gw_ask_prepare(struct gw_part *part);

/* A header for `count` parts, an item each, their payloads one behind the other. They lie on one
 * node, each sequence's attend and dispatch are set, and they pack together. PP_MESSAGE_TOO_LARGE.
 */
PP_MUST_USE enum pp_status gw_attend_pack(struct gw_part *const *parts, uint32_t count,
                                          uint64_t request_id, uint8_t *header, size_t capacity,
                                          uint32_t *bytes_out);
/* Whether what a message says of all its items is the same for both. */
bool gw_attend_packs_with(const struct gw_part *part, const struct gw_part *other);

/* rpc thread: asks this node; a request that cannot be sent ends at the next tick. While the remote
 * holds requests back they are sent by the next gw_attn_client_send_held_back. */
void gw_attn_client_ask(struct gw_part *part);
/* rpc thread: sends what was held back for the node, in as few messages as can be. */
void gw_attn_client_send_held_back(struct gw_node *node);
/* rpc thread: opens the stream when there is none. */
PP_MUST_USE enum pp_status gw_attn_client_open(struct gw_node *node);
/* rpc thread: ends requests past their deadline, and parts on nodes that owe answers for as long.
 * Returns the next deadline. */
uint64_t gw_attn_client_tick(struct gw_node *node, uint64_t now_us);
/* rpc thread: the node's answer is no longer waited for. It `owes` one where it was silent, not
 * wrong: somebody else answered first, or nobody wants to know any more. */
void gw_attn_client_drop(struct gw_part *part, bool owes);

/* Checks an answer against what the part was asked and copies it to the dispatch. NULL when right,
 * else the cause in words; status_out then says how that ends. Pure. */
const char *gw_attn_client_take(struct gw_part *part, const Pigpen__V1__AttendResponse *answer,
                                const struct pp_payload_view *payload, enum pp_status *status_out);

#endif
