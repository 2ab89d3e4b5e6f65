/*
 * What an etcd may answer to who follows a list, played by a transport of this file: revisions that
 * were compacted away, events that are older than the list, and entries that cannot be ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/etcd/etcd.h"
#include "etcd/etcd.pb-c.h"

/* One channel, at most one call of a path. */
struct pp_call {
    const char *path;
    struct pp_call_events events;
    void *context;
    Etcdserverpb__WatchRequest *watch; /* what it asks for */
    bool open;
};
struct pp_channel {
    int unused;
};

struct net {
    struct pp_transport transport;
    uint64_t now_us;
    struct pp_channel channel;
    struct pp_call range, watch;
    uint32_t ranges, watches;
};

static struct net net;
static struct pp_etcd_entry entries[PP_ETCD_ENTRIES_MAX];
static uint32_t entry_count;

static uint64_t now(void *context)
{
    (void)context;
    return net.now_us;
}

static enum pp_status channel_open(struct pp_transport *transport, const char *address,
                                   enum pp_channel_kind kind, const struct pp_tls *tls,
                                   struct pp_channel **channel_out)
{
    (void)transport;
    (void)address;
    (void)kind;
    (void)tls;
    *channel_out = &net.channel;
    return PP_OK;
}

static void end_call(struct pp_call *call, enum pp_status status)
{
    struct pp_call_end end = {.status = status, .message = "as the test wants"};
    if (call->open) {
        call->open = false;
        if (call->watch != NULL) {
            etcdserverpb__watch_request__free_unpacked(call->watch, NULL);
            call->watch = NULL;
        }
        call->events.ended(call->context, call, &end);
    }
}

static void channel_close(struct pp_channel *channel)
{
    (void)channel;
    end_call(&net.range, PP_CANCELLED);
    end_call(&net.watch, PP_CANCELLED);
}

static enum pp_status call_start(struct pp_channel *channel, const char *path,
                                 enum pp_call_kind kind, uint64_t deadline_us,
                                 const struct pp_call_events *events, void *context,
                                 struct pp_call **call_out)
{
    (void)channel;
    (void)kind;
    (void)deadline_us;
    bool watch = strcmp(path, "/etcdserverpb.Watch/Watch") == 0;
    struct pp_call *call = watch ? &net.watch : &net.range;
    assert_true(watch || strcmp(path, "/etcdserverpb.KV/Range") == 0);
    assert_false(call->open);
    net.watches += watch ? 1 : 0;
    net.ranges += watch ? 0 : 1;
    *call = (struct pp_call){.path = path, .events = *events, .context = context, .open = true};
    *call_out = call;
    return PP_OK;
}

static enum pp_status call_send(struct pp_call *call, const void *header, size_t header_bytes,
                                const struct pp_payload *payload, bool last)
{
    (void)payload;
    (void)last;
    if (call == &net.watch) {
        call->watch = etcdserverpb__watch_request__unpack(NULL, header_bytes, header);
        assert_non_null(call->watch);
    }
    return PP_OK;
}

static void call_receive(struct pp_call *call)
{
    (void)call;
}

static struct pp_call *cancelled; /* its end is still to be told */

static void call_cancel(struct pp_call *call)
{
    cancelled = call;
}

static const struct pp_transport_ops ops = {.channel_open = channel_open,
                                            .channel_close = channel_close,
                                            .call_start = call_start,
                                            .call_send = call_send,
                                            .call_receive = call_receive,
                                            .call_cancel = call_cancel};

static void keep(struct pp_message *message)
{
    (void)message;
}

static void answer(struct pp_call *call, const ProtobufCMessage *message)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(bytes + 1);
    protobuf_c_message_pack(message, packed);
    struct pp_piece piece = {packed, bytes};
    struct pp_message received = {&piece, 1, bytes, keep};
    call->events.message(call->context, call, &received);
    free(packed);
    if (cancelled != NULL) {
        struct pp_call *ending = cancelled;
        cancelled = NULL;
        end_call(ending, PP_CANCELLED);
    }
}

static ProtobufCBinaryData bytes_of(const char *text)
{
    return (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
}

/* All keys, at a revision: "a" with this value, and what cannot be an entry. */
static void answer_list(int64_t revision, const char *value)
{
    static char long_name[200];
    Etcdserverpb__RangeResponse list = ETCDSERVERPB__RANGE_RESPONSE__INIT;
    Etcdserverpb__ResponseHeader header = ETCDSERVERPB__RESPONSE_HEADER__INIT;
    Etcdserverpb__KeyValue kvs[4], *pointers[4];
    memset(long_name, 'x', sizeof(long_name) - 1);
    memcpy(long_name, "/p/", 3);
    const char *const keys[4] = {"/p/a", "/other", "/p/", long_name};
    for (uint32_t i = 0; i < 4; i++) {
        etcdserverpb__key_value__init(&kvs[i]);
        kvs[i].key = bytes_of(keys[i]);
        kvs[i].value = bytes_of(value);
        pointers[i] = &kvs[i];
    }
    header.revision = revision;
    list.header = &header;
    list.n_kvs = 4;
    list.kvs = pointers;
    answer(&net.range, &list.base);
    end_call(&net.range, PP_OK);
}

static void answer_event(int64_t revision, Etcdserverpb__Event__EventType type, const char *key,
                         const char *value)
{
    Etcdserverpb__WatchResponse response;
    Etcdserverpb__ResponseHeader header = ETCDSERVERPB__RESPONSE_HEADER__INIT;
    Etcdserverpb__Event event = ETCDSERVERPB__EVENT__INIT, *events = &event;
    Etcdserverpb__KeyValue kv = ETCDSERVERPB__KEY_VALUE__INIT;
    etcdserverpb__watch_response__init(&response);
    kv.key = bytes_of(key);
    kv.value = bytes_of(value);
    event.type = type;
    event.kv = &kv;
    header.revision = revision;
    response.header = &header;
    response.n_events = 1;
    response.events = &events;
    answer(&net.watch, &response.base);
}

static void take_list(void *context, const struct pp_etcd_entry *list, uint32_t count)
{
    (void)context;
    memcpy(entries, list, count * sizeof(*list));
    entry_count = count;
}

static struct pp_etcd *begin(void)
{
    struct pp_etcd *etcd;
    memset(&net, 0, sizeof(net));
    net.transport.ops = &ops;
    net.transport.clock = (struct pp_clock){.now_us = now};
    net.now_us = 1000000;
    entry_count = 99;
    const struct pp_etcd_config config = {.transport = &net.transport,
                                          .clock = net.transport.clock,
                                          .endpoint = "etcd:2379",
                                          .prefix = "/p/",
                                          .changed = take_list};
    assert_int_equal(pp_etcd_new(&config, &etcd), PP_OK);
    (void)pp_etcd_tick(etcd, net.now_us);
    assert_true(net.range.open);
    return etcd;
}

static void check_one(const char *value)
{
    assert_int_equal(entry_count, 1);
    assert_string_equal(entries[0].name, "a");
    assert_string_equal(entries[0].value, value);
}

static void events_are_applied_behind_the_list(void **state)
{
    (void)state;
    struct pp_etcd *etcd = begin();
    answer_list(40, "x:1");
    check_one("x:1"); /* what cannot be an entry is left out */
    assert_true(net.watch.open);
    assert_int_equal(net.watch.watch->create_request->start_revision, 41);
    answer_event(40, ETCDSERVERPB__EVENT__EVENT_TYPE__DELETE, "/p/a", "");
    check_one("x:1"); /* older than the list */
    answer_event(41, ETCDSERVERPB__EVENT__EVENT_TYPE__PUT, "/p/b", "y:2");
    assert_int_equal(entry_count, 2);
    answer_event(42, ETCDSERVERPB__EVENT__EVENT_TYPE__DELETE, "/p/b", "");
    answer_event(43, ETCDSERVERPB__EVENT__EVENT_TYPE__PUT, "/p/a", "z:3");
    check_one("z:3");
    answer_event(44, ETCDSERVERPB__EVENT__EVENT_TYPE__DELETE, "/p/none", "");
    check_one("z:3");
    pp_etcd_destroy(etcd);
}

static void a_compacted_revision_makes_it_read_all_again(void **state)
{
    (void)state;
    struct pp_etcd *etcd = begin();
    answer_list(40, "x:1");
    Etcdserverpb__WatchResponse compacted;
    etcdserverpb__watch_response__init(&compacted);
    compacted.canceled = true;
    compacted.compact_revision = 60;
    answer(&net.watch, &compacted.base);
    assert_false(net.watch.open);
    check_one("x:1"); /* it stands meanwhile */
    uint64_t due_us = pp_etcd_tick(etcd, net.now_us);
    assert_true(due_us > net.now_us && due_us < net.now_us + 1000000);
    assert_false(net.range.open);
    net.now_us = due_us;
    (void)pp_etcd_tick(etcd, net.now_us);
    assert_true(net.range.open);
    answer_list(61, "x:9");
    check_one("x:9");
    assert_int_equal(net.watch.watch->create_request->start_revision, 62);
    pp_etcd_destroy(etcd);
}

static void pauses_grow_while_etcd_does_not_answer(void **state)
{
    (void)state;
    struct pp_etcd *etcd = begin();
    uint64_t last_us = 0;
    for (uint32_t i = 0; i < 12; i++) {
        const char *detail;
        end_call(&net.range, PP_UNAVAILABLE);
        assert_false(pp_etcd_listed(etcd, &detail));
        assert_non_null(strstr(detail, "UNAVAILABLE"));
        uint64_t due_us = pp_etcd_tick(etcd, net.now_us);
        assert_true(due_us - net.now_us >= last_us && due_us - net.now_us <= 5000000);
        last_us = due_us - net.now_us;
        net.now_us = due_us;
        (void)pp_etcd_tick(etcd, net.now_us);
        assert_true(net.range.open);
    }
    assert_int_equal(last_us, 5000000);
    assert_int_equal(entry_count, 99); /* nothing was told */
    pp_etcd_destroy(etcd);
}

static void a_list_is_read_again_now_and_then_beside_the_watch(void **state)
{
    (void)state;
    struct pp_etcd *etcd = begin();
    answer_list(40, "x:1");
    net.now_us = pp_etcd_tick(etcd, net.now_us);
    (void)pp_etcd_tick(etcd, net.now_us);
    assert_true(net.range.open && net.watch.open);
    answer_list(50, "x:2");
    check_one("x:2");
    assert_int_equal(net.watches, 1); /* the stream goes on */
    answer_event(49, ETCDSERVERPB__EVENT__EVENT_TYPE__DELETE, "/p/a", "");
    check_one("x:2");
    /* A dead connection is noticed then: both begin again. */
    net.now_us = pp_etcd_tick(etcd, net.now_us);
    (void)pp_etcd_tick(etcd, net.now_us);
    end_call(&net.range, PP_DEADLINE_EXCEEDED);
    assert_ptr_equal(cancelled, &net.watch);
    cancelled = NULL;
    end_call(&net.watch, PP_CANCELLED);
    check_one("x:2");
    pp_etcd_destroy(etcd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_applied_behind_the_list),
        cmocka_unit_test(a_compacted_revision_makes_it_read_all_again),
        cmocka_unit_test(pauses_grow_while_etcd_does_not_answer),
        cmocka_unit_test(a_list_is_read_again_now_and_then_beside_the_watch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
