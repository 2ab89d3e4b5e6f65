/*
 * grpc.health.v1.Health by hand: Check answers at once, Watch tells every change. A node that is
 * starting, draining or failing its self test is NOT_SERVING. Liveness of peers has no say.
 */
#include "attn-node/service/internal.h"

#include <string.h>

#define SERVING         GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

static bool known_service(const char *name)
{
    static const char *const names[] = {"", "pigpen.v1.AttentionService", "pigpen.v1.AdminService",
                                        "grpc.health.v1.Health"};
    for (size_t index = 0; index < sizeof(names) / sizeof(names[0]); ++index) {
        if (strcmp(name, names[index]) == 0) {
            return true;
        }
    }
    return false;
}

static int present_status(const struct an_service *service)
{
    const char *why;
    return an_service_ready(service, &why) ? (int)SERVING : (int)NOT_SERVING;
}

static void watch_send(struct an_call *call, int status)
{
    if (call->watch_sent == status) {
        return;
    }
    Grpc__Health__V1__HealthCheckResponse out;
    grpc__health__v1__health_check_response__init(&out);
    out.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)status;
    struct pp_payload none = {.data = NULL};
    if (an_call_send(call, NULL, &out.base, &none) == PP_OK) {
        call->watch_sent = status; /* else told again at the next poll */
    }
}

enum pp_status an_decode_health(struct an_service *service, struct an_request *request,
                                enum an_next *next_out)
{
    const Grpc__Health__V1__HealthCheckRequest *asked =
        (const Grpc__Health__V1__HealthCheckRequest *)request->header;
    bool known = known_service(asked->service);
    if (request->method->id == AN_METHOD_HEALTH_CHECK) {
        *next_out = AN_NEXT_ANSWER;
        return known ? PP_OK : an_decode_refuse(&request->job, PP_NOT_FOUND, "unknown service");
    }
    *next_out = AN_NEXT_NONE;
    request->call->watching = known;
    watch_send(request->call, known ? present_status(service) : (int)SERVICE_UNKNOWN);
    return PP_OK;
}

const ProtobufCMessage *an_encode_health(struct an_service *service, struct an_request *request,
                                         struct pp_payload *payload_out)
{
    (void)request;
    (void)payload_out;
    Grpc__Health__V1__HealthCheckResponse *out = &service->scratch->health;
    grpc__health__v1__health_check_response__init(out);
    out->status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)present_status(service);
    return &out->base;
}

void an_health_publish(struct an_service *service)
{
    int status = present_status(service);
    for (uint32_t index = 0; index < AN_CALLS_MAX; ++index) {
        struct an_call *call = &service->calls[index];
        if (call->watching && !call->ended && !call->finished) {
            watch_send(call, status);
        }
    }
}
