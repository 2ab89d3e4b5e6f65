/*
 * Fibers, barriers and warps of the emulator. A fiber is a stack and a saved stack pointer; the
 * scheduler runs on the caller's stack, draws one of the fibers that can run, and switches to it
 * until it waits or ends. AddressSanitizer is told of each switch.
 */
#include "tests/cuda_emu/emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/half.h"
#include "common/base/rng.h"
#include "tests/cuda_emu/emu_sanitizer.h"

#define STACK_BYTES (256u << 10)
#define GUARD_BYTES 4096u
#define WARPS_MAX   (EMU_THREADS_MAX / EMU_WARP)

struct fiber {
    void *stack_pointer;
    void *sanitizer_stack; /* of AddressSanitizer, while it does not run */
    uint8_t *stack;
    uint32_t index, rounds; /* calls of emu_warp so far */
    bool done;
};

struct warp {
    uint32_t arrived;
    const char *what;
    emu_slots slots[2];
};

static struct {
    const struct emu_launch *launch;
    struct fiber fibers[EMU_THREADS_MAX];
    struct warp warps[WARPS_MAX];
    uint32_t ready[EMU_THREADS_MAX], ready_count;
    uint32_t waiting[EMU_THREADS_MAX], waiting_count; /* at the barrier of the block */
    uint32_t alive;
    struct fiber *running;
    void *scheduler; /* its stack pointer while a fiber runs */
    struct emu_stack_bounds scheduler_bounds;
    void *shared;
    struct pp_rng rng;
} emu;

struct emu_place emu_here;
uint64_t emu_block_serial;
float emu_f16_values[1u << 16];

/* Saves the callee-saved registers on the stack in use, its pointer in *from, and goes on where
 * `to` was saved. */
void emu_switch(void **from, void *to);
__asm__(".text\n"
        ".globl emu_switch\n"
        ".type emu_switch, @function\n"
        "emu_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emu_switch, .-emu_switch\n");

void emu_fail(const char *why)
{
    fprintf(stderr, "cuda_emu: %s in %s, block %u %u %u, thread %u\n", why,
            emu.launch == NULL ? "no kernel" : emu.launch->kernel->name, emu_here.block.x,
            emu_here.block.y, emu_here.block.z, emu_here.thread.x);
    abort();
}

void emu_seed(uint64_t seed)
{
    emu.rng = (struct pp_rng){.seed = seed};
}

void *emu_shared(void)
{
    return emu.shared;
}

__attribute__((no_sanitize("address"))) static void to_scheduler(void)
{
    struct fiber *self = emu.running;
    emu_sanitizer_leave(self->done ? NULL : &self->sanitizer_stack, &emu.scheduler_bounds);
    emu_switch(&self->stack_pointer, emu.scheduler);
    emu_sanitizer_enter(self->sanitizer_stack, &emu.scheduler_bounds);
}

/* Never returns: a fiber that is done is not run again. */
__attribute__((no_sanitize("address"))) static void fiber_main(void)
{
    emu_sanitizer_enter(NULL, &emu.scheduler_bounds);
    emu.launch->kernel->run(emu.launch->args);
    emu.running->done = true;
    to_scheduler();
    emu_fail("a thread that had ended ran again");
}

__attribute__((no_sanitize("address"))) static void fiber_prepare(struct fiber *fiber,
                                                                  uint32_t index)
{
    void **top = (void **)(void *)(fiber->stack + STACK_BYTES) - 2;
    *top = (void *)(uintptr_t)fiber_main; /* where the first switch returns to */
    for (uint32_t i = 0; i < 6; i++) {
        *--top = NULL; /* the registers that it takes off before */
    }
    fiber->stack_pointer = top;
    fiber->index = index;
    fiber->rounds = 0;
    fiber->done = false;
}

static void fiber_run(struct fiber *fiber)
{
    void *sanitizer_stack;
    const struct emu_stack_bounds own = {fiber->stack, STACK_BYTES};
    emu.running = fiber;
    emu_here.thread.x = fiber->index;
    emu_sanitizer_leave(&sanitizer_stack, &own);
    emu_switch(&emu.scheduler, fiber->stack_pointer);
    emu_sanitizer_enter(sanitizer_stack, NULL);
}

/* What the first launch needs. */
static void prepare(void)
{
    for (uint32_t i = 0; i < 1u << 16; i++) {
        emu_f16_values[i] = pp_f16_to_f32((uint16_t)i);
    }
    uint64_t each = STACK_BYTES + GUARD_BYTES;
    uint8_t *memory = mmap(NULL, EMU_THREADS_MAX * each, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        emu_fail("no memory for stacks");
    }
    for (uint32_t i = 0; i < EMU_THREADS_MAX; i++) {
        if (mprotect(memory + i * each, GUARD_BYTES, PROT_NONE) != 0) {
            emu_fail("no guard page");
        }
        emu.fibers[i].stack = memory + i * each + GUARD_BYTES;
    }
}

static uint32_t draw_below(uint32_t count)
{
    return (uint32_t)(((pp_rng_u64(&emu.rng) >> 32) * count) >> 32);
}

static void make_ready(uint32_t index)
{
    emu.ready[emu.ready_count++] = index;
}

void emu_sync_block(void)
{
    emu.waiting[emu.waiting_count++] = emu.running->index;
    to_scheduler();
}

emu_slots *emu_warp(const void *value, uint32_t bytes, void (*last)(emu_slots *slots),
                    const char *what)
{
    struct fiber *self = emu.running;
    struct warp *warp = &emu.warps[self->index / EMU_WARP];
    emu_slots *slots = &warp->slots[self->rounds++ & 1u];
    if (bytes > EMU_SLOT_BYTES) {
        emu_fail("a value larger than a slot");
    }
    if (warp->arrived > 0 && warp->what != what && strcmp(warp->what, what) != 0) {
        fprintf(stderr, "cuda_emu: lanes at %s and at %s\n", warp->what, what);
        emu_fail("lanes of a warp wait at different places");
    }
    memcpy((*slots)[self->index % EMU_WARP], value, bytes);
    warp->what = what;
    if (++warp->arrived == EMU_WARP) {
        warp->arrived = 0;
        if (last != NULL) {
            last(slots);
        }
        for (uint32_t i = 0; i < EMU_WARP; i++) {
            make_ready(self->index / EMU_WARP * EMU_WARP + i);
        }
    }
    to_scheduler();
    return slots;
}

static void run_block(void)
{
    emu_block_serial++;
    emu.alive = emu.launch->threads;
    emu.waiting_count = emu.ready_count = 0;
    memset(emu.shared, 0xff, emu.launch->shared_bytes);
    for (uint32_t i = 0; i < emu.launch->threads; i++) {
        fiber_prepare(&emu.fibers[i], i);
        make_ready(i);
    }
    while (emu.alive > 0) {
        if (emu.ready_count == 0 && emu.waiting_count == emu.alive) {
            memcpy(emu.ready, emu.waiting, sizeof(emu.ready[0]) * emu.waiting_count);
            emu.ready_count = emu.waiting_count;
            emu.waiting_count = 0;
        }
        if (emu.ready_count == 0) {
            emu_fail("threads wait for others that never come");
        }
        uint32_t at = draw_below(emu.ready_count);
        uint32_t index = emu.ready[at];
        emu.ready[at] = emu.ready[--emu.ready_count];
        fiber_run(&emu.fibers[index]);
        emu.alive -= emu.fibers[index].done ? 1 : 0;
    }
}

static void check_launch(const struct emu_launch *launch)
{
    if (launch->threads == 0 || launch->threads % EMU_WARP != 0 ||
        launch->threads > EMU_THREADS_MAX || launch->threads > launch->kernel->threads_max) {
        emu_fail("a block of so many threads");
    }
    if (launch->grid.x == 0 || launch->grid.x > 0x7fffffffu || launch->grid.y == 0 ||
        launch->grid.y > 65535 || launch->grid.z == 0 || launch->grid.z > 65535) {
        emu_fail("a grid of that size");
    }
}

/* For bench/cuda_resources.py: kernels and their shared bytes, into a file that the environment
 * names. */
static void note_shared(const struct emu_launch *launch)
{
    const char *path = getenv("PIGPEN_EMU_SHARED");
    FILE *file = path == NULL ? NULL : fopen(path, "a");
    if (file != NULL) {
        fprintf(file, "%s %u\n", launch->kernel->name, launch->shared_bytes);
        fclose(file);
    }
}

void emu_run(const struct emu_launch *launch)
{
    emu.launch = launch;
    check_launch(launch);
    note_shared(launch);
    if (emu.fibers[0].stack == NULL) {
        prepare();
    }
    uint32_t blocks = launch->grid.x * launch->grid.y * launch->grid.z;
    uint32_t *order = malloc(blocks * sizeof(*order));
    if (posix_memalign(&emu.shared, 16, launch->shared_bytes + 1u) != 0 || order == NULL) {
        emu_fail("no memory");
    }
    emu_here.grid = launch->grid;
    emu_here.block_size = (struct emu_index){launch->threads, 1, 1};
    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t at = draw_below(i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (uint32_t i = 0; i < blocks; i++) {
        emu_here.block.x = order[i] % launch->grid.x;
        emu_here.block.y = order[i] / launch->grid.x % launch->grid.y;
        emu_here.block.z = order[i] / launch->grid.x / launch->grid.y;
        run_block();
    }
    free(emu.shared);
    free(order);
    emu.launch = NULL;
}
