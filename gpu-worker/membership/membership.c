/*
 * A membership as a whole: which source, its life, and the list that it published last. See
 * membership.h. It refuses to know parts and sequences.
 */
#include "gpu-worker/membership/membership.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "gpu-worker/membership/internal.h"

#define FILE_PERIOD_US 1000000u
#define ETCD_LOOK_US   50000u

static const char *const prefixes[] = {"", "file:", "dns:", "etcd:"};

static enum gw_membership_kind kind_of(const char *source)
{
    for (int kind = GW_MEMBERSHIP_FILE; kind <= GW_MEMBERSHIP_ETCD; kind++) {
        if (strncmp(source, prefixes[kind], strlen(prefixes[kind])) == 0) {
            return (enum gw_membership_kind)kind;
        }
    }
    return GW_MEMBERSHIP_STATIC;
}

static enum pp_status check_static(const char *source, char *fault_out, size_t fault_bytes)
{
    struct gw_members members;
    return gw_members_parse(source, ",", false, &members, fault_out, fault_bytes);
}

/* "HOST:PORT" of dns, "HOST:PORT/PREFIX" of etcd. */
static enum pp_status check_remote(const char *text, bool prefix, char *fault_out,
                                   size_t fault_bytes)
{
    struct gw_node_address node;
    const char *slash = strchr(text, '/');
    size_t bytes = slash == NULL ? strlen(text) : (size_t)(slash - text);
    const char *fault = memchr(text, '=', bytes) != NULL ? "a host is a name or an address"
                                                         : gw_member_parse(text, bytes, &node);
    if (fault == NULL && prefix && (slash == NULL || slash[1] == '\0')) {
        fault = "the prefix of the entries is missing: etcd:HOST:PORT/PREFIX";
    } else if (fault == NULL && !prefix && slash != NULL) {
        fault = "it is not dns:NAME:PORT";
    } else if (fault == NULL && prefix && strlen(slash) >= PP_ETCD_PREFIX_BYTES - 1) {
        fault = "the prefix is too long";
    }
    if (fault == NULL) {
        return PP_OK;
    }
    snprintf(fault_out, fault_bytes, "'%s': %s", text, fault);
    return PP_INVALID_ARGUMENT;
}

enum pp_status gw_membership_check(const char *source, enum gw_membership_kind *kind_out,
                                   char *fault_out, size_t fault_bytes)
{
    *kind_out = kind_of(source);
    const char *text = source + strlen(prefixes[*kind_out]);
    switch (*kind_out) {
    case GW_MEMBERSHIP_STATIC:
        return check_static(source, fault_out, fault_bytes);
    case GW_MEMBERSHIP_FILE:
        if (text[0] != '\0') {
            return PP_OK;
        }
        snprintf(fault_out, fault_bytes, "the path is missing: file:PATH");
        return PP_INVALID_ARGUMENT;
    case GW_MEMBERSHIP_DNS:
    case GW_MEMBERSHIP_ETCD:
        break;
    }
    return check_remote(text, *kind_out == GW_MEMBERSHIP_ETCD, fault_out, fault_bytes);
}

static enum pp_status start_source(struct gw_membership *membership)
{
    const struct gw_membership_config *config = &membership->config;
    struct gw_members members = {.count = 0};
    char fault[GW_PROBLEM_BYTES];
    switch (membership->kind) {
    case GW_MEMBERSHIP_STATIC:
        PP_TRY(gw_members_parse(config->source, ",", false, &members, fault, sizeof(fault)));
        gw_membership_publish(membership, &members);
        return PP_OK;
    case GW_MEMBERSHIP_FILE:
        return PP_OK;
    case GW_MEMBERSHIP_DNS:
        return pp_thread_start("gw-dns", gw_membership_dns_poll, membership, 0,
                               &membership->resolver);
    case GW_MEMBERSHIP_ETCD:
        break;
    }
    return gw_membership_etcd_start(membership);
}

enum pp_status gw_membership_new(const struct gw_membership_config *config,
                                 struct gw_membership **membership_out)
{
    char fault[GW_PROBLEM_BYTES];
    enum gw_membership_kind kind;
    PP_TRY(gw_membership_check(config->source, &kind, fault, sizeof(fault)));
    struct gw_membership *membership = calloc(1, sizeof(*membership));
    if (membership == NULL) {
        return PP_MEMORY;
    }
    membership->config = *config;
    membership->kind = kind;
    if (config->stats != NULL) {
        membership->empty_lists =
            pp_stats_counter(config->stats, "pigpen_worker_empty_node_lists_total", "",
                             "Lists without a node that replaced nothing.");
    }
    pthread_mutex_init(&membership->lock, NULL);
    int bytes =
        snprintf(membership->text, sizeof(membership->text), "%s",
                 kind == GW_MEMBERSHIP_STATIC ? "" : config->source + strlen(prefixes[kind]));
    enum pp_status status = bytes >= 0 && (size_t)bytes < sizeof(membership->text)
                                ? start_source(membership)
                                : PP_INVALID_ARGUMENT;
    if (status != PP_OK) {
        gw_membership_destroy(membership);
        return status;
    }
    *membership_out = membership;
    return PP_OK;
}

void gw_membership_destroy(struct gw_membership *membership)
{
    if (membership == NULL) {
        return;
    }
    if (membership->resolver != NULL) {
        pp_thread_stop(membership->resolver, NULL, NULL);
    }
    pp_etcd_destroy(membership->etcd);
    pthread_mutex_destroy(&membership->lock);
    free(membership);
}

uint64_t gw_membership_tick(struct gw_membership *membership, uint64_t now_us)
{
    if (membership->etcd != NULL) {
        const char *detail;
        uint64_t next_us = pp_etcd_tick(membership->etcd, now_us);
        bool listed = pp_etcd_listed(membership->etcd, &detail);
        if (detail[0] != '\0' || !listed) {
            gw_membership_fail(membership, detail);
        }
        return next_us < now_us + ETCD_LOOK_US ? next_us : now_us + ETCD_LOOK_US;
    }
    if (membership->kind != GW_MEMBERSHIP_FILE) {
        return UINT64_MAX;
    }
    if (now_us >= membership->next_us) {
        uint64_t period_us = membership->config.period_us;
        membership->next_us = now_us + (period_us > 0 ? period_us : FILE_PERIOD_US);
        gw_membership_file_look(membership);
    }
    return membership->next_us;
}

/* A source that names nobody is more likely to be caught in the middle of a change than to mean it,
 * and without nodes there is nothing left to do: the last list stands. */
static bool names_nobody(struct gw_membership *membership, const struct gw_members *members)
{
    pthread_mutex_lock(&membership->lock);
    bool nobody = members->count == 0 && membership->members.count > 0;
    pthread_mutex_unlock(&membership->lock);
    return nobody;
}

void gw_membership_publish(struct gw_membership *membership, const struct gw_members *members)
{
    if (names_nobody(membership, members)) {
        if (membership->empty_lists != NULL) {
            pp_stat_add(membership->empty_lists, 1);
        }
        gw_membership_fail(membership, "it names no node");
        return;
    }
    pthread_mutex_lock(&membership->lock);
    if (!gw_members_same(&membership->members, members)) {
        membership->members = *members;
        membership->fresh = true;
    }
    membership->problem[0] = '\0';
    pthread_mutex_unlock(&membership->lock);
}

void gw_membership_fail(struct gw_membership *membership, const char *problem)
{
    pthread_mutex_lock(&membership->lock);
    bool news = strcmp(membership->problem, problem) != 0;
    snprintf(membership->problem, sizeof(membership->problem), "%s", problem);
    uint32_t count = membership->members.count;
    pthread_mutex_unlock(&membership->lock);
    if (news) {
        PP_LOG_WARNF("membership", "the list of nodes is not followed",
                     "source=\"%s%s\" problem=\"%s\" nodes_kept=%u", prefixes[membership->kind],
                     membership->text, problem, count);
    }
}

bool gw_membership_take(struct gw_membership *membership, struct gw_members *members_out)
{
    pthread_mutex_lock(&membership->lock);
    bool fresh = membership->fresh;
    if (fresh) {
        *members_out = membership->members;
        membership->fresh = false;
    }
    pthread_mutex_unlock(&membership->lock);
    return fresh;
}

void gw_membership_problem(struct gw_membership *membership, char *problem_out, size_t bytes)
{
    pthread_mutex_lock(&membership->lock);
    snprintf(problem_out, bytes, "%s", membership->problem);
    pthread_mutex_unlock(&membership->lock);
}
