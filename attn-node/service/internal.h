/*
 * What the files of the service share: the service itself, its calls, and the table of methods.
 * Threads: the rpc thread, but the atomics.
 */
#ifndef PIGPEN_ATTN_NODE_SERVICE_INTERNAL_H
#define PIGPEN_ATTN_NODE_SERVICE_INTERNAL_H

#include <stdatomic.h>

#include "attn-node/service/pool.h"
#include "attn-node/service/service.h"
#include "common/base/share.h"
#include "common/rpc/accept.h"
#include "grpc/health/v1/health.pb-c.h"

enum an_method_id {
    AN_METHOD_OPEN_PART,
    AN_METHOD_APPEND_KV,
    AN_METHOD_APPEND_KV_STREAM,
    AN_METHOD_ATTEND,
    AN_METHOD_ATTEND_STREAM,
    AN_METHOD_SEAL_PART,
    AN_METHOD_FORK_PART,
    AN_METHOD_TRUNCATE_PART,
    AN_METHOD_READ_KV,
    AN_METHOD_RENEW_PARTS,
    AN_METHOD_CLOSE_PART,
    AN_METHOD_GET_PART,
    AN_METHOD_GET_SERVER_INFO,
    AN_METHOD_GET_STATS,
    AN_METHOD_LIST_PARTS,
    AN_METHOD_EVICT_PARTS,
    AN_METHOD_DRAIN,
    AN_METHOD_RESUME,
    AN_METHOD_SELF_TEST,
    AN_METHOD_TUNE_PART,
    AN_METHOD_HEALTH_CHECK,
    AN_METHOD_HEALTH_WATCH,
    AN_METHOD_COUNT
};

/* What follows a decode that went well. */
enum an_next {
    AN_NEXT_JOB,    /* request->job goes to exec */
    AN_NEXT_ANSWER, /* the answer needs no job */
    AN_NEXT_NONE    /* the call goes on by itself (Watch) */
};

struct an_method {
    enum an_method_id id;
    enum pp_call_kind kind;
    const char *name; /* "Attend", for metrics */
    const ProtobufCMessageDescriptor *request;
    bool in_pieces; /* the payload is read where it came, not put together */
    /* From request->header to request->job. PP_UNAVAILABLE is never an outcome here; PP_QUEUE means
     * that a reply buffer is missing: the message is met again later. */
    enum pp_status (*decode)(struct an_service *service, struct an_request *request,
                             enum an_next *next_out);
    /* From the done request to the answer's header, which stays valid until the next encode; may
     * set payload_out->data to bytes in request->reply. On streams also when job.status is an
     * error. */
    const ProtobufCMessage *(*encode)(struct an_service *service, struct an_request *request,
                                      struct pp_payload *payload_out);
};
extern const struct an_method an_methods[AN_METHOD_COUNT];

/* A call of a peer. */
struct an_call {
    struct an_service *service;
    struct pp_call *wire;
    const struct an_method *method;
    struct an_request *requests; /* in work, also unsent ones */
    uint32_t in_work;
    struct an_request *unsent_head, *unsent_tail; /* done, the send queue is full */
    struct pp_message *parked;                    /* received, no buffer yet */
    uint64_t parked_us;
    struct an_call *next_parked;
    bool in_parked; /* in service->parked, also when parked is NULL since */
    bool had_message;
    bool half_closed;
    bool finished; /* call_finish was called: only ended may follow */
    bool ended;
    bool watching; /* Health.Watch */
    int watch_sent;
    uint64_t peer; /* in service->share */
    struct an_call *next_free;
};

struct an_metrics {
    struct pp_stat *requests[AN_METHOD_COUNT][17];
    struct pp_stat *duration[AN_METHOD_COUNT];
    struct pp_stat *inflight, *received, *sent, *ready, *draining, *self_test_ok;
    struct pp_stat *rejected[PP_STATUS_COUNT];
    struct pp_stat *calls, *call_hosts;
    struct pp_stat *connections, *connections_max, *connections_refused[PP_ACCEPT_REFUSALS];
    char *labels;
};

#define AN_HEADER_BYTES    (1u << 20) /* the largest header packed: 1,000 parts or 256 results */
#define AN_SECTIONS_MAX    (6u * PP_ATTEND_ITEMS_MAX)
#define AN_STAT_TEXT_BYTES (256u << 10)
#define AN_COUNTERS_MAX    2048u

/* Where an answer is put together: one at a time, on the rpc thread. */
struct an_scratch {
    uint8_t header[AN_HEADER_BYTES];
    Pigpen__V1__Status status;
    Pigpen__V1__Status item_status[PP_ATTEND_ITEMS_MAX];
    Pigpen__V1__AttendResult results[PP_ATTEND_ITEMS_MAX];
    Pigpen__V1__AttendResult *result_pointers[PP_ATTEND_ITEMS_MAX];
    Pigpen__V1__Section sections[AN_SECTIONS_MAX];
    Pigpen__V1__Section *section_pointers[AN_SECTIONS_MAX];
    const void *section_source[AN_SECTIONS_MAX];
    Pigpen__V1__LayerInfo layers[PP_LAYERS_MAX];
    Pigpen__V1__LayerInfo *layer_pointers[PP_LAYERS_MAX];
    Pigpen__V1__PartInfo parts[AN_LIST_PAGE_MAX];
    Pigpen__V1__PartInfo *part_pointers[AN_LIST_PAGE_MAX];
    Pigpen__V1__SelfTestCheck checks[AN_SELF_TEST_CHECKS_MAX];
    Pigpen__V1__SelfTestCheck *check_pointers[AN_SELF_TEST_CHECKS_MAX];
    Pigpen__V1__LayerTuning tunings[PP_LAYERS_MAX];
    Pigpen__V1__LayerTuning *tuning_pointers[PP_LAYERS_MAX];
    Pigpen__V1__Estimator estimators[PP_LAYERS_MAX];
    Pigpen__V1__Counter counters[AN_COUNTERS_MAX];
    Pigpen__V1__Counter *counter_pointers[AN_COUNTERS_MAX];
    char stat_text[AN_STAT_TEXT_BYTES];
    Pigpen__V1__Limits limits;
    union {
        Pigpen__V1__OpenPartResponse open;
        Pigpen__V1__AppendKvResponse append;
        Pigpen__V1__AttendResponse attend;
        Pigpen__V1__SealPartResponse seal;
        Pigpen__V1__ForkPartResponse fork;
        Pigpen__V1__TruncatePartResponse truncate;
        Pigpen__V1__ReadKvResponse read;
        Pigpen__V1__RenewPartsResponse renew;
        Pigpen__V1__ClosePartResponse close;
        Pigpen__V1__GetPartResponse get;
        Pigpen__V1__GetServerInfoResponse info;
        Pigpen__V1__GetStatsResponse stats;
        Pigpen__V1__ListPartsResponse list;
        Pigpen__V1__EvictPartsResponse evict;
        Pigpen__V1__DrainResponse drain;
        Pigpen__V1__ResumeResponse resume;
        Pigpen__V1__SelfTestResponse self_test;
        Pigpen__V1__TunePartResponse tune;
        Grpc__Health__V1__HealthCheckResponse health;
    };
};

struct an_service {
    struct an_service_config config;
    uint64_t started_us;
    struct an_pool *pool;
    struct an_call *calls; /* [AN_CALLS_MAX] */
    struct an_call *free_calls;
    struct pp_share share; /* of the calls, over hosts */
    struct an_call *parked_head, *parked_tail;
    struct an_request *stalled_reads; /* ReadKv that waits for a buffer */
    struct an_metrics metrics;
    struct an_scratch *scratch;
    uint64_t self_test_due_us;
    uint64_t self_test_began_us;     /* 0: none of the service's own runs */
    _Atomic int state;               /* enum an_service_state */
    _Atomic int wanted;              /* enum an_service_state, or -1 */
    _Atomic uint64_t drain_until_us; /* 0: it was not told to stop */
    _Atomic bool self_test_ok;
    _Atomic uint64_t self_test_late_us; /* when a running self test is late; 0: none runs */
    _Atomic uint64_t ticked_us;
    uint64_t counted_us; /* when the connections were */
};

static inline uint64_t an_service_now(const struct an_service *service)
{
    return pp_clock_now_us(&service->config.clock);
}

/* call.c */
void an_call_opened(struct an_service *service, enum an_method_id method, struct pp_call *wire);
/* The request is done: answers it, or keeps it until the send queue has room. */
void an_call_answer(struct an_request *request);
/* Sends a packed answer; *status_out as call_send. Takes the reply over on PP_OK. */
PP_MUST_USE enum pp_status an_call_send(struct an_call *call, struct an_request *request,
                                        const ProtobufCMessage *header, struct pp_payload *payload);
void an_call_finish(struct an_call *call, enum pp_status status, const char *message);
void an_request_end(struct an_request *request); /* takes it from its call and gives it back */
void an_request_submit(struct an_request *request);
void an_service_start_parked(struct an_service *service);

/* encode.c and encode_attend.c */
const ProtobufCMessage *an_encode_open(struct an_service *, struct an_request *,
                                       struct pp_payload *);
const ProtobufCMessage *an_encode_append(struct an_service *, struct an_request *,
                                         struct pp_payload *);
const ProtobufCMessage *an_encode_attend(struct an_service *, struct an_request *,
                                         struct pp_payload *);
const ProtobufCMessage *an_encode_seal(struct an_service *, struct an_request *,
                                       struct pp_payload *);
const ProtobufCMessage *an_encode_fork(struct an_service *, struct an_request *,
                                       struct pp_payload *);
const ProtobufCMessage *an_encode_truncate(struct an_service *, struct an_request *,
                                           struct pp_payload *);
const ProtobufCMessage *an_encode_read(struct an_service *, struct an_request *,
                                       struct pp_payload *);
const ProtobufCMessage *an_encode_renew(struct an_service *, struct an_request *,
                                        struct pp_payload *);
const ProtobufCMessage *an_encode_close(struct an_service *, struct an_request *,
                                        struct pp_payload *);
const ProtobufCMessage *an_encode_get(struct an_service *, struct an_request *,
                                      struct pp_payload *);
void an_encode_status(Pigpen__V1__Status *status_out, enum pp_status status, const char *message,
                      const struct an_job *job);
void an_encode_limits(Pigpen__V1__Limits *limits_out);
/* What no part holds or has reserved, nor a build; at least 1, for 0 says nothing. */
uint64_t an_encode_memory_free(const struct an_service *service);
#define AN_FEATURE_COUNT 6u
extern const char *const an_features[AN_FEATURE_COUNT];

/* admin.c */
const ProtobufCMessage *an_encode_info(struct an_service *, struct an_request *,
                                       struct pp_payload *);
const ProtobufCMessage *an_encode_stats(struct an_service *, struct an_request *,
                                        struct pp_payload *);
const ProtobufCMessage *an_encode_list(struct an_service *, struct an_request *,
                                       struct pp_payload *);
const ProtobufCMessage *an_encode_evict(struct an_service *, struct an_request *,
                                        struct pp_payload *);
const ProtobufCMessage *an_encode_drain(struct an_service *, struct an_request *,
                                        struct pp_payload *);
const ProtobufCMessage *an_encode_resume(struct an_service *, struct an_request *,
                                         struct pp_payload *);
const ProtobufCMessage *an_encode_self_test(struct an_service *, struct an_request *,
                                            struct pp_payload *);
const ProtobufCMessage *an_encode_tune(struct an_service *, struct an_request *,
                                       struct pp_payload *);
void an_encode_part_info(Pigpen__V1__PartInfo *out, struct an_part_info *info);

/* health.c */
enum pp_status an_decode_health(struct an_service *, struct an_request *, enum an_next *);
const ProtobufCMessage *an_encode_health(struct an_service *, struct an_request *,
                                         struct pp_payload *);
/* Tells every watcher that has not heard the present state. */
void an_health_publish(struct an_service *service);

/* read.c */
enum pp_status an_read_decode(struct an_service *, struct an_request *, enum an_next *);
/* A piece, or the size of a row, is done. */
void an_read_done(struct an_request *request);
/* Sends the piece in request->reply and goes on. */
void an_read_send(struct an_request *request);
/* Goes on with reads that waited for a buffer. */
void an_read_poll(struct an_service *service);

/* state.c */
void an_state_set(struct an_service *service, enum an_service_state state);
void an_state_poll(struct an_service *service, uint64_t now_us);
void an_self_test_done(struct an_service *service, const struct an_job *job);

/* metrics.c */
PP_MUST_USE enum pp_status an_metrics_init(struct an_metrics *metrics, struct pp_stats *stats,
                                           uint64_t buffer_bytes);
void an_metrics_deinit(struct an_metrics *metrics);
void an_metrics_count(struct an_metrics *metrics, enum an_method_id method, enum pp_status status,
                      uint64_t duration_us);
void an_metrics_calls(struct an_metrics *metrics, const struct pp_share *share);
/* Asks the transport's gate. */
void an_metrics_connections(struct an_metrics *metrics);

#endif
