/*
 * The transport against raw sockets, both between two processes of this machine, interleaved.
 *
 * Round trip: an Attend's header and --up-bytes of payload up, an answer's header and --down-bytes
 * down, on one stream; the server echoes on its rpc thread. Raw: the same number of payload bytes
 * by send and recv on a socket with TCP_NODELAY. Both spin --spin microseconds before they block,
 * and the two ends of both stand on two cores: left to itself the scheduler puts two spinning ends
 * on one core at times, which says nothing of either.
 * Append: messages of 1 MiB into a sink on one stream, acknowledged every 128; raw: the same bytes,
 * read into a buffer. Bytes moved: 128 MiB a block. Under mtls the raw side stays plain TCP.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench_common.h"
#include "bench/rpc_bench_node.h"
#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/rpc/codec.h"
#include "common/rpc/grpc_transport.h"
#include "common/rpc/security.h"
#include "pigpen/v1/attention.pb-c.h"

#define APPEND_BYTES    (1u << 20)
#define APPEND_MESSAGES 128u
#define BUFFER_BYTES    (8u << 20)
#define ROUND_TRIPS     500u
#define SAMPLES_MAX     2000000u
#define BLOCKS_MAX      4096u
#define ATTEND_PATH     "/pigpen.v1.AttentionService/AttendStream"
#define APPEND_PATH     "/pigpen.v1.AttentionService/AppendKvStream"

enum transport_kind { KIND_TCP, KIND_UDS, KIND_MTLS };
static const char *const kind_names[] = {"tcp", "uds", "mtls", NULL};

static struct settings {
    int kind;
    uint64_t up_bytes, down_bytes, spin_us, seconds;
    const char *json, *program;
} settings;

#define OPTION(n, k, t, d, v, h, ...)                                                              \
    {                                                                                              \
        .name = n, .kind = PP_OPTION_##k, .target = &settings.t, .default_text = d,                \
        .value_name = v, .help = h, __VA_ARGS__                                                    \
    }

static const struct pp_option options[] = {
    OPTION("transport", CHOICE, kind, "tcp", "NAME", "tcp, uds or mtls.", .choices = kind_names),
    OPTION("up-bytes", SIZE, up_bytes, "18KiB", "BYTES", "Payload of a request.", .min = 1,
           .max = BUFFER_BYTES),
    OPTION("down-bytes", SIZE, down_bytes, "17KiB", "BYTES", "Payload of an answer.", .min = 1,
           .max = BUFFER_BYTES),
    OPTION("spin", DURATION, spin_us, "200us", "TIME",
           "How long both ends spin before they block; 0us blocks at once.", .min = 0),
    OPTION("seconds", U64, seconds, "4", "N", "How long each of the two measurements runs.",
           .min = 1, .max = 600),
    OPTION("node-program", TEXT, program, "build/release/attn-node/attn-node", "PATH",
           "The attn-node to measure too, under tcp.", .min = 0),
    OPTION("json", TEXT, json, "", "PATH", "Append the report here.", .min = 0),
};

static char folder[64]; /* sockets and certificates */
static uint8_t *filler; /* payloads; never freed */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Pins this thread to the first or second core it may use; -1: to none, as at start. */
static void pin(int which)
{
    static cpu_set_t all;
    if (CPU_COUNT(&all) == 0) {
        sched_getaffinity(0, sizeof(all), &all);
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
        if (CPU_ISSET(core, &all) && which-- == 0) {
            CPU_SET(core, &one);
        }
    }
    sched_setaffinity(0, sizeof(one), CPU_COUNT(&one) != 0 ? &one : &all);
}

static bool transfer(int file, uint8_t *data, size_t bytes, bool reading)
{
    uint64_t idle_ns = now_ns();
    while (bytes != 0) {
        ssize_t moved = reading ? recv(file, data, bytes, MSG_DONTWAIT)
                                : send(file, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (moved > 0) {
            data += moved;
            bytes -= (size_t)moved;
            idle_ns = now_ns();
        } else if (moved == 0 || (errno != EAGAIN && errno != EINTR)) {
            return false;
        } else if (now_ns() - idle_ns > settings.spin_us * 1000u) {
            struct pollfd wait = {.fd = file, .events = reading ? POLLIN : POLLOUT};
            poll(&wait, 1, -1);
        }
    }
    return true;
}

static int raw_socket(struct sockaddr_storage *address, socklen_t *bytes_out)
{
    memset(address, 0, sizeof(*address));
    if (settings.kind == KIND_UDS) {
        struct sockaddr_un *name = (struct sockaddr_un *)address;
        name->sun_family = AF_UNIX;
        snprintf(name->sun_path, sizeof(name->sun_path), "%s/raw", folder);
        *bytes_out = sizeof(*name);
    } else {
        struct sockaddr_in *name = (struct sockaddr_in *)address;
        name->sin_family = AF_INET;
        name->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        *bytes_out = sizeof(*name);
    }
    int file = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    PP_ASSERT(file >= 0);
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return file;
}

/* One connection at a time; its first byte says what it is for. */
static void raw_serve(int listener)
{
    uint8_t *buffer = malloc(BUFFER_BYTES);
    PP_ASSERT(buffer != NULL);
    for (;;) {
        int file = accept(listener, NULL, NULL);
        uint8_t mode;
        int one = 1;
        setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        bool open = file >= 0 && transfer(file, &mode, 1, true);
        while (open && mode == 'r') {
            open = transfer(file, buffer, settings.up_bytes, true) &&
                   transfer(file, buffer, settings.down_bytes, false);
        }
        while (open && mode == 'a') {
            for (unsigned i = 0; i < APPEND_MESSAGES && open; ++i) {
                open = transfer(file, buffer, APPEND_BYTES, true);
            }
            open = open && transfer(file, buffer, 1, false);
        }
        close(file);
    }
}

static int raw_connect(struct sockaddr_storage *address, char mode)
{
    struct sockaddr_storage scratch;
    socklen_t bytes;
    int file = raw_socket(&scratch, &bytes);
    PP_ASSERT(connect(file, (struct sockaddr *)address, bytes) == 0);
    PP_ASSERT(transfer(file, (uint8_t *)&mode, 1, false));
    return file;
}

static pid_t raw_start(struct sockaddr_storage *address)
{
    socklen_t bytes;
    int listener = raw_socket(address, &bytes);
    PP_ASSERT(bind(listener, (struct sockaddr *)address, bytes) == 0 && listen(listener, 8) == 0);
    if (settings.kind != KIND_UDS) {
        PP_ASSERT(getsockname(listener, (struct sockaddr *)address, &bytes) == 0);
    }
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        pin(1);
        raw_serve(listener);
    }
    close(listener);
    return child;
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

    struct pp_payload payload = {filler, settings.down_bytes, keep_filler, NULL};
    PP_ASSERT(server.transport->ops->call_send(call, bytes, count, &payload, false) == PP_OK);
    server.transport->ops->call_receive(call);
}

static void serve_append(void *context, struct pp_call *call, struct pp_message *message)
{
    (void)context;
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
        pin(1);
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
    struct pp_payload payload = {filler, settings.up_bytes, keep_filler, NULL};
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
        struct pp_payload payload = {filler, APPEND_BYTES, keep_filler, NULL};
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

static double raw_append_block(int file)
{
    uint8_t acknowledgement;
    uint64_t begin_ns = now_ns();
    for (unsigned i = 0; i < APPEND_MESSAGES; ++i) {
        PP_ASSERT(transfer(file, filler, APPEND_BYTES, false));
    }
    PP_ASSERT(transfer(file, &acknowledgement, 1, true));
    return (double)(now_ns() - begin_ns) * 1e-9;
}

static double quantile(double *values, size_t count, double share)
{
    (void)bench_median(values, count); /* sorts */
    size_t index = (size_t)(share * (double)count);
    return count != 0 ? values[index < count ? index : count - 1] : 0;
}

static void measure_round_trips(struct sockaddr_storage *raw, json_t *report)
{
    double *ours = calloc(SAMPLES_MAX, sizeof(double));
    double *theirs = calloc(SAMPLES_MAX, sizeof(double));
    uint8_t *buffer = malloc(settings.down_bytes);
    PP_ASSERT(ours != NULL && theirs != NULL && buffer != NULL);
    int file = raw_connect(raw, 'r');
    uint64_t end_ns = now_ns() + settings.seconds * 1000000000u;
    size_t count = 0;
    bool warm = false;
    while ((now_ns() < end_ns || count == 0) && count + ROUND_TRIPS <= SAMPLES_MAX) {
        for (unsigned i = 0; i < ROUND_TRIPS; ++i) {
            uint64_t begin_ns = now_ns();
            PP_ASSERT(transfer(file, filler, settings.up_bytes, false) &&
                      transfer(file, buffer, settings.down_bytes, true));
            theirs[count + i] = (double)(now_ns() - begin_ns) * 1e-3;
        }
        for (unsigned i = 0; i < ROUND_TRIPS; ++i) {
            uint64_t begin_ns = now_ns();
            round_trip();
            ours[count + i] = (double)(now_ns() - begin_ns) * 1e-3;
        }
        count += warm ? ROUND_TRIPS : 0; /* the first block connects and warms up */
        warm = true;
    }
    close(file);
    double raw_p50 = quantile(theirs, count, 0.5);
    json_object_set_new(report, "rtt_us_p50", json_real(quantile(ours, count, 0.5)));
    json_object_set_new(report, "rtt_us_p99", json_real(quantile(ours, count, 0.99)));
    json_object_set_new(report, "raw_rtt_us_p50", json_real(raw_p50));
    json_object_set_new(report, "raw_rtt_us_p99", json_real(quantile(theirs, count, 0.99)));
    json_object_set_new(report, "rtt_ratio", json_real(quantile(ours, count, 0.5) / raw_p50));
    json_object_set_new(report, "round_trips", json_integer((json_int_t)count));
    free(ours);
    free(theirs);
    free(buffer);
}

static void measure_appends(struct sockaddr_storage *raw, json_t *report)
{
    static double ours[BLOCKS_MAX];
    static double theirs[BLOCKS_MAX];
    int file = raw_connect(raw, 'a');
    (void)raw_append_block(file);
    (void)append_block();
    uint64_t end_ns = now_ns() + settings.seconds * 1000000000u;
    size_t count = 0;
    while ((now_ns() < end_ns || count == 0) && count < BLOCKS_MAX) {
        theirs[count] = raw_append_block(file);
        ours[count] = append_block();
        ++count;
    }
    close(file);
    double block_gb = (double)APPEND_MESSAGES * APPEND_BYTES * 1e-9;
    double raw_gbps = block_gb / bench_median(theirs, count);
    double gbps = block_gb / bench_median(ours, count);
    json_object_set_new(report, "append_gbps", json_real(gbps));
    json_object_set_new(report, "raw_append_gbps", json_real(raw_gbps));
    json_object_set_new(report, "append_ratio", json_real(gbps / raw_gbps));
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
    static const char *const names[] = {"raw", "grpc", "key", "crt"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static enum pp_status run_bench(void)
{
    struct sockaddr_storage raw;
    int port = 0;
    filler = calloc(1, BUFFER_BYTES);
    PP_ASSERT(filler != NULL);
    make_folder();
    /* Both forks before gRPC starts in this process. */
    pid_t children[2] = {raw_start(&raw), server_start(&port)};
    pin(0);
    client_start(port);
    round_trip(); /* connects: gRPC works only while polled, raw blocks would starve it */
    (void)append_block();
    json_t *report = json_object();
    json_object_set_new(report, "bench", json_string("rpc_bench"));
    json_object_set_new(report, "transport", json_string(kind_names[settings.kind]));
    json_object_set_new(report, "up_bytes", json_integer((json_int_t)settings.up_bytes));
    json_object_set_new(report, "down_bytes", json_integer((json_int_t)settings.down_bytes));
    json_object_set_new(report, "spin_us", json_integer((json_int_t)settings.spin_us));
    measure_round_trips(&raw, report);
    measure_appends(&raw, report);
    pin(-1); /* a node has threads of its own */
    rpc_bench_node(client.transport, settings.kind == KIND_TCP ? settings.program : NULL,
                   settings.seconds, report);
    closing = true;
    client.transport->ops->destroy(client.transport);
    for (int i = 0; i < 2; ++i) {
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
