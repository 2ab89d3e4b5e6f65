/*
 * Reads --nodes and waits for them. It refuses to know parts and sequences.
 */
#include "gpu-worker/api/nodes.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "gpu-worker/api/interrupt.h"

#define NODES_FIRST_LINE_US  1000000u
#define NODES_LINE_PERIOD_US 5000000u
#define NODES_PORT_MAX       65535u

/* What is wrong with "host:port", or NULL. */
static const char *nodes_address_fault(const char *address)
{
    if (strncmp(address, "unix:", 5) == 0 || strstr(address, "://") != NULL) {
        return "nodes are reached by TCP, without a scheme: HOST:PORT";
    }
    const char *colon = strrchr(address, ':');
    if (colon == NULL || colon[1] == '\0') {
        return "the port is missing: HOST:PORT";
    }
    size_t digits = strspn(colon + 1, "0123456789");
    uint32_t port = 0;
    for (size_t i = 0; i < digits && port <= NODES_PORT_MAX; i++) {
        port = port * 10 + (uint32_t)(colon[1 + i] - '0');
    }
    if (colon[1 + digits] != '\0' || port == 0 || port > NODES_PORT_MAX) {
        return "a port is a number from 1 to 65535";
    }
    if (colon == address) {
        return "the host is missing: HOST:PORT";
    }
    size_t host = (size_t)(colon - address);
    bool bracketed = address[0] == '[' && address[host - 1] == ']' && host > 2;
    if (!bracketed && (address[0] == '[' || memchr(address, ':', host) != NULL)) {
        return "an IPv6 address stands in brackets: [::1]:7450";
    }
    return strpbrk(address, " \t\r\n/") != NULL ? "a host is a name or an address" : NULL;
}

/* One "name=host:port" of `bytes` characters; what is wrong with it, or NULL. */
static const char *nodes_one(const char *text, size_t bytes, struct gw_node_address *node_out)
{
    const char *equals = memchr(text, '=', bytes);
    const char *address = equals == NULL ? text : equals + 1;
    size_t name_bytes = equals == NULL ? bytes : (size_t)(equals - text);
    size_t address_bytes = bytes - (size_t)(address - text);
    if (name_bytes == 0 || address_bytes == 0) {
        return "it is not NAME=HOST:PORT";
    }
    if (name_bytes >= sizeof(node_out->name) || address_bytes >= sizeof(node_out->address)) {
        return "it is too long";
    }
    memset(node_out, 0, sizeof(*node_out));
    memcpy(node_out->name, text, name_bytes);
    memcpy(node_out->address, address, address_bytes);
    return nodes_address_fault(node_out->address);
}

/* The host of an address that has passed; what every machine calls itself is one host. */
static const char *nodes_host(const char *address, size_t *bytes_out)
{
    *bytes_out = (size_t)(strrchr(address, ':') - address);
    if (*bytes_out == 9 && strncasecmp(address, "localhost", 9) == 0) {
        return "127.0.0.1"; /* as long */
    }
    return address;
}

/* Whether two addresses are one for certain; that names lead to one node is seen when it answers.
 */
static bool nodes_same_address(const char *a, const char *b)
{
    size_t a_bytes, b_bytes;
    const char *a_host = nodes_host(a, &a_bytes), *b_host = nodes_host(b, &b_bytes);
    const char *a_port = a + a_bytes + 1, *b_port = b + b_bytes + 1;
    return a_bytes == b_bytes && strncasecmp(a_host, b_host, a_bytes) == 0 &&
           strcmp(a_port + strspn(a_port, "0"), b_port + strspn(b_port, "0")) == 0;
}

/* Whether the last of `count` nodes is another than those before; else a line says what is wrong.
 */
static bool nodes_last_is_new(const struct gw_node_address *nodes, uint32_t count, FILE *errors)
{
    const struct gw_node_address *last = &nodes[count - 1];
    for (uint32_t i = 0; i + 1 < count; i++) {
        if (strcmp(nodes[i].name, last->name) == 0) {
            fprintf(errors, "--nodes: two nodes are named '%s'\n", last->name);
            return false;
        }
        if (nodes_same_address(nodes[i].address, last->address)) {
            fprintf(errors, "--nodes: '%s' and '%s' have one address, %s: a node is named once\n",
                    nodes[i].name, last->name, last->address);
            return false;
        }
    }
    return true;
}

enum pp_status gw_nodes_parse(const char *text, FILE *errors, struct gw_node_address *nodes_out,
                              uint32_t *count_out)
{
    uint32_t count = 0;
    bool more = *text != '\0';
    while (more) {
        size_t bytes = strcspn(text, ",");
        if (count == GW_NODES_MAX) {
            fprintf(errors, "--nodes: more than %u nodes\n", GW_NODES_MAX);
            return PP_INVALID_ARGUMENT;
        }
        const char *fault = nodes_one(text, bytes, &nodes_out[count]);
        if (fault != NULL) {
            fprintf(errors, "--nodes: '%.*s': %s\n", (int)bytes, text, fault);
            return PP_INVALID_ARGUMENT;
        }
        count++;
        if (!nodes_last_is_new(nodes_out, count, errors)) {
            return PP_INVALID_ARGUMENT;
        }
        more = text[bytes] == ',';
        text += bytes + (more ? 1 : 0);
    }
    *count_out = count;
    return PP_OK;
}

struct nodes_wait {
    struct gw_remote *remote;
    const struct gw_remote_config *config;
    uint64_t timeout_us, next_us;
    FILE *progress;
};

static bool nodes_waiting(void *context, uint64_t waited_us)
{
    struct nodes_wait *wait = context;
    if (gw_interrupt_signal() != 0) {
        return false;
    }
    if (wait->progress == NULL || waited_us < wait->next_us) {
        return true;
    }
    wait->next_us = waited_us + NODES_LINE_PERIOD_US;
    for (uint32_t i = 0; i < wait->config->node_count; i++) {
        const char *cause = gw_remote_missing(wait->remote, i);
        if (cause != NULL) {
            fprintf(wait->progress, "waiting for node %s (%s): %s, %llu s of %llu s\n",
                    wait->config->nodes[i].name, wait->config->nodes[i].address, cause,
                    (unsigned long long)(waited_us / 1000000),
                    (unsigned long long)(wait->timeout_us / 1000000));
        }
    }
    return true;
}

enum pp_status gw_nodes_wait(struct gw_remote *remote, const struct gw_remote_config *config,
                             uint64_t timeout_us, FILE *progress, FILE *errors)
{
    struct nodes_wait wait = {.remote = remote,
                              .config = config,
                              .timeout_us = timeout_us,
                              .next_us = NODES_FIRST_LINE_US,
                              .progress = progress};
    enum pp_status status = gw_remote_ready(remote, timeout_us, nodes_waiting, &wait);
    if (status == PP_OK || status == PP_CANCELLED) {
        return status;
    }
    for (uint32_t i = 0; i < config->node_count; i++) {
        const char *cause = gw_remote_missing(remote, i);
        if (cause != NULL) {
            fprintf(errors, "node %s (%s) is missing: %s\n", config->nodes[i].name,
                    config->nodes[i].address, cause);
        }
    }
    fprintf(errors, "start it with attn-node, or correct --nodes\n");
    return status;
}
