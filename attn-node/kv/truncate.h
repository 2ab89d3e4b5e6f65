/*
 * Cutting a layer to a prefix. Views past the cut go, the one it falls into is shortened, the tail
 * is cut or emptied; segments and their indexes stay as they are for whoever else sees them. Rows
 * that lie behind a shortened view in its extent are not reused. Generations are part.c's business.
 * Threads: the exec thread. Never fails.
 */
#ifndef PIGPEN_ATTN_NODE_KV_TRUNCATE_H
#define PIGPEN_ATTN_NODE_KV_TRUNCATE_H

#include <stdint.h>

#include "attn-node/kv/layer.h"

/* Nothing to do when the layer holds no more than that. */
void an_truncate_layer(struct an_layer *layer, uint64_t held_tokens);

#endif
