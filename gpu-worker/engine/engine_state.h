/*
 * Inside the engine: what it and its sequences are made of. Nothing outside this folder includes
 * it.
 */
#ifndef PIGPEN_GPU_WORKER_ENGINE_ENGINE_STATE_H
#define PIGPEN_GPU_WORKER_ENGINE_ENGINE_STATE_H

#include "gpu-worker/engine/engine.h"
#include "gpu-worker/ops/rope.h"

/* Rows of logits that are computed at once. */
#define GW_LOGIT_ROWS 16u

struct gw_layer {
    const float *attn_norm, *ffn_norm;     /* [hidden] */
    const float *q_bias, *k_bias, *v_bias; /* NULL: none */
    struct gw_matrix q, k, v, o, gate, up, down;
};

/* NULL members without a registry. */
struct gw_engine_stats {
    struct pp_stat *rel_err;                  /* of merged answers, each head's */
    struct pp_stat *empty, *uniform, *missed; /* attends with such a flag */
    struct pp_stat *keys_read, *keys_held;    /* of steps' attends */
};

struct gw_engine {
    struct gw_device *device;
    struct gw_engine_stats stats;
    struct gw_stream *stream;      /* of everything that is computed */
    struct gw_stream *copy_stream; /* of what leaves beside that */
    struct gw_event *reached;      /* by stream, where the host waits for it */
    struct gw_graph **graphs;      /* of the pieces of a step (graphs.c); NULL: without */
    struct gw_overlap overlap;
    struct pp_clock clock;
    struct gw_engine_info info;
    struct gw_heads heads;
    uint32_t ffn;
    uint32_t chunk_tokens, chunk_rows; /* of prefill, and of that or a step, whichever is more */
    uint32_t micro_batches;
    bool no_graphs;
    float norm_epsilon;
    struct gw_matrix embedding, output;
    const float *output_norm;
    struct gw_layer *layers; /* [shape.layers] */
    struct gw_rope_table rope;

    float *balances;       /* [layers][kv head][dim] kept ones, 0: none; NULL: none are kept */
    char *balances_folder; /* where */

    /* Activations of a chunk, on the device; `chunk` is chunk_rows, `batch` GW_BATCH_MAX: rows of a
     * step have their places there from its start to its end. */
    float *x;                 /* [batch][hidden]: the step's residual stream */
    float *normed;            /* [chunk][hidden] */
    float *q, *o;             /* [chunk][q heads][dim] */
    float *k, *v;             /* [chunk][kv heads][dim] */
    float *gate, *up;         /* [chunk][ffn] */
    float *logits;            /* [GW_LOGIT_ROWS][vocab] */
    float *lse;               /* [batch][q heads] */
    float *node_o, *node_lse; /* [batch][q heads][dim], [batch][q heads] */
    /* The host's side of attends, pinned: gw_row_host. Answers are the host's to write once the
     * queries that they answer were waited for: the copies of those before lie in front. */
    float *sent_q, *answer_o, *answer_lse;
    float *answer_var, *answer_lse_var; /* [batch][q heads] */
    float *local_o, *local_lse;         /* what was attended here */
};

/* A row of these, of a step's row. */
struct gw_row_host {
    float *sent_q, *answer_o, *local_o;                          /* [q heads][dim] */
    float *answer_lse, *answer_var, *answer_lse_var, *local_lse; /* [q heads] */
};
static inline struct gw_row_host gw_row_host(const struct gw_engine *engine, uint32_t row)
{
    uint64_t heads = (uint64_t)row * engine->heads.q_heads;
    uint64_t values = heads * engine->heads.head_dim;
    return (struct gw_row_host){engine->sent_q + values,    engine->answer_o + values,
                                engine->local_o + values,   engine->answer_lse + heads,
                                engine->answer_var + heads, engine->answer_lse_var + heads,
                                engine->local_lse + heads};
}

/* K/V of a layer that is here: the sink, then tokens PP_SINK_TOKENS + dropped onwards. */
struct gw_sequence_layer {
    void *k, *v; /* [row_capacity][kv heads] vectors of kv_dtype */
};

/* A sequence as it was: its counts, and the rows that were here and may leave or be overwritten. */
struct gw_mark {
    bool set;
    uint64_t length, handed, dropped;
    struct gw_sequence_layer *layers; /* [layers] of the marked rows; NULL without a remote */
};

/* Some of a prompt's last queries, of tokens GW_LATE_STRIDE apart, the last of which is the
 * prompt's last one that has no place among the kept ones. */
#define GW_LATE_ROWS   8u
#define GW_LATE_STRIDE 4u
struct gw_late {
    bool wanted;
    float *q;     /* [layers][GW_LATE_ROWS][q heads][dim] on the host; NULL: none are kept */
    uint64_t end; /* behind the position of the last */
};

struct gw_sequence {
    struct gw_engine *engine;
    uint32_t *ids;      /* [tokens_expected] of the tokens that were run here; NULL: local */
    uint64_t ids_known; /* the first so many are */
    struct gw_recoveries recoveries;
    struct gw_remote_sequence *remote; /* NULL: local */
    uint64_t tokens_expected;
    uint64_t step_seed;
    uint32_t tokens_kept;
    bool signatures; /* prefill makes those of lsh layers, not the nodes */
    bool balance;    /* nodes get that of sketch layers */
    struct pp_estimator
        estimator;             /* of attends; kind NONE: as tuned, or the remote sequence's own */
    struct gw_tuning *tunings; /* [layers]; NULL: not tuned */
    bool untuned;              /* tunings do not count now */
    struct gw_late late;       /* queries to tune by */
    uint64_t length;
    uint64_t handed;  /* tokens behind the sink given to the remote, every layer alike */
    uint64_t dropped; /* of those, no longer here: every layer acknowledged them */
    uint64_t row_capacity;
    uint64_t row_bytes; /* of K (or V) of a token, all kv heads */
    struct gw_sequence_layer *layers;
    struct gw_mark mark;
    float *exact_o, *exact_lse; /* [q heads][dim], [q heads] on the host; NULL: not compared */
    struct gw_errors *errors;   /* NULL: not asked for */
    bool broken;
};

static inline uint64_t gw_sequence_rows(const struct gw_sequence *sequence)
{
    return sequence->length - sequence->dropped;
}

/* Whether the nodes take a balance for a layer. */
static inline bool gw_sequence_balances(const struct gw_sequence *sequence, uint32_t layer)
{
    return sequence->balance && gw_remote_estimator(sequence->remote, layer)->kind == PP_SKETCH;
}

/* Tokens behind the sink that leave when a sequence starts with `count` tokens. */
uint64_t gw_sequence_leaving(const struct gw_sequence *sequence, uint64_t count);
void gw_mark_deinit(struct gw_sequence *sequence);

/* A layer's balance in the making: gpu-worker/engine/balance.c. */
struct gw_balance {
    double *q_squares, *k_squares; /* [kv head][dim] sums */
    float *centre, *values;        /* [kv head][dim] */
};
/* PP_MEMORY: nothing is taken. Deinit accepts a zeroed one. */
PP_MUST_USE enum pp_status gw_balance_init(const struct gw_heads *heads,
                                           struct gw_balance *balance_out);
void gw_balance_deinit(struct gw_balance *balance);
/* A new layer begins. */
void gw_balance_clear(struct gw_balance *balance, const struct gw_heads *heads);
/* Fills values from q_squares of the prompt and count > 0 rows of k. */
PP_MUST_USE enum pp_status gw_balance_measure(struct gw_engine *engine, struct gw_balance *balance,
                                              const void *k, uint64_t count);

/* What an attend of a layer asks for; kind NONE: as the sequence was opened. */
static inline const struct pp_estimator *gw_sequence_asks(const struct gw_sequence *sequence,
                                                          uint32_t layer)
{
    bool tuned = sequence->estimator.kind == PP_ESTIMATOR_NONE && sequence->tunings != NULL &&
                 !sequence->untuned;
    return tuned ? &sequence->tunings[layer].used : &sequence->estimator;
}

/* Tuning found the layer better attended exactly: it is none that samples. */
static inline bool gw_sequence_tuned_exact(const struct gw_sequence *sequence, uint32_t layer)
{
    const struct pp_estimator *asks = gw_sequence_asks(sequence, layer);
    return asks != &sequence->estimator && asks->kind == PP_EXACT;
}

/* The target error of a layer's attends; 0: none. */
static inline double gw_sequence_target(const struct gw_sequence *sequence, uint32_t layer)
{
    const struct pp_estimator *asks = gw_sequence_asks(sequence, layer);
    bool own = asks->kind == PP_ESTIMATOR_NONE;
    return (double)(own ? gw_remote_estimator(sequence->remote, layer)->target_error
                        : asks->target_error);
}

/* tune.c. A prefill of `count` tokens begins: room for its late queries where they are wanted and
 * something will leave. PP_MEMORY. */
PP_MUST_USE enum pp_status gw_late_begin(struct gw_sequence *sequence, uint64_t count);
/* Keeps those of a layer among engine->q [rows][q heads][dim] of the tokens from `position` on. */
PP_MUST_USE enum pp_status gw_late_keep(struct gw_sequence *sequence, uint32_t layer,
                                        uint64_t position, uint32_t rows);
void gw_late_deinit(struct gw_sequence *sequence);
/* graphs.c. Pieces of a step, by layer: from the answers of the layer before to this one's queries
 * (layer `layers`: to the end), and from there to what is attended here. What the engine's stream
 * is given between begin and end is one graph; end is called after every begin, with what failed.
 */
enum gw_piece { GW_PIECE_QUERIES, GW_PIECE_HERE };
#define GW_PIECES            2u
#define GW_MICRO_BATCHES_MAX 2u
PP_MUST_USE enum pp_status gw_engine_graphs_new(struct gw_engine *engine);
void gw_engine_graphs_destroy(struct gw_engine *engine);
PP_MUST_USE enum pp_status gw_engine_piece_begin(struct gw_engine *engine, uint32_t micro,
                                                 enum gw_piece piece, uint32_t layer);
PP_MUST_USE enum pp_status gw_engine_piece_end(struct gw_engine *engine, uint32_t micro,
                                               enum gw_piece piece, uint32_t layer,
                                               enum pp_status failed);

/* Marks where the engine's stream is, and waits until it was there: for no other stream, and for
 * nothing that it was given since. */
static inline enum pp_status gw_engine_mark(struct gw_engine *engine)
{
    return engine->device->ops->event_record(engine->device, engine->reached, engine->stream);
}
static inline enum pp_status gw_engine_wait(struct gw_engine *engine)
{
    return engine->device->ops->event_synchronize(engine->device, engine->reached);
}

/* step_layer.c. The partial of one row of q over the sink and the tokens from `held` behind it on
 * to `end`, into o and lse. Returns the rows it read in *rows_out. */
PP_MUST_USE enum pp_status gw_step_attend_here(struct gw_sequence *sequence, uint32_t layer,
                                               uint64_t held, uint64_t end, const float *q,
                                               float *o, float *lse, uint64_t *rows_out);
/* step_errors.c. Adds every head's published error of the nodes' answer to *nodes_out, and of that
 * merged with local_* to *merged_out, of the step's first row. */
void gw_step_add_published(const struct gw_engine *engine, double *nodes_out, double *merged_out);

/* What a step learns of errors: gpu-worker/engine/step_errors.c. Copies what was attended here for
 * rows [begin, begin + count) to their local_o and local_lse. */
PP_MUST_USE enum pp_status gw_step_take_local(struct gw_engine *engine, uint32_t begin,
                                              uint32_t count);
/* Series of the engine; stats may be NULL. */
void gw_engine_stats_init(struct pp_stats *stats, struct gw_engine_stats *own);
/* Counts the keys and the flags of an answer. */
void gw_step_count_answer(const struct gw_engine *engine, const struct gw_remote_answer *answer,
                          struct gw_step_stats *stats);
/* Counts the errors of a layer's answer merged with local_*. */
void gw_step_count_errors(struct gw_sequence *sequence, uint32_t row, uint32_t layer);
/* Asks for the attend that was just answered once more, exactly, and compares. */
PP_MUST_USE enum pp_status gw_step_compare(struct gw_sequence *sequence, uint32_t row,
                                           uint32_t layer, uint64_t held,
                                           struct gw_step_stats *stats);

/* The balance that is kept of a layer, NULL: none. */
float *gw_engine_balance(const struct gw_engine *engine, uint32_t layer);
/* A new sequence: gives the kept ones to the remote. */
PP_MUST_USE enum pp_status gw_balances_give(struct gw_sequence *sequence);
/* Keeps what a prefill measured of a layer; nothing where none are kept. */
void gw_balances_take(struct gw_engine *engine, uint32_t layer, const float *values);
/* Writes them to their file. */
void gw_balances_save(const struct gw_engine *engine);

/* Rows of a layer as the host sees them: what the remote takes and copies. */
struct gw_host_rows {
    const void *k, *v;
};
/* `bytes` of K and of V on the device, once they are computed. Valid until the next call. */
static inline enum pp_status gw_engine_view(struct gw_engine *engine, const void *k, const void *v,
                                            uint64_t bytes, struct gw_host_rows *rows_out)
{
    const struct gw_device_ops *ops = engine->device->ops;
    PP_TRY(ops->view(engine->device, engine->stream, 0, k, bytes, &rows_out->k));
    PP_TRY(ops->view(engine->device, engine->stream, 1, v, bytes, &rows_out->v));
    return ops->synchronize(engine->device, engine->stream);
}

/* x += W o, then x += FFN(norm(x)), for rows of o and x. */
enum pp_status gw_engine_finish_layer(struct gw_engine *engine, const struct gw_layer *layer,
                                      uint32_t rows, const float *o, float *x);
/* The same in stages 0 to GW_FINISH_STAGES - 1 of about equal work, in order. Only the first reads
 * o; up to the third nothing else may use normed, up to the last gate and up. */
#define GW_FINISH_STAGES 4u
enum pp_status gw_engine_finish_stage(struct gw_engine *engine, const struct gw_layer *layer,
                                      uint32_t rows, const float *o, float *x, uint32_t stage);
/* K and V of rows of `normed` at `position`, rounded into k_out and v_out (device). */
enum pp_status gw_engine_keys_values(struct gw_engine *engine, const struct gw_layer *layer,
                                     uint64_t position, uint32_t rows, void *k_out, void *v_out);
enum pp_status gw_engine_queries(struct gw_engine *engine, const struct gw_layer *layer,
                                 uint64_t position, uint32_t rows);
/* Logits of rows of x [rows][hidden], at most GW_LOGIT_ROWS, into engine->logits. */
enum pp_status gw_engine_logits_here(struct gw_engine *engine, const float *x, uint32_t rows);
/* Logits of rows > 0 of x [rows][hidden] to the host, none for NULL. The last row becomes
 * engine->x. */
enum pp_status gw_engine_logits(struct gw_engine *engine, const float *x, uint32_t rows,
                                float *logits_out);

/* The same of rows of several sequences: where each stands, and where its K, V or logits go; NULL:
 * nowhere. Logits of GW_LOGIT_ROWS rows at most. */
struct gw_place {
    uint64_t position;
    void *k, *v;
    float *logits;
};
enum pp_status gw_engine_queries_each(struct gw_engine *engine, const struct gw_layer *layer,
                                      const struct gw_place *places, uint32_t rows);
enum pp_status gw_engine_keys_values_each(struct gw_engine *engine, const struct gw_layer *layer,
                                          const struct gw_place *places, uint32_t rows);
enum pp_status gw_engine_logits_each(struct gw_engine *engine, const float *x,
                                     const struct gw_place *places, uint32_t rows);

/* recover.c. After `failed` came back from the remote: when a node was lost, brings the sequence to
 * where what failed can be done again, and PP_OK; else a failure that stays. cut: the parts are to
 * hold so many tokens only (a rewind that failed); UINT64_MAX: all. */
enum pp_status gw_sequence_recover(struct gw_sequence *sequence, enum pp_status failed,
                                   uint64_t cut);

/* recompute.c. Computes K and V of tokens [begin, end) behind the sink again and hands them over to
 * whichever part lacks them. PP_FAILED_PRECONDITION: the tokens are not known; PP_MEMORY; errors of
 * nodes. */
PP_MUST_USE enum pp_status gw_sequence_recompute(struct gw_sequence *sequence, uint64_t begin,
                                                 uint64_t end);

/* A recovery that began then is over. */
void gw_sequence_note_recovery(struct gw_sequence *sequence, uint64_t begin_us);

/* Hands over what is due, frees what is acknowledged; waits only when the rows are full. */
enum pp_status gw_sequence_leave(struct gw_sequence *sequence);

#endif
