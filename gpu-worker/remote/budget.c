/*
 * Budgets of parts by their weights. See budget.h.
 */
#include "gpu-worker/remote/budget.h"

#include <math.h>
#include <stdlib.h>

#include "common/attn/budget.h"

#define SHARE_MIN 1e-6

/* Tables have room for all parts that a sequence may grow to. */
#define PARTS GW_NODES_MAX

struct gw_budgets {
    uint64_t *sampled; /* [layer][part] tokens that were sampled in the last answer */
    float *weights;    /* [layer][part][kv head] what they weighed, of what all parts did */
    float *shares;     /* [part][kv head] of the attend at hand */
};

enum pp_status gw_budget_init(struct gw_remote_sequence *sequence)
{
    const struct pp_shape *shape = &sequence->config.shape;
    const uint64_t parts = PARTS;
    if (sequence->balances == NULL) {
        return PP_OK;
    }
    struct gw_budgets *budgets = calloc(1, sizeof(*budgets));
    sequence->budgets = budgets;
    if (budgets == NULL) {
        return PP_MEMORY;
    }
    budgets->sampled = calloc(shape->layers * parts, sizeof(*budgets->sampled));
    budgets->weights = calloc(shape->layers * parts * shape->kv_heads, sizeof(*budgets->weights));
    budgets->shares = calloc(parts * shape->kv_heads, sizeof(*budgets->shares));
    return budgets->sampled != NULL && budgets->weights != NULL && budgets->shares != NULL
               ? PP_OK
               : PP_MEMORY;
}

void gw_budget_deinit(struct gw_remote_sequence *sequence)
{
    if (sequence->budgets != NULL) {
        free(sequence->budgets->sampled);
        free(sequence->budgets->weights);
        free(sequence->budgets->shares);
    }
    free(sequence->budgets);
    sequence->budgets = NULL;
}

void gw_budget_forget(struct gw_remote_sequence *sequence)
{
    uint64_t places = (uint64_t)sequence->config.shape.layers * PARTS;
    for (uint64_t i = 0; i < places && sequence->budgets != NULL; ++i) {
        sequence->budgets->sampled[i] = 0;
    }
}

/* Where a layer's or the attend's part is in a table of parts. */
static uint64_t *sampled_of(const struct gw_remote_sequence *sequence, uint32_t layer,
                            uint32_t part)
{
    return sequence->budgets->sampled + (uint64_t)layer * PARTS + part;
}

static float *weights_of(const struct gw_remote_sequence *sequence, uint32_t layer, uint32_t part)
{
    uint64_t place = (uint64_t)layer * PARTS + part;
    return sequence->budgets->weights + place * sequence->config.shape.kv_heads;
}

static float *shares_of(const struct gw_remote_sequence *sequence, uint32_t part)
{
    return sequence->budgets->shares + (uint64_t)part * sequence->config.shape.kv_heads;
}

/* Whether the attend touches the part, and the part has the kv head. */
static bool takes_part(const struct gw_remote_sequence *sequence, uint32_t part, uint32_t kv_head)
{
    const struct gw_route_part *route = &sequence->route.parts[part];
    return sequence->sets[part].dispatch.held_tokens > 0 && kv_head >= route->kv_head_begin &&
           kv_head - route->kv_head_begin < route->kv_head_count;
}

/* The share of the tokens that an attend samples; a number of rows is divided by `sampled`. */
static float share_of(const struct pp_estimator *asked, uint64_t sampled, uint64_t held)
{
    if (asked->rows > 0) {
        return asked->rows < sampled ? (float)asked->rows / (float)sampled : 1.0f;
    }
    return asked->rows_share > 0.0f ? asked->rows_share : pp_budget_share(held);
}

/* One kv head's shares in the parts that hold it. Returns how many are known to sample. */
static uint32_t divide_head(struct gw_remote_sequence *sequence,
                            const struct gw_remote_attend *attend, const struct pp_estimator *asked,
                            uint32_t kv_head)
{
    struct pp_budget_part parts[GW_NODES_MAX];
    double rows[GW_NODES_MAX];
    uint32_t count = 0;
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        uint64_t sampled = *sampled_of(sequence, attend->layer, i);
        if (takes_part(sequence, i, kv_head) && sampled > 0) {
            double weight = (double)weights_of(sequence, attend->layer, i)[kv_head];
            parts[count++] = (struct pp_budget_part){sampled, weight};
            tokens += sampled;
        }
    }
    if (count < 2) {
        return count;
    }
    float share = share_of(asked, tokens, attend->held_tokens);
    pp_budget_divide((double)share * (double)tokens, parts, count, rows);
    count = 0;
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        bool known = *sampled_of(sequence, attend->layer, i) > 0;
        double own = (double)share; /* of what is not known yet */
        if (takes_part(sequence, i, kv_head) && known) {
            own = rows[count] / (double)parts[count].tokens;
            count++;
        }
        shares_of(sequence, i)[kv_head] = (float)(own > SHARE_MIN ? own : SHARE_MIN);
    }
    return count;
}

void gw_budget_divide(struct gw_remote_sequence *sequence, const struct gw_remote_attend *attend)
{
    bool named = attend->estimator.kind != PP_ESTIMATOR_NONE;
    const struct pp_estimator *asked =
        named ? &attend->estimator : gw_remote_estimator(sequence, attend->layer);
    bool divides = sequence->route.part_count > 1 && sequence->budgets != NULL &&
                   asked->kind == PP_SKETCH && asked->target_error == 0.0f;
    bool known = divides;
    for (uint32_t head = 0; head < sequence->config.shape.kv_heads && known; ++head) {
        known = divide_head(sequence, attend, asked, head) > 1;
    }
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        struct gw_dispatch *dispatch = &sequence->sets[i].dispatch;
        bool sends = known && dispatch->kv_heads <= GW_SHARES_MAX;
        dispatch->sampled = divides;
        dispatch->share_count = sends ? dispatch->kv_heads : 0;
        dispatch->shares =
            sends ? shares_of(sequence, i) + sequence->route.parts[i].kv_head_begin : NULL;
    }
}

/* The mean over q rows and a kv head's q heads of what the part's sampled rows weigh of all. */
static float weight_of(const struct gw_remote_sequence *sequence, uint32_t part, uint32_t kv_head,
                       const float *lse)
{
    const struct gw_dispatch *dispatch = &sequence->sets[part].dispatch;
    const struct pp_shape *shape = &sequence->config.shape;
    uint32_t group = pp_shape_group(shape);
    uint32_t own = (kv_head - sequence->route.parts[part].kv_head_begin) * group;
    double sum = 0.0;
    for (uint32_t row = 0; row < dispatch->q_rows; ++row) {
        for (uint32_t g = 0; g < group; ++g) {
            float all = lse[(uint64_t)row * shape->q_heads + kv_head * group + g];
            float of_part = dispatch->lse_sampled[(uint64_t)row * dispatch->q_heads + own + g];
            double share = exp((double)of_part - (double)all);
            sum += share < 1.0 ? share : 1.0;
        }
    }
    return (float)(sum / ((double)dispatch->q_rows * group));
}

void gw_budget_note(struct gw_remote_sequence *sequence, const float *lse)
{
    uint32_t layer = sequence->attend.layer;
    for (uint32_t i = 0; i < sequence->route.part_count && sequence->budgets != NULL; ++i) {
        const struct gw_dispatch *dispatch = &sequence->sets[i].dispatch;
        if (dispatch->held_tokens == 0 || !dispatch->sampled) {
            continue;
        }
        uint64_t sampled =
            dispatch->keys_sampled / ((uint64_t)dispatch->kv_heads * dispatch->q_rows);
        *sampled_of(sequence, layer, i) = sampled;
        for (uint32_t head = 0; head < sequence->config.shape.kv_heads && sampled > 0; ++head) {
            if (takes_part(sequence, i, head)) {
                weights_of(sequence, layer, i)[head] = weight_of(sequence, i, head, lse);
            }
        }
    }
}
