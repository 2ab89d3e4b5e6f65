/*
 * The objects of a made-up network, for the tests of gpu-worker/remote: nodes and what they hold,
 * calls, and the events that wait for delivery, in order. What nodes do with a request:
 * remote_fake_node.h.
 */
#ifndef PIGPEN_TESTS_UNIT_REMOTE_FAKE_NET_H
#define PIGPEN_TESTS_UNIT_REMOTE_FAKE_NET_H

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/attn/estimators.h"
#include "common/rpc/transport.h"
#include "pigpen/v1/attention.pb-c.h"

#define FAKE_NODES     3u
#define FAKE_NODES_MAX 4u /* of a net; most tests use three */
#define FAKE_LAYERS    4u
#define FAKE_PARTS     8u
#define FAKE_LOG       (1u << 16)
#define FAKE_HOP_US    100u

/* What a node does with the next requests. */
enum fake_mode {
    FAKE_RIGHT,
    FAKE_OTHER_ID,
    FAKE_OTHER_INCARNATION,
    FAKE_OTHER_LAYER,
    FAKE_SHORT_VECTOR,
    FAKE_LONG_OFFSET,
    FAKE_NO_LSE,
    FAKE_NAN_LSE,
    FAKE_EMPTY_LSE,
    FAKE_INFINITE_O,
    FAKE_NEGATIVE_VAR,
    FAKE_OTHER_ROWS,
    FAKE_FEWER_TOKENS,
    FAKE_TWO_RESULTS,
    FAKE_ITEM_INTERNAL,
    FAKE_WHOLE_INTERNAL,
    FAKE_SILENT,
    FAKE_BREAK,       /* the stream ends */
    FAKE_BREAK_ONCE,  /* attend: it ends, and the next one does not */
    FAKE_GARBAGE,     /* bytes that are no message */
    FAKE_MEMORY,      /* append: refused */
    FAKE_CHECKSUM,    /* append: once asked again */
    FAKE_ACK_TOO_FAR, /* append: more than was sent */
    FAKE_LOSE_ACKS,   /* append: applied, stream ends without an answer */
    FAKE_OTHER_START, /* read: another row than the next one */
    FAKE_TOO_MANY,    /* read: more rows than are left */
    FAKE_BAD_SUM,     /* read: the checksum of other bytes */
    FAKE_EARLY_END,   /* read: the stream ends well before its last row */
};

struct fake_part {
    /* Of the last append that was stored. */
    uint64_t segment_begin, segment_count, section_offsets[4], section_bytes[4];
    uint32_t section_count;
    Pigpen__V1__SectionKind section_kinds[4];
    uint64_t handle, generation;
    uint64_t held[FAKE_LAYERS];
    uint8_t rows[FAKE_LAYERS][FAKE_LOG]; /* K and V of each message one after the other */
    uint64_t row_bytes[FAKE_LAYERS];
    uint32_t kv_head_begin, kv_head_count;
    uint64_t reserve_tokens, token_begin;
    struct pp_layer_estimator own[FAKE_LAYERS]; /* that the open named */
    uint32_t own_count;
    bool open;
};

struct fake_node {
    uint64_t incarnation;
    float constant;
    enum fake_mode attend_mode, append_mode, read_mode;
    bool down; /* every call ends with PP_UNAVAILABLE */
    struct fake_part parts[FAKE_PARTS];
    uint32_t part_count, appends, in_flight, in_flight_max, closes, renewals, streams;
    bool hold_acks;       /* appends are applied when released */
    uint32_t attends;     /* messages, whatever they ask */
    uint32_t right_items; /* of each, before those that FAKE_ITEM_INTERNAL refuses */
    bool saw_signatures;
    uint64_t signature_bytes;  /* of the last attend */
    struct pp_estimator asked; /* by it; kind NONE: none */
    uint64_t lease_ms;
    uint64_t memory_bytes, free_bytes; /* as it says; 0: it does not */
    uint64_t reserve_tokens_max;       /* 0: no bound */
    uint64_t rows_max; /* of all layers and parts, kept ones too; the rest of it is what is free as
                          it says where memory_bytes is not 0; 0: no bound */
    /* TunePart: how often it is busy first, what it proposes then, and how it goes wrong. */
    uint32_t tunes, tune_busy;
    enum fake_mode tune_mode;
    struct pp_estimator tune_estimator; /* kind NONE: it has nothing to say */
    float tune_share, tune_target;      /* its prediction; what it was asked for last */
    bool tune_dense;
    bool samples;      /* all held tokens, where the asker wants to know what was */
    float sampled_log; /* LSE of them, above the log of their number */
};

struct fake_event {
    struct fake_event *next;
    struct pp_call *call;
    bool ends;
    struct pp_call_end end;
    struct pp_piece piece;
    struct pp_message message;
    uint8_t bytes[];
};

struct pp_call {
    struct pp_channel *channel;
    char path[64];
    struct pp_call_events events;
    void *context;
    bool gone;
    struct pp_call *next;
};

struct pp_channel {
    struct fake_net *net;
    struct fake_node *node;
    struct pp_call *calls;
};

typedef void fake_saw_attend_fn(void *context, const struct fake_part *part,
                                const Pigpen__V1__AttendRequest *request, uint32_t index);

struct fake_net {
    struct pp_transport transport;
    _Atomic uint64_t now_us; /* a remote with a thread reads it on both */
    struct fake_node nodes[FAKE_NODES_MAX];
    fake_saw_attend_fn *saw_attend; /* told of every part that is asked; may be NULL */
    void *saw_context;
    struct fake_event *first, *last;
    uint32_t calls_open;
    uint64_t patience_min_us; /* the least any call was given since this was set */
};

static inline uint64_t fake_now(void *context)
{
    return ((struct fake_net *)context)->now_us;
}

static inline void fake_push(struct fake_net *net, struct fake_event *event)
{
    event->next = NULL;
    if (net->last != NULL) {
        net->last->next = event;
    } else {
        net->first = event;
    }
    net->last = event;
}

static inline void fake_end(struct pp_call *call, enum pp_status status, const char *message)
{
    struct fake_event *event = calloc(1, sizeof(*event));
    event->call = call;
    event->ends = true;
    event->end = (struct pp_call_end){.status = status, .message = message};
    fake_push(call->channel->net, event);
}

static inline void fake_release(struct pp_message *message)
{
    free((char *)message - offsetof(struct fake_event, message));
}

static inline void fake_reply_bytes(struct pp_call *call, const void *bytes, size_t count)
{
    struct fake_event *event = calloc(1, sizeof(*event) + count + 1);
    memcpy(event->bytes, bytes, count);
    event->call = call;
    event->piece = (struct pp_piece){event->bytes, count};
    event->message = (struct pp_message){&event->piece, 1, count, fake_release};
    fake_push(call->channel->net, event);
}

static inline void fake_reply(struct pp_call *call, const ProtobufCMessage *answer)
{
    size_t bytes = protobuf_c_message_get_packed_size(answer);
    uint8_t *packed = malloc(bytes + 1);
    protobuf_c_message_pack(answer, packed);
    fake_reply_bytes(call, packed, bytes);
    free(packed);
}

static inline void fake_finish(struct pp_call *call, const ProtobufCMessage *answer)
{
    fake_reply(call, answer);
    fake_end(call, PP_OK, "");
}

static inline struct fake_part *fake_find(struct fake_node *node, uint64_t handle)
{
    for (uint32_t i = 0; i < node->part_count; ++i) {
        if (node->parts[i].handle == handle && node->parts[i].open) {
            return &node->parts[i];
        }
    }
    return NULL;
}

#endif
