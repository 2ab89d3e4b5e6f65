/*
 * A ring between two threads: rpc to exec and back, exec to builder. The two positions only grow;
 * each is written by one side. What the pointers are, the ring does not know.
 *
 * Sleeping: the consumer says so, then looks once more; the producer publishes, then looks whether
 * someone sleeps. Both in the one total order of seq_cst, so that one of them sees the other.
 */
#include "common/run/ring.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"

#define LINE_BYTES    64
#define CAPACITY_MAX  (UINT32_C(1) << 30)
#define SPINS_A_CLOCK 64

struct pp_ring {
    /* Written by the producer. */
    _Alignas(LINE_BYTES) _Atomic uint64_t pushed;
    uint64_t popped_seen;
    /* Written by the consumer. */
    _Alignas(LINE_BYTES) _Atomic uint64_t popped;
    /* Written when someone sleeps or wakes. */
    _Alignas(
        LINE_BYTES) _Atomic uint32_t sleeping; /* the futex word: 1 while the consumer sleeps */
    _Atomic uint32_t woken;
    /* Never written again. */
    _Alignas(LINE_BYTES) uint64_t mask;
    void **slots;
};

enum pp_status pp_ring_new(uint32_t capacity, struct pp_ring **ring_out)
{
    if (capacity > CAPACITY_MAX) {
        return PP_MEMORY;
    }
    uint64_t slots = 1;
    while (slots < capacity) {
        slots *= 2;
    }
    struct pp_ring *ring = aligned_alloc(LINE_BYTES, sizeof(*ring));
    if (ring == NULL) {
        return PP_MEMORY;
    }
    *ring = (struct pp_ring){.mask = slots - 1, .slots = calloc(slots, sizeof(void *))};
    if (ring->slots == NULL) {
        free(ring);
        return PP_MEMORY;
    }
    *ring_out = ring;
    return PP_OK;
}

void pp_ring_destroy(struct pp_ring *ring)
{
    if (ring == NULL) {
        return;
    }
    free(ring->slots);
    free(ring);
}

static void end_sleep(struct pp_ring *ring)
{
    if (atomic_exchange(&ring->sleeping, 0) != 0) {
        syscall(SYS_futex, &ring->sleeping, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

bool pp_ring_push(struct pp_ring *ring, void *item)
{
    uint64_t pushed = atomic_load_explicit(&ring->pushed, memory_order_relaxed);
    if (pushed - ring->popped_seen > ring->mask) {
        ring->popped_seen = atomic_load_explicit(&ring->popped, memory_order_acquire);
        if (pushed - ring->popped_seen > ring->mask) {
            return false;
        }
    }
    ring->slots[pushed & ring->mask] = item;
    atomic_store(&ring->pushed, pushed + 1);
    if (atomic_load(&ring->sleeping) != 0) {
        end_sleep(ring);
    }
    return true;
}

void *pp_ring_pop(struct pp_ring *ring)
{
    uint64_t popped = atomic_load_explicit(&ring->popped, memory_order_relaxed);
    if (popped == atomic_load_explicit(&ring->pushed, memory_order_acquire)) {
        return NULL;
    }
    void *item = ring->slots[popped & ring->mask];
    atomic_store_explicit(&ring->popped, popped + 1, memory_order_release);
    return item;
}

uint32_t pp_ring_count(const struct pp_ring *ring)
{
    uint64_t popped = atomic_load_explicit(&ring->popped, memory_order_acquire);
    uint64_t pushed = atomic_load_explicit(&ring->pushed, memory_order_acquire);
    return pushed > popped ? (uint32_t)(pushed - popped) : 0;
}

/* Something to return for: an item, or a wake, which is used up. */
static bool is_due(struct pp_ring *ring)
{
    if (atomic_load(&ring->pushed) != atomic_load_explicit(&ring->popped, memory_order_relaxed)) {
        return true;
    }
    return atomic_load(&ring->woken) != 0 && atomic_exchange(&ring->woken, 0) != 0;
}

void pp_ring_wait(struct pp_ring *ring, uint64_t spin_us, uint64_t wait_us)
{
    if (is_due(ring) || wait_us == 0) {
        return;
    }
    struct pp_clock clock = pp_clock_system();
    uint64_t start_us = pp_clock_now_us(&clock);
    uint64_t waited_us = 0;
    while (waited_us < spin_us && waited_us < wait_us) {
        for (int spin = 0; spin < SPINS_A_CLOCK; ++spin) {
            if (is_due(ring)) {
                return;
            }
            __builtin_ia32_pause();
        }
        sched_yield(); /* The producer may be waiting for this very core. */
        waited_us = pp_clock_now_us(&clock) - start_us;
    }
    while (waited_us < wait_us) {
        atomic_store(&ring->sleeping, 1);
        if (is_due(ring)) {
            break;
        }
        uint64_t left_us = wait_us - waited_us;
        uint64_t left_s = left_us / 1000000;
        struct timespec left = {.tv_sec = left_s > INT_MAX ? INT_MAX : (time_t)left_s,
                                .tv_nsec = (long)(left_us % 1000000) * 1000};
        syscall(SYS_futex, &ring->sleeping, FUTEX_WAIT_PRIVATE, 1, &left, NULL, 0);
        if (is_due(ring)) {
            break;
        }
        waited_us = pp_clock_now_us(&clock) - start_us;
    }
    atomic_store(&ring->sleeping, 0);
}

void pp_ring_wake(struct pp_ring *ring)
{
    atomic_store(&ring->woken, 1);
    end_sleep(ring);
}
