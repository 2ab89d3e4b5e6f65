/*
 * From "host:port" to a listening socket. What is served there, the caller knows.
 */
#include "common/obs/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/options.h"

#define HOST_BYTES_MAX 256
#define BACKLOG        128

bool pp_listen_is_loopback_peer(const struct sockaddr *peer)
{
    if (peer->sa_family == AF_INET) {
        struct sockaddr_in four;
        memcpy(&four, peer, sizeof(four));
        return ntohl(four.sin_addr.s_addr) >> 24 == 127;
    }
    if (peer->sa_family == AF_INET6) {
        struct sockaddr_in6 six;
        memcpy(&six, peer, sizeof(six));
        return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr) ||
               (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) && six.sin6_addr.s6_addr[12] == 127);
    }
    return false;
}

/* "host:port" to its two parts, brackets off. */
static enum pp_status split(const char *address, char *host_out, char *port_out)
{
    const char *colon = strrchr(address, ':');
    uint64_t port;
    if (colon == NULL || pp_parse_u64(colon + 1, &port) != PP_OK || port > UINT16_MAX) {
        return PP_INVALID_ARGUMENT;
    }
    const char *host = address;
    size_t host_bytes = (size_t)(colon - address);
    bool bracketed = host_bytes >= 2 && host[0] == '[' && host[host_bytes - 1] == ']';
    if (bracketed) {
        ++host;
        host_bytes -= 2;
    }
    if (host_bytes >= HOST_BYTES_MAX || (!bracketed && memchr(host, ':', host_bytes) != NULL)) {
        return PP_INVALID_ARGUMENT;
    }
    memcpy(host_out, host, host_bytes);
    host_out[host_bytes] = '\0';
    snprintf(port_out, 8, "%u", (unsigned)port);
    return PP_OK;
}

bool pp_listen_is_address(const char *address)
{
    char host[HOST_BYTES_MAX];
    char port[8];
    return split(address, host, port) == PP_OK;
}

/* The list is to be freed with freeaddrinfo. */
static enum pp_status resolve(const char *address, struct addrinfo **list_out)
{
    char host[HOST_BYTES_MAX];
    char port[8];
    PP_TRY(split(address, host, port));
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    return getaddrinfo(host[0] != '\0' ? host : NULL, port, &hints, list_out) == 0
               ? PP_OK
               : PP_INVALID_ARGUMENT;
}

bool pp_listen_is_loopback(const char *address)
{
    struct addrinfo *list;
    if (resolve(address, &list) != PP_OK) {
        return false;
    }
    bool loopback = true;
    for (const struct addrinfo *at = list; at != NULL; at = at->ai_next) {
        loopback = loopback && pp_listen_is_loopback_peer(at->ai_addr);
    }
    freeaddrinfo(list);
    return loopback;
}

/* The socket, or -1 with errno. */
static int open_socket(const struct addrinfo *at)
{
    int one = 1;
    int socket_fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (socket_fd < 0) {
        return -1;
    }
    /* A restart need not wait for old connections; two processes on one port still collide. */
    if (setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(socket_fd, at->ai_addr, at->ai_addrlen) != 0 || listen(socket_fd, BACKLOG) != 0) {
        int failed = errno;
        close(socket_fd);
        errno = failed;
        return -1;
    }
    return socket_fd;
}

enum pp_status pp_listen_tcp(const char *address, struct pp_listener *listener_out)
{
    struct addrinfo *list;
    if (resolve(address, &list) != PP_OK) {
        PP_LOG_ERRORF("listen", "not an address: give host:port", "given=\"%s\"", address);
        return PP_INVALID_ARGUMENT;
    }
    int socket_fd = -1;
    int failed = 0;
    for (const struct addrinfo *at = list; at != NULL && socket_fd < 0; at = at->ai_next) {
        socket_fd = open_socket(at);
        failed = socket_fd < 0 ? errno : 0;
    }
    freeaddrinfo(list);
    struct sockaddr_storage bound;
    socklen_t bound_bytes = sizeof(bound);
    if (socket_fd < 0 || getsockname(socket_fd, (struct sockaddr *)&bound, &bound_bytes) != 0) {
        failed = socket_fd < 0 ? failed : errno;
        PP_LOG_ERRORF("listen", failed == EADDRINUSE ? "the port is taken" : "cannot listen",
                      "address=%s error=\"%s\"", address, strerror(failed));
        if (socket_fd >= 0) {
            close(socket_fd);
        }
        return PP_IO;
    }
    in_port_t port = bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                 : ((struct sockaddr_in *)&bound)->sin_port;
    *listener_out =
        (struct pp_listener){.socket = socket_fd,
                             .port = ntohs(port),
                             .loopback = pp_listen_is_loopback_peer((struct sockaddr *)&bound)};
    return PP_OK;
}
