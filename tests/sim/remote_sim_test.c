/*
 * The worker's remote side against real nodes on a simulated network, by seed: appends, attends and
 * truncates at random while connections break, nodes stall, restart and slow down. After every step
 * an exact attend equals a reference in f64 over exactly the tokens asked, or an error came (laws 1
 * to 3), and nobody waits longer than 2 s for a lost node. When the faults end, everything works
 * again. PIGPEN_SIM_SEED=N runs one seed alone; PIGPEN_SIM_SEEDS=N runs so many of each test.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <signal.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "gpu-worker/remote/internal.h"
#include "tests/sim/reference.h"
#include "tests/sim/sim_world.h"

#define SEEDS_DEFAULT 100u
#define STEPS         40u
#define TOKENS_MAX    700u
#define LAYERS        2u
#define ROWS_MAX      3u
#define HEADS_MAX     6u
#define DIM_MAX       16u
#define TALES         2u
#define TRIES_MAX     20u /* of one step, by recovering */

/* One sequence and what is known of it. */
struct tale {
    struct gw_remote_sequence *sequence; /* NULL: to be opened */
    struct reference reference;
    uint64_t handed;
    uint64_t given[LAYERS]; /* rows of a layer that were handed over, as long as handed or more */
    uint64_t asked;
    uint32_t layer, rows;
    float q[ROWS_MAX * HEADS_MAX * DIM_MAX];
    float o[ROWS_MAX * HEADS_MAX * DIM_MAX];
    float lse[ROWS_MAX * HEADS_MAX];
};

struct run {
    uint64_t seed;
    uint32_t step;
    struct pp_rng rng;
    struct sim_world world;
    struct tale tales[TALES];
    bool faults_may; /* errors are allowed */
    uint32_t answers, recoveries, failures, copies;
};

/* Of jemalloc: worlds come and go by the hundred, their pages may stay. */
const char *malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1";

static struct run *current;
static uint32_t recoveries_total, copies_total;

#define CHECK(condition)                                                                           \
    ((condition) ? (void)0                                                                         \
                 : (print_error("seed %llu step %u: %s (replay: PIGPEN_SIM_SEED=%llu)\n",          \
                                (unsigned long long)current->seed, current->step, #condition,      \
                                (unsigned long long)current->seed),                                \
                    fail()))

/* An assertion of the product or a sanitizer ends the process: which seed was it? */
static void tell_seed(void)
{
    if (current != NULL) {
        (void)fprintf(stderr, "seed %llu step %u (replay: PIGPEN_SIM_SEED=%llu)\n",
                      (unsigned long long)current->seed, current->step,
                      (unsigned long long)current->seed);
    }
}

static void on_abort(int number)
{
    tell_seed();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

/* Of the sanitizers' runtime, where there is one. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static uint64_t draw(struct run *run, uint64_t below)
{
    return pp_rng_u64(&run->rng) % below;
}

/* A sequence that cannot go on: that needs a reason in words, and faults about. */
static bool ended(struct run *run, struct tale *tale, enum pp_status status)
{
    if (!run->faults_may) {
        print_error("%s: %s\n", pp_status_name(status), gw_remote_error(tale->sequence));
    }
    CHECK(run->faults_may);
    CHECK(strstr(gw_remote_error(tale->sequence), "node node-") != NULL);
    gw_remote_sequence_close(tale->sequence);
    tale->sequence = NULL;
    run->failures++;
    return false;
}

/* Hands over again what nodes that were lost took with them; the status of the first call that
 * failed. */
static enum pp_status refill(struct tale *tale)
{
    const struct reference *reference = &tale->reference;
    for (uint32_t layer = 0; layer < LAYERS; ++layer) {
        uint64_t from = gw_remote_lacking(tale->sequence, layer).begin;
        while (from < tale->given[layer]) {
            uint64_t left = tale->given[layer] - from, at = reference_wire(reference, layer, from);
            uint32_t count = left < 100 ? (uint32_t)left : 100;
            PP_TRY(gw_remote_append(tale->sequence, layer, from, count, reference->wire_k + at,
                                    reference->wire_v + at, true));
            from += count;
        }
    }
    return gw_remote_flush(tale->sequence);
}

/* A call's outcome. When it failed because of a lost node the sequence is brought to where it can
 * be tried again: then false with the sequence still there. */
static bool went_well(struct run *run, struct tale *tale, enum pp_status status)
{
    if (status == PP_OK) {
        return true;
    }
    for (uint32_t tries = 0; status != PP_OK; ++tries) {
        CHECK(tries < TRIES_MAX);
        if (gw_remote_recover(tale->sequence) != PP_OK) {
            return ended(run, tale, status);
        }
        run->recoveries++;
        status = refill(tale);
    }
    return false;
}

static bool tale_open(struct run *run, struct tale *tale)
{
    struct gw_remote_sequence_config config = {
        .shape = tale->reference.shape,
        .fingerprint = "simulated",
        .fingerprint_bytes = 9,
        .estimator = {.kind = draw(run, 2) == 0 ? PP_EXACT : PP_LSH, .k = 4, .l = 12, .t = 2},
        .hash_seed = run->seed,
        .tokens_expected = draw(run, 4) == 0 ? 0 : 1 + draw(run, TOKENS_MAX),
    };
    if (config.estimator.kind == PP_EXACT) {
        config.estimator = (struct pp_estimator){.kind = PP_EXACT};
    }
    tale->handed = 0;
    memset(tale->given, 0, sizeof(tale->given));
    enum pp_status status = gw_remote_sequence_open(run->world.remote, &config, &tale->sequence);
    CHECK(status == PP_OK || run->faults_may);
    if (status != PP_OK) {
        tale->sequence = NULL;
    }
    return status == PP_OK;
}

/* One layer's rows, tried until they are handed over or the sequence has ended. */
static bool append_layer(struct run *run, struct tale *tale, uint32_t layer, uint32_t count,
                         bool bulk)
{
    const struct reference *reference = &tale->reference;
    uint64_t at = reference_wire(reference, layer, tale->handed);
    bool well = false;
    reference_draw(&tale->reference, &run->rng, layer, tale->handed, count);
    for (uint32_t tries = 0; !well && tale->sequence != NULL; ++tries) {
        CHECK(tries < TRIES_MAX);
        well = went_well(run, tale,
                         gw_remote_append(tale->sequence, layer, tale->handed, count,
                                          reference->wire_k + at, reference->wire_v + at, bulk));
    }
    tale->given[layer] = tale->handed + count;
    return well;
}

static void op_append(struct run *run, struct tale *tale)
{
    uint32_t count = 1 + (uint32_t)draw(run, draw(run, 4) == 0 ? 150 : 20);
    bool bulk = draw(run, 2) == 0;
    if (tale->handed + count > TOKENS_MAX) {
        return;
    }
    uint32_t first = (uint32_t)draw(run, LAYERS);
    bool well = true;
    for (uint32_t i = 0; i < LAYERS && well; ++i) {
        well = append_layer(run, tale, (first + i) % LAYERS, count, bulk);
    }
    tale->handed += count;
}

static void op_flush(struct run *run, struct tale *tale)
{
    (void)went_well(run, tale, gw_remote_flush(tale->sequence));
    for (uint32_t layer = 0; layer < LAYERS && tale->sequence != NULL; ++layer) {
        CHECK(gw_remote_held(tale->sequence, layer) == tale->handed);
        CHECK(gw_remote_lacking(tale->sequence, layer).begin == tale->handed);
    }
}

/* Recovered from in the middle it is done again before anything is handed over. */
static void op_truncate(struct run *run, struct tale *tale)
{
    uint64_t kept = draw(run, tale->handed + 1);
    enum pp_status status;
    for (uint32_t tries = 0; (status = gw_remote_truncate(tale->sequence, kept)) != PP_OK;
         ++tries) {
        CHECK(tries < TRIES_MAX);
        if (gw_remote_recover(tale->sequence) != PP_OK) {
            (void)ended(run, tale, status);
            return;
        }
        run->recoveries++;
    }
    tale->handed = kept;
    for (uint32_t layer = 0; layer < LAYERS; ++layer) {
        tale->given[layer] = kept;
    }
    (void)went_well(run, tale, refill(tale));
    for (uint32_t layer = 0; layer < LAYERS && tale->sequence != NULL; ++layer) {
        CHECK(gw_remote_held(tale->sequence, layer) == kept);
    }
}

static void op_seal(struct run *run, struct tale *tale)
{
    (void)went_well(run, tale, gw_remote_seal(tale->sequence, NULL, NULL));
}

static bool attend_begin(struct run *run, struct tale *tale)
{
    const struct pp_shape *shape = &tale->reference.shape;
    tale->layer = (uint32_t)draw(run, LAYERS);
    tale->rows = 1 + (uint32_t)draw(run, ROWS_MAX);
    uint64_t held = gw_remote_held(tale->sequence, tale->layer);
    CHECK(held <= tale->handed);
    tale->asked = draw(run, 2) == 0 ? held : draw(run, held + 1);
    for (uint32_t i = 0; i < tale->rows * shape->q_heads * shape->head_dim; ++i) {
        tale->q[i] = (float)pp_rng_normal(&run->rng);
    }
    struct gw_remote_attend attend = {.errors = true,
                                      .layer = tale->layer,
                                      .held_tokens = tale->asked,
                                      .q_rows = tale->rows,
                                      .q = tale->q,
                                      .estimator = {.kind = PP_EXACT}};
    return went_well(run, tale, gw_remote_attend_begin(tale->sequence, &attend));
}

static void check_answer(struct tale *tale)
{
    const struct pp_shape *shape = &tale->reference.shape;
    double o[DIM_MAX];
    for (uint32_t at = 0; at < tale->rows * shape->q_heads; ++at) {
        const float *q = tale->q + (uint64_t)at * shape->head_dim;
        double lse =
            reference_attend(&tale->reference, tale->layer, tale->asked, at % shape->q_heads, q, o);
        double got = (double)tale->lse[at];
        CHECK(tale->asked == 0 ? got == -INFINITY : fabs(got - lse) < 1e-4 * (1 + fabs(lse)));
        for (uint32_t d = 0; d < shape->head_dim; ++d) {
            double value = (double)tale->o[at * shape->head_dim + d];
            CHECK(fabs(value - o[d]) < 2e-4);
        }
    }
}

static void attend_wait(struct run *run, struct tale *tale)
{
    struct gw_remote_answer answer = {.o = tale->o, .lse = tale->lse};
    uint64_t begun_us = pp_sim_net_now_us(run->world.net);
    enum pp_status status = gw_remote_attend_wait(tale->sequence, &answer);
    CHECK(pp_sim_net_now_us(run->world.net) - begun_us < 2000000);
    if (went_well(run, tale, status)) {
        CHECK(answer.keys_held == tale->asked * tale->reference.shape.kv_heads * tale->rows);
        CHECK(answer.estimator_used == (tale->asked > 0)); /* nobody is asked for nothing */
        check_answer(tale);
        run->answers++;
    }
}

/* One sequence, or both at once. */
static void op_attend(struct run *run, struct tale *tale)
{
    struct tale *other = &run->tales[tale == &run->tales[0] ? 1 : 0];
    bool both = other->sequence != NULL && draw(run, 2) == 0;
    bool begun = attend_begin(run, tale);
    bool other_begun = both && attend_begin(run, other);
    if (begun) {
        attend_wait(run, tale);
    }
    if (other_begun) {
        attend_wait(run, other);
    }
}

static void op_fault(struct run *run)
{
    struct sim_node *node = &run->world.nodes[draw(run, run->world.node_count)];
    struct pp_sim_net *net = run->world.net;
    switch (draw(run, 7)) {
    case 0:
        pp_sim_link_break(net, "worker", node->name);
        break;
    case 1:
        sim_node_restart(node, draw(run, 2) == 0);
        break;
    case 2:
        sim_node_pause(node, !node->paused);
        break;
    case 3:
        pp_sim_link_delay(net, "worker", node->name, 1000, 1000 + draw(run, 2500000));
        break;
    case 4:
        pp_sim_link_cut(net, "worker", node->name, draw(run, 2) == 0);
        break;
    case 5:
        draw(run, 2) == 0 ? an_service_drain(node->service) : an_service_resume(node->service);
        break;
    default:
        pp_sim_link_delay(net, "worker", node->name, 10, 500);
        break;
    }
}

static void heal(struct run *run)
{
    run->faults_may = false;
    pp_sim_net_break_rate(run->world.net, 0);
    for (uint32_t i = 0; i < run->world.node_count; ++i) {
        struct sim_node *node = &run->world.nodes[i];
        pp_sim_link_delay(run->world.net, "worker", node->name, 10, 500);
        pp_sim_link_cut(run->world.net, "worker", node->name, false);
        sim_node_pause(node, false);
        an_service_resume(node->service);
    }
    /* Connections to a node that died without a word are noticed by the keepalive only. */
    uint64_t end_us = pp_sim_net_now_us(run->world.net) + PP_SIM_KEEPALIVE_US + 1000000;
    while (pp_sim_net_now_us(run->world.net) < end_us) {
        (void)gw_remote_poll(run->world.remote, end_us);
    }
}

static void init_tale(struct run *run, struct tale *tale)
{
    struct pp_shape shape = {
        .layers = LAYERS,
        .kv_heads = 1 + (uint32_t)draw(run, 3),
        .head_dim = 4 + (uint32_t)draw(run, DIM_MAX - 3),
        .kv_dtype = (enum pp_dtype)(1 + draw(run, 4)),
    };
    shape.q_heads = shape.kv_heads * (1 + (uint32_t)draw(run, HEADS_MAX / shape.kv_heads));
    shape.scale = 1.0f / sqrtf((float)shape.head_dim);
    reference_init(&tale->reference, &shape, TOKENS_MAX);
}

static void one_step(struct run *run, bool with_faults)
{
    struct tale *tale = &run->tales[draw(run, TALES)];
    if (with_faults && draw(run, 5) == 0) {
        op_fault(run);
    }
    if (tale->sequence == NULL && !tale_open(run, tale)) {
        return;
    }
    for (uint32_t i = 0; i < 4; ++i) {
        (void)gw_remote_poll(run->world.remote, pp_sim_net_now_us(run->world.net) + 5000);
        gw_remote_maintain(tale->sequence);
    }
    switch (draw(run, 10)) {
    case 0:
    case 1:
    case 2:
    case 3:
        op_append(run, tale);
        break;
    case 4:
        op_flush(run, tale);
        break;
    case 5:
        draw(run, 3) == 0 ? op_truncate(run, tale) : op_seal(run, tale);
        break;
    default:
        op_attend(run, tale);
        break;
    }
}

/* After the faults: what is left of the old sequences may have ended, new ones must work. */
static void check_healed(struct run *run)
{
    for (uint32_t i = 0; i < TALES; ++i) {
        gw_remote_sequence_close(run->tales[i].sequence);
        run->tales[i].sequence = NULL;
    }
    CHECK(gw_remote_ready(run->world.remote, 30000000, NULL, NULL) == PP_OK);
    for (uint32_t i = 0; i < TALES; ++i) {
        struct tale *tale = &run->tales[i];
        CHECK(tale_open(run, tale));
        op_append(run, tale);
        op_flush(run, tale);
        op_attend(run, tale);
    }
}

struct profile {
    double break_rate;
    bool with_faults;
    uint32_t replicas;
};

static void run_seed(uint64_t seed, const struct profile *profile, uint32_t *answers,
                     uint32_t *failures)
{
    struct run *run = calloc(1, sizeof(*run));
    current = run;
    run->seed = seed;
    run->rng.seed = seed * 2654435761u + 17;
    run->faults_may = profile->with_faults || profile->break_rate > 0;
    struct pp_sim_config config = {
        .seed = seed,
        .delay_us_min = 10,
        .delay_us_max = 10 + draw(run, 5000),
        .break_rate = profile->break_rate,
        .tick_us = 20000,
    };
    uint32_t nodes = 1 + (uint32_t)draw(run, SIM_NODES_MAX);
    enum gw_shard shard = (enum gw_shard)draw(run, GW_SHARD_BOTH + 1);
    sim_world_init(&run->world, &config, nodes, shard, profile->replicas,
                   16 + (uint32_t)draw(run, 100));
    for (uint32_t i = 0; i < TALES; ++i) {
        init_tale(run, &run->tales[i]);
    }
    for (run->step = 0; run->step < STEPS; ++run->step) {
        one_step(run, profile->with_faults);
    }
    heal(run);
    check_healed(run);
    for (uint32_t i = 0; i < TALES; ++i) {
        gw_remote_sequence_close(run->tales[i].sequence);
        reference_deinit(&run->tales[i].reference);
    }
    run->copies = (uint32_t)run->world.remote->copied;
    sim_world_deinit(&run->world);
    current = NULL;
    *answers += run->answers;
    *failures += run->failures;
    recoveries_total += run->recoveries;
    copies_total += run->copies;
    free(run);
}

static void run_seeds(const struct profile *profile, uint32_t *answers, uint32_t *failures)
{
    const char *one = getenv("PIGPEN_SIM_SEED"), *many = getenv("PIGPEN_SIM_SEEDS");
    uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;
    uint64_t count = many != NULL ? strtoull(many, NULL, 10) : SEEDS_DEFAULT;
    *answers = *failures = recoveries_total = copies_total = 0;
    count = one != NULL ? 1 : count;
    for (uint64_t i = 0; i < count; ++i) {
        run_seed(first + i, profile, answers, failures);
    }
    print_message(
        "seeds %llu to %llu: %u answers right, %u recoveries, %u parts copied, %u sequences "
        "ended\n",
        (unsigned long long)first, (unsigned long long)(first + count - 1), *answers,
        recoveries_total, copies_total, *failures);
}

static void without_faults_every_step_succeeds_and_is_right(void **state)
{
    (void)state;
    uint32_t answers, failures;
    run_seeds(&(struct profile){0, false, 1}, &answers, &failures);
    assert_int_equal(failures, 0);
    assert_true(answers > 0);
}

static void with_breaking_connections_answers_are_right_or_errors(void **state)
{
    (void)state;
    uint32_t answers, failures;
    run_seeds(&(struct profile){0.01, false, 1}, &answers, &failures);
    assert_true(answers > 0);
}

static void with_stalls_and_restarts_answers_are_right_or_errors(void **state)
{
    (void)state;
    uint32_t answers, failures;
    run_seeds(&(struct profile){0.001, true, 1}, &answers, &failures);
    assert_true(answers > 0);
}

static void replicas_without_faults_are_right(void **state)
{
    (void)state;
    uint32_t answers, failures;
    run_seeds(&(struct profile){0, false, 2}, &answers, &failures);
    assert_int_equal(failures + recoveries_total, 0);
    assert_true(answers > 0);
}

static void replicas_with_stalls_and_restarts_are_right_or_errors(void **state)
{
    (void)state;
    uint32_t answers, failures;
    run_seeds(&(struct profile){0.001, true, 2}, &answers, &failures);
    assert_true(answers > 0);
}

int main(void)
{
    (void)signal(SIGABRT, on_abort);
    if (__sanitizer_set_death_callback != NULL) {
        __sanitizer_set_death_callback(tell_seed);
    }
    /* Every fault is logged as an error: only replays want to read them. */
    pp_log_configure(getenv("PIGPEN_SIM_SEED") != NULL ? PP_LOG_DEBUG : PP_LOG_OFF, PP_LOG_TEXT);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_faults_every_step_succeeds_and_is_right),
        cmocka_unit_test(with_breaking_connections_answers_are_right_or_errors),
        cmocka_unit_test(with_stalls_and_restarts_answers_are_right_or_errors),
        cmocka_unit_test(replicas_without_faults_are_right),
        cmocka_unit_test(replicas_with_stalls_and_restarts_are_right_or_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
