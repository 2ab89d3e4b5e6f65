/*
 * Appends: the engine thread cuts rows into chunks, the rpc thread sends them in order on one
 * stream a node and drops them when acknowledged. On the walk: engine/sequence > remote/outbox >
 * rpc, and the acknowledgement back into the sequence's held counts. It refuses to know tokens'
 * meaning.
 *
 * A node's queue is one list: the first in_flight chunks are sent, `unsent` is the next to send.
 * When the stream ends, everything goes back to unsent and a new stream sends it again.
 */
#include "gpu-worker/remote/outbox.h"

#include <stdio.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "gpu-worker/remote/attn_client.h"
#include "gpu-worker/remote/node.h"

#define APPEND_PATH  "/pigpen.v1.AttentionService/AppendKvStream"
#define SECTIONS_MAX 5u
/* A broken stream is opened again after this, as long as the stall limit is not reached. */
#define REOPEN_US 50000u

static void queue_push(struct gw_node *node, struct gw_chunk *chunk)
{
    chunk->next = NULL;
    if (node->queue_last != NULL) {
        node->queue_last->next = chunk;
    } else {
        node->queue_first = chunk;
        node->stall_us = gw_remote_now(node->remote) + node->remote->config.attend_timeout_us;
    }
    node->queue_last = chunk;
    if (node->unsent == NULL) {
        node->unsent = chunk;
    }
}

/* Takes out every chunk that `goes` wants; in_flight and unsent follow. */
static void queue_remove(struct gw_node *node,
                         bool (*goes)(const struct gw_chunk *chunk, const void *context),
                         const void *context)
{
    struct gw_chunk *kept_last = NULL;
    struct gw_chunk **link = &node->queue_first;
    uint32_t sent_left = node->in_flight;
    while (*link != NULL) {
        struct gw_chunk *chunk = *link;
        bool sent = sent_left > 0;
        sent_left -= sent ? 1 : 0;
        if (!goes(chunk, context)) {
            kept_last = chunk;
            link = &chunk->next;
            continue;
        }
        *link = chunk->next;
        node->in_flight -= sent ? 1 : 0;
        node->unsent = chunk == node->unsent ? chunk->next : node->unsent;
        struct gw_remote_sequence *sequence = chunk->part->sequence;
        gw_chunk_release(chunk);
        atomic_fetch_sub_explicit(&sequence->chunks_waiting, 1, memory_order_acq_rel);
    }
    node->queue_last = kept_last;
}

struct ack {
    const struct gw_part *part;
    uint32_t layer;
    uint64_t held_tokens;
};

static bool acknowledged(const struct gw_chunk *chunk, const void *context)
{
    const struct ack *ack = context;
    return chunk->part == ack->part && chunk->layer == ack->layer && chunk->end <= ack->held_tokens;
}

static bool of_part(const struct gw_chunk *chunk, const void *context)
{
    return chunk->part == context;
}

void gw_outbox_drop(const struct gw_part *part)
{
    struct gw_node *node = part->node;
    uint32_t before = node->in_flight;
    queue_remove(node, of_part, part);
    if (node->in_flight < before && node->abandoned == 0) {
        node->owed_us = gw_remote_now(node->remote) + node->remote->config.attend_timeout_us;
    }
    node->abandoned += before - node->in_flight;
}

static void take_ack(struct gw_node *node, const struct ack *ack)
{
    struct gw_remote_sequence *sequence = ack->part->sequence;
    if (ack->held_tokens > atomic_load(&ack->part->acked[ack->layer])) {
        atomic_store(&ack->part->acked[ack->layer], ack->held_tokens);
    }
    gw_set_count_held(sequence, ack->layer);
    uint32_t before = node->in_flight;
    queue_remove(node, acknowledged, ack);
    if (node->in_flight < before) {
        node->stall_us = gw_remote_now(node->remote) + node->remote->config.attend_timeout_us;
    }
    gw_remote_signal(node->remote);
}

static void stream_lost(struct gw_node *node, enum pp_status status, const char *message)
{
    node->append_status = status;
    snprintf(node->append_message, sizeof(node->append_message), "%s",
             message != NULL ? message : "");
    node->append_call = NULL;
    node->abandoned = 0;
    node->unsent = node->queue_first;
    if (node->in_flight > 0) {
        pp_stat_add(node->remote->append_resends, node->in_flight);
    }
    node->in_flight = 0;
    node->reopen_us = gw_remote_now(node->remote) + REOPEN_US;
}

/* The node asked for something again: everything unacknowledged is sent on a new stream. */
static void rewind_stream(struct gw_node *node, enum pp_status status, const char *message)
{
    struct pp_call *call = node->append_call;
    stream_lost(node, status, message);
    node->remote->config.transport->ops->call_cancel(call);
}

static void refuse(struct gw_node *node, struct gw_chunk *chunk, const Pigpen__V1__Status *status)
{
    enum pp_status reason = pp_status_from_wire((int)status->code, status->reason);
    uint64_t acked = atomic_load(&chunk->part->acked[chunk->layer]);
    bool again = reason == PP_CHECKSUM || reason == PP_QUEUE ||
                 (reason == PP_APPEND_GAP && status->expected_start >= acked &&
                  status->expected_start < chunk->start);
    if (again) {
        PP_LOG_WARNF("outbox", "node asks for rows again", "node=%s reason=%s layer=%u start=%llu",
                     node->address.name, pp_status_name(reason), chunk->layer,
                     (unsigned long long)chunk->start);
        rewind_stream(node, reason, status->message);
        return;
    }
    if (reason == PP_MEMORY) {
        gw_part_full(chunk->part, status->message);
        return;
    }
    gw_part_fail(chunk->part, reason, "append of layer %u at %llu: %s", chunk->layer,
                 (unsigned long long)chunk->start, status->message);
}

static void take_answer(struct gw_node *node, const Pigpen__V1__AppendKvResponse *answer)
{
    struct gw_chunk *chunk = node->queue_first;
    gw_node_take_free(node, answer->memory_free_bytes);
    while (chunk != node->unsent && chunk->request_id != answer->request_id) {
        chunk = chunk->next;
    }
    if (chunk == node->unsent) { /* of a part that has gone, or acknowledged by a later answer */
        node->abandoned -= node->abandoned > 0 ? 1 : 0;
        node->owed_us = gw_remote_now(node->remote) + node->remote->config.attend_timeout_us;
        return;
    }
    struct gw_part *part = chunk->part;
    if (answer->status != NULL && answer->status->code != 0) {
        refuse(node, chunk, answer->status);
    } else if (answer->incarnation != part->incarnation) {
        gw_part_fail(part, PP_INCARNATION_CHANGED,
                     "append answered by another incarnation: the node was restarted");
    } else if (answer->layer != chunk->layer || answer->held_tokens > part->sent[chunk->layer]) {
        gw_part_fail(part, PP_INTERNAL,
                     "acknowledged layer %u up to %llu, sent was layer %u up to %llu",
                     answer->layer, (unsigned long long)answer->held_tokens, chunk->layer,
                     (unsigned long long)part->sent[chunk->layer]);
    } else {
        take_ack(node, &(struct ack){part, chunk->layer, answer->held_tokens});
    }
}

static void on_message(void *context, struct pp_call *call, struct pp_message *message)
{
    struct gw_node *node = context;
    struct gw_remote *remote = node->remote;
    if (call != node->append_call) {
        pp_message_release(message);
        remote->config.transport->ops->call_receive(call); /* its end is still to come */
        return;
    }
    ProtobufCMessage *answer = NULL;
    struct pp_payload_view payload;
    pp_codec_arena_reset(&remote->arena);
    enum pp_status status = pp_codec_unpack(message, &pigpen__v1__append_kv_response__descriptor,
                                            &remote->arena, &answer, &payload);
    if (status != PP_OK) {
        rewind_stream(node, PP_INTERNAL, "an answer that is no AppendKvResponse");
    } else {
        take_answer(node, (const Pigpen__V1__AppendKvResponse *)(const void *)answer);
    }
    pp_message_release(message);
    if (call == node->append_call) {
        remote->config.transport->ops->call_receive(call);
        gw_outbox_pump(node);
    }
}

static void on_writable(void *context, struct pp_call *call)
{
    struct gw_node *node = context;
    if (call == node->append_call) {
        gw_outbox_pump(node);
    }
}

static void on_ended(void *context, struct pp_call *call, const struct pp_call_end *end)
{
    struct gw_node *node = context;
    if (call != node->append_call) {
        return;
    }
    stream_lost(node, end->status == PP_OK ? PP_UNAVAILABLE : end->status, end->message);
    if (node->queue_first == NULL) {
        gw_node_doubt(node);
    }
}

static const struct pp_call_events append_events = {
    .message = on_message,
    .writable = on_writable,
    .ended = on_ended,
};

enum pp_status gw_outbox_open(struct gw_node *node)
{
    const struct pp_transport_ops *ops = node->remote->config.transport->ops;
    if (node->append_call != NULL) {
        return PP_OK;
    }
    if (node->bulk == NULL) {
        gw_node_reopen_bulk(node);
    }
    if (node->bulk == NULL) {
        return PP_UNAVAILABLE;
    }
    PP_TRY(ops->call_start(node->bulk, APPEND_PATH, PP_CALL_BIDI, 0, &append_events, node,
                           &node->append_call));
    ops->call_receive(node->append_call);
    return PP_OK;
}

void gw_node_open_streams(struct gw_node *node)
{
    (void)gw_attn_client_open(node);
    (void)gw_outbox_open(node);
}

static void chunk_sent(void *context)
{
    struct gw_chunk *chunk = context;
    struct gw_outbox_memory *memory = chunk->memory;
    gw_chunk_release(chunk);
    gw_outbox_memory_release(memory);
}

/* Sends one; false when the stream has no room. */
static bool send_chunk(struct gw_node *node, struct gw_chunk *chunk)
{
    struct pp_payload payload = {
        .data = chunk->payload,
        .bytes = chunk->payload_bytes,
        .release = chunk_sent,
        .context = chunk,
    };
    atomic_fetch_add_explicit(&chunk->memory->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&chunk->refs, 1, memory_order_relaxed);
    enum pp_status status = node->remote->config.transport->ops->call_send(
        node->append_call, chunk->header, chunk->header_bytes, &payload, false);
    if (status == PP_OK) {
        return true;
    }
    /* Not sent: the payload is still ours. A full queue becomes writable, a call that is ending
     * ends; anything else is met by the stall limit. */
    chunk_sent(chunk);
    if (status != PP_QUEUE) {
        node->append_status = status;
    }
    return false;
}

/* A clock that went back since does not make it a longer pause: rows would be lost by it, and lost
 * again on every node that they are sent to. */
static bool pauses(const struct gw_node *node)
{
    uint64_t now_us = gw_remote_now(node->remote);
    return now_us < node->reopen_us && node->reopen_us - now_us <= REOPEN_US;
}

void gw_outbox_pump(struct gw_node *node)
{
    uint32_t window = node->limits.stream_window;
    if (node->unsent == NULL) {
        return;
    }
    if (node->append_call == NULL) {
        if (pauses(node)) {
            return;
        }
        enum pp_status status = gw_outbox_open(node);
        if (status != PP_OK) {
            stream_lost(node, status, "no stream could be opened");
            return;
        }
    }
    while (node->unsent != NULL && node->in_flight < window && node->append_call != NULL) {
        struct gw_chunk *chunk = node->unsent;
        if (!send_chunk(node, chunk)) {
            return;
        }
        node->unsent = chunk->next;
        node->in_flight++;
    }
}

/* A peer that says nothing may be gone without a word: a new connection finds out at once, and the
 * bytes that the old one still holds are given back. */
static void reconnect(struct gw_node *node)
{
    stream_lost(node, PP_DEADLINE_EXCEEDED, "no acknowledgement");
    gw_node_reopen_bulk(node);
}

uint64_t gw_outbox_tick(struct gw_node *node, uint64_t now_us)
{
    bool stalled = node->queue_first != NULL && now_us >= node->stall_us;
    /* What was dropped may still be with the sender, and its bytes with it. */
    bool owing = node->abandoned > 0 && now_us >= node->owed_us;
    bool deaf = (stalled || owing || node->renew_bulk) && node->append_call != NULL;
    node->renew_bulk = false;
    while (node->queue_first != NULL && now_us >= node->stall_us) {
        if (node->append_call == NULL) {
            gw_part_fail(node->queue_first->part, node->append_status, "append stream broken: %s",
                         node->append_message);
        } else {
            gw_part_fail(node->queue_first->part, PP_DEADLINE_EXCEEDED,
                         "no append acknowledged for %llu ms",
                         (unsigned long long)(node->remote->config.attend_timeout_us / 1000));
        }
    }
    if (deaf) {
        reconnect(node);
    }
    if (node->queue_first == NULL) {
        return node->abandoned > 0 ? node->owed_us : UINT64_MAX;
    }
    /* Also when somebody else opened the stream again, or a send failed for want of memory. */
    gw_outbox_pump(node);
    bool waits = node->append_call == NULL && node->reopen_us < node->stall_us;
    return waits ? (node->reopen_us > now_us ? node->reopen_us : now_us + REOPEN_US)
                 : node->stall_us;
}

static void run_chunk(struct gw_remote *remote, struct gw_command *command)
{
    struct gw_chunk *chunk = (struct gw_chunk *)command;
    struct gw_remote_sequence *sequence = chunk->part->sequence;
    (void)remote;
    if (gw_sequence_failed(sequence) != PP_OK || atomic_load(&chunk->part->lost)) {
        gw_chunk_release(chunk);
        atomic_fetch_sub_explicit(&sequence->chunks_waiting, 1, memory_order_acq_rel);
        return;
    }
    chunk->part->sent[chunk->layer] = chunk->end;
    queue_push(chunk->part->node, chunk);
    gw_outbox_pump(chunk->part->node);
}

uint32_t gw_outbox_tokens_per_chunk(const struct gw_remote *remote, const struct gw_part *part,
                                    const struct gw_rows *rows)
{
    uint64_t row = (2 * rows->head_bytes + rows->code_bytes) * rows->kv_head_count;
    uint64_t once = (uint64_t)rows->centre_bytes + rows->balance_bytes;
    once *= rows->kv_head_count;
    uint64_t bytes = GW_CHUNK_PAYLOAD_BYTES;
    uint64_t quarter = remote->outbox->capacity / 4;
    uint64_t said = part->node->limits.message_bytes_max;
    bytes = quarter < bytes ? quarter : bytes;
    bytes = said > 8192 && said - 4096 < bytes ? said - 4096 : bytes;
    bytes = bytes > once ? bytes - once : 0;
    uint64_t tokens = bytes / row > 0 ? bytes / row : 1;
    return (uint32_t)(tokens < PP_APPEND_TOKENS_MAX ? tokens : PP_APPEND_TOKENS_MAX);
}

/* Sections of a chunk's payload in their order; how many there are. */
static size_t lay_sections(const struct gw_rows *rows, Pigpen__V1__Section *sections)
{
    const uint64_t heads = rows->kv_head_count;
    const struct {
        Pigpen__V1__SectionKind kind;
        uint64_t bytes;
    } each[SECTIONS_MAX] = {
        {PIGPEN__V1__SECTION_KIND__SECTION_KIND_K, rows->head_bytes * rows->count * heads},
        {PIGPEN__V1__SECTION_KIND__SECTION_KIND_V, rows->head_bytes * rows->count * heads},
        {PIGPEN__V1__SECTION_KIND__SECTION_KIND_SIGNATURES,
         (uint64_t)rows->code_bytes * rows->count * heads},
        {PIGPEN__V1__SECTION_KIND__SECTION_KIND_CENTRE, rows->centre_bytes * heads},
        {PIGPEN__V1__SECTION_KIND__SECTION_KIND_BALANCE, rows->balance_bytes * heads},
    };
    size_t count = 0;
    uint64_t offset = 0;
    for (size_t i = 0; i < SECTIONS_MAX; ++i) {
        if (each[i].bytes == 0) {
            continue;
        }
        pigpen__v1__section__init(&sections[count]);
        sections[count].kind = each[i].kind;
        sections[count].offset = offset;
        sections[count].bytes = each[i].bytes;
        offset += each[i].bytes;
        count++;
    }
    return count;
}

static enum pp_status pack_header(struct gw_chunk *chunk, const struct gw_rows *rows,
                                  uint32_t crc32c, bool bulk)
{
    const struct gw_remote_sequence *sequence = chunk->part->sequence;
    Pigpen__V1__PartRef part = PIGPEN__V1__PART_REF__INIT;
    Pigpen__V1__AppendKvRequest request = PIGPEN__V1__APPEND_KV_REQUEST__INIT;
    Pigpen__V1__WorkerSegment segment = PIGPEN__V1__WORKER_SEGMENT__INIT;
    Pigpen__V1__Section laid[SECTIONS_MAX];
    Pigpen__V1__Section *sections[SECTIONS_MAX];
    for (size_t i = 0; i < SECTIONS_MAX; ++i) {
        sections[i] = &laid[i];
    }
    part.handle = chunk->part->handle;
    part.incarnation = chunk->part->incarnation;
    part.generation = sequence->generation;
    segment.begin = rows->segment_begin;
    segment.count = rows->segment_count;
    request.part = &part;
    request.request_id = chunk->request_id;
    request.layer = chunk->layer;
    request.start = chunk->start;
    request.count = (uint32_t)(chunk->end - chunk->start);
    request.crc32c = crc32c;
    request.bulk = bulk;
    request.segment = rows->codes != NULL ? &segment : NULL;
    request.n_sections = lay_sections(rows, laid);
    request.sections = sections;
    size_t bytes = 0;
    PP_TRY(pp_codec_pack(&request.base, chunk->payload_bytes, chunk->header, sizeof(chunk->header),
                         &bytes));
    chunk->header_bytes = (uint32_t)bytes;
    return PP_OK;
}

static enum pp_status wait_for_room(struct gw_part *part, uint64_t payload_bytes,
                                    struct gw_chunk **chunk_out)
{
    struct gw_remote *remote = part->sequence->remote;
    uint64_t deadline_us = gw_remote_now(remote) + remote->config.call_timeout_us;
    *chunk_out = NULL;
    while (gw_remote_now(remote) < deadline_us && !atomic_load(&part->lost)) {
        PP_TRY(gw_sequence_failed(part->sequence));
        *chunk_out = gw_outbox_take(remote->outbox, payload_bytes);
        pp_stat_set(remote->outbox_bytes, (double)(remote->outbox->head - remote->outbox->tail));
        if (*chunk_out != NULL) {
            return PP_OK;
        }
        gw_remote_pause(remote, gw_remote_now(remote) + 1000);
    }
    return atomic_load(&part->lost) ? PP_OK : PP_RESOURCE_EXHAUSTED;
}

static enum pp_status append_failed(struct gw_part *part, enum pp_status status)
{
    if (gw_sequence_failed(part->sequence) == PP_OK) {
        gw_part_fail_from_engine(part, status, "append",
                                 "no room in the outbox for the call timeout");
    }
    return gw_sequence_failed(part->sequence);
}

enum pp_status gw_outbox_append(struct gw_part *part, uint32_t layer, uint64_t start,
                                const struct gw_rows *rows, bool bulk)
{
    struct gw_remote *remote = part->sequence->remote;
    uint32_t per_chunk = gw_outbox_tokens_per_chunk(remote, part, rows);
    struct gw_rows piece = *rows;
    for (uint32_t done = 0; done < rows->count; done += piece.count) {
        piece.k = rows->k + done * rows->token_bytes;
        piece.v = rows->v + done * rows->token_bytes;
        piece.count = rows->count - done < per_chunk ? rows->count - done : per_chunk;
        piece.codes = rows->codes;
        if (rows->codes != NULL) {
            piece.codes += done * (rows->token_bytes / rows->head_bytes) *
                           (rows->code_bytes / sizeof(*rows->codes));
        }
        if (done > 0) {
            piece.balance = NULL;
            piece.balance_bytes = 0;
        }
        uint64_t bytes = gw_rows_bytes(&piece);
        struct gw_chunk *chunk = NULL;
        enum pp_status status = wait_for_room(part, bytes, &chunk);
        if (status != PP_OK || chunk == NULL) { /* NULL: the part was lost, another may go on */
            return status == PP_OK ? PP_OK : append_failed(part, status);
        }
        chunk->part = part;
        chunk->layer = layer;
        chunk->start = start + done;
        chunk->end = chunk->start + piece.count;
        chunk->request_id = remote->next_request_id++;
        chunk->command.run = run_chunk;
        uint32_t crc32c = gw_rows_pack(&piece, chunk->payload);
        PP_ASSERT(pack_header(chunk, &piece, crc32c, bulk) == PP_OK); /* fixed fields: it fits */
        atomic_fetch_add_explicit(&part->sequence->chunks_waiting, 1, memory_order_relaxed);
        gw_remote_post(remote, &chunk->command);
    }
    return PP_OK;
}
