/*
 * From a model file to the engine's weights: shapes checked, data left in place and quantised.
 * One thread.
 */
#ifndef PIGPEN_GPU_WORKER_ENGINE_LOAD_H
#define PIGPEN_GPU_WORKER_ENGINE_LOAD_H

#include <stddef.h>

#include "gpu-worker/engine/engine_state.h"

/* Fills info (but the fingerprint), heads, weights and rope of a zeroed engine. Errors as
 * gw_engine_new; what was taken is freed by gw_engine_destroy. */
PP_MUST_USE enum pp_status gw_engine_load(struct gw_engine *engine,
                                          const struct gw_engine_config *config, char *error_out,
                                          size_t error_bytes);

#endif
