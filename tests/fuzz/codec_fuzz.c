/*
 * Any bytes as any message: the first byte picks the message, the second the size of the pieces.
 * What is accepted must pack again and be accepted again.
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
    if (unpack(descriptor, data + 2, bytes - 2, piece_bytes, &arena, &header, &payload) == PP_OK) {
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
