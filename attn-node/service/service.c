/*
 * The service as a whole: its life, its server, and the poll that the rpc thread calls after every
 * poll of the transport.
 */
#include "attn-node/service/service.h"

#include <stdlib.h>

#include "attn-node/service/internal.h"
#include "common/base/assert.h"

/* A transport opens calls by a function a method. */
#define OPENED(name, ID)                                                                           \
    static void name(void *service, struct pp_call *call)                                          \
    {                                                                                              \
        an_call_opened(service, AN_METHOD_##ID, call);                                             \
    }
OPENED(opened_open_part, OPEN_PART)
OPENED(opened_append_kv, APPEND_KV)
OPENED(opened_append_kv_stream, APPEND_KV_STREAM)
OPENED(opened_attend, ATTEND)
OPENED(opened_attend_stream, ATTEND_STREAM)
OPENED(opened_seal_part, SEAL_PART)
OPENED(opened_fork_part, FORK_PART)
OPENED(opened_truncate_part, TRUNCATE_PART)
OPENED(opened_read_kv, READ_KV)
OPENED(opened_renew_parts, RENEW_PARTS)
OPENED(opened_close_part, CLOSE_PART)
OPENED(opened_get_part, GET_PART)
OPENED(opened_get_server_info, GET_SERVER_INFO)
OPENED(opened_get_stats, GET_STATS)
OPENED(opened_list_parts, LIST_PARTS)
OPENED(opened_evict_parts, EVICT_PARTS)
OPENED(opened_drain, DRAIN)
OPENED(opened_resume, RESUME)
OPENED(opened_self_test, SELF_TEST)
OPENED(opened_tune, TUNE_PART)
OPENED(opened_health_check, HEALTH_CHECK)
OPENED(opened_health_watch, HEALTH_WATCH)

#define ATTENTION "/pigpen.v1.AttentionService/"
#define ADMIN     "/pigpen.v1.AdminService/"
#define HEALTH    "/grpc.health.v1.Health/"

static const struct pp_method methods[AN_METHOD_COUNT] = {
    {ATTENTION "OpenPart", PP_CALL_UNARY, opened_open_part},
    {ATTENTION "AppendKv", PP_CALL_UNARY, opened_append_kv},
    {ATTENTION "AppendKvStream", PP_CALL_BIDI, opened_append_kv_stream},
    {ATTENTION "Attend", PP_CALL_UNARY, opened_attend},
    {ATTENTION "AttendStream", PP_CALL_BIDI, opened_attend_stream},
    {ATTENTION "SealPart", PP_CALL_UNARY, opened_seal_part},
    {ATTENTION "ForkPart", PP_CALL_UNARY, opened_fork_part},
    {ATTENTION "TruncatePart", PP_CALL_UNARY, opened_truncate_part},
    {ATTENTION "ReadKv", PP_CALL_SERVER_STREAM, opened_read_kv},
    {ATTENTION "RenewParts", PP_CALL_UNARY, opened_renew_parts},
    {ATTENTION "ClosePart", PP_CALL_UNARY, opened_close_part},
    {ATTENTION "GetPart", PP_CALL_UNARY, opened_get_part},
    {ADMIN "GetServerInfo", PP_CALL_UNARY, opened_get_server_info},
    {ADMIN "GetStats", PP_CALL_UNARY, opened_get_stats},
    {ADMIN "ListParts", PP_CALL_UNARY, opened_list_parts},
    {ADMIN "EvictParts", PP_CALL_UNARY, opened_evict_parts},
    {ADMIN "Drain", PP_CALL_UNARY, opened_drain},
    {ADMIN "Resume", PP_CALL_UNARY, opened_resume},
    {ADMIN "SelfTest", PP_CALL_UNARY, opened_self_test},
    {ADMIN "TunePart", PP_CALL_UNARY, opened_tune},
    {HEALTH "Check", PP_CALL_UNARY, opened_health_check},
    {HEALTH "Watch", PP_CALL_SERVER_STREAM, opened_health_watch},
};

/* How often connections are counted. */
#define COUNT_US 500000u

uint64_t an_service_buffer_bytes(uint64_t memory_limit_bytes)
{
    struct an_pool_counts counts = an_pool_counts(memory_limit_bytes);
    return an_pool_bytes(&counts) + sizeof(struct an_scratch) +
           AN_CALLS_MAX * (sizeof(struct an_call) + 2 * sizeof(struct pp_share_holder));
}

enum pp_status an_service_new(const struct an_service_config *config,
                              struct an_service **service_out)
{
    PP_ASSERT(config->transport != NULL && config->exec != NULL && config->stats != NULL);
    PP_ASSERT(config->incarnation != 0);
    struct an_service *service = calloc(1, sizeof(*service));
    if (service == NULL) {
        return PP_MEMORY;
    }
    service->config = *config;
    service->started_us = an_service_now(service);
    service->self_test_due_us = service->started_us;
    atomic_store(&service->wanted, -1);
    atomic_store(&service->ticked_us, service->started_us);
    service->calls = calloc(AN_CALLS_MAX, sizeof(*service->calls));
    service->scratch = calloc(1, sizeof(*service->scratch));
    struct an_pool_counts counts = an_pool_counts(config->memory_limit_bytes);
    if (service->calls == NULL || service->scratch == NULL ||
        pp_share_init(&service->share, AN_CALLS_MAX) != PP_OK ||
        an_pool_new(&counts, &service->pool) != PP_OK ||
        an_metrics_init(&service->metrics, config->stats,
                        an_service_buffer_bytes(config->memory_limit_bytes)) != PP_OK) {
        an_service_destroy(service);
        return PP_MEMORY;
    }
    for (uint32_t index = 0; index < AN_CALLS_MAX; ++index) {
        service->calls[index].next_free = service->free_calls;
        service->free_calls = &service->calls[index];
    }
    *service_out = service;
    return PP_OK;
}

void an_service_destroy(struct an_service *service)
{
    if (service == NULL) {
        return;
    }
    an_pool_destroy(service->pool);
    an_metrics_deinit(&service->metrics);
    pp_share_deinit(&service->share);
    free(service->scratch);
    free(service->calls);
    free(service);
}

enum pp_status an_service_listen(struct an_service *service, const char *address,
                                 const struct pp_tls *tls, int *port_out)
{
    struct pp_transport *transport = service->config.transport;
    const struct pp_server_config config = {
        .address = address,
        .methods = methods,
        .method_count = AN_METHOD_COUNT,
        .context = service,
        .tls = tls,
        .connections_max = service->config.connections_max,
    };
    return transport->ops->server_start(transport, &config, port_out);
}

static void job_done(struct an_service *service, struct an_job *job)
{
    struct an_request *request = job->context;
    if (request->method == NULL) { /* the watchdog's */
        service->self_test_began_us = 0;
        atomic_store(&service->self_test_late_us, 0);
        an_self_test_done(service, job);
        an_request_end(request);
        return;
    }
    if (request->method->id == AN_METHOD_READ_KV) {
        an_read_done(request);
    } else {
        an_call_answer(request);
    }
}

uint32_t an_service_poll(struct an_service *service)
{
    uint32_t count = 0;
    struct an_job *job;
    while ((job = an_exec_take_done(service->config.exec)) != NULL) {
        job_done(service, job);
        ++count;
    }
    an_read_poll(service);
    an_service_start_parked(service);
    uint64_t now_us = an_service_now(service);
    an_state_poll(service, now_us);
    if (now_us - service->counted_us >= COUNT_US) {
        service->counted_us = now_us;
        an_metrics_connections(&service->metrics);
    }
    atomic_store(&service->ticked_us, now_us);
    return count;
}

uint64_t an_service_next_us(const struct an_service *service)
{
    uint64_t now_us = an_service_now(service);
    bool waits = service->stalled_reads != NULL || service->parked_head != NULL;
    uint64_t next_us = now_us + (waits ? 1000 : 100000);
    return next_us < service->self_test_due_us ? next_us : service->self_test_due_us;
}

bool an_service_idle(const struct an_service *service)
{
    return an_pool_requests_taken(service->pool) == 0;
}

uint64_t an_service_ticked_us(const struct an_service *service)
{
    return atomic_load(&service->ticked_us);
}
