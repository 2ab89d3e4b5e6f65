/*
 * The nodes that hold a part: which of them is asked, and what becomes of the sequence when one is
 * lost. On the walk: remote/attend > here > attn_client. It refuses to know messages and streams.
 *
 * Everything here but gw_set_init and gw_part_fail_from_engine runs on the rpc thread.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "gpu-worker/remote/attn_client.h"
#include "gpu-worker/remote/node.h"
#include "gpu-worker/remote/outbox.h"

#define HEDGE_US_MIN 2000u
/* How long a node that had no room for a sequence is not asked to take more of it. */
#define REFUSED_US 10000000u

enum pp_status gw_set_init(struct gw_remote_sequence *sequence, uint32_t index)
{
    const struct pp_shape *shape = &sequence->config.shape;
    const struct gw_route_part *route = &sequence->route.parts[index];
    struct gw_set *set = &sequence->sets[index];
    gw_dispatch_deinit(&set->dispatch);
    *set = (struct gw_set){.sequence = sequence, .index = index};
    set->dispatch.command.run = gw_set_run;
    set->dispatch.set = set;
    set->dispatch.q_heads = route->kv_head_count * pp_shape_group(shape);
    set->dispatch.kv_heads = route->kv_head_count;
    set->dispatch.head_dim = shape->head_dim;
    return gw_dispatch_reserve(&set->dispatch, 1);
}

void gw_set_count_held(struct gw_remote_sequence *sequence, uint32_t layer)
{
    uint64_t part_tokens[GW_NODES_MAX];
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        const struct gw_set *set = &sequence->sets[i];
        uint64_t least = set->member_count > 0 ? UINT64_MAX : 0;
        for (uint32_t j = 0; j < set->member_count; ++j) {
            uint64_t acked = atomic_load(&set->members[j]->acked[layer]);
            least = acked < least ? acked : least;
        }
        part_tokens[i] = least;
    }
    atomic_store_explicit(&sequence->held[layer], gw_route_held(&sequence->route, part_tokens),
                          memory_order_release);
}

static void set_done(struct gw_set *set)
{
    struct gw_remote_sequence *sequence = set->sequence;
    for (uint32_t i = 0; i < set->member_count; ++i) {
        gw_attn_client_drop(set->members[i], true);
    }
    set->dispatch.waiting = false;
    atomic_fetch_sub_explicit(&sequence->dispatches_waiting, 1, memory_order_acq_rel);
    gw_remote_signal(sequence->remote);
}

static bool being_asked(const struct gw_set *set)
{
    for (uint32_t i = 0; i < set->member_count; ++i) {
        if (set->members[i]->ask.waiting) {
            return true;
        }
    }
    return false;
}

static bool is_doubtful(const struct gw_node *node)
{
    return atomic_load(&node->out) && !atomic_load(&node->draining);
}

/* The first member that is not being asked, rather one whose node nobody doubts; NULL: none. */
static struct gw_part *choose_asked(const struct gw_set *set)
{
    struct gw_part *doubtful = NULL;
    for (uint32_t i = 0; i < set->member_count; ++i) {
        struct gw_part *part = set->members[i];
        if (part->ask.waiting || !part->ask.ready) {
            continue;
        }
        if (!is_doubtful(part->node)) {
            return part;
        }
        doubtful = doubtful == NULL ? part : doubtful;
    }
    return doubtful;
}

/* How long the node may take until another one is asked too. */
static uint64_t patience_us(const struct gw_node *node)
{
    const struct gw_remote_config *config = &node->remote->config;
    uint64_t learnt_us =
        node->answers == 0 ? config->attend_timeout_us / 4 : 2 * node->slow_us + HEDGE_US_MIN;
    return config->hedge_us > 0 ? config->hedge_us : learnt_us;
}

/* False when there is nobody to ask. */
static bool ask_next(struct gw_set *set)
{
    const struct gw_remote *remote = set->sequence->remote;
    struct gw_part *part = choose_asked(set);
    if (part == NULL) {
        set->hedge_us = UINT64_MAX;
        return false;
    }
    gw_attn_client_ask(part);
    set->hedge_us = gw_remote_now(remote) + patience_us(part->node);
    return true;
}

static void set_start(struct gw_set *set)
{
    set->dispatch.waiting = true;
    if (gw_sequence_failed(set->sequence) != PP_OK) {
        set_done(set);
    } else if (!ask_next(set)) {
        /* The member that was ready has been lost since, another is not. */
        gw_part_fail(set->members[0], PP_DEADLINE_EXCEEDED,
                     "attend of layer %u: earlier requests have not left yet", set->dispatch.layer);
    }
}

/* A dispatch that is done belongs to the engine thread again. */
void gw_set_run(struct gw_remote *remote, struct gw_command *command)
{
    struct gw_set *set = (void *)((char *)command - offsetof(struct gw_set, dispatch.command));
    remote->together_waits = set->dispatch.next != NULL;
    while (set != NULL) {
        struct gw_dispatch *next = set->dispatch.next;
        set_start(set);
        set = next != NULL ? next->set : NULL;
    }
    for (uint32_t i = 0; i < gw_remote_node_count(remote) && remote->together_waits; ++i) {
        gw_attn_client_send_held_back(&remote->nodes[i]);
    }
    remote->together_waits = false;
}

uint64_t gw_set_tick(struct gw_remote_sequence *sequence, uint64_t now_us)
{
    uint64_t next_us = UINT64_MAX;
    if (sequence->remote->config.replicas <= 1) {
        return next_us;
    }
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        struct gw_set *set = &sequence->sets[i];
        if (!set->dispatch.waiting) {
            continue;
        }
        if (now_us >= set->hedge_us && ask_next(set)) {
            pp_stat_add(sequence->remote->hedges, 1);
        }
        next_us = set->hedge_us < next_us ? set->hedge_us : next_us;
    }
    return next_us;
}

void gw_set_answered(struct gw_part *part)
{
    struct gw_set *set = &part->sequence->sets[part->index];
    uint32_t at = 0;
    while (set->members[at] != part) {
        at++;
    }
    /* Whoever answered first is asked first from now on. */
    for (; at > 0; --at) {
        set->members[at] = set->members[at - 1];
    }
    set->members[0] = part;
    set_done(set);
}

void gw_sequence_drop_all(struct gw_remote_sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        struct gw_set *set = &sequence->sets[i];
        if (set->dispatch.waiting) {
            set_done(set);
        }
        for (uint32_t j = 0; j < set->member_count; ++j) {
            gw_outbox_drop(set->members[j]);
        }
    }
}

/* The first failure stays, until somebody recovers from it. */
static void sequence_fail(struct gw_remote_sequence *sequence, enum pp_status status,
                          bool recoverable, const char *text)
{
    if (gw_sequence_failed(sequence) == PP_OK) {
        snprintf(sequence->error, sizeof(sequence->error), "%s", text);
        sequence->recoverable = recoverable;
        pp_stat_add(sequence->remote->failures, 1);
        atomic_store_explicit(&sequence->failed, (int)status, memory_order_release);
    }
    gw_sequence_drop_all(sequence);
    gw_remote_signal(sequence->remote);
}

/* Whether every node would refuse the same. */
static bool fault_of_request(enum pp_status status)
{
    switch (status) {
    case PP_INVALID_ARGUMENT:
    case PP_BAD_SHAPE:
    case PP_BAD_DTYPE:
    case PP_NON_FINITE:
    case PP_MESSAGE_TOO_LARGE:
    case PP_MODEL_MISMATCH:
    case PP_UNAUTHENTICATED:
    case PP_PERMISSION_DENIED:
    case PP_UNIMPLEMENTED:
        return true;
    default:
        return false;
    }
}

/* Nothing of the rpc thread leads to the part any more. */
static void lose(struct gw_part *part)
{
    struct gw_set *set = &part->sequence->sets[part->index];
    uint32_t kept = 0;
    atomic_store_explicit(&part->lost, true, memory_order_release);
    gw_attn_client_drop(part, false);
    gw_outbox_drop(part);
    for (struct gw_unary *unary = part->sequence->remote->unaries; unary != NULL;
         unary = unary->next) {
        unary->part = unary->part == part ? NULL : unary->part;
    }
    for (uint32_t i = 0; i < set->member_count; ++i) {
        if (set->members[i] != part) {
            set->members[kept++] = set->members[i];
        }
    }
    set->member_count = kept;
}

void gw_part_leave(struct gw_part *part)
{
    lose(part);
}

/* A member has gone, others are left. */
static void go_on(struct gw_set *set)
{
    struct gw_remote_sequence *sequence = set->sequence;
    for (uint32_t layer = 0; layer < sequence->config.shape.layers; ++layer) {
        gw_set_count_held(sequence, layer);
    }
    if (set->dispatch.waiting && !being_asked(set)) {
        (void)ask_next(set);
    }
    gw_remote_signal(sequence->remote);
}

/* Without this the part would be opened where it has just been refused, again and again. */
static void note_refusal(struct gw_part *part)
{
    struct gw_remote_sequence *sequence = part->sequence;
    atomic_store(&sequence->refused, gw_sequence_refused(sequence) | 1ull << part->node->index);
    atomic_store(&sequence->refused_us, gw_remote_now(sequence->remote));
}

uint64_t gw_sequence_refused(const struct gw_remote_sequence *sequence)
{
    uint64_t now_us = gw_remote_now(sequence->remote);
    return now_us < atomic_load(&sequence->refused_us) + REFUSED_US
               ? atomic_load(&sequence->refused)
               : 0;
}

void gw_part_fail(struct gw_part *part, enum pp_status status, const char *format, ...)
{
    struct gw_remote_sequence *sequence = part->sequence;
    struct gw_set *set = &sequence->sets[part->index];
    char text[GW_ERROR_BYTES];
    if (atomic_load(&part->lost)) {
        return;
    }
    int used = snprintf(text, sizeof(text), "node %s (%s): ", part->node->address.name,
                        part->node->address.address);
    size_t at = used > 0 && (size_t)used < sizeof(text) ? (size_t)used : 0;
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(text + at, sizeof(text) - at, format, arguments);
    va_end(arguments);
    at += more > 0 ? (size_t)more : 0;
    if (at < sizeof(text)) {
        snprintf(text + at, sizeof(text) - at, " [%s]", pp_status_name(status));
    }
    if (fault_of_request(status)) {
        PP_LOG_ERRORF("remote", "sequence failed", "cause=\"%s\"", text);
        sequence_fail(sequence, status, false, text);
        return;
    }
    PP_LOG_WARNF("remote", "part lost", "cause=\"%s\" members=%u", text, set->member_count - 1);
    if (status == PP_MEMORY || status == PP_QUOTA) {
        note_refusal(part);
    }
    lose(part);
    gw_node_fault(part->node, status);
    pp_stat_add(sequence->remote->parts_lost, 1);
    if (gw_sequence_failed(sequence) == PP_OK && set->member_count > 0) {
        go_on(set);
    } else {
        sequence_fail(sequence, status, true, text);
    }
}

static bool is_member(const struct gw_part *part)
{
    const struct gw_set *set = &part->sequence->sets[part->index];
    for (uint32_t i = 0; i < set->member_count; ++i) {
        if (set->members[i] == part) {
            return true;
        }
    }
    return false;
}

void gw_part_full(struct gw_part *part, const char *message)
{
    struct gw_node *node = part->node;
    char text[GW_ERROR_BYTES];
    if (!is_member(part)) { /* a copy in the making is nothing to keep */
        gw_part_fail(part, PP_MEMORY, "append: %s", message);
        return;
    }
    snprintf(text, sizeof(text), "node %s (%s): append: %s [%s]", node->address.name,
             node->address.address, message, pp_status_name(PP_MEMORY));
    PP_LOG_WARNF("remote", "node is full", "cause=\"%s\"", text);
    part->full = true;
    note_refusal(part);
    atomic_store(&node->free_bytes, 0); /* until it says otherwise */
    sequence_fail(part->sequence, PP_MEMORY, true, text);
}

static struct gw_part *member_on(const struct gw_set *set, const struct gw_node *node)
{
    for (uint32_t i = 0; i < set->member_count; ++i) {
        if (set->members[i]->node == node) {
            return set->members[i];
        }
    }
    return NULL;
}

void gw_sets_leave_node(struct gw_node *node)
{
    struct gw_remote *remote = node->remote;
    for (struct gw_remote_sequence *sequence = remote->sequences; sequence != NULL;
         sequence = sequence->next) {
        for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
            struct gw_set *set = &sequence->sets[i];
            struct gw_part *part = member_on(set, node);
            if (part == NULL || set->member_count == 1 || gw_sequence_failed(sequence) != PP_OK) {
                continue; /* the only one is kept until somebody needs it */
            }
            PP_LOG_WARNF("remote", "part lost", "cause=\"node %s (%s) does not answer\" members=%u",
                         node->address.name, node->address.address, set->member_count - 1);
            lose(part);
            pp_stat_add(remote->parts_lost, 1);
            go_on(set);
        }
    }
}

struct failure {
    struct gw_part *part;
    const char *what, *message;
    enum pp_status status;
};

static void run_failure(void *context)
{
    const struct failure *failure = context;
    gw_part_fail(failure->part, failure->status, "%s: %s", failure->what, failure->message);
}

void gw_part_fail_from_engine(struct gw_part *part, enum pp_status status, const char *what,
                              const char *message)
{
    struct failure failure = {.part = part, .what = what, .message = message, .status = status};
    gw_remote_run(part->sequence->remote, run_failure, &failure);
}
