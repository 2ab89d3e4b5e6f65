/*
 * ReadKv from the worker's side. Every message is checked against what was asked for before a byte
 * of it is used (laws 1 and 3): incarnation, layer, the next row, sections, checksum. On the walk
 * beside outbox. It refuses to know what rows are read for.
 */
#include "gpu-worker/remote/read.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/crc32c.h"

#define READ_PATH "/pigpen.v1.AttentionService/ReadKv"
/* A stream whose transport says nothing is cancelled this long past its deadline. */
#define READ_GRACE_US 100000u

static void read_done(struct gw_read *read, enum pp_status status, const char *message)
{
    struct gw_remote *remote = read->node->remote;
    if (read->status == PP_OK && status == PP_OK && read->next != read->end) {
        status = PP_INTERNAL;
        message = "the rows ended early";
    }
    if (read->status == PP_OK && status != PP_OK) {
        read->status = status;
        snprintf(read->message, sizeof(read->message), "%s", message != NULL ? message : "");
    }
    atomic_store_explicit(&read->done, true, memory_order_release);
    gw_remote_signal(remote);
}

/* Where the section lies in the payload; NULL unless there is one of that kind and size. */
static const uint8_t *read_section(const Pigpen__V1__ReadKvResponse *answer,
                                   const struct pp_payload_view *payload,
                                   Pigpen__V1__SectionKind kind, uint64_t bytes)
{
    const uint8_t *found = NULL;
    for (size_t i = 0; i < answer->n_sections; ++i) {
        const Pigpen__V1__Section *section = answer->sections[i];
        bool inside = section->offset <= payload->bytes && bytes <= payload->bytes &&
                      section->offset <= payload->bytes - bytes;
        if (section->kind == kind && section->bytes == bytes && inside && found == NULL) {
            found = payload->data + section->offset;
        }
    }
    return found;
}

/* Takes a message's rows; NULL when right, else the cause in words. */
static const char *read_take(struct gw_read *read, const Pigpen__V1__ReadKvResponse *answer,
                             const struct pp_payload_view *payload, enum pp_status *status_out)
{
    *status_out = PP_INTERNAL;
    if (answer->incarnation != read->ref.incarnation) {
        *status_out = PP_INCARNATION_CHANGED;
        return "rows of another incarnation";
    }
    if (answer->layer != read->layer || answer->start != read->next || answer->count == 0 ||
        answer->count > read->end - read->next) {
        return "other rows than those asked for";
    }
    uint64_t bytes = answer->count * read->row_bytes;
    const uint8_t *k =
        read_section(answer, payload, PIGPEN__V1__SECTION_KIND__SECTION_KIND_K, bytes);
    const uint8_t *v =
        read_section(answer, payload, PIGPEN__V1__SECTION_KIND__SECTION_KIND_V, bytes);
    if (k == NULL || v == NULL) {
        return "rows of another size";
    }
    if (pp_crc32c(0, payload->data, payload->bytes) != answer->crc32c) {
        *status_out = PP_CHECKSUM;
        return "rows whose checksum is wrong";
    }
    for (uint32_t i = 0; i < answer->count; ++i) {
        memcpy(read->k, k + i * read->row_bytes, read->row_bytes);
        memcpy(read->v, v + i * read->row_bytes, read->row_bytes);
        read->k += read->token_bytes;
        read->v += read->token_bytes;
    }
    read->next += answer->count;
    return NULL;
}

static void on_message(void *context, struct pp_call *call, struct pp_message *message)
{
    struct gw_read *read = context;
    struct gw_remote *remote = read->node->remote;
    ProtobufCMessage *header = NULL;
    struct pp_payload_view payload;
    const char *cause = "rows that cannot be read";
    pp_codec_arena_reset(&remote->arena);
    enum pp_status status = pp_codec_unpack(message, &pigpen__v1__read_kv_response__descriptor,
                                            &remote->arena, &header, &payload);
    if (status == PP_OK && read->status == PP_OK) {
        cause = read_take(read, (const Pigpen__V1__ReadKvResponse *)header, &payload, &status);
        status = cause == NULL ? PP_OK : status;
    }
    pp_message_release(message);
    if (status != PP_OK && read->status == PP_OK) {
        read->status = status;
        snprintf(read->message, sizeof(read->message), "%s", cause);
        remote->config.transport->ops->call_cancel(call);
        return;
    }
    remote->config.transport->ops->call_receive(call);
}

static void on_ended(void *context, struct pp_call *call, const struct pp_call_end *end)
{
    struct gw_read *read = context;
    (void)call;
    read->call = NULL;
    bool cancelled = atomic_load(&read->cancelled) && end->status == PP_CANCELLED;
    read_done(read, cancelled ? PP_DEADLINE_EXCEEDED : end->status, end->message);
}

static const struct pp_call_events read_events = {.message = on_message, .ended = on_ended};

static enum pp_status read_send(struct gw_read *read)
{
    Pigpen__V1__ReadKvRequest request = PIGPEN__V1__READ_KV_REQUEST__INIT;
    uint8_t packed[128];
    size_t bytes;
    request.part = &read->ref;
    request.layer = read->layer;
    request.start = read->next;
    request.count = read->end - read->next;
    PP_TRY(pp_codec_pack(&request.base, 0, packed, sizeof(packed), &bytes));
    return read->node->remote->config.transport->ops->call_send(read->call, packed, bytes, NULL,
                                                                true);
}

static void run_start(struct gw_remote *remote, struct gw_command *command)
{
    struct gw_read *read = (struct gw_read *)((char *)command - offsetof(struct gw_read, start));
    const struct pp_transport_ops *ops = remote->config.transport->ops;
    enum pp_status status = PP_UNAVAILABLE;
    if (read->node->bulk != NULL) {
        status = ops->call_start(read->node->bulk, READ_PATH, PP_CALL_SERVER_STREAM,
                                 read->deadline_us, &read_events, read, &read->call);
    }
    if (status != PP_OK) {
        read_done(read, status, "the stream could not be started");
        return;
    }
    ops->call_receive(read->call);
    status = read_send(read);
    if (status != PP_OK) {
        read->status = status;
        ops->call_cancel(read->call);
    }
}

static void run_cancel(struct gw_remote *remote, struct gw_command *command)
{
    struct gw_read *read = (struct gw_read *)((char *)command - offsetof(struct gw_read, cancel));
    if (read->call != NULL) {
        remote->config.transport->ops->call_cancel(read->call);
    }
}

void gw_read_start(struct gw_read *read, struct gw_part *part, uint32_t layer, uint64_t start,
                   uint64_t count, uint8_t *k_out, uint8_t *v_out, uint64_t token_bytes)
{
    const struct pp_shape *shape = &part->sequence->config.shape;
    struct gw_remote *remote = part->sequence->remote;
    uint64_t heads = part->sequence->route.parts[part->index].kv_head_count;
    memset(read, 0, sizeof(*read));
    read->start.run = run_start;
    read->cancel.run = run_cancel;
    read->node = part->node;
    pigpen__v1__part_ref__init(&read->ref);
    read->ref.handle = part->handle;
    read->ref.incarnation = part->incarnation;
    read->ref.generation = part->sequence->generation;
    read->layer = layer;
    read->next = start;
    read->end = start + count;
    read->k = k_out;
    read->v = v_out;
    read->row_bytes = heads * pp_vector_bytes(shape->head_dim, shape->kv_dtype);
    read->token_bytes = token_bytes;
    read->deadline_us = gw_remote_now(remote) + remote->config.call_timeout_us;
    gw_remote_post(remote, &read->start);
}

void gw_read_cancel(struct gw_read *read)
{
    if (!atomic_load(&read->done) && !atomic_load(&read->cancelled)) {
        atomic_store(&read->cancelled, true);
        gw_remote_post(read->node->remote, &read->cancel);
    }
}

enum pp_status gw_read_wait(struct gw_read *read)
{
    struct gw_remote *remote = read->node->remote;
    while (!atomic_load_explicit(&read->done, memory_order_acquire)) {
        uint64_t now_us = gw_remote_now(remote);
        if (now_us >= read->deadline_us + READ_GRACE_US) {
            gw_read_cancel(read);
        }
        gw_remote_pause(remote, now_us + GW_WAIT_PAUSE_US);
    }
    return read->status;
}

/* A node that holds the part; NULL when it has just been lost. */
static struct gw_part *find_part(const struct gw_remote_sequence *sequence, uint32_t index)
{
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        struct gw_part *part = sequence->parts[i];
        if (part->index == index && !atomic_load(&part->lost)) {
            return part;
        }
    }
    return NULL;
}

/* Rows of a layer that are read back, and where they go. */
struct wanted {
    uint32_t layer;
    uint64_t start, end;
    uint8_t *k, *v;
};

/* A share of the rows, that of one part. */
struct share {
    struct gw_read read;
    struct gw_part *part; /* whose answer is waited for */
    bool there;
};

/* Asks for part i's share; PP_UNAVAILABLE when no node holds it. */
static enum pp_status share_start(struct gw_remote_sequence *sequence, uint32_t i,
                                  const struct wanted *wanted, struct share *share)
{
    const struct pp_shape *shape = &sequence->config.shape;
    const struct gw_route_part *route = &sequence->route.parts[i];
    uint64_t head_bytes = pp_vector_bytes(shape->head_dim, shape->kv_dtype);
    uint64_t token_bytes = head_bytes * shape->kv_heads;
    uint64_t begin = gw_route_part_tokens(&sequence->route, i, wanted->start);
    uint64_t end = gw_route_part_tokens(&sequence->route, i, wanted->end);
    uint64_t skipped = wanted->start < route->token_begin ? route->token_begin - wanted->start : 0;
    uint64_t at = skipped * token_bytes + route->kv_head_begin * head_bytes;
    share->part = NULL;
    share->there = share->there || end == begin;
    if (share->there) {
        return PP_OK;
    }
    share->part = find_part(sequence, i);
    if (share->part == NULL) {
        return PP_UNAVAILABLE;
    }
    gw_read_start(&share->read, share->part, wanted->layer, begin, end - begin, wanted->k + at,
                  wanted->v + at, token_bytes);
    return PP_OK;
}

/* All shares that are not there yet at once. A node that failed is lost to the sequence; where
 * another holds the part that is asked next time: *all_out says that none is needed. */
static enum pp_status read_shares(struct gw_remote_sequence *sequence, const struct wanted *wanted,
                                  struct share *shares, bool *all_out)
{
    enum pp_status status = PP_OK;
    *all_out = true;
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        enum pp_status started = share_start(sequence, i, wanted, &shares[i]);
        status = started != PP_OK ? started : status;
    }
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        struct share *share = &shares[i];
        if (share->part == NULL) {
            continue;
        }
        enum pp_status read = gw_read_wait(&share->read);
        share->there = read == PP_OK;
        *all_out = *all_out && share->there;
        if (read != PP_OK) {
            gw_part_fail_from_engine(share->part, read, "read", share->read.message);
        }
    }
    enum pp_status failed = gw_sequence_failed(sequence);
    return failed != PP_OK ? failed : status;
}

enum pp_status gw_remote_read(struct gw_remote_sequence *sequence, uint32_t layer, uint64_t start,
                              uint32_t count, void *k_out, void *v_out)
{
    PP_TRY(gw_sequence_failed(sequence));
    if (layer >= sequence->config.shape.layers || count == 0 || start > sequence->handed[layer] ||
        count > sequence->handed[layer] - start) {
        return PP_OUT_OF_RANGE;
    }
    PP_TRY(gw_remote_flush(sequence));
    struct share *shares = calloc(sequence->route.part_count, sizeof(*shares));
    if (shares == NULL) {
        return PP_MEMORY;
    }
    const struct wanted wanted = {layer, start, start + count, k_out, v_out};
    enum pp_status status = PP_OK;
    for (bool all = false; status == PP_OK && !all;) { /* every turn but the last loses a node */
        status = read_shares(sequence, &wanted, shares, &all);
    }
    free(shares);
    return status;
}
