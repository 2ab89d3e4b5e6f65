/*
 * Requests that carry no tensors, and what all decoders share: part references, incarnation, ids,
 * estimators. On the walk: rpc > service > exec. It refuses to know how messages travel and what
 * parts the node holds.
 */
#include "attn-node/service/decode.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum pp_status an_decode_refuse(struct an_job *job, enum pp_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(job->detail, sizeof(job->detail), format, arguments);
    va_end(arguments);
    return status;
}

enum pp_status an_decode_take(struct pp_codec_arena *arena, uint64_t count, uint64_t bytes_each,
                              void *memory_out)
{
    uint64_t bytes = count * bytes_each;
    if (count > arena->bytes || bytes > arena->bytes) {
        return PP_MESSAGE_TOO_LARGE;
    }
    void *memory = arena->allocator.alloc(arena->allocator.allocator_data, bytes > 0 ? bytes : 1);
    if (memory == NULL) {
        return PP_MESSAGE_TOO_LARGE;
    }
    memset(memory, 0, bytes);
    memcpy(memory_out, &memory, sizeof(memory));
    return PP_OK;
}

enum pp_status an_decode_incarnation(uint64_t said, uint64_t incarnation, struct an_job *job)
{
    if (said == incarnation) {
        return PP_OK;
    }
    return an_decode_refuse(job, PP_INCARNATION_CHANGED,
                            "request is for incarnation %016llx, this node is %016llx",
                            (unsigned long long)said, (unsigned long long)incarnation);
}

enum pp_status an_decode_part(const Pigpen__V1__PartRef *ref, uint64_t incarnation,
                              struct an_job *job, struct an_part_ref *part_out)
{
    if (ref == NULL) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "part is missing");
    }
    PP_TRY(an_decode_incarnation(ref->incarnation, incarnation, job));
    part_out->handle = ref->handle;
    part_out->generation = ref->generation;
    return PP_OK;
}

enum pp_status an_decode_estimator(const Pigpen__V1__Estimator *said,
                                   struct pp_estimator *estimator_out)
{
    struct pp_estimator estimator = {.kind = PP_ESTIMATOR_NONE};
    if (said != NULL) {
        if ((int)said->kind < 0 || (int)said->kind > PP_SKETCH) {
            return PP_INVALID_ARGUMENT;
        }
        estimator = (struct pp_estimator){.kind = (enum pp_estimator_kind)said->kind,
                                          .k = said->k,
                                          .l = said->l,
                                          .t = said->t,
                                          .bits = said->bits,
                                          .rows_share = said->rows_share,
                                          .rows = said->rows,
                                          .target_error = said->target_error};
        /* Without a kind only the budget counts: it is checked as a sketch's. */
        struct pp_estimator resolved = estimator;
        resolved.kind = estimator.kind == PP_ESTIMATOR_NONE ? PP_SKETCH : estimator.kind;
        PP_TRY(pp_estimator_resolve(&resolved));
    }
    *estimator_out = estimator;
    return PP_OK;
}

const uint8_t *an_decode_section(const Pigpen__V1__Section *section,
                                 const struct pp_payload_view *payload)
{
    if (payload->data == NULL || section->offset > payload->bytes ||
        section->bytes > payload->bytes - section->offset) {
        return NULL;
    }
    return payload->data + section->offset;
}

static enum pp_status decode_id(const ProtobufCBinaryData *said, const char *name,
                                struct an_job *job, uint8_t id_out[PP_ID_BYTES])
{
    if (said->len != PP_ID_BYTES) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "%s has %zu bytes, it must have %u", name,
                                said->len, PP_ID_BYTES);
    }
    memcpy(id_out, said->data, PP_ID_BYTES);
    return PP_OK;
}

static enum pp_status decode_model(const Pigpen__V1__Model *model, struct an_job *job)
{
    struct an_open_args *args = &job->open;
    if (model == NULL) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "model is missing");
    }
    if (model->fingerprint.len == 0 || model->fingerprint.len > PP_FINGERPRINT_BYTES) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT,
                                "model fingerprint has %zu bytes, 1 to %u are allowed",
                                model->fingerprint.len, PP_FINGERPRINT_BYTES);
    }
    memcpy(args->fingerprint, model->fingerprint.data, model->fingerprint.len);
    args->fingerprint_bytes = (uint32_t)model->fingerprint.len;
    if ((int)model->kv_dtype < PP_BF16 || (int)model->kv_dtype > PP_I8) {
        return an_decode_refuse(job, PP_BAD_DTYPE, "kv_dtype %d is not bf16, f16, f32 or int8",
                                (int)model->kv_dtype);
    }
    float scale = model->scale;
    if (scale == 0.0f && model->head_dim > 0) {
        scale = 1.0f / sqrtf((float)model->head_dim);
    }
    args->shape = (struct pp_shape){
        .layers = model->layers,
        .q_heads = model->q_heads,
        .kv_heads = model->kv_heads,
        .head_dim = model->head_dim,
        .scale = scale,
        .kv_dtype = (enum pp_dtype)model->kv_dtype,
    };
    enum pp_status status = pp_shape_check(&args->shape);
    if (status != PP_OK) {
        return an_decode_refuse(
            job, status, "model shape: %u layers, %u q heads, %u kv heads, dim %u, scale %g",
            model->layers, model->q_heads, model->kv_heads, model->head_dim, (double)model->scale);
    }
    return PP_OK;
}

static enum pp_status decode_open_ranges(const Pigpen__V1__OpenPartRequest *request,
                                         struct an_job *job)
{
    struct an_open_args *args = &job->open;
    uint64_t head_end = (uint64_t)request->kv_head_begin + request->kv_head_count;
    if (request->kv_head_count == 0 || head_end > args->shape.kv_heads) {
        return an_decode_refuse(job, PP_BAD_SHAPE, "kv heads [%u, %llu) of a model with %u",
                                request->kv_head_begin, (unsigned long long)head_end,
                                args->shape.kv_heads);
    }
    args->kv_head_begin = request->kv_head_begin;
    args->kv_head_count = request->kv_head_count;
    if (request->n_dense_layers > AN_DENSE_MAX) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "%zu dense layers",
                                request->n_dense_layers);
    }
    for (size_t index = 0; index < request->n_dense_layers; ++index) {
        if (request->dense_layers[index] >= args->shape.layers) {
            return an_decode_refuse(job, PP_INVALID_ARGUMENT, "dense layer %u of %u",
                                    request->dense_layers[index], args->shape.layers);
        }
    }
    args->dense_layers = request->dense_layers;
    args->dense_layer_count = (uint32_t)request->n_dense_layers;
    return PP_OK;
}

static enum pp_status decode_layer_estimators(const Pigpen__V1__OpenPartRequest *request,
                                              struct pp_codec_arena *arena, struct an_job *job)
{
    struct an_open_args *args = &job->open;
    struct pp_layer_estimator *estimators = NULL;
    if (request->n_layer_estimators > AN_DENSE_MAX) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "%zu estimators of single layers",
                                request->n_layer_estimators);
    }
    PP_TRY(an_decode_take(arena, request->n_layer_estimators, sizeof(*estimators), &estimators));
    for (size_t index = 0; index < request->n_layer_estimators; ++index) {
        const Pigpen__V1__LayerEstimator *said = request->layer_estimators[index];
        estimators[index].layer = said->layer;
        enum pp_status status = an_decode_estimator(said->estimator, &estimators[index].estimator);
        bool named = estimators[index].estimator.kind != PP_ESTIMATOR_NONE;
        if (status != PP_OK || !named || said->layer >= args->shape.layers) {
            return an_decode_refuse(job, status != PP_OK ? status : PP_INVALID_ARGUMENT,
                                    "estimator of layer %u of %u", said->layer, args->shape.layers);
        }
        PP_TRY(pp_estimator_resolve(&estimators[index].estimator));
    }
    args->layer_estimators = estimators;
    args->layer_estimator_count = (uint32_t)request->n_layer_estimators;
    return PP_OK;
}

enum pp_status an_decode_open(const Pigpen__V1__OpenPartRequest *request, uint64_t incarnation,
                              struct pp_codec_arena *arena, struct an_job *job)
{
    job->kind = AN_JOB_OPEN;
    struct an_open_args *args = &job->open;
    memset(args, 0, sizeof(*args));
    if (request->incarnation != 0) {
        PP_TRY(an_decode_incarnation(request->incarnation, incarnation, job));
    }
    PP_TRY(decode_id(&request->sequence_id, "sequence_id", job, args->sequence_id));
    PP_TRY(decode_id(&request->part_id, "part_id", job, args->part_id));
    PP_TRY(decode_model(request->model, job));
    PP_TRY(decode_open_ranges(request, job));
    enum pp_status status = an_decode_estimator(request->estimator, &args->estimator);
    if (status != PP_OK) {
        return an_decode_refuse(job, status, "estimator is unknown or out of range");
    }
    if (args->estimator.kind == PP_ESTIMATOR_NONE) {
        args->estimator.kind = PP_EXACT;
    }
    PP_TRY(pp_estimator_resolve(&args->estimator));
    PP_TRY(decode_layer_estimators(request, arena, job));
    args->token_begin = request->token_begin;
    args->hash_seed = request->hash_seed;
    args->draw_key = request->draw_key;
    if (request->reserve_tokens > PP_TOKENS_PER_PART_MAX) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "reserve_tokens %llu is above %llu",
                                (unsigned long long)request->reserve_tokens,
                                (unsigned long long)PP_TOKENS_PER_PART_MAX);
    }
    args->reserve_bytes = request->reserve_bytes;
    args->reserve_tokens = request->reserve_tokens;
    args->lease_us = request->lease_ms < UINT64_MAX / 1000 ? request->lease_ms * 1000 : UINT64_MAX;
    args->generation = request->generation;
    return an_decode_take(arena, PP_LAYERS_MAX, sizeof(uint64_t), &args->held_tokens);
}

enum pp_status an_decode_seal(const Pigpen__V1__SealPartRequest *request, uint64_t incarnation,
                              struct an_job *job)
{
    job->kind = AN_JOB_SEAL;
    memset(&job->seal, 0, sizeof(job->seal));
    PP_TRY(an_decode_part(request->part, incarnation, job, &job->seal.part));
    if (request->n_layers > PP_LAYERS_MAX) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "%zu layers", request->n_layers);
    }
    job->seal.layers = request->layers;
    job->seal.layer_count = (uint32_t)request->n_layers;
    return PP_OK;
}

enum pp_status an_decode_fork(const Pigpen__V1__ForkPartRequest *request, uint64_t incarnation,
                              struct an_job *job)
{
    job->kind = AN_JOB_FORK;
    struct an_fork_args *args = &job->fork;
    memset(args, 0, sizeof(*args));
    PP_TRY(an_decode_part(request->part, incarnation, job, &args->part));
    PP_TRY(decode_id(&request->sequence_id, "sequence_id", job, args->sequence_id));
    PP_TRY(decode_id(&request->part_id, "part_id", job, args->part_id));
    args->held_tokens = request->held_tokens;
    args->generation = request->generation;
    return PP_OK;
}

enum pp_status an_decode_truncate(const Pigpen__V1__TruncatePartRequest *request,
                                  uint64_t incarnation, struct an_job *job)
{
    job->kind = AN_JOB_TRUNCATE;
    memset(&job->truncate, 0, sizeof(job->truncate));
    PP_TRY(an_decode_part(request->part, incarnation, job, &job->truncate.part));
    job->truncate.new_generation = request->new_generation;
    job->truncate.held_tokens = request->held_tokens;
    return PP_OK;
}

enum pp_status an_decode_renew(const Pigpen__V1__RenewPartsRequest *request, uint64_t incarnation,
                               struct pp_codec_arena *arena, struct an_job *job)
{
    job->kind = AN_JOB_RENEW;
    memset(&job->renew, 0, sizeof(job->renew));
    PP_TRY(an_decode_incarnation(request->incarnation, incarnation, job));
    if (request->n_handles > AN_HANDLES_MAX) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "%zu handles, %u are allowed",
                                request->n_handles, AN_HANDLES_MAX);
    }
    job->renew.handles = request->handles;
    job->renew.handle_count = (uint32_t)request->n_handles;
    return an_decode_take(arena, request->n_handles, sizeof(uint64_t), &job->renew.unknown);
}

enum pp_status an_decode_close(const Pigpen__V1__ClosePartRequest *request, uint64_t incarnation,
                               struct an_job *job)
{
    job->kind = AN_JOB_CLOSE;
    memset(&job->close, 0, sizeof(job->close));
    return an_decode_part(request->part, incarnation, job, &job->close.part);
}

enum pp_status an_decode_get(const Pigpen__V1__GetPartRequest *request, uint64_t incarnation,
                             struct pp_codec_arena *arena, struct an_job *job)
{
    job->kind = AN_JOB_GET;
    memset(&job->get, 0, sizeof(job->get));
    PP_TRY(an_decode_part(request->part, incarnation, job, &job->get.part));
    return an_decode_take(arena, PP_LAYERS_MAX, sizeof(struct an_layer_info), &job->get.layers);
}

enum pp_status an_decode_tune(const Pigpen__V1__TunePartRequest *request, uint64_t incarnation,
                              struct pp_codec_arena *arena, struct an_job *job)
{
    job->kind = AN_JOB_TUNE;
    memset(&job->tune, 0, sizeof(job->tune));
    PP_TRY(an_decode_part(request->part, incarnation, job, &job->tune.part));
    job->tune.target_error = request->target_error;
    job->tune.layer_begin = request->layer_begin;
    job->tune.layer_count = request->layer_count;
    return an_decode_take(arena, PP_LAYERS_MAX, sizeof(struct an_tune_layer), &job->tune.layers);
}

enum pp_status an_decode_list(const Pigpen__V1__ListPartsRequest *request,
                              struct pp_codec_arena *arena, struct an_job *job)
{
    job->kind = AN_JOB_LIST;
    memset(&job->list, 0, sizeof(job->list));
    uint32_t capacity = request->page_size == 0 ? AN_LIST_PAGE : request->page_size;
    job->list.capacity = capacity < AN_LIST_PAGE_MAX ? capacity : AN_LIST_PAGE_MAX;
    job->list.after_handle = request->after_handle;
    return an_decode_take(arena, job->list.capacity, sizeof(struct an_part_info), &job->list.parts);
}

enum pp_status an_decode_evict(const Pigpen__V1__EvictPartsRequest *request, struct an_job *job)
{
    job->kind = AN_JOB_EVICT;
    memset(&job->evict, 0, sizeof(job->evict));
    if (request->n_handles > AN_HANDLES_MAX) {
        return an_decode_refuse(job, PP_INVALID_ARGUMENT, "%zu handles, %u are allowed",
                                request->n_handles, AN_HANDLES_MAX);
    }
    job->evict.handles = request->handles;
    job->evict.handle_count = (uint32_t)request->n_handles;
    job->evict.force = request->force;
    return PP_OK;
}
