/*
 * The commands of pigpenctl: each asks once (parts: page by page) and prints a table for people or
 * one JSON object.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "deploy/ctl/ctl.h"
#include "grpc/health/v1/health.pb-c.h"
#include "pigpen/v1/admin.pb-c.h"

#define ADMIN "/pigpen.v1.AdminService/"

void ctl_print_json(json_t *object)
{
    (void)json_dumpf(object, stdout, JSON_COMPACT);
    (void)putchar('\n');
    json_decref(object);
}

/* 64-bit names (handles, incarnations) are texts: JSON readers round large numbers. */
static json_t *hex_json(uint64_t value)
{
    return json_sprintf("%016" PRIx64, value);
}

static const char *bytes_text(uint64_t bytes, char *text, size_t capacity)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024;
        ++unit;
    }
    (void)snprintf(text, capacity, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}

static const char *time_text(uint64_t ms, char *text, size_t capacity)
{
    uint64_t s = ms / 1000;
    if (s < 60) {
        (void)snprintf(text, capacity, "%.1f s", (double)ms * 1e-3);
    } else {
        (void)snprintf(text, capacity, "%" PRIu64 " h %02" PRIu64 " min %02" PRIu64 " s", s / 3600,
                       s / 60 % 60, s % 60);
    }
    return text;
}

enum ctl_exit ctl_health(struct ctl *ctl)
{
    static const char *const names[] = {"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"};
    Grpc__Health__V1__HealthCheckRequest request;
    grpc__health__v1__health_check_request__init(&request);
    char service[256];
    (void)snprintf(service, sizeof(service), "%s", ctl->service);
    request.service = service;
    const ProtobufCMessage *message = NULL;
    enum ctl_exit outcome =
        ctl_call(ctl, "/grpc.health.v1.Health/Check", &request.base,
                 &grpc__health__v1__health_check_response__descriptor, &message);
    if (outcome != CTL_OK) {
        return outcome;
    }
    const Grpc__Health__V1__HealthCheckResponse *answer =
        (const Grpc__Health__V1__HealthCheckResponse *)message;
    unsigned status = (unsigned)answer->status;
    const char *name = status < 4 ? names[status] : names[0];
    if (ctl->json) {
        ctl_print_json(json_pack("{s:s, s:s}", "node", ctl->node, "status", name));
    } else {
        printf("%s\n", name);
    }
    return status == 1 ? CTL_OK : CTL_NOT_HEALTHY;
}

static const char *state_text(Pigpen__V1__NodeState state)
{
    static const char *const names[] = {"UNSPECIFIED", "STARTING", "SERVING", "DRAINING"};
    return (unsigned)state < 4 ? names[(unsigned)state] : names[0];
}

static void info_json(const Pigpen__V1__GetServerInfoResponse *info)
{
    json_t *features = json_array();
    for (size_t index = 0; index < info->n_features; ++index) {
        (void)json_array_append_new(features, json_string(info->features[index]));
    }
    ctl_print_json(json_pack(
        "{s:s, s:s, s:s, s:o, s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:o}", "node_name",
        info->node_name, "version", info->version, "commit", info->commit, "incarnation",
        hex_json(info->incarnation), "state", state_text(info->state), "isa", info->isa, "threads",
        (int)info->threads, "memory_limit_bytes", (json_int_t)info->memory_limit_bytes, "uptime_ms",
        (json_int_t)info->uptime_ms, "parts", (json_int_t)info->parts, "drain_left_ms",
        (json_int_t)info->drain_left_ms, "features", features));
}

static void info_table(const Pigpen__V1__GetServerInfoResponse *info)
{
    char text[64];
    printf("node         %s\n", info->node_name);
    printf("state        %s\n", state_text(info->state));
    if (info->state == PIGPEN__V1__NODE_STATE__NODE_STATE_DRAINING) {
        bool stops = info->drain_left_ms > 0;
        printf("drain        waits for %" PRIu64 " parts%s%s\n", info->parts,
               stops ? " and ends at the latest in " : "",
               stops ? time_text(info->drain_left_ms, text, sizeof(text)) : "");
    }
    printf("version      %s (%s)\n", info->version, info->commit);
    printf("incarnation  %016" PRIx64 "\n", info->incarnation);
    printf("isa          %s, %u threads\n", info->isa, info->threads);
    printf("memory       %s\n", bytes_text(info->memory_limit_bytes, text, sizeof(text)));
    printf("uptime       %s\n", time_text(info->uptime_ms, text, sizeof(text)));
    printf("features    ");
    for (size_t index = 0; index < info->n_features; ++index) {
        printf(" %s", info->features[index]);
    }
    printf("\n");
    if (info->limits != NULL) {
        printf("message      %s at most, %u in flight a stream, %u items and %u q rows an attend\n",
               bytes_text(info->limits->message_bytes_max, text, sizeof(text)),
               info->limits->stream_window, info->limits->items_max, info->limits->q_rows_max);
    }
}

enum ctl_exit ctl_info(struct ctl *ctl)
{
    Pigpen__V1__GetServerInfoRequest request;
    pigpen__v1__get_server_info_request__init(&request);
    const ProtobufCMessage *message = NULL;
    enum ctl_exit outcome = ctl_call(ctl, ADMIN "GetServerInfo", &request.base,
                                     &pigpen__v1__get_server_info_response__descriptor, &message);
    if (outcome != CTL_OK) {
        return outcome;
    }
    const Pigpen__V1__GetServerInfoResponse *info =
        (const Pigpen__V1__GetServerInfoResponse *)message;
    if (ctl->json) {
        info_json(info);
    } else {
        info_table(info);
    }
    return CTL_OK;
}

enum ctl_exit ctl_stats(struct ctl *ctl)
{
    Pigpen__V1__GetStatsRequest request;
    pigpen__v1__get_stats_request__init(&request);
    const ProtobufCMessage *message = NULL;
    enum ctl_exit outcome = ctl_call(ctl, ADMIN "GetStats", &request.base,
                                     &pigpen__v1__get_stats_response__descriptor, &message);
    if (outcome != CTL_OK) {
        return outcome;
    }
    const Pigpen__V1__GetStatsResponse *stats = (const Pigpen__V1__GetStatsResponse *)message;
    json_t *counters = ctl->json ? json_object() : NULL;
    size_t zero = 0;
    for (size_t index = 0; index < stats->n_counters; ++index) {
        const Pigpen__V1__Counter *counter = stats->counters[index];
        if (counters != NULL) {
            (void)json_object_set_new(counters, counter->name, json_real(counter->value));
        } else if (counter->value == 0) {
            ++zero;
        } else {
            printf("%-72s %.10g\n", counter->name, counter->value);
        }
    }
    if (counters != NULL) {
        ctl_print_json(json_pack("{s:o, s:o}", "incarnation", hex_json(stats->incarnation),
                                 "counters", counters));
    } else {
        printf("%zu more are 0\n", zero);
    }
    return CTL_OK;
}

static const char *estimator_text(Pigpen__V1__EstimatorKind kind)
{
    static const char *const names[] = {"-", "exact", "lsh", "sketch"};
    return (unsigned)kind < 4 ? names[(unsigned)kind] : names[0];
}

static void id_text(const ProtobufCBinaryData *id, char text[33])
{
    text[0] = '\0';
    for (size_t index = 0; index < id->len && index < 16; ++index) {
        (void)snprintf(text + 2 * index, 3, "%02x", id->data[index]);
    }
}

static void put_part(const Pigpen__V1__PartInfo *part, json_t *list)
{
    char sequence[33];
    char id[33];
    char bytes[32];
    char lease[64];
    id_text(&part->sequence_id, sequence);
    id_text(&part->part_id, id);
    if (list == NULL) {
        printf("%016" PRIx64 "  %s  %-9s %4u-%-4u %10" PRIu64 " %11s  %s\n", part->handle, sequence,
               estimator_text(part->estimator), part->kv_head_begin,
               part->kv_head_begin + part->kv_head_count, part->generation,
               bytes_text(part->bytes, bytes, sizeof(bytes)),
               time_text(part->lease_left_ms, lease, sizeof(lease)));
        return;
    }
    (void)json_array_append_new(
        list,
        json_pack("{s:o, s:s, s:s, s:I, s:i, s:i, s:I, s:I, s:I, s:s}", "handle",
                  hex_json(part->handle), "sequence_id", sequence, "part_id", id, "generation",
                  (json_int_t)part->generation, "kv_head_begin", (int)part->kv_head_begin,
                  "kv_head_count", (int)part->kv_head_count, "token_begin",
                  (json_int_t)part->token_begin, "bytes", (json_int_t)part->bytes, "lease_left_ms",
                  (json_int_t)part->lease_left_ms, "estimator", estimator_text(part->estimator)));
}

enum ctl_exit ctl_parts(struct ctl *ctl)
{
    Pigpen__V1__ListPartsRequest request;
    pigpen__v1__list_parts_request__init(&request);
    json_t *list = ctl->json ? json_array() : NULL;
    uint64_t total = 0;
    bool more = true;
    while (more) {
        const ProtobufCMessage *message = NULL;
        enum ctl_exit outcome = ctl_call(ctl, ADMIN "ListParts", &request.base,
                                         &pigpen__v1__list_parts_response__descriptor, &message);
        if (outcome != CTL_OK) {
            json_decref(list);
            return outcome;
        }
        const Pigpen__V1__ListPartsResponse *page = (const Pigpen__V1__ListPartsResponse *)message;
        total = page->parts_total;
        if (list == NULL && request.after_handle == 0 && page->n_parts > 0) {
            printf("%-16s  %-32s  %-9s %-9s %10s %11s  %s\n", "handle", "sequence", "estimator",
                   "kv heads", "generation", "bytes", "lease left");
        }
        for (size_t index = 0; index < page->n_parts; ++index) {
            put_part(page->parts[index], list);
        }
        more = page->next_after_handle > request.after_handle;
        request.after_handle = page->next_after_handle;
    }
    if (list != NULL) {
        ctl_print_json(json_pack("{s:I, s:o}", "parts_total", (json_int_t)total, "parts", list));
    } else {
        printf("%" PRIu64 " parts\n", total);
    }
    return CTL_OK;
}

enum ctl_exit ctl_selftest(struct ctl *ctl)
{
    Pigpen__V1__SelfTestRequest request;
    pigpen__v1__self_test_request__init(&request);
    const ProtobufCMessage *message = NULL;
    enum ctl_exit outcome = ctl_call(ctl, ADMIN "SelfTest", &request.base,
                                     &pigpen__v1__self_test_response__descriptor, &message);
    if (outcome != CTL_OK) {
        return outcome;
    }
    const Pigpen__V1__SelfTestResponse *answer = (const Pigpen__V1__SelfTestResponse *)message;
    json_t *list = ctl->json ? json_array() : NULL;
    for (size_t index = 0; index < answer->n_checks; ++index) {
        const Pigpen__V1__SelfTestCheck *check = answer->checks[index];
        if (list != NULL) {
            (void)json_array_append_new(list,
                                        json_pack("{s:s, s:b, s:s}", "name", check->name, "ok",
                                                  check->ok ? 1 : 0, "detail", check->detail));
        } else {
            printf("%-4s %s%s%s\n", check->ok ? "ok" : "FAIL", check->name,
                   check->detail[0] != '\0' ? ": " : "", check->detail);
        }
    }
    if (list != NULL) {
        ctl_print_json(json_pack("{s:b, s:o}", "ok", answer->ok ? 1 : 0, "checks", list));
    }
    return answer->ok ? CTL_OK : CTL_NOT_HEALTHY;
}
