/*
 * Attention over held tokens. A job's items are flattened into pieces, (item, kv head, block of
 * 1,024 tokens) for what is read exactly and (item, q head, view) for what is sampled; pieces are
 * spread over the team and merged in index order, so the bits do not depend on the number of
 * threads (law 8). Several q rows of an item share the reading of K/V. All memory is taken before:
 * at start, and for sampling when a part is opened. On the walk: exec > attend > kv (stretches) >
 * index > kernels. It refuses to know the wire. Threads: the exec thread; pieces run on its team.
 */
#ifndef PIGPEN_ATTN_NODE_EXEC_ATTEND_H
#define PIGPEN_ATTN_NODE_EXEC_ATTEND_H

#include <stdint.h>

#include "attn-node/exec/exec.h"
#include "attn-node/kv/part.h"
#include "common/mem/limit.h"
#include "common/mem/numa.h"
#include "common/run/places.h"

struct an_attend;

/* Charges its memory to the limit as scratch. numa and places, of one topology, outlive it: each
 * thread of the team runs on the NUMA node whose kv heads' rows it reads. PP_MEMORY. */
PP_MUST_USE enum pp_status an_attend_new(struct pp_limit *limit, struct pp_clock clock,
                                         uint32_t threads, const struct pp_numa *numa,
                                         const struct pp_places *places,
                                         struct an_attend **attend_out);
void an_attend_destroy(struct an_attend *attend);

/* Makes sure that a thread's scratch serves samples under these parameters. Called at open.
 * PP_MEMORY. */
PP_MUST_USE enum pp_status an_attend_prepare(struct an_attend *attend,
                                             const struct an_params *params);
/* What that takes from the limit now; 0 when the scratch serves already. */
uint64_t an_attend_prepare_bytes(const struct an_attend *attend, const struct an_params *params);
/* Gives the sampling scratch back: no part is left. */
void an_attend_relax(struct an_attend *attend);
/* Bytes of it. */
uint64_t an_attend_sampling_bytes(const struct an_attend *attend);

/* Checks an item against its part and takes its outputs from the job's arena. PP_INVALID_ARGUMENT,
 * PP_SHORT_PART, PP_RESOURCE_EXHAUSTED (the arena), PP_UNIMPLEMENTED (another estimator than the
 * part's index serves). */
PP_MUST_USE enum pp_status an_attend_admit(const struct an_part *part, uint32_t layer,
                                           enum pp_dtype q_dtype, struct an_job *job,
                                           struct an_attend_item *item);

/* Computes the admitted items (status PP_OK); parts[i] is item i's. Sets each item's status:
 * PP_OK, PP_NON_FINITE, PP_DEADLINE_EXCEEDED. */
void an_attend_run(struct an_attend *attend, const struct an_attend_args *args,
                   struct an_part *const *parts);

#endif
