/*
 * K/V of prefilled layers on their way out: a layer that was computed is copied, and signed where
 * the worker signs, on a stream of its own while the next one computes. Pieces of GW_BULK_TOKENS go
 * by views of the device, a few at a time, and to the remote in their order. Events hold the two
 * streams apart: what is copied was computed, and what is overwritten was copied. On a device whose
 * operations end within their calls a layer has left when it was begun. On the walk of a token's
 * K/V: engine/prefill > here > remote/outbox. It refuses to know how nodes keep it.
 *
 * Thread: the engine's. While one is there nobody else takes views of the device.
 */
#ifndef PIGPEN_GPU_WORKER_ENGINE_LEAVING_H
#define PIGPEN_GPU_WORKER_ENGINE_LEAVING_H

#include "gpu-worker/engine/engine_state.h"

/* On their way at a time: two views each. */
#define GW_LEAVING_PIECES (GW_DEVICE_VIEWS / 2u)

struct gw_leaving_piece {
    uint32_t layer;
    uint64_t start; /* behind the sink */
    uint32_t count;
    const void *k, *v;     /* the host's, when the event is done */
    struct gw_event *done; /* behind the copies */
    bool is_signed;
    struct gw_remote_segment segment; /* with this piece's centre and codes */
    float *centre;                    /* [kv head][dim]; NULL: nothing was signed yet */
    uint16_t *codes;                  /* [GW_BULK_TOKENS][kv head][l] of codes_tables */
    uint32_t codes_tables;
};

struct gw_leaving {
    struct gw_sequence *sequence; /* NULL: nothing to end */
    struct gw_stream *stream;     /* of the copies */
    struct gw_event *computed, *copied;
    struct gw_leaving_piece pieces[GW_LEAVING_PIECES];
    uint32_t slots;       /* that pieces take in turn */
    uint32_t first, used; /* the oldest piece on its way, and how many are */
    /* The layer at hand. */
    uint32_t layer;
    const struct pp_hash *hash; /* NULL: the nodes sign */
    const uint8_t *k, *v;       /* rows behind the sink */
    uint64_t count, next;       /* tokens, and the first that is not on its way */
    uint64_t segment_begin, segment_end;
    bool beside; /* work of a later layer was queued */
};

/* Deinit accepts a zeroed one, and one that failed; it waits for what is on its way. */
PP_MUST_USE enum pp_status gw_leaving_init(struct gw_sequence *sequence,
                                           struct gw_leaving *leaving_out);
void gw_leaving_deinit(struct gw_leaving *leaving);

/* K and V of `count` tokens behind the sink, as the engine's stream has computed them when it comes
 * here, leave for the nodes; they stay as they are until the next begin. The layer before is on its
 * way whole now, and the engine's stream goes on when it was copied: what is given to it from now
 * on may write that layer's memory. Errors of nodes, of any layer. */
PP_MUST_USE enum pp_status gw_leaving_begin(struct gw_leaving *leaving, uint32_t layer,
                                            const void *k, const void *v, uint64_t count);
/* Does what can be done without waiting for the device. The engine's stream has work by now. */
PP_MUST_USE enum pp_status gw_leaving_go_on(struct gw_leaving *leaving);
/* Everything was handed to the remote. */
PP_MUST_USE enum pp_status gw_leaving_finish(struct gw_leaving *leaving);
/* Forgets what is on its way, once it is copied. */
PP_MUST_USE enum pp_status gw_leaving_drop(struct gw_leaving *leaving);

#endif
