/*
 * Copying rows out in append format. Threads: the exec thread.
 */
#ifndef PIGPEN_ATTN_NODE_KV_READ_H
#define PIGPEN_ATTN_NODE_KV_READ_H

#include <stdint.h>

#include "attn-node/kv/layer.h"

/* 2 * count * kv heads * bytes of a vector. */
uint64_t an_read_bytes(const struct an_params *params, uint32_t count);

/* Held rows [start, start + count), all held: K then V, each [token][kv head][dim], to out
 * [an_read_bytes]. */
void an_read_rows(const struct an_layer *layer, uint64_t start, uint32_t count, uint8_t *out);

#endif
