/*
 * A service over a transport made of plain variables: tests push messages, see what was sent, make
 * the send queue full, keep payloads back and end calls, all on one thread. exec is the real one.
 */
#ifndef PIGPEN_TESTS_SERVICE_FAKE_H
#define PIGPEN_TESTS_SERVICE_FAKE_H

#include <stdlib.h>
#include <string.h>

#include "attn-node/service/internal.h"

#define FAKE_SENT_MAX    128u
#define FAKE_CALLS_MAX   (AN_CALLS_MAX + 8u)
#define FAKE_INCARNATION 0xabcdef0123456789ull

struct fake_sent {
    uint8_t *bytes;
    size_t count;
    struct pp_payload kept; /* release not called yet, when hold was set */
};

struct pp_call {
    const struct pp_call_events *events;
    void *context;
    bool armed, finished, ended, hold;
    uint32_t receives; /* how often armed */
    uint32_t room;     /* sends until PP_QUEUE */
    enum pp_status status;
    uint64_t retry_after_ms;
    char text[256];
    char peer[64]; /* empty: "fake" */
    struct fake_sent sent[FAKE_SENT_MAX];
    uint32_t sent_count;
};

struct fake {
    struct pp_transport transport;
    struct pp_server_config server;
    struct an_exec *exec;
    struct an_service *service;
    struct pp_stats stats;
    uint64_t now_us;
    uint32_t messages_out; /* received messages not released */
};

static struct fake fake;

static inline uint64_t fake_now(void *context)
{
    return ((struct fake *)context)->now_us;
}

static inline void fake_accept(struct pp_call *call, const struct pp_call_events *events,
                               void *context)
{
    call->events = events;
    call->context = context;
}

static inline enum pp_status fake_send(struct pp_call *call, const void *header,
                                       size_t header_bytes, const struct pp_payload *payload,
                                       bool last)
{
    (void)last;
    if (call->ended || call->finished) {
        return PP_CANCELLED;
    }
    if (call->room == 0 || call->sent_count == FAKE_SENT_MAX) {
        return PP_QUEUE;
    }
    --call->room;
    struct fake_sent *sent = &call->sent[call->sent_count];
    ++call->sent_count;
    size_t payload_bytes = payload != NULL ? payload->bytes : 0;
    sent->count = header_bytes + payload_bytes;
    sent->bytes = malloc(sent->count + 1);
    memcpy(sent->bytes, header, header_bytes);
    if (payload != NULL) {
        memcpy(sent->bytes + header_bytes, payload->data, payload_bytes);
        if (call->hold) {
            sent->kept = *payload;
        } else {
            payload->release(payload->context);
        }
    }
    return PP_OK;
}

static inline void fake_receive(struct pp_call *call)
{
    call->receives += call->armed ? 0 : 1;
    call->armed = true;
}

static inline void fake_finish(struct pp_call *call, enum pp_status status, const char *message,
                               uint64_t retry_after_ms)
{
    call->retry_after_ms = retry_after_ms;
    call->finished = true;
    call->status = status;
    snprintf(call->text, sizeof(call->text), "%s", message != NULL ? message : "");
}

static inline const char *fake_peer(struct pp_call *call)
{
    return call->peer[0] != '\0' ? call->peer : "fake";
}

static inline enum pp_status fake_server_start(struct pp_transport *transport,
                                               const struct pp_server_config *config, int *port_out)
{
    (void)transport;
    fake.server = *config;
    *port_out = 1;
    return PP_OK;
}

static inline void fake_wake(struct pp_transport *transport)
{
    (void)transport;
}

static const struct pp_transport_ops fake_ops = {
    .call_accept = fake_accept,
    .call_send = fake_send,
    .call_receive = fake_receive,
    .call_finish = fake_finish,
    .call_peer = fake_peer,
    .server_start = fake_server_start,
    .wake = fake_wake,
};

/* Runs until nothing moves. */
static inline void fake_run(void)
{
    for (uint32_t still = 0; still < 2; ++still) { /* a poll that took nothing may submit */
        uint32_t moved = an_exec_poll(fake.exec, 0);
        moved += an_service_poll(fake.service);
        still = moved > 0 ? 0 : still;
    }
}

static inline void fake_start(uint64_t memory_limit_bytes)
{
    memset(&fake, 0, sizeof(fake));
    fake.now_us = 1000;
    fake.transport.ops = &fake_ops;
    fake.transport.clock = (struct pp_clock){.now_us = fake_now, .context = &fake};
    assert_int_equal(PP_OK, pp_stats_init(&fake.stats, 1024));
    const struct an_exec_config exec = {
        .clock = fake.transport.clock,
        .memory_limit_bytes = memory_limit_bytes,
        .threads = 1,
        .seal_tokens = 1024,
        .index_tokens_min = 1024,
        .lease_us = 600000000,
        .build_sync = true,
        .queue_depth = 256,
        .stats = &fake.stats,
    };
    assert_int_equal(PP_OK, an_exec_new(&exec, &fake.exec));
    const struct an_service_config service = {
        .transport = &fake.transport,
        .exec = fake.exec,
        .clock = fake.transport.clock,
        .incarnation = FAKE_INCARNATION,
        .lease_us = 600000000,
        .memory_limit_bytes = memory_limit_bytes,
        .threads = 1,
        .node_name = "fake",
        .version = "0",
        .commit = "0",
        .isa = "any",
        .stats = &fake.stats,
    };
    int port;
    assert_int_equal(PP_OK, an_service_new(&service, &fake.service));
    assert_int_equal(PP_OK, an_service_listen(fake.service, "fake", NULL, &port));
}

static inline void fake_stop(void)
{
    fake_run();
    assert_true(an_service_idle(fake.service));
    assert_int_equal(0, fake.messages_out);
    an_service_destroy(fake.service);
    an_exec_destroy(fake.exec);
    pp_stats_deinit(&fake.stats);
}

static inline struct pp_call *fake_open_from(const char *path, const char *peer)
{
    for (size_t index = 0; index < fake.server.method_count; ++index) {
        if (strstr(fake.server.methods[index].path, path) != NULL &&
            strcmp(strrchr(fake.server.methods[index].path, '/') + 1, path) == 0) {
            struct pp_call *call = calloc(1, sizeof(*call));
            call->room = FAKE_SENT_MAX;
            snprintf(call->peer, sizeof(call->peer), "%s", peer);
            fake.server.methods[index].opened(fake.server.context, call);
            assert_non_null(call->events);
            return call;
        }
    }
    fail_msg("no method %s", path);
    return NULL;
}

static inline struct pp_call *fake_open(const char *path)
{
    return fake_open_from(path, "");
}

/* The call ends: the service is told, and what was sent is given up. */
static inline void fake_end(struct pp_call *call)
{
    call->ended = true;
    if (call->events->ended != NULL) {
        const struct pp_call_end end = {.status = call->finished ? PP_OK : PP_CANCELLED};
        call->events->ended(call->context, call, &end);
    }
    for (uint32_t index = 0; index < call->sent_count; ++index) {
        if (call->sent[index].kept.release != NULL) {
            call->sent[index].kept.release(call->sent[index].kept.context);
        }
        free(call->sent[index].bytes);
    }
    free(call);
}

struct fake_message {
    struct pp_message message;
    struct pp_piece pieces[1024];
    uint8_t bytes[];
};

static inline void fake_release(struct pp_message *message)
{
    --fake.messages_out;
    free(message);
}

/* Delivers a message in pieces of piece_bytes (0: one). The call must have asked for it. */
static inline void fake_push(struct pp_call *call, const ProtobufCMessage *request,
                             const void *payload, size_t payload_bytes, size_t piece_bytes)
{
    assert_true(call->armed);
    call->armed = false;
    size_t header_room = protobuf_c_message_get_packed_size(request) + 16;
    struct fake_message *made = malloc(sizeof(*made) + header_room + payload_bytes);
    size_t header_bytes = 0;
    assert_int_equal(
        PP_OK, pp_codec_pack(request, payload_bytes, made->bytes, header_room, &header_bytes));
    if (payload_bytes > 0) {
        memcpy(made->bytes + header_bytes, payload, payload_bytes);
    }
    size_t bytes = header_bytes + payload_bytes;
    size_t step = piece_bytes != 0 ? piece_bytes : bytes;
    made->message =
        (struct pp_message){.pieces = made->pieces, .bytes = bytes, .release = fake_release};
    for (size_t at = 0; at < bytes; at += step) {
        assert_true(made->message.piece_count < 1024);
        made->pieces[made->message.piece_count++] = (struct pp_piece){
            .data = made->bytes + at, .bytes = bytes - at < step ? bytes - at : step};
    }
    ++fake.messages_out;
    call->events->message(call->context, call, &made->message);
}

static inline void fake_half_close(struct pp_call *call)
{
    call->events->half_closed(call->context, call);
}

static inline void fake_writable(struct pp_call *call, uint32_t room)
{
    call->room = room;
    call->events->writable(call->context, call);
}

/* The index-th answer, unpacked; freed by protobuf_c_message_free_unpacked. */
static inline void *fake_answer(const struct pp_call *call, uint32_t index,
                                const ProtobufCMessageDescriptor *descriptor)
{
    assert_true(index < call->sent_count);
    ProtobufCMessage *answer = protobuf_c_message_unpack(descriptor, NULL, call->sent[index].count,
                                                         call->sent[index].bytes);
    assert_non_null(answer);
    return answer;
}

#endif
