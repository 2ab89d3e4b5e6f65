/*
 * Raw sockets: both ends of the measure. See rpc_bench_raw.h. Waiting is as the transport's: spin,
 * then block. It refuses to know messages.
 */
#include "bench/rpc_bench_raw.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/base/assert.h"

enum { ROUND_TRIPS, APPENDS };

static struct rpc_raw_config config;
static struct peer {
    struct sockaddr_storage address;
    int file;           /* this end; 0: not connected yet */
} peers[2];             /* for round trips, for appends */
static uint8_t *buffer; /* of either end; never freed */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void rpc_bench_pin(int which)
{
    static cpu_set_t all;
    static int now = -1;
    if (which == now) {
        return;
    }
    now = which;
    if (CPU_COUNT(&all) == 0) {
        sched_getaffinity(0, sizeof(all), &all);
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    int core_index = 0;
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
        if (CPU_ISSET(core, &all) && core_index++ == which) {
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
        } else if (now_ns() - idle_ns > config.spin_us * 1000u) {
            struct pollfd wait = {.fd = file, .events = reading ? POLLIN : POLLOUT};
            poll(&wait, 1, -1);
        }
    }
    return true;
}

static int raw_socket(int which, struct sockaddr_storage *address, socklen_t *bytes_out)
{
    memset(address, 0, sizeof(*address));
    if (config.uds_folder != NULL) {
        struct sockaddr_un *name = (struct sockaddr_un *)address;
        name->sun_family = AF_UNIX;
        snprintf(name->sun_path, sizeof(name->sun_path), "%s/raw%d", config.uds_folder, which);
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

/* One connection, for one purpose. */
static void raw_serve(int which, int listener)
{
    int file = accept(listener, NULL, NULL);
    int one = 1;
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    bool open = file >= 0;
    while (open && which == ROUND_TRIPS) {
        open = transfer(file, buffer, config.up_bytes, true) &&
               transfer(file, buffer, config.down_bytes, false);
    }
    while (open && which == APPENDS) {
        for (unsigned i = 0; i < APPEND_MESSAGES && open; ++i) {
            open = transfer(file, buffer, APPEND_BYTES, true);
        }
        open = open && transfer(file, buffer, 1, false);
    }
    _exit(0);
}

static int raw_connect(int which)
{
    struct sockaddr_storage scratch;
    socklen_t bytes;
    struct peer *peer = &peers[which];
    if (peer->file == 0) {
        peer->file = raw_socket(which, &scratch, &bytes);
        PP_ASSERT(connect(peer->file, (struct sockaddr *)&peer->address, bytes) == 0);
    }
    return peer->file;
}

static pid_t start(int which)
{
    socklen_t bytes;
    struct sockaddr *address = (struct sockaddr *)&peers[which].address;
    int listener = raw_socket(which, &peers[which].address, &bytes);
    PP_ASSERT(bind(listener, address, bytes) == 0 && listen(listener, 8) == 0);
    if (config.uds_folder == NULL) {
        PP_ASSERT(getsockname(listener, address, &bytes) == 0);
    }
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        rpc_bench_pin(which == ROUND_TRIPS ? 1 : -1);
        raw_serve(which, listener);
    }
    close(listener);
    return child;
}

void rpc_raw_start(const struct rpc_raw_config *wanted, pid_t children_out[2])
{
    config = *wanted;
    buffer = calloc(1, BUFFER_BYTES);
    PP_ASSERT(buffer != NULL);
    memset(buffer, 1, BUFFER_BYTES);
    children_out[ROUND_TRIPS] = start(ROUND_TRIPS);
    children_out[APPENDS] = start(APPENDS);
}

void rpc_raw_round_trips(size_t count, double *us_out)
{
    int file = raw_connect(ROUND_TRIPS);
    for (size_t i = 0; i <= count; ++i) {
        uint64_t begin_ns = now_ns();
        PP_ASSERT(transfer(file, buffer, config.up_bytes, false) &&
                  transfer(file, buffer, config.down_bytes, true));
        if (i > 0) {
            us_out[i - 1] = (double)(now_ns() - begin_ns) * 1e-3;
        }
    }
}

double rpc_raw_append_block(void)
{
    uint8_t acknowledgement;
    int file = raw_connect(APPENDS);
    uint64_t begin_ns = now_ns();
    for (unsigned i = 0; i < APPEND_MESSAGES; ++i) {
        PP_ASSERT(transfer(file, buffer, APPEND_BYTES, false));
    }
    PP_ASSERT(transfer(file, &acknowledgement, 1, true));
    return (double)(now_ns() - begin_ns) * 1e-9;
}
