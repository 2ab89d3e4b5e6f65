/*
 * Rows read back from nodes: they are the rows that were handed over, whichever way they are cut
 * over parts, and nothing that does not fit the request is taken for them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu-worker/remote/read.h"
#include "tests/unit/remote_fake.h"

#define ROW_FLOATS (4 * FAKE_DIM) /* one token, all kv heads */
#define TOKENS     40u
#define LAYER      2u

struct world {
    struct fake_net *net;
    struct gw_remote *remote;
    struct gw_remote_sequence *sequence;
    float k[TOKENS * ROW_FLOATS], v[TOKENS * ROW_FLOATS];
};

static struct world *world_of(uint32_t nodes, enum gw_shard shard, uint32_t replicas)
{
    struct world *world = calloc(1, sizeof(*world));
    struct gw_remote_config config;
    struct gw_remote_sequence_config sequence = fake_sequence_config(TOKENS);
    world->net = fake_net_new();
    fake_remote_config(world->net, nodes, shard, &config);
    config.replicas = replicas;
    assert_int_equal(gw_remote_new(&config, &world->remote), PP_OK);
    assert_int_equal(gw_remote_sequence_open(world->remote, &sequence, &world->sequence), PP_OK);
    for (uint32_t i = 0; i < TOKENS * ROW_FLOATS; ++i) {
        world->k[i] = (float)(2 * i);
        world->v[i] = (float)(2 * i + 1);
    }
    assert_int_equal(gw_remote_append(world->sequence, LAYER, 0, TOKENS, world->k, world->v, true),
                     PP_OK);
    return world;
}

static struct world *world_new(uint32_t nodes, enum gw_shard shard)
{
    return world_of(nodes, shard, 1);
}

static void world_free(struct world *world)
{
    gw_remote_sequence_close(world->sequence);
    gw_remote_destroy(world->remote);
    assert_int_equal(world->net->calls_open, 0);
    free(world->net);
    free(world);
}

static void check_read(struct world *world, uint64_t start, uint32_t count)
{
    static float k[TOKENS * ROW_FLOATS], v[TOKENS * ROW_FLOATS];
    memset(k, 0xff, sizeof(k));
    memset(v, 0xff, sizeof(v));
    assert_int_equal(gw_remote_read(world->sequence, LAYER, start, count, k, v), PP_OK);
    size_t bytes = (size_t)count * ROW_FLOATS * sizeof(float);
    assert_memory_equal(k, world->k + start * ROW_FLOATS, bytes);
    assert_memory_equal(v, world->v + start * ROW_FLOATS, bytes);
}

static void rows_come_back_as_they_were_handed_over(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= FAKE_NODES; ++nodes) {
        for (int shard = GW_SHARD_TOKENS; shard <= GW_SHARD_KV_HEADS; ++shard) {
            struct world *world = world_new(nodes, (enum gw_shard)shard);
            check_read(world, 0, TOKENS);
            check_read(world, 0, 1);
            check_read(world, TOKENS - 1, 1);
            check_read(world, 11, 19); /* over borders of parts */
            check_read(world, 19, 2);
            world_free(world);
        }
    }
}

static void rows_that_were_never_handed_over_are_out_of_range(void **state)
{
    (void)state;
    float k[ROW_FLOATS], v[ROW_FLOATS];
    struct world *world = world_new(2, GW_SHARD_TOKENS);
    struct gw_remote_sequence *sequence = world->sequence;
    assert_int_equal(gw_remote_read(sequence, LAYER, TOKENS, 1, k, v), PP_OUT_OF_RANGE);
    assert_int_equal(gw_remote_read(sequence, LAYER, UINT64_MAX, 2, k, v), PP_OUT_OF_RANGE);
    assert_int_equal(gw_remote_read(sequence, LAYER, 0, 0, k, v), PP_OUT_OF_RANGE);
    assert_int_equal(gw_remote_read(sequence, LAYER + 1, 0, 1, k, v), PP_OUT_OF_RANGE);
    assert_int_equal(gw_remote_read(sequence, FAKE_LAYERS, 0, 1, k, v), PP_OUT_OF_RANGE);
    check_read(world, 0, TOKENS); /* and the sequence goes on */
    world_free(world);
}

/* Reads from nodes of which the second answers in this mode. */
static void check_refused(enum fake_mode mode, enum pp_status expected, const char *words)
{
    static float k[TOKENS * ROW_FLOATS], v[TOKENS * ROW_FLOATS];
    struct world *world = world_new(2, GW_SHARD_TOKENS);
    world->net->nodes[1].read_mode = mode;
    assert_int_equal(gw_remote_read(world->sequence, LAYER, 0, TOKENS, k, v), expected);
    const char *error = gw_remote_error(world->sequence);
    if (strstr(error, words) == NULL || strstr(error, "node b") == NULL) {
        fail_msg("'%s' is not in: %s", words, error);
    }
    world_free(world);
}

static void rows_that_do_not_fit_the_request_end_the_sequence(void **state)
{
    (void)state;
    check_refused(FAKE_OTHER_INCARNATION, PP_INCARNATION_CHANGED, "incarnation");
    check_refused(FAKE_OTHER_LAYER, PP_INTERNAL, "other rows");
    check_refused(FAKE_OTHER_START, PP_INTERNAL, "other rows");
    check_refused(FAKE_TOO_MANY, PP_INTERNAL, "other rows");
    check_refused(FAKE_SHORT_VECTOR, PP_INTERNAL, "another size");
    check_refused(FAKE_LONG_OFFSET, PP_INTERNAL, "another size");
    check_refused(FAKE_BAD_SUM, PP_CHECKSUM, "checksum");
    check_refused(FAKE_EARLY_END, PP_INTERNAL, "ended early");
}

static void node_that_falls_silent_ends_the_read_at_its_deadline(void **state)
{
    (void)state;
    check_refused(FAKE_SILENT, PP_DEADLINE_EXCEEDED, "read");
}

/* The others know of the loss, and go on. */
static void a_replica_is_read_where_the_first_node_fails(void **state)
{
    (void)state;
    for (uint32_t failing = 0; failing < FAKE_NODES; ++failing) {
        struct world *world = world_of(FAKE_NODES, GW_SHARD_TOKENS, 2);
        world->net->nodes[failing].read_mode = FAKE_BAD_SUM;
        check_read(world, 0, TOKENS);
        assert_string_equal(gw_remote_error(world->sequence), "");
        world_free(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back_as_they_were_handed_over),
        cmocka_unit_test(rows_that_were_never_handed_over_are_out_of_range),
        cmocka_unit_test(rows_that_do_not_fit_the_request_end_the_sequence),
        cmocka_unit_test(node_that_falls_silent_ends_the_read_at_its_deadline),
        cmocka_unit_test(a_replica_is_read_where_the_first_node_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
