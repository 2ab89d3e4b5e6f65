/*
 * What each part of a sequence reads of a sketch's budget: by what its sampled rows weighed when
 * the layer was attended last, a kv head each. A node knows its own part alone; the worker sees
 * what all of them say. All nodes that hold a part are asked with the same shares, whenever they
 * are asked. On the walk: remote/attend, before a layer's parts are asked and after they have
 * answered. It refuses to know messages. Threads: the engine thread.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_BUDGET_H
#define PIGPEN_GPU_WORKER_REMOTE_BUDGET_H

#include "gpu-worker/remote/internal.h"

/* kv heads of a part that shares are sent for: what a header has room for. */
#define GW_SHARES_MAX 200u

/* Memory for a sequence; none where it has no sketch. PP_MEMORY: deinit all the same. */
PP_MUST_USE enum pp_status gw_budget_init(struct gw_remote_sequence *sequence);
void gw_budget_deinit(struct gw_remote_sequence *sequence);

/* Nothing is known any more: the sequence goes back, or parts of it begin again. What is drawn then
 * is what a sequence draws that was never further. */
void gw_budget_forget(struct gw_remote_sequence *sequence);

/* Says of every dispatch of the attend, whose held_tokens are set, whether its node is to say what
 * was sampled, and its shares: none where the budget is not a sketch's or has a target, or where
 * fewer than two parts are known to sample. */
void gw_budget_divide(struct gw_remote_sequence *sequence, const struct gw_remote_attend *attend);

/* Takes from the parts' answers, and the merged lse [q row][q head], what each part weighs. */
void gw_budget_note(struct gw_remote_sequence *sequence, const float *lse);

#endif
