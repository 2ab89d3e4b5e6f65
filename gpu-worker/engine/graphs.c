/*
 * The pieces of a step between two points of the network, each a graph of the device: from the
 * answers of a layer to the next one's queries, and from there to what is attended here. On the
 * walk: engine/step_layer > ops > device. It refuses to know what is in a piece.
 */
#include <stdlib.h>

#include "gpu-worker/engine/engine_state.h"

static uint32_t piece_count(const struct gw_engine *engine)
{
    return GW_MICRO_BATCHES_MAX * GW_PIECES * (engine->info.shape.layers + 1);
}

enum pp_status gw_engine_graphs_new(struct gw_engine *engine)
{
    const struct gw_device_ops *ops = engine->device->ops;
    engine->graphs = calloc(piece_count(engine), sizeof(struct gw_graph *));
    if (engine->graphs == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t i = 0; i < piece_count(engine); i++) {
        PP_TRY(ops->graph_new(engine->device, &engine->graphs[i]));
    }
    return PP_OK;
}

void gw_engine_graphs_destroy(struct gw_engine *engine)
{
    for (uint32_t i = 0; engine->graphs != NULL && i < piece_count(engine); i++) {
        engine->device->ops->graph_destroy(engine->device, engine->graphs[i]);
    }
    free(engine->graphs);
    engine->graphs = NULL;
}

static struct gw_graph *graph_of(const struct gw_engine *engine, uint32_t micro,
                                 enum gw_piece piece, uint32_t layer)
{
    uint32_t layers = engine->info.shape.layers + 1;
    return engine->graphs[(micro * GW_PIECES + (uint32_t)piece) * layers + layer];
}

enum pp_status gw_engine_piece_begin(struct gw_engine *engine, uint32_t micro, enum gw_piece piece,
                                     uint32_t layer)
{
    return engine->graphs == NULL
               ? PP_OK
               : engine->device->ops->graph_begin(
                     engine->device, graph_of(engine, micro, piece, layer), engine->stream);
}

enum pp_status gw_engine_piece_end(struct gw_engine *engine, uint32_t micro, enum gw_piece piece,
                                   uint32_t layer, enum pp_status failed)
{
    return engine->graphs == NULL
               ? failed
               : engine->device->ops->graph_end(engine->device,
                                                graph_of(engine, micro, piece, layer), failed);
}
