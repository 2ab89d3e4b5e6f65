/*
 * A list of nodes by name and address: parsed, checked, compared. It refuses to know where lists
 * come from. Pure, any thread.
 */
#ifndef PIGPEN_GPU_WORKER_MEMBERSHIP_MEMBERS_H
#define PIGPEN_GPU_WORKER_MEMBERSHIP_MEMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/remote/remote.h"

struct gw_members {
    struct gw_node_address nodes[GW_NODES_MAX];
    uint32_t count;
};

/* "NAME=HOST:PORT", or "HOST:PORT" which is its own name. What is wrong with it, or NULL. */
const char *gw_member_parse(const char *text, size_t bytes, struct gw_node_address *node_out);

/* Adds a node that is another than those before: PP_INVALID_ARGUMENT with the fault in words
 * (two nodes of one name, or of what is one address for certain; too many). */
PP_MUST_USE enum pp_status gw_members_add(struct gw_members *members,
                                          const struct gw_node_address *node, char *fault_out,
                                          size_t fault_bytes);

/* Nodes of `text` between any of `separators`; items that are empty are no fault where
 * `empty_items`, and what follows a # neither. The first fault, with its line and item, in
 * fault_out: PP_INVALID_ARGUMENT, and members_out is not touched. */
PP_MUST_USE enum pp_status gw_members_parse(const char *text, const char *separators,
                                            bool empty_items, struct gw_members *members_out,
                                            char *fault_out, size_t fault_bytes);

bool gw_members_same(const struct gw_members *a, const struct gw_members *b);

#endif
