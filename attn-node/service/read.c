/*
 * ReadKv: rows of a part streamed back in append format, one job and one message a piece, at most
 * AN_READ_PIECES of them on their way. The first job asks for the size of a row. A generation that
 * changes in between ends the stream with an error, never with rows of two generations.
 */
#include "attn-node/service/internal.h"

enum pp_status an_read_decode(struct an_service *service, struct an_request *request,
                              enum an_next *next_out)
{
    *next_out = AN_NEXT_JOB;
    return an_decode_read((const Pigpen__V1__ReadKvRequest *)request->header,
                          service->config.incarnation, &request->job, &request->read_end);
}

static void read_end(struct an_request *request, enum pp_status status, const char *message)
{
    struct an_call *call = request->call;
    struct an_service *service = request->service;
    if (call != NULL) {
        an_metrics_count(&service->metrics, call->method->id, status,
                         an_service_now(service) - request->job.received_us);
        an_call_finish(call, status, message);
    }
    an_request_end(request);
}

/* A slot whose piece has left; NULL when all are on their way. */
static struct an_read_slot *free_slot(struct an_request *request)
{
    for (uint32_t index = 0; index < AN_READ_PIECES; ++index) {
        struct an_read_slot *slot = &request->read_sent[index];
        if (slot->reply == NULL || !atomic_load(&slot->reply->taken) ||
            slot->reply->ticket != slot->ticket) {
            return slot;
        }
    }
    return NULL;
}

static void read_next(struct an_request *request)
{
    struct an_service *service = request->service;
    struct an_read_args *args = &request->job.read;
    struct an_read_slot *slot = free_slot(request);
    struct an_reply *reply = NULL;
    if (slot != NULL) {
        reply = an_pool_take_reply(service->pool, AN_MEDIUM_REPLY_BYTES);
    }
    if (reply == NULL) {
        request->next_queued = service->stalled_reads;
        service->stalled_reads = request;
        return;
    }
    slot->reply = reply;
    slot->ticket = reply->ticket;
    request->reply = reply;
    uint64_t tokens = AN_MEDIUM_REPLY_BYTES / request->read_row_bytes;
    uint64_t left = request->read_end - args->start;
    tokens = tokens < left ? tokens : left;
    args->count = (uint32_t)(tokens < PP_APPEND_TOKENS_MAX ? tokens : PP_APPEND_TOKENS_MAX);
    args->out = reply->data;
    args->out_capacity = reply->bytes_max;
    an_request_submit(request);
}

void an_read_send(struct an_request *request)
{
    struct an_service *service = request->service;
    struct an_read_args *args = &request->job.read;
    struct pp_payload payload = {.data = NULL};
    const ProtobufCMessage *header = an_encode_read(service, request, &payload);
    enum pp_status sent = an_call_send(request->call, request, header, &payload);
    request->read_ready = sent == PP_QUEUE;
    if (sent == PP_QUEUE) {
        return;
    }
    args->start += args->count;
    if (sent != PP_OK) {
        read_end(request, sent, "a piece could not be sent");
    } else if (args->start == request->read_end) {
        read_end(request, PP_OK, NULL);
    } else {
        read_next(request);
    }
}

void an_read_done(struct an_request *request)
{
    struct an_read_args *args = &request->job.read;
    if (request->call == NULL || request->job.status != PP_OK) {
        read_end(request, request->job.status, request->job.detail);
        return;
    }
    if (request->read_row_bytes != 0) {
        an_read_send(request);
        return;
    }
    request->read_row_bytes = args->out_bytes;
    if (args->out_bytes == 0 || args->out_bytes > AN_MEDIUM_REPLY_BYTES) {
        read_end(request, PP_INTERNAL, "a row has no size");
        return;
    }
    read_next(request);
}

void an_read_poll(struct an_service *service)
{
    struct an_request *request = service->stalled_reads;
    service->stalled_reads = NULL;
    while (request != NULL) {
        struct an_request *next = request->next_queued;
        if (request->call == NULL) {
            an_request_end(request);
        } else {
            read_next(request);
        }
        request = next;
    }
}

const ProtobufCMessage *an_encode_read(struct an_service *service, struct an_request *request,
                                       struct pp_payload *payload_out)
{
    struct an_scratch *scratch = service->scratch;
    const struct an_read_args *args = &request->job.read;
    Pigpen__V1__ReadKvResponse *out = &scratch->read;
    pigpen__v1__read_kv_response__init(out);
    out->incarnation = service->config.incarnation;
    out->layer = args->layer;
    out->start = args->start;
    out->count = args->count;
    out->crc32c = args->crc32c;
    for (uint32_t index = 0; index < 2; ++index) {
        pigpen__v1__section__init(&scratch->sections[index]);
        scratch->sections[index].kind = index == 0 ? PIGPEN__V1__SECTION_KIND__SECTION_KIND_K
                                                   : PIGPEN__V1__SECTION_KIND__SECTION_KIND_V;
        scratch->sections[index].offset = index * (args->out_bytes / 2);
        scratch->sections[index].bytes = args->out_bytes / 2;
        scratch->section_pointers[index] = &scratch->sections[index];
    }
    out->n_sections = 2;
    out->sections = scratch->section_pointers;
    payload_out->data = request->reply->data;
    payload_out->bytes = args->out_bytes;
    return &out->base;
}
