/*
 * The worker's side of the nodes: channels, the routing table, appends through a bounded outbox,
 * attends and their merge inputs. On the walk: engine/step > remote/route > remote/attn_client >
 * rpc, and engine/sequence > remote/outbox > rpc. It refuses to know devices and models.
 *
 * Threads: the engine thread calls everything below but gw_remote_poll, which is the rpc thread's
 * body. With start/stop the remote owns that thread; without (simulator, tests) waits call poll
 * inline. Requests and results cross over by rings; memory named by a request stays the engine's
 * and untouched until its wait returns.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_REMOTE_H
#define PIGPEN_GPU_WORKER_REMOTE_REMOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/attn/estimators.h"
#include "common/attn/hash.h"
#include "common/attn/partial.h"
#include "common/attn/shape.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/stat.h"
#include "common/base/status.h"
#include "common/rpc/transport.h"

enum gw_shard { GW_SHARD_TOKENS, GW_SHARD_KV_HEADS, GW_SHARD_BOTH };

#define GW_NODES_MAX    64u
#define GW_REPLICAS_MAX 4u /* nodes that hold one part */

struct gw_node_address {
    char name[64];
    char address[256];
};

struct gw_remote_config {
    struct pp_transport *transport; /* borrowed */
    struct pp_clock clock;
    struct gw_node_address nodes[GW_NODES_MAX];
    uint32_t node_count;
    uint32_t nodes_min; /* gw_remote_ready is content with so many; 0: all of them */
    enum gw_shard shard;
    uint32_t replicas;          /* of a part, on as many nodes; 0: 1 */
    uint64_t attend_timeout_us; /* 1.5 s: how long a node may be silent before it is lost */
    uint64_t hedge_us; /* another replica is asked too after this; 0: twice what a hundredth of the
                          answers takes, as measured; of a node that has given none yet, a quarter
                          of attend_timeout_us */
    uint64_t call_timeout_us;  /* open, seal, close: 10 s */
    uint64_t outbox_bytes_max; /* 64 MiB: K/V not acknowledged yet */
    const struct pp_tls *tls;  /* NULL: plain text */
    struct pp_stats *stats;    /* may be NULL */
    /* Called by every poll, on the rpc thread; returns when it must be called next. NULL: nobody.
     */
    uint64_t (*tick)(void *context, uint64_t now_us);
    void *tick_context;
};

struct gw_remote;
struct gw_remote_sequence;

/* Opens channels; nodes need not answer yet. PP_INVALID_ARGUMENT, PP_MEMORY. */
PP_MUST_USE enum pp_status gw_remote_new(const struct gw_remote_config *config,
                                         struct gw_remote **remote_out);
void gw_remote_destroy(struct gw_remote *remote);
PP_MUST_USE enum pp_status gw_remote_start(struct gw_remote *remote);
void gw_remote_stop(struct gw_remote *remote);
size_t gw_remote_poll(struct gw_remote *remote, uint64_t until_us);

/* Another list of nodes: new ones get channels and are used once they have answered; those that are
 * not in it get nothing new, and what lives on them stays. A name with another address is another
 * node. Between steps; PP_RESOURCE_EXHAUSTED: more than GW_NODES_MAX nodes were ever named, the
 * rest is left out; errors of channels. */
PP_MUST_USE enum pp_status gw_remote_update(struct gw_remote *remote,
                                            const struct gw_node_address *nodes, uint32_t count);
/* Nodes that were ever named; their places in tables by node. */
uint32_t gw_remote_node_count(const struct gw_remote *remote);
const struct gw_node_address *gw_remote_node(const struct gw_remote *remote, uint32_t node);
/* Nodes in use now. */
uint32_t gw_remote_nodes_in_use(const struct gw_remote *remote);

/* Waits until every node, or nodes_min of them, answers Health, up to timeout_us; those that do not
 * are used once they do. Checks protocol and features. While one is missing, `waiting` (may be
 * NULL) is called between the probes; false from it ends the wait: PP_CANCELLED. Else
 * PP_UNAVAILABLE, PP_PROTOCOL, PP_INVALID_ARGUMENT (two addresses lead to one node);
 * gw_remote_missing says which and why. */
typedef bool gw_remote_waiting_fn(void *context, uint64_t waited_us);
PP_MUST_USE enum pp_status gw_remote_ready(struct gw_remote *remote, uint64_t timeout_us,
                                           gw_remote_waiting_fn *waiting, void *context);
/* Why the last probe of the node failed, for people; NULL when it serves. */
const char *gw_remote_missing(const struct gw_remote *remote, uint32_t node);

struct gw_remote_sequence_config {
    struct pp_shape shape;
    uint8_t fingerprint[PP_FINGERPRINT_BYTES];
    uint32_t fingerprint_bytes;
    struct pp_estimator estimator;
    const struct pp_estimator_range *ranges; /* layers with another one; read at open only */
    uint32_t range_count;
    bool nodes_plan; /* nodes may read exactly where they expect that to be cheaper; else estimator
                        is used wherever there is an index for it */
    uint64_t hash_seed;
    const uint32_t *dense_layers;
    uint32_t dense_layer_count;
    uint64_t tokens_expected; /* the nodes reserve their rows' memory at open; token shards: the
                                 span is cut evenly over the nodes; what comes behind them goes to
                                 the last part, and where its node runs short to another node's */
};

/* Opens the parts of a new sequence on the nodes. PP_MEMORY: a node has no room for its share of
 * tokens_expected; PP_UNAVAILABLE ... */
PP_MUST_USE enum pp_status gw_remote_sequence_open(struct gw_remote *remote,
                                                   const struct gw_remote_sequence_config *config,
                                                   struct gw_remote_sequence **sequence_out);
/* Closes its parts (best effort) and frees it. */
void gw_remote_sequence_close(struct gw_remote_sequence *sequence);
/* Starts again, empty, on the nodes that are there now; the old one is closed. On an error it is
 * left failed. */
PP_MUST_USE enum pp_status gw_remote_sequence_reopen(struct gw_remote_sequence **sequence);

/* After a call failed, between steps: when it failed because a node was lost, its parts are opened
 * again on others, empty, and the sequence goes on; all rows from gw_remote_lacking on are to be
 * handed over again. Otherwise the failure itself; also when no node is left.
 * PP_FAILED_PRECONDITION: nothing has failed. */
PP_MUST_USE enum pp_status gw_remote_recover(struct gw_remote_sequence *sequence);
/* Between steps: brings on, without waiting, what makes the sequence outlive more nodes: a part
 * that lies on fewer nodes than it should, or on one that is being drained, is copied to another. A
 * replica that does not keep up is left. */
void gw_remote_maintain(struct gw_remote_sequence *sequence);
/* Whether it can go on after a failure: none is another. */
bool gw_remote_recoverable(const struct gw_remote_sequence *sequence);
/* From the first to the last token of a layer that was handed over and that some part lacks; both
 * the number of tokens handed over when there is none. Parts skip what they have. */
struct gw_lacking {
    uint64_t begin, end;
};
struct gw_lacking gw_remote_lacking(const struct gw_remote_sequence *sequence, uint32_t layer);

/* Hands over rows [start, start + count) of a layer for the nodes; start is counted from the first
 * token that ever leaves the worker (the sink stays) and is what was handed over before, or less:
 * then every part takes what it lacks. k, v: [token][kv head] vectors of kv_dtype;
 * copied at once. `bulk`: prefill. Waits while the outbox is full. A failure of a node comes back
 * here or at the next wait: PP_UNAVAILABLE, PP_INCARNATION_CHANGED ... */
PP_MUST_USE enum pp_status gw_remote_append(struct gw_remote_sequence *sequence, uint32_t layer,
                                            uint64_t start, uint32_t count, const void *k,
                                            const void *v, bool bulk);
/* Rows whose segment, centre and signatures the worker chose (an lsh layer, prefill): the nodes
 * need not hash them. A segment lies in one part or, with kv-head shards, in all alike. */
struct gw_remote_segment {
    uint64_t begin;        /* its first token, counted as start is */
    uint32_t count;        /* tokens; the append that completes it seals it */
    const float *centre;   /* [kv head][dim] */
    const uint16_t *codes; /* of the rows appended: [token][kv head][l] */
};
/* gw_remote_append, in bulk, of rows that lie in `segment`. */
PP_MUST_USE enum pp_status gw_remote_append_signed(struct gw_remote_sequence *sequence,
                                                   uint32_t layer, uint64_t start, uint32_t count,
                                                   const void *k, const void *v,
                                                   const struct gw_remote_segment *segment);
/* What the nodes are to balance a layer's sketches with: balance [kv head][dim], > 0, copied. They
 * get it with the first rows that each of them holds of the layer, of which none may have been
 * handed over yet. PP_INVALID_ARGUMENT, also where the layer's estimator is no sketch. */
PP_MUST_USE enum pp_status gw_remote_balance(struct gw_remote_sequence *sequence, uint32_t layer,
                                             const float *balance);
/* What a layer is balanced with, [kv head][dim]; NULL: nothing. */
const float *gw_remote_balance_of(const struct gw_remote_sequence *sequence, uint32_t layer);
/* Where the segment that starts at `begin` must end, at most at `end` > begin: no part's border is
 * inside, and a part's segments begin every PP_SEGMENT_TOKENS_MAX rows, as where nodes seal. */
uint64_t gw_remote_segment_end(const struct gw_remote_sequence *sequence, uint64_t begin,
                               uint64_t end);
/* How a layer is attended, dense layers apart. */
const struct pp_estimator *gw_remote_estimator(const struct gw_remote_sequence *sequence,
                                               uint32_t layer);
/* What the keys of a layer are hashed with; NULL: nodes take no signatures of it. */
const struct pp_hash *gw_remote_hash(const struct gw_remote_sequence *sequence, uint32_t layer);

/* Tokens of a layer that every part has acknowledged: the prefix an attend may ask for. The engine
 * attends the rest itself (law 1). */
uint64_t gw_remote_held(const struct gw_remote_sequence *sequence, uint32_t layer);
/* Waits until all that was handed over is acknowledged. */
PP_MUST_USE enum pp_status gw_remote_flush(struct gw_remote_sequence *sequence);
/* Flushes and seals what the parts hold, for the nodes to index it meanwhile. */
PP_MUST_USE enum pp_status gw_remote_seal_begin(struct gw_remote_sequence *sequence);
/* The same, and waits until it is indexed. progress may be NULL; false from it ends the wait:
 * PP_CANCELLED. */
PP_MUST_USE enum pp_status
gw_remote_seal(struct gw_remote_sequence *sequence,
               bool (*progress)(void *context, uint64_t indexed, uint64_t total), void *context);
PP_MUST_USE enum pp_status gw_remote_truncate(struct gw_remote_sequence *sequence,
                                              uint64_t held_tokens);

/* What a layer needs for answers of the nodes within a relative error, by the queries that they
 * were asked last and the rows that they have sealed (TunePart): of all parts the largest share,
 * the largest errors. Nothing changes. Parts whose nodes do not say (lost ones, too) are silent. */
struct gw_remote_tuning {
    /* sketch with a share of rows, or lsh with other tables; kind NONE: no part has anything to
     * say, because it samples nothing, or was not asked yet. */
    struct pp_estimator estimator;
    bool dense; /* for some part nothing that reads less than half of the rows does it */
    uint32_t queries;
    uint32_t silent;
    float rows_share, error, error_worst; /* predicted: of the median head, of the worst one */
    float rows_share_now, error_now;      /* as the layer was opened */
};
/* Waits for all of them, minutes where they are large and busy. target_error above 0, at most 1.
 * PP_INVALID_ARGUMENT, PP_MEMORY. */
PP_MUST_USE enum pp_status gw_remote_tune(struct gw_remote_sequence *sequence, uint32_t layer,
                                          float target_error, struct gw_remote_tuning *tuning_out);

/* Reads rows that were handed over back, counted and laid out as gw_remote_append has them; first
 * waits until all is acknowledged. PP_OUT_OF_RANGE: more than was handed over. A node that fails is
 * lost to the sequence; where another holds its part that is asked. */
PP_MUST_USE enum pp_status gw_remote_read(struct gw_remote_sequence *sequence, uint32_t layer,
                                          uint64_t start, uint32_t count, void *k_out, void *v_out);

/* Attend of one layer: q [q row][q head][dim] f32 over the first held_tokens. Begin sends at once
 * and returns; wait gives the merged partials of all parts. At most one in flight a sequence.
 * seeds [q_rows] or NULL. */
struct gw_remote_attend {
    uint32_t layer;
    uint64_t held_tokens;
    uint32_t q_rows;
    const float *q;
    const uint64_t *seeds;
    struct pp_estimator estimator; /* kind NONE: the layer's */
    /* With a target error: what is attended here, [q row][q head][dim] and [q row][q head]; the
     * target is for the answer merged with it. NULL: nothing. */
    const float *local_o, *local_lse;
    bool errors; /* nodes send their error estimates and the keys a head read */
};
/* Flags of an answer, of any part: as AttendResult of the wire says. */
#define GW_ANSWER_EMPTY_SAMPLE  1u
#define GW_ANSWER_UNIFORM       2u
#define GW_ANSWER_TARGET_MISSED 4u
struct gw_remote_answer {
    float *o;                      /* [q row][q head][dim] f32, caller's memory */
    float *lse;                    /* [q row][q head], -inf where nothing was held */
    float *var, *lse_var;          /* [q row][q head] or NULL; 0 when errors were not asked for */
    uint64_t keys_read, keys_held; /* distinct rows a kv head, summed over kv heads and q rows */
    uint64_t keys_read_q, keys_held_q; /* the same a q head, each by itself: the papers' share */
    uint64_t node_us;                  /* the slowest node's own time */
    uint64_t network_us;               /* dispatch to last answer, less node_us */
    /* Some part used the asked estimator somewhere; false for exact layers of a sequence that
     * samples others. */
    bool estimator_used;
    uint32_t flags; /* GW_ANSWER_* */
};
PP_MUST_USE enum pp_status gw_remote_attend_begin(struct gw_remote_sequence *sequence,
                                                  const struct gw_remote_attend *attend);
/* Attends of several sequences of one remote: each begins or does not, as by
 * gw_remote_attend_begin, and is waited for by itself. What one node is asked goes in one message,
 * and is answered in one, where layer and wanted errors are the same. */
struct gw_remote_begin {
    struct gw_remote_sequence *sequence;
    struct gw_remote_attend attend;
    enum pp_status status; /* what came of it */
};
void gw_remote_attends_begin(struct gw_remote_begin *begins, uint32_t count);
PP_MUST_USE enum pp_status gw_remote_attend_wait(struct gw_remote_sequence *sequence,
                                                 struct gw_remote_answer *answer);
/* How long an attend may take before the nodes that have not answered are lost. */
uint64_t gw_remote_attend_timeout_us(const struct gw_remote_sequence *sequence);

/* For people: the error that ended things, naming node and cause; "" when none. */
const char *gw_remote_error(const struct gw_remote_sequence *sequence);

/* Parts that it is cut into; more when it grew on further nodes. */
uint32_t gw_remote_parts(const struct gw_remote_sequence *sequence);
/* Held tokens a node, for tables: [node_count]. */
void gw_remote_tokens_held(struct gw_remote_sequence *sequence, uint64_t *tokens_out);

#endif
