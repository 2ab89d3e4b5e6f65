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
#define ATTENDS_MAX    200000u
#define WAIT_US        30000000u

struct result {
    double exec_rtt_us_p50;    /* an attend over 16 tokens, 16 KiB up and down, all of it */
    double append_stored_gbps; /* 1 MiB messages, checksum checked, stored, acknowledged */
};

struct exchange {
    struct pp_transport *transport;
    struct pp_channel *latency;
    struct pp_channel *bulk;
    struct pp_codec_arena arena;
    const ProtobufCMessageDescriptor *descriptor; /* of answers */
    ProtobufCMessage *answer;                     /* the last one, until the arena's reset */
    uint64_t answers;
    bool ended;
    enum pp_status status;
    bool writable;
    uint64_t held; /* of the last append's answer */
};

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
    self->transport->ops->call_receive(call);
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
    if (end->status != PP_OK && end->status != PP_CANCELLED && end->status != PP_STARTING) {
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
                                const ProtobufCMessageDescriptor *descriptor,
                                struct pp_call **call_out)
{
    self->descriptor = descriptor;
    self->ended = false;
    self->status = PP_OK;
    PP_TRY(self->transport->ops->call_start(channel, path, kind, 0, &call_events, self, call_out));
    self->transport->ops->call_receive(*call_out);
    return PP_OK;
}

/* Sends, waiting for room. */
static enum pp_status say(struct exchange *self, struct pp_call *call,
                          const ProtobufCMessage *message, size_t payload_bytes)
{
    uint8_t header[512];
    size_t bytes = 0;
    struct pp_payload payload = {zeros, payload_bytes, keep, NULL};
    PP_TRY(pp_codec_pack(message, payload_bytes, header, sizeof(header), &bytes));
    for (;;) {
        self->writable = false;
        enum pp_status status = self->transport->ops->call_send(
            call, header, bytes, payload_bytes != 0 ? &payload : NULL, false);
        if (status != PP_QUEUE) {
            return status;
        }
        while (!self->writable && !self->ended) {
            self->transport->ops->poll(self->transport, UINT64_MAX);
        }
    }
}

static enum pp_status ask(struct exchange *self, const char *path, const ProtobufCMessage *request,
                          const ProtobufCMessageDescriptor *descriptor)
{
    struct pp_call *call = NULL;
    PP_TRY(open_call(self, self->latency, path, PP_CALL_UNARY, descriptor, &call));
    PP_TRY(say(self, call, request, 0));
    while (!self->ended) {
        self->transport->ops->poll(self->transport, UINT64_MAX);
    }
    return self->status;
}

static enum pp_status open_part(struct exchange *self, Pigpen__V1__PartRef *part_out)
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
    PP_TRY(
        ask(self, SERVICE "OpenPart", &request.base, &pigpen__v1__open_part_response__descriptor));
    const Pigpen__V1__OpenPartResponse *answer = (const Pigpen__V1__OpenPartResponse *)self->answer;
    part_out->handle = answer->handle;
    part_out->incarnation = answer->incarnation;
    part_out->generation = answer->generation;
    return PP_OK;
}

static enum pp_status close_part(struct exchange *self, Pigpen__V1__PartRef *part)
{
    Pigpen__V1__ClosePartRequest request = PIGPEN__V1__CLOSE_PART_REQUEST__INIT;
    request.part = part;
    return ask(self, SERVICE "ClosePart", &request.base,
               &pigpen__v1__close_part_response__descriptor);
}

static enum pp_status append(struct exchange *self, struct pp_call *call, Pigpen__V1__PartRef *part,
                             uint64_t start, uint32_t count)
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
    return say(self, call, &request.base, 2 * half);
}

static enum pp_status wait_held(struct exchange *self, uint64_t tokens)
{
    while (self->held < tokens && !self->ended && self->status == PP_OK) {
        self->transport->ops->poll(self->transport, UINT64_MAX);
    }
    return self->held >= tokens ? PP_OK : self->status != PP_OK ? self->status : PP_UNAVAILABLE;
}

/* Appends `messages` of `count` tokens to a new part on a stream of its own; seconds for it. */
static enum pp_status fill_part(struct exchange *self, uint32_t messages, uint32_t count,
                                Pigpen__V1__PartRef *part_out, double *seconds_out)
{
    struct pp_call *call = NULL;
    PP_TRY(open_part(self, part_out));
    PP_TRY(open_call(self, self->bulk, SERVICE "AppendKvStream", PP_CALL_BIDI,
                     &pigpen__v1__append_kv_response__descriptor, &call));
    self->held = 0;
    uint64_t begin_us = pp_clock_now_us(&self->transport->clock);
    for (uint32_t i = 0; i < messages; ++i) {
        PP_TRY(append(self, call, part_out, (uint64_t)i * count, count));
    }
    PP_TRY(wait_held(self, (uint64_t)messages * count));
    *seconds_out = (double)(pp_clock_now_us(&self->transport->clock) - begin_us) * 1e-6;
    self->transport->ops->call_cancel(call);
    while (!self->ended) {
        self->transport->ops->poll(self->transport, UINT64_MAX);
    }
    return PP_OK;
}

static enum pp_status measure_stored(struct exchange *self, uint64_t seconds, double *gbps_out)
{
    static double blocks[1024];
    uint64_t end_us = pp_clock_now_us(&self->transport->clock) + seconds * 1000000u;
    uint64_t count = 0;
    while (count < 3 || (count < 1024 && pp_clock_now_us(&self->transport->clock) < end_us)) {
        Pigpen__V1__PartRef part = PIGPEN__V1__PART_REF__INIT;
        PP_TRY(fill_part(self, BLOCK_MESSAGES, MESSAGE_TOKENS, &part, &blocks[count++]));
        PP_TRY(close_part(self, &part));
    }
    *gbps_out = (double)BLOCK_MESSAGES * MESSAGE_BYTES * 1e-9 / bench_median(blocks, count);
    return PP_OK;
}

static enum pp_status measure_attends(struct exchange *self, uint64_t seconds, double *us_out)
{
    double *times = calloc(ATTENDS_MAX, sizeof(*times));
    Pigpen__V1__PartRef part = PIGPEN__V1__PART_REF__INIT;
    Pigpen__V1__Section section = PIGPEN__V1__SECTION__INIT, *sections = &section;
    Pigpen__V1__AttendItem item = PIGPEN__V1__ATTEND_ITEM__INIT, *items = &item;
    Pigpen__V1__AttendRequest request = PIGPEN__V1__ATTEND_REQUEST__INIT;
    struct pp_call *call = NULL;
    double ignored = 0;
    if (times == NULL) {
        return PP_MEMORY;
    }
    enum pp_status status = fill_part(self, 1, ATTEND_TOKENS, &part, &ignored);
    if (status == PP_OK) {
        status = open_call(self, self->latency, SERVICE "AttendStream", PP_CALL_BIDI,
                           &pigpen__v1__attend_response__descriptor, &call);
    }
    section.kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q;
    section.bytes = Q_HEADS * DIM * sizeof(float);
    item.handle = part.handle;
    item.generation = part.generation;
    item.held_tokens = ATTEND_TOKENS;
    item.q_rows = 1;
    request.incarnation = part.incarnation;
    request.n_items = request.n_sections = 1;
    request.items = &items;
    request.sections = &sections;
    uint64_t end_us = pp_clock_now_us(&self->transport->clock) + seconds * 1000000u;
    uint64_t count = 0;
    while (status == PP_OK && count < ATTENDS_MAX &&
           pp_clock_now_us(&self->transport->clock) < end_us) {
        uint64_t begin_us = pp_clock_now_us(&self->transport->clock);
        uint64_t before = self->answers;
        request.request_id = count + 1;
        status = say(self, call, &request.base, section.bytes);
        while (status == PP_OK && self->answers == before && !self->ended) {
            self->transport->ops->poll(self->transport, UINT64_MAX);
        }
        status = status == PP_OK && self->ended ? PP_UNAVAILABLE : status;
        times[count++] = (double)(pp_clock_now_us(&self->transport->clock) - begin_us);
        const Pigpen__V1__AttendResponse *answer = (const Pigpen__V1__AttendResponse *)self->answer;
        if (status == PP_OK &&
            (answer->request_id != count || answer->n_results != 1 ||
             (answer->results[0]->status != NULL && answer->results[0]->status->code != 0))) {
            status = PP_PROTOCOL;
        }
    }
    *us_out = bench_median(times, count);
    free(times);
    return status;
}

static enum pp_status measure(struct exchange *self, int port, uint64_t seconds,
                              struct result *result_out)
{
    const struct pp_transport_ops *ops = self->transport->ops;
    char address[32];
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    PP_TRY(ops->channel_open(self->transport, address, PP_CHANNEL_LATENCY, NULL, &self->latency));
    PP_TRY(ops->channel_open(self->transport, address, PP_CHANNEL_BULK, NULL, &self->bulk));
    struct result result;
    Pigpen__V1__PartRef part = PIGPEN__V1__PART_REF__INIT;
    uint64_t end_us = pp_clock_now_us(&self->transport->clock) + WAIT_US;
    enum pp_status status;
    do {
        status = open_part(self, &part);
    } while (status == PP_STARTING && pp_clock_now_us(&self->transport->clock) < end_us);
    PP_TRY(status);
    PP_TRY(close_part(self, &part));
    PP_TRY(measure_stored(self, seconds, &result.append_stored_gbps));
    PP_TRY(measure_attends(self, seconds, &result.exec_rtt_us_p50));
    *result_out = result;
    return PP_OK;
}

static enum pp_status start_and_measure(struct pp_transport *transport, const char *program,
                                        uint64_t seconds, struct result *result_out)
{
    static const char *const extra[] = {"--memory-limit=2GiB", NULL};
    static struct exchange self; /* outlives calls that end with the transport */
    struct bench_node node;
    self.transport = transport;
    zeros = calloc(1, MESSAGE_BYTES);
    if (zeros == NULL) {
        return PP_MEMORY;
    }
    zeros_crc = pp_crc32c(0, zeros, MESSAGE_BYTES);
    PP_TRY(pp_codec_arena_init(&self.arena, 1u << 20));
    PP_TRY(bench_node_start(program, extra, &node));
    enum pp_status status = measure(&self, node.port, seconds, result_out);
    bench_node_stop(&node);
    return status;
}

void rpc_bench_node(struct pp_transport *transport, const char *program, uint64_t seconds,
                    json_t *report)
{
    struct result result;
    enum pp_status status =
        program != NULL ? start_and_measure(transport, program, seconds, &result) : PP_UNAVAILABLE;
    if (status != PP_OK) {
        fprintf(stderr, "rpc_bench: exec_rtt_us_p50 and append_stored_gbps are null: %s %s\n",
                program != NULL ? program : "measured under tcp only:", pp_status_name(status));
    }
    json_object_set_new(report, "exec_rtt_us_p50",
                        status == PP_OK ? json_real(result.exec_rtt_us_p50) : json_null());
    json_object_set_new(report, "append_stored_gbps",
                        status == PP_OK ? json_real(result.append_stored_gbps) : json_null());
}
