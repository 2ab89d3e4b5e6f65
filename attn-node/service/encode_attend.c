/*
 * The answer to an Attend. The job's outputs lie in the reply buffer already; the wanted ones are
 * moved together in place (o narrowed to bf16 when asked), so that the buffer's first bytes are the
 * payload, without a copy and without what lay between.
 */
#include "attn-node/service/internal.h"
#include "common/base/assert.h"
#include "common/base/half.h"

#include <string.h>

/* One output of an item, before it is moved. */
struct output {
    Pigpen__V1__SectionKind kind;
    const void *source;
    uint64_t bytes;
};

/* Keeps the sections in order of their source, which is nearly how they come. */
static void add_section(struct an_scratch *scratch, size_t *count, uint32_t item,
                        const struct output *output)
{
    size_t at = *count;
    while (at > 0 && (uintptr_t)scratch->section_source[at - 1] > (uintptr_t)output->source) {
        scratch->section_source[at] = scratch->section_source[at - 1];
        scratch->sections[at] = scratch->sections[at - 1];
        --at;
    }
    Pigpen__V1__Section *section = &scratch->sections[at];
    pigpen__v1__section__init(section);
    section->kind = output->kind;
    section->item = item;
    section->bytes = output->bytes;
    scratch->section_source[at] = output->source;
    ++*count;
}

static void add_item(struct an_scratch *scratch, size_t *count, uint32_t index,
                     const struct an_request *request, const struct an_attend_item *item)
{
    uint64_t heads = (uint64_t)item->q_rows * item->q_heads;
    uint64_t o_bytes = request->packed ? pp_dtype_bytes(request->plan.o_dtype) : 4;
    const struct output outputs[] = {
        {PIGPEN__V1__SECTION_KIND__SECTION_KIND_O, item->o, heads * item->head_dim * o_bytes},
        {PIGPEN__V1__SECTION_KIND__SECTION_KIND_LSE, item->lse, heads * 4},
        {PIGPEN__V1__SECTION_KIND__SECTION_KIND_VAR, item->var, heads * 4},
        {PIGPEN__V1__SECTION_KIND__SECTION_KIND_LSE_VAR, item->lse_var, heads * 4},
        {PIGPEN__V1__SECTION_KIND__SECTION_KIND_KEYS_READ, item->keys_read, heads * 4},
    };
    const struct output sampled = {PIGPEN__V1__SECTION_KIND__SECTION_KIND_LSE_SAMPLED,
                                   item->lse_sampled, heads * 4};
    uint32_t wanted = request->plan.want_errors ? 5 : 2;
    for (uint32_t output = 0; output < wanted; ++output) {
        add_section(scratch, count, index, &outputs[output]);
    }
    if (request->plan.want_sampled) {
        add_section(scratch, count, index, &sampled);
    }
}

static void narrow(uint8_t *to, const uint8_t *from, uint64_t values)
{
    for (uint64_t value = 0; value < values; ++value) {
        float wide;
        memcpy(&wide, from + 4 * value, sizeof(wide));
        uint16_t half = pp_bf16_from_f32(wide);
        memcpy(to + 2 * value, &half, sizeof(half));
    }
}

/* The item's output lies at `place` from now on: an answer that has to wait for the send queue is
 * put together again. */
static void set_place(struct an_attend_item *item, Pigpen__V1__SectionKind kind, uint8_t *place)
{
    void **output = NULL;
    if (kind == PIGPEN__V1__SECTION_KIND__SECTION_KIND_O) {
        output = (void **)&item->o;
    } else if (kind == PIGPEN__V1__SECTION_KIND__SECTION_KIND_LSE) {
        output = (void **)&item->lse;
    } else if (kind == PIGPEN__V1__SECTION_KIND__SECTION_KIND_VAR) {
        output = (void **)&item->var;
    } else if (kind == PIGPEN__V1__SECTION_KIND__SECTION_KIND_LSE_VAR) {
        output = (void **)&item->lse_var;
    } else if (kind == PIGPEN__V1__SECTION_KIND__SECTION_KIND_LSE_SAMPLED) {
        output = (void **)&item->lse_sampled;
    } else {
        output = (void **)&item->keys_read;
    }
    *output = place;
}

/* Moves the sections to the front of the buffer in order: none moves past one not yet moved. */
static uint64_t pack_sections(struct an_scratch *scratch, size_t count, struct an_request *request)
{
    uint8_t *data = request->reply->data;
    uint64_t offset = 0;
    for (size_t index = 0; index < count; ++index) {
        Pigpen__V1__Section *section = &scratch->sections[index];
        const uint8_t *source = scratch->section_source[index];
        PP_ASSERT(source >= data + offset);
        section->offset = offset;
        if (section->kind == PIGPEN__V1__SECTION_KIND__SECTION_KIND_O && !request->packed &&
            request->plan.o_dtype == PP_BF16) {
            narrow(data + offset, source, section->bytes / 4);
            section->bytes /= 2;
        } else if (source != data + offset) {
            memmove(data + offset, source, section->bytes);
        }
        uint32_t job_item = request->plan.job_item[section->item];
        set_place(&request->job.attend.items[job_item], section->kind, data + offset);
        offset += section->bytes;
        scratch->section_pointers[index] = section;
    }
    request->packed = true;
    return offset;
}

static void encode_result(struct an_scratch *scratch, uint32_t index,
                          const struct an_request *request)
{
    const struct an_attend_plan *plan = &request->plan;
    Pigpen__V1__AttendResult *result = &scratch->results[index];
    pigpen__v1__attend_result__init(result);
    scratch->result_pointers[index] = result;
    const struct an_attend_item *item = NULL;
    enum pp_status status = plan->status[index];
    if (status == PP_OK) {
        item = &request->job.attend.items[plan->job_item[index]];
        status = item->status;
    }
    an_encode_status(&scratch->item_status[index], status,
                     plan->why[index] != NULL ? plan->why[index] : "", &request->job);
    result->status = &scratch->item_status[index];
    if (status != PP_OK) {
        return;
    }
    result->q_rows = item->q_rows;
    result->estimator = (Pigpen__V1__EstimatorKind)item->used;
    result->keys_held = item->rows_held;
    result->keys_read = item->rows_read;
    result->flags = item->flags;
    result->keys_sampled = item->rows_sampled;
}

const ProtobufCMessage *an_encode_attend(struct an_service *service, struct an_request *request,
                                         struct pp_payload *payload_out)
{
    struct an_scratch *scratch = service->scratch;
    const struct an_job *job = &request->job;
    const Pigpen__V1__AttendRequest *asked = (const Pigpen__V1__AttendRequest *)request->header;
    Pigpen__V1__AttendResponse *out = &scratch->attend;
    pigpen__v1__attend_response__init(out);
    out->request_id = asked->request_id;
    out->incarnation = service->config.incarnation;
    out->layer = asked->layer;
    out->node_us = an_service_now(service) - job->received_us;
    out->draining = an_service_state(service) != AN_SERVING;
    if (job->status != PP_OK) {
        an_encode_status(&scratch->status, job->status, job->detail, job);
        out->status = &scratch->status;
        return &out->base;
    }
    const struct an_attend_plan *plan = &request->plan;
    out->o_dtype = (Pigpen__V1__Dtype)plan->o_dtype;
    size_t count = 0;
    for (uint32_t index = 0; index < plan->item_count; ++index) {
        encode_result(scratch, index, request);
        const struct an_attend_item *item = &job->attend.items[plan->job_item[index]];
        if (plan->status[index] == PP_OK && item->status == PP_OK) {
            add_item(scratch, &count, index, request, item);
        }
    }
    out->n_results = plan->item_count;
    out->results = scratch->result_pointers;
    if (count > 0) {
        payload_out->data = request->reply->data;
        payload_out->bytes = pack_sections(scratch, count, request);
        out->n_sections = count;
        out->sections = scratch->section_pointers;
    }
    return &out->base;
}
