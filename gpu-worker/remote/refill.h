/*
 * Copies of parts in the making: see refill.c; gw_remote_maintain (remote.h) brings them on.
 * Threads: the engine thread.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_REFILL_H
#define PIGPEN_GPU_WORKER_REMOTE_REFILL_H

#include "gpu-worker/remote/internal.h"

/* What is being copied is given up: the source is to be changed, or may be gone. */
void gw_refill_abort(struct gw_remote_sequence *sequence);
void gw_refill_destroy(struct gw_remote_sequence *sequence);

#endif
