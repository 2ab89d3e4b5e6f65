/*
 * Any bytes as any message: the first byte picks the message, the second the size of the pieces.
 * What is accepted must pack again and be accepted again; but for fields of number 0 within a
 * field: protobuf-c takes such a tag when it is written in two bytes, and packs it into one, which
 * it refuses. Nobody here packs what was received.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/rpc/codec.h"
#include "pigpen/v1/admin.pb-c.h"
#include "pigpen/v1/attention.pb-c.h"

#define PIECES_MAX  4096u
#define ARENA_BYTES 65536u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const ProtobufCMessageDescriptor *const descriptors[] = {
    &pigpen__v1__open_part_request__descriptor,   &pigpen__v1__append_kv_request__descriptor,
    &pigpen__v1__append_kv_response__descriptor,  &pigpen__v1__attend_request__descriptor,
    &pigpen__v1__attend_response__descriptor,     &pigpen__v1__read_kv_response__descriptor,
    &pigpen__v1__renew_parts_request__descriptor, &pigpen__v1__get_part_response__descriptor,
};

static void no_release(struct pp_message *message)
{
    (void)message;
}

static enum pp_status unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                             size_t bytes, size_t piece_bytes, struct pp_codec_arena *arena,
                             ProtobufCMessage **header_out, struct pp_payload_view *payload_out)
{
    static struct pp_piece pieces[PIECES_MAX];
    size_t count = 0;
    for (size_t begin = 0; begin < bytes; begin += piece_bytes) {
        size_t left = bytes - begin;
        pieces[count++] = (struct pp_piece){.data = data + begin,
                                            .bytes = left < piece_bytes ? left : piece_bytes};
    }
    struct pp_message message = {
        .pieces = pieces, .piece_count = count, .bytes = bytes, .release = no_release};
    return pp_codec_unpack(&message, descriptor, arena, header_out, payload_out);
}

/* The messages that a field holds, onto the stack: how many it has then. */
static size_t push_messages(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                            const ProtobufCMessage **stack, size_t count)
{
    const uint8_t *base = (const uint8_t *)message;
    const void *member = base + field->offset;
    const void *quantifier = base + field->quantifier_offset;
    if (field->type != PROTOBUF_C_TYPE_MESSAGE) {
        return count;
    }
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        size_t items = *(const size_t *)quantifier;
        for (size_t i = 0; i < items; ++i) {
            stack[count++] = (*(ProtobufCMessage *const *const *)member)[i];
        }
        return count;
    }
    bool other_of_oneof = (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0 &&
                          *(const uint32_t *)quantifier != field->id;
    if (!other_of_oneof && *(ProtobufCMessage *const *)member != NULL) {
        stack[count++] = *(ProtobufCMessage *const *)member;
    }
    return count;
}

static bool has_field_zero(const ProtobufCMessage *header)
{
    static const ProtobufCMessage *stack[PIECES_MAX]; /* a message takes two bytes at least */
    size_t count = 0;
    stack[count++] = header;
    while (count > 0) {
        const ProtobufCMessage *message = stack[--count];
        for (unsigned i = 0; i < message->n_unknown_fields; ++i) {
            if (message->unknown_fields[i].tag == 0) {
                return true;
            }
        }
        for (unsigned i = 0; i < message->descriptor->n_fields; ++i) {
            count = push_messages(message, &message->descriptor->fields[i], stack, count);
        }
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 2 || bytes > PIECES_MAX) {
        return 0;
    }
    const ProtobufCMessageDescriptor *descriptor =
        descriptors[data[0] % (sizeof(descriptors) / sizeof(descriptors[0]))];
    size_t piece_bytes = 1u + data[1];
    struct pp_codec_arena arena;
    struct pp_codec_arena second;
    PP_ASSERT(pp_codec_arena_init(&arena, ARENA_BYTES) == PP_OK);
    PP_ASSERT(pp_codec_arena_init(&second, 4 * ARENA_BYTES) == PP_OK);
    ProtobufCMessage *header = NULL;
    struct pp_payload_view payload;
    if (unpack(descriptor, data + 2, bytes - 2, piece_bytes, &arena, &header, &payload) == PP_OK &&
        !has_field_zero(header)) {
        static uint8_t again[4 * PIECES_MAX];
        size_t head = 0;
        PP_ASSERT(pp_codec_pack(header, payload.bytes, again, sizeof(again), &head) == PP_OK);
        PP_ASSERT(head + payload.bytes <= sizeof(again));
        if (payload.bytes != 0) {
            memcpy(again + head, payload.data, payload.bytes);
        }
        enum pp_status status =
            unpack(descriptor, again, head + payload.bytes, 256, &second, &header, &payload);
        PP_ASSERT(status == PP_OK);
    }
    pp_codec_arena_deinit(&second);
    pp_codec_arena_deinit(&arena);
    return 0;
}
