/*
 * What an attend says on the wire: q rows, what is known of them here and signatures of a part,
 * packed once; headers for one part, or for several that one node is asked at once. On the walk:
 * remote/attend > here > attn_client. It refuses to know streams and answers.
 */
#include <stdlib.h>
#include <string.h>

#include "common/attn/budget.h"
#include "common/base/assert.h"
#include "gpu-worker/remote/attn_client.h"

enum pp_status gw_dispatch_reserve(struct gw_dispatch *dispatch, uint32_t q_rows)
{
    if (q_rows <= dispatch->rows_capacity) {
        return PP_OK;
    }
    const struct gw_remote_sequence *sequence = dispatch->set->sequence;
    uint64_t heads = (uint64_t)q_rows * dispatch->q_heads;
    uint64_t row = heads * dispatch->head_dim * sizeof(float);
    uint32_t tables = sequence->estimators.common.l;
    for (uint32_t i = 0; i < sequence->estimators.range_count; ++i) {
        uint32_t l = sequence->estimators.ranges[i].estimator.l;
        tables = l > tables ? l : tables;
    }
    uint64_t local = row + heads * sizeof(float);
    uint64_t codes = heads * tables * sizeof(uint16_t);
    gw_dispatch_deinit(dispatch);
    bool requests = true;
    for (uint32_t i = 0; i < GW_REQUESTS; ++i) {
        dispatch->requests[i] = gw_buffer_new(row + local + codes);
        requests = requests && dispatch->requests[i] != NULL;
    }
    dispatch->o = malloc(row);
    dispatch->lse = malloc(heads * sizeof(float));
    dispatch->var = malloc(heads * sizeof(float));
    dispatch->lse_var = malloc(heads * sizeof(float));
    dispatch->lse_sampled = malloc(heads * sizeof(float));
    dispatch->keys_read_head = malloc(heads * sizeof(uint32_t));
    if (!requests || dispatch->o == NULL || dispatch->lse == NULL || dispatch->var == NULL ||
        dispatch->lse_var == NULL || dispatch->lse_sampled == NULL ||
        dispatch->keys_read_head == NULL) {
        gw_dispatch_deinit(dispatch);
        return PP_MEMORY;
    }
    dispatch->rows_capacity = q_rows;
    return PP_OK;
}

void gw_dispatch_deinit(struct gw_dispatch *dispatch)
{
    for (uint32_t i = 0; i < GW_REQUESTS; ++i) {
        if (dispatch->requests[i] != NULL) {
            gw_buffer_release(dispatch->requests[i]);
        }
        dispatch->requests[i] = NULL;
    }
    free(dispatch->o);
    free(dispatch->lse);
    free(dispatch->var);
    free(dispatch->lse_var);
    free(dispatch->lse_sampled);
    free(dispatch->keys_read_head);
    dispatch->o = dispatch->lse = dispatch->var = dispatch->lse_var = NULL;
    dispatch->lse_sampled = NULL;
    dispatch->keys_read_head = NULL;
    dispatch->rows_capacity = 0;
}

/* A request buffer that no sender holds; all held is left only by waiting. */
static enum pp_status take_request(struct gw_dispatch *dispatch)
{
    struct gw_remote *remote = dispatch->set->sequence->remote;
    /* Longer than a node may be silent: then its stream gives them back. */
    uint64_t deadline_us = gw_remote_now(remote) + 2 * remote->config.attend_timeout_us;
    do {
        for (uint32_t i = 0; i < GW_REQUESTS; ++i) {
            struct gw_buffer *buffer = dispatch->requests[i];
            if (atomic_load_explicit(&buffer->refs, memory_order_acquire) == 1) {
                dispatch->sending = buffer;
                return PP_OK;
            }
        }
        gw_remote_pause(remote, gw_remote_now(remote) + 1000);
    } while (gw_remote_now(remote) < deadline_us);
    return PP_DEADLINE_EXCEEDED;
}

/* o and lse of what the asker attends itself, of the part's heads of every row, head by head. */
static uint8_t *pack_local(const struct gw_dispatch *dispatch,
                           const struct gw_remote_attend *attend, uint32_t head_begin, uint8_t *out)
{
    uint32_t q_heads = dispatch->set->sequence->config.shape.q_heads;
    uint64_t bytes = dispatch->head_dim * sizeof(float);
    for (uint32_t row = 0; row < attend->q_rows && attend->local_o != NULL; ++row) {
        for (uint32_t head = 0; head < dispatch->q_heads; ++head) {
            uint64_t at = (uint64_t)row * q_heads + head_begin + head;
            memcpy(out, attend->local_o + at * dispatch->head_dim, bytes);
            memcpy(out + bytes, attend->local_lse + at, sizeof(float));
            out += bytes + sizeof(float);
        }
    }
    return out;
}

/* The part's q heads of every row, then what is known of them here, then their signatures when
 * with_codes. */
static void pack_payload(struct gw_dispatch *dispatch, const struct gw_remote_attend *attend,
                         bool with_codes)
{
    const struct gw_remote_sequence *sequence = dispatch->set->sequence;
    const struct gw_route_part *route = &sequence->route.parts[dispatch->set->index];
    const struct pp_shape *shape = &sequence->config.shape;
    uint32_t head_begin = route->kv_head_begin * pp_shape_group(shape);
    uint64_t row_bytes = (uint64_t)dispatch->q_heads * dispatch->head_dim * sizeof(float);
    uint8_t *out = dispatch->sending->data;
    for (uint32_t row = 0; row < attend->q_rows; ++row) {
        const float *q =
            attend->q + ((uint64_t)row * shape->q_heads + head_begin) * dispatch->head_dim;
        memcpy(out, q, row_bytes);
        out += row_bytes;
    }
    out = pack_local(dispatch, attend, head_begin, out);
    if (with_codes) {
        const float *q = (const float *)(const void *)dispatch->sending->data;
        const struct pp_hash *hash = gw_remote_hash(sequence, attend->layer);
        uint32_t l = gw_remote_estimator(sequence, attend->layer)->l;
        for (uint64_t head = 0; head < (uint64_t)attend->q_rows * dispatch->q_heads; ++head) {
            pp_hash_query(hash, q + head * dispatch->head_dim, (uint16_t *)(void *)out + head * l);
        }
        out += (uint64_t)attend->q_rows * dispatch->q_heads * l * sizeof(uint16_t);
    }
    dispatch->payload_bytes = (uint64_t)(out - dispatch->sending->data);
}

void gw_estimator_pack(const struct pp_estimator *estimator, Pigpen__V1__Estimator *out)
{
    out->kind = (Pigpen__V1__EstimatorKind)estimator->kind;
    out->k = estimator->k;
    out->l = estimator->l;
    out->t = estimator->t;
    out->bits = estimator->bits;
    out->rows_share = estimator->rows_share;
    out->rows = estimator->rows;
    out->target_error = estimator->target_error;
}

/* Signatures are made with the layer's k and l; for others the node hashes. */
static bool sends_codes(const struct gw_remote_sequence *sequence,
                        const struct gw_remote_attend *attend)
{
    const struct pp_estimator *own = gw_remote_estimator(sequence, attend->layer);
    const struct pp_estimator *asked =
        attend->estimator.kind != PP_ESTIMATOR_NONE ? &attend->estimator : own;
    return gw_remote_hash(sequence, attend->layer) != NULL && asked->kind == PP_LSH &&
           asked->k == own->k && asked->l == own->l;
}

/* One part's share of a message. */
struct packed_item {
    Pigpen__V1__AttendItem item;
    Pigpen__V1__Estimator estimator;
    Pigpen__V1__Section sections[3]; /* q, local, codes: those that are not empty */
    uint32_t section_count;
};

static void pack_section(struct packed_item *packed, Pigpen__V1__SectionKind kind, uint32_t index,
                         uint64_t offset, uint64_t bytes)
{
    if (bytes > 0) {
        Pigpen__V1__Section *section = &packed->sections[packed->section_count++];
        pigpen__v1__section__init(section);
        section->kind = kind;
        section->item = index;
        section->offset = offset;
        section->bytes = bytes;
    }
}

/* Item `index` of a message, its payload from `offset` on. */
static void pack_item(const struct gw_part *part, uint32_t index, uint64_t offset,
                      struct packed_item *packed)
{
    const struct gw_remote_sequence *sequence = part->sequence;
    const struct gw_remote_attend *attend = &sequence->attend;
    const struct gw_dispatch *dispatch = &sequence->sets[part->index].dispatch;
    uint64_t heads = (uint64_t)attend->q_rows * dispatch->q_heads;
    uint64_t q_bytes = heads * dispatch->head_dim * sizeof(float);
    uint64_t local_bytes = attend->local_o != NULL ? q_bytes + heads * sizeof(float) : 0;
    packed->section_count = 0;
    pack_section(packed, PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q, index, offset, q_bytes);
    pack_section(packed, PIGPEN__V1__SECTION_KIND__SECTION_KIND_LOCAL, index, offset + q_bytes,
                 local_bytes);
    pack_section(packed, PIGPEN__V1__SECTION_KIND__SECTION_KIND_SIGNATURES, index,
                 offset + q_bytes + local_bytes, dispatch->payload_bytes - q_bytes - local_bytes);
    Pigpen__V1__AttendItem *item = &packed->item;
    pigpen__v1__attend_item__init(item);
    item->handle = part->handle;
    item->generation = sequence->generation;
    item->held_tokens = dispatch->held_tokens;
    item->q_rows = attend->q_rows;
    item->n_seeds = attend->seeds != NULL ? attend->q_rows : 0;
    item->seeds = (uint64_t *)(uintptr_t)attend->seeds; /* read only, as these are */
    item->n_kv_head_shares = dispatch->share_count;
    item->kv_head_shares = (float *)(uintptr_t)dispatch->shares;
    bool own = attend->estimator.kind == PP_ESTIMATOR_NONE;
    const struct pp_estimator *asked =
        own ? gw_remote_estimator(sequence, attend->layer) : &attend->estimator;
    struct pp_estimator of_part =
        pp_budget_of_part(asked, dispatch->held_tokens, attend->held_tokens);
    pigpen__v1__estimator__init(&packed->estimator);
    gw_estimator_pack(&of_part, &packed->estimator);
    if (own && sequence->config.nodes_plan) {
        packed->estimator.kind = PIGPEN__V1__ESTIMATOR_KIND__ESTIMATOR_KIND_UNSPECIFIED;
    }
    item->estimator = &packed->estimator;
}

enum pp_status gw_attend_pack(struct gw_part *const *parts, uint32_t count, uint64_t request_id,
                              uint8_t *header, size_t capacity, uint32_t *bytes_out)
{
    const struct gw_remote_sequence *sequence = parts[0]->sequence;
    struct packed_item packed[GW_ATTEND_ITEMS_MAX];
    Pigpen__V1__AttendItem *items[GW_ATTEND_ITEMS_MAX];
    Pigpen__V1__Section *sections[3 * GW_ATTEND_ITEMS_MAX];
    Pigpen__V1__AttendRequest request = PIGPEN__V1__ATTEND_REQUEST__INIT;
    uint64_t payload_bytes = 0;
    PP_ASSERT(count > 0 && count <= GW_ATTEND_ITEMS_MAX);
    for (uint32_t i = 0; i < count; ++i) {
        pack_item(parts[i], i, payload_bytes, &packed[i]);
        payload_bytes += parts[i]->sequence->sets[parts[i]->index].dispatch.payload_bytes;
        items[i] = &packed[i].item;
        for (uint32_t j = 0; j < packed[i].section_count; ++j) {
            sections[request.n_sections++] = &packed[i].sections[j];
        }
    }
    request.request_id = request_id;
    request.incarnation = parts[0]->incarnation;
    request.layer = sequence->attend.layer;
    request.timeout_us = sequence->remote->config.attend_timeout_us;
    request.q_dtype = PIGPEN__V1__DTYPE__DTYPE_F32;
    request.o_dtype = PIGPEN__V1__DTYPE__DTYPE_F32;
    request.want_errors = sequence->attend.errors;
    request.want_sampled = sequence->sets[parts[0]->index].dispatch.sampled;
    request.n_items = count;
    request.items = items;
    request.sections = sections;
    size_t bytes = 0;
    PP_TRY(pp_codec_pack(&request.base, payload_bytes, header, capacity, &bytes));
    *bytes_out = (uint32_t)bytes;
    return PP_OK;
}

bool gw_attend_packs_with(const struct gw_part *part, const struct gw_part *other)
{
    const struct gw_remote_attend *left = &part->sequence->attend,
                                  *right = &other->sequence->attend;
    return part->incarnation == other->incarnation && left->layer == right->layer &&
           left->errors == right->errors &&
           part->sequence->sets[part->index].dispatch.sampled ==
               other->sequence->sets[other->index].dispatch.sampled;
}

enum pp_status gw_dispatch_prepare(struct gw_dispatch *dispatch,
                                   const struct gw_remote_attend *attend, uint64_t held_tokens)
{
    const struct gw_remote_sequence *sequence = dispatch->set->sequence;
    const struct pp_estimator *own = gw_remote_estimator(sequence, attend->layer);
    bool named = attend->estimator.kind != PP_ESTIMATOR_NONE;
    bool exact_apart =
        !named && own->kind == PP_EXACT && pp_estimators_sample(&sequence->estimators);
    PP_TRY(take_request(dispatch));
    dispatch->layer = attend->layer;
    dispatch->q_rows = attend->q_rows;
    dispatch->held_tokens = held_tokens;
    dispatch->asked = exact_apart ? PP_ESTIMATOR_NONE : named ? attend->estimator.kind : own->kind;
    dispatch->errors = attend->errors;
    pack_payload(dispatch, attend, sends_codes(sequence, attend));
    return PP_OK;
}

enum pp_status gw_ask_prepare(struct gw_part *part)
{
    struct gw_ask *ask = &part->ask;
    ask->own_id = part->sequence->remote->next_request_id++;
    ask->sent_again = false;
    ask->send_status = PP_OK;
    PP_TRY(gw_attend_pack(&part, 1, ask->own_id, ask->header, sizeof(ask->header),
                          &ask->header_bytes));
    ask->ready = true;
    return PP_OK;
}
