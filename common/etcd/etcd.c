/*
 * An etcd client as a whole: made, ticked, asked, ended. See etcd.h. It refuses to know what the
 * entries mean.
 */
#include "common/etcd/etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/etcd/internal.h"

#define ARENA_BYTES     (1u << 20)
#define CALL_TIMEOUT_US 2000000u
#define RETRY_US        200000u
#define RETRY_GROWTH    25u
#define RELIST_US       30000000u
#define LEASE_S         10u

static bool copy_text(char *out, size_t capacity, const char *text)
{
    int bytes = snprintf(out, capacity, "%s", text != NULL ? text : "");
    return bytes >= 0 && (size_t)bytes < capacity;
}

static enum pp_status take_config(struct pp_etcd *etcd, const struct pp_etcd_config *config)
{
    etcd->config = *config;
    bool fits = copy_text(etcd->endpoint, sizeof(etcd->endpoint), config->endpoint) &&
                copy_text(etcd->prefix, sizeof(etcd->prefix), config->prefix) &&
                copy_text(etcd->name, sizeof(etcd->name), config->name) &&
                copy_text(etcd->value, sizeof(etcd->value), config->value);
    if (!fits || etcd->endpoint[0] == '\0' || etcd->prefix[0] == '\0') {
        return PP_INVALID_ARGUMENT;
    }
    snprintf(etcd->key, sizeof(etcd->key), "%s%s", etcd->prefix, etcd->name);
    struct pp_etcd_config *own = &etcd->config;
    own->call_timeout_us = own->call_timeout_us == 0 ? CALL_TIMEOUT_US : own->call_timeout_us;
    own->retry_us = own->retry_us == 0 ? RETRY_US : own->retry_us;
    own->relist_us = own->relist_us == 0 ? RELIST_US : own->relist_us;
    own->lease_s = own->lease_s == 0 ? LEASE_S : own->lease_s;
    return PP_OK;
}

enum pp_status pp_etcd_new(const struct pp_etcd_config *config, struct pp_etcd **etcd_out)
{
    struct pp_etcd *etcd = calloc(1, sizeof(*etcd));
    if (etcd == NULL) {
        return PP_MEMORY;
    }
    enum pp_status status = take_config(etcd, config);
    if (status == PP_OK) {
        status = pp_codec_arena_init(&etcd->arena, ARENA_BYTES);
    }
    if (status == PP_OK) {
        status = config->transport->ops->channel_open(
            config->transport, etcd->endpoint, PP_CHANNEL_LATENCY, config->tls, &etcd->channel);
    }
    if (status != PP_OK) {
        pp_etcd_destroy(etcd);
        return status;
    }
    pp_etcd_watch_init(etcd);
    pp_etcd_claim_init(etcd);
    *etcd_out = etcd;
    return PP_OK;
}

void pp_etcd_destroy(struct pp_etcd *etcd)
{
    if (etcd == NULL) {
        return;
    }
    etcd->closing = true;
    if (etcd->channel != NULL) {
        etcd->config.transport->ops->channel_close(etcd->channel);
    }
    pp_codec_arena_deinit(&etcd->arena);
    free(etcd);
}

uint64_t pp_etcd_tick(struct pp_etcd *etcd, uint64_t now_us)
{
    uint64_t watch_us = pp_etcd_watch_tick(etcd, now_us);
    uint64_t claim_us = pp_etcd_claim_tick(etcd, now_us);
    return watch_us < claim_us ? watch_us : claim_us;
}

void pp_etcd_pause_begin(struct pp_etcd *etcd, struct etcd_pause *pause)
{
    uint64_t most_us = etcd->config.retry_us * RETRY_GROWTH;
    pause->until_us = etcd_now(etcd) + pause->wait_us;
    pause->wait_us = 2 * pause->wait_us < most_us ? 2 * pause->wait_us : most_us;
}

void pp_etcd_pause_reset(struct pp_etcd *etcd, struct etcd_pause *pause)
{
    pause->until_us = 0;
    pause->wait_us = etcd->config.retry_us;
}

enum pp_etcd_claim pp_etcd_claim(const struct pp_etcd *etcd, const char **detail_out)
{
    *detail_out = etcd->claim_detail;
    return etcd->claim;
}

bool pp_etcd_listed(const struct pp_etcd *etcd, const char **detail_out)
{
    *detail_out = etcd->watch_detail;
    return etcd->listed;
}

uint64_t pp_etcd_lists(const struct pp_etcd *etcd)
{
    return etcd->lists;
}

uint64_t pp_etcd_grants(const struct pp_etcd *etcd)
{
    return etcd->grants;
}

uint64_t pp_etcd_renewals(const struct pp_etcd *etcd)
{
    return etcd->renewals;
}
