/*
 * Streams and events of the emulated driver. A stream's head can run unless it waits for an event
 * that was not reached; who waits runs heads until what it waits for is done: of one stream drawn
 * at random while it can, for a drawn number of turns of any order of magnitude, then of another.
 * So streams stand still for long while others go on.
 */
#include "tests/cuda_emu/emu_streams.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"

#define STREAMS_MAX 8u

struct CUevent_st {
    uint64_t recorded, reached; /* turns */
};

static struct {
    struct CUstream_st *streams[STREAMS_MAX];
    struct pp_rng rng;
    uint32_t favourite, turns; /* the stream that runs, and how often still */
} queues;

/* Turns of a stream in a row: powers of two below this one. */
#define TURNS_BITS 11u

void emu_driver_seed(uint64_t seed)
{
    queues.rng = (struct pp_rng){.seed = seed};
    queues.turns = 0;
}

static void operation_run(const struct emu_operation *operation)
{
    switch (operation->kind) {
    case EMU_COPY:
        memcpy(operation->to, operation->from, operation->bytes);
        break;
    case EMU_FILL:
        for (size_t i = 0; i < operation->bytes / sizeof(unsigned); i++) {
            ((unsigned *)operation->to)[i] = operation->value;
        }
        break;
    case EMU_LAUNCH:
        emu_run(&operation->launch);
        break;
    case EMU_RECORD:
        operation->event->reached = operation->turn;
        break;
    case EMU_WAIT:
        break;
    }
}

static bool head_can_run(const struct CUstream_st *stream)
{
    const struct emu_operation *head = stream->first;
    return head != NULL && (head->kind != EMU_WAIT || head->event->reached >= head->turn);
}

static void head_run(struct CUstream_st *stream)
{
    struct emu_operation *head = stream->first;
    operation_run(head);
    stream->first = head->next;
    if (stream->first == NULL) {
        stream->last = &stream->first;
    }
    free(head->owned);
    free(head);
}

/* One operation of any stream; false: none can run. */
static bool run_one(void)
{
    uint32_t can[STREAMS_MAX], count = 0;
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        if (queues.streams[i] != NULL && head_can_run(queues.streams[i])) {
            can[count++] = i;
        }
    }
    if (count == 0) {
        return false;
    }
    if (queues.turns == 0) {
        queues.favourite = can[pp_rng_u64(&queues.rng) % count];
        queues.turns = 1u << pp_rng_u64(&queues.rng) % TURNS_BITS;
    }
    queues.turns--;
    uint32_t which = can[pp_rng_u64(&queues.rng) % count];
    for (uint32_t i = 0; i < count; i++) {
        which = can[i] == queues.favourite ? can[i] : which;
    }
    head_run(queues.streams[which]);
    return true;
}

void emu_run_until_empty(const struct CUstream_st *stream)
{
    while (stream->first != NULL) {
        if (!run_one()) {
            emu_fail("streams wait for events that nobody records");
        }
    }
}

void emu_run_all(void)
{
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        if (queues.streams[i] != NULL) {
            emu_run_until_empty(queues.streams[i]);
        }
    }
}

uint32_t emu_pending(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        const struct emu_operation *at =
            queues.streams[i] == NULL ? NULL : queues.streams[i]->first;
        for (; at != NULL; at = at->next) {
            count++;
        }
    }
    return count;
}

unsigned emu_not_captured(struct CUstream_st *stream)
{
    if (stream->captured == NULL) {
        return GW_CUDA_SUCCESS;
    }
    stream->spoiled = true;
    return EMU_CAPTURE_REFUSED;
}

bool emu_capturing(void)
{
    bool any = false;
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        any =
            (queues.streams[i] != NULL && emu_not_captured(queues.streams[i]) != GW_CUDA_SUCCESS) ||
            any;
    }
    return any;
}

struct emu_operation *emu_queue(struct CUstream_st *stream, enum emu_kind kind)
{
    if (stream == NULL) {
        emu_fail("no stream");
    }
    if (stream->captured != NULL) {
        struct emu_operation *node = emu_graph_node(stream->captured);
        node->kind = kind;
        return node;
    }
    struct emu_operation *operation = calloc(1, sizeof(*operation));
    if (operation == NULL) {
        emu_fail("no memory");
    }
    operation->kind = kind;
    *stream->last = operation;
    stream->last = &operation->next;
    return operation;
}

unsigned emu_stream_new(struct CUstream_st **stream_out, unsigned flags)
{
    (void)flags;
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        if (queues.streams[i] == NULL) {
            queues.streams[i] = calloc(1, sizeof(**queues.streams));
            if (queues.streams[i] == NULL) {
                return GW_CUDA_OUT_OF_MEMORY;
            }
            queues.streams[i]->last = &queues.streams[i]->first;
            queues.streams[i]->number = i;
            *stream_out = queues.streams[i];
            return GW_CUDA_SUCCESS;
        }
    }
    return GW_CUDA_OUT_OF_MEMORY;
}

unsigned emu_stream_destroy(struct CUstream_st *stream)
{
    emu_run_until_empty(stream);
    queues.streams[stream->number] = NULL;
    free(stream);
    return GW_CUDA_SUCCESS;
}

unsigned emu_stream_synchronize(struct CUstream_st *stream)
{
    unsigned result = emu_not_captured(stream);
    emu_counts.stream_synchronizes++;
    emu_run_until_empty(stream);
    return result;
}

unsigned emu_stream_wait(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags)
{
    (void)flags;
    unsigned result = emu_not_captured(stream);
    emu_counts.waits++;
    if (result == GW_CUDA_SUCCESS) {
        struct emu_operation *operation = emu_queue(stream, EMU_WAIT);
        operation->event = event;
        operation->turn = event->recorded;
    }
    return result;
}

unsigned emu_event_new(struct CUevent_st **event_out, unsigned flags)
{
    (void)flags;
    *event_out = calloc(1, sizeof(**event_out));
    return *event_out == NULL ? GW_CUDA_OUT_OF_MEMORY : GW_CUDA_SUCCESS;
}

static void event_reach(const struct CUevent_st *event)
{
    while (event->reached < event->recorded) {
        if (!run_one()) {
            emu_fail("an event that is never reached");
        }
    }
}

unsigned emu_event_synchronize(struct CUevent_st *event)
{
    emu_counts.event_synchronizes++;
    if (!emu_machine.hasty_host) {
        event_reach(event);
    }
    return GW_CUDA_SUCCESS;
}

unsigned emu_event_destroy(struct CUevent_st *event)
{
    event_reach(event);
    free(event);
    return GW_CUDA_SUCCESS;
}

unsigned emu_event_record(struct CUevent_st *event, struct CUstream_st *stream)
{
    unsigned result = emu_not_captured(stream);
    if (result == GW_CUDA_SUCCESS) {
        struct emu_operation *operation = emu_queue(stream, EMU_RECORD);
        operation->event = event;
        operation->turn = ++event->recorded;
    }
    return result;
}

/* Time passes while somebody asks. */
unsigned emu_event_query(struct CUevent_st *event)
{
    bool reached = event->reached == event->recorded || emu_machine.hasty_host;
    (void)run_one();
    return reached ? GW_CUDA_SUCCESS : GW_CUDA_NOT_READY;
}
