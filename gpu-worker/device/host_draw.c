/*
 * The next token from logits on the host, by the law of draw.h: the best value, then the cuts of
 * top-k and top-p by counting the ranks' digits, highest first, then one walk over the ids. Reads
 * the logits once for the best, three times a cut, and twice for the draw; allocates nothing. It
 * refuses to know what ids mean.
 */
#include "common/base/assert.h"
#include "gpu-worker/device/draw.h"
#include "gpu-worker/device/host.h"

static float value_at(const struct gw_draw *draw, uint32_t id)
{
    return gw_draw_value(draw, draw->logits[id], draw->seen == NULL ? 0 : draw->seen[id]);
}

static uint64_t best_key(const struct gw_draw *draw)
{
    uint64_t best = 0;
    for (uint32_t id = 0; id < draw->count; id++) {
        uint64_t key = gw_draw_key(value_at(draw, id), id);
        best = key > best ? key : best;
    }
    return best;
}

/* The rank and the equals at which the ids in order have counted, or weighed, as much as wanted. */
static struct gw_draw_cut cut_at(const struct gw_draw *draw, float best, bool weighed,
                                 uint64_t wanted)
{
    uint64_t bins[GW_DRAW_BINS];
    uint32_t prefix = 0;
    for (uint32_t digit = 0; digit < GW_DRAW_DIGITS; digit++) {
        uint32_t shift = gw_draw_digit_shift(digit), bits = gw_draw_digit_bits(digit), bin = 0;
        memset(bins, 0, sizeof(bins));
        for (uint32_t id = 0; id < draw->count; id++) {
            uint32_t rank = gw_draw_rank(best, value_at(draw, id), draw->scale);
            if (rank < GW_DRAW_RANKS && (uint64_t)rank >> (shift + bits) == prefix) {
                bins[rank >> shift & ((1u << bits) - 1)] += weighed ? gw_draw_weight(rank) : 1;
            }
        }
        while (bin < 1u << bits && bins[bin] < wanted) {
            wanted -= bins[bin++];
        }
        if (bin == 1u << bits) { /* there are not as many */
            return gw_draw_no_cut();
        }
        prefix = prefix << bits | bin;
    }
    uint64_t each = weighed ? gw_draw_weight(prefix) : 1;
    return (struct gw_draw_cut){prefix, (wanted + each - 1) / each};
}

/* The weight of an id, 0 when it is cut; *equal counts those of the cut's rank so far. */
static uint64_t kept_weight(const struct gw_draw *draw, float best, const struct gw_draw_cut *cut,
                            uint32_t id, uint64_t *equal)
{
    uint32_t rank = gw_draw_rank(best, value_at(draw, id), draw->scale);
    bool kept = rank < cut->rank || (rank == cut->rank && (*equal)++ < cut->equal);
    uint64_t weight = kept && rank < GW_DRAW_RANKS ? gw_draw_weight(rank) : 0;
    return weight >= draw->weight_min ? weight : 0;
}

static uint64_t kept_total(const struct gw_draw *draw, float best, const struct gw_draw_cut *cut)
{
    uint64_t total = 0, equal = 0;
    for (uint32_t id = 0; id < draw->count; id++) {
        total += kept_weight(draw, best, cut, id, &equal);
    }
    return total;
}

/* Kept by top_k alone. */
static uint64_t top_k_total(const struct gw_draw *draw, float best, const struct gw_draw_cut *cut)
{
    struct gw_draw all = *draw;
    all.weight_min = 0;
    return kept_total(&all, best, cut);
}

static uint32_t draw_one(const struct gw_draw *draw)
{
    uint64_t key = best_key(draw);
    if (!gw_draw_key_finite(key)) {
        return GW_DRAW_NONE;
    }
    if (draw->scale == 0.0) {
        return gw_draw_key_id(key);
    }
    float best = gw_draw_key_value(key);
    struct gw_draw_cut cut =
        draw->top_k == 0 ? gw_draw_no_cut() : cut_at(draw, best, false, draw->top_k);
    if (draw->top_p != 0) {
        uint64_t total = top_k_total(draw, best, &cut);
        cut = cut_at(draw, best, true, gw_draw_wanted(draw->top_p, total));
    }
    uint64_t left = gw_draw_high(draw->random, kept_total(draw, best, &cut)), equal = 0;
    for (uint32_t id = 0; id < draw->count; id++) {
        uint64_t weight = kept_weight(draw, best, &cut, id, &equal);
        if (left < weight) {
            return id;
        }
        left -= weight;
    }
    PP_ASSERT(false); /* less than all that is kept was drawn */
    return GW_DRAW_NONE;
}

enum pp_status gw_host_draw(struct gw_device *device, struct gw_stream *stream,
                            const struct gw_draw *draws, uint32_t rows, uint32_t *ids_out)
{
    (void)device;
    (void)stream;
    for (uint32_t i = 0; i < rows; i++) {
        PP_ASSERT(draws[i].count > 0);
        ids_out[i] = draw_one(&draws[i]);
        if (ids_out[i] != GW_DRAW_NONE && draws[i].seen != NULL) {
            draws[i].seen[ids_out[i]]++;
        }
    }
    return PP_OK;
}
