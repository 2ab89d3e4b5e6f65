/*
 * The CUDA device of this machine's first GPU, for the same tests.
 */
#include <stdio.h>
#include <stdlib.h>

#include "gpu-worker/device/cuda/device_cuda.h"
#include "tests/cuda_emu/cuda_test.h"

static enum pp_status gpu_open(char *error_out, size_t error_bytes, struct gw_device **device_out)
{
    return gw_cuda_device_new(0, error_out, error_bytes, device_out);
}

const char *cuda_test_missing(void)
{
    static char error[512];
    struct gw_device *device;
    if (gpu_open(error, sizeof(error), &device) != PP_OK) {
        return error;
    }
    device->ops->destroy(device);
    return NULL;
}

struct gw_device *cuda_test_device_new(void)
{
    struct gw_device *device;
    char error[512] = "";
    if (gpu_open(error, sizeof(error), &device) != PP_OK) {
        fprintf(stderr, "no GPU: %s\n", error);
        abort();
    }
    return device;
}

void cuda_test_seed(uint64_t seed)
{
    (void)seed;
}

uint64_t cuda_test_bytes_taken(void)
{
    return 0;
}
