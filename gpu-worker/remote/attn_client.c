/*
 * Attends on the wire: sends what nodes are asked on their streams, parts that are asked together
 * in one message, and matches and checks the answers. On the walk: remote/route > attn_client >
 * rpc, rpc > attn_client > ops. It refuses to know other parts and the merge.
 *
 * A late answer (its request has ended) is dropped. A stream that breaks ends every request on it;
 * the next request opens a new one.
 */
#include "gpu-worker/remote/attn_client.h"

#include <stddef.h>

#include "common/base/log.h"
#include "gpu-worker/remote/node.h"

#define ATTEND_PATH "/pigpen.v1.AttentionService/AttendStream"

static struct gw_part *part_of(struct gw_ask *ask)
{
    return (void *)((char *)ask - offsetof(struct gw_part, ask));
}

static void unlink_ask(struct gw_node *node, struct gw_ask *ask)
{
    struct gw_ask **link = &node->waiting_first;
    struct gw_ask *before = NULL;
    while (*link != ask) {
        before = *link;
        link = &before->next;
    }
    *link = ask->next;
    node->waiting_last = node->waiting_last == ask ? before : node->waiting_last;
    ask->waiting = false;
}

static void link_ask(struct gw_node *node, struct gw_ask *ask)
{
    ask->next = NULL;
    ask->waiting = true;
    if (node->waiting_last != NULL) {
        node->waiting_last->next = ask;
    } else {
        node->waiting_first = ask;
    }
    node->waiting_last = ask;
}

void gw_attn_client_drop(struct gw_part *part, bool owes)
{
    struct gw_node *node = part->node;
    if (part->ask.waiting) {
        unlink_ask(node, &part->ask);
        node->silent_us = owes && node->silent_us == 0 ? part->ask.sent_us : node->silent_us;
    }
}

/* The longest of the first ones, then about the 99th percentile: up by much when an answer takes
 * longer, down by little when not. */
static void note_time(struct gw_node *node, uint64_t took_us)
{
    uint64_t step = node->slow_us / 16 + 1;
    bool first = node->answers < GW_FIRST_ANSWERS;
    node->answers += first ? 1 : 0;
    pp_stat_observe(node->rtt, (double)took_us * 1e-6);
    if (took_us > node->slow_us) {
        node->slow_us = first ? took_us : node->slow_us + step;
    } else if (first) {
        return;
    } else {
        node->slow_us -= (step + 98) / 99 < node->slow_us ? (step + 98) / 99 : node->slow_us;
    }
}

/* One part's answer, of a message that may have those of others. */
static void take_item(struct gw_ask *ask, const Pigpen__V1__AttendResponse *answer,
                      const struct pp_payload_view *payload, uint64_t now_us)
{
    struct gw_part *part = part_of(ask);
    struct gw_dispatch *dispatch = &part->sequence->sets[part->index].dispatch;
    enum pp_status status = PP_INTERNAL;
    const char *cause = gw_attn_client_take(part, answer, payload, &status);
    if (cause != NULL) {
        gw_part_fail(part, status, "attend of layer %u: %s", dispatch->layer, cause);
        return;
    }
    dispatch->answered_us = now_us;
    unlink_ask(part->node, ask);
    gw_set_answered(part);
}

static struct gw_ask *asked_by(const struct gw_node *node, uint64_t request_id)
{
    struct gw_ask *ask = node->waiting_first;
    while (ask != NULL && ask->request_id != request_id) {
        ask = ask->next;
    }
    return ask;
}

static void take_answer(struct gw_node *node, const Pigpen__V1__AttendResponse *answer,
                        const struct pp_payload_view *payload)
{
    struct gw_ask *ask = asked_by(node, answer->request_id);
    uint64_t now_us = gw_remote_now(node->remote);
    if (ask == NULL) {
        pp_stat_add(node->remote->late_answers, 1);
        return;
    }
    if (answer->draining && !atomic_load(&node->draining)) {
        gw_node_drains(node);
    }
    note_time(node, now_us > ask->sent_us ? now_us - ask->sent_us : 0);
    /* Whatever becomes of one, it waits no longer. */
    for (; ask != NULL; ask = asked_by(node, answer->request_id)) {
        take_item(ask, answer, payload, now_us);
    }
}

static void on_message(void *context, struct pp_call *call, struct pp_message *message)
{
    struct gw_node *node = context;
    struct gw_remote *remote = node->remote;
    ProtobufCMessage *answer = NULL;
    struct pp_payload_view payload;
    node->silent_us = 0;
    pp_codec_arena_reset(&remote->arena);
    enum pp_status status = pp_codec_unpack(message, &pigpen__v1__attend_response__descriptor,
                                            &remote->arena, &answer, &payload);
    if (status == PP_OK) {
        take_answer(node, (const Pigpen__V1__AttendResponse *)(const void *)answer, &payload);
    } else if (node->waiting_first != NULL) {
        gw_part_fail(part_of(node->waiting_first), PP_INTERNAL,
                     "attend: an answer that is no AttendResponse (%s)", pp_status_name(status));
    }
    pp_message_release(message);
    remote->config.transport->ops->call_receive(call);
}

static void on_ended(void *context, struct pp_call *call, const struct pp_call_end *end);

static const struct pp_call_events attend_events = {.message = on_message, .ended = on_ended};

enum pp_status gw_attn_client_open(struct gw_node *node)
{
    const struct pp_transport_ops *ops = node->remote->config.transport->ops;
    if (node->attend_call != NULL) {
        return PP_OK;
    }
    PP_TRY(ops->call_start(node->latency, ATTEND_PATH, PP_CALL_BIDI, 0, &attend_events, node,
                           &node->attend_call));
    ops->call_receive(node->attend_call);
    return PP_OK;
}

/* The bytes of a part's request, for one more sender. */
static struct pp_payload payload_of(const struct gw_part *part)
{
    const struct gw_dispatch *dispatch = &part->sequence->sets[part->index].dispatch;
    struct gw_buffer *buffer = dispatch->sending;
    atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed);
    return (struct pp_payload){.data = buffer->data,
                               .bytes = dispatch->payload_bytes,
                               .release = gw_buffer_release,
                               .context = buffer};
}

static enum pp_status send_ask(struct gw_part *part)
{
    struct gw_node *node = part->node;
    part->ask.call = NULL;
    part->ask.request_id = part->ask.own_id;
    part->ask.item = 0;
    part->ask.items = 1;
    PP_TRY(gw_attn_client_open(node));
    part->ask.call = node->attend_call;
    struct pp_payload payload = payload_of(part);
    enum pp_status status = node->remote->config.transport->ops->call_send(
        node->attend_call, part->ask.header, part->ask.header_bytes, &payload, false);
    if (status != PP_OK) {
        payload.release(payload.context);
        part->ask.call = NULL;
    }
    return status;
}

/* Several parts' requests as one message. A failure leaves them to be sent each by itself. */
static enum pp_status send_together(struct gw_node *node, struct gw_part *const *parts,
                                    uint32_t count)
{
    struct gw_remote *remote = node->remote;
    struct pp_payload payloads[GW_ATTEND_ITEMS_MAX];
    /* Not an id of a request that is sent by itself. */
    uint64_t request_id = 1ull << 63 | remote->next_together++;
    uint32_t header_bytes;
    PP_TRY(gw_attend_pack(parts, count, request_id, remote->together, sizeof(remote->together),
                          &header_bytes));
    PP_TRY(gw_attn_client_open(node));
    for (uint32_t i = 0; i < count; ++i) {
        payloads[i] = payload_of(parts[i]);
        payloads[i].next = i + 1 < count ? &payloads[i + 1] : NULL;
    }
    enum pp_status status = remote->config.transport->ops->call_send(
        node->attend_call, remote->together, header_bytes, payloads, false);
    for (uint32_t i = 0; i < count; ++i) {
        if (status != PP_OK) {
            payloads[i].release(payloads[i].context);
            continue;
        }
        parts[i]->ask.call = node->attend_call;
        parts[i]->ask.request_id = request_id;
        parts[i]->ask.item = i;
        parts[i]->ask.items = count;
    }
    return status;
}

void gw_attn_client_ask(struct gw_part *part)
{
    const struct gw_remote *remote = part->sequence->remote;
    part->ask.sent_us = gw_remote_now(remote);
    part->ask.deadline_us = part->ask.sent_us + remote->config.attend_timeout_us;
    part->ask.call = NULL;
    part->ask.send_status = PP_OK;
    part->ask.held_back = remote->together_waits;
    link_ask(part->node, &part->ask);
    if (!part->ask.held_back) {
        part->ask.send_status = send_ask(part);
    }
}

/* The first that is held back, and those behind it that go into one message with it. */
static uint32_t held_back(const struct gw_node *node, struct gw_part **parts_out)
{
    uint64_t bytes = 0, bytes_max = node->limits.message_bytes_max / 2; /* a header is less */
    uint32_t count = 0;
    for (struct gw_ask *ask = node->waiting_first; ask != NULL && count < GW_ATTEND_ITEMS_MAX;
         ask = ask->next) {
        struct gw_part *part = part_of(ask);
        bytes += ask->held_back ? part->sequence->sets[part->index].dispatch.payload_bytes : 0;
        bool fits = count == 0 || (bytes <= bytes_max && gw_attend_packs_with(part, parts_out[0]));
        if (ask->held_back && fits) {
            parts_out[count++] = part;
        }
    }
    return count;
}

void gw_attn_client_send_held_back(struct gw_node *node)
{
    struct gw_part *parts[GW_ATTEND_ITEMS_MAX];
    for (uint32_t count; (count = held_back(node, parts)) > 0;) {
        bool sent = count > 1 && send_together(node, parts, count) == PP_OK;
        for (uint32_t i = 0; i < count; ++i) {
            parts[i]->ask.held_back = false;
            parts[i]->ask.send_status = sent ? PP_OK : send_ask(parts[i]);
        }
    }
}

static struct gw_ask *asked_on(const struct gw_node *node, const struct pp_call *call)
{
    struct gw_ask *ask = node->waiting_first;
    while (ask != NULL && ask->call != call) {
        ask = ask->next;
    }
    return ask;
}

/* A pure read may be asked again: a connection that broke need not mean a node that is gone. */
static void on_ended(void *context, struct pp_call *call, const struct pp_call_end *end)
{
    struct gw_node *node = context;
    if (call != node->attend_call) {
        return;
    }
    node->attend_call = NULL;
    node->silent_us = 0;
    enum pp_status status = end->status == PP_OK ? PP_UNAVAILABLE : end->status;
    if (asked_on(node, call) == NULL) {
        gw_node_doubt(node);
    }
    for (struct gw_ask *ask; (ask = asked_on(node, call)) != NULL;) {
        if (!ask->sent_again) {
            ask->sent_again = true;
            ask->send_status = send_ask(part_of(ask));
        } else {
            gw_part_fail(part_of(ask), status, "attend stream broken: %s",
                         end->message != NULL ? end->message : "");
        }
    }
}

/* An ask that has ended without an answer; NULL: none. */
static struct gw_ask *ended_ask(const struct gw_node *node, uint64_t now_us)
{
    struct gw_ask *ask = node->waiting_first;
    while (ask != NULL && ask->send_status == PP_OK && now_us < ask->deadline_us) {
        ask = ask->next;
    }
    return ask;
}

/* The node has owed an answer for as long as a node may be silent: it is lost to everybody. */
static void lose_silent(struct gw_node *node)
{
    struct gw_remote *remote = node->remote;
    node->silent_us = 0;
    for (struct gw_remote_sequence *sequence = remote->sequences; sequence != NULL;
         sequence = sequence->next) {
        for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
            const struct gw_set *set = &sequence->sets[i];
            for (uint32_t j = 0; j < set->member_count; ++j) {
                if (set->members[j]->node == node) {
                    gw_part_fail(set->members[j], PP_DEADLINE_EXCEEDED, "silent for %llu ms",
                                 (unsigned long long)(remote->config.attend_timeout_us / 1000));
                    break;
                }
            }
        }
    }
}

/* What a node that answers nothing still holds of requests is given back. */
static void renew_stream(struct gw_node *node)
{
    struct pp_call *call = node->attend_call;
    node->renew_attend = false;
    node->attend_call = NULL;
    node->silent_us = 0;
    if (call != NULL) {
        node->remote->config.transport->ops->call_cancel(call);
    }
}

uint64_t gw_attn_client_tick(struct gw_node *node, uint64_t now_us)
{
    uint64_t timeout_us = node->remote->config.attend_timeout_us;
    for (struct gw_ask *ask; (ask = ended_ask(node, now_us)) != NULL;) {
        struct gw_part *part = part_of(ask);
        uint32_t layer = part->sequence->sets[part->index].dispatch.layer;
        if (ask->send_status != PP_OK) {
            gw_part_fail(part, ask->send_status, "attend of layer %u could not be sent", layer);
        } else {
            gw_part_fail(part, PP_DEADLINE_EXCEEDED, "attend of layer %u: no answer within %llu ms",
                         layer, (unsigned long long)(timeout_us / 1000));
        }
    }
    if (node->silent_us != 0 && now_us >= node->silent_us + timeout_us) {
        lose_silent(node);
    }
    if (node->renew_attend && node->waiting_first == NULL) {
        renew_stream(node);
    }
    uint64_t next_us = node->silent_us != 0 ? node->silent_us + timeout_us : UINT64_MAX;
    for (const struct gw_ask *ask = node->waiting_first; ask != NULL; ask = ask->next) {
        next_us = ask->deadline_us < next_us ? ask->deadline_us : next_us;
    }
    return next_us;
}
