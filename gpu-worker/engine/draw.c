/*
 * The next token behind what was run last: logits of its hidden row, and a draw among them, both on
 * the device. On the walk: behind a prefill. It refuses to know how tokens are drawn.
 */
#include "gpu-worker/engine/engine_state.h"

enum pp_status gw_sequence_draw(struct gw_sequence *sequence, struct gw_sampler *sampler,
                                uint32_t *id_out)
{
    struct gw_engine *engine = sequence->engine;
    if (sequence->broken || sequence->length == 0) {
        return PP_FAILED_PRECONDITION;
    }
    PP_TRY(gw_engine_logits_here(engine, engine->x, 1));
    return gw_sampler_next(sampler, engine->stream, engine->logits, id_out);
}
