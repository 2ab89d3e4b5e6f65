/*
 * Attends and appends against a real attn-node, one layer, 32 q and 8 kv heads, d = 128, bf16: a
 * token is 4 KiB of K and V, a message 256 tokens = 1 MiB. A part is dropped every 128 messages, so
 * that memory does not grow. Refuses to know how nodes hold what they are sent.
 */
#include "bench/rpc_bench_node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_common.h"
#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/rng.h"
#include "common/rpc/codec.h"
#include "pigpen/v1/attention.pb-c.h"

#define SERVICE        "/pigpen.v1.AttentionService/"
#define Q_HEADS        32u
#define KV_HEADS       8u
#define DIM            128u
#define TOKEN_BYTES    (2u * KV_HEADS * DIM * 2u)
#define MESSAGE_TOKENS 256u
#define MESSAGE_BYTES  (MESSAGE_TOKENS * TOKEN_BYTES)
#define BLOCK_MESSAGES 128u
#define ATTEND_TOKENS  16u
#define WAIT_US        30000000u

/* What all calls share. */
static struct {
    struct pp_transport *transport;
    struct pp_channel *latency;
    struct pp_channel *bulk;
    struct bench_node process;
    Pigpen__V1__PartRef part; /* for attends */
} node;

/* One call and its last answer. */
struct exchange {
    struct pp_call *call;
    struct pp_codec_arena arena;
    const ProtobufCMessageDescriptor *descriptor; /* of answers */
    ProtobufCMessage *answer;                     /* the last one, until the arena's reset */
    uint64_t answers;
    bool ended;
    enum pp_status status;
    bool writable;
    uint64_t held; /* of the last append's answer */
};
/* They outlive calls that end with the transport. */
static struct exchange unary, appending, attending;

static uint8_t *zeros;     /* MESSAGE_BYTES, never freed */
static uint32_t zeros_crc; /* of MESSAGE_BYTES */

static void on_message(void *context, struct pp_call *call, struct pp_message *message)
{
    struct exchange *self = context;
    struct pp_payload_view payload;
    pp_codec_arena_reset(&self->arena);
    enum pp_status status =
        pp_codec_unpack(message, self->descriptor, &self->arena, &self->answer, &payload);
    if (status != PP_OK) {
        self->status = status;
    } else if (self->descriptor == &pigpen__v1__append_kv_response__descriptor) {
        const Pigpen__V1__AppendKvResponse *append =
            (const Pigpen__V1__AppendKvResponse *)self->answer;
        self->held = append->held_tokens;
        if (append->status != NULL && append->status->code != 0) {
            self->status = pp_status_from_wire((int)append->status->code, append->status->reason);
        }
    }
    ++self->answers;
    pp_message_release(message);
    node.transport->ops->call_receive(call);
}

static void on_writable(void *context, struct pp_call *call)
{
    (void)call;
    ((struct exchange *)context)->writable = true;
}

static void on_ended(void *context, struct pp_call *call, const struct pp_call_end *end)
{
    (void)call;
    struct exchange *self = context;
    self->ended = true;
    self->status = end->status;
    bool awaited = end->status == PP_CANCELLED || end->status == PP_STARTING ||
                   (end->status == PP_MEMORY && self == &unary);
    if (end->status != PP_OK && !awaited) {
        fprintf(stderr, "rpc_bench: node: %s %s\n", pp_status_name(end->status), end->message);
    }
}

static const struct pp_call_events call_events = {
    .message = on_message, .writable = on_writable, .ended = on_ended};

static void keep(void *context)
{
    (void)context;
}

static enum pp_status open_call(struct exchange *self, struct pp_channel *channel, const char *path,
                                enum pp_call_kind kind,
                                const ProtobufCMessageDescriptor *descriptor)
{
    self->descriptor = descriptor;
    self->ended = false;
    self->status = PP_OK;
    PP_TRY(
        node.transport->ops->call_start(channel, path, kind, 0, &call_events, self, &self->call));
    node.transport->ops->call_receive(self->call);
    return PP_OK;
}

/* PP_QUEUE: no room; writable says when there is. */
static enum pp_status try_say(struct exchange *self, const ProtobufCMessage *message,
                              size_t payload_bytes)
{
    uint8_t header[512];
    size_t bytes = 0;
    struct pp_payload payload = {zeros, payload_bytes, keep, NULL, NULL};
    PP_TRY(pp_codec_pack(message, payload_bytes, header, sizeof(header), &bytes));
    self->writable = false;
    return node.transport->ops->call_send(self->call, header, bytes,
                                          payload_bytes != 0 ? &payload : NULL, false);
}

static enum pp_status ask(struct pp_channel *channel, const char *path,
                          const ProtobufCMessage *request,
                          const ProtobufCMessageDescriptor *descriptor)
{
    PP_TRY(open_call(&unary, channel, path, PP_CALL_UNARY, descriptor));
    PP_TRY(try_say(&unary, request, 0));
    while (!unary.ended) {
        node.transport->ops->poll(node.transport, UINT64_MAX);
    }
    return unary.status;
}

static enum pp_status open_part(uint64_t reserve_bytes, Pigpen__V1__PartRef *part_out)
{
    static uint8_t ids[2][16];
    PP_TRY(pp_rng_system(ids, sizeof(ids)));
    Pigpen__V1__Model model = PIGPEN__V1__MODEL__INIT;
    Pigpen__V1__Estimator estimator = PIGPEN__V1__ESTIMATOR__INIT;
    Pigpen__V1__OpenPartRequest request = PIGPEN__V1__OPEN_PART_REQUEST__INIT;
    static uint8_t fingerprint[] = "rpc_bench";
    model.fingerprint = (ProtobufCBinaryData){sizeof(fingerprint), fingerprint};
    model.layers = 1;
    model.q_heads = Q_HEADS;
    model.kv_heads = KV_HEADS;
    model.head_dim = DIM;
    model.kv_dtype = PIGPEN__V1__DTYPE__DTYPE_BF16;
    estimator.kind = PIGPEN__V1__ESTIMATOR_KIND__ESTIMATOR_KIND_EXACT;
    request.sequence_id = (ProtobufCBinaryData){16, ids[0]};
    request.part_id = (ProtobufCBinaryData){16, ids[1]};
    request.model = &model;
    request.kv_head_count = KV_HEADS;
    request.estimator = &estimator;
    request.reserve_bytes = reserve_bytes;
    PP_TRY(ask(node.latency, SERVICE "OpenPart", &request.base,
               &pigpen__v1__open_part_response__descriptor));
    const Pigpen__V1__OpenPartResponse *answer = (const Pigpen__V1__OpenPartResponse *)unary.answer;
    part_out->handle = answer->handle;
    part_out->incarnation = answer->incarnation;
    part_out->generation = answer->generation;
    return PP_OK;
}

static enum pp_status close_part(Pigpen__V1__PartRef *part)
{
    Pigpen__V1__ClosePartRequest request = PIGPEN__V1__CLOSE_PART_REQUEST__INIT;
    request.part = part;
    return ask(node.latency, SERVICE "ClosePart", &request.base,
               &pigpen__v1__close_part_response__descriptor);
}

static enum pp_status try_append(Pigpen__V1__PartRef *part, uint64_t start, uint32_t count)
{
    Pigpen__V1__Section sections[2] = {PIGPEN__V1__SECTION__INIT, PIGPEN__V1__SECTION__INIT};
    Pigpen__V1__Section *list[2] = {&sections[0], &sections[1]};
    Pigpen__V1__AppendKvRequest request = PIGPEN__V1__APPEND_KV_REQUEST__INIT;
    size_t half = (size_t)count * TOKEN_BYTES / 2;
    sections[0].kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_K;
    sections[0].bytes = half;
    sections[1].kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_V;
    sections[1].offset = half;
    sections[1].bytes = half;
    request.part = part;
    request.request_id = start + 1;
    request.start = start;
    request.count = count;
    request.bulk = true;
    request.crc32c = count == MESSAGE_TOKENS ? zeros_crc : pp_crc32c(0, zeros, 2 * half);
    request.n_sections = 2;
    request.sections = list;
    return try_say(&appending, &request.base, 2 * half);
}

/* A stream of appends to a new part. */
struct filling {
    Pigpen__V1__PartRef part;
    uint32_t messages, count; /* to send, of so many tokens */
    uint32_t sent;
};

static enum pp_status fill_begin(struct filling *fill)
{
    fill->part = (Pigpen__V1__PartRef)PIGPEN__V1__PART_REF__INIT;
    fill->sent = 0;
    PP_TRY(open_part(0, &fill->part));
    appending.held = 0;
    return open_call(&appending, node.bulk, SERVICE "AppendKvStream", PP_CALL_BIDI,
                     &pigpen__v1__append_kv_response__descriptor);
}

/* Sends what there is room for. */
static enum pp_status fill_more(struct filling *fill)
{
    enum pp_status status = appending.ended ? PP_UNAVAILABLE : appending.status;
    bool room = fill->sent == 0 || appending.writable || fill->sent < PP_SEND_QUEUE_MAX;
    while (status == PP_OK && room && fill->sent < fill->messages) {
        status = try_append(&fill->part, (uint64_t)fill->sent * fill->count, fill->count);
        fill->sent += status == PP_OK ? 1 : 0;
        room = status == PP_OK;
    }
    return status == PP_QUEUE ? PP_OK : status;
}

static bool fill_done(const struct filling *fill)
{
    return appending.held >= (uint64_t)fill->messages * fill->count;
}

static void fill_end(void)
{
    node.transport->ops->call_cancel(appending.call);
    while (!appending.ended) {
        node.transport->ops->poll(node.transport, UINT64_MAX);
    }
}

static enum pp_status fill_part(struct filling *fill)
{
    enum pp_status status = fill_begin(fill);
    while (status == PP_OK && !fill_done(fill)) {
        status = fill_more(fill);
        if (status == PP_OK && !fill_done(fill)) {
            node.transport->ops->poll(node.transport, UINT64_MAX);
        }
    }
    fill_end();
    return status;
}

enum pp_status rpc_bench_node_stored(double *seconds_out)
{
    struct filling fill = {.messages = BLOCK_MESSAGES, .count = MESSAGE_TOKENS};
    uint64_t begin_us = pp_clock_now_us(&node.transport->clock);
    PP_TRY(fill_part(&fill));
    *seconds_out = (double)(pp_clock_now_us(&node.transport->clock) - begin_us) * 1e-6;
    return close_part(&fill.part);
}

/* Asks for room for so many bytes and gives it back. */
static enum pp_status press(uint64_t bytes)
{
    Pigpen__V1__PartRef part = PIGPEN__V1__PART_REF__INIT;
    PP_TRY(open_part(bytes, &part));
    return close_part(&part);
}

enum pp_status rpc_bench_node_stored_fresh(double *seconds_out)
{
    /* The most that fits, to a MiB: asking for it leaves no freed memory at the node. */
    uint64_t fits = 0;
    for (uint64_t step = 1ull << 40; step >= 1u << 20; step /= 2) {
        enum pp_status status = press(fits + step);
        if (status != PP_OK && status != PP_MEMORY) {
            return status;
        }
        fits += status == PP_OK ? step : 0;
    }
    return rpc_bench_node_stored(seconds_out);
}

static enum pp_status ask_attend(uint64_t request_id)
{
    Pigpen__V1__Section section = PIGPEN__V1__SECTION__INIT, *sections = &section;
    Pigpen__V1__AttendItem item = PIGPEN__V1__ATTEND_ITEM__INIT, *items = &item;
    Pigpen__V1__AttendRequest request = PIGPEN__V1__ATTEND_REQUEST__INIT;
    section.kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q;
    section.bytes = Q_HEADS * DIM * sizeof(float);
    item.handle = node.part.handle;
    item.generation = node.part.generation;
    item.held_tokens = ATTEND_TOKENS;
    item.q_rows = 1;
    request.request_id = request_id;
    request.incarnation = node.part.incarnation;
    request.n_items = request.n_sections = 1;
    request.items = &items;
    request.sections = &sections;
    return try_say(&attending, &request.base, section.bytes);
}

/* One attend and its microseconds; appends of fill (may be NULL) go on meanwhile. */
static enum pp_status attend(struct filling *fill, double *us_out)
{
    static uint64_t request_id;
    uint64_t before = attending.answers;
    uint64_t begin_us = pp_clock_now_us(&node.transport->clock);
    enum pp_status status = ask_attend(++request_id);
    while (status == PP_OK && attending.answers == before) {
        status = attending.ended ? PP_UNAVAILABLE : attending.status;
        if (status == PP_OK && fill != NULL) {
            status = fill_more(fill);
        }
        node.transport->ops->poll(node.transport, UINT64_MAX);
    }
    PP_TRY(status);
    *us_out = (double)(pp_clock_now_us(&node.transport->clock) - begin_us);
    const Pigpen__V1__AttendResponse *answer = (const Pigpen__V1__AttendResponse *)attending.answer;
    bool right = answer->request_id == request_id && answer->n_results == 1 &&
                 (answer->results[0]->status == NULL || answer->results[0]->status->code == 0);
    return right ? PP_OK : PP_PROTOCOL;
}

enum pp_status rpc_bench_node_attends(size_t count, double *us_out)
{
    for (size_t i = 0; i < count; ++i) {
        PP_TRY(attend(NULL, &us_out[i]));
    }
    return PP_OK;
}

enum pp_status rpc_bench_node_attends_in_bulk(double *us_out, size_t capacity, size_t *count_out)
{
    struct filling fill = {.messages = BLOCK_MESSAGES, .count = MESSAGE_TOKENS};
    size_t count = 0;
    PP_TRY(fill_begin(&fill));
    PP_TRY(fill_more(&fill));
    while (!fill_done(&fill)) {
        double us = 0;
        PP_TRY(attend(&fill, &us));
        if (count < capacity && fill.sent < fill.messages) {
            us_out[count++] = us;
        }
    }
    fill_end();
    *count_out = count;
    return close_part(&fill.part);
}

static enum pp_status connect_node(void)
{
    const struct pp_transport_ops *ops = node.transport->ops;
    char address[32];
    snprintf(address, sizeof(address), "127.0.0.1:%d", node.process.port);
    PP_TRY(ops->channel_open(node.transport, address, PP_CHANNEL_LATENCY, NULL, &node.latency));
    PP_TRY(ops->channel_open(node.transport, address, PP_CHANNEL_BULK, NULL, &node.bulk));
    Pigpen__V1__PartRef part = PIGPEN__V1__PART_REF__INIT;
    uint64_t end_us = pp_clock_now_us(&node.transport->clock) + WAIT_US;
    enum pp_status status;
    do {
        status = open_part(0, &part);
    } while (status == PP_STARTING && pp_clock_now_us(&node.transport->clock) < end_us);
    PP_TRY(status);
    PP_TRY(close_part(&part));
    struct filling fill = {.messages = 1, .count = ATTEND_TOKENS};
    PP_TRY(fill_part(&fill));
    node.part = fill.part;
    return open_call(&attending, node.latency, SERVICE "AttendStream", PP_CALL_BIDI,
                     &pigpen__v1__attend_response__descriptor);
}

bool rpc_bench_node_start(struct pp_transport *transport, const char *program)
{
    static const char *const extra[] = {"--memory-limit=2GiB", NULL};
    node.transport = transport;
    zeros = calloc(1, MESSAGE_BYTES);
    enum pp_status status = zeros != NULL ? PP_OK : PP_MEMORY;
    struct exchange *const all[] = {&unary, &appending, &attending};
    for (size_t i = 0; i < 3 && status == PP_OK; ++i) {
        status = pp_codec_arena_init(&all[i]->arena, 1u << 20);
    }
    if (status == PP_OK) {
        zeros_crc = pp_crc32c(0, zeros, MESSAGE_BYTES);
        status = bench_node_start(program, extra, &node.process);
    }
    status = status == PP_OK ? connect_node() : status;
    if (status != PP_OK) {
        fprintf(stderr, "rpc_bench: what needs a node is null: %s: %s\n", program,
                pp_status_name(status));
        rpc_bench_node_stop();
    }
    return status == PP_OK;
}

void rpc_bench_node_stop(void)
{
    bench_node_stop(&node.process);
}
