/*
 * A layer that begins as a prefix of another: views are copied (segments shared), the tail's rows
 * are copied into an extent of its own, because each side goes on writing its tail. The source is
 * not changed. Threads: the exec thread.
 */
#ifndef PIGPEN_ATTN_NODE_KV_FORK_H
#define PIGPEN_ATTN_NODE_KV_FORK_H

#include <stdint.h>

#include "attn-node/kv/layer.h"

/* `to` was initialised with the same params and holds nothing; held_tokens <= what `from` holds.
 * PP_MEMORY: `to` must be deinitialised. */
PP_MUST_USE enum pp_status an_fork_layer(const struct an_layer *from, uint64_t held_tokens,
                                         struct an_layer *to);

#endif
