/*
 * Attends on the wire: packs a part's share of the query, sends it on the node's stream, matches
 * and checks the answer. On the walk: remote/route > attn_client > rpc, rpc > attn_client > ops.
 * It refuses to know other parts and the merge.
 *
 * A late answer (its request has ended) is dropped. A stream that breaks ends every request on it;
 * the next request opens a new one.
 */
#include "gpu-worker/remote/attn_client.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/attn/budget.h"
#include "common/base/assert.h"
#include "common/base/log.h"
#include "gpu-worker/remote/node.h"

#define ATTEND_PATH "/pigpen.v1.AttentionService/AttendStream"

enum pp_status gw_dispatch_reserve(struct gw_dispatch *dispatch, uint32_t q_rows)
{
    if (q_rows <= dispatch->rows_capacity) {
        return PP_OK;
    }
    const struct gw_remote_sequence *sequence = dispatch->set->sequence;
    uint64_t heads = (uint64_t)q_rows * dispatch->q_heads;
    uint64_t row = heads * dispatch->head_dim * sizeof(float);
    uint32_t tables = sequence->estimators.common.l;
    for (uint32_t i = 0; i < sequence->estimators.range_count; ++i) {
        uint32_t l = sequence->estimators.ranges[i].estimator.l;
        tables = l > tables ? l : tables;
    }
    uint64_t local = row + heads * sizeof(float);
    uint64_t codes = heads * tables * sizeof(uint16_t);
    gw_dispatch_deinit(dispatch);
    bool requests = true;
    for (uint32_t i = 0; i < GW_REQUESTS; ++i) {
        dispatch->requests[i] = gw_buffer_new(row + local + codes);
        requests = requests && dispatch->requests[i] != NULL;
    }
    dispatch->o = malloc(row);
    dispatch->lse = malloc(heads * sizeof(float));
    dispatch->var = malloc(heads * sizeof(float));
    dispatch->lse_var = malloc(heads * sizeof(float));
    dispatch->lse_sampled = malloc(heads * sizeof(float));
    dispatch->keys_read_head = malloc(heads * sizeof(uint32_t));
    if (!requests || dispatch->o == NULL || dispatch->lse == NULL || dispatch->var == NULL ||
        dispatch->lse_var == NULL || dispatch->lse_sampled == NULL ||
        dispatch->keys_read_head == NULL) {
        gw_dispatch_deinit(dispatch);
        return PP_MEMORY;
    }
    dispatch->rows_capacity = q_rows;
    return PP_OK;
}

void gw_dispatch_deinit(struct gw_dispatch *dispatch)
{
    for (uint32_t i = 0; i < GW_REQUESTS; ++i) {
        if (dispatch->requests[i] != NULL) {
            gw_buffer_release(dispatch->requests[i]);
        }
        dispatch->requests[i] = NULL;
    }
    free(dispatch->o);
    free(dispatch->lse);
    free(dispatch->var);
    free(dispatch->lse_var);
    free(dispatch->lse_sampled);
    free(dispatch->keys_read_head);
    dispatch->o = dispatch->lse = dispatch->var = dispatch->lse_var = NULL;
    dispatch->lse_sampled = NULL;
    dispatch->keys_read_head = NULL;
    dispatch->rows_capacity = 0;
}

/* A request buffer that no sender holds; all held is left only by waiting. */
static enum pp_status take_request(struct gw_dispatch *dispatch)
{
    struct gw_remote *remote = dispatch->set->sequence->remote;
    /* Longer than a node may be silent: then its stream gives them back. */
    uint64_t deadline_us = gw_remote_now(remote) + 2 * remote->config.attend_timeout_us;
    do {
        for (uint32_t i = 0; i < GW_REQUESTS; ++i) {
            struct gw_buffer *buffer = dispatch->requests[i];
            if (atomic_load_explicit(&buffer->refs, memory_order_acquire) == 1) {
                dispatch->sending = buffer;
                return PP_OK;
            }
        }
        gw_remote_pause(remote, gw_remote_now(remote) + 1000);
    } while (gw_remote_now(remote) < deadline_us);
    return PP_DEADLINE_EXCEEDED;
}

/* o and lse of what the asker attends itself, of the part's heads of every row, head by head. */
static uint8_t *pack_local(const struct gw_dispatch *dispatch,
                           const struct gw_remote_attend *attend, uint32_t head_begin, uint8_t *out)
{
    uint32_t q_heads = dispatch->set->sequence->config.shape.q_heads;
    uint64_t bytes = dispatch->head_dim * sizeof(float);
    for (uint32_t row = 0; row < attend->q_rows && attend->local_o != NULL; ++row) {
        for (uint32_t head = 0; head < dispatch->q_heads; ++head) {
            uint64_t at = (uint64_t)row * q_heads + head_begin + head;
            memcpy(out, attend->local_o + at * dispatch->head_dim, bytes);
            memcpy(out + bytes, attend->local_lse + at, sizeof(float));
            out += bytes + sizeof(float);
        }
    }
    return out;
}

/* The part's q heads of every row, then what is known of them here, then their signatures when
 * with_codes. */
static void pack_payload(struct gw_dispatch *dispatch, const struct gw_remote_attend *attend,
                         bool with_codes)
{
    const struct gw_remote_sequence *sequence = dispatch->set->sequence;
    const struct gw_route_part *route = &sequence->route.parts[dispatch->set->index];
    const struct pp_shape *shape = &sequence->config.shape;
    uint32_t head_begin = route->kv_head_begin * pp_shape_group(shape);
    uint64_t row_bytes = (uint64_t)dispatch->q_heads * dispatch->head_dim * sizeof(float);
    uint8_t *out = dispatch->sending->data;
    for (uint32_t row = 0; row < attend->q_rows; ++row) {
        const float *q =
            attend->q + ((uint64_t)row * shape->q_heads + head_begin) * dispatch->head_dim;
        memcpy(out, q, row_bytes);
        out += row_bytes;
    }
    out = pack_local(dispatch, attend, head_begin, out);
    if (with_codes) {
        const float *q = (const float *)(const void *)dispatch->sending->data;
        const struct pp_hash *hash = gw_remote_hash(sequence, attend->layer);
        uint32_t l = gw_remote_estimator(sequence, attend->layer)->l;
        for (uint64_t head = 0; head < (uint64_t)attend->q_rows * dispatch->q_heads; ++head) {
            pp_hash_query(hash, q + head * dispatch->head_dim, (uint16_t *)(void *)out + head * l);
        }
        out += (uint64_t)attend->q_rows * dispatch->q_heads * l * sizeof(uint16_t);
    }
    dispatch->payload_bytes = (uint64_t)(out - dispatch->sending->data);
}

void gw_estimator_pack(const struct pp_estimator *estimator, Pigpen__V1__Estimator *out)
{
    out->kind = (Pigpen__V1__EstimatorKind)estimator->kind;
    out->k = estimator->k;
    out->l = estimator->l;
    out->t = estimator->t;
    out->bits = estimator->bits;
    out->rows_share = estimator->rows_share;
    out->rows = estimator->rows;
    out->target_error = estimator->target_error;
}

/* Signatures are made with the layer's k and l; for others the node hashes. */
static bool sends_codes(const struct gw_remote_sequence *sequence,
                        const struct gw_remote_attend *attend)
{
    const struct pp_estimator *own = gw_remote_estimator(sequence, attend->layer);
    const struct pp_estimator *asked =
        attend->estimator.kind != PP_ESTIMATOR_NONE ? &attend->estimator : own;
    return gw_remote_hash(sequence, attend->layer) != NULL && asked->kind == PP_LSH &&
           asked->k == own->k && asked->l == own->l;
}

static enum pp_status pack_header(struct gw_part *part, const struct gw_dispatch *dispatch,
                                  const struct gw_remote_attend *attend, bool with_codes)
{
    const struct gw_remote_sequence *sequence = part->sequence;
    Pigpen__V1__AttendRequest request = PIGPEN__V1__ATTEND_REQUEST__INIT;
    Pigpen__V1__AttendItem item = PIGPEN__V1__ATTEND_ITEM__INIT, *items[1] = {&item};
    Pigpen__V1__Estimator estimator = PIGPEN__V1__ESTIMATOR__INIT;
    Pigpen__V1__Section q = PIGPEN__V1__SECTION__INIT, codes = PIGPEN__V1__SECTION__INIT;
    Pigpen__V1__Section local = PIGPEN__V1__SECTION__INIT, *sections[3] = {&q};
    uint64_t seeds[PP_ATTEND_ROWS_MAX];
    q.kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q;
    q.bytes = (uint64_t)attend->q_rows * dispatch->q_heads * dispatch->head_dim * sizeof(float);
    codes.kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_SIGNATURES;
    local.kind = PIGPEN__V1__SECTION_KIND__SECTION_KIND_LOCAL;
    local.offset = q.bytes;
    local.bytes = attend->local_o == NULL
                      ? 0
                      : q.bytes + (uint64_t)attend->q_rows * dispatch->q_heads * sizeof(float);
    codes.offset = q.bytes + local.bytes;
    codes.bytes = dispatch->payload_bytes - codes.offset;
    request.n_sections = 1;
    if (attend->local_o != NULL) {
        sections[request.n_sections++] = &local;
    }
    if (with_codes) {
        sections[request.n_sections++] = &codes;
    }
    item.handle = part->handle;
    item.generation = sequence->generation;
    item.held_tokens = dispatch->held_tokens;
    item.q_rows = attend->q_rows;
    if (attend->seeds != NULL) {
        memcpy(seeds, attend->seeds, attend->q_rows * sizeof(seeds[0]));
        item.n_seeds = attend->q_rows;
        item.seeds = seeds;
    }
    item.n_kv_head_shares = dispatch->share_count;
    item.kv_head_shares = (float *)(uintptr_t)dispatch->shares; /* read only */
    const struct gw_remote_sequence_config *config = &sequence->config;
    bool own = attend->estimator.kind == PP_ESTIMATOR_NONE;
    const struct pp_estimator *asked =
        own ? gw_remote_estimator(sequence, attend->layer) : &attend->estimator;
    struct pp_estimator of_part =
        pp_budget_of_part(asked, dispatch->held_tokens, attend->held_tokens);
    gw_estimator_pack(&of_part, &estimator);
    if (own && config->nodes_plan) {
        estimator.kind = PIGPEN__V1__ESTIMATOR_KIND__ESTIMATOR_KIND_UNSPECIFIED;
    }
    item.estimator = &estimator;
    request.request_id = part->ask.request_id;
    request.incarnation = part->incarnation;
    request.layer = attend->layer;
    request.timeout_us = sequence->remote->config.attend_timeout_us;
    request.q_dtype = PIGPEN__V1__DTYPE__DTYPE_F32;
    request.o_dtype = PIGPEN__V1__DTYPE__DTYPE_F32;
    request.want_errors = attend->errors;
    request.want_sampled = dispatch->sampled;
    request.n_items = 1;
    request.items = items;
    request.sections = sections;
    size_t bytes = 0;
    PP_TRY(pp_codec_pack(&request.base, dispatch->payload_bytes, part->ask.header,
                         sizeof(part->ask.header), &bytes));
    part->ask.header_bytes = (uint32_t)bytes;
    return PP_OK;
}

enum pp_status gw_dispatch_prepare(struct gw_dispatch *dispatch,
                                   const struct gw_remote_attend *attend, uint64_t held_tokens)
{
    const struct gw_remote_sequence *sequence = dispatch->set->sequence;
    const struct pp_estimator *own = gw_remote_estimator(sequence, attend->layer);
    bool named = attend->estimator.kind != PP_ESTIMATOR_NONE;
    bool exact_apart =
        !named && own->kind == PP_EXACT && pp_estimators_sample(&sequence->estimators);
    PP_TRY(take_request(dispatch));
    dispatch->layer = attend->layer;
    dispatch->q_rows = attend->q_rows;
    dispatch->held_tokens = held_tokens;
    dispatch->asked = exact_apart ? PP_ESTIMATOR_NONE : named ? attend->estimator.kind : own->kind;
    dispatch->errors = attend->errors;
    pack_payload(dispatch, attend, sends_codes(sequence, attend));
    return PP_OK;
}

enum pp_status gw_ask_prepare(struct gw_part *part, const struct gw_remote_attend *attend)
{
    const struct gw_dispatch *dispatch = &part->sequence->sets[part->index].dispatch;
    part->ask.request_id = part->sequence->remote->next_request_id++;
    part->ask.sent_again = false;
    part->ask.send_status = PP_OK;
    PP_TRY(pack_header(part, dispatch, attend, sends_codes(part->sequence, attend)));
    part->ask.ready = true;
    return PP_OK;
}

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

static void take_answer(struct gw_node *node, const Pigpen__V1__AttendResponse *answer,
                        const struct pp_payload_view *payload)
{
    struct gw_ask *ask = node->waiting_first;
    while (ask != NULL && ask->request_id != answer->request_id) {
        ask = ask->next;
    }
    if (ask == NULL) {
        pp_stat_add(node->remote->late_answers, 1);
        return;
    }
    struct gw_part *part = part_of(ask);
    struct gw_dispatch *dispatch = &part->sequence->sets[part->index].dispatch;
    enum pp_status status = PP_INTERNAL;
    const char *cause = gw_attn_client_take(part, answer, payload, &status);
    if (cause != NULL) {
        gw_part_fail(part, status, "attend of layer %u: %s", dispatch->layer, cause);
        return;
    }
    uint64_t now_us = gw_remote_now(node->remote);
    if (answer->draining && !atomic_load(&node->draining)) {
        gw_node_drains(node);
    }
    dispatch->answered_us = now_us;
    note_time(node, now_us > ask->sent_us ? now_us - ask->sent_us : 0);
    unlink_ask(node, ask);
    gw_set_answered(part);
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

static enum pp_status send_ask(struct gw_part *part)
{
    const struct gw_dispatch *dispatch = &part->sequence->sets[part->index].dispatch;
    struct gw_node *node = part->node;
    struct gw_buffer *buffer = dispatch->sending;
    struct pp_payload payload = {
        .data = buffer->data,
        .bytes = dispatch->payload_bytes,
        .release = gw_buffer_release,
        .context = buffer,
    };
    part->ask.call = NULL;
    PP_TRY(gw_attn_client_open(node));
    part->ask.call = node->attend_call;
    atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed);
    enum pp_status status = node->remote->config.transport->ops->call_send(
        node->attend_call, part->ask.header, part->ask.header_bytes, &payload, false);
    if (status != PP_OK) {
        gw_buffer_release(buffer);
        part->ask.call = NULL;
    }
    return status;
}

void gw_attn_client_ask(struct gw_part *part)
{
    const struct gw_remote *remote = part->sequence->remote;
    part->ask.sent_us = gw_remote_now(remote);
    part->ask.deadline_us = part->ask.sent_us + remote->config.attend_timeout_us;
    link_ask(part->node, &part->ask);
    part->ask.send_status = send_ask(part);
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
