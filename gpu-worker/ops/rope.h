/*
 * Tables of rotary angles (Su et al., arXiv 2104.09864): cos and sin of position x inv_freq[i],
 * i < dim / 2, the product in f32 as in the reference implementations, cos and sin of it accurate.
 * Built once on the host, copied to the device. Threads: the device's owner.
 */
#ifndef PIGPEN_GPU_WORKER_OPS_ROPE_H
#define PIGPEN_GPU_WORKER_OPS_ROPE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/device/device.h"

/* inv_freq [dim / 2], dim even; positions [0, position_count). The result is freed with
 * gw_rope_deinit. PP_MEMORY. */
PP_MUST_USE enum pp_status gw_rope_init(struct gw_rope_table *table, struct gw_device *device,
                                        const float *inv_freq, uint32_t dim, bool interleaved,
                                        uint32_t position_count);
void gw_rope_deinit(struct gw_rope_table *table, struct gw_device *device);

#endif
