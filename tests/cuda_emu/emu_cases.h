/*
 * Kernels that try the emulator itself.
 */
#ifndef PIGPEN_TESTS_CUDA_EMU_EMU_CASES_H
#define PIGPEN_TESTS_CUDA_EMU_EMU_CASES_H

#include <stdbool.h>

#include "tests/cuda_emu/emu.h"

enum emu_case { WITH_BARRIER, WITHOUT_BARRIER, HALF_A_BARRIER, LANES_APART, COPY_CASE, WARP_SUM };
#define EMU_CASES 6u

struct emu_case_args {
    const void *in;
    uint32_t *out;
    bool waits;
};

#ifdef __cplusplus
extern "C" {
#endif
extern const struct emu_kernel emu_cases[EMU_CASES];
#ifdef __cplusplus
}
#endif

#endif
