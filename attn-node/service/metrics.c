/*
 * The series of a service, all present at 0 from boot. Labels are made here once: series are named
 * by static text.
 */
#include "attn-node/service/internal.h"

#include <stdio.h>
#include <stdlib.h>

#define LABEL_BYTES 64u
#define CODES       17u
#define LABEL_COUNT (AN_METHOD_COUNT * (CODES + 1) + PP_STATUS_COUNT)

static const char *const code_names[CODES] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

static void init_rpc(struct an_metrics *metrics, struct pp_stats *stats)
{
    metrics->inflight = pp_stats_gauge(stats, "pigpen_node_rpc_inflight", "", "Requests in work.");
    metrics->received = pp_stats_counter(stats, "pigpen_node_rpc_received_bytes_total", "",
                                         "Bytes of messages received.");
    metrics->sent =
        pp_stats_counter(stats, "pigpen_node_rpc_sent_bytes_total", "", "Bytes of messages sent.");
    metrics->ready =
        pp_stats_gauge(stats, "pigpen_node_ready", "", "1 while the node takes new sequences.");
    metrics->draining =
        pp_stats_gauge(stats, "pigpen_node_draining", "", "1 while the node is being emptied.");
    metrics->self_test_ok =
        pp_stats_gauge(stats, "pigpen_node_self_test_ok", "", "1 when the last self test passed.");
}

static void init_peers(struct an_metrics *metrics, struct pp_stats *stats)
{
    static const char *const whys[PP_ACCEPT_REFUSALS] = {"why=\"limit\"", "why=\"share\"",
                                                         "why=\"files\""};
    metrics->calls = pp_stats_gauge(stats, "pigpen_node_calls", "", "Calls open, streams too.");
    metrics->call_hosts =
        pp_stats_gauge(stats, "pigpen_node_call_hosts", "", "Hosts that have calls open.");
    metrics->connections =
        pp_stats_gauge(stats, "pigpen_node_connections", "", "Connections open, to a second.");
    metrics->connections_max =
        pp_stats_gauge(stats, "pigpen_node_connections_max", "", "How many may be open.");
    for (int why = 0; why < PP_ACCEPT_REFUSALS; ++why) {
        metrics->connections_refused[why] =
            pp_stats_counter(stats, "pigpen_node_connections_refused_total", whys[why],
                             "Connections closed as they came, by reason.");
    }
}

enum pp_status an_metrics_init(struct an_metrics *metrics, struct pp_stats *stats,
                               uint64_t buffer_bytes)
{
    char *labels = calloc(LABEL_COUNT, LABEL_BYTES);
    if (labels == NULL) {
        return PP_MEMORY;
    }
    metrics->labels = labels;
    init_rpc(metrics, stats);
    init_peers(metrics, stats);
    pp_stat_set(pp_stats_gauge(stats, "pigpen_node_memory_used_bytes", "kind=\"rpc\"",
                               "Bytes in use or reserved, by kind."),
                (double)buffer_bytes);
    for (int method = 0; method < AN_METHOD_COUNT; ++method) {
        const char *name = an_methods[method].name;
        for (uint32_t code = 0; code < CODES; ++code, labels += LABEL_BYTES) {
            (void)snprintf(labels, LABEL_BYTES, "method=\"%s\",code=\"%s\"", name,
                           code_names[code]);
            metrics->requests[method][code] =
                pp_stats_counter(stats, "pigpen_node_rpc_requests_total", labels,
                                 "Requests answered, one a message on streams.");
        }
    }
    for (int method = 0; method < AN_METHOD_COUNT; ++method, labels += LABEL_BYTES) {
        (void)snprintf(labels, LABEL_BYTES, "method=\"%s\"", an_methods[method].name);
        metrics->duration[method] =
            pp_stats_histogram(stats, "pigpen_node_rpc_duration_seconds", labels,
                               "From receipt to answer.", 50e-6, 2, 20);
    }
    for (int status = 1; status < PP_STATUS_COUNT; ++status, labels += LABEL_BYTES) {
        (void)snprintf(labels, LABEL_BYTES, "reason=\"%s\"",
                       pp_status_name((enum pp_status)status));
        metrics->rejected[status] = pp_stats_counter(stats, "pigpen_node_rejected_total", labels,
                                                     "Requests answered with an error, by reason.");
    }
    return PP_OK;
}

void an_metrics_deinit(struct an_metrics *metrics)
{
    free(metrics->labels);
}

void an_metrics_count(struct an_metrics *metrics, enum an_method_id method, enum pp_status status,
                      uint64_t duration_us)
{
    pp_stat_add(metrics->requests[method][pp_status_grpc_code(status)], 1);
    pp_stat_observe(metrics->duration[method], (double)duration_us * 1e-6);
    if (status != PP_OK) {
        pp_stat_add(metrics->rejected[status], 1);
    }
}

void an_metrics_calls(struct an_metrics *metrics, const struct pp_share *share)
{
    pp_stat_set(metrics->calls, share->held);
    pp_stat_set(metrics->call_hosts, share->holders);
}

void an_metrics_connections(struct an_metrics *metrics)
{
    struct pp_accept_counts counts;
    pp_accept_count(&counts);
    pp_stat_set(metrics->connections, counts.open);
    pp_stat_set(metrics->connections_max, counts.max);
    for (int why = 0; why < PP_ACCEPT_REFUSALS; ++why) {
        struct pp_stat *refused = metrics->connections_refused[why];
        pp_stat_add(refused, (double)counts.refused[why] - pp_stat_value(refused));
    }
}
