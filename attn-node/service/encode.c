/*
 * Answers without tensors: from a done job to the header of an answer, put together in the scratch.
 */
#include "attn-node/service/internal.h"

#include <string.h>

const char *const an_features[AN_FEATURE_COUNT] = {"exact", "lsh",  "fork",
                                                   "read",  "seal", "append_stream"};

/* protobuf-c wants char *, and only ever reads what is packed. */
static char *text_of(const char *text)
{
    char *plain;
    memcpy(&plain, &text, sizeof(plain));
    return plain;
}

void an_encode_limits(Pigpen__V1__Limits *limits_out)
{
    pigpen__v1__limits__init(limits_out);
    limits_out->tokens_per_part_max = PP_TOKENS_PER_PART_MAX;
    limits_out->message_bytes_max = PP_MESSAGE_BYTES_MAX;
    limits_out->q_rows_max = PP_ATTEND_ROWS_MAX;
    limits_out->items_max = PP_ATTEND_ITEMS_MAX;
    limits_out->stream_window = AN_STREAM_WINDOW;
}

void an_encode_status(Pigpen__V1__Status *status_out, enum pp_status status, const char *message,
                      const struct an_job *job)
{
    pigpen__v1__status__init(status_out);
    status_out->code = (uint32_t)pp_status_grpc_code(status);
    status_out->reason = text_of(pp_status_name(status));
    status_out->message = text_of(message);
    if (status == PP_QUEUE || status == PP_MEMORY) {
        status_out->retry_after_ms = 100;
    }
    if (status == PP_APPEND_GAP && job->kind == AN_JOB_APPEND) {
        status_out->expected_start = job->append.held_tokens;
    }
    if (status == PP_MESSAGE_TOO_LARGE) {
        status_out->max_bytes = PP_MESSAGE_BYTES_MAX;
    }
}

const ProtobufCMessage *an_encode_open(struct an_service *service, struct an_request *request,
                                       struct pp_payload *payload_out)
{
    (void)payload_out;
    static char *features[AN_FEATURE_COUNT];
    struct an_scratch *scratch = service->scratch;
    const struct an_open_args *args = &request->job.open;
    Pigpen__V1__OpenPartResponse *out = &scratch->open;
    pigpen__v1__open_part_response__init(out);
    out->handle = args->handle;
    out->incarnation = service->config.incarnation;
    out->generation = args->held_generation;
    out->lease_ms = args->lease_us / 1000;
    an_encode_limits(&scratch->limits);
    out->limits = &scratch->limits;
    for (uint32_t index = 0; index < AN_FEATURE_COUNT; ++index) {
        features[index] = text_of(an_features[index]);
    }
    out->n_features = AN_FEATURE_COUNT;
    out->features = features;
    out->existed = args->existed;
    out->memory_free_bytes = an_encode_memory_free(service);
    if (args->existed) {
        out->n_held_tokens = args->shape.layers;
        out->held_tokens = args->held_tokens;
    }
    return &out->base;
}

const ProtobufCMessage *an_encode_append(struct an_service *service, struct an_request *request,
                                         struct pp_payload *payload_out)
{
    (void)payload_out;
    struct an_scratch *scratch = service->scratch;
    const struct an_job *job = &request->job;
    const Pigpen__V1__AppendKvRequest *asked = (const Pigpen__V1__AppendKvRequest *)request->header;
    Pigpen__V1__AppendKvResponse *out = &scratch->append;
    pigpen__v1__append_kv_response__init(out);
    out->request_id = asked->request_id;
    out->incarnation = service->config.incarnation;
    out->layer = asked->layer;
    out->held_tokens = job->append.held_tokens;
    out->duplicate = job->append.duplicate;
    out->memory_free_bytes = an_encode_memory_free(service);
    if (job->status != PP_OK) {
        an_encode_status(&scratch->status, job->status, job->detail, job);
        out->status = &scratch->status;
    }
    return &out->base;
}

const ProtobufCMessage *an_encode_seal(struct an_service *service, struct an_request *request,
                                       struct pp_payload *payload_out)
{
    (void)payload_out;
    Pigpen__V1__SealPartResponse *out = &service->scratch->seal;
    pigpen__v1__seal_part_response__init(out);
    out->incarnation = service->config.incarnation;
    out->segments = request->job.seal.segments;
    return &out->base;
}

const ProtobufCMessage *an_encode_fork(struct an_service *service, struct an_request *request,
                                       struct pp_payload *payload_out)
{
    (void)payload_out;
    Pigpen__V1__ForkPartResponse *out = &service->scratch->fork;
    pigpen__v1__fork_part_response__init(out);
    out->handle = request->job.fork.handle;
    out->incarnation = service->config.incarnation;
    out->generation = request->job.fork.generation;
    return &out->base;
}

const ProtobufCMessage *an_encode_truncate(struct an_service *service, struct an_request *request,
                                           struct pp_payload *payload_out)
{
    (void)payload_out;
    Pigpen__V1__TruncatePartResponse *out = &service->scratch->truncate;
    pigpen__v1__truncate_part_response__init(out);
    out->incarnation = service->config.incarnation;
    out->generation = request->job.truncate.new_generation;
    return &out->base;
}

const ProtobufCMessage *an_encode_renew(struct an_service *service, struct an_request *request,
                                        struct pp_payload *payload_out)
{
    (void)payload_out;
    Pigpen__V1__RenewPartsResponse *out = &service->scratch->renew;
    pigpen__v1__renew_parts_response__init(out);
    out->incarnation = service->config.incarnation;
    out->lease_ms = service->config.lease_us / 1000;
    out->n_unknown_handles = request->job.renew.unknown_count;
    out->unknown_handles = request->job.renew.unknown;
    out->memory_free_bytes = an_encode_memory_free(service);
    return &out->base;
}

const ProtobufCMessage *an_encode_close(struct an_service *service, struct an_request *request,
                                        struct pp_payload *payload_out)
{
    (void)payload_out;
    Pigpen__V1__ClosePartResponse *out = &service->scratch->close;
    pigpen__v1__close_part_response__init(out);
    out->incarnation = service->config.incarnation;
    out->freed_bytes = request->job.close.freed_bytes;
    return &out->base;
}

void an_encode_part_info(Pigpen__V1__PartInfo *out, struct an_part_info *info)
{
    pigpen__v1__part_info__init(out);
    out->handle = info->handle;
    out->sequence_id = (ProtobufCBinaryData){.len = PP_ID_BYTES, .data = info->sequence_id};
    out->part_id = (ProtobufCBinaryData){.len = PP_ID_BYTES, .data = info->part_id};
    out->generation = info->generation;
    out->kv_head_begin = info->kv_head_begin;
    out->kv_head_count = info->kv_head_count;
    out->token_begin = info->token_begin;
    out->bytes = info->bytes;
    out->lease_left_ms = info->lease_left_us / 1000;
    out->estimator = (Pigpen__V1__EstimatorKind)info->estimator;
}

const ProtobufCMessage *an_encode_get(struct an_service *service, struct an_request *request,
                                      struct pp_payload *payload_out)
{
    (void)payload_out;
    struct an_scratch *scratch = service->scratch;
    struct an_get_args *args = &request->job.get;
    Pigpen__V1__GetPartResponse *out = &scratch->get;
    pigpen__v1__get_part_response__init(out);
    out->incarnation = service->config.incarnation;
    an_encode_part_info(&scratch->parts[0], &args->info);
    out->part = &scratch->parts[0];
    for (uint32_t index = 0; index < args->info.layer_count; ++index) {
        Pigpen__V1__LayerInfo *layer = &scratch->layers[index];
        pigpen__v1__layer_info__init(layer);
        layer->held_tokens = args->layers[index].held_tokens;
        layer->sealed_tokens = args->layers[index].sealed_tokens;
        layer->indexed_tokens = args->layers[index].indexed_tokens;
        layer->segments = args->layers[index].segments;
        layer->settled_tokens = args->layers[index].settled_tokens;
        scratch->layer_pointers[index] = layer;
    }
    out->part->n_layers = args->info.layer_count;
    out->part->layers = scratch->layer_pointers;
    return &out->base;
}
