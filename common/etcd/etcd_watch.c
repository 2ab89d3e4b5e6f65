/*
 * Following a list: read all, then every change behind that revision; when in doubt, read all
 * again. See etcd.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/etcd/internal.h"

/* The end of the range of all keys with the prefix: its last byte raised. A last byte of 0xff does
 * not come: prefixes are text. */
static void range_end(const struct pp_etcd *etcd, char end_out[PP_ETCD_PREFIX_BYTES])
{
    size_t bytes = strlen(etcd->prefix);
    memcpy(end_out, etcd->prefix, bytes + 1);
    end_out[bytes - 1]++;
}

static int by_name(const void *a, const void *b)
{
    const struct pp_etcd_entry *one = a, *other = b;
    return strcmp(one->name, other->name);
}

static void tell(struct pp_etcd *etcd)
{
    qsort(etcd->entries, etcd->entry_count, sizeof(etcd->entries[0]), by_name);
    etcd->config.changed(etcd->config.context, etcd->entries, etcd->entry_count);
}

/* The name of a key under the prefix; false: it is none that fits. */
static bool name_of(const struct pp_etcd *etcd, const Etcdserverpb__KeyValue *kv, char *name_out)
{
    size_t prefix = strlen(etcd->prefix);
    bool right = kv != NULL && kv->key.len > prefix && kv->key.len - prefix < PP_ETCD_NAME_BYTES &&
                 kv->value.len < PP_ETCD_VALUE_BYTES &&
                 memcmp(kv->key.data, etcd->prefix, prefix) == 0 &&
                 memchr(kv->key.data, 0, kv->key.len) == NULL;
    if (right) {
        memcpy(name_out, kv->key.data + prefix, kv->key.len - prefix);
        name_out[kv->key.len - prefix] = '\0';
    }
    return right;
}

static void put_entry(struct pp_etcd *etcd, const Etcdserverpb__KeyValue *kv)
{
    char name[PP_ETCD_NAME_BYTES];
    if (!name_of(etcd, kv, name)) {
        PP_LOG_WARNF("etcd", "an entry that cannot be one is left out", "prefix=%s", etcd->prefix);
        return;
    }
    uint32_t at = 0;
    while (at < etcd->entry_count && strcmp(etcd->entries[at].name, name) != 0) {
        at++;
    }
    if (at == PP_ETCD_ENTRIES_MAX) {
        PP_LOG_WARNF("etcd", "more entries than there may be", "left_out=%s max=%u", name,
                     PP_ETCD_ENTRIES_MAX);
        return;
    }
    etcd->entry_count = at == etcd->entry_count ? at + 1 : etcd->entry_count;
    memcpy(etcd->entries[at].name, name, sizeof(name));
    memcpy(etcd->entries[at].value, kv->value.data, kv->value.len);
    etcd->entries[at].value[kv->value.len] = '\0';
}

static void delete_entry(struct pp_etcd *etcd, const Etcdserverpb__KeyValue *kv)
{
    char name[PP_ETCD_NAME_BYTES];
    for (uint32_t i = 0; name_of(etcd, kv, name) && i < etcd->entry_count; i++) {
        if (strcmp(etcd->entries[i].name, name) == 0) {
            etcd->entries[i] = etcd->entries[--etcd->entry_count];
            return;
        }
    }
}

/* All is read again after a pause; the list stands until then. */
static void watch_failed(struct pp_etcd *etcd, enum pp_status status, const char *message)
{
    char detail[ETCD_DETAIL_BYTES];
    snprintf(detail, sizeof(detail), "etcd at %s: %.200s [%s]", etcd->endpoint, message,
             pp_status_name(status));
    if (!etcd->closing && strcmp(detail, etcd->watch_detail) != 0) {
        PP_LOG_WARNF("etcd", "the list is not followed", "cause=\"%s\"", detail);
    }
    memcpy(etcd->watch_detail, detail, sizeof(detail));
    etcd->watching = WATCH_PAUSED;
    pp_etcd_pause_begin(etcd, &etcd->watch_pause);
    pp_etcd_call_end(&etcd->watch, PP_CANCELLED);
    pp_etcd_call_end(&etcd->range, PP_CANCELLED);
}

static void watch_start(struct pp_etcd *etcd)
{
    char end[PP_ETCD_PREFIX_BYTES];
    Etcdserverpb__WatchRequest request = ETCDSERVERPB__WATCH_REQUEST__INIT;
    Etcdserverpb__WatchCreateRequest create = ETCDSERVERPB__WATCH_CREATE_REQUEST__INIT;
    range_end(etcd, end);
    create.key = etcd_bytes(etcd->prefix);
    create.range_end = etcd_bytes(end);
    create.start_revision = etcd->revision + 1;
    request.request_union_case = ETCDSERVERPB__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST;
    request.create_request = &create;
    etcd->watching = WATCH_FOLLOWING;
    pp_etcd_call_start(&etcd->watch, "/etcdserverpb.Watch/Watch", PP_CALL_BIDI, 0, &request.base);
}

static enum pp_status range_answered(struct pp_etcd *etcd, const ProtobufCMessage *message)
{
    const Etcdserverpb__RangeResponse *answer = (const void *)message;
    if (answer->header == NULL) {
        return PP_INTERNAL;
    }
    etcd->entry_count = 0;
    for (size_t i = 0; i < answer->n_kvs; i++) {
        put_entry(etcd, answer->kvs[i]);
    }
    etcd->revision = answer->header->revision;
    etcd->listed = true;
    etcd->lists++;
    etcd->relist_us = etcd_now(etcd) + etcd->config.relist_us;
    tell(etcd);
    return PP_OK;
}

static void range_ended(struct pp_etcd *etcd, enum pp_status status, const char *message)
{
    if (status == PP_OK && etcd->watch.call == NULL) {
        watch_start(etcd);
    } else if (status == PP_OK) {
        etcd->watching = WATCH_FOLLOWING; /* the stream before goes on */
    } else if (etcd->watching != WATCH_PAUSED) {
        watch_failed(etcd, status, message);
    }
}

static enum pp_status watch_answered(struct pp_etcd *etcd, const ProtobufCMessage *message)
{
    const Etcdserverpb__WatchResponse *answer = (const void *)message;
    if (answer->canceled) {
        /* The revision was compacted away, or etcd says why not. */
        return answer->compact_revision > 0 ? PP_OUT_OF_RANGE : PP_ABORTED;
    }
    if (answer->created) {
        pp_etcd_pause_reset(etcd, &etcd->watch_pause);
        etcd->watch_detail[0] = '\0';
    }
    if (answer->header != NULL && answer->header->revision <= etcd->revision) {
        return PP_OK; /* older than the list that was read since */
    }
    for (size_t i = 0; i < answer->n_events; i++) {
        const Etcdserverpb__Event *event = answer->events[i];
        if (event->type == ETCDSERVERPB__EVENT__EVENT_TYPE__DELETE) {
            delete_entry(etcd, event->kv);
        } else {
            put_entry(etcd, event->kv);
        }
    }
    if (answer->header != NULL && answer->n_events > 0) {
        etcd->revision = answer->header->revision;
    }
    if (answer->n_events > 0) {
        tell(etcd);
    }
    return PP_OK;
}

static void watch_ended(struct pp_etcd *etcd, enum pp_status status, const char *message)
{
    if (etcd->watching != WATCH_PAUSED) {
        watch_failed(etcd, status, status == PP_OK ? "the stream ended" : message);
    }
}

void pp_etcd_watch_init(struct pp_etcd *etcd)
{
    etcd->range = (struct etcd_call){.etcd = etcd,
                                     .type = &etcdserverpb__range_response__descriptor,
                                     .answered = range_answered,
                                     .ended = range_ended};
    etcd->watch = (struct etcd_call){.etcd = etcd,
                                     .type = &etcdserverpb__watch_response__descriptor,
                                     .answered = watch_answered,
                                     .ended = watch_ended};
    snprintf(etcd->watch_detail, sizeof(etcd->watch_detail), "etcd at %s: no answer yet",
             etcd->endpoint);
    pp_etcd_pause_reset(etcd, &etcd->watch_pause);
}

static void range_start(struct pp_etcd *etcd)
{
    char end[PP_ETCD_PREFIX_BYTES];
    Etcdserverpb__RangeRequest request = ETCDSERVERPB__RANGE_REQUEST__INIT;
    range_end(etcd, end);
    request.key = etcd_bytes(etcd->prefix);
    request.range_end = etcd_bytes(end);
    etcd->watching = WATCH_LISTING;
    pp_etcd_call_start(&etcd->range, "/etcdserverpb.KV/Range", PP_CALL_UNARY,
                       etcd->config.call_timeout_us, &request.base);
}

uint64_t pp_etcd_watch_tick(struct pp_etcd *etcd, uint64_t now_us)
{
    if (etcd->config.changed == NULL) {
        return UINT64_MAX;
    }
    bool idle =
        etcd->range.call == NULL && (etcd->watching != WATCH_PAUSED || etcd->watch.call == NULL);
    uint64_t due_us = etcd->watching == WATCH_PAUSED ? etcd->watch_pause.until_us : etcd->relist_us;
    if (idle && now_us >= due_us) {
        range_start(etcd);
        return UINT64_MAX;
    }
    return idle ? due_us : UINT64_MAX;
}
