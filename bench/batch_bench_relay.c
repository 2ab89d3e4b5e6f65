/*
 * The relay of batch_bench: one thread polls all sockets; what it reads waits in its pipe until it
 * is due. It refuses to know what passes.
 */
#include "bench/batch_bench_relay.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

#define PORTS_MAX   16u
#define PIPES_MAX   128u
#define PIPE_BYTES  (4u << 20)
#define PIPE_PIECES 4096u

/* One direction of a connection: bytes in order, in pieces that are due one after another. */
struct relay_pipe {
    int from, to;
    bool ended;
    uint8_t *data; /* [PIPE_BYTES] a ring */
    uint64_t head, tail;
    struct {
        uint64_t end, due_us;
    } pieces[PIPE_PIECES];
    uint64_t first, last; /* of the pieces */
};

struct batch_relay {
    pthread_t thread;
    _Atomic bool stopping;
    int stop_pipe[2];
    uint64_t delay_us;
    uint32_t count;
    int listening[PORTS_MAX], target[PORTS_MAX];
    struct relay_pipe *pipes[PIPES_MAX];
    uint32_t pipe_count;
};

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons((uint16_t)port)};
}

static void add_pipe(struct batch_relay *relay, int from, int to)
{
    int on = 1;
    struct relay_pipe *made = calloc(1, sizeof(*made));
    uint8_t *data = malloc(PIPE_BYTES);
    if (made == NULL || data == NULL || relay->pipe_count == PIPES_MAX) {
        abort(); /* a bench: more connections than any worker here opens */
    }
    (void)setsockopt(to, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    made->from = from;
    made->to = to;
    made->data = data;
    relay->pipes[relay->pipe_count++] = made;
}

static void accept_one(struct batch_relay *relay, uint32_t index)
{
    struct sockaddr_in address = loopback(relay->target[index]);
    int near = accept(relay->listening[index], NULL, NULL);
    int far = socket(AF_INET, SOCK_STREAM, 0);
    if (near < 0 || far < 0 || connect(far, (struct sockaddr *)&address, sizeof(address)) != 0) {
        abort();
    }
    add_pipe(relay, near, far);
    add_pipe(relay, far, near);
}

static bool has_room(const struct relay_pipe *pipe)
{
    return !pipe->ended && pipe->tail - pipe->head < PIPE_BYTES &&
           pipe->last - pipe->first < PIPE_PIECES;
}

static void take(struct relay_pipe *pipe, uint64_t due_us)
{
    uint64_t at = pipe->tail % PIPE_BYTES, room = PIPE_BYTES - (pipe->tail - pipe->head);
    uint64_t straight = PIPE_BYTES - at;
    ssize_t got = recv(pipe->from, pipe->data + at, room < straight ? room : straight, 0);
    if (got <= 0) {
        pipe->ended = true;
        return;
    }
    pipe->tail += (uint64_t)got;
    pipe->pieces[pipe->last % PIPE_PIECES].end = pipe->tail;
    pipe->pieces[pipe->last++ % PIPE_PIECES].due_us = due_us;
}

/* Passes on what is due; when the next is, UINT64_MAX: nothing waits. */
static uint64_t give(struct relay_pipe *pipe, uint64_t now_us)
{
    while (pipe->first < pipe->last) {
        uint64_t due_us = pipe->pieces[pipe->first % PIPE_PIECES].due_us;
        uint64_t end = pipe->pieces[pipe->first % PIPE_PIECES].end, at = pipe->head % PIPE_BYTES;
        if (due_us > now_us) {
            return due_us;
        }
        uint64_t left = end - pipe->head, straight = PIPE_BYTES - at;
        ssize_t sent =
            send(pipe->to, pipe->data + at, left < straight ? left : straight, MSG_NOSIGNAL);
        if (sent <= 0) {
            pipe->ended = true;
            pipe->first = pipe->last;
            pipe->head = pipe->tail;
            return UINT64_MAX;
        }
        pipe->head += (uint64_t)sent;
        pipe->first += pipe->head == end ? 1 : 0;
    }
    if (pipe->ended) {
        (void)shutdown(pipe->to, SHUT_WR);
    }
    return UINT64_MAX;
}

static void *relay_run(void *context)
{
    struct batch_relay *relay = context;
    struct pp_clock clock = pp_clock_system();
    while (!atomic_load(&relay->stopping)) {
        struct pollfd polled[1 + PORTS_MAX + PIPES_MAX] = {
            {.fd = relay->stop_pipe[0], .events = POLLIN}};
        uint32_t pipes = relay->pipe_count;
        uint64_t next_us = UINT64_MAX, now_us = pp_clock_now_us(&clock);
        for (uint32_t i = 0; i < pipes; i++) {
            uint64_t due_us = give(relay->pipes[i], now_us);
            next_us = due_us < next_us ? due_us : next_us;
            bool reads = has_room(relay->pipes[i]);
            polled[1 + relay->count + i] =
                (struct pollfd){.fd = reads ? relay->pipes[i]->from : -1, .events = POLLIN};
        }
        for (uint32_t i = 0; i < relay->count; i++) {
            polled[1 + i] = (struct pollfd){.fd = relay->listening[i], .events = POLLIN};
        }
        uint64_t wait_us = next_us == UINT64_MAX ? 1000000 : next_us - now_us;
        struct timespec wait = {.tv_sec = (time_t)(wait_us / 1000000),
                                .tv_nsec = (long)(wait_us % 1000000) * 1000};
        if (ppoll(polled, 1 + relay->count + pipes, &wait, NULL) <= 0) {
            continue;
        }
        now_us = pp_clock_now_us(&clock);
        for (uint32_t i = 0; i < pipes; i++) {
            if (polled[1 + relay->count + i].revents != 0) {
                take(relay->pipes[i], now_us + relay->delay_us);
            }
        }
        for (uint32_t i = 0; i < relay->count; i++) {
            if (polled[1 + i].revents != 0) {
                accept_one(relay, i);
            }
        }
    }
    return NULL;
}

static int listen_on(int *port_out)
{
    struct sockaddr_in address = loopback(0);
    socklen_t bytes = sizeof(address);
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    if (listening < 0 || bind(listening, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(listening, 16) != 0 ||
        getsockname(listening, (struct sockaddr *)&address, &bytes) != 0) {
        return -1;
    }
    *port_out = ntohs(address.sin_port);
    return listening;
}

enum pp_status batch_relay_start(const int *ports, uint32_t count, uint64_t delay_us,
                                 int *ports_out, struct batch_relay **relay_out)
{
    struct batch_relay *relay = calloc(1, sizeof(*relay));
    if (relay == NULL || count > PORTS_MAX || pipe(relay->stop_pipe) != 0) {
        free(relay);
        return relay == NULL ? PP_MEMORY : PP_IO;
    }
    relay->delay_us = delay_us;
    relay->count = count;
    for (uint32_t i = 0; i < count; i++) {
        relay->target[i] = ports[i];
        relay->listening[i] = listen_on(&ports_out[i]);
        if (relay->listening[i] < 0) {
            return PP_IO;
        }
    }
    if (pthread_create(&relay->thread, NULL, relay_run, relay) != 0) {
        return PP_IO;
    }
    *relay_out = relay;
    return PP_OK;
}

void batch_relay_stop(struct batch_relay *relay)
{
    if (relay == NULL) {
        return;
    }
    atomic_store(&relay->stopping, true);
    (void)!write(relay->stop_pipe[1], "x", 1);
    pthread_join(relay->thread, NULL);
    for (uint32_t i = 0; i < relay->pipe_count; i++) {
        close(relay->pipes[i]->from);
        free(relay->pipes[i]->data);
        free(relay->pipes[i]);
    }
    for (uint32_t i = 0; i < relay->count; i++) {
        close(relay->listening[i]);
    }
    close(relay->stop_pipe[0]);
    close(relay->stop_pipe[1]);
    free(relay);
}
