/*
 * Peers' names as keys: addresses as the system says them, and as gRPC writes them.
 */
#include "common/rpc/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/share.h"

#define HOST_BYTES_MAX 64u

static uint64_t key_of_six(const struct in6_addr *six)
{
    const uint8_t *bytes = six->s6_addr;
    return IN6_IS_ADDR_V4MAPPED(six) ? pp_share_key(bytes + 12, 4) : pp_share_key(bytes, 8);
}

uint64_t pp_peer_key_of_address(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET) {
        struct sockaddr_in four;
        memcpy(&four, address, sizeof(four));
        return pp_share_key(&four.sin_addr, sizeof(four.sin_addr));
    }
    if (address->ss_family == AF_INET6) {
        struct sockaddr_in6 six;
        memcpy(&six, address, sizeof(six));
        return key_of_six(&six.sin6_addr);
    }
    return pp_share_key("unix:", 5);
}

/* What stands between the scheme and the port, brackets and zone off. */
static bool host_of(const char *text, char host_out[HOST_BYTES_MAX])
{
    const char *colon = strrchr(text, ':');
    size_t skip = strncmp(text, "%5B", 3) == 0 ? 3 : text[0] == '[' ? 1 : 0;
    if (colon == NULL || (size_t)(colon - text) < skip) {
        return false;
    }
    const char *begin = text + skip;
    size_t bytes = (size_t)(colon - begin);
    size_t end = strcspn(begin, skip != 0 ? "%]" : ":");
    bytes = end < bytes ? end : bytes;
    if (bytes >= HOST_BYTES_MAX) {
        return false;
    }
    memcpy(host_out, begin, bytes);
    host_out[bytes] = '\0';
    return true;
}

uint64_t pp_peer_key(const char *peer)
{
    char host[HOST_BYTES_MAX];
    struct in_addr four;
    struct in6_addr six;
    if (strncmp(peer, "unix:", 5) == 0) {
        return pp_share_key(peer, 5);
    }
    if (strncmp(peer, "ipv4:", 5) == 0 && host_of(peer + 5, host) &&
        inet_pton(AF_INET, host, &four) == 1) {
        return pp_share_key(&four, sizeof(four));
    }
    if (strncmp(peer, "ipv6:", 5) == 0 && host_of(peer + 5, host) &&
        inet_pton(AF_INET6, host, &six) == 1) {
        return key_of_six(&six);
    }
    return pp_share_key(peer, strlen(peer));
}
