/*
 * A sequence after a node was lost: the remote opens the lost parts elsewhere, empty, and here
 * their rows come from. What has not been dropped yet is handed over again; the rest is computed
 * again from the tokens (recompute.c). On the walk of a token's K/V: as prefill. It refuses to know
 * which nodes were lost.
 */
#include "common/base/log.h"
#include "gpu-worker/engine/engine_state.h"

/* A sequence that is no further after so many losses in a row gives up. */
#define RECOVERIES_MAX 16u

/* Rows that are still here and that some part lacks. */
static enum pp_status hand_over_again(struct gw_sequence *sequence, uint32_t layer, uint64_t end)
{
    uint64_t from = gw_remote_lacking(sequence->remote, layer).begin;
    from = from > sequence->dropped ? from : sequence->dropped;
    if (from >= end) {
        return PP_OK;
    }
    uint64_t at = (PP_SINK_TOKENS + from - sequence->dropped) * sequence->row_bytes;
    const struct gw_sequence_layer *kv = &sequence->layers[layer];
    struct gw_host_rows rows;
    PP_TRY(gw_engine_view(sequence->engine, (const uint8_t *)kv->k + at,
                          (const uint8_t *)kv->v + at, (end - from) * sequence->row_bytes, &rows));
    return gw_remote_append(sequence->remote, layer, from, (uint32_t)(end - from), rows.k, rows.v,
                            false);
}

static enum pp_status refill(struct gw_sequence *sequence, uint64_t cut)
{
    uint32_t layers = sequence->engine->info.shape.layers;
    struct gw_lacking lacking = {UINT64_MAX, 0};
    if (cut != UINT64_MAX) {
        PP_TRY(gw_remote_truncate(sequence->remote, cut));
    }
    uint64_t end = sequence->handed < cut ? sequence->handed : cut;
    uint64_t dropped = sequence->dropped < end ? sequence->dropped : end;
    for (uint32_t layer = 0; layer < layers; layer++) {
        struct gw_lacking more = gw_remote_lacking(sequence->remote, layer);
        lacking.begin = more.begin < lacking.begin ? more.begin : lacking.begin;
        lacking.end = more.end > lacking.end ? more.end : lacking.end;
    }
    bool computed = lacking.begin < dropped;
    if (computed) {
        uint64_t to = lacking.end < dropped ? lacking.end : dropped;
        PP_TRY(gw_sequence_recompute(sequence, lacking.begin, to));
    }
    for (uint32_t layer = 0; layer < layers; layer++) {
        PP_TRY(hand_over_again(sequence, layer, end));
    }
    /* What comes in bulk is closed only by request: unsealed it would be read whole from now on. */
    return computed ? gw_remote_seal_begin(sequence->remote) : gw_remote_flush(sequence->remote);
}

void gw_sequence_note_recovery(struct gw_sequence *sequence, uint64_t begin_us)
{
    struct gw_recoveries *all = &sequence->recoveries;
    uint64_t took_us = pp_clock_now_us(&sequence->engine->clock) - begin_us;
    all->count += 1;
    all->total_us += took_us;
    all->longest_us = took_us > all->longest_us ? took_us : all->longest_us;
    PP_LOG_WARNF("engine", "sequence goes on", "recovery_ms=%llu tokens_recomputed_so_far=%llu",
                 (unsigned long long)(took_us / 1000), (unsigned long long)all->tokens_recomputed);
}

enum pp_status gw_sequence_recover(struct gw_sequence *sequence, enum pp_status failed,
                                   uint64_t cut)
{
    uint64_t begin_us = pp_clock_now_us(&sequence->engine->clock);
    for (uint32_t i = 0; failed != PP_OK; i++) {
        if (i == RECOVERIES_MAX) {
            return failed;
        }
        enum pp_status went = gw_remote_recover(sequence->remote);
        if (went != PP_OK) { /* also when it was not a node that failed */
            return went == PP_FAILED_PRECONDITION ? failed : went;
        }
        failed = refill(sequence, cut);
    }
    gw_sequence_note_recovery(sequence, begin_us);
    return PP_OK;
}

void gw_sequence_recoveries(const struct gw_sequence *sequence, struct gw_recoveries *out)
{
    *out = sequence->recoveries;
}
