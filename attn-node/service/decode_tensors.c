/*
 * Requests that carry tensors: AppendKv, Attend, ReadKv. Sections are found in the payload, never
 * outside it and never twice. On the walk: rpc > service > exec. It refuses to know the shape of a
 * part: exec compares the sizes found here with it.
 */
#include "attn-node/service/decode.h"

#include <string.h>

static struct pp_span *append_target(struct an_append_args *args, int kind)
{
    switch (kind) {
    case PIGPEN__V1__SECTION_KIND__SECTION_KIND_K:
        return &args->k;
    case PIGPEN__V1__SECTION_KIND__SECTION_KIND_V:
        return &args->v;
    case PIGPEN__V1__SECTION_KIND__SECTION_KIND_SIGNATURES:
        return &args->signatures;
    case PIGPEN__V1__SECTION_KIND__SECTION_KIND_CENTRE:
        return &args->centre;
    case PIGPEN__V1__SECTION_KIND__SECTION_KIND_BALANCE:
        return &args->balance;
    default:
        return NULL;
    }
}

static enum pp_status append_section(const Pigpen__V1__Section *section,
                                     const struct pp_span *payload, struct an_job *job)
{
    struct pp_span *target = append_target(&job->append, (int)section->kind);
    if (target == NULL) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "section of kind %d in an append",
                                (int)section->kind);
    }
    if (target->data != NULL) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "section of kind %d twice",
                                (int)section->kind);
    }
    if (payload->data == NULL || section->offset > payload->bytes ||
        section->bytes > payload->bytes - section->offset) {
        return an_decode_refuse(
            job, PP_BAD_SHAPE, "section of kind %d: %llu bytes at %llu of a payload of %llu",
            (int)section->kind, (unsigned long long)section->bytes,
            (unsigned long long)section->offset, (unsigned long long)payload->bytes);
    }
    *target = pp_span_part(*payload, section->offset, section->bytes);
    return PP_OK;
}

static enum pp_status append_ranges(const Pigpen__V1__AppendKvRequest *request, struct an_job *job)
{
    struct an_append_args *args = &job->append;
    if (request->count == 0 || request->count > PP_APPEND_TOKENS_MAX) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "%u tokens, 1 to %u are allowed",
                                request->count, PP_APPEND_TOKENS_MAX);
    }
    if (request->start > PP_TOKENS_PER_PART_MAX ||
        request->count > PP_TOKENS_PER_PART_MAX - request->start) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "tokens from %llu pass the limit of %llu",
                                (unsigned long long)request->start,
                                (unsigned long long)PP_TOKENS_PER_PART_MAX);
    }
    if (request->layer >= PP_LAYERS_MAX) {
        return an_decode_refuse(job, PP_BAD_SHAPE, "layer %u", request->layer);
    }
    if (args->k.data == NULL || args->v.data == NULL) {
        return an_decode_refuse(job, PP_BAD_SHAPE, "an append needs a K and a V section");
    }
    if (args->k.bytes != args->v.bytes || args->k.bytes == 0 ||
        args->k.bytes % request->count != 0) {
        return an_decode_refuse(job, PP_BAD_SHAPE, "K has %llu bytes and V %llu for %u tokens",
                                (unsigned long long)args->k.bytes,
                                (unsigned long long)args->v.bytes, request->count);
    }
    return PP_OK;
}

static enum pp_status append_segment(const Pigpen__V1__AppendKvRequest *request, struct an_job *job)
{
    struct an_append_args *args = &job->append;
    if (request->segment == NULL) {
        if (args->signatures.data != NULL || args->centre.data != NULL) {
            return an_decode_refuse(job, PP_INVALID_ARGUMENT,
                                    "signatures or centre without a segment");
        }
        return PP_OK;
    }
    const Pigpen__V1__WorkerSegment *segment = request->segment;
    if (segment->count == 0 || segment->count > PP_SEGMENT_TOKENS_MAX ||
        segment->begin > PP_TOKENS_PER_PART_MAX - segment->count) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "segment of %llu tokens from %llu",
                                (unsigned long long)segment->count,
                                (unsigned long long)segment->begin);
    }
    args->segment_given = true;
    args->segment_begin = segment->begin;
    args->segment_count = segment->count;
    return PP_OK;
}

enum pp_status an_decode_append(const Pigpen__V1__AppendKvRequest *request, uint64_t incarnation,
                                const struct pp_span *payload, struct an_job *job)
{
    job->kind = AN_JOB_APPEND;
    struct an_append_args *args = &job->append;
    memset(args, 0, sizeof(*args));
    PP_TRY(an_decode_part(request->part, incarnation, job, &args->part));
    for (size_t index = 0; index < request->n_sections; ++index) {
        PP_TRY(append_section(request->sections[index], payload, job));
    }
    PP_TRY(append_ranges(request, job));
    PP_TRY(append_segment(request, job));
    args->layer = request->layer;
    args->start = request->start;
    args->count = request->count;
    args->bulk = request->bulk;
    args->checksum_given = request->crc32c != 0;
    args->crc32c = request->crc32c;
    args->payload = *payload;
    return PP_OK;
}

static enum pp_status attend_item_refuse(struct an_attend_plan *plan, uint32_t index,
                                         enum pp_status status, const char *why)
{
    if (plan->status[index] == PP_OK) {
        plan->status[index] = status;
        plan->why[index] = why;
    }
    return status;
}

/* Where a section of an item goes; data NULL: to no attend. */
struct attend_section {
    const uint8_t **data;
    uint64_t *bytes;
};

static struct attend_section attend_target(struct an_attend_item *item, int kind)
{
    switch (kind) {
    case PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q:
        return (struct attend_section){&item->q, &item->q_bytes};
    case PIGPEN__V1__SECTION_KIND__SECTION_KIND_SIGNATURES:
        return (struct attend_section){&item->signatures, &item->signature_bytes};
    case PIGPEN__V1__SECTION_KIND__SECTION_KIND_LOCAL:
        return (struct attend_section){&item->local, &item->local_bytes};
    default:
        return (struct attend_section){NULL, NULL};
    }
}

/* Errors of a section are the item's it names; a section that names no item is the message's. */
static enum pp_status attend_sections(const Pigpen__V1__AttendRequest *request,
                                      const struct pp_payload_view *payload,
                                      struct an_attend_item *items, struct an_attend_plan *plan,
                                      struct an_job *job)
{
    for (size_t index = 0; index < request->n_sections; ++index) {
        const Pigpen__V1__Section *section = request->sections[index];
        if (section->item >= plan->item_count) {
            return an_decode_refuse(job, PP_INVALID_ARGUMENT, "section %zu names item %u of %u",
                                    index, section->item, plan->item_count);
        }
        struct an_attend_item *item = &items[section->item];
        struct attend_section to = attend_target(item, (int)section->kind);
        if (to.data == NULL) {
            (void)attend_item_refuse(plan, section->item, PP_INVALID_ARGUMENT,
                                     "section is neither q nor signatures nor local");
            continue;
        }
        const uint8_t *data = an_decode_section(section, payload);
        if (data == NULL) {
            (void)attend_item_refuse(plan, section->item, PP_BAD_SHAPE,
                                     "section passes the payload");
            continue;
        }
        if (*to.data != NULL) {
            (void)attend_item_refuse(plan, section->item, PP_INVALID_ARGUMENT,
                                     "two sections of one kind");
            continue;
        }
        *to.data = data;
        *to.bytes = section->bytes;
    }
    return PP_OK;
}

/* What an item takes from the job's arena: o as f32, and five values a row and head; the number of
 * heads is not known here, at most one a q element. */
static uint64_t attend_item_output_bytes(const struct an_attend_item *item, enum pp_dtype q_dtype)
{
    uint64_t elements = item->q_bytes / pp_dtype_bytes(q_dtype);
    return elements * 4 + elements * 20 + 6 * 64;
}

static void attend_item_check(const Pigpen__V1__AttendItem *said, enum pp_dtype q_dtype,
                              struct an_attend_item *item, uint32_t index,
                              struct an_attend_plan *plan)
{
    uint64_t row_bytes = pp_dtype_bytes(q_dtype);
    if (said->q_rows == 0 || said->q_rows > PP_ATTEND_ROWS_MAX) {
        (void)attend_item_refuse(plan, index, PP_BAD_SHAPE, "q_rows is not 1 to 64");
        return;
    }
    if (item->q == NULL || item->q_bytes == 0 || item->q_bytes % (row_bytes * said->q_rows) != 0) {
        (void)attend_item_refuse(plan, index, PP_BAD_SHAPE, "q section is missing or ragged");
        return;
    }
    if (said->n_seeds != 0 && said->n_seeds != said->q_rows) {
        (void)attend_item_refuse(plan, index, PP_INVALID_ARGUMENT, "not one seed a q row");
        return;
    }
    for (size_t i = 0; i < said->n_kv_head_shares; ++i) {
        if (!(said->kv_head_shares[i] > 0.0f && said->kv_head_shares[i] <= 1.0f)) {
            (void)attend_item_refuse(plan, index, PP_INVALID_ARGUMENT,
                                     "share of a kv head is not in (0, 1]");
            return;
        }
    }
    enum pp_status status = an_decode_estimator(said->estimator, &item->estimator);
    if (status != PP_OK) {
        (void)attend_item_refuse(plan, index, status, "estimator is unknown or out of range");
        return;
    }
    if (said->held_tokens > PP_TOKENS_PER_PART_MAX) {
        (void)attend_item_refuse(plan, index, PP_INVALID_ARGUMENT, "held_tokens passes the limit");
        return;
    }
    item->part = (struct an_part_ref){.handle = said->handle, .generation = said->generation};
    item->held_tokens = said->held_tokens;
    item->q_rows = said->q_rows;
    item->seeds = said->seeds;
    item->seed_count = (uint32_t)said->n_seeds;
    item->kv_shares = said->kv_head_shares;
    item->kv_share_count =
        said->n_kv_head_shares < UINT32_MAX ? (uint32_t)said->n_kv_head_shares : UINT32_MAX;
}

static enum pp_status attend_header(const Pigpen__V1__AttendRequest *request, struct an_job *job,
                                    struct an_attend_plan *plan)
{
    if (request->n_items == 0 || request->n_items > PP_ATTEND_ITEMS_MAX) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "%zu items, 1 to %u are allowed",
                                request->n_items, PP_ATTEND_ITEMS_MAX);
    }
    if (request->layer >= PP_LAYERS_MAX) {
        return an_decode_refuse(job, PP_BAD_SHAPE, "layer %u", request->layer);
    }
    int q_dtype = request->q_dtype == 0 ? PP_F32 : (int)request->q_dtype;
    int o_dtype = request->o_dtype == 0 ? PP_F32 : (int)request->o_dtype;
    if (q_dtype < PP_BF16 || q_dtype > PP_F32) {
        return an_decode_refuse(job, PP_BAD_DTYPE, "q_dtype %d", q_dtype);
    }
    if (o_dtype != PP_F32 && o_dtype != PP_BF16) {
        return an_decode_refuse(job, PP_BAD_DTYPE, "o_dtype %d is not f32 or bf16", o_dtype);
    }
    plan->item_count = (uint32_t)request->n_items;
    plan->o_dtype = (enum pp_dtype)o_dtype;
    plan->want_errors = request->want_errors;
    plan->want_sampled = request->want_sampled;
    job->attend.q_dtype = (enum pp_dtype)q_dtype;
    job->attend.layer = request->layer;
    job->attend.deadline_us = 0;
    if (request->timeout_us != 0) {
        uint64_t left = UINT64_MAX - job->received_us;
        job->attend.deadline_us =
            job->received_us + (request->timeout_us < left ? request->timeout_us : left);
    }
    return PP_OK;
}

enum pp_status an_decode_attend(const Pigpen__V1__AttendRequest *request, uint64_t incarnation,
                                const struct pp_payload_view *payload, struct pp_codec_arena *arena,
                                struct an_job *job, struct an_attend_plan *plan_out)
{
    job->kind = AN_JOB_ATTEND;
    memset(&job->attend, 0, sizeof(job->attend));
    struct an_attend_plan plan = {.request_id = request->request_id};
    PP_TRY(an_decode_incarnation(request->incarnation, incarnation, job));
    PP_TRY(attend_header(request, job, &plan));
    struct an_attend_item *items = NULL;
    PP_TRY(an_decode_take(arena, plan.item_count, sizeof(*items), &items));
    PP_TRY(an_decode_take(arena, plan.item_count, sizeof(*plan.status), &plan.status));
    PP_TRY(an_decode_take(arena, plan.item_count, sizeof(*plan.why), &plan.why));
    PP_TRY(an_decode_take(arena, plan.item_count, sizeof(*plan.job_item), &plan.job_item));
    PP_TRY(attend_sections(request, payload, items, &plan, job));
    uint32_t good = 0;
    for (uint32_t index = 0; index < plan.item_count; ++index) {
        struct an_attend_item *item = &items[index];
        attend_item_check(request->items[index], job->attend.q_dtype, item, index, &plan);
        if (plan.status[index] != PP_OK) {
            continue;
        }
        plan.output_bytes += attend_item_output_bytes(item, job->attend.q_dtype);
        plan.job_item[index] = good;
        items[good] = *item;
        ++good;
    }
    job->attend.items = items;
    job->attend.item_count = good;
    *plan_out = plan;
    return PP_OK;
}

enum pp_status an_decode_read(const Pigpen__V1__ReadKvRequest *request, uint64_t incarnation,
                              struct an_job *job, uint64_t *end_out)
{
    job->kind = AN_JOB_READ;
    memset(&job->read, 0, sizeof(job->read));
    PP_TRY(an_decode_part(request->part, incarnation, job, &job->read.part));
    if (request->layer >= PP_LAYERS_MAX) {
        return an_decode_refuse(job, PP_BAD_SHAPE, "layer %u", request->layer);
    }
    if (request->count == 0 || request->start > PP_TOKENS_PER_PART_MAX ||
        request->count > PP_TOKENS_PER_PART_MAX - request->start) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "%llu tokens from %llu",
                                (unsigned long long)request->count,
                                (unsigned long long)request->start);
    }
    job->read.layer = request->layer;
    job->read.start = request->start;
    job->read.count = 1;
    *end_out = request->start + request->count;
    return PP_OK;
}
