/*
 * The one owner of a node's parts. The rpc thread hands jobs over through a bounded ring and takes
 * finished ones back; between submit and done a job and everything it points to belong to exec.
 * On the walk: service > exec > kv > index > kernels. It refuses to know the wire.
 * Threads: submit and take_done on the rpc thread; poll is the exec thread's body (the simulator
 * calls all three on one). The builder (index builds) is a thread of exec's own, or, with
 * build_sync, runs inline before the job that caused it is done.
 */
#ifndef PIGPEN_ATTN_NODE_EXEC_EXEC_H
#define PIGPEN_ATTN_NODE_EXEC_EXEC_H

#include <stdbool.h>
#include <stdint.h>

#include "common/attn/partial.h"
#include "common/attn/shape.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/span.h"
#include "common/base/stat.h"
#include "common/base/status.h"
#include "common/mem/pages.h"
#include "common/run/topology.h"

enum an_job_kind {
    AN_JOB_OPEN,
    AN_JOB_APPEND,
    AN_JOB_ATTEND,
    AN_JOB_SEAL,
    AN_JOB_FORK,
    AN_JOB_TRUNCATE,
    AN_JOB_READ,
    AN_JOB_RENEW,
    AN_JOB_CLOSE,
    AN_JOB_GET,
    AN_JOB_LIST,
    AN_JOB_EVICT,
    AN_JOB_SELF_TEST,
    AN_JOB_TUNE,
};

/* Names a part in a request. */
struct an_part_ref {
    uint64_t handle;
    uint64_t generation;
};

struct an_open_args {
    uint8_t sequence_id[PP_ID_BYTES];
    uint8_t part_id[PP_ID_BYTES];
    uint8_t fingerprint[PP_FINGERPRINT_BYTES];
    uint32_t fingerprint_bytes;
    struct pp_shape shape;
    uint32_t kv_head_begin, kv_head_count;
    uint64_t token_begin;
    struct pp_estimator estimator;
    uint64_t hash_seed;
    uint64_t draw_key; /* 0: the part id */
    const uint32_t *dense_layers;
    uint32_t dense_layer_count;
    const struct pp_layer_estimator *layer_estimators; /* in place of `estimator` */
    uint32_t layer_estimator_count;
    uint64_t reserve_bytes;  /* at least, for rows and indexes */
    uint64_t reserve_tokens; /* what they need; at most PP_TOKENS_PER_PART_MAX */
    uint64_t generation;
    uint64_t lease_us; /* asked for; out: granted. 0 or above the node's: the node's */
    /* out */
    uint64_t handle;
    uint64_t held_generation;
    bool existed;
    uint64_t *held_tokens; /* [layers], caller's memory, capacity PP_LAYERS_MAX */
};

struct an_append_args {
    struct an_part_ref part;
    uint32_t layer;
    uint64_t start; /* held index */
    uint32_t count;
    bool bulk;
    bool checksum_given;
    uint32_t crc32c; /* of payload */
    /* Where they came, of any alignment and in any number of pieces; data NULL: not given. */
    struct pp_span payload;
    enum pp_dtype dtype; /* of K and V as sent; NONE: not said */
    struct pp_span k, v; /* [token][kv head][dim] */
    bool segment_given;  /* the worker's border */
    uint64_t segment_begin, segment_count;
    struct pp_span signatures; /* [token][kv head][l] u16 */
    struct pp_span centre;     /* [kv head][dim] f32 */
    struct pp_span balance;    /* sketch: [kv head][dim] f32 of the layer */
    /* out; held_tokens also when the status is PP_APPEND_GAP (expected_start) */
    uint64_t held_tokens;
    bool duplicate;
};

/* Flags of an item's answer. */
#define AN_ATTEND_EMPTY_SAMPLE 1u /* a head's sample was empty and was answered otherwise */
#define AN_ATTEND_UNIFORM      2u /* and that by a uniform sample, not by all rows */
/* A group's sample missed the target error within its budget: it was answered by all rows. */
#define AN_ATTEND_TARGET_MISSED 4u

/* One item of an attend: a part's heads for q_rows queries. */
struct an_attend_item {
    struct an_part_ref part;
    uint64_t held_tokens;
    uint32_t q_rows;
    /* kind NONE: the part's, and views are read exactly where that is expected to be cheaper; else
     * it is used wherever there is an index for it. A budget and a target that it names are used in
     * place of the part's, also beside kind NONE. */
    struct pp_estimator estimator;
    const uint8_t *q; /* [q row][q head][dim] of q_dtype, unaligned */
    uint64_t q_bytes;
    const uint8_t *signatures; /* [q row][q head][l] u16, or NULL: hash here */
    uint64_t signature_bytes;
    /* What the asker attends itself, [q row][q head][dim + 1] f32, unaligned: o and then lse. A
     * target error is for both merged. NULL: nothing. */
    const uint8_t *local;
    uint64_t local_bytes;
    const uint64_t *seeds; /* [seed_count] */
    uint32_t seed_count;   /* 0 or q_rows */
    /* sketch without a target: of the indexed rows, in place of the budget; [kv_share_count] */
    const float *kv_shares;
    uint32_t kv_share_count; /* 0 or the part's kv heads */
    /* out: written when status is PP_OK, into memory taken from the job's arena */
    enum pp_status status;
    uint32_t q_heads, head_dim;
    float *o;                    /* [q row][q head][dim] */
    float *lse;                  /* [q row][q head] */
    float *var, *lse_var;        /* [q row][q head]; zero where exact */
    float *lse_sampled;          /* [q row][q head]; of rows_sampled alone, -INFINITY: none */
    uint32_t *keys_read;         /* [q row][q head] */
    bool forced;                 /* the request named the estimator */
    enum pp_estimator_kind used; /* PP_EXACT when nothing was sampled */
    uint64_t rows_held, rows_read;
    uint64_t rows_sampled; /* of rows_held, those that a sample stood for; others were all read */
    uint32_t flags;        /* AN_ATTEND_* */
};

struct an_attend_args {
    uint32_t layer;
    enum pp_dtype q_dtype;
    uint64_t deadline_us; /* on the clock; 0: none */
    struct an_attend_item *items;
    uint32_t item_count;
};

struct an_seal_args {
    struct an_part_ref part;
    const uint32_t *layers;
    uint32_t layer_count; /* 0: all */
    uint64_t segments;    /* out */
};

struct an_fork_args {
    struct an_part_ref part;
    uint8_t sequence_id[PP_ID_BYTES];
    uint8_t part_id[PP_ID_BYTES];
    uint64_t held_tokens;
    uint64_t generation;
    uint64_t handle; /* out */
};

struct an_truncate_args {
    struct an_part_ref part;
    uint64_t new_generation;
    uint64_t held_tokens;
};

/* Copies rows out in append format: K then V, [token][kv head][dim], into `out`. */
struct an_read_args {
    struct an_part_ref part;
    uint32_t layer;
    uint64_t start;
    uint32_t count;
    uint8_t *out; /* out_bytes = 2 * count * kv_head_count * vector bytes, or NULL: ask size */
    uint64_t out_capacity;
    uint64_t out_bytes; /* out */
    uint32_t crc32c;    /* out: of what was copied; exec computes it, the rpc thread never does */
};

struct an_renew_args {
    const uint64_t *handles;
    uint32_t handle_count;
    uint64_t *unknown; /* [handle_count], caller's memory */
    uint32_t unknown_count;
};

/* indexed_tokens: sealed ones whose index is there. settled_tokens: those and the ones that want
 * none (short, dense, exact): it reaches sealed_tokens when no build is left. */
struct an_layer_info {
    uint64_t held_tokens, sealed_tokens, indexed_tokens, settled_tokens;
    uint32_t segments;
};

struct an_part_info {
    uint64_t handle;
    uint8_t sequence_id[PP_ID_BYTES];
    uint8_t part_id[PP_ID_BYTES];
    uint64_t generation;
    uint32_t kv_head_begin, kv_head_count;
    uint64_t token_begin;
    uint64_t bytes;
    uint64_t lease_left_us;
    enum pp_estimator_kind estimator;
    uint32_t layer_count;
};

struct an_get_args {
    struct an_part_ref part; /* generation 0: any */
    struct an_part_info info;
    struct an_layer_info *layers; /* [PP_LAYERS_MAX], caller's memory */
};

struct an_list_args {
    uint64_t after_handle;
    struct an_part_info *parts; /* [capacity], ascending by handle */
    uint32_t capacity;
    uint32_t count;
    bool more;
    uint64_t parts_total;
};

struct an_close_args {
    struct an_part_ref part; /* generation 0: any */
    uint64_t freed_bytes;
};

struct an_evict_args {
    const uint64_t *handles;
    uint32_t handle_count;
    bool force;
    uint32_t evicted;
    uint64_t freed_bytes;
};

#define AN_SELF_TEST_CHECKS_MAX 8u
struct an_self_test_args {
    uint32_t count;
    struct {
        const char *name;
        bool ok;
        char detail[120];
    } checks[AN_SELF_TEST_CHECKS_MAX];
};

/* What one layer should have for a target error, by the part's own late queries over its sealed
 * rows; shares and errors as in attn-node/index/tune.h, of the median query head. */
struct an_tune_layer {
    struct pp_estimator estimator; /* kind NONE: nothing is sampled, or nothing was asked yet */
    bool dense;                    /* attend it exactly instead */
    uint64_t tokens;               /* sealed */
    uint32_t queries;              /* q rows looked at */
    float rows_share, error, error_worst;
    float rows_share_now, error_now;
};

struct an_tune_args {
    struct an_part_ref part;      /* generation 0: any */
    float target_error;           /* above 0, at most 1 */
    struct an_tune_layer *layers; /* [PP_LAYERS_MAX] by layer, caller's memory; out: of the range */
    uint32_t layer_begin;
    uint32_t layer_count; /* 0: all from layer_begin on; out: how many those are */
};

struct an_job {
    enum an_job_kind kind;
    enum pp_status status; /* out */
    char detail[160];      /* out: for people, "" when there is nothing to add */
    uint64_t received_us;
    void *context; /* the submitter's */
    /* Outputs that need memory come from here; the submitter owns and resets it. */
    uint8_t *arena;
    uint64_t arena_bytes, arena_used;
    union {
        struct an_open_args open;
        struct an_append_args append;
        struct an_attend_args attend;
        struct an_seal_args seal;
        struct an_fork_args fork;
        struct an_truncate_args truncate;
        struct an_read_args read;
        struct an_renew_args renew;
        struct an_close_args close;
        struct an_get_args get;
        struct an_list_args list;
        struct an_evict_args evict;
        struct an_self_test_args self_test;
        struct an_tune_args tune;
    };
};

struct an_exec_config {
    struct pp_clock clock;
    uint64_t memory_limit_bytes;
    uint32_t threads;          /* of the team; 0: what the cgroup and affinity give */
    uint32_t seal_tokens;      /* 1,024 */
    uint32_t index_tokens_min; /* 1,024 */
    uint64_t lease_us;         /* 10 min */
    bool build_sync;
    bool keep_segments; /* no merging: for tests and benches of many segments */
    enum pp_hugepages hugepages;
    /* kv heads are spread over its NUMA nodes; NULL: not. Read at new only. */
    const struct pp_topology *topology;
    uint32_t queue_depth; /* of the ring; 256 */
    /* One of so many sampled q rows is checked against exact when nothing waits; 0: none. */
    uint64_t shadow_every;
    struct pp_stats *stats;
    /* Called on the exec thread when a job was put to the done ring; may be NULL. */
    void (*wake)(void *context);
    void *wake_context;
};

struct an_exec;

PP_MUST_USE enum pp_status an_exec_new(const struct an_exec_config *config,
                                       struct an_exec **exec_out);
/* Jobs still queued are done with PP_CANCELLED first; stop the thread before. */
void an_exec_destroy(struct an_exec *exec);

/* PP_QUEUE when the ring is full: the job stays the caller's. */
PP_MUST_USE enum pp_status an_exec_submit(struct an_exec *exec, struct an_job *job);
/* The next finished job, NULL when there is none. Attends are in order of submission, all others
 * too, but a tune, which goes on beside them at low priority (one at a time: PP_QUEUE); an attend
 * may pass others that were submitted before it: it asks for tokens that were acknowledged. */
struct an_job *an_exec_take_done(struct an_exec *exec);

/* Runs queued jobs, publishes finished builds, frees parts whose lease ended. Waits up to wait_us
 * for work. Returns the number of jobs done. */
uint32_t an_exec_poll(struct an_exec *exec, uint64_t wait_us);

/* Starts and stops a thread whose body is an_exec_poll. */
PP_MUST_USE enum pp_status an_exec_start(struct an_exec *exec);
void an_exec_stop(struct an_exec *exec);

/* Any thread; relaxed snapshots. */
struct an_exec_usage {
    uint64_t memory_limit_bytes, kv_bytes, index_bytes, tail_bytes, scratch_bytes;
    uint64_t spare_bytes; /* freed, and kept for the next rows: within the limit, not in use */
    uint64_t parts, tokens_held; /* tokens_held: sum over parts of the longest layer */
};
void an_exec_usage(const struct an_exec *exec, struct an_exec_usage *usage_out);

#endif
