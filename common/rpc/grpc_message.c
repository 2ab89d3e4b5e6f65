/*
 * Bytes in and out: received buffers shown as pieces in place, and buffers to send made of a copied
 * header and a payload that is not copied. Message structs come from a free list under a lock,
 * because whoever got a message may release it on another thread. Knows no calls.
 */
#include <stdlib.h>

#include "common/base/assert.h"
#include "common/rpc/grpc_internal.h"

void pp_grpc_messages_init(struct pp_grpc *grpc)
{
    pthread_mutex_init(&grpc->messages_lock, NULL);
    grpc->messages_free = NULL;
}

void pp_grpc_messages_deinit(struct pp_grpc *grpc)
{
    while (grpc->messages_free != NULL) {
        struct pp_grpc_message *message = grpc->messages_free;
        grpc->messages_free = message->next;
        free(message);
    }
    pthread_mutex_destroy(&grpc->messages_lock);
}

static void message_release(struct pp_message *base)
{
    struct pp_grpc_message *message = (struct pp_grpc_message *)base;
    struct pp_grpc *grpc = message->transport;
    grpc_byte_buffer_destroy(message->buffer);
    free(message->more);
    message->more = NULL;
    pthread_mutex_lock(&grpc->messages_lock);
    message->next = grpc->messages_free;
    grpc->messages_free = message;
    pthread_mutex_unlock(&grpc->messages_lock);
}

static struct pp_grpc_message *message_take(struct pp_grpc *grpc)
{
    pthread_mutex_lock(&grpc->messages_lock);
    struct pp_grpc_message *message = grpc->messages_free;
    if (message != NULL) {
        grpc->messages_free = message->next;
    }
    pthread_mutex_unlock(&grpc->messages_lock);
    return message != NULL ? message : calloc(1, sizeof(*message));
}

enum pp_status pp_grpc_message_new(struct pp_grpc *grpc, grpc_byte_buffer *buffer,
                                   struct pp_message **message_out)
{
    grpc_slice_buffer *slices = &buffer->data.raw.slice_buffer;
    struct pp_grpc_message *message = message_take(grpc);
    if (message == NULL) {
        grpc_byte_buffer_destroy(buffer);
        return PP_MEMORY;
    }
    message->transport = grpc;
    message->buffer = buffer;
    message->base = (struct pp_message){.release = message_release};
    struct pp_piece *pieces = message->pieces;
    if (slices->count > PP_GRPC_PIECES) {
        message->more = calloc(slices->count, sizeof(*message->more));
        if (message->more == NULL) {
            message_release(&message->base);
            return PP_MEMORY;
        }
        pieces = message->more;
    }
    /* Short slices live inside the array's elements: pointers go into the array, never a copy. */
    for (size_t i = 0; i < slices->count; ++i) {
        pieces[i].data = GRPC_SLICE_START_PTR(slices->slices[i]);
        pieces[i].bytes = GRPC_SLICE_LENGTH(slices->slices[i]);
        message->base.bytes += pieces[i].bytes;
    }
    message->base.pieces = pieces;
    message->base.piece_count = slices->count;
    *message_out = &message->base;
    return PP_OK;
}

static grpc_slice payload_slice(const struct pp_payload *payload)
{
    if (payload->release == NULL) {
        return grpc_slice_from_copied_buffer(payload->data, payload->bytes);
    }
    return grpc_slice_new_with_user_data((void *)(uintptr_t)payload->data, payload->bytes,
                                         payload->release, payload->context);
}

enum pp_status pp_grpc_buffer_new(const void *header, size_t header_bytes,
                                  const struct pp_payload *payload, grpc_byte_buffer **buffer_out)
{
    grpc_slice slices[1 + PP_PAYLOADS_MAX];
    size_t count = 0;
    if (header_bytes != 0) {
        slices[count++] = grpc_slice_from_copied_buffer(header, header_bytes);
    }
    for (const struct pp_payload *each = payload; each != NULL; each = each->next) {
        if (each->bytes != 0) {
            PP_ASSERT(count <= PP_PAYLOADS_MAX);
            slices[count++] = payload_slice(each);
        }
    }
    /* gRPC aborts when it cannot allocate: NULL does not come back. */
    *buffer_out = grpc_raw_byte_buffer_create(slices, count);
    for (size_t i = 0; i < count; ++i) {
        grpc_slice_unref(slices[i]);
    }
    for (const struct pp_payload *each = payload; each != NULL; each = each->next) {
        if (each->bytes == 0 && each->release != NULL) {
            each->release(each->context);
        }
    }
    return PP_OK;
}
