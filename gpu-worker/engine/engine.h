/*
 * The engine: a loaded model on a device, and sequences of tokens that run through it. Prefill is
 * layer-major: all tokens of a layer in chunks, exact attention with that layer's K/V on the
 * device; the K/V goes to the nodes while the next layer computes. A decode step sends the query of
 * a layer to the nodes as soon as it is known, attends sink, recent and unacknowledged tokens
 * itself, and merges (laws 1 and 2). Without a remote all K/V stays here: the reference of every
 * test.
 *
 * On the walk: the start and the end of a decode step and of a token's K/V. It refuses to know
 * text, options and HTTP.
 *
 * A node that is lost costs time, not the sequence: its share is computed again from the tokens
 * into the memory of the nodes that are left, and what was being done starts again.
 *
 * Threads: one thread owns an engine, its device and its sequences. Errors of nodes come back as
 * statuses; gw_sequence_error says more for people. After an error a sequence can only be closed.
 */
#ifndef PIGPEN_GPU_WORKER_ENGINE_ENGINE_H
#define PIGPEN_GPU_WORKER_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/attn/shape.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "gpu-worker/device/device.h"
#include "gpu-worker/engine/errors.h"
#include "gpu-worker/model/gguf.h"
#include "gpu-worker/ops/sample.h"
#include "gpu-worker/remote/remote.h"

/* Recent tokens leave the worker in batches of this many, and so many batches may wait for their
 * acknowledgement before a step waits for it. */
#define GW_LEAVE_TOKENS      64u
#define GW_LEAVE_BATCHES_MAX 8u
/* Sequences that may step at once. */
#define GW_BATCH_MAX 16u
/* Tokens of one hand-over of prefill. */
#define GW_BULK_TOKENS 4096u
/* A prompt that is shorter says too little about a layer's queries and keys. */
#define GW_BALANCE_TOKENS 1024u

struct gw_engine;
struct gw_sequence;

struct gw_engine_config {
    struct gw_device *device;   /* borrowed; outlives the engine */
    const struct gw_gguf *gguf; /* borrowed; outlives the engine: weights are used in place */
    enum pp_dtype kv_dtype;     /* K/V is rounded to it at creation, local tokens too */
    uint32_t tokens_max;        /* positions a sequence may reach; 0: the model's context */
    uint32_t chunk_tokens;      /* of prefill; 0: 512 */
    bool no_graphs;             /* steps give a device every operation by itself */
    uint32_t micro_batches;     /* gw_engine_micro_batches */
    struct pp_clock clock;
    struct pp_stats *stats; /* of errors and flags; may be NULL */
};

/* What the model is, for people and for bounds. */
struct gw_engine_info {
    struct pp_shape shape;
    uint32_t vocab;
    uint32_t hidden;
    uint32_t context; /* the model's */
    uint32_t tokens_max;
    uint64_t weight_bytes;
    uint8_t fingerprint[PP_FINGERPRINT_BYTES];
    uint32_t fingerprint_bytes;
};

/* PP_INVALID_ARGUMENT, PP_BAD_SHAPE or PP_UNIMPLEMENTED with the reason in error_out; PP_MEMORY. */
PP_MUST_USE enum pp_status gw_engine_new(const struct gw_engine_config *config, char *error_out,
                                         size_t error_bytes, struct gw_engine **engine_out);
/* Its sequences must have been closed. */
void gw_engine_destroy(struct gw_engine *engine);
const struct gw_engine_info *gw_engine_info(const struct gw_engine *engine);

/* Into how many micro-batches, 1 or 2, a step of two or more sequences with a remote is cut from
 * now on. Two take turns: while one waits for the nodes the other is computed, for which every
 * matrix is read twice. 0: two where the device works beside its caller, one on the host, which
 * shares its cores and memory with what it waits for (bench/RESULTS.md, batch_bench). */
void gw_engine_micro_batches(struct gw_engine *engine, uint32_t micro_batches);

/* From now on balances that are kept in `folder` for this model go to the nodes when a sequence is
 * opened, whatever its prompt, and layers that none are kept of are measured once and kept. Files
 * that are missing, damaged or cannot be written are logged and change nothing else. Before the
 * first sequence. PP_MEMORY. */
PP_MUST_USE enum pp_status gw_engine_keep_balances(struct gw_engine *engine, const char *folder);

/* What of prefilled layers left beside the computing of others, since the engine is there. On a
 * device whose operations run behind their calls it is all but the last layer's. */
struct gw_overlap {
    uint64_t pieces;        /* that left: GW_BULK_TOKENS of a layer, or what is left of it */
    uint64_t pieces_beside; /* those that were asked for when the device had a later layer's work */
    uint64_t copy_wait_us;  /* waiting until a piece was copied */
};
void gw_engine_overlap(const struct gw_engine *engine, struct gw_overlap *out);

struct gw_sequence_options {
    struct gw_remote *remote; /* NULL: everything stays on the worker */
    struct pp_estimator estimator;
    const struct pp_estimator_range *ranges; /* layers with another one; read at open only */
    uint32_t range_count;
    bool nodes_plan;        /* nodes may attend exactly where they expect that to be cheaper */
    bool worker_signatures; /* prefill hashes the keys of lsh layers, not the nodes */
    /* prefill of GW_BALANCE_TOKENS or more measures what nodes balance a sketch with, unless it is
     * kept (gw_engine_keep_balances) */
    bool balance;
    const uint32_t *dense_layers; /* nodes attend these exactly; read at open only */
    uint32_t dense_layer_count;
    uint64_t hash_seed;
    uint64_t step_seed;       /* seeds of attends are drawn from it, one a step */
    uint64_t tokens_expected; /* at most tokens_max; sizes local K/V */
    /* So many of them are cut over the nodes and have memory kept there from the start; those
     * behind grow where there is room. 0: all. */
    uint64_t tokens_reserved;
    /* So many of a prefill's last tokens stay here besides the recent ones: for a mark before them.
     * They leave as steps go on behind them. */
    uint32_t tokens_kept;
    /* Nodes are asked a second time, exactly, and the step's stats say how far the answers were
     * apart. For measuring: the second answer is used for nothing else, and times contain it. */
    bool compare_exact;
    /* Nodes say how far off their answers may be, and the merged error is counted
     * (gw_sequence_errors) where the estimator is not exact. */
    bool errors;
    bool tune; /* it will be tuned: a prefill keeps some of its last queries for that */
};

/* PP_OUT_OF_RANGE when tokens_expected is above tokens_max; PP_MEMORY; errors of nodes. */
PP_MUST_USE enum pp_status gw_sequence_open(struct gw_engine *engine,
                                            const struct gw_sequence_options *options,
                                            struct gw_sequence **sequence_out);
void gw_sequence_close(struct gw_sequence *sequence);

enum gw_phase {
    GW_PHASE_PREFILL,
    GW_PHASE_STORE,
    GW_PHASE_INDEX,
    GW_PHASE_FILL,
    GW_PHASE_KEEP,
    GW_PHASE_TUNE
};
/* done of total: tokens x layers computed, filled or kept, tokens the nodes stored or indexed, or
 * layers tuned.
 * false ends what is being done: PP_CANCELLED. */
typedef bool gw_progress_fn(void *context, enum gw_phase phase, uint64_t done, uint64_t total);

/* Runs `count` tokens. logits_out [logit_rows][vocab] (host memory) gets the logits of the last
 * logit_rows tokens; NULL: none, they are drawn from only. With a remote it is the first thing a
 * sequence does and returns when the nodes have stored and indexed what left. PP_OUT_OF_RANGE past
 * tokens_expected, PP_INVALID_ARGUMENT on a bad id or count, PP_FAILED_PRECONDITION for a second
 * prefill with a remote. */
PP_MUST_USE enum pp_status gw_sequence_prefill(struct gw_sequence *sequence, const uint32_t *ids,
                                               uint32_t count, uint32_t logit_rows,
                                               float *logits_out, gw_progress_fn *progress,
                                               void *context);

/* Gives K and V of tokens [start, start + count): [count][kv heads] vectors of kv_dtype in host
 * memory, at most GW_BULK_TOKENS tokens at once. */
typedef enum pp_status gw_rows_fn(void *context, uint32_t layer, uint64_t start, uint32_t count,
                                  void *k_out, void *v_out);
/* Instead of a prefill: K and V of tokens from wherever `rows` has them. It is asked layer by
 * layer, in order, and from the first row of the first layer again when a node was lost meanwhile;
 * a status of its own ends the fill and the sequence. Otherwise as a prefill. */
struct gw_fill {
    uint64_t count; /* tokens */
    gw_rows_fn *rows;
    void *context;            /* rows' */
    const float *balances;    /* [layers][kv head][dim] of a sketch; NULL: none */
    const uint32_t *ids;      /* [count], copied: what is lost with a node can be computed again;
                                 NULL: it cannot */
    gw_progress_fn *progress; /* may be NULL */
    void *progress_context;
};
PP_MUST_USE enum pp_status gw_sequence_fill(struct gw_sequence *sequence,
                                            const struct gw_fill *from);

/* The rows of tokens [start, start + count) of a layer, count at most GW_BULK_TOKENS, from here and
 * from the nodes, as gw_rows_fn gives them. A node that is lost meanwhile is recovered from.
 * PP_OUT_OF_RANGE; errors of nodes end the sequence. */
PP_MUST_USE enum pp_status gw_sequence_read(struct gw_sequence *sequence, uint32_t layer,
                                            uint64_t start, uint32_t count, void *k_out,
                                            void *v_out);
/* What the nodes balance a layer's sketches with, [kv head][dim]; NULL: nothing. */
const float *gw_sequence_balance_of(const struct gw_sequence *sequence, uint32_t layer);

/* How nodes attend from the next step on: exactly, or as the sequence was opened, with any budget;
 * kind NONE: as it was opened, or as it was tuned when `tuned`. Another estimator than these is
 * refused by the nodes. */
void gw_sequence_use(struct gw_sequence *sequence, const struct pp_estimator *estimator,
                     bool tuned);

/* What tuning made of a layer. Errors are of answers merged with what is attended here. */
struct gw_tuning {
    struct pp_estimator used; /* kind NONE: as it was opened */
    struct pp_estimator
        proposed;     /* what would meet the error, lsh with other tables too; kind NONE:
                         nothing is sampled, too little is held, or nodes do not say */
    uint32_t queries; /* that it was tuned by */
    float rows_share, error, error_worst; /* predicted under `proposed`: median and worst head */
    float rows_share_now, error_now;      /* as it was opened */
};
/* After a prefill (opened with `tune`) or a fill: has the nodes say what each layer needs for
 * answers, merged with what is attended here, within `error` (above 0, at most 1), by some of the
 * prompt's last queries, else by those they were asked. From then on sketch layers read such a
 * share, and layers that nothing does it for, or not the tables that they were opened with, are
 * attended exactly. Nothing where nothing left the worker. A node that is lost meanwhile is
 * recovered from; a layer that nodes do not speak of stays as it was opened. PP_INVALID_ARGUMENT,
 * PP_CANCELLED, PP_MEMORY, errors of nodes. */
PP_MUST_USE enum pp_status gw_sequence_tune(struct gw_sequence *sequence, float error,
                                            gw_progress_fn *progress, void *context);
uint32_t gw_sequence_layers(const struct gw_sequence *sequence);
/* NULL: it was not tuned. */
const struct gw_tuning *gw_sequence_tuning(const struct gw_sequence *sequence, uint32_t layer);

/* Remembers the sequence as its first `length` tokens, all of which but those held by nodes must
 * still be here; a rewind makes it that again, whatever was run behind it, as often as wanted.
 * PP_OUT_OF_RANGE: tokens behind `length` have left already; PP_MEMORY. */
PP_MUST_USE enum pp_status gw_sequence_mark(struct gw_sequence *sequence, uint64_t length);
/* PP_FAILED_PRECONDITION without a mark; errors of nodes. */
PP_MUST_USE enum pp_status gw_sequence_rewind(struct gw_sequence *sequence);

/* Times of a step in microseconds and what its attends read, summed over layers. The times of a
 * step of several sequences are the same in all of them: of the whole step, but for a sequence's
 * own node_us and network_us. */
struct gw_step_stats {
    uint64_t steps; /* 1; sums of several steps add up */
    uint64_t total_us;
    uint64_t device_us;         /* computing here: total less wait */
    uint64_t wait_us;           /* waiting for nodes with nothing left to do */
    uint64_t device_wait_us;    /* of device_us: waiting for queries and partials of the device */
    uint64_t node_us;           /* the slowest node's own time */
    uint64_t network_us;        /* dispatch to last answer, less node_us */
    uint64_t attends;           /* layers that asked the nodes */
    uint64_t attends_estimated; /* of those, where the asked estimator was used */
    uint64_t keys_read;         /* rows a kv head, summed over kv heads */
    uint64_t keys_held;         /* the same, held by the nodes */
    uint64_t keys_read_q;       /* rows a q head, summed over q heads */
    uint64_t keys_held_q;       /* the same, held by the nodes */
    uint64_t keys_local;        /* the same, attended here */
    /* With compare_exact: |o' - o| / |o| of the nodes' merged answer against the exact one over the
     * same held tokens, summed over layers and q heads where the asked estimator was used. */
    double error_sum;
    uint64_t errors; /* how many it sums */
    /* The same of answers merged with what was attended here; how many of these had a target of
     * their estimator, and are within it; and, with `errors`, how many have an estimate that is not
     * zero, what it sums to, and how many are at most twice off what it says. */
    double merged_error_sum;
    uint64_t errors_targeted, errors_within, errors_estimated, errors_covered;
    double published_sum;
    /* Attends with such a flag of an answer, of any part. */
    uint64_t attends_empty, attends_uniform, attends_missed;
};
void gw_step_stats_add(struct gw_step_stats *sum, const struct gw_step_stats *step);

/* Runs one token; logits_out [vocab] may be NULL. Allocates nothing. stats may be NULL. */
PP_MUST_USE enum pp_status gw_sequence_step(struct gw_sequence *sequence, uint32_t id,
                                            float *logits_out, struct gw_step_stats *stats);

/* One sequence's part in a step of several. */
struct gw_step {
    struct gw_sequence *sequence;
    uint32_t id;                /* the token */
    float *logits_out;          /* [vocab]; may be NULL */
    struct gw_sampler *sampler; /* draws the next token, into `next`; may be NULL */
    uint32_t next;
    enum pp_status status;      /* what came of it, as gw_sequence_step has it */
    struct gw_step_stats stats; /* where it is PP_OK */
};
/* Runs one token of each of `count` different sequences of the engine: all go through a matrix at
 * one reading, each at its own position, and one message a node asks for all of them. What becomes
 * of one changes nothing for the others: where a node was lost they finish first, then those that
 * need it are recovered and run again. On the host device up to 6 sequences give bit for bit what
 * each gives alone; more, or on a GPU, what other sums of the same products give. Allocates
 * nothing. PP_INVALID_ARGUMENT: count is 0 or above GW_BATCH_MAX, a sequence is there twice or is
 * another engine's; nothing was run then. */
PP_MUST_USE enum pp_status gw_engine_step(struct gw_engine *engine, struct gw_step *steps,
                                          uint32_t count);
/* Draws the token behind what was run last in the engine, a prefill of this sequence with
 * logit_rows > 0 or a step of it alone; steps draw themselves where they have a sampler. The id
 * alone leaves the device. PP_FAILED_PRECONDITION, PP_NON_FINITE. */
PP_MUST_USE enum pp_status gw_sequence_draw(struct gw_sequence *sequence,
                                            struct gw_sampler *sampler, uint32_t *id_out);

/* How often a sequence went on after nodes were lost, what that took (within the times of steps and
 * prefill), and the tokens whose K/V was computed again, whole prefills apart. */
struct gw_recoveries {
    uint64_t count, total_us, longest_us, tokens_recomputed;
};
void gw_sequence_recoveries(const struct gw_sequence *sequence, struct gw_recoveries *out);

uint64_t gw_sequence_length(const struct gw_sequence *sequence);
/* Tokens of it that have left the worker for the nodes. */
uint64_t gw_sequence_left(const struct gw_sequence *sequence);
/* Errors of its answers, merged with what was attended here; NULL: not asked for. */
const struct gw_errors *gw_sequence_errors(const struct gw_sequence *sequence);
/* What the nodes said when a call failed; "" when nothing. */
const char *gw_sequence_error(const struct gw_sequence *sequence);
/* Parts that it is cut into on the nodes. */
uint32_t gw_sequence_parts(const struct gw_sequence *sequence);
/* Held tokens a node, [node count of the remote]. */
void gw_sequence_tokens_held(struct gw_sequence *sequence, uint64_t *tokens_out);

#endif
