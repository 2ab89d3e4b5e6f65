/*
 * Keeping an entry: look, lease, put, keep alive; from the start again when the lease was lost. See
 * etcd.h.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/etcd/internal.h"

static void claim_set(struct pp_etcd *etcd, enum pp_etcd_claim claim, const char *detail)
{
    if (etcd->claim != claim) {
        static const char *const names[] = {"being claimed", "registered", "taken"};
        PP_LOG_INFOF("etcd", names[claim], "key=%s value=\"%s\" detail=\"%s\"", etcd->key,
                     etcd->value, detail);
    }
    etcd->claim = claim;
    snprintf(etcd->claim_detail, sizeof(etcd->claim_detail), "%s", detail);
}

static void claim_failed(struct pp_etcd *etcd, enum pp_status status, const char *message)
{
    char detail[ETCD_DETAIL_BYTES];
    snprintf(detail, sizeof(detail), "etcd at %s: %.200s [%s]", etcd->endpoint, message,
             pp_status_name(status));
    claim_set(etcd, PP_ETCD_CLAIMING, detail);
    etcd->claiming = CLAIM_PAUSED;
    pp_etcd_pause_begin(etcd, &etcd->claim_pause);
}

static bool is_own(const struct pp_etcd *etcd, const Etcdserverpb__KeyValue *kv)
{
    size_t bytes = strlen(etcd->value);
    return kv->value.len == bytes && memcmp(kv->value.data, etcd->value, bytes) == 0;
}

/* Another has the key: it is asked for again later, without a lease meanwhile. */
static void claim_taken(struct pp_etcd *etcd, const Etcdserverpb__KeyValue *kv)
{
    char detail[ETCD_DETAIL_BYTES];
    snprintf(detail, sizeof(detail), "%.63s is registered as %.*s", etcd->name,
             (int)(kv->value.len < 160 ? kv->value.len : 160), (const char *)kv->value.data);
    claim_set(etcd, PP_ETCD_TAKEN, detail);
    etcd->claiming = CLAIM_PAUSED;
    pp_etcd_pause_reset(etcd, &etcd->claim_pause);
    etcd->claim_pause.until_us = etcd_now(etcd) + etcd->config.lease_s * 1000000 / 3;
}

static enum pp_status look_answered(struct pp_etcd *etcd, const ProtobufCMessage *message)
{
    const Etcdserverpb__RangeResponse *answer = (const void *)message;
    etcd->own_entry = answer->n_kvs > 0 && is_own(etcd, answer->kvs[0]);
    if (answer->n_kvs > 0 && !etcd->own_entry) {
        claim_taken(etcd, answer->kvs[0]);
    }
    return PP_OK;
}

static void look_ended(struct pp_etcd *etcd, enum pp_status status, const char *message)
{
    if (status != PP_OK) {
        claim_failed(etcd, status, message);
    } else if (etcd->claiming == CLAIM_LOOKING && !etcd->leaving) {
        Etcdserverpb__LeaseGrantRequest request = ETCDSERVERPB__LEASE_GRANT_REQUEST__INIT;
        request.ttl = (int64_t)etcd->config.lease_s;
        etcd->claiming = CLAIM_GRANTING;
        pp_etcd_call_start(&etcd->grant, "/etcdserverpb.Lease/LeaseGrant", PP_CALL_UNARY,
                           etcd->config.call_timeout_us, &request.base);
    }
}

static void lease_lives(struct pp_etcd *etcd, int64_t seconds)
{
    uint64_t now_us = etcd_now(etcd), left_us = (uint64_t)seconds * 1000000;
    etcd->lease_end_us = now_us + left_us;
    etcd->keep_us = now_us + left_us / 2;
    etcd->silent_us = UINT64_MAX;
}

static enum pp_status grant_answered(struct pp_etcd *etcd, const ProtobufCMessage *message)
{
    const Etcdserverpb__LeaseGrantResponse *answer = (const void *)message;
    if (answer->id == 0 || answer->ttl <= 0) {
        return PP_INTERNAL;
    }
    etcd->lease = answer->id;
    etcd->grants++;
    lease_lives(etcd, answer->ttl);
    return PP_OK;
}

/* Puts the entry if nobody has come between; else says who has it. */
static void put_start(struct pp_etcd *etcd)
{
    Etcdserverpb__TxnRequest request = ETCDSERVERPB__TXN_REQUEST__INIT;
    Etcdserverpb__Compare compare = ETCDSERVERPB__COMPARE__INIT, *compares = &compare;
    Etcdserverpb__RequestOp success = ETCDSERVERPB__REQUEST_OP__INIT, *successes = &success;
    Etcdserverpb__RequestOp failure = ETCDSERVERPB__REQUEST_OP__INIT, *failures = &failure;
    Etcdserverpb__PutRequest put = ETCDSERVERPB__PUT_REQUEST__INIT;
    Etcdserverpb__RangeRequest range = ETCDSERVERPB__RANGE_REQUEST__INIT;
    compare.key = put.key = range.key = etcd_bytes(etcd->key);
    compare.target = ETCDSERVERPB__COMPARE__COMPARE_TARGET__CREATE;
    compare.target_union_case = ETCDSERVERPB__COMPARE__TARGET_UNION_CREATE_REVISION;
    if (etcd->own_entry) {
        compare.target = ETCDSERVERPB__COMPARE__COMPARE_TARGET__VALUE;
        compare.target_union_case = ETCDSERVERPB__COMPARE__TARGET_UNION_VALUE;
        compare.value = etcd_bytes(etcd->value);
    }
    put.value = etcd_bytes(etcd->value);
    put.lease = etcd->lease;
    success.request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_PUT;
    success.request_put = &put;
    failure.request_case = ETCDSERVERPB__REQUEST_OP__REQUEST_REQUEST_RANGE;
    failure.request_range = &range;
    request.n_compare = request.n_success = request.n_failure = 1;
    request.compare = &compares;
    request.success = &successes;
    request.failure = &failures;
    etcd->claiming = CLAIM_PUTTING;
    pp_etcd_call_start(&etcd->put, "/etcdserverpb.KV/Txn", PP_CALL_UNARY,
                       etcd->config.call_timeout_us, &request.base);
}

static void grant_ended(struct pp_etcd *etcd, enum pp_status status, const char *message)
{
    if (status != PP_OK) {
        claim_failed(etcd, status, message);
    } else if (!etcd->leaving) {
        put_start(etcd);
    }
}

static enum pp_status put_answered(struct pp_etcd *etcd, const ProtobufCMessage *message)
{
    const Etcdserverpb__TxnResponse *answer = (const void *)message;
    if (answer->succeeded) {
        etcd->claiming = CLAIM_KEEPING;
        pp_etcd_pause_reset(etcd, &etcd->claim_pause);
        claim_set(etcd, PP_ETCD_HELD, "");
        return PP_OK;
    }
    const Etcdserverpb__RangeResponse *range =
        answer->n_responses == 1 ? answer->responses[0]->response_range : NULL;
    if (range == NULL || range->n_kvs == 0) {
        return PP_ABORTED; /* it went away meanwhile: once more */
    }
    claim_taken(etcd, range->kvs[0]);
    return PP_OK;
}

static void put_ended(struct pp_etcd *etcd, enum pp_status status, const char *message)
{
    if (status != PP_OK) {
        claim_failed(etcd, status, message);
    }
}

static enum pp_status keep_answered(struct pp_etcd *etcd, const ProtobufCMessage *message)
{
    const Etcdserverpb__LeaseKeepAliveResponse *answer = (const void *)message;
    if (answer->id != etcd->lease) {
        return PP_OK; /* of a lease before */
    }
    if (answer->ttl <= 0) {
        return PP_PART_EXPIRED; /* etcd no longer knows the lease */
    }
    pp_etcd_pause_reset(etcd, &etcd->claim_pause);
    lease_lives(etcd, answer->ttl);
    etcd->renewals++;
    return PP_OK;
}

/* A broken stream is opened again while the lease lives; a lease that ended is granted again. */
static void keep_ended(struct pp_etcd *etcd, enum pp_status status, const char *message)
{
    if (etcd->claiming != CLAIM_KEEPING) {
        return;
    }
    if (status == PP_PART_EXPIRED) {
        claim_set(etcd, PP_ETCD_CLAIMING, "the lease was lost");
        etcd->claiming = CLAIM_PAUSED;
        etcd->claim_pause.until_us = 0;
        return;
    }
    PP_LOG_DEBUGF("etcd", "the lease is not kept alive", "key=%s cause=\"%s\" reason=%s", etcd->key,
                  message, pp_status_name(status));
    pp_etcd_pause_begin(etcd, &etcd->claim_pause);
    etcd->keep_us = etcd->claim_pause.until_us;
    etcd->silent_us = UINT64_MAX;
}

static enum pp_status revoke_answered(struct pp_etcd *etcd, const ProtobufCMessage *message)
{
    (void)etcd;
    (void)message;
    return PP_OK;
}

static void revoke_ended(struct pp_etcd *etcd, enum pp_status status, const char *message)
{
    (void)status;
    (void)message;
    etcd->lease = 0; /* or it ends by itself */
}

#define CALL(member, type_name, function)                                                          \
    etcd->member = (struct etcd_call)                                                              \
    {                                                                                              \
        .etcd = etcd, .type = &etcdserverpb__##type_name##__descriptor,                            \
        .answered = function##_answered, .ended = function##_ended                                 \
    }

void pp_etcd_claim_init(struct pp_etcd *etcd)
{
    CALL(look, range_response, look);
    CALL(grant, lease_grant_response, grant);
    CALL(put, txn_response, put);
    CALL(keep, lease_keep_alive_response, keep);
    CALL(revoke, lease_revoke_response, revoke);
    snprintf(etcd->claim_detail, sizeof(etcd->claim_detail), "etcd at %s: no answer yet",
             etcd->endpoint);
    pp_etcd_pause_reset(etcd, &etcd->claim_pause);
}

static void look_start(struct pp_etcd *etcd)
{
    Etcdserverpb__RangeRequest request = ETCDSERVERPB__RANGE_REQUEST__INIT;
    request.key = etcd_bytes(etcd->key);
    etcd->claiming = CLAIM_LOOKING;
    pp_etcd_call_start(&etcd->look, "/etcdserverpb.KV/Range", PP_CALL_UNARY,
                       etcd->config.call_timeout_us, &request.base);
}

static void keep_send(struct pp_etcd *etcd, uint64_t now_us)
{
    Etcdserverpb__LeaseKeepAliveRequest request = ETCDSERVERPB__LEASE_KEEP_ALIVE_REQUEST__INIT;
    request.id = etcd->lease;
    etcd->keep_us = UINT64_MAX;
    etcd->silent_us = now_us + etcd->config.call_timeout_us;
    if (etcd->keep.call != NULL) {
        pp_etcd_call_send(&etcd->keep, &request.base);
    } else {
        pp_etcd_call_start(&etcd->keep, "/etcdserverpb.Lease/LeaseKeepAlive", PP_CALL_BIDI, 0,
                           &request.base);
    }
}

static uint64_t keep_tick(struct pp_etcd *etcd, uint64_t now_us)
{
    if (now_us >= etcd->lease_end_us) {
        claim_set(etcd, PP_ETCD_CLAIMING, "the lease ended while etcd did not answer");
        etcd->claiming = CLAIM_PAUSED;
        etcd->claim_pause.until_us = now_us;
        pp_etcd_call_end(&etcd->keep, PP_CANCELLED);
        return now_us;
    }
    if (now_us >= etcd->silent_us) {
        etcd->silent_us = UINT64_MAX;
        pp_etcd_call_end(&etcd->keep, PP_DEADLINE_EXCEEDED);
    } else if (now_us >= etcd->keep_us && etcd->keep.refused == PP_OK) {
        keep_send(etcd, now_us);
    }
    uint64_t next_us = etcd->silent_us < etcd->keep_us ? etcd->silent_us : etcd->keep_us;
    return next_us < etcd->lease_end_us ? next_us : etcd->lease_end_us;
}

static void leave_tick(struct pp_etcd *etcd)
{
    Etcdserverpb__LeaseRevokeRequest request = ETCDSERVERPB__LEASE_REVOKE_REQUEST__INIT;
    bool busy = etcd->look.call != NULL || etcd->grant.call != NULL || etcd->put.call != NULL;
    if (etcd->lease == 0 || etcd->revoke.call != NULL || busy) {
        return;
    }
    request.id = etcd->lease;
    etcd->claiming = CLAIM_PAUSED;
    pp_etcd_call_end(&etcd->keep, PP_CANCELLED);
    pp_etcd_call_start(&etcd->revoke, "/etcdserverpb.Lease/LeaseRevoke", PP_CALL_UNARY,
                       etcd->config.call_timeout_us, &request.base);
}

uint64_t pp_etcd_claim_tick(struct pp_etcd *etcd, uint64_t now_us)
{
    if (etcd->config.name == NULL) {
        return UINT64_MAX;
    }
    if (etcd->leaving) {
        leave_tick(etcd);
        return UINT64_MAX;
    }
    if (etcd->claiming == CLAIM_KEEPING) {
        return keep_tick(etcd, now_us);
    }
    if (etcd->claiming != CLAIM_PAUSED || etcd->keep.call != NULL) {
        return UINT64_MAX;
    }
    if (now_us >= etcd->claim_pause.until_us) {
        look_start(etcd);
        return UINT64_MAX;
    }
    return etcd->claim_pause.until_us;
}

void pp_etcd_leave(struct pp_etcd *etcd)
{
    etcd->leaving = true;
    claim_set(etcd, PP_ETCD_CLAIMING, "given up");
}

bool pp_etcd_left(const struct pp_etcd *etcd)
{
    bool busy = etcd->look.call != NULL || etcd->grant.call != NULL || etcd->put.call != NULL;
    return etcd->leaving && etcd->lease == 0 && !busy;
}
