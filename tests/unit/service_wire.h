/*
 * Packs a request and its payload as bytes and unpacks it again, as the service meets it.
 */
#ifndef PIGPEN_TESTS_SERVICE_WIRE_H
#define PIGPEN_TESTS_SERVICE_WIRE_H

#include <string.h>

#include "attn-node/service/decode.h"

#define INCARNATION 0x1234567890abcdefull
#define ARENA_BYTES (1u << 20)

static struct pp_codec_arena arena;
static uint8_t packed[1u << 20];
static struct pp_piece piece;
static struct pp_message message;

static int set_up(void **state)
{
    (void)state;
    return pp_codec_arena_init(&arena, ARENA_BYTES) == PP_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    pp_codec_arena_deinit(&arena);
    return 0;
}

static void no_release(struct pp_message *released)
{
    (void)released;
}

/* Packs a request and its payload and unpacks it again, as over the wire. */
static const void *over_wire(const ProtobufCMessage *request, const void *payload, size_t bytes,
                             struct pp_payload_view *view_out)
{
    size_t header_bytes = 0;
    assert_int_equal(PP_OK, pp_codec_pack(request, bytes, packed, sizeof(packed), &header_bytes));
    assert_true(header_bytes + bytes <= sizeof(packed));
    if (bytes > 0) {
        memcpy(packed + header_bytes, payload, bytes);
    }
    piece = (struct pp_piece){.data = packed, .bytes = header_bytes + bytes};
    message = (struct pp_message){
        .pieces = &piece, .piece_count = 1, .bytes = piece.bytes, .release = no_release};
    ProtobufCMessage *header = NULL;
    pp_codec_arena_reset(&arena);
    assert_int_equal(PP_OK,
                     pp_codec_unpack(&message, request->descriptor, &arena, &header, view_out));
    return header;
}

#endif
