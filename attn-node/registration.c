/*
 * Keeps a node's entry in etcd, and what may be asked about it from other threads. See
 * registration.h.
 */
#include "attn-node/registration.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/etcd/etcd.h"

#define SCHEME       "etcd:"
#define DETAIL_BYTES 320u

struct an_registration {
    struct pp_etcd *etcd;
    _Atomic bool leave, left;
    bool leaving;
    pthread_mutex_t lock; /* of what follows */
    enum pp_etcd_claim claim;
    char detail[DETAIL_BYTES];
};

const char *an_registration_fault(const char *target)
{
    if (strncmp(target, SCHEME, strlen(SCHEME)) != 0) {
        return "it is not etcd:HOST:PORT/PREFIX";
    }
    const char *endpoint = target + strlen(SCHEME), *slash = strchr(endpoint, '/');
    if (slash == NULL || slash == endpoint || slash[1] == '\0') {
        return "it is not etcd:HOST:PORT/PREFIX";
    }
    if (memchr(endpoint, ':', (size_t)(slash - endpoint)) == NULL) {
        return "the port is missing: etcd:HOST:PORT/PREFIX";
    }
    bool fits = (size_t)(slash - endpoint) < PP_ETCD_VALUE_BYTES &&
                strlen(slash) + 1 < PP_ETCD_PREFIX_BYTES;
    return fits ? NULL : "it is too long";
}

enum pp_status an_registration_new(const struct an_registration_config *config,
                                   struct an_registration **registration_out)
{
    char endpoint[PP_ETCD_VALUE_BYTES], prefix[PP_ETCD_PREFIX_BYTES];
    char value[PP_ETCD_VALUE_BYTES];
    const char *text = config->target + strlen(SCHEME), *slash = strchr(text, '/');
    bool ended = slash[strlen(slash) - 1] == '/';
    snprintf(endpoint, sizeof(endpoint), "%.*s", (int)(slash - text), text);
    snprintf(prefix, sizeof(prefix), "%s%s", slash, ended ? "" : "/");
    int bytes =
        snprintf(value, sizeof(value), "%s %016" PRIx64, config->advertise, config->incarnation);
    if (bytes < 0 || (size_t)bytes >= sizeof(value) || config->name[0] == '\0') {
        return PP_INVALID_ARGUMENT;
    }
    struct an_registration *registration = calloc(1, sizeof(*registration));
    if (registration == NULL) {
        return PP_MEMORY;
    }
    pthread_mutex_init(&registration->lock, NULL);
    const struct pp_etcd_config etcd = {.transport = config->transport,
                                        .clock = config->clock,
                                        .endpoint = endpoint,
                                        .prefix = prefix,
                                        .name = config->name,
                                        .value = value,
                                        .lease_s = config->lease_s};
    enum pp_status status = pp_etcd_new(&etcd, &registration->etcd);
    if (status != PP_OK) {
        an_registration_destroy(registration);
        return status;
    }
    *registration_out = registration;
    return PP_OK;
}

void an_registration_destroy(struct an_registration *registration)
{
    if (registration == NULL) {
        return;
    }
    pp_etcd_destroy(registration->etcd);
    pthread_mutex_destroy(&registration->lock);
    free(registration);
}

uint64_t an_registration_tick(struct an_registration *registration, uint64_t now_us)
{
    const char *detail;
    if (atomic_load(&registration->leave) && !registration->leaving) {
        registration->leaving = true;
        pp_etcd_leave(registration->etcd);
    }
    uint64_t next_us = pp_etcd_tick(registration->etcd, now_us);
    enum pp_etcd_claim claim = pp_etcd_claim(registration->etcd, &detail);
    pthread_mutex_lock(&registration->lock);
    registration->claim = claim;
    snprintf(registration->detail, sizeof(registration->detail), "%s", detail);
    pthread_mutex_unlock(&registration->lock);
    atomic_store(&registration->left, pp_etcd_left(registration->etcd));
    return next_us;
}

void an_registration_leave(struct an_registration *registration)
{
    atomic_store(&registration->leave, true);
}

bool an_registration_left(const struct an_registration *registration)
{
    return atomic_load(&registration->left);
}

bool an_registration_fits(struct an_registration *registration, char *detail_out, size_t bytes)
{
    pthread_mutex_lock(&registration->lock);
    bool taken = registration->claim == PP_ETCD_TAKEN;
    snprintf(detail_out, bytes, "%s", registration->detail);
    pthread_mutex_unlock(&registration->lock);
    return !taken;
}
