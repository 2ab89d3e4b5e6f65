/*
 * Where the list of nodes comes from: what can be meant, files that change under the worker's feet,
 * and names that are resolved. The last good list always stands.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu-worker/membership/membership.h"

#define PERIOD_US 1000000u
#define LIMIT_US  60000000ull

static void check_source(const char *source, enum gw_membership_kind kind, const char *words)
{
    char fault[400] = "";
    enum gw_membership_kind found;
    enum pp_status status = gw_membership_check(source, &found, fault, sizeof(fault));
    assert_int_equal(found, kind);
    assert_int_equal(status, words == NULL ? PP_OK : PP_INVALID_ARGUMENT);
    if (words != NULL && strstr(fault, words) == NULL) {
        fail_msg("'%s' is not in: %s", words, fault);
    }
}

static void sources_are_told_apart_and_checked(void **state)
{
    (void)state;
    check_source("a=host:1,b=[::1]:2", GW_MEMBERSHIP_STATIC, NULL);
    check_source("a=host", GW_MEMBERSHIP_STATIC, "port is missing");
    check_source("file:/etc/nodes", GW_MEMBERSHIP_FILE, NULL);
    check_source("file:", GW_MEMBERSHIP_FILE, "path is missing");
    check_source("dns:nodes.local:7450", GW_MEMBERSHIP_DNS, NULL);
    check_source("dns:nodes.local", GW_MEMBERSHIP_DNS, "port is missing");
    check_source("dns:a=b:1", GW_MEMBERSHIP_DNS, "a host is a name");
    check_source("dns:nodes:1/x", GW_MEMBERSHIP_DNS, "dns:NAME:PORT");
    check_source("etcd:10.0.0.1:2379/pigpen", GW_MEMBERSHIP_ETCD, NULL);
    check_source("etcd:10.0.0.1:2379", GW_MEMBERSHIP_ETCD, "prefix of the entries is missing");
    check_source("etcd:10.0.0.1:2379/", GW_MEMBERSHIP_ETCD, "prefix of the entries is missing");
    check_source("etcd:10.0.0.1/pigpen", GW_MEMBERSHIP_ETCD, "port is missing");
}

struct world {
    char path[64], beside[80];
    struct gw_membership *membership;
    struct gw_members members;
    struct pp_stats stats;
    uint64_t now_us;
};

static uint64_t now(void *context)
{
    return ((struct world *)context)->now_us;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static struct world *file_world(const char *text)
{
    struct world *world = calloc(1, sizeof(*world));
    char source[96];
    snprintf(world->path, sizeof(world->path), "/tmp/pigpen_nodes.XXXXXX");
    int file = mkstemp(world->path);
    assert_true(file >= 0);
    close(file);
    write_file(world->path, text);
    snprintf(world->beside, sizeof(world->beside), "%s.new", world->path);
    snprintf(source, sizeof(source), "file:%s", world->path);
    world->now_us = 1000000;
    assert_int_equal(pp_stats_init(&world->stats, 4), PP_OK);
    const struct gw_membership_config config = {.source = source,
                                                .clock = {.now_us = now, .context = world},
                                                .period_us = PERIOD_US,
                                                .stats = &world->stats};
    assert_int_equal(gw_membership_new(&config, &world->membership), PP_OK);
    return world;
}

static void world_free(struct world *world)
{
    gw_membership_destroy(world->membership);
    pp_stats_deinit(&world->stats);
    (void)unlink(world->path);
    free(world);
}

static double empty_lists(const struct world *world)
{
    return pp_stat_value(&world->stats.series[0]);
}

/* Looks once; whether there is another list. */
static bool look(struct world *world)
{
    world->now_us = gw_membership_tick(world->membership, world->now_us);
    return gw_membership_take(world->membership, &world->members);
}

static void has_problem(struct world *world, const char *words)
{
    char problem[400];
    gw_membership_problem(world->membership, problem, sizeof(problem));
    if (strstr(problem, words) == NULL || (words[0] == '\0') != (problem[0] == '\0')) {
        fail_msg("'%s' is not in: %s", words, problem);
    }
}

static void a_file_is_read_again_when_it_changes(void **state)
{
    (void)state;
    struct world *world = file_world("# nodes\n\n  a=host:1 # first\r\nb=host:2");
    assert_true(look(world));
    assert_int_equal(world->members.count, 2);
    assert_string_equal(world->members.nodes[0].name, "a");
    assert_string_equal(world->members.nodes[0].address, "host:1");
    assert_string_equal(world->members.nodes[1].address, "host:2");
    assert_false(look(world)); /* nothing new */
    write_file(world->path, "a=host:1\nb=host:2\nc=host:3\n");
    assert_true(look(world));
    assert_int_equal(world->members.count, 3);
    write_file(world->beside, "c=host:3\n");
    assert_int_equal(rename(world->beside, world->path), 0); /* as configuration managers do */
    assert_true(look(world));
    assert_int_equal(world->members.count, 1);
    world_free(world);
}

static void a_list_without_nodes_replaces_none(void **state)
{
    (void)state;
    struct world *world = file_world("# nobody yet\n");
    (void)look(world); /* nothing to keep: nobody is waited for */
    has_problem(world, "");
    assert_true(empty_lists(world) == 0);
    write_file(world->path, "a=host:1\nb=host:2\n");
    assert_true(look(world));
    write_file(world->path, "");
    assert_false(look(world));
    has_problem(world, "names no node");
    assert_true(empty_lists(world) >= 1);
    write_file(world->path, "# all of them gone\n\n");
    assert_false(look(world));
    has_problem(world, "names no node");
    write_file(world->path, "a=host:1\nb=host:2\n");
    assert_false(look(world)); /* the list that stood all the time */
    has_problem(world, "");
    write_file(world->path, "b=host:2\n");
    assert_true(look(world));
    assert_int_equal(world->members.count, 1);
    world_free(world);
}

static void a_line_with_a_fault_is_named_and_the_last_list_stands(void **state)
{
    (void)state;
    struct world *world = file_world("a=host:1\n");
    assert_true(look(world));
    write_file(world->path, "a=host:1\n# b\nb=host\nc=host:3\n");
    assert_false(look(world));
    has_problem(world, "line 3: 'b=host': the port is missing");
    write_file(world->path, "a=host:1\na=host:22\n");
    assert_false(look(world));
    has_problem(world, "line 2: two nodes are named 'a'");
    write_file(world->path, "a=host:1\nb=HOST:01\n");
    assert_false(look(world));
    has_problem(world, "line 2: 'a' and 'b' have one address");
    assert_int_equal(unlink(world->path), 0);
    assert_false(look(world));
    has_problem(world, "No such file");
    write_file(world->path, "a=host:1\n");
    assert_false(look(world)); /* the same list as before */
    has_problem(world, "");
    write_file(world->path, "a=host:9\n");
    assert_true(look(world));
    assert_string_equal(world->members.nodes[0].address, "host:9");
    world_free(world);
}

static void what_cannot_be_read_is_no_list(void **state)
{
    (void)state;
    struct world *world = file_world("a=host:1\n");
    assert_true(look(world));
    assert_int_equal(unlink(world->path), 0);
    assert_int_equal(mkdir(world->path, 0700), 0); /* it opens, and every read of it fails */
    assert_false(look(world));
    has_problem(world, "Is a directory");
    assert_int_equal(rmdir(world->path), 0);
    write_file(world->path, "b=host:2\n");
    assert_true(look(world));
    has_problem(world, "");
    world_free(world);
}

static void a_file_that_is_too_large_or_no_text_is_refused(void **state)
{
    (void)state;
    struct world *world = file_world("a=host:1\n");
    static char text[70000];
    assert_true(look(world));
    memset(text, '\n', sizeof(text) - 1);
    write_file(world->path, text);
    assert_false(look(world));
    has_problem(world, "larger than 64 KiB");
    FILE *file = fopen(world->path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite("a=host:1\0\n", 1, 10, file), 10);
    assert_int_equal(fclose(file), 0);
    assert_false(look(world));
    has_problem(world, "no text");
    world_free(world);
}

/* Gives the resolver's thread its time. */
static bool resolved(struct gw_membership *membership, struct gw_members *members, bool problem)
{
    struct pp_clock clock = pp_clock_system();
    uint64_t limit_us = pp_clock_now_us(&clock) + LIMIT_US;
    char said[400] = "";
    while (pp_clock_now_us(&clock) < limit_us) {
        gw_membership_problem(membership, said, sizeof(said));
        if (problem ? said[0] != '\0' : gw_membership_take(membership, members)) {
            return true;
        }
        (void)sched_yield();
    }
    return false;
}

static void addresses_behind_a_name_are_nodes(void **state)
{
    (void)state;
    struct gw_membership *membership;
    struct gw_members members;
    struct gw_membership_config config = {.source = "dns:127.0.0.1:7450",
                                          .clock = pp_clock_system()};
    assert_int_equal(gw_membership_new(&config, &membership), PP_OK);
    assert_true(resolved(membership, &members, false));
    assert_int_equal(members.count, 1);
    assert_string_equal(members.nodes[0].name, "127.0.0.1:7450");
    assert_string_equal(members.nodes[0].address, "127.0.0.1:7450");
    gw_membership_destroy(membership);
    config.source = "dns:[::1]:7450";
    assert_int_equal(gw_membership_new(&config, &membership), PP_OK);
    assert_true(resolved(membership, &members, false));
    assert_string_equal(members.nodes[0].address, "[::1]:7450");
    gw_membership_destroy(membership);
    config.source = "dns:no such name:7450";
    assert_int_equal(gw_membership_new(&config, &membership), PP_INVALID_ARGUMENT);
    config.source = "dns:-.invalid:7450";
    assert_int_equal(gw_membership_new(&config, &membership), PP_OK);
    assert_true(resolved(membership, &members, true));
    assert_false(gw_membership_take(membership, &members));
    gw_membership_destroy(membership);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_are_told_apart_and_checked),
        cmocka_unit_test(a_file_is_read_again_when_it_changes),
        cmocka_unit_test(a_list_without_nodes_replaces_none),
        cmocka_unit_test(a_line_with_a_fault_is_named_and_the_last_list_stands),
        cmocka_unit_test(what_cannot_be_read_is_no_list),
        cmocka_unit_test(a_file_that_is_too_large_or_no_text_is_refused),
        cmocka_unit_test(addresses_behind_a_name_are_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
