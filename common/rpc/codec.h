/*
 * Messages whose last field is `bytes payload` (field 15): built by appending tag and length behind
 * a packed header, read by finding the payload in place. Any protobuf client meets plain protobuf.
 * Pure, any thread.
 */
#ifndef PIGPEN_COMMON_RPC_CODEC_H
#define PIGPEN_COMMON_RPC_CODEC_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/span.h"
#include "common/base/status.h"
#include "common/rpc/transport.h"

#define PP_PAYLOAD_FIELD 15u

/* More fields at the top level than any message of ours has: hostile ones must not keep a thread.
 */
#define PP_CODEC_FIELDS_MAX 65536u

/* A bounded bump allocator for unpacking: everything goes at reset. A message that needs more than
 * `bytes` fails to unpack instead of taking memory. */
struct pp_codec_arena {
    ProtobufCAllocator allocator; /* hand this to protobuf_c_message_unpack */
    uint8_t *base;
    size_t bytes;
    size_t used;
    bool full; /* an allocation failed since the last reset or unpack */
};
/* The allocator points to the arena: it must not move between init and deinit. PP_MEMORY. */
PP_MUST_USE enum pp_status pp_codec_arena_init(struct pp_codec_arena *arena, size_t bytes);
void pp_codec_arena_deinit(struct pp_codec_arena *arena);
void pp_codec_arena_reset(struct pp_codec_arena *arena);

/* Packs header (whose payload field is unset) plus tag and length of a payload of payload_bytes
 * into out [capacity]; PP_MESSAGE_TOO_LARGE when it does not fit. */
PP_MUST_USE enum pp_status pp_codec_pack(const ProtobufCMessage *header, size_t payload_bytes,
                                         uint8_t *out, size_t capacity, size_t *bytes_out);

/* A received message, unpacked: the header by protobuf-c in the arena, the payload in place when
 * one piece holds it, else copied into the arena (size it for header and payload). header_out and
 * payload_out live until the arena's reset, and the payload no longer than the message. Unusual
 * layouts (payload not last, twice, in the middle) are met by the general unpack and copies; the
 * last payload counts. The header's own payload field is for nobody's use. A descriptor without a
 * bytes field 15 gives an empty payload. PP_INVALID_ARGUMENT on malformed input,
 * PP_MESSAGE_TOO_LARGE when the arena is too small or there are more than PP_CODEC_FIELDS_MAX
 * fields. The caller resets the arena, also after a failure. protobuf-c checks neither enum ranges
 * nor UTF-8 nor bool values. */
struct pp_payload_view {
    const uint8_t *data; /* contiguous, of any alignment; NULL when empty */
    size_t bytes;
};
PP_MUST_USE enum pp_status pp_codec_unpack(const struct pp_message *message,
                                           const ProtobufCMessageDescriptor *descriptor,
                                           struct pp_codec_arena *arena,
                                           ProtobufCMessage **header_out,
                                           struct pp_payload_view *payload_out);

/* The same, but a payload in several pieces stays in them: for who reads it once. */
PP_MUST_USE enum pp_status pp_codec_unpack_in_pieces(const struct pp_message *message,
                                                     const ProtobufCMessageDescriptor *descriptor,
                                                     struct pp_codec_arena *arena,
                                                     ProtobufCMessage **header_out,
                                                     struct pp_span *payload_out);

#endif
