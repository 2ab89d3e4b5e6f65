/*
 * A CUDA device whose driver is late: a stream that was told to wait for an event spins behind that
 * wait (delay.cu), so that on a GPU too, where streams are mostly as fast as each other, one lies
 * far behind the rest. And waits can be left out, as in a program that forgot them. Over the driver
 * of the device under test, whichever that is. One device at a time, one thread.
 */
#ifndef PIGPEN_TESTS_CUDA_EMU_LATE_H
#define PIGPEN_TESTS_CUDA_EMU_LATE_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu-worker/device/cuda/device_cuda.h"

/* About ten milliseconds of a GPU: many times what a tiny model's layer takes it and its host. */
#define LATE_CYCLES (1u << 24)

struct late {
    const struct gw_stream *slow[2]; /* streams that spin; NULL: none */
    const struct gw_stream *deaf;    /* waits for no event, and does not spin; NULL: none */
    bool hasty_host;                 /* every event counts as reached */
    uint64_t delays;                 /* that were launched */
};
extern struct late late;

/* The device under test (cuda_test.h) with such a driver, and nothing of `late` set. Fails the test
 * when it cannot be had. */
struct gw_device *late_device_new(void);

/* The image that has the kernel: of the build for a GPU, or what the emulated driver takes. */
const struct gw_cuda_images *late_images_get(void);

#endif
