/*
 * The nodes under a prefix of etcd: an entry's key names one, its value begins with the address;
 * what follows a blank is the node's own. An entry that is no node is left out, for a list that is
 * written by many must not fall to one. It refuses to know leases.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "gpu-worker/membership/internal.h"

static void entries_changed(void *context, const struct pp_etcd_entry *entries, uint32_t count)
{
    struct gw_membership *membership = context;
    struct gw_members members = {.count = 0};
    for (uint32_t i = 0; i < count; i++) {
        char text[PP_ETCD_NAME_BYTES + PP_ETCD_VALUE_BYTES + 2], fault[200];
        struct gw_node_address node;
        int bytes = snprintf(text, sizeof(text), "%s=%.*s", entries[i].name,
                             (int)strcspn(entries[i].value, " "), entries[i].value);
        const char *wrong = gw_member_parse(text, (size_t)bytes, &node);
        if (wrong == NULL && gw_members_add(&members, &node, fault, sizeof(fault)) != PP_OK) {
            wrong = fault;
        }
        if (wrong != NULL) {
            PP_LOG_WARNF("membership", "an entry of etcd is left out", "entry=\"%s\" fault=\"%s\"",
                         text, wrong);
        }
    }
    gw_membership_publish(membership, &members);
}

enum pp_status gw_membership_etcd_start(struct gw_membership *membership)
{
    const struct gw_membership_config *config = &membership->config;
    char endpoint[sizeof(membership->text)], prefix[PP_ETCD_PREFIX_BYTES];
    const char *slash = strchr(membership->text, '/');
    bool ended = slash[strlen(slash) - 1] == '/';
    snprintf(endpoint, sizeof(endpoint), "%.*s", (int)(slash - membership->text), membership->text);
    snprintf(prefix, sizeof(prefix), "%s%s", slash, ended ? "" : "/");
    const struct pp_etcd_config etcd = {.transport = config->transport,
                                        .clock = config->clock,
                                        .tls = config->tls,
                                        .endpoint = endpoint,
                                        .prefix = prefix,
                                        .retry_us = config->etcd_retry_us,
                                        .changed = entries_changed,
                                        .context = membership};
    return pp_etcd_new(&etcd, &membership->etcd);
}
