/*
 * The CUDA device of the emulated machine.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda_emu/cuda_test.h"
#include "tests/cuda_emu/emu.h"
#include "tests/cuda_emu/emu_driver.h"
#include "tests/cuda_emu/late.h"

const char *cuda_test_missing(void)
{
    return NULL;
}

/* The driver finds all kernels by their names. */
const struct gw_cuda_images *late_images_get(void)
{
    static const struct gw_cuda_images images = {1, {"emulated"}};
    return &images;
}

struct gw_device *cuda_test_device_new(void)
{
    const struct gw_cuda_config config = {
        .driver = &emu_driver, .gemm = &emu_gemm, .images = late_images_get()};
    struct gw_device *device;
    char error[512];
    if (gw_cuda_device_open(&config, error, sizeof(error), &device) != PP_OK) {
        fprintf(stderr, "cuda_emu: %s\n", error);
        abort();
    }
    return device;
}

void cuda_test_seed(uint64_t seed)
{
    emu_seed(seed);
    emu_driver_seed(seed);
}

uint64_t cuda_test_bytes_taken(void)
{
    return emu_bytes_taken();
}
