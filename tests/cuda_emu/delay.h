/*
 * Arguments of the kernel that does nothing for a while. Compiles as C and as CUDA.
 */
#ifndef PIGPEN_TESTS_CUDA_EMU_DELAY_H
#define PIGPEN_TESTS_CUDA_EMU_DELAY_H

#include <stdint.h>

#define DELAY_THREADS 32u

struct gw_cuda_delay_args {
    uint64_t cycles; /* of the processor it runs on, at least */
};

#endif
