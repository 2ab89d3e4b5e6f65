/*
 * The shadow check: one of so many sampled q rows is attended once more, exactly, when nothing else
 * waits, and its true error over the published one is counted. What an estimator says of itself is
 * so held against the truth on the queries that really come. On the walk: exec's attend offers, its
 * poll goes on with it. Nothing waits for it: a slice reads at most AN_SHADOW_ROWS rows, a check
 * that is still running when the next is due keeps its place, and one whose part has gone or was
 * cut is dropped. It refuses to know rings and jobs. Threads: the exec thread.
 */
#ifndef PIGPEN_ATTN_NODE_EXEC_SHADOW_H
#define PIGPEN_ATTN_NODE_EXEC_SHADOW_H

#include "attn-node/exec/exec.h"
#include "attn-node/kv/table.h"
#include "common/mem/limit.h"

/* Some 50 us of one thread at d = 128 in bf16. */
#define AN_SHADOW_ROWS 1024u
/* Of a kv head's group, the first ones. */
#define AN_SHADOW_HEADS 16u

struct an_shadow;

/* every: q rows between two checks, > 0. stats may be NULL. Charges its memory as scratch.
 * PP_MEMORY. */
PP_MUST_USE enum pp_status an_shadow_new(struct pp_limit *limit, uint64_t every,
                                         struct pp_stats *stats, struct an_shadow **shadow_out);
void an_shadow_destroy(struct an_shadow *shadow);

/* An item that was answered (status PP_OK): counted, and copied when a check is due and none runs.
 * Copies at most AN_SHADOW_HEADS queries and outputs. */
void an_shadow_offer(struct an_shadow *shadow, const struct an_part *part, uint32_t layer,
                     enum pp_dtype q_dtype, const struct an_attend_item *item);

bool an_shadow_running(const struct an_shadow *shadow);
/* Goes on with the check that runs, if any. */
void an_shadow_slice(struct an_shadow *shadow, const struct an_table *table);

#endif
