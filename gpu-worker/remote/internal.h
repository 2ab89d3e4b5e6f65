/*
 * What the files of gpu-worker/remote share: the objects behind remote.h and who owns which field.
 * It refuses to be included from outside the folder (tests excepted).
 *
 * Ownership: [engine] fields are touched by the engine thread, [rpc] fields by the rpc thread,
 * atomics by both; everything else is written once before it is shared. A command is handed over by
 * gw_remote_post and belongs to the rpc thread until it says that it is done.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_INTERNAL_H
#define PIGPEN_GPU_WORKER_REMOTE_INTERNAL_H

#include <stdatomic.h>

#include "common/attn/hash.h"
#include "common/rpc/codec.h"
#include "common/run/ring.h"
#include "common/run/thread.h"
#include "gpu-worker/remote/node_state.h"
#include "gpu-worker/remote/remote.h"
#include "gpu-worker/remote/route.h"
#include "pigpen/v1/attention.pb-c.h"

#define GW_ERROR_BYTES  320u
#define GW_HEADER_BYTES 1536u /* attend: 64 seeds of 8 bytes, sections, numbers */
#define GW_REQUESTS     3u
/* Parts that one message asks; a header of so many, all of them with the most there can be. */
#define GW_ATTEND_ITEMS_MAX      PP_PAYLOADS_MAX
#define GW_HEADER_TOGETHER_BYTES (GW_ATTEND_ITEMS_MAX * GW_HEADER_BYTES)
/* Parts of a sequence on all nodes, those lost since the last recovery too. */
#define GW_SEQUENCE_PARTS_MAX (2u * GW_NODES_MAX * GW_REPLICAS_MAX)

/* A wait of the engine thread spins this long, then sleeps until the rpc thread wakes it. */
#define GW_WAIT_SPIN_US 50u
/* One pause of a wait lasts this long at most: a lost wake costs no more. */
#define GW_WAIT_PAUSE_US 20000u

struct gw_node;
struct gw_part;
struct gw_refill;
struct gw_budgets;

/* Work for the rpc thread. */
struct gw_command {
    void (*run)(struct gw_remote *remote, struct gw_command *command);
};

/* Bytes that the transport may still be sending after their owner is gone. */
struct gw_buffer {
    _Atomic uint32_t refs;
    uint64_t bytes;
    uint8_t data[];
};

/* One message of K/V on its way to one part, in the outbox ring; the payload follows the struct. */
struct gw_chunk {
    struct gw_command command;
    struct gw_outbox_memory *memory;
    uint64_t ring_bytes;   /* of the ring, this struct included */
    _Atomic uint32_t refs; /* the queue's, and one a running send; 0: the bytes may be reused */
    struct gw_part *part;
    struct gw_chunk *next; /* [rpc] in the node's queue */
    uint64_t request_id;
    uint32_t layer;
    uint64_t start, end; /* held indices within the part */
    uint32_t header_bytes;
    uint8_t header[192];
    uint64_t payload_bytes;
    uint8_t *payload;
};

/* The K/V that waits for acknowledgement: a ring of bytes. Taken by the engine thread in order;
 * freed in any order by dropping references; the engine thread moves the end over freed chunks. It
 * lives until the last reference is gone, also past gw_remote_destroy. */
struct gw_outbox_memory {
    _Atomic uint32_t refs; /* the remote's, and one a running send */
    uint64_t capacity;
    uint64_t head, tail; /* [engine] bytes ever taken and given back */
    uint8_t *base;
};

/* One attend of one part: what any node that holds the part may be asked, and the first right
 * answer. Made once with the sequence. */
struct gw_dispatch {
    struct gw_command command;
    struct gw_set *set;
    struct gw_dispatch *next; /* started at once with this one; read before this one is started */
    bool waiting;             /* [rpc] nobody has answered yet */
    uint32_t layer, q_rows, q_heads, head_dim, kv_heads;
    uint64_t held_tokens;
    enum pp_estimator_kind asked; /* NONE: nothing that could count as used */
    bool errors, sampled;         /* asked for */
    const float *shares;          /* [engine] [share_count] of its kv heads; see budget.h */
    uint32_t share_count;
    /* [engine] The q rows; several, as senders may still hold some. */
    struct gw_buffer *requests[GW_REQUESTS];
    struct gw_buffer *sending;
    uint64_t payload_bytes;
    /* the answer: written by the rpc thread before it counts the dispatch as done */
    float *o, *lse, *var, *lse_var; /* [q row][q head of the part] (x [dim]) */
    float *lse_sampled;             /* where keys_sampled > 0 */
    uint32_t *keys_read_head;
    uint32_t rows_capacity;
    uint64_t keys_read, node_us, answered_us;
    uint64_t keys_sampled; /* 0 where it was not asked for */
    uint32_t flags;
    enum pp_estimator_kind used;
};

/* A dispatch as one node is asked it. The engine thread fills it in before the dispatch is handed
 * over; from then on until that is done it is the rpc thread's. */
struct gw_ask {
    struct gw_ask *next;  /* in the node's list of waiting ones, oldest first */
    bool waiting;         /* it is in that list */
    bool ready;           /* the header is that of the dispatch at hand */
    bool held_back;       /* to be sent in one message with others */
    bool sent_again;      /* on another stream, as the first broke */
    struct pp_call *call; /* the stream; NULL: not sent */
    enum pp_status send_status;
    uint64_t own_id;      /* of the header */
    uint64_t request_id;  /* of the message that it was sent in */
    uint32_t item, items; /* its place in that, and how many there are */
    uint64_t sent_us, deadline_us;
    uint32_t header_bytes;
    uint8_t header[GW_HEADER_BYTES];
};

/* A part on one node. */
struct gw_part {
    struct gw_remote_sequence *sequence;
    struct gw_node *node;
    uint32_t index; /* of the part in the route; other nodes may hold it too */
    uint64_t handle, incarnation, lease_us;
    uint64_t reserved_tokens; /* [engine] that the node keeps memory for */
    bool full;                /* [rpc] rows were refused; read when the sequence has failed */
    _Atomic bool lost;        /* set by the rpc thread, for good */
    _Atomic uint64_t *acked;  /* [layers] tokens acknowledged in order */
    uint64_t *sent;           /* [layers] [rpc] end of the last chunk queued */
    uint64_t *queued;         /* [layers] [engine] tokens handed over */
    struct gw_ask ask;
};

/* The nodes that hold a part. The rpc thread's; the engine thread goes by sequence->parts. */
struct gw_set {
    struct gw_remote_sequence *sequence;
    uint32_t index;                           /* of the part in the route */
    struct gw_part *members[GW_REPLICAS_MAX]; /* none of them lost; the first is asked first */
    uint32_t member_count;
    uint64_t hedge_us; /* when another member is asked too */
    struct gw_dispatch dispatch;
};

struct gw_remote_sequence {
    struct gw_remote *remote;
    struct gw_remote_sequence *next; /* [rpc] of the open ones */
    bool enlisted;                   /* [engine] */
    struct gw_remote_sequence_config config;
    uint32_t *dense_layers;
    uint8_t id[PP_ID_BYTES];
    uint64_t generation;    /* [engine]; only changed while nothing is in flight */
    struct gw_route route;  /* [engine]; spans and their number only change on the rpc thread */
    struct gw_set *sets;    /* [GW_NODES_MAX], route.part_count of them in use */
    struct gw_part **parts; /* [engine] of all nodes, lost ones too */
    uint32_t part_count;
    struct gw_refill *refill;        /* [engine] NULL: nothing was ever copied */
    uint64_t *handed;                /* [layers] [engine] */
    _Atomic uint64_t *held;          /* [layers] */
    struct pp_estimators estimators; /* resolved */
    struct pp_hash **hashes; /* [layers] of queries; NULL unless lsh; equal k and l share one */
    float *balances; /* [engine] [layers][kv head][dim], 0: none; NULL unless a layer is sketch */
    struct gw_budgets *budgets; /* [engine] NULL: nothing is divided */
    _Atomic uint32_t chunks_waiting, dispatches_waiting;
    uint64_t grow_us; /* [engine] not before is growth elsewhere tried again */
    bool attending;   /* [engine] */
    struct gw_remote_attend attend;
    uint64_t attend_begun_us;
    uint64_t renew_us; /* [rpc] when leases are renewed next */
    /* Nodes, by bits, that had no room for its rows, and when the last one said so. */
    _Atomic uint64_t refused, refused_us;
    _Atomic int failed; /* enum pp_status; the first failure stays until it is recovered from */
    bool recoverable;   /* it failed because no node is left that holds a part */
    char error[GW_ERROR_BYTES];
};

/* A unary call. Owned by whoever waits for it, or by the rpc thread when `orphan`. */
struct gw_unary {
    struct gw_command command;
    struct gw_node *node;
    struct gw_unary *next; /* [rpc] of the running ones */
    const char *path;
    uint64_t timeout_us, deadline_us;
    uint8_t *request;
    size_t request_bytes;
    const ProtobufCMessageDescriptor *answer_type;
    /* rpc thread; a status other than PP_OK refuses the answer. */
    enum pp_status (*answered)(struct gw_unary *unary, const ProtobufCMessage *answer);
    void *context; /* answered's */
    struct pp_call *call;
    bool has_answer, orphan, timed_out;
    struct gw_part *part; /* may be NULL; orphans: NULL when the sequence has gone */
    enum pp_status status;
    char message[160];
    _Atomic bool done;
};

struct gw_node_limits {
    uint64_t message_bytes_max;
    uint32_t q_rows_max, stream_window;
};

/* Too few to tell what one of a hundred takes. */
#define GW_FIRST_ANSWERS 100u

struct gw_node {
    struct gw_remote *remote;
    uint32_t index;
    struct gw_node_address address;
    struct pp_channel *latency, *bulk;
    /* [rpc], read by the engine thread after a unary call is done */
    uint64_t incarnation;
    struct gw_node_limits limits;
    bool serving, known;
    _Atomic uint64_t memory_bytes; /* as it said; 0: it did not */
    _Atomic uint64_t free_bytes;   /* of that, as it said last */
    _Atomic uint64_t joined_us;    /* when it came into use while the worker ran; 0: at the start */
    char missing[200];             /* [engine] why the last probe failed */
    /* attends [rpc] */
    struct pp_call *attend_call;
    struct gw_ask *waiting_first, *waiting_last;
    bool renew_attend;  /* the stream may hold requests: another one when nobody waits */
    uint64_t silent_us; /* since when it owes an answer that somebody else gave; 0: it does not */
    uint64_t slow_us;   /* what one of a hundred answers takes, about */
    uint32_t answers;   /* that slow_us is of, at most GW_FIRST_ANSWERS */
    /* whether new parts may come here */
    _Atomic bool out;
    _Atomic bool draining;      /* parts on it are to move; then it is out */
    struct gw_node_state state; /* [rpc] */
    uint64_t info_us;           /* [rpc] when it is asked next what it has free; 0: at once */
    bool gone; /* no longer in the list of nodes; changed while the engine thread waits */
    /* appends [rpc]: one list, sent ones first */
    struct pp_call *append_call;
    struct gw_chunk *queue_first, *queue_last, *unsent;
    uint32_t in_flight;
    bool renew_bulk;    /* the stream's rows may be stuck: another connection at the next tick */
    uint32_t abandoned; /* sent, dropped, and not answered */
    uint64_t owed_us;   /* with abandoned ones: when the node must have answered something */
    uint64_t stall_us, reopen_us;
    enum pp_status append_status; /* why the stream ended last */
    char append_message[120];
    struct pp_stat *up, *rtt;
    char labels[352]; /* name and address: a name that moves is another node */
};

struct gw_remote {
    struct gw_remote_config config;
    struct gw_node *nodes;
    struct pp_ring *commands; /* engine to rpc */
    struct pp_ring *events;   /* never filled: its wake is the engine thread's */
    struct pp_thread *thread;
    bool threaded; /* written while no rpc thread runs */
    struct gw_outbox_memory *outbox;
    struct pp_codec_arena arena;                /* [rpc] */
    struct gw_unary *unaries;                   /* [rpc] running */
    struct gw_remote_sequence *sequences;       /* [rpc] */
    uint64_t next_request_id;                   /* [engine] */
    uint64_t next_together;                     /* [rpc] of messages that ask several parts */
    bool together_waits;                        /* [rpc] requests are held back */
    uint8_t together[GW_HEADER_TOGETHER_BYTES]; /* [rpc] the header of one */
    uint64_t turn;                              /* [engine] sequences opened */
    struct pp_stat *late_answers, *failures, *outbox_bytes, *append_resends;
    struct pp_stat *parts_lost, *parts_behind, *hedges, *parts_copied, *parts_grown;
    uint64_t copied; /* [engine] parts, since the start */
};

static inline uint64_t gw_remote_now(const struct gw_remote *remote)
{
    return pp_clock_now_us(&remote->config.clock);
}

/* remote.c: hands a command over; without a thread it runs at once. */
void gw_remote_post(struct gw_remote *remote, struct gw_command *command);
/* Series of a node; its address is known. */
void gw_remote_register_node(struct gw_remote *remote, struct gw_node *node);
/* Engine thread: lets the rpc side go on until something may have changed. */
void gw_remote_pause(struct gw_remote *remote, uint64_t until_us);
/* Any thread: something has changed for the engine thread. */
void gw_remote_signal(struct gw_remote *remote);

/* set.c. The rpc thread: the part on this node is lost; its waiting ask and queued chunks are
 * dropped. Another member of its set goes on; without one, or when the fault is not the node's, the
 * sequence fails: its dispatches and chunks are dropped, and the first error stays. */
__attribute__((format(printf, 3, 4))) void gw_part_fail(struct gw_part *part, enum pp_status status,
                                                        const char *format, ...);
/* The rpc thread: the node has no room for the part's next rows, and keeps those that it has. */
void gw_part_full(struct gw_part *part, const char *message);
/* The engine thread: set `index` of the sequence, new or once more, without members. PP_MEMORY. */
PP_MUST_USE enum pp_status gw_set_init(struct gw_remote_sequence *sequence, uint32_t index);
/* The same as gw_part_fail from the engine thread, which waits until it is done. */
void gw_part_fail_from_engine(struct gw_part *part, enum pp_status status, const char *what,
                              const char *message);
/* The rpc thread: the node is known not to answer: parts that another node holds too are no longer
 * on it, also those that nobody waits for. */
void gw_sets_leave_node(struct gw_node *node);
/* The rpc thread: the part is no longer on this node, which is no failure. It is no member of its
 * set, or not the only one: nobody would answer for the part. */
void gw_part_leave(struct gw_part *part);
/* Any thread: nodes, by bits, that had no room for the sequence's rows some seconds ago: they get
 * no part of it now. */
uint64_t gw_sequence_refused(const struct gw_remote_sequence *sequence);
/* recover.c. The engine thread: frees parts that are lost; the route no longer names them. */
void gw_sequence_purge(struct gw_remote_sequence *sequence);
/* The rpc thread: a set's dispatch was answered by this member; others are no longer waited for. */
void gw_set_answered(struct gw_part *part);
/* The rpc thread: the body of a dispatch's command. */
void gw_set_run(struct gw_remote *remote, struct gw_command *command);
/* The rpc thread: asks a further member where the first is slow. Returns when to call next. */
uint64_t gw_set_tick(struct gw_remote_sequence *sequence, uint64_t now_us);
/* The rpc thread: what every set of the sequence has acknowledged of a layer. */
void gw_set_count_held(struct gw_remote_sequence *sequence, uint32_t layer);
/* The rpc thread: nothing of the sequence is on its way any more. */
void gw_sequence_drop_all(struct gw_remote_sequence *sequence);
/* remote.c. The engine thread has something run on the rpc thread and waits until it has. */
void gw_remote_run(struct gw_remote *remote, void (*body)(void *context), void *context);
static inline enum pp_status gw_sequence_failed(const struct gw_remote_sequence *sequence)
{
    return (enum pp_status)atomic_load_explicit(&sequence->failed, memory_order_acquire);
}
/* rpc thread: renews leases that are due. Returns when it must be called next. */
uint64_t gw_sequence_tick(struct gw_remote *remote, uint64_t now_us);

struct gw_buffer *gw_buffer_new(uint64_t bytes); /* NULL: no memory; one reference */
void gw_buffer_release(void *buffer);            /* drops a reference; any thread */

#endif
