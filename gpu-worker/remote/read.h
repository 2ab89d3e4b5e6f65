/*
 * Reading held rows back from a node: one ReadKv stream a part, its messages checked and laid out
 * where the caller wants them. Beside outbox on the walk. It refuses to know what rows are read
 * for.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_READ_H
#define PIGPEN_GPU_WORKER_REMOTE_READ_H

#include "gpu-worker/remote/internal.h"

/* One stream of rows. Owned by the engine thread until start and after wait. */
struct gw_read {
    struct gw_command start, cancel;
    struct gw_node *node;
    Pigpen__V1__PartRef ref;
    uint32_t layer;
    uint64_t next, end;              /* [rpc] held indices still to come */
    uint8_t *k, *v;                  /* [rpc] where row `next` goes */
    uint64_t row_bytes, token_bytes; /* of the part's vectors of a token; from token to token */
    uint64_t deadline_us;
    struct pp_call *call; /* [rpc] */
    enum pp_status status;
    char message[160];
    _Atomic bool done, cancelled;
};

/* Engine thread: reads rows [start, start + count) > 0 of a layer of the part, counted as the part
 * holds them, all acknowledged. Row i goes to k_out and v_out + i * token_bytes, the part's kv
 * heads side by side. Memory and *read stay untouched until gw_read_wait has returned. */
void gw_read_start(struct gw_read *read, struct gw_part *part, uint32_t layer, uint64_t start,
                   uint64_t count, uint8_t *k_out, uint8_t *v_out, uint64_t token_bytes);
/* Engine thread: its rows are no longer wanted; gw_read_wait then returns soon. */
void gw_read_cancel(struct gw_read *read);
/* Engine thread: waits for one that was started; it ends, because it has a deadline. The status
 * says whether every row has come; read->message says more for people. */
PP_MUST_USE enum pp_status gw_read_wait(struct gw_read *read);

#endif
