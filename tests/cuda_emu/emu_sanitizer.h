/*
 * Switches of stacks as AddressSanitizer is told of them; nothing in other builds. Who leaves says
 * where its own state is kept (NULL: it never comes back) and which stack comes next.
 */
#ifndef PIGPEN_TESTS_CUDA_EMU_EMU_SANITIZER_H
#define PIGPEN_TESTS_CUDA_EMU_EMU_SANITIZER_H

#include <stddef.h>

struct emu_stack_bounds {
    const void *begin;
    size_t bytes;
};

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef EMU_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>

static inline void emu_sanitizer_leave(void **own, const struct emu_stack_bounds *next)
{
    __sanitizer_start_switch_fiber(own, next->begin, next->bytes);
}

/* before_out: the stack that was left, unless NULL. */
static inline void emu_sanitizer_enter(void *own, struct emu_stack_bounds *before_out)
{
    const void *begin;
    size_t bytes;
    __sanitizer_finish_switch_fiber(own, &begin, &bytes);
    if (before_out != NULL) {
        *before_out = (struct emu_stack_bounds){begin, bytes};
    }
}
#else
static inline void emu_sanitizer_leave(void **own, const struct emu_stack_bounds *next)
{
    (void)own;
    (void)next;
}

static inline void emu_sanitizer_enter(void *own, struct emu_stack_bounds *before_out)
{
    (void)own;
    (void)before_out;
}
#endif

#endif
