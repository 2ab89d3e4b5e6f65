/*
 * Bytes from a peer through unpacking and decoding: the first byte picks the request. Whatever
 * comes out must lie inside the message or the arena.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "attn-node/service/decode.h"

#define INCARNATION 1u /* found easily by the fuzzer */

static struct pp_codec_arena arena;

static void no_release(struct pp_message *message)
{
    (void)message;
}

/* Reads every byte: the sanitizer objects to what lies outside. */
static void touch(const uint8_t *data, uint64_t bytes)
{
    volatile uint8_t sum = 0;
    for (uint64_t at = 0; data != NULL && at < bytes; ++at) {
        sum = (uint8_t)(sum + data[at]);
    }
}

static void touch_span(struct pp_span span)
{
    for (; span.bytes > 0; pp_span_skip(&span, span.run)) {
        touch(span.data, span.run);
    }
}

static void touch_append(const struct an_append_args *args)
{
    touch_span(args->k);
    touch_span(args->v);
    touch_span(args->signatures);
    touch_span(args->centre);
    touch_span(args->balance);
}

static void touch_attend(const struct an_attend_args *args)
{
    for (uint32_t index = 0; index < args->item_count; ++index) {
        const struct an_attend_item *item = &args->items[index];
        touch(item->q, item->q_bytes);
        touch(item->signatures, item->signature_bytes);
        touch((const uint8_t *)item->seeds, 8ull * item->seed_count);
    }
}

static void decode(uint8_t which, const ProtobufCMessage *header,
                   const struct pp_payload_view *payload, const struct pp_span *in_pieces,
                   struct an_job *job)
{
    struct an_attend_plan plan;
    uint64_t end;
    const void *request = header;
    enum pp_status status = PP_OK;
    switch (which) {
    case 0:
        status = an_decode_open(request, INCARNATION, &arena, job);
        break;
    case 1:
        status = an_decode_append(request, INCARNATION, in_pieces, job);
        if (status == PP_OK) {
            touch_append(&job->append);
        }
        break;
    case 2:
        status = an_decode_attend(request, INCARNATION, payload, &arena, job, &plan);
        if (status == PP_OK) {
            touch_attend(&job->attend);
        }
        break;
    case 3:
        status = an_decode_read(request, INCARNATION, job, &end);
        break;
    case 4:
        status = an_decode_renew(request, INCARNATION, &arena, job);
        break;
    default:
        status = an_decode_seal(request, INCARNATION, job);
        break;
    }
    (void)status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const ProtobufCMessageDescriptor *const descriptors[] = {
        &pigpen__v1__open_part_request__descriptor,   &pigpen__v1__append_kv_request__descriptor,
        &pigpen__v1__attend_request__descriptor,      &pigpen__v1__read_kv_request__descriptor,
        &pigpen__v1__renew_parts_request__descriptor, &pigpen__v1__seal_part_request__descriptor};
    if (arena.base == NULL && pp_codec_arena_init(&arena, 1u << 20) != PP_OK) {
        abort();
    }
    if (bytes < 2) {
        return 0;
    }
    uint8_t which = data[0] % 6;
    size_t cut = data[0] / 6 < bytes - 1 ? data[0] / 6 : 0; /* in one or two pieces */
    const struct pp_piece pieces[] = {{.data = data + 1, .bytes = cut},
                                      {.data = data + 1 + cut, .bytes = bytes - 1 - cut}};
    struct pp_message message = {
        .pieces = pieces, .piece_count = 2, .bytes = bytes - 1, .release = no_release};
    struct pp_payload_view payload = {.data = NULL};
    struct pp_span in_pieces = {.data = NULL};
    ProtobufCMessage *header = NULL;
    pp_codec_arena_reset(&arena);
    enum pp_status status =
        which == 1
            ? pp_codec_unpack_in_pieces(&message, descriptors[which], &arena, &header, &in_pieces)
            : pp_codec_unpack(&message, descriptors[which], &arena, &header, &payload);
    if (status == PP_OK) {
        struct an_job job;
        memset(&job, 0, sizeof(job));
        decode(which, header, &payload, &in_pieces, &job);
    }
    return 0;
}
