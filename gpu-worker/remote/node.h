/*
 * A node as the worker sees it: a channel pair (latency and bulk), unary calls, health and info.
 * Below attn_client and outbox on the walk. Threads: init and deinit on the engine thread without a
 * running rpc thread; gw_unary_* as said; the rest on the rpc thread.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_NODE_H
#define PIGPEN_GPU_WORKER_REMOTE_NODE_H

#include "gpu-worker/remote/internal.h"

/* A node that did not say for so long what it has free is asked. */
#define GW_NODE_INFO_US 5000000u

PP_MUST_USE enum pp_status gw_node_init(struct gw_node *node, struct gw_remote *remote,
                                        uint32_t index);
void gw_node_deinit(struct gw_node *node);
/* Another connection instead of the bulk channel's; calls on it have been given up. When none can
 * be had, bulk is NULL until the next try. */
void gw_node_reopen_bulk(struct gw_node *node);

/* Engine thread: packs request and hands the call over. PP_MEMORY. answered may be NULL. `orphan`
 * and `part` of *unary are kept: with orphan it is the rpc thread that calls, *unary came from
 * malloc and frees itself, and answered is called with NULL when the call failed. */
PP_MUST_USE enum pp_status
gw_unary_start(struct gw_unary *unary, struct gw_node *node, const char *path, uint64_t timeout_us,
               const ProtobufCMessage *request, const ProtobufCMessageDescriptor *answer_type,
               enum pp_status (*answered)(struct gw_unary *unary, const ProtobufCMessage *answer),
               void *context);
/* Engine thread: waits for all of them (those never started count as done); it ends, because every
 * call has a deadline. Returns the first status that is not PP_OK. */
PP_MUST_USE enum pp_status gw_unary_wait(struct gw_remote *remote, struct gw_unary *unaries,
                                         uint32_t count);
void gw_unary_deinit(struct gw_unary *unary);
/* rpc thread: cancels calls past their deadline. Returns the next deadline. */
uint64_t gw_unary_tick(struct gw_remote *remote, uint64_t now_us);

/* Health and info of every node at once; sets serving, incarnation and limits. PP_UNAVAILABLE when
 * one is missing. Engine thread. */
PP_MUST_USE enum pp_status gw_node_probe_all(struct gw_remote *remote, uint64_t timeout_us);

/* node_trial.c. rpc thread: the node failed somebody; where that makes it doubtful it is out of use
 * until it has stood its trials. */
void gw_node_fault(struct gw_node *node, enum pp_status status);
/* rpc thread: opens its two streams where there are none; failing is met again by who sends. */
void gw_node_open_streams(struct gw_node *node);
/* rpc thread: a stream of the node ended that nobody waited on: it is tried at once. */
void gw_node_doubt(struct gw_node *node);
/* rpc thread: the node says that it is being drained: it serves what it holds until that has moved.
 */
void gw_node_drains(struct gw_node *node);
/* The same as gw_node_fault from the engine thread. */
void gw_node_fault_from_engine(struct gw_node *node, enum pp_status status);
/* rpc thread: tries a node that is out or in doubt. Returns when to call next. */
uint64_t gw_node_tick(struct gw_node *node, uint64_t now_us);
/* Any thread: indices of the nodes in use, at most GW_NODES_MAX; how many they are. */
uint32_t gw_nodes_usable(const struct gw_remote *remote, uint32_t *nodes_out);

/* place.c. Engine thread: nodes for a new sequence of this shape, of those in use: all that have
 * room for their share of tokens_expected when it is cut evenly, in their order, but those with
 * much more room last, for the last part grows; shares_out[0] is 0. Where no even cut fits, token
 * spans by what each has room for: shares_out [GW_NODES_MAX] tokens. All in use where nodes did not
 * say what they have, or it is not enough: nodes refuse what they cannot hold. key: of the
 * sequence. How many they are, at most GW_NODES_MAX. */
uint32_t gw_nodes_place(const struct gw_remote *remote,
                        const struct gw_remote_sequence_config *config, uint64_t key,
                        uint32_t *nodes_out, uint64_t *shares_out);

/* place.c. Engine thread: bytes of so many rows of kv_heads heads in all layers, and a tenth for
 * indexes. */
uint64_t gw_rows_need(const struct pp_shape *shape, uint32_t kv_heads, uint64_t tokens);
/* What is known of every node, by its place in the table: figures_out [GW_NODES_MAX]; how many. */
struct gw_placement_node;
uint32_t gw_nodes_figures(const struct gw_remote *remote, struct gw_placement_node *figures_out);
/* Of the nodes in use whose bit is not in `tried` the one that has the fewest of tokens [node], one
 * with `bytes` free before one without. UINT32_MAX: none. */
uint32_t gw_nodes_fewest(const struct gw_remote *remote, const uint64_t *tokens, uint64_t tried,
                         uint64_t bytes);

/* rpc thread: asks what it has free, for whoever wants to know next. */
void gw_node_ask_info(struct gw_node *node);
/* rpc thread: what a node has free of its memory, as an answer says; 0: it does not. */
void gw_node_take_free(struct gw_node *node, uint64_t free_bytes);
/* Limits as a node said them; zeros take defaults. rpc thread. */
void gw_node_take_limits(struct gw_node *node, const Pigpen__V1__Limits *limits);

#endif
