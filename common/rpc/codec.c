/*
 * The codec: protobuf-c for headers inside a bounded arena, tag and length of the payload by hand.
 * A received message is scanned once over its pieces to find a payload that is its last field; any
 * other layout goes through the general unpack. On the walk between the transport and whoever
 * serves or calls. Trusts no byte; knows no method.
 */
#include "common/rpc/codec.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"

#define WIRE_VARINT  0u
#define WIRE_FIXED64 1u
#define WIRE_BYTES   2u
#define WIRE_FIXED32 5u

#define PAYLOAD_TAG ((PP_PAYLOAD_FIELD << 3) | WIRE_BYTES)
PP_STATIC_ASSERT(PAYLOAD_TAG < 128, "the tag is one byte");

#define ARENA_ALIGN  64u
#define OBJECT_ALIGN 16u

static void *arena_take(struct pp_codec_arena *arena, size_t bytes, size_t align)
{
    size_t begin = (arena->used + align - 1) & ~(align - 1);
    if (begin > arena->bytes || bytes > arena->bytes - begin) {
        arena->full = true;
        return NULL;
    }
    arena->used = begin + bytes;
    return arena->base + begin;
}

static void *arena_alloc(void *context, size_t bytes)
{
    return arena_take(context, bytes, OBJECT_ALIGN);
}

static void arena_free(void *context, void *pointer)
{
    (void)context;
    (void)pointer; /* everything goes at reset */
}

enum pp_status pp_codec_arena_init(struct pp_codec_arena *arena, size_t bytes)
{
    size_t rounded = (bytes + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (rounded < bytes) {
        return PP_MEMORY;
    }
    uint8_t *base = aligned_alloc(ARENA_ALIGN, rounded != 0 ? rounded : ARENA_ALIGN);
    if (base == NULL) {
        return PP_MEMORY;
    }
    *arena = (struct pp_codec_arena){
        .allocator = {arena_alloc, arena_free, arena}, .base = base, .bytes = bytes};
    return PP_OK;
}

void pp_codec_arena_deinit(struct pp_codec_arena *arena)
{
    free(arena->base);
    *arena = (struct pp_codec_arena){.base = NULL};
}

void pp_codec_arena_reset(struct pp_codec_arena *arena)
{
    arena->used = 0;
    arena->full = false;
}

enum pp_status pp_codec_pack(const ProtobufCMessage *header, size_t payload_bytes, uint8_t *out,
                             size_t capacity, size_t *bytes_out)
{
    uint8_t suffix[11];
    size_t suffix_bytes = 0;
    if (payload_bytes != 0) {
        suffix[suffix_bytes++] = PAYLOAD_TAG;
        for (size_t left = payload_bytes;; left >>= 7) {
            suffix[suffix_bytes++] = (uint8_t)((left & 127u) | (left > 127u ? 128u : 0u));
            if (left <= 127u) {
                break;
            }
        }
    }
    size_t packed = protobuf_c_message_get_packed_size(header);
    if (packed > capacity || suffix_bytes > capacity - packed) {
        return PP_MESSAGE_TOO_LARGE;
    }
    protobuf_c_message_pack(header, out);
    memcpy(out + packed, suffix, suffix_bytes);
    *bytes_out = packed + suffix_bytes;
    return PP_OK;
}

/* Where a scan stands. */
struct cursor {
    const struct pp_message *message;
    size_t piece;
    size_t offset;   /* in the piece */
    size_t position; /* in the message */
};

static bool cursor_byte(struct cursor *cursor, uint8_t *byte_out)
{
    const struct pp_message *message = cursor->message;
    while (cursor->piece < message->piece_count &&
           cursor->offset == message->pieces[cursor->piece].bytes) {
        ++cursor->piece;
        cursor->offset = 0;
    }
    if (cursor->piece == message->piece_count) {
        return false;
    }
    *byte_out = message->pieces[cursor->piece].data[cursor->offset++];
    ++cursor->position;
    return true;
}

static bool cursor_skip(struct cursor *cursor, uint64_t bytes)
{
    const struct pp_message *message = cursor->message;
    if (bytes > message->bytes - cursor->position) {
        return false;
    }
    cursor->position += bytes;
    while (bytes != 0) {
        size_t left = message->pieces[cursor->piece].bytes - cursor->offset;
        if (bytes < left) {
            cursor->offset += bytes;
            return true;
        }
        bytes -= left;
        ++cursor->piece;
        cursor->offset = 0;
    }
    return true;
}

/* At most bytes_max bytes, no bit above the 64th. */
static bool cursor_varint(struct cursor *cursor, unsigned bytes_max, uint64_t *value_out)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes_max; ++i) {
        uint8_t byte;
        if (!cursor_byte(cursor, &byte) || (i == 9 && byte > 1)) {
            return false;
        }
        value |= (uint64_t)(byte & 127u) << (7 * i);
        if (byte < 128) {
            *value_out = value;
            return true;
        }
    }
    return false;
}

static bool cursor_skip_value(struct cursor *cursor, unsigned wire)
{
    uint64_t value;
    switch (wire) {
    case WIRE_VARINT:
        return cursor_varint(cursor, 10, &value);
    case WIRE_FIXED64:
        return cursor_skip(cursor, 8);
    case WIRE_BYTES:
        return cursor_varint(cursor, 10, &value) && cursor_skip(cursor, value);
    case WIRE_FIXED32:
        return cursor_skip(cursor, 4);
    default: /* groups, and what does not exist */
        return false;
    }
}

struct layout {
    size_t header_bytes;  /* before the payload's tag */
    size_t payload_begin; /* == payload_end: there is none */
    size_t payload_end;
    bool unusual; /* the general unpack has to see it all */
};

static enum pp_status scan(const struct pp_message *message, struct layout *layout_out)
{
    struct cursor cursor = {.message = message};
    struct layout layout = {.header_bytes = message->bytes};
    size_t payloads = 0;
    for (size_t fields = 0; cursor.position < message->bytes; ++fields) {
        size_t begin = cursor.position;
        uint64_t tag;
        if (!cursor_varint(&cursor, 5, &tag) || tag >> 3 == 0 || tag > UINT32_MAX) {
            return PP_INVALID_ARGUMENT;
        }
        if (fields == PP_CODEC_FIELDS_MAX) {
            return PP_MESSAGE_TOO_LARGE;
        }
        if (tag != PAYLOAD_TAG) {
            layout.unusual |= payloads != 0 || tag >> 3 == PP_PAYLOAD_FIELD;
            if (!cursor_skip_value(&cursor, (unsigned)tag & 7u)) {
                return PP_INVALID_ARGUMENT;
            }
            continue;
        }
        uint64_t length;
        if (!cursor_varint(&cursor, 10, &length)) {
            return PP_INVALID_ARGUMENT;
        }
        layout.unusual |= payloads++ != 0;
        layout.header_bytes = begin;
        layout.payload_begin = cursor.position;
        if (!cursor_skip(&cursor, length)) {
            return PP_INVALID_ARGUMENT;
        }
        layout.payload_end = cursor.position;
    }
    *layout_out = layout;
    return PP_OK;
}

/* The bytes of a span in one place: where they lie, or a copy in the arena. */
static enum pp_status contiguous(struct pp_span span, struct pp_codec_arena *arena,
                                 const uint8_t **data_out)
{
    if (span.run == span.bytes) {
        *data_out = span.bytes > 0 ? span.data : arena->base;
        return PP_OK;
    }
    uint8_t *copy = arena_take(arena, span.bytes, ARENA_ALIGN);
    if (copy == NULL) {
        return PP_MESSAGE_TOO_LARGE;
    }
    pp_span_read(&span, copy, span.bytes);
    *data_out = copy;
    return PP_OK;
}

static const ProtobufCFieldDescriptor *payload_field(const ProtobufCMessageDescriptor *descriptor)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field(descriptor, PP_PAYLOAD_FIELD);
    return field != NULL && field->type == PROTOBUF_C_TYPE_BYTES &&
                   field->label != PROTOBUF_C_LABEL_REPEATED
               ? field
               : NULL;
}

enum pp_status pp_codec_unpack_in_pieces(const struct pp_message *message,
                                         const ProtobufCMessageDescriptor *descriptor,
                                         struct pp_codec_arena *arena,
                                         ProtobufCMessage **header_out, struct pp_span *payload_out)
{
    struct layout layout;
    PP_TRY(scan(message, &layout));
    const ProtobufCFieldDescriptor *field = payload_field(descriptor);
    bool in_place = field != NULL && !layout.unusual;
    size_t header_bytes = in_place ? layout.header_bytes : message->bytes;
    struct pp_span whole = pp_span_of_pieces(message->pieces, message->bytes);
    struct pp_span payload = {.data = NULL};
    const uint8_t *header_data = NULL;
    PP_TRY(contiguous(pp_span_part(whole, 0, header_bytes), arena, &header_data));
    if (in_place && layout.payload_end != layout.payload_begin) {
        payload =
            pp_span_part(whole, layout.payload_begin, layout.payload_end - layout.payload_begin);
    }
    arena->full = false;
    ProtobufCMessage *header =
        protobuf_c_message_unpack(descriptor, &arena->allocator, header_bytes, header_data);
    if (header == NULL) {
        return arena->full ? PP_MESSAGE_TOO_LARGE : PP_INVALID_ARGUMENT;
    }
    if (!in_place && field != NULL) {
        const ProtobufCBinaryData *found =
            (const ProtobufCBinaryData *)((const uint8_t *)header + field->offset);
        payload = pp_span_of(found->data, found->len);
    }
    *header_out = header;
    *payload_out = payload;
    return PP_OK;
}

enum pp_status pp_codec_unpack(const struct pp_message *message,
                               const ProtobufCMessageDescriptor *descriptor,
                               struct pp_codec_arena *arena, ProtobufCMessage **header_out,
                               struct pp_payload_view *payload_out)
{
    ProtobufCMessage *header = NULL;
    struct pp_span span;
    PP_TRY(pp_codec_unpack_in_pieces(message, descriptor, arena, &header, &span));
    struct pp_payload_view payload = {.data = span.data, .bytes = span.bytes};
    if (span.bytes > 0) {
        PP_TRY(contiguous(span, arena, &payload.data));
    }
    *header_out = header;
    *payload_out = payload;
    return PP_OK;
}
