/*
 * The polling thread's body: takes completed operations off gRPC's queue and runs them, spinning or
 * blocking in between, and wakes from other threads. gRPC does its I/O inside this call only.
 *
 * Waking: a flag, looked at each turn; when the thread may be blocked, also an empty batch on a
 * call of a lame channel, which completes at once. The flag is set before `blocked` is read, and
 * `blocked` is set before the flag is read: one of the two sides sees the other.
 */
#include <sched.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/rpc/grpc_internal.h"

gpr_timespec pp_grpc_deadline(struct pp_grpc *grpc, uint64_t at_us)
{
    /* A century is for ever; more would overflow inside gRPC. */
    const uint64_t wait_us_max = UINT64_C(100) * 365 * 86400 * 1000000;
    uint64_t now_us = pp_clock_now_us(&grpc->base.clock);
    uint64_t wait_us = at_us > now_us ? at_us - now_us : 0;
    if (wait_us > wait_us_max) {
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    }
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_micros((int64_t)wait_us, GPR_TIMESPAN));
}

static void wake_done(struct pp_grpc_event *event, bool ok)
{
    (void)ok;
    struct pp_grpc *grpc = (struct pp_grpc *)((char *)event - offsetof(struct pp_grpc, wake_event));
    atomic_fetch_sub(&grpc->wakes_pending, 1);
}

void pp_grpc_wake(struct pp_transport *transport)
{
    struct pp_grpc *grpc = pp_grpc_of(transport);
    if (atomic_exchange(&grpc->wake_asked, true) || !atomic_load(&grpc->blocked)) {
        return;
    }
    atomic_fetch_add(&grpc->wakes_pending, 1);
    grpc_call_error error =
        grpc_call_start_batch(grpc->wake_call, NULL, 0, &grpc->wake_event, NULL);
    PP_ASSERT(error == GRPC_CALL_OK);
}

enum pp_status pp_grpc_loop_init(struct pp_grpc *grpc)
{
    grpc->queue = grpc_completion_queue_create_for_next(NULL);
    grpc->wake_channel = grpc_lame_client_channel_create("lame", GRPC_STATUS_UNAVAILABLE, "wake");
    if (grpc->queue == NULL || grpc->wake_channel == NULL) {
        return PP_MEMORY;
    }
    grpc->wake_call = grpc_channel_create_call(grpc->wake_channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                               grpc->queue, grpc_slice_from_static_string("/wake"),
                                               NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc->wake_event.done = wake_done;
    return grpc->wake_call != NULL ? PP_OK : PP_MEMORY;
}

static void dispatch(struct pp_grpc *grpc, const grpc_event *event)
{
    (void)grpc;
    struct pp_grpc_event *mine = event->tag;
    mine->done(mine, event->success != 0);
}

void pp_grpc_loop_deinit(struct pp_grpc *grpc)
{
    grpc_call_unref(grpc->wake_call);
    grpc_channel_destroy(grpc->wake_channel);
    grpc_completion_queue_shutdown(grpc->queue);
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(grpc->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            break;
        }
        dispatch(grpc, &event);
    }
    grpc_completion_queue_destroy(grpc->queue);
}

static struct pp_grpc_event *deferred_take(struct pp_grpc *grpc)
{
    struct pp_grpc_event *event = grpc->deferred_first;
    if (event != NULL) {
        grpc->deferred_first = event->next;
        event->next = NULL;
    }
    return event;
}

static void deferred_put(struct pp_grpc *grpc, struct pp_grpc_event *event, bool ok)
{
    event->ok = ok;
    event->next = NULL;
    if (grpc->deferred_first == NULL) {
        grpc->deferred_first = event;
    } else {
        grpc->deferred_last->next = event;
    }
    grpc->deferred_last = event;
}

void pp_grpc_run_until(struct pp_grpc *grpc, const bool *done, bool only_server)
{
    do {
        struct pp_grpc_event *event = only_server ? NULL : deferred_take(grpc);
        if (event != NULL) {
            event->done(event, event->ok);
            return;
        }
        grpc_event next =
            grpc_completion_queue_next(grpc->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        PP_ASSERT(next.type == GRPC_OP_COMPLETE);
        event = next.tag;
        if (only_server && !event->of_server) {
            deferred_put(grpc, event, next.success != 0);
        } else {
            dispatch(grpc, &next);
        }
        if (!only_server) {
            return;
        }
    } while (!*done);
}

/* Waits for one completed operation: at_once, spinning, or blocked until until_us. */
static grpc_event take(struct pp_grpc *grpc, uint64_t until_us, bool at_once)
{
    if (at_once) {
        return grpc_completion_queue_next(grpc->queue, gpr_inf_past(GPR_CLOCK_MONOTONIC), NULL);
    }
    gpr_timespec deadline = pp_grpc_deadline(grpc, until_us);
    atomic_store(&grpc->blocked, true);
    if (atomic_load(&grpc->wake_asked)) {
        deadline = gpr_inf_past(GPR_CLOCK_MONOTONIC);
    }
    grpc_event event = grpc_completion_queue_next(grpc->queue, deadline, NULL);
    atomic_store(&grpc->blocked, false);
    return event;
}

/* A turn of spinning found nothing: whoever waits for this core may have it, and be it the thread
 * that the next event comes from. */
static void spin_in_vain(struct pp_grpc *grpc)
{
    if (pp_spin_yields(&grpc->spin)) {
        uint64_t begin_us = pp_clock_now_us(&grpc->base.clock);
        sched_yield();
        pp_spin_yielded(&grpc->spin, begin_us, pp_clock_now_us(&grpc->base.clock));
    }
}

size_t pp_grpc_poll(struct pp_transport *transport, uint64_t until_us)
{
    struct pp_grpc *grpc = pp_grpc_of(transport);
    size_t before = grpc->delivered;
    bool last_turn = false;
    while (grpc->delivered == before && !last_turn) {
        struct pp_grpc_event *deferred = deferred_take(grpc);
        if (deferred != NULL) {
            deferred->done(deferred, deferred->ok);
            continue;
        }
        pp_grpc_receives_arm(grpc);
        uint64_t now_us = pp_clock_now_us(&grpc->base.clock);
        last_turn = atomic_exchange(&grpc->wake_asked, false) || now_us >= until_us;
        bool at_once =
            last_turn || grpc->half_closes != NULL || pp_spin_wanted(&grpc->spin, now_us);
        grpc_event event = take(grpc, until_us, at_once);
        if (event.type == GRPC_OP_COMPLETE) {
            pp_spin_event(&grpc->spin, at_once ? now_us : pp_clock_now_us(&grpc->base.clock));
            dispatch(grpc, &event);
        } else if (grpc->half_closes != NULL) {
            pp_grpc_half_closes_deliver(grpc);
        } else if (at_once && !last_turn) {
            spin_in_vain(grpc);
        }
    }
    return grpc->delivered - before;
}
