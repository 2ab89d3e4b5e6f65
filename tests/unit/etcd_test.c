/*
 * The etcd client against an etcd of Debian's: lists are followed, entries kept under leases, one
 * name is one node's, and an etcd that was away is met again. No test waits for a time: each turns
 * the client until what it asks for is so, with a limit that only a failure reaches.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/etcd/etcd.h"
#include "common/rpc/grpc_transport.h"
#include "tests/unit/etcd_process.h"

#define PREFIX   "/pigpen/test/"
#define LIMIT_US 60000000ull
#define CLIENTS  3u

struct client {
    struct pp_etcd *etcd;
    struct pp_etcd_entry entries[PP_ETCD_ENTRIES_MAX];
    uint32_t count, changes;
};

struct world {
    struct etcd_process process;
    struct pp_transport *transport;
    struct pp_clock clock;
    struct client clients[CLIENTS];
};

static void take_list(void *context, const struct pp_etcd_entry *entries, uint32_t count)
{
    struct client *client = context;
    memcpy(client->entries, entries, count * sizeof(*entries));
    client->count = count;
    client->changes++;
}

static int world_begin(void **state)
{
    struct world *world = calloc(1, sizeof(*world));
    struct pp_grpc_config config = {.clock = pp_clock_system()};
    world->clock = config.clock;
    etcd_start(&world->process);
    assert_int_equal(pp_grpc_transport_new(&config, &world->transport), PP_OK);
    *state = world;
    return 0;
}

static int world_end(void **state)
{
    struct world *world = *state;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        pp_etcd_destroy(world->clients[i].etcd);
    }
    world->transport->ops->destroy(world->transport);
    etcd_stop(&world->process);
    free(world);
    return 0;
}

/* A client that watches, and registers where there is a name. */
static struct client *begin(struct world *world, uint32_t index, const char *name,
                            const char *value, uint64_t lease_s)
{
    struct client *client = &world->clients[index];
    const struct pp_etcd_config config = {.transport = world->transport,
                                          .clock = world->clock,
                                          .endpoint = world->process.endpoint,
                                          .prefix = PREFIX,
                                          .retry_us = 10000,
                                          .changed = take_list,
                                          .name = name,
                                          .value = value,
                                          .lease_s = lease_s,
                                          .context = client};
    assert_int_equal(pp_etcd_new(&config, &client->etcd), PP_OK);
    return client;
}

static void turn(struct world *world)
{
    uint64_t now_us = pp_clock_now_us(&world->clock), next_us = now_us + 20000;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        if (world->clients[i].etcd != NULL) {
            uint64_t due_us = pp_etcd_tick(world->clients[i].etcd, now_us);
            next_us = due_us < next_us ? due_us : next_us;
        }
    }
    (void)world->transport->ops->poll(world->transport, next_us);
}

#define UNTIL(world, condition)                                                                    \
    do {                                                                                           \
        uint64_t limit_us_ = pp_clock_now_us(&(world)->clock) + LIMIT_US;                          \
        while (!(condition)) {                                                                     \
            turn(world);                                                                           \
            if (pp_clock_now_us(&(world)->clock) > limit_us_) {                                    \
                fail_msg("never: %s", #condition);                                                 \
            }                                                                                      \
        }                                                                                          \
    } while (0)

static bool holds(const struct client *client)
{
    const char *detail;
    return pp_etcd_claim(client->etcd, &detail) == PP_ETCD_HELD;
}

static bool is_taken(const struct client *client)
{
    const char *detail;
    return pp_etcd_claim(client->etcd, &detail) == PP_ETCD_TAKEN;
}

static bool lists(const struct client *client, const char *name, const char *value)
{
    for (uint32_t i = 0; i < client->count; i++) {
        if (strcmp(client->entries[i].name, name) == 0) {
            return strcmp(client->entries[i].value, value) == 0;
        }
    }
    return false;
}

static void entries_are_seen_as_they_come_and_go(void **state)
{
    struct world *world = *state;
    const char *detail;
    struct client *watcher = begin(world, 0, NULL, NULL, 0);
    UNTIL(world, pp_etcd_listed(watcher->etcd, &detail));
    assert_int_equal(watcher->count, 0);
    struct client *b = begin(world, 1, "b", "127.0.0.1:2 beef", 3);
    UNTIL(world, lists(watcher, "b", "127.0.0.1:2 beef") && holds(b));
    struct client *a = begin(world, 2, "a", "127.0.0.1:1 cafe", 3);
    UNTIL(world, watcher->count == 2 && holds(a));
    assert_string_equal(watcher->entries[0].name, "a"); /* by name */
    assert_true(lists(watcher, "a", "127.0.0.1:1 cafe"));
    pp_etcd_leave(b->etcd);
    UNTIL(world, watcher->count == 1 && pp_etcd_left(b->etcd));
    assert_true(lists(watcher, "a", "127.0.0.1:1 cafe"));
    assert_int_equal(pp_etcd_lists(watcher->etcd), 1); /* all but the first came by the watch */
}

static void a_lease_is_kept_alive_past_its_length(void **state)
{
    struct world *world = *state;
    struct client *a = begin(world, 0, "a", "127.0.0.1:1 cafe", 3);
    UNTIL(world, holds(a) && a->count == 1);
    UNTIL(world, pp_etcd_renewals(a->etcd) >= 3 && holds(a)); /* a lease and a half */
    assert_true(lists(a, "a", "127.0.0.1:1 cafe"));
}

/* Two nodes with one id: the first wins until its lease ends, the second says why it waits. */
static void of_two_with_one_name_the_first_wins_until_its_lease_ends(void **state)
{
    struct world *world = *state;
    const char *detail;
    struct client *first = begin(world, 0, "a", "127.0.0.1:1 cafe", 3);
    UNTIL(world, holds(first));
    struct client *second = begin(world, 1, "a", "127.0.0.1:2 beef", 3);
    UNTIL(world, is_taken(second) && lists(second, "a", "127.0.0.1:1 cafe"));
    (void)pp_etcd_claim(second->etcd, &detail);
    assert_non_null(strstr(detail, "a is registered as 127.0.0.1:1 cafe"));
    assert_true(holds(first));
    pp_etcd_destroy(first->etcd); /* as a process that was killed: it says nothing */
    first->etcd = NULL;
    UNTIL(world, holds(second));
    UNTIL(world, lists(second, "a", "127.0.0.1:2 beef"));
}

/* A node that was killed and starts again before anybody has missed it: its old entry stands. */
static void one_that_comes_back_waits_while_its_old_entry_lives(void **state)
{
    struct world *world = *state;
    const char *detail;
    struct client *watcher = begin(world, 0, NULL, NULL, 0);
    struct client *before = begin(world, 1, "a", "127.0.0.1:1 cafe", 600);
    UNTIL(world, holds(before) && lists(watcher, "a", "127.0.0.1:1 cafe"));
    pp_etcd_destroy(before->etcd); /* as a process that was killed: it says nothing */
    before->etcd = NULL;
    struct client *again = begin(world, 2, "a", "127.0.0.1:1 beef", 600);
    UNTIL(world, is_taken(again));
    (void)pp_etcd_claim(again->etcd, &detail);
    assert_non_null(strstr(detail, "a is registered as 127.0.0.1:1 cafe"));
    struct client *other = begin(world, 1, "b", "127.0.0.1:2 face", 600);
    UNTIL(world, holds(other) && watcher->count == 2);
    assert_true(is_taken(again) && lists(watcher, "a", "127.0.0.1:1 cafe"));
}

static void etcd_that_was_away_is_met_again(void **state)
{
    struct world *world = *state;
    const char *detail;
    struct client *watcher = begin(world, 0, NULL, NULL, 0);
    struct client *a = begin(world, 1, "a", "127.0.0.1:1 cafe", 1);
    UNTIL(world, holds(a) && lists(watcher, "a", "127.0.0.1:1 cafe"));
    etcd_kill(&world->process);
    /* Away for longer than the lease; the list stands meanwhile. */
    UNTIL(world, !holds(a));
    assert_true(lists(watcher, "a", "127.0.0.1:1 cafe"));
    UNTIL(world, pp_etcd_listed(watcher->etcd, &detail) && detail[0] != '\0');
    etcd_run(&world->process);
    UNTIL(world, holds(a) && pp_etcd_lists(watcher->etcd) >= 2);
    assert_true(pp_etcd_grants(a->etcd) >= 2);
    UNTIL(world, lists(watcher, "a", "127.0.0.1:1 cafe"));
    /* It is watched again: what comes now is seen without another list. */
    UNTIL(world, pp_etcd_listed(watcher->etcd, &detail) && detail[0] == '\0');
    uint64_t lists_before = pp_etcd_lists(watcher->etcd);
    struct client *b = begin(world, 2, "b", "127.0.0.1:2 beef", 3);
    UNTIL(world, lists(watcher, "b", "127.0.0.1:2 beef") && holds(b));
    assert_int_equal(pp_etcd_lists(watcher->etcd), lists_before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(entries_are_seen_as_they_come_and_go, world_begin,
                                        world_end),
        cmocka_unit_test_setup_teardown(a_lease_is_kept_alive_past_its_length, world_begin,
                                        world_end),
        cmocka_unit_test_setup_teardown(of_two_with_one_name_the_first_wins_until_its_lease_ends,
                                        world_begin, world_end),
        cmocka_unit_test_setup_teardown(one_that_comes_back_waits_while_its_old_entry_lives,
                                        world_begin, world_end),
        cmocka_unit_test_setup_teardown(etcd_that_was_away_is_met_again, world_begin, world_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
