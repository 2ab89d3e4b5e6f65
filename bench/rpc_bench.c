/*
 * The transport against raw sockets, both between two processes of this machine, interleaved.
 *
 * Round trip: an Attend's header and --up-bytes of payload up, an answer's header and --down-bytes
 * down, on one stream; the server echoes on its rpc thread. Raw: the same number of payload bytes
 * by send and recv on a socket with TCP_NODELAY. Both spin --spin microseconds before they block,
 * and the two ends of both stand on two cores meanwhile: left to itself the scheduler puts two
 * spinning ends on one core at times, which says nothing of either. Append: messages of 1 MiB into
 * a sink on one stream, acknowledged every 128; raw: the same bytes, read into a buffer. Bytes
 * moved: 128 MiB a block. Under mtls the raw side stays plain TCP.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench_common.h"
#include "bench/bench_options.h"
#include "bench/rpc_bench_node.h"
#include "bench/rpc_bench_raw.h"
#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/rpc/codec.h"
#include "common/rpc/grpc_transport.h"
#include "common/rpc/security.h"
#include "pigpen/v1/attention.pb-c.h"

#define ROUND_TRIPS 300u
#define SAMPLES_MAX 400000u
#define ROUNDS_MAX  1024u
#define ATTEND_PATH "/pigpen.v1.AttentionService/AttendStream"
#define APPEND_PATH "/pigpen.v1.AttentionService/AppendKvStream"

enum transport_kind { KIND_TCP, KIND_UDS, KIND_MTLS };
static const char *const kind_names[] = {"tcp", "uds", "mtls", NULL};

static struct settings {
    int kind;
    uint64_t up_bytes, down_bytes, spin_us, seconds;
    const char *json, *program;
} settings;

static const struct pp_option options[] = {
    BENCH_OPTION(CHOICE, "transport", &settings.kind, "tcp", "NAME", "tcp, uds or mtls.",
                 .choices = kind_names),
    BENCH_OPTION(SIZE, "up-bytes", &settings.up_bytes, "18KiB", "BYTES", "Payload of a request.",
                 .min = 1, .max = BUFFER_BYTES),
    BENCH_OPTION(SIZE, "down-bytes", &settings.down_bytes, "17KiB", "BYTES",
                 "Payload of an answer.", .min = 1, .max = BUFFER_BYTES),
    BENCH_OPTION(DURATION, "spin", &settings.spin_us, "200us", "TIME",
                 "How long both ends spin before they block; 0us blocks at once."),
    BENCH_OPTION(U64, "seconds", &settings.seconds, "4", "N", "How long to measure.", .min = 1,
                 .max = 600),
    BENCH_OPTION(TEXT, "node-program", &settings.program, "build/release/attn-node/attn-node",
                 "PATH", "The attn-node to measure too, under tcp."),
    BENCH_JSON(&settings.json),
};

static char folder[64]; /* sockets and certificates */
static uint8_t *filler; /* payloads; never freed */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void keep_filler(void *context)
{
    (void)context;
}

static struct server {
    struct pp_transport *transport;
    struct pp_codec_arena arena;
    uint64_t received;
} server;

static void serve_attend(void *context, struct pp_call *call, struct pp_message *message)
{
    (void)context;
    rpc_bench_pin(1);
    ProtobufCMessage *header = NULL;
    struct pp_payload_view view;
    PP_ASSERT(pp_codec_unpack(message, &pigpen__v1__attend_request__descriptor, &server.arena,
                              &header, &view) == PP_OK);
    Pigpen__V1__AttendRequest *request = (Pigpen__V1__AttendRequest *)header;
    PP_ASSERT(view.bytes == settings.up_bytes);
    Pigpen__V1__AttendResponse answer = PIGPEN__V1__ATTEND_RESPONSE__INIT;
    answer.request_id = request->request_id;
    answer.incarnation = request->incarnation;
    uint8_t bytes[256];
    size_t count = 0;
    PP_ASSERT(pp_codec_pack(&answer.base, settings.down_bytes, bytes, sizeof(bytes), &count) ==
              PP_OK);
    pp_codec_arena_reset(&server.arena);
    pp_message_release(message);

    struct pp_payload payload = {filler, settings.down_bytes, keep_filler, NULL, NULL};
    PP_ASSERT(server.transport->ops->call_send(call, bytes, count, &payload, false) == PP_OK);
    server.transport->ops->call_receive(call);
}

static void serve_append(void *context, struct pp_call *call, struct pp_message *message)
{
    (void)context;
    rpc_bench_pin(-1);
    pp_message_release(message);
    server.transport->ops->call_receive(call);
    if (++server.received % APPEND_MESSAGES == 0) {
        Pigpen__V1__AppendKvResponse answer = PIGPEN__V1__APPEND_KV_RESPONSE__INIT;
        answer.held_tokens = server.received;
        uint8_t bytes[64];
        size_t count = 0;
        PP_ASSERT(pp_codec_pack(&answer.base, 0, bytes, sizeof(bytes), &count) == PP_OK);
        PP_ASSERT(server.transport->ops->call_send(call, bytes, count, NULL, false) == PP_OK);
    }
}

static const struct pp_call_events attend_events = {.message = serve_attend};
static const struct pp_call_events append_events = {.message = serve_append};

static void opened_attend(void *context, struct pp_call *call)
{
    (void)context;
    server.transport->ops->call_accept(call, &attend_events, NULL);
    server.transport->ops->call_receive(call);
}

static void opened_append(void *context, struct pp_call *call)
{
    (void)context;
    server.transport->ops->call_accept(call, &append_events, NULL);
    server.transport->ops->call_receive(call);
}

static struct pp_transport *transport_new(void)
{
    struct pp_grpc_config config = {
        .clock = pp_clock_system(), .spin_us = settings.spin_us, .spin_always = true};
    struct pp_transport *transport = NULL;
    PP_ASSERT(pp_grpc_transport_new(&config, &transport) == PP_OK);
    return transport;
}

static struct pp_tls *tls_new(void)
{
    if (settings.kind != KIND_MTLS) {
        return NULL;
    }
    char cert[96];
    char key[96];
    snprintf(cert, sizeof(cert), "%s/crt", folder);
    snprintf(key, sizeof(key), "%s/key", folder);
    struct pp_tls_config config = {
        .cert_file = cert, .key_file = key, .ca_file = cert, .client_auth = true};
    struct pp_tls *tls = NULL;
    PP_ASSERT(pp_tls_new(&config, &tls) == PP_OK);
    return tls;
}

static void server_run(int port_file)
{
    static const struct pp_method methods[] = {{ATTEND_PATH, PP_CALL_BIDI, opened_attend},
                                               {APPEND_PATH, PP_CALL_BIDI, opened_append}};
    char address[96] = "127.0.0.1:0";
    if (settings.kind == KIND_UDS) {
        snprintf(address, sizeof(address), "unix:%s/grpc", folder);
    }
    server.transport = transport_new();
    PP_ASSERT(pp_codec_arena_init(&server.arena, settings.up_bytes + 65536) == PP_OK);
    struct pp_server_config config = {
        .address = address, .methods = methods, .method_count = 2, .tls = tls_new()};
    int port = 0;
    PP_ASSERT(server.transport->ops->server_start(server.transport, &config, &port) == PP_OK);
    PP_ASSERT(write(port_file, &port, sizeof(port)) == sizeof(port));
    for (;;) {
        server.transport->ops->poll(server.transport, UINT64_MAX);
    }
}

static pid_t server_start(int *port_out)
{
    int pipes[2];
    PP_ASSERT(pipe(pipes) == 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        close(pipes[0]);
        server_run(pipes[1]);
    }
    close(pipes[1]);
    PP_ASSERT(read(pipes[0], port_out, sizeof(*port_out)) == sizeof(*port_out));
    close(pipes[0]);
    return child;
}

static struct client {
    struct pp_transport *transport;
    struct pp_codec_arena arena;
    struct pp_call *attend;
    struct pp_call *append;
    uint64_t answered;
    uint64_t acknowledged;
    uint64_t sent;
    bool writable;
} client;

static void on_answer(void *context, struct pp_call *call, struct pp_message *message)
{
    (void)context;
    ProtobufCMessage *header = NULL;
    struct pp_payload_view view;
    PP_ASSERT(pp_codec_unpack(message, &pigpen__v1__attend_response__descriptor, &client.arena,
                              &header, &view) == PP_OK);
    PP_ASSERT(view.bytes == settings.down_bytes);
    client.answered = ((Pigpen__V1__AttendResponse *)header)->request_id;
    pp_codec_arena_reset(&client.arena);
    pp_message_release(message);
    client.transport->ops->call_receive(call);
}

static void on_acknowledge(void *context, struct pp_call *call, struct pp_message *message)
{
    (void)context;
    client.acknowledged += APPEND_MESSAGES;
    pp_message_release(message);
    client.transport->ops->call_receive(call);
}

static void on_writable(void *context, struct pp_call *call)
{
    (void)context;
    (void)call;
    client.writable = true;
}

static void on_ended(void *context, struct pp_call *call, const struct pp_call_end *end)
{
    (void)call;
    if (!*(bool *)context) {
        fprintf(stderr, "rpc_bench: a stream ended: %s %s\n", pp_status_name(end->status),
                end->message);
        exit(1);
    }
}

static bool closing;

static void client_start(int port)
{
    static const struct pp_call_events on_attend = {.message = on_answer, .ended = on_ended};
    static const struct pp_call_events on_append = {
        .message = on_acknowledge, .writable = on_writable, .ended = on_ended};
    char address[96];
    snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    if (settings.kind == KIND_UDS) {
        snprintf(address, sizeof(address), "unix:%s/grpc", folder);
    }
    client.transport = transport_new();
    const struct pp_transport_ops *ops = client.transport->ops;
    struct pp_tls *tls = tls_new();
    struct pp_channel *latency = NULL;
    struct pp_channel *bulk = NULL;
    PP_ASSERT(pp_codec_arena_init(&client.arena, settings.down_bytes + 65536) == PP_OK);
    PP_ASSERT(ops->channel_open(client.transport, address, PP_CHANNEL_LATENCY, tls, &latency) ==
              PP_OK);
    PP_ASSERT(ops->channel_open(client.transport, address, PP_CHANNEL_BULK, tls, &bulk) == PP_OK);
    PP_ASSERT(ops->call_start(latency, ATTEND_PATH, PP_CALL_BIDI, 0, &on_attend, &closing,
                              &client.attend) == PP_OK);
    PP_ASSERT(ops->call_start(bulk, APPEND_PATH, PP_CALL_BIDI, 0, &on_append, &closing,
                              &client.append) == PP_OK);
    ops->call_receive(client.attend);
    ops->call_receive(client.append);
}

static void round_trip(void)
{
    static uint64_t request_id;
    Pigpen__V1__AttendItem item = PIGPEN__V1__ATTEND_ITEM__INIT;
    Pigpen__V1__AttendItem *items[] = {&item};
    Pigpen__V1__AttendRequest request = PIGPEN__V1__ATTEND_REQUEST__INIT;
    item.handle = 0x1234567812345678u;
    item.held_tokens = 98304;
    item.q_rows = 1;
    request.request_id = ++request_id;
    request.incarnation = 0x8765432187654321u;
    request.layer = 3;
    request.n_items = 1;
    request.items = items;
    uint8_t header[256];
    size_t bytes = 0;
    PP_ASSERT(pp_codec_pack(&request.base, settings.up_bytes, header, sizeof(header), &bytes) ==
              PP_OK);
    struct pp_payload payload = {filler, settings.up_bytes, keep_filler, NULL, NULL};
    PP_ASSERT(client.transport->ops->call_send(client.attend, header, bytes, &payload, false) ==
              PP_OK);
    while (client.answered != request_id) {
        client.transport->ops->poll(client.transport, UINT64_MAX);
    }
}

/* Seconds for a block of messages to be sent and acknowledged. */
static double append_block(void)
{
    Pigpen__V1__AppendKvRequest request = PIGPEN__V1__APPEND_KV_REQUEST__INIT;
    uint64_t begin_ns = now_ns();
    for (unsigned i = 0; i < APPEND_MESSAGES; ++i) {
        request.request_id = ++client.sent;
        request.start = client.sent * 256;
        request.count = 256;
        uint8_t header[128];
        size_t bytes = 0;
        PP_ASSERT(pp_codec_pack(&request.base, APPEND_BYTES, header, sizeof(header), &bytes) ==
                  PP_OK);
        struct pp_payload payload = {filler, APPEND_BYTES, keep_filler, NULL, NULL};
        client.writable = false;
        enum pp_status status =
            client.transport->ops->call_send(client.append, header, bytes, &payload, false);
        while (status == PP_QUEUE) {
            client.transport->ops->poll(client.transport, UINT64_MAX);
            status = client.writable ? client.transport->ops->call_send(client.append, header,
                                                                        bytes, &payload, false)
                                     : PP_QUEUE;
        }
        PP_ASSERT(status == PP_OK);
    }
    while (client.acknowledged != client.sent) {
        client.transport->ops->poll(client.transport, UINT64_MAX);
    }
    return (double)(now_ns() - begin_ns) * 1e-9;
}

static double quantile(double *values, size_t count, double share)
{
    (void)bench_median(values, count); /* sorts */
    size_t index = (size_t)(share * (double)count);
    return count != 0 ? values[index < count ? index : count - 1] : 0;
}

/* Everything measured, filled round by round: raw, ours, and a node's in turn. */
static struct samples {
    double raw[SAMPLES_MAX], echo[SAMPLES_MAX], exec[SAMPLES_MAX], busy[SAMPLES_MAX]; /* us */
    double raw_append[ROUNDS_MAX], sink[ROUNDS_MAX]; /* s a block */
    double stored[ROUNDS_MAX], fresh[ROUNDS_MAX];
    size_t trips, busy_trips, rounds;
    bool with_node;
} samples;

static void measure_round(void)
{
    size_t at = samples.trips;
    rpc_bench_pin(0);
    rpc_raw_round_trips(ROUND_TRIPS, samples.raw + at);
    for (unsigned i = 0; i < ROUND_TRIPS; ++i) {
        uint64_t begin_ns = now_ns();
        round_trip();
        samples.echo[at + i] = (double)(now_ns() - begin_ns) * 1e-3;
    }
    rpc_bench_pin(-1); /* a node has threads of its own */
    samples.raw_append[samples.rounds] = rpc_raw_append_block();
    samples.sink[samples.rounds] = append_block();
    if (samples.with_node) {
        size_t busy = 0;
        enum pp_status status = rpc_bench_node_attends(ROUND_TRIPS, samples.exec + at);
        if (status == PP_OK) {
            status = rpc_bench_node_stored(&samples.stored[samples.rounds]);
        }
        if (status == PP_OK) {
            status = rpc_bench_node_stored_fresh(&samples.fresh[samples.rounds]);
        }
        if (status == PP_OK) {
            status = rpc_bench_node_attends_in_bulk(samples.busy + samples.busy_trips,
                                                    SAMPLES_MAX - samples.busy_trips, &busy);
        }
        if (status != PP_OK) {
            fprintf(stderr, "rpc_bench: node: %s\n", pp_status_name(status));
            exit(1);
        }
        samples.busy_trips += busy;
    }
    samples.trips += ROUND_TRIPS;
    ++samples.rounds;
}

static void measure(void)
{
    measure_round(); /* connects and warms up */
    samples.trips = samples.busy_trips = samples.rounds = 0;
    uint64_t end_ns = now_ns() + settings.seconds * 1000000000u;
    do {
        measure_round();
    } while (now_ns() < end_ns && samples.rounds < ROUNDS_MAX &&
             samples.trips + ROUND_TRIPS <= SAMPLES_MAX);
}

static void put_times(json_t *report, const char *name, double *times, size_t count)
{
    char field[64];
    static const double shares[] = {0.5, 0.99};
    for (size_t i = 0; i < 2; ++i) {
        snprintf(field, sizeof(field), "%srtt_us_p%.0f", name, 100 * shares[i]);
        json_object_set_new(
            report, field, count != 0 ? json_real(quantile(times, count, shares[i])) : json_null());
    }
}

static void put_report(json_t *report)
{
    struct samples *all = &samples;
    double block_gb = (double)APPEND_MESSAGES * APPEND_BYTES * 1e-9;
    double raw_gbps = block_gb / bench_median(all->raw_append, all->rounds);
    double gbps = block_gb / bench_median(all->sink, all->rounds);
    put_times(report, "", all->echo, all->trips);
    put_times(report, "raw_", all->raw, all->trips);
    put_times(report, "exec_", all->exec, all->with_node ? all->trips : 0);
    put_times(report, "exec_in_bulk_", all->busy, all->busy_trips);
    json_object_set_new(
        report, "rtt_ratio",
        json_real(quantile(all->echo, all->trips, 0.5) / quantile(all->raw, all->trips, 0.5)));
    json_object_set_new(report, "round_trips", json_integer((json_int_t)all->trips));
    json_object_set_new(report, "rounds", json_integer((json_int_t)all->rounds));
    json_object_set_new(report, "append_gbps", json_real(gbps));
    json_object_set_new(report, "raw_append_gbps", json_real(raw_gbps));
    json_object_set_new(report, "append_ratio", json_real(gbps / raw_gbps));
    double stored = all->with_node ? block_gb / bench_median(all->stored, all->rounds) : 0;
    json_object_set_new(report, "append_stored_gbps",
                        all->with_node ? json_real(stored) : json_null());
    json_object_set_new(report, "append_stored_ratio",
                        all->with_node ? json_real(stored / raw_gbps) : json_null());
    double fresh = all->with_node ? block_gb / bench_median(all->fresh, all->rounds) : 0;
    json_object_set_new(report, "append_stored_fresh_gbps",
                        all->with_node ? json_real(fresh) : json_null());
}

static void make_folder(void)
{
    snprintf(folder, sizeof(folder), "/tmp/rpc_bench_XXXXXX");
    PP_ASSERT(mkdtemp(folder) != NULL);
    if (settings.kind == KIND_MTLS) {
        char line[512];
        snprintf(line, sizeof(line),
                 "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
                 "-keyout %s/key -out %s/crt -days 2 -subj /CN=bench "
                 "-addext subjectAltName=IP:127.0.0.1 2>/dev/null",
                 folder, folder);
        PP_ASSERT(system(line) == 0);
    }
}

static void remove_folder(void)
{
    static const char *const names[] = {"raw0", "raw1", "grpc", "key", "crt"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static enum pp_status run_bench(void)
{
    int port = 0;
    filler = calloc(1, BUFFER_BYTES);
    PP_ASSERT(filler != NULL);
    make_folder();
    const struct rpc_raw_config raw = {.uds_folder = settings.kind == KIND_UDS ? folder : NULL,
                                       .up_bytes = settings.up_bytes,
                                       .down_bytes = settings.down_bytes,
                                       .spin_us = settings.spin_us};
    /* Both forks before gRPC starts in this process. */
    pid_t children[3];
    rpc_raw_start(&raw, children);
    children[2] = server_start(&port);
    rpc_bench_pin(0);
    client_start(port);
    round_trip(); /* connects: gRPC works only while polled, raw blocks would starve it */
    (void)append_block();
    json_t *report = json_object();
    json_object_set_new(report, "bench", json_string("rpc_bench"));
    json_object_set_new(report, "transport", json_string(kind_names[settings.kind]));
    json_object_set_new(report, "up_bytes", json_integer((json_int_t)settings.up_bytes));
    json_object_set_new(report, "down_bytes", json_integer((json_int_t)settings.down_bytes));
    json_object_set_new(report, "spin_us", json_integer((json_int_t)settings.spin_us));
    rpc_bench_pin(-1);
    samples.with_node =
        settings.kind == KIND_TCP && rpc_bench_node_start(client.transport, settings.program);
    measure();
    rpc_bench_node_stop();
    put_report(report);
    closing = true;
    client.transport->ops->destroy(client.transport);
    for (int i = 0; i < 3; ++i) {
        kill(children[i], SIGTERM);
        waitpid(children[i], NULL, 0);
    }
    remove_folder();
    return bench_report(report, 1, PP_COMMIT, settings.json);
}

int main(int argc, char **argv)
{
    const struct pp_options_spec spec = {
        .program = "rpc_bench",
        .summary = "Measures the transport against raw sockets.",
        .version = PP_VERSION,
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
    };
    return bench_main(&spec, argc, argv, run_bench);
}
