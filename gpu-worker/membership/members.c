/*
 * Lists of nodes from text. See members.h. It refuses to know where lists come from.
 */
#include "gpu-worker/membership/members.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define PORT_MAX 65535u

/* What is wrong with "host:port", or NULL. */
static const char *address_fault(const char *address)
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
    for (size_t i = 0; i < digits && port <= PORT_MAX; i++) {
        port = port * 10 + (uint32_t)(colon[1 + i] - '0');
    }
    if (colon[1 + digits] != '\0' || port == 0 || port > PORT_MAX) {
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

const char *gw_member_parse(const char *text, size_t bytes, struct gw_node_address *node_out)
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
    return address_fault(node_out->address);
}

/* The host of an address that has passed; what every machine calls itself is one host. */
static const char *host_of(const char *address, size_t *bytes_out)
{
    *bytes_out = (size_t)(strrchr(address, ':') - address);
    if (*bytes_out == 9 && strncasecmp(address, "localhost", 9) == 0) {
        return "127.0.0.1"; /* as long */
    }
    return address;
}

/* Whether two addresses are one for certain; that names lead to one node is seen when it answers.
 */
static bool same_address(const char *a, const char *b)
{
    size_t a_bytes, b_bytes;
    const char *a_host = host_of(a, &a_bytes), *b_host = host_of(b, &b_bytes);
    const char *a_port = a + a_bytes + 1, *b_port = b + b_bytes + 1;
    return a_bytes == b_bytes && strncasecmp(a_host, b_host, a_bytes) == 0 &&
           strcmp(a_port + strspn(a_port, "0"), b_port + strspn(b_port, "0")) == 0;
}

enum pp_status gw_members_add(struct gw_members *members, const struct gw_node_address *node,
                              char *fault_out, size_t fault_bytes)
{
    if (members->count == GW_NODES_MAX) {
        snprintf(fault_out, fault_bytes, "more than %u nodes", GW_NODES_MAX);
        return PP_INVALID_ARGUMENT;
    }
    for (uint32_t i = 0; i < members->count; i++) {
        const struct gw_node_address *other = &members->nodes[i];
        if (strcmp(other->name, node->name) == 0) {
            snprintf(fault_out, fault_bytes, "two nodes are named '%s'", node->name);
            return PP_INVALID_ARGUMENT;
        }
        if (same_address(other->address, node->address)) {
            snprintf(fault_out, fault_bytes,
                     "'%s' and '%s' have one address, %s: a node is named once", other->name,
                     node->name, node->address);
            return PP_INVALID_ARGUMENT;
        }
    }
    members->nodes[members->count++] = *node;
    return PP_OK;
}

/* Bytes of an item less a comment and the blanks around it; *text moves to its first. */
static size_t trimmed(const char **text, size_t bytes)
{
    const char *comment = memchr(*text, '#', bytes);
    bytes = comment == NULL ? bytes : (size_t)(comment - *text);
    while (bytes > 0 && strchr(" \t\r", (*text)[bytes - 1]) != NULL) {
        bytes--;
    }
    while (bytes > 0 && strchr(" \t\r", **text) != NULL) {
        (*text)++;
        bytes--;
    }
    return bytes;
}

enum pp_status gw_members_parse(const char *text, const char *separators, bool empty_items,
                                struct gw_members *members_out, char *fault_out, size_t fault_bytes)
{
    struct gw_members members = {.count = 0};
    uint32_t line = 1;
    bool more = *text != '\0';
    while (more) {
        size_t whole = strcspn(text, separators), bytes = whole;
        const char *item = text;
        struct gw_node_address node;
        bytes = empty_items ? trimmed(&item, bytes) : bytes;
        if (bytes > 0 || !empty_items) {
            char place[24] = "";
            const char *fault = gw_member_parse(item, bytes, &node);
            if (empty_items) {
                snprintf(place, sizeof(place), "line %u: ", line);
            }
            if (fault != NULL) {
                snprintf(fault_out, fault_bytes, "%s'%.*s': %s", place, (int)bytes, item, fault);
                return PP_INVALID_ARGUMENT;
            }
            int used = snprintf(fault_out, fault_bytes, "%s", place);
            size_t at = used > 0 && (size_t)used < fault_bytes ? (size_t)used : 0;
            PP_TRY(gw_members_add(&members, &node, fault_out + at, fault_bytes - at));
        }
        line += text[whole] == '\n' ? 1 : 0;
        more = text[whole] != '\0';
        text += whole + (more ? 1 : 0);
    }
    *members_out = members;
    return PP_OK;
}

bool gw_members_same(const struct gw_members *a, const struct gw_members *b)
{
    if (a->count != b->count) {
        return false;
    }
    for (uint32_t i = 0; i < a->count; i++) {
        if (strcmp(a->nodes[i].name, b->nodes[i].name) != 0 ||
            strcmp(a->nodes[i].address, b->nodes[i].address) != 0) {
            return false;
        }
    }
    return true;
}
