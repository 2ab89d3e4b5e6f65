/*
 * The check of an attend's answer: a number is used only when the answer is the asked one, whole
 * and finite (laws 1, 3 and 7). On the walk: rpc > attn_client > here. It refuses to know streams.
 */
#include <math.h>
#include <string.h>

#include "gpu-worker/remote/attn_client.h"

/* An answer as one part looks at it. */
struct gw_taken {
    const Pigpen__V1__AttendResponse *answer;
    const struct pp_payload_view *payload;
    uint32_t item; /* the part's place */
};

/* Copies one section of exactly `bytes` bytes; false when it is missing, twice or of another size.
 */
static bool take_section(const struct gw_taken *taken, Pigpen__V1__SectionKind kind, uint64_t bytes,
                         void *out)
{
    const Pigpen__V1__AttendResponse *answer = taken->answer;
    const struct pp_payload_view *payload = taken->payload;
    const Pigpen__V1__Section *found = NULL;
    for (size_t i = 0; i < answer->n_sections; ++i) {
        const Pigpen__V1__Section *section = answer->sections[i];
        if (section->kind != kind || section->item != taken->item) {
            continue;
        }
        if (found != NULL) {
            return false;
        }
        found = section;
    }
    if (found == NULL || found->bytes != bytes || found->offset > payload->bytes ||
        bytes > payload->bytes - found->offset) {
        return false;
    }
    memcpy(out, payload->data + found->offset, bytes);
    return true;
}

static bool all_finite(const float *values, uint64_t count)
{
    uint32_t bad = 0;
    for (uint64_t i = 0; i < count; ++i) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        bad |= (uint32_t)((bits & 0x7f800000u) == 0x7f800000u);
    }
    return bad == 0;
}

static bool all_at_least_zero(const float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; ++i) {
        if (!(values[i] >= 0) || !isfinite(values[i])) {
            return false;
        }
    }
    return true;
}

/* What nodes think of their answers; zeros where it was not asked for. */
static const char *take_errors(struct gw_dispatch *dispatch, const struct gw_taken *taken)
{
    uint64_t heads = (uint64_t)dispatch->q_rows * dispatch->q_heads;
    if (!dispatch->errors) {
        memset(dispatch->var, 0, heads * sizeof(float));
        memset(dispatch->lse_var, 0, heads * sizeof(float));
        memset(dispatch->keys_read_head, 0, heads * sizeof(uint32_t));
        return NULL;
    }
    if (!take_section(taken, PIGPEN__V1__SECTION_KIND__SECTION_KIND_VAR, heads * sizeof(float),
                      dispatch->var) ||
        !take_section(taken, PIGPEN__V1__SECTION_KIND__SECTION_KIND_LSE_VAR, heads * sizeof(float),
                      dispatch->lse_var) ||
        !take_section(taken, PIGPEN__V1__SECTION_KIND__SECTION_KIND_KEYS_READ,
                      heads * sizeof(uint32_t), dispatch->keys_read_head)) {
        return "the error sections are missing or of another length";
    }
    if (!all_at_least_zero(dispatch->var, heads) || !all_at_least_zero(dispatch->lse_var, heads)) {
        return "an error estimate that is negative or not finite";
    }
    return NULL;
}

static const char *take_sections(struct gw_dispatch *dispatch, const struct gw_taken *taken)
{
    uint64_t heads = (uint64_t)dispatch->q_rows * dispatch->q_heads;
    uint64_t values = heads * dispatch->head_dim;
    if (!take_section(taken, PIGPEN__V1__SECTION_KIND__SECTION_KIND_O, values * sizeof(float),
                      dispatch->o)) {
        return "the output vector is missing or of another length";
    }
    if (!take_section(taken, PIGPEN__V1__SECTION_KIND__SECTION_KIND_LSE, heads * sizeof(float),
                      dispatch->lse)) {
        return "the log-sum-exps are missing or of another length";
    }
    /* Something was asked, so the empty partial (lse = -inf) is no answer either. */
    if (!all_finite(dispatch->o, values) || !all_finite(dispatch->lse, heads)) {
        return "a value that is not finite";
    }
    return take_errors(dispatch, taken);
}

/* What the sampled rows weigh; false when it is not said: by a node that does not know of it. */
static bool take_sampled(struct gw_dispatch *dispatch, const struct gw_taken *taken)
{
    uint64_t heads = (uint64_t)dispatch->q_rows * dispatch->q_heads;
    bool said =
        dispatch->sampled && take_section(taken, PIGPEN__V1__SECTION_KIND__SECTION_KIND_LSE_SAMPLED,
                                          heads * sizeof(float), dispatch->lse_sampled);
    for (uint64_t i = 0; i < heads && said; ++i) {
        said = isfinite(dispatch->lse_sampled[i]) || dispatch->lse_sampled[i] == -INFINITY;
    }
    return said;
}

static const char *check_status(const Pigpen__V1__Status *status, enum pp_status *status_out)
{
    if (status == NULL || status->code == 0) {
        return NULL;
    }
    *status_out = pp_status_from_wire((int)status->code, status->reason);
    return status->message[0] != '\0' ? status->message : "refused";
}

const char *gw_attn_client_take(struct gw_part *part, const Pigpen__V1__AttendResponse *answer,
                                const struct pp_payload_view *payload, enum pp_status *status_out)
{
    struct gw_dispatch *dispatch = &part->sequence->sets[part->index].dispatch;
    *status_out = PP_INTERNAL;
    if (answer->request_id != part->ask.request_id) {
        return "the answer of another request";
    }
    const char *refused = check_status(answer->status, status_out);
    if (refused != NULL) {
        return refused;
    }
    if (answer->incarnation != part->incarnation) {
        *status_out = PP_INCARNATION_CHANGED;
        return "answered by another incarnation: the node was restarted";
    }
    if (answer->layer != dispatch->layer) {
        return "the answer of another layer";
    }
    if (answer->n_results != part->ask.items) {
        return "not one result for one item";
    }
    const Pigpen__V1__AttendResult *result = answer->results[part->ask.item];
    const struct gw_taken taken = {answer, payload, part->ask.item};
    refused = check_status(result->status, status_out);
    if (refused != NULL) {
        return refused;
    }
    if (result->q_rows != dispatch->q_rows) {
        return "another number of q rows";
    }
    if (result->keys_held != dispatch->held_tokens * dispatch->kv_heads * dispatch->q_rows) {
        return "attended over another number of tokens than asked";
    }
    if (answer->o_dtype != PIGPEN__V1__DTYPE__DTYPE_F32 &&
        answer->o_dtype != PIGPEN__V1__DTYPE__DTYPE_UNSPECIFIED) {
        return "another dtype than asked";
    }
    if (result->keys_sampled > result->keys_held) {
        return "more tokens sampled than attended";
    }
    const char *cause = take_sections(dispatch, &taken);
    if (cause != NULL) {
        return cause;
    }
    dispatch->keys_sampled = take_sampled(dispatch, &taken) ? result->keys_sampled : 0;
    dispatch->keys_read = result->keys_read;
    dispatch->node_us = answer->node_us;
    dispatch->flags = result->flags;
    dispatch->used = (enum pp_estimator_kind)result->estimator;
    return NULL;
}
