/*
 * One operation on two devices: the host, which is the reference, and the CUDA device under test.
 * What a test makes is on the host; put copies it to a device, get brings it back.
 */
#ifndef PIGPEN_TESTS_CUDA_EMU_BOTH_H
#define PIGPEN_TESTS_CUDA_EMU_BOTH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/half.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "tests/cuda_emu/cuda_test.h"

#define BOTH_SEED       1729u
#define BOTH_ROWS_MAX   512u
#define BOTH_TOKENS_MAX 3000u

/* Host first. */
struct both {
    struct gw_device *devices[2];
};

static struct pp_rng both_rng = {.seed = BOTH_SEED};

static inline struct both both_new(const struct gw_heads *heads)
{
    struct both both;
    const struct gw_device_limits limits = {.columns_max = 1536,
                                            .rows_max = BOTH_ROWS_MAX,
                                            .heads = *heads,
                                            .kv_tokens_max = BOTH_TOKENS_MAX};
    assert_int_equal(gw_host_device_new(1, &both.devices[0]), PP_OK);
    both.devices[1] = cuda_test_device_new();
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(both.devices[i]->ops->prepare(both.devices[i], &limits), PP_OK);
    }
    return both;
}

static inline void both_destroy(struct both *both)
{
    both->devices[0]->ops->destroy(both->devices[0]);
    both->devices[1]->ops->destroy(both->devices[1]);
    assert_int_equal(cuda_test_bytes_taken(), 0);
}

static inline void *both_put(struct gw_device *device, const void *data, uint64_t bytes)
{
    void *memory;
    assert_int_equal(device->ops->alloc(device, bytes, &memory), PP_OK);
    assert_int_equal(device->ops->copy_in(device, NULL, memory, data, bytes), PP_OK);
    return memory;
}

/* To host memory that the caller frees; the device's is freed. */
static inline void *both_get(struct gw_device *device, void *memory, uint64_t bytes)
{
    void *data = malloc(bytes == 0 ? 1 : bytes);
    assert_non_null(data);
    assert_int_equal(device->ops->copy_out(device, NULL, data, memory, bytes), PP_OK);
    assert_int_equal(device->ops->synchronize(device, NULL), PP_OK);
    device->ops->free(device, memory);
    return data;
}

static inline float *both_floats(uint64_t count, float scale)
{
    float *values = malloc((count + 1) * sizeof(float));
    assert_non_null(values);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)pp_rng_normal(&both_rng) * scale;
    }
    return values;
}

/* |a - b| within `share` of the norm of a. Frees both. */
static inline void both_near(float *a, float *b, uint64_t count, double share)
{
    double norm = 0.0, distance = 0.0;
    for (uint64_t i = 0; i < count; i++) {
        double difference = (double)a[i] - (double)b[i];
        norm += (double)a[i] * (double)a[i];
        distance += difference * difference;
    }
    if (!(sqrt(distance) <= share * sqrt(norm))) {
        fail_msg("%.3g of the norm apart, %.3g allowed", sqrt(distance / norm), share);
    }
    free(a);
    free(b);
}

/* Ends the program, loudly, where the device under test cannot be had. */
static inline void both_begin(void)
{
    const char *missing = cuda_test_missing();
    printf("seed %u\n", BOTH_SEED);
    if (missing != NULL) {
        printf("SKIPPED, no test of this program ran: %s\n", missing);
        exit(CUDA_TEST_SKIPPED);
    }
}

/* Another order of threads and streams for each run of a test. */
static inline int both_setup(void **state)
{
    (void)state;
    pp_log_configure(PP_LOG_WARN, PP_LOG_TEXT);
    cuda_test_seed(pp_rng_u64(&both_rng));
    return 0;
}

#endif
