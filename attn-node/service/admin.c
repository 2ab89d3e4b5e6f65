/*
 * Answers of AdminService: what an operator asks of a node.
 */
#include "attn-node/service/internal.h"

#include <stdio.h>
#include <string.h>

static char *text_of(const char *text)
{
    char *plain;
    memcpy(&plain, &text, sizeof(plain));
    return plain;
}

static Pigpen__V1__NodeState wire_state(enum an_service_state state)
{
    switch (state) {
    case AN_STARTING:
        return PIGPEN__V1__NODE_STATE__NODE_STATE_STARTING;
    case AN_SERVING:
        return PIGPEN__V1__NODE_STATE__NODE_STATE_SERVING;
    default:
        return PIGPEN__V1__NODE_STATE__NODE_STATE_DRAINING;
    }
}

uint64_t an_encode_memory_free(const struct an_service *service)
{
    struct an_exec_usage usage = {0};
    an_exec_usage(service->config.exec, &usage);
    uint64_t used = usage.kv_bytes + usage.index_bytes + usage.tail_bytes + usage.scratch_bytes;
    return usage.memory_limit_bytes > used ? usage.memory_limit_bytes - used : 1;
}

static uint64_t drain_left_ms(const struct an_service *service, uint64_t now_us)
{
    uint64_t until_us = atomic_load(&service->drain_until_us);
    return until_us > now_us ? (until_us - now_us + 999) / 1000 : 0;
}

const ProtobufCMessage *an_encode_info(struct an_service *service, struct an_request *request,
                                       struct pp_payload *payload_out)
{
    (void)request;
    (void)payload_out;
    static char *features[AN_FEATURE_COUNT];
    const struct an_service_config *config = &service->config;
    uint64_t now_us = an_service_now(service);
    struct an_exec_usage usage = {0};
    an_exec_usage(config->exec, &usage);
    Pigpen__V1__GetServerInfoResponse *out = &service->scratch->info;
    pigpen__v1__get_server_info_response__init(out);
    out->version = text_of(config->version);
    out->commit = text_of(config->commit);
    out->incarnation = config->incarnation;
    out->isa = text_of(config->isa);
    out->threads = config->threads;
    out->memory_limit_bytes = config->memory_limit_bytes;
    out->memory_free_bytes = an_encode_memory_free(service);
    out->parts = usage.parts;
    out->drain_left_ms = drain_left_ms(service, now_us);
    out->uptime_ms = (now_us - service->started_us) / 1000;
    for (uint32_t index = 0; index < AN_FEATURE_COUNT; ++index) {
        features[index] = text_of(an_features[index]);
    }
    out->n_features = AN_FEATURE_COUNT;
    out->features = features;
    an_encode_limits(&service->scratch->limits);
    out->limits = &service->scratch->limits;
    out->state = wire_state(an_service_state(service));
    out->node_name = text_of(config->node_name);
    return &out->base;
}

/* Where the next counter goes. */
struct counter_sink {
    struct an_scratch *scratch;
    size_t count;
    size_t text_used;
};

static void add_counter(struct counter_sink *sink, const struct pp_stat *stat, const char *suffix,
                        double value)
{
    size_t left = AN_STAT_TEXT_BYTES - sink->text_used;
    char *name = sink->scratch->stat_text + sink->text_used;
    bool labelled = stat->labels[0] != '\0';
    int written = snprintf(name, left, "%s%s%s%s%s", stat->name, suffix, labelled ? "{" : "",
                           stat->labels, labelled ? "}" : "");
    if (sink->count == AN_COUNTERS_MAX || written < 0 || (size_t)written >= left) {
        return;
    }
    Pigpen__V1__Counter *counter = &sink->scratch->counters[sink->count];
    pigpen__v1__counter__init(counter);
    counter->name = name;
    counter->value = value;
    sink->scratch->counter_pointers[sink->count] = counter;
    ++sink->count;
    sink->text_used += (size_t)written + 1;
}

static void add_stat(struct counter_sink *sink, const struct pp_stat *stat)
{
    if (stat->kind != PP_STAT_HISTOGRAM) {
        add_counter(sink, stat, "", pp_stat_value(stat));
        return;
    }
    uint64_t count = 0;
    for (uint32_t index = 0; index <= stat->bucket_count; ++index) {
        count += atomic_load_explicit(&stat->bucket[index], memory_order_relaxed);
    }
    add_counter(sink, stat, "_count", (double)count);
    add_counter(sink, stat, "_sum", pp_stat_value(stat));
}

const ProtobufCMessage *an_encode_stats(struct an_service *service, struct an_request *request,
                                        struct pp_payload *payload_out)
{
    (void)request;
    (void)payload_out;
    struct counter_sink sink = {.scratch = service->scratch};
    const struct pp_stats *stats = service->config.stats;
    for (size_t index = 0; index < stats->count; ++index) {
        add_stat(&sink, &stats->series[index]);
    }
    Pigpen__V1__GetStatsResponse *out = &service->scratch->stats;
    pigpen__v1__get_stats_response__init(out);
    out->incarnation = service->config.incarnation;
    out->n_counters = sink.count;
    out->counters = service->scratch->counter_pointers;
    return &out->base;
}

const ProtobufCMessage *an_encode_list(struct an_service *service, struct an_request *request,
                                       struct pp_payload *payload_out)
{
    (void)payload_out;
    struct an_scratch *scratch = service->scratch;
    struct an_list_args *args = &request->job.list;
    Pigpen__V1__ListPartsResponse *out = &scratch->list;
    pigpen__v1__list_parts_response__init(out);
    out->incarnation = service->config.incarnation;
    for (uint32_t index = 0; index < args->count; ++index) {
        an_encode_part_info(&scratch->parts[index], &args->parts[index]);
        scratch->part_pointers[index] = &scratch->parts[index];
    }
    out->n_parts = args->count;
    out->parts = scratch->part_pointers;
    if (args->more && args->count > 0) {
        out->next_after_handle = args->parts[args->count - 1].handle;
    }
    out->parts_total = args->parts_total;
    return &out->base;
}

const ProtobufCMessage *an_encode_evict(struct an_service *service, struct an_request *request,
                                        struct pp_payload *payload_out)
{
    (void)payload_out;
    Pigpen__V1__EvictPartsResponse *out = &service->scratch->evict;
    pigpen__v1__evict_parts_response__init(out);
    out->evicted = request->job.evict.evicted;
    out->freed_bytes = request->job.evict.freed_bytes;
    return &out->base;
}

const ProtobufCMessage *an_encode_drain(struct an_service *service, struct an_request *request,
                                        struct pp_payload *payload_out)
{
    (void)request;
    (void)payload_out;
    struct an_exec_usage usage = {0};
    an_exec_usage(service->config.exec, &usage);
    Pigpen__V1__DrainResponse *out = &service->scratch->drain;
    pigpen__v1__drain_response__init(out);
    out->parts = usage.parts;
    return &out->base;
}

const ProtobufCMessage *an_encode_resume(struct an_service *service, struct an_request *request,
                                         struct pp_payload *payload_out)
{
    (void)request;
    (void)payload_out;
    pigpen__v1__resume_response__init(&service->scratch->resume);
    return &service->scratch->resume.base;
}

const ProtobufCMessage *an_encode_self_test(struct an_service *service, struct an_request *request,
                                            struct pp_payload *payload_out)
{
    (void)payload_out;
    struct an_scratch *scratch = service->scratch;
    struct an_self_test_args *args = &request->job.self_test;
    Pigpen__V1__SelfTestResponse *out = &scratch->self_test;
    pigpen__v1__self_test_response__init(out);
    out->ok = args->count > 0;
    for (uint32_t index = 0; index < args->count; ++index) {
        Pigpen__V1__SelfTestCheck *check = &scratch->checks[index];
        pigpen__v1__self_test_check__init(check);
        check->name = text_of(args->checks[index].name);
        check->ok = args->checks[index].ok;
        check->detail = args->checks[index].detail;
        out->ok = out->ok && check->ok;
        scratch->check_pointers[index] = check;
    }
    out->n_checks = args->count;
    out->checks = scratch->check_pointers;
    return &out->base;
}

static void encode_estimator(const struct pp_estimator *estimator, Pigpen__V1__Estimator *out)
{
    pigpen__v1__estimator__init(out);
    out->kind = (Pigpen__V1__EstimatorKind)estimator->kind;
    out->k = estimator->k;
    out->l = estimator->l;
    out->t = estimator->t;
    out->bits = estimator->bits;
    out->rows_share = estimator->rows_share;
}

const ProtobufCMessage *an_encode_tune(struct an_service *service, struct an_request *request,
                                       struct pp_payload *payload_out)
{
    (void)payload_out;
    struct an_scratch *scratch = service->scratch;
    const struct an_tune_args *args = &request->job.tune;
    Pigpen__V1__TunePartResponse *out = &scratch->tune;
    pigpen__v1__tune_part_response__init(out);
    out->incarnation = service->config.incarnation;
    for (uint32_t index = 0; index < args->layer_count; ++index) {
        const struct an_tune_layer *layer = &args->layers[args->layer_begin + index];
        Pigpen__V1__LayerTuning *tuning = &scratch->tunings[index];
        pigpen__v1__layer_tuning__init(tuning);
        tuning->layer = args->layer_begin + index;
        if (layer->estimator.kind != PP_ESTIMATOR_NONE) {
            encode_estimator(&layer->estimator, &scratch->estimators[index]);
            tuning->estimator = &scratch->estimators[index];
        }
        tuning->dense = layer->dense;
        tuning->tokens = layer->tokens;
        tuning->queries = layer->queries;
        tuning->rows_share = layer->rows_share;
        tuning->error = layer->error;
        tuning->error_worst = layer->error_worst;
        tuning->rows_share_now = layer->rows_share_now;
        tuning->error_now = layer->error_now;
        scratch->tuning_pointers[index] = tuning;
    }
    out->n_layers = args->layer_count;
    out->layers = scratch->tuning_pointers;
    return &out->base;
}
