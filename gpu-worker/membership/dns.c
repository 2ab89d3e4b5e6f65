/*
 * The nodes behind a DNS name, as a headless service has them: every address is one, named by it.
 * The resolver blocks, so it has a thread of its own. An answer without addresses, or none, leaves
 * the list as it is. It refuses to know what the nodes call themselves.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu-worker/membership/internal.h"

#define DNS_PERIOD_US 5000000u
/* The thread looks whether it is to end so often. */
#define NAP_US 20000u

/* "10.0.0.1:7450" or "[fd00::1]:7450". */
static bool numeric(const struct addrinfo *info, const char *port, struct gw_node_address *node_out)
{
    char host[64];
    if (getnameinfo(info->ai_addr, info->ai_addrlen, host, sizeof(host), NULL, 0, NI_NUMERICHOST) !=
        0) {
        return false;
    }
    bool six = info->ai_family == AF_INET6;
    memset(node_out, 0, sizeof(*node_out));
    snprintf(node_out->address, sizeof(node_out->address), six ? "[%s]:%s" : "%s:%s", host, port);
    int bytes = snprintf(node_out->name, sizeof(node_out->name), "%s", node_out->address);
    return bytes > 0 && (size_t)bytes < sizeof(node_out->name);
}

static int by_address(const void *a, const void *b)
{
    const struct gw_node_address *one = a, *other = b;
    return strcmp(one->address, other->address);
}

static void resolve(struct gw_membership *membership)
{
    char host[512], problem[GW_PROBLEM_BYTES], fault[200];
    const char *colon = strrchr(membership->text, ':');
    size_t bytes = (size_t)(colon - membership->text);
    bool bracketed = membership->text[0] == '[';
    snprintf(host, sizeof(host), "%.*s", (int)(bytes - (bracketed ? 2 : 0)),
             membership->text + (bracketed ? 1 : 0));
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *infos = NULL;
    struct gw_members members = {.count = 0};
    int cause = getaddrinfo(host, NULL, &hints, &infos);
    for (struct addrinfo *info = infos; info != NULL; info = info->ai_next) {
        struct gw_node_address node;
        if (numeric(info, colon + 1, &node) &&
            gw_members_add(&members, &node, fault, sizeof(fault)) != PP_OK &&
            members.count == GW_NODES_MAX) {
            break; /* twins are left out */
        }
    }
    if (infos != NULL) {
        freeaddrinfo(infos);
    }
    if (members.count == 0) {
        snprintf(problem, sizeof(problem), "%.200s: %.150s", host,
                 cause != 0 ? gai_strerror(cause) : "it has no address");
        gw_membership_fail(membership, problem);
        return;
    }
    qsort(members.nodes, members.count, sizeof(members.nodes[0]), by_address);
    gw_membership_publish(membership, &members);
}

void gw_membership_dns_poll(void *context)
{
    struct gw_membership *membership = context;
    const struct timespec nap = {.tv_nsec = NAP_US * 1000};
    uint64_t now_us = pp_clock_now_us(&membership->config.clock);
    if (now_us < membership->next_us) {
        (void)nanosleep(&nap, NULL);
        return;
    }
    resolve(membership);
    uint64_t period_us = membership->config.period_us;
    membership->next_us =
        pp_clock_now_us(&membership->config.clock) + (period_us > 0 ? period_us : DNS_PERIOD_US);
}
