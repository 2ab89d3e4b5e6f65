/*
 * What the files of common/etcd share. It refuses to be included from outside the folder.
 */
#ifndef PIGPEN_COMMON_ETCD_INTERNAL_H
#define PIGPEN_COMMON_ETCD_INTERNAL_H

#include "common/etcd/etcd.h"
#include "common/rpc/codec.h"
#include "etcd/etcd.pb-c.h"

#define ETCD_KEY_BYTES    (PP_ETCD_PREFIX_BYTES + PP_ETCD_NAME_BYTES)
#define ETCD_DETAIL_BYTES 320u

/* One call at a time of a kind. A call that ends calls `ended` once; unary answers come before. */
struct etcd_call {
    struct pp_etcd *etcd;
    struct pp_call *call; /* NULL: none runs */
    const ProtobufCMessageDescriptor *type;
    bool unary, answered_once;
    enum pp_status refused; /* why this side ended it; PP_OK: it did not */
    enum pp_status (*answered)(struct pp_etcd *etcd, const ProtobufCMessage *answer);
    void (*ended)(struct pp_etcd *etcd, enum pp_status status, const char *message);
};

/* Pauses that double. */
struct etcd_pause {
    uint64_t until_us, wait_us;
};

enum etcd_watching { WATCH_PAUSED, WATCH_LISTING, WATCH_FOLLOWING };
enum etcd_claiming { CLAIM_PAUSED, CLAIM_LOOKING, CLAIM_GRANTING, CLAIM_PUTTING, CLAIM_KEEPING };

struct pp_etcd {
    struct pp_etcd_config config;
    char endpoint[PP_ETCD_VALUE_BYTES], prefix[PP_ETCD_PREFIX_BYTES];
    char name[PP_ETCD_NAME_BYTES], value[PP_ETCD_VALUE_BYTES], key[ETCD_KEY_BYTES];
    struct pp_channel *channel;
    struct pp_codec_arena arena;
    bool closing;

    struct etcd_call range, watch;
    enum etcd_watching watching;
    struct etcd_pause watch_pause;
    int64_t revision; /* of the list */
    uint64_t relist_us, lists;
    bool listed;
    char watch_detail[ETCD_DETAIL_BYTES];
    struct pp_etcd_entry entries[PP_ETCD_ENTRIES_MAX];
    uint32_t entry_count;

    struct etcd_call look, grant, put, keep, revoke;
    enum etcd_claiming claiming;
    enum pp_etcd_claim claim;
    struct etcd_pause claim_pause;
    bool own_entry; /* the key has our value, of a lease before */
    bool leaving;
    int64_t lease;
    uint64_t lease_end_us, keep_us, silent_us, grants,
        renewals; /* silent_us: when an answer is overdue */
    char claim_detail[ETCD_DETAIL_BYTES];
};

/* etcd_call.c. timeout_us 0: none. A failure to start is told by `ended`. */
void pp_etcd_call_start(struct etcd_call *call, const char *path, enum pp_call_kind kind,
                        uint64_t timeout_us, const ProtobufCMessage *request);
/* Another message on a stream. */
void pp_etcd_call_send(struct etcd_call *call, const ProtobufCMessage *request);
/* Ends it with this status, if it runs; `ended` follows. */
void pp_etcd_call_end(struct etcd_call *call, enum pp_status status);

void pp_etcd_pause_begin(struct pp_etcd *etcd, struct etcd_pause *pause);
void pp_etcd_pause_reset(struct pp_etcd *etcd, struct etcd_pause *pause);
static inline uint64_t etcd_now(const struct pp_etcd *etcd)
{
    return pp_clock_now_us(&etcd->config.clock);
}
static inline ProtobufCBinaryData etcd_bytes(const char *text)
{
    return (ProtobufCBinaryData){__builtin_strlen(text), (uint8_t *)(uintptr_t)text};
}

/* etcd_watch.c and etcd_claim.c: set up, and do what is due; when next. */
void pp_etcd_watch_init(struct pp_etcd *etcd);
uint64_t pp_etcd_watch_tick(struct pp_etcd *etcd, uint64_t now_us);
void pp_etcd_claim_init(struct pp_etcd *etcd);
uint64_t pp_etcd_claim_tick(struct pp_etcd *etcd, uint64_t now_us);

#endif
