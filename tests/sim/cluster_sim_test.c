/*
 * Clusters of the simulator where one thing happens to many sequences: a node joins while sixty of
 * them grow and are attended, a node stands still for half a minute in the middle of an attend.
 * Every node holds its share, what lives stays where it was opened unless its node is lost, and
 * every answer is exact.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "gpu-worker/remote/internal.h"
#include "tests/sim/reference.h"
#include "tests/sim/sim_world.h"

#define SEQUENCES  60u
#define JOINS_AT   30u /* so many are there when the fourth node joins */
#define NODES      4u
#define EXPECTED   96u /* tokens of a sequence: 32 a node, or 24 */
#define TOKENS_MAX 160u
#define Q_HEADS    4u
#define DIM        8u

static const struct pp_shape shape = {.layers = 1,
                                      .q_heads = Q_HEADS,
                                      .kv_heads = 2,
                                      .head_dim = DIM,
                                      .scale = 0.35f,
                                      .kv_dtype = PP_F32};

struct member {
    struct gw_remote_sequence *sequence;
    struct reference reference;
    uint64_t tokens;
    uint32_t part_count; /* as it was opened */
    const struct gw_node *nodes[NODES];
    uint64_t handles[NODES];
};

struct cluster {
    struct sim_world world;
    struct pp_rng rng;
    struct member members[SEQUENCES];
    uint32_t count;
    float q[Q_HEADS * DIM]; /* of the attend at hand */
};

static void grow(struct cluster *cluster, struct member *member, uint32_t count)
{
    uint64_t at = reference_wire(&member->reference, 0, member->tokens);
    reference_draw(&member->reference, &cluster->rng, 0, member->tokens, count);
    assert_int_equal(gw_remote_append(member->sequence, 0, member->tokens, count,
                                      member->reference.wire_k + at, member->reference.wire_v + at,
                                      false),
                     PP_OK);
    member->tokens += count;
}

static struct member *open_next(struct cluster *cluster)
{
    struct member *member = &cluster->members[cluster->count++];
    const struct gw_remote_sequence_config config = {.shape = shape,
                                                     .fingerprint = "simulated",
                                                     .fingerprint_bytes = 9,
                                                     .estimator = {.kind = PP_EXACT},
                                                     .hash_seed = 1,
                                                     .tokens_expected = EXPECTED};
    reference_init(&member->reference, &shape, TOKENS_MAX);
    assert_int_equal(gw_remote_sequence_open(cluster->world.remote, &config, &member->sequence),
                     PP_OK);
    member->part_count = member->sequence->part_count;
    assert_true(member->part_count <= NODES);
    for (uint32_t i = 0; i < member->part_count; i++) {
        member->nodes[i] = member->sequence->parts[i]->node;
        member->handles[i] = member->sequence->parts[i]->handle;
    }
    grow(cluster, member, EXPECTED);
    return member;
}

static void begin(struct cluster *cluster, struct member *member)
{
    for (uint32_t i = 0; i < Q_HEADS * DIM; i++) {
        cluster->q[i] = (float)pp_rng_normal(&cluster->rng);
    }
    const struct gw_remote_attend attend = {
        .held_tokens = gw_remote_held(member->sequence, 0), .q_rows = 1, .q = cluster->q};
    assert_int_equal(gw_remote_attend_begin(member->sequence, &attend), PP_OK);
}

static void expect_exact(struct cluster *cluster, struct member *member)
{
    float o[Q_HEADS * DIM], lse[Q_HEADS];
    const float *q = cluster->q;
    uint64_t held = gw_remote_held(member->sequence, 0);
    struct gw_remote_answer answer = {.o = o, .lse = lse};
    begin(cluster, member);
    assert_int_equal(gw_remote_attend_wait(member->sequence, &answer), PP_OK);
    for (uint32_t head = 0; head < Q_HEADS; head++) {
        double wanted[DIM];
        double wanted_lse =
            reference_attend(&member->reference, 0, held, head, q + head * DIM, wanted);
        assert_true(held == 0 || fabs((double)lse[head] - wanted_lse) < 1e-4);
        for (uint32_t d = 0; d < DIM; d++) {
            assert_true(fabs((double)o[head * DIM + d] - wanted[d]) < 2e-4);
        }
    }
}

/* What workers do all the time: some of the sequences grow a little and are attended. */
static void load(struct cluster *cluster)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct member *member = &cluster->members[pp_rng_u64(&cluster->rng) % cluster->count];
        uint32_t count = 1 + (uint32_t)(pp_rng_u64(&cluster->rng) % 4);
        if (member->tokens + count <= TOKENS_MAX) {
            grow(cluster, member, count);
        }
        gw_remote_maintain(member->sequence);
        expect_exact(cluster, member);
    }
}

/* Each of `nodes` nodes has an even share of what was expected; the last has the growth too. */
static void expect_shares(const struct member *member, uint32_t nodes)
{
    assert_int_equal(member->part_count, nodes);
    for (uint32_t i = 0; i < nodes; i++) {
        for (uint32_t j = 0; j < i; j++) {
            assert_ptr_not_equal(member->nodes[i], member->nodes[j]);
        }
        const struct gw_route_part *span =
            &member->sequence->route.parts[member->sequence->parts[i]->index];
        assert_int_equal(span->token_begin % (EXPECTED / nodes), 0);
        assert_true(atomic_load(&member->sequence->parts[i]->acked[0]) >= EXPECTED / nodes);
    }
}

/* Everything is on the node, and under the handle, where it was opened. */
static void expect_unmoved(const struct member *member)
{
    assert_int_equal(member->sequence->part_count, member->part_count);
    for (uint32_t i = 0; i < member->part_count; i++) {
        const struct gw_part *part = member->sequence->parts[i];
        assert_ptr_equal(part->node, member->nodes[i]);
        assert_int_equal(part->handle, member->handles[i]);
        assert_false(atomic_load(&part->lost));
    }
}

static struct an_exec_usage usage_of(const struct cluster *cluster, uint32_t node)
{
    struct an_exec_usage usage;
    an_exec_usage(cluster->world.nodes[node].exec, &usage);
    return usage;
}

static void close_all(struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        gw_remote_sequence_close(cluster->members[i].sequence);
        reference_deinit(&cluster->members[i].reference);
    }
    /* What a lost node holds is freed by its lease. */
    sim_world_wait(&cluster->world, SIM_LEASE_US + 5000000);
    for (uint32_t node = 0; node < cluster->world.config.node_count; node++) {
        assert_int_equal(usage_of(cluster, node).parts, 0);
        assert_int_equal(usage_of(cluster, node).kv_bytes, 0);
    }
}

static void a_fourth_node_that_joins_under_load_gets_new_runs_and_no_live_one(void **state)
{
    (void)state;
    static struct cluster cluster;
    const struct sim_world_config config = {
        .net = {.seed = 45, .delay_us_min = 10, .delay_us_max = 200},
        .node_count = NODES,
        .listed_count = NODES - 1,
        .shard = GW_SHARD_TOKENS,
        .replicas = 1,
        .seal_tokens = 64};
    cluster.rng.seed = 45;
    sim_world_init(&cluster.world, &config);
    assert_int_equal(gw_remote_ready(cluster.world.remote, 1000000, NULL, NULL), PP_OK);
    while (cluster.count < JOINS_AT) {
        open_next(&cluster);
        load(&cluster);
    }
    assert_int_equal(usage_of(&cluster, NODES - 1).parts, 0);
    cluster.world.nodes[NODES - 1].listed = true;
    sim_world_update(&cluster.world);
    while (gw_remote_nodes_in_use(cluster.world.remote) < NODES) {
        load(&cluster);
    }
    while (cluster.count < SEQUENCES) {
        open_next(&cluster);
        load(&cluster);
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        struct member *member = &cluster.members[i];
        assert_int_equal(gw_remote_flush(member->sequence), PP_OK);
        assert_int_equal(gw_remote_held(member->sequence, 0), member->tokens);
        expect_shares(member, i < JOINS_AT ? NODES - 1 : NODES);
        expect_unmoved(member);
        expect_exact(&cluster, member);
    }
    for (uint32_t node = 0; node < NODES; node++) {
        bool late = node == NODES - 1;
        assert_int_equal(usage_of(&cluster, node).parts, late ? SEQUENCES - JOINS_AT : SEQUENCES);
    }
    close_all(&cluster);
    sim_world_deinit(&cluster.world);
}

/* After a loss: on the nodes that are left, and handed over again what went with the other. */
static void recover(struct member *member)
{
    assert_int_equal(gw_remote_recover(member->sequence), PP_OK);
    uint64_t from = gw_remote_lacking(member->sequence, 0).begin;
    assert_true(from < member->tokens);
    uint64_t at = reference_wire(&member->reference, 0, from);
    assert_int_equal(gw_remote_append(member->sequence, 0, from, (uint32_t)(member->tokens - from),
                                      member->reference.wire_k + at, member->reference.wire_v + at,
                                      true),
                     PP_OK);
    assert_int_equal(gw_remote_flush(member->sequence), PP_OK);
}

/* Stands still for so long while an attend is on its way: nobody waits for it longer than the
 * deadline, and what it says of that attend when it goes on counts for nothing. The shorter time
 * leaves its connections whole, the longer one breaks them. */
static void stop_node(struct cluster *cluster, uint64_t still_us)
{
    struct sim_world *world = &cluster->world;
    struct pp_transport *stopped = world->nodes[0].transport;
    float o[Q_HEADS * DIM], lse[Q_HEADS];
    struct gw_remote_answer answer = {.o = o, .lse = lse};
    struct member *asked = &cluster->members[0];
    uint64_t stopped_us = pp_sim_net_now_us(world->net);
    begin(cluster, asked);
    pp_sim_pause(stopped, true);
    assert_int_not_equal(gw_remote_attend_wait(asked->sequence, &answer), PP_OK);
    assert_true(pp_sim_net_now_us(world->net) - stopped_us < 2000000);
    assert_non_null(strstr(gw_remote_error(asked->sequence), "node node-0"));
    recover(asked);
    expect_exact(cluster, asked);
    /* Others that lay there fall back as well, whenever they are asked. */
    for (uint32_t i = 1; i < cluster->count; i++) {
        struct member *member = &cluster->members[i];
        begin(cluster, member);
        assert_int_not_equal(gw_remote_attend_wait(member->sequence, &answer), PP_OK);
        recover(member);
        expect_exact(cluster, member);
    }
    assert_int_equal(gw_remote_nodes_in_use(world->remote), world->config.node_count - 1);
    sim_world_wait(world, still_us - (pp_sim_net_now_us(world->net) - stopped_us));
    pp_sim_pause(stopped, false);
    while (gw_remote_nodes_in_use(world->remote) < world->config.node_count) {
        sim_world_wait(world, 100000);
    }
}

static void a_node_that_stands_still_in_an_attend_is_left_and_used_again(void **state)
{
    (void)state;
    static struct cluster cluster;
    const struct sim_world_config config = {
        .net = {.seed = 43, .delay_us_min = 10, .delay_us_max = 200},
        .node_count = 3,
        .listed_count = 3,
        .shard = GW_SHARD_TOKENS,
        .replicas = 1,
        .seal_tokens = 64};
    static const uint64_t still_us[] = {6000000, 30000000};
    for (uint32_t i = 0; i < 2; i++) {
        memset(&cluster, 0, sizeof(cluster));
        cluster.rng.seed = 43;
        sim_world_init(&cluster.world, &config);
        assert_int_equal(gw_remote_ready(cluster.world.remote, 1000000, NULL, NULL), PP_OK);
        while (cluster.count < 3) {
            assert_int_equal(gw_remote_flush(open_next(&cluster)->sequence), PP_OK);
        }
        stop_node(&cluster, still_us[i]);
        for (uint32_t j = 0; j < 3; j++) {
            grow(&cluster, &cluster.members[j], 10);
            assert_int_equal(gw_remote_flush(cluster.members[j].sequence), PP_OK);
            expect_exact(&cluster, &cluster.members[j]);
        }
        struct member *newest = open_next(&cluster); /* over all three again */
        assert_int_equal(gw_remote_flush(newest->sequence), PP_OK);
        expect_shares(newest, 3);
        expect_exact(&cluster, newest);
        close_all(&cluster);
        sim_world_deinit(&cluster.world);
    }
}

static uint64_t hedges(const struct cluster *cluster)
{
    return (uint64_t)pp_stat_value(cluster->world.remote->hedges);
}

/* How long an attend takes while whoever answered last stands still. */
static uint64_t attend_without(struct cluster *cluster, const struct gw_node *still)
{
    struct sim_world *world = &cluster->world;
    struct pp_transport *stopped = world->nodes[still->index].transport;
    uint64_t begun_us = pp_sim_net_now_us(world->net);
    pp_sim_pause(stopped, true);
    expect_exact(cluster, &cluster->members[0]);
    pp_sim_pause(stopped, false);
    return pp_sim_net_now_us(world->net) - begun_us;
}

/* Round trips of some 20 ms: a node is given the time that it is known to need, and one that has
 * not answered yet a good part of the deadline. */
static void replicas_are_asked_too_when_a_node_is_slower_than_it_was(void **state)
{
    (void)state;
    static struct cluster cluster;
    const struct sim_world_config config = {
        .net = {.seed = 44, .delay_us_min = 8000, .delay_us_max = 12000},
        .node_count = 2,
        .listed_count = 2,
        .shard = GW_SHARD_TOKENS,
        .replicas = 2,
        .seal_tokens = 64};
    for (uint32_t learnt = 0; learnt < 2; learnt++) {
        memset(&cluster, 0, sizeof(cluster));
        cluster.rng.seed = 44;
        sim_world_init(&cluster.world, &config);
        for (uint32_t node = 0; node < 2; node++) {
            pp_sim_link_delay(cluster.world.net, "worker", cluster.world.nodes[node].name, 8000,
                              12000);
        }
        assert_int_equal(gw_remote_ready(cluster.world.remote, 1000000, NULL, NULL), PP_OK);
        struct member *member = open_next(&cluster);
        assert_int_equal(gw_remote_flush(member->sequence), PP_OK);
        for (uint32_t i = 0; i < 30 * learnt; i++) {
            expect_exact(&cluster, member);
        }
        assert_int_equal(hedges(&cluster), 0);
        uint64_t took_us = attend_without(&cluster, member->sequence->sets[0].members[0]->node);
        assert_int_not_equal(hedges(&cluster), 0);
        assert_true(took_us < (learnt ? 150000u : 500000u));
        close_all(&cluster);
        sim_world_deinit(&cluster.world);
    }
}

int main(void)
{
    pp_log_configure(PP_LOG_OFF, PP_LOG_TEXT);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fourth_node_that_joins_under_load_gets_new_runs_and_no_live_one),
        cmocka_unit_test(a_node_that_stands_still_in_an_attend_is_left_and_used_again),
        cmocka_unit_test(replicas_are_asked_too_when_a_node_is_slower_than_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
