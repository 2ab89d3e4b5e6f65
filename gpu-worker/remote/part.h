/*
 * A part on one node: its memory here, OpenPart and ClosePart. Threads: the engine thread.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_PART_H
#define PIGPEN_GPU_WORKER_REMOTE_PART_H

#include "gpu-worker/remote/internal.h"

/* Part `index` of the sequence's route, to be on the node. PP_MEMORY. Destroy accepts NULL. */
PP_MUST_USE enum pp_status gw_part_new(struct gw_remote_sequence *sequence, uint32_t index,
                                       struct gw_node *node, struct gw_part **part_out);
void gw_part_destroy(struct gw_part *part);

/* What requests about it carry. */
void gw_part_ref(const struct gw_part *part, Pigpen__V1__PartRef *ref_out);

/* Opens all of them, empty: what a node still holds under their ids is closed first. The first
 * status that is not PP_OK; some may be open then. A node that turns out to be gone is out of use.
 */
PP_MUST_USE enum pp_status gw_parts_open(struct gw_part *const *parts, uint32_t count);
/* sequence_parts.c: seals what it holds, where anything is sampled; its index is made meanwhile. */
PP_MUST_USE enum pp_status gw_part_seal(struct gw_part *part);
/* Best effort: those on nodes that are gone end with their leases. */
void gw_parts_close(struct gw_part *const *parts, uint32_t count);

#endif
