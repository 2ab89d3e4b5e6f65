/*
 * The bounded buffers of a service: requests (a message in work: its job and the memory it is
 * unpacked into) and replies (memory that an answer is sent from without a copy). Three sizes each.
 * All address space is taken at new; pages are touched as they are used.
 * Threads: the rpc thread, but an_reply_release, which any thread may call.
 */
#ifndef PIGPEN_ATTN_NODE_SERVICE_POOL_H
#define PIGPEN_ATTN_NODE_SERVICE_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "attn-node/exec/exec.h"
#include "attn-node/service/decode.h"
#include "common/base/status.h"
#include "common/rpc/codec.h"
#include "common/rpc/transport.h"

enum an_size { AN_SMALL, AN_MEDIUM, AN_LARGE, AN_SIZES };

/* Largest message that a request of a size takes, and what it unpacks into: the message's payload
 * when it came in pieces, its header's objects (a 2-byte field may become 64 bytes), and the arrays
 * of the job (256 items of 256 bytes). */
#define AN_SMALL_MESSAGE_BYTES  (96u << 10)
#define AN_MEDIUM_MESSAGE_BYTES (2u << 20)
#define AN_LARGE_MESSAGE_BYTES  PP_MESSAGE_BYTES_MAX
#define AN_HEADER_ARENA_BYTES   (512u << 10)

#define AN_SMALL_REPLY_BYTES  (128u << 10)
#define AN_MEDIUM_REPLY_BYTES (2u << 20)
#define AN_LARGE_REPLY_BYTES  PP_MESSAGE_BYTES_MAX

/* Pieces of one ReadKv on their way at once: a slow reader takes no more buffers than these. */
#define AN_READ_PIECES 2u

struct an_pool;
struct an_service;
struct an_call;
struct an_method;

struct an_reply {
    struct an_reply *next;
    struct an_pool *pool;
    uint8_t *data; /* 64-byte aligned */
    uint64_t bytes_max;
    enum an_size size;
    uint64_t ticket; /* of this taking; never twice */
    _Atomic bool taken;
};

/* One message in work. */
struct an_request {
    struct an_job job; /* context is the request */
    struct an_service *service;
    struct an_call *call; /* NULL: the caller is gone, or the request is the service's own */
    const struct an_method *method;
    struct pp_message *message; /* held while the job reads its payload in place; may be NULL */
    struct pp_codec_arena arena;
    ProtobufCMessage *header; /* the request, unpacked into arena */
    struct pp_payload_view payload;
    struct pp_span pieces;  /* the payload of methods that take it so */
    struct an_reply *reply; /* the job's output, then the answer's payload; may be NULL */
    struct an_attend_plan plan;
    bool packed;             /* Attend: the outputs have been moved together in the reply */
    uint64_t read_end;       /* ReadKv */
    uint64_t read_row_bytes; /* ReadKv: of one token, K and V; 0: not asked yet */
    bool read_ready;         /* ReadKv: a piece waits for room in the send queue */
    struct an_read_slot {
        struct an_reply *reply;
        uint64_t ticket;
    } read_sent[AN_READ_PIECES]; /* ReadKv: pieces that may not have left yet */
    enum an_size size;
    struct an_request *next, *previous; /* in call->requests */
    struct an_request *next_queued;     /* free list, or call->unsent */
};

struct an_pool_counts {
    uint32_t requests[AN_SIZES];
    uint32_t replies[AN_SIZES];
};
struct an_pool_counts an_pool_counts(uint64_t memory_limit_bytes);
uint64_t an_pool_bytes(const struct an_pool_counts *counts);

PP_MUST_USE enum pp_status an_pool_new(const struct an_pool_counts *counts,
                                       struct an_pool **pool_out);
/* Everything taken from it has been given back. */
void an_pool_destroy(struct an_pool *pool);

/* The least free request that takes a message of these bytes; NULL: used up. */
struct an_request *an_pool_take_request(struct an_pool *pool, uint64_t message_bytes);
/* Gives its message, reply and memory back. */
void an_pool_give_request(struct an_pool *pool, struct an_request *request);
uint32_t an_pool_requests_taken(const struct an_pool *pool); /* any thread */

/* A reply of at least bytes (at most the largest); NULL: used up. */
struct an_reply *an_pool_take_reply(struct an_pool *pool, uint64_t bytes);
/* Any thread; fits pp_payload.release. Once only counts. */
void an_reply_release(void *reply);

#endif
