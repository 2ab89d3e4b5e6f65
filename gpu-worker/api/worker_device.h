/*
 * Which device a worker computes on: the option, its check, and the device. It is the one asked for
 * or an error that names what is missing: nothing falls back. Main thread.
 */
#ifndef PIGPEN_GPU_WORKER_API_WORKER_DEVICE_H
#define PIGPEN_GPU_WORKER_API_WORKER_DEVICE_H

#include "gpu-worker/api/worker.h"

/* --device and --threads: as gw_worker_option_table. */
size_t gw_worker_device_options(struct gw_worker_options *options, struct pp_option *table_out);

/* "host", "cuda" or "cuda:N". PP_INVALID_ARGUMENT with a line on errors. */
PP_MUST_USE enum pp_status gw_worker_device_check(const struct gw_worker_options *options,
                                                  FILE *errors);

/* The device, which the caller destroys. PP_UNAVAILABLE with a line on errors, or PP_MEMORY. */
PP_MUST_USE enum pp_status gw_worker_device_open(const struct gw_worker_options *options,
                                                 FILE *errors, struct gw_device **device_out);

#endif
