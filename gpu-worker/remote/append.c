/*
 * Cutting rows over the parts of a sequence, the segments that the worker signs, and the balance of
 * a layer's sketches. On the walk of a token's K/V: engine/prefill and engine/sequence > here >
 * remote/outbox. It refuses to know how signatures and balances are made.
 */
#include <string.h>

#include "common/base/limits.h"
#include "gpu-worker/remote/outbox.h"

/* What the rows of part i carry when the worker signed them. */
static void add_segment(const struct gw_remote_sequence *sequence, uint32_t i, uint32_t layer,
                        const struct gw_remote_segment *segment, uint64_t skipped,
                        struct gw_rows *rows)
{
    const struct pp_shape *shape = &sequence->config.shape;
    uint32_t l = gw_remote_estimator(sequence, layer)->l;
    rows->codes = segment->codes + skipped * shape->kv_heads * l;
    rows->code_bytes = l * (uint32_t)sizeof(*rows->codes);
    rows->centre = segment->centre;
    rows->centre_bytes = shape->head_dim * (uint32_t)sizeof(*rows->centre);
    rows->segment_begin = gw_route_part_tokens(&sequence->route, i, segment->begin);
    rows->segment_count = segment->count;
}

uint64_t gw_remote_segment_end(const struct gw_remote_sequence *sequence, uint64_t begin,
                               uint64_t end)
{
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        uint64_t from = gw_route_part_tokens(&sequence->route, i, begin);
        uint64_t to = gw_route_part_tokens(&sequence->route, i, end);
        uint64_t token_begin = sequence->route.parts[i].token_begin;
        if (to == from) {
            continue;
        }
        uint64_t room = PP_SEGMENT_TOKENS_MAX - from % PP_SEGMENT_TOKENS_MAX;
        uint64_t last = begin + (to - from < room ? to - from : room);
        last = begin < token_begin ? token_begin : last;
        end = last < end ? last : end;
    }
    return end;
}

static float *balance_of(const struct gw_remote_sequence *sequence, uint32_t layer)
{
    const struct pp_shape *shape = &sequence->config.shape;
    return sequence->balances + (uint64_t)layer * shape->kv_heads * shape->head_dim;
}

enum pp_status gw_remote_balance(struct gw_remote_sequence *sequence, uint32_t layer,
                                 const float *balance)
{
    const struct pp_shape *shape = &sequence->config.shape;
    if (sequence->balances == NULL || layer >= shape->layers || sequence->handed[layer] != 0 ||
        gw_remote_estimator(sequence, layer)->kind != PP_SKETCH || !(balance[0] > 0.0f)) {
        return PP_INVALID_ARGUMENT;
    }
    memcpy(balance_of(sequence, layer), balance, sizeof(float) * shape->kv_heads * shape->head_dim);
    return PP_OK;
}

const float *gw_remote_balance_of(const struct gw_remote_sequence *sequence, uint32_t layer)
{
    bool balanced = sequence->balances != NULL && balance_of(sequence, layer)[0] > 0.0f;
    return balanced ? balance_of(sequence, layer) : NULL;
}

/* A part's first rows of a layer bring its balance. */
static void add_balance(const struct gw_remote_sequence *sequence, uint32_t layer,
                        struct gw_rows *rows)
{
    if (gw_remote_balance_of(sequence, layer) != NULL) {
        rows->balance = gw_remote_balance_of(sequence, layer);
        rows->balance_bytes = sequence->config.shape.head_dim * (uint32_t)sizeof(float);
    }
}

/* Rows [start, end) of the sequence for one part, without those that it was given before. */
static enum pp_status append_to_part(struct gw_part *part, uint32_t layer, uint64_t start,
                                     uint64_t end, const void *k, const void *v, bool bulk,
                                     const struct gw_remote_segment *segment)
{
    const struct gw_remote_sequence *sequence = part->sequence;
    const struct gw_route_part *route = &sequence->route.parts[part->index];
    const struct pp_shape *shape = &sequence->config.shape;
    uint64_t head_bytes = pp_vector_bytes(shape->head_dim, shape->kv_dtype);
    uint64_t token_bytes = head_bytes * shape->kv_heads;
    uint64_t from = gw_route_part_tokens(&sequence->route, part->index, start);
    uint64_t to = gw_route_part_tokens(&sequence->route, part->index, end);
    uint64_t queued = part->queued[layer];
    if (to <= queued || to == from) {
        return PP_OK;
    }
    if (from > queued) {
        return PP_INVALID_ARGUMENT;
    }
    uint64_t skipped = route->token_begin + queued - start;
    struct gw_rows rows = {
        .k = (const uint8_t *)k + skipped * token_bytes,
        .v = (const uint8_t *)v + skipped * token_bytes,
        .token_bytes = token_bytes,
        .head_bytes = head_bytes,
        .kv_head_begin = route->kv_head_begin,
        .kv_head_count = route->kv_head_count,
        .count = (uint32_t)(to - queued),
    };
    if (segment != NULL) {
        add_segment(sequence, part->index, layer, segment, skipped, &rows);
    }
    if (queued == 0) {
        add_balance(sequence, layer, &rows);
    }
    part->queued[layer] = to;
    return gw_outbox_append(part, layer, queued, &rows, bulk);
}

static enum pp_status append_rows(struct gw_remote_sequence *sequence, uint32_t layer,
                                  uint64_t start, uint32_t count, const void *k, const void *v,
                                  bool bulk, const struct gw_remote_segment *segment)
{
    PP_TRY(gw_sequence_failed(sequence));
    if (layer >= sequence->config.shape.layers || start > sequence->handed[layer] || count == 0 ||
        count > PP_TOKENS_PER_PART_MAX - start) {
        return PP_INVALID_ARGUMENT;
    }
    uint64_t end = start + count;
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        struct gw_part *part = sequence->parts[i];
        if (!atomic_load(&part->lost)) {
            PP_TRY(append_to_part(part, layer, start, end, k, v, bulk, segment));
        }
    }
    sequence->handed[layer] = end > sequence->handed[layer] ? end : sequence->handed[layer];
    return PP_OK;
}

struct gw_lacking gw_remote_lacking(const struct gw_remote_sequence *sequence, uint32_t layer)
{
    uint64_t handed = sequence->handed[layer];
    struct gw_lacking lacking = {handed, 0};
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        const struct gw_part *part = sequence->parts[i];
        uint64_t share = gw_route_part_tokens(&sequence->route, part->index, handed);
        uint64_t begin = sequence->route.parts[part->index].token_begin;
        if (!atomic_load(&part->lost) && part->queued[layer] < share) {
            uint64_t first = begin + part->queued[layer], last = begin + share;
            lacking.begin = first < lacking.begin ? first : lacking.begin;
            lacking.end = last > lacking.end ? last : lacking.end;
        }
    }
    lacking.end = lacking.end > 0 ? lacking.end : handed;
    return lacking;
}

enum pp_status gw_remote_append(struct gw_remote_sequence *sequence, uint32_t layer, uint64_t start,
                                uint32_t count, const void *k, const void *v, bool bulk)
{
    return append_rows(sequence, layer, start, count, k, v, bulk, NULL);
}

enum pp_status gw_remote_append_signed(struct gw_remote_sequence *sequence, uint32_t layer,
                                       uint64_t start, uint32_t count, const void *k, const void *v,
                                       const struct gw_remote_segment *segment)
{
    if (start < segment->begin || start - segment->begin + count > segment->count ||
        layer >= sequence->config.shape.layers || gw_remote_hash(sequence, layer) == NULL) {
        return PP_INVALID_ARGUMENT;
    }
    return append_rows(sequence, layer, start, count, k, v, true, segment);
}
