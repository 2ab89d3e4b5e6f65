/*
 * The table of methods: path, kind, and how a request becomes a job and a job an answer.
 */
#include "attn-node/service/internal.h"

/* A request whose decoder needs the incarnation and the job alone. */
#define DECODE(name, type, decoder)                                                                \
    static enum pp_status name(struct an_service *service, struct an_request *request,             \
                               enum an_next *next_out)                                             \
    {                                                                                              \
        *next_out = AN_NEXT_JOB;                                                                   \
        return decoder((const type *)request->header, service->config.incarnation, &request->job); \
    }
DECODE(decode_seal, Pigpen__V1__SealPartRequest, an_decode_seal)
DECODE(decode_truncate, Pigpen__V1__TruncatePartRequest, an_decode_truncate)
DECODE(decode_close, Pigpen__V1__ClosePartRequest, an_decode_close)

/* The same with memory for outputs. */
#define DECODE_ARENA(name, type, decoder)                                                          \
    static enum pp_status name(struct an_service *service, struct an_request *request,             \
                               enum an_next *next_out)                                             \
    {                                                                                              \
        *next_out = AN_NEXT_JOB;                                                                   \
        return decoder((const type *)request->header, service->config.incarnation,                 \
                       &request->arena, &request->job);                                            \
    }
DECODE_ARENA(decode_renew, Pigpen__V1__RenewPartsRequest, an_decode_renew)
DECODE_ARENA(decode_get, Pigpen__V1__GetPartRequest, an_decode_get)
DECODE_ARENA(decode_tune, Pigpen__V1__TunePartRequest, an_decode_tune)

/* New parts only while serving. */
static enum pp_status admit(const struct an_service *service, struct an_job *job)
{
    switch (an_service_state(service)) {
    case AN_SERVING:
        return PP_OK;
    case AN_STARTING:
        return an_decode_refuse(job, PP_STARTING, "the node is starting");
    default:
        return an_decode_refuse(job, PP_DRAINING, "the node takes no new parts");
    }
}

static enum pp_status decode_open(struct an_service *service, struct an_request *request,
                                  enum an_next *next_out)
{
    *next_out = AN_NEXT_JOB;
    PP_TRY(an_decode_open((const Pigpen__V1__OpenPartRequest *)request->header,
                          service->config.incarnation, &request->arena, &request->job));
    return admit(service, &request->job);
}

static enum pp_status decode_fork(struct an_service *service, struct an_request *request,
                                  enum an_next *next_out)
{
    *next_out = AN_NEXT_JOB;
    PP_TRY(an_decode_fork((const Pigpen__V1__ForkPartRequest *)request->header,
                          service->config.incarnation, &request->job));
    return admit(service, &request->job);
}

static enum pp_status decode_append(struct an_service *service, struct an_request *request,
                                    enum an_next *next_out)
{
    *next_out = AN_NEXT_JOB;
    return an_decode_append((const Pigpen__V1__AppendKvRequest *)request->header,
                            service->config.incarnation, &request->pieces, &request->job);
}

static enum pp_status decode_attend(struct an_service *service, struct an_request *request,
                                    enum an_next *next_out)
{
    *next_out = AN_NEXT_JOB;
    PP_TRY(an_decode_attend((const Pigpen__V1__AttendRequest *)request->header,
                            service->config.incarnation, &request->payload, &request->arena,
                            &request->job, &request->plan));
    if (request->job.attend.item_count == 0) {
        *next_out = AN_NEXT_ANSWER;
        return PP_OK;
    }
    uint64_t bytes = request->plan.output_bytes;
    request->reply = an_pool_take_reply(
        service->pool, bytes < AN_LARGE_REPLY_BYTES ? bytes : AN_LARGE_REPLY_BYTES);
    if (request->reply == NULL) {
        return PP_QUEUE;
    }
    request->job.arena = request->reply->data;
    request->job.arena_bytes = request->reply->bytes_max;
    return PP_OK;
}

static enum pp_status decode_list(struct an_service *service, struct an_request *request,
                                  enum an_next *next_out)
{
    (void)service;
    *next_out = AN_NEXT_JOB;
    return an_decode_list((const Pigpen__V1__ListPartsRequest *)request->header, &request->arena,
                          &request->job);
}

static enum pp_status decode_evict(struct an_service *service, struct an_request *request,
                                   enum an_next *next_out)
{
    (void)service;
    *next_out = AN_NEXT_JOB;
    return an_decode_evict((const Pigpen__V1__EvictPartsRequest *)request->header, &request->job);
}

static enum pp_status decode_self_test(struct an_service *service, struct an_request *request,
                                       enum an_next *next_out)
{
    (void)service;
    *next_out = AN_NEXT_JOB;
    request->job.kind = AN_JOB_SELF_TEST;
    request->job.self_test.count = 0;
    return PP_OK;
}

static enum pp_status decode_plain(struct an_service *service, struct an_request *request,
                                   enum an_next *next_out)
{
    (void)service;
    (void)request;
    *next_out = AN_NEXT_ANSWER;
    return PP_OK;
}

static enum pp_status decode_drain(struct an_service *service, struct an_request *request,
                                   enum an_next *next_out)
{
    (void)request;
    *next_out = AN_NEXT_ANSWER;
    an_state_set(service, AN_DRAINING);
    return PP_OK;
}

static enum pp_status decode_resume(struct an_service *service, struct an_request *request,
                                    enum an_next *next_out)
{
    (void)request;
    *next_out = AN_NEXT_ANSWER;
    if (an_service_state(service) == AN_DRAINING) {
        an_state_set(service, AN_SERVING);
    }
    return PP_OK;
}

#define ROW(ID, NAME, KIND, type, decoder, encoder)                                                \
    [AN_METHOD_##ID] = {.id = AN_METHOD_##ID,                                                      \
                        .in_pieces = (decoder) == decode_append,                                   \
                        .kind = PP_CALL_##KIND,                                                    \
                        .name = NAME,                                                              \
                        .request = &type##__descriptor,                                            \
                        .decode = decoder,                                                         \
                        .encode = encoder}

const struct an_method an_methods[AN_METHOD_COUNT] = {
    ROW(OPEN_PART, "OpenPart", UNARY, pigpen__v1__open_part_request, decode_open, an_encode_open),
    ROW(APPEND_KV, "AppendKv", UNARY, pigpen__v1__append_kv_request, decode_append,
        an_encode_append),
    ROW(APPEND_KV_STREAM, "AppendKvStream", BIDI, pigpen__v1__append_kv_request, decode_append,
        an_encode_append),
    ROW(ATTEND, "Attend", UNARY, pigpen__v1__attend_request, decode_attend, an_encode_attend),
    ROW(ATTEND_STREAM, "AttendStream", BIDI, pigpen__v1__attend_request, decode_attend,
        an_encode_attend),
    ROW(SEAL_PART, "SealPart", UNARY, pigpen__v1__seal_part_request, decode_seal, an_encode_seal),
    ROW(FORK_PART, "ForkPart", UNARY, pigpen__v1__fork_part_request, decode_fork, an_encode_fork),
    ROW(TRUNCATE_PART, "TruncatePart", UNARY, pigpen__v1__truncate_part_request, decode_truncate,
        an_encode_truncate),
    ROW(READ_KV, "ReadKv", SERVER_STREAM, pigpen__v1__read_kv_request, an_read_decode,
        an_encode_read),
    ROW(RENEW_PARTS, "RenewParts", UNARY, pigpen__v1__renew_parts_request, decode_renew,
        an_encode_renew),
    ROW(CLOSE_PART, "ClosePart", UNARY, pigpen__v1__close_part_request, decode_close,
        an_encode_close),
    ROW(GET_PART, "GetPart", UNARY, pigpen__v1__get_part_request, decode_get, an_encode_get),
    ROW(GET_SERVER_INFO, "GetServerInfo", UNARY, pigpen__v1__get_server_info_request, decode_plain,
        an_encode_info),
    ROW(GET_STATS, "GetStats", UNARY, pigpen__v1__get_stats_request, decode_plain, an_encode_stats),
    ROW(LIST_PARTS, "ListParts", UNARY, pigpen__v1__list_parts_request, decode_list,
        an_encode_list),
    ROW(EVICT_PARTS, "EvictParts", UNARY, pigpen__v1__evict_parts_request, decode_evict,
        an_encode_evict),
    ROW(DRAIN, "Drain", UNARY, pigpen__v1__drain_request, decode_drain, an_encode_drain),
    ROW(RESUME, "Resume", UNARY, pigpen__v1__resume_request, decode_resume, an_encode_resume),
    ROW(SELF_TEST, "SelfTest", UNARY, pigpen__v1__self_test_request, decode_self_test,
        an_encode_self_test),
    ROW(TUNE_PART, "TunePart", UNARY, pigpen__v1__tune_part_request, decode_tune, an_encode_tune),
    ROW(HEALTH_CHECK, "Check", UNARY, grpc__health__v1__health_check_request, an_decode_health,
        an_encode_health),
    ROW(HEALTH_WATCH, "Watch", SERVER_STREAM, grpc__health__v1__health_check_request,
        an_decode_health, an_encode_health),
};
