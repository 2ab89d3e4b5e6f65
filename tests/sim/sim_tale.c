/*
 * A simulated sequence. See sim_tale.h.
 */
#include "tests/sim/sim_tale.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/remote/internal.h"

#define TRIES_MAX 20u /* of one step, by recovering */
/* The longest wait of an attend for one node that holds a part, and some for the others. */
#define ATTEND_US 2000000u

void sim_tale_init(struct sim_run *run, struct sim_tale *tale)
{
    struct pp_shape shape = {
        .layers = SIM_LAYERS,
        .kv_heads = 1 + (uint32_t)sim_draw(run, 3),
        .head_dim = 4 + (uint32_t)sim_draw(run, SIM_DIM_MAX - 3),
        .kv_dtype = (enum pp_dtype)(1 + sim_draw(run, 4)),
    };
    shape.q_heads = shape.kv_heads * (1 + (uint32_t)sim_draw(run, SIM_HEADS_MAX / shape.kv_heads));
    shape.scale = 1.0f / sqrtf((float)shape.head_dim);
    reference_init(&tale->reference, &shape, SIM_TOKENS_MAX);
}

void sim_tale_close(struct sim_tale *tale)
{
    gw_remote_sequence_close(tale->sequence);
    tale->sequence = NULL;
}

/* A sequence that cannot go on: that needs a reason in words, and faults about. */
static bool ended(struct sim_run *run, struct sim_tale *tale, enum pp_status status)
{
    if (!run->faults_may) {
        print_error("%s: %s\n", pp_status_name(status), gw_remote_error(tale->sequence));
    }
    SIM_CHECK(run->faults_may);
    SIM_CHECK(strstr(gw_remote_error(tale->sequence), "node node-") != NULL);
    sim_tale_close(tale);
    run->world.seen[SIM_SEEN_ENDED]++;
    return false;
}

/* Hands over again what nodes that were lost took with them; the status of the first call that
 * failed. */
static enum pp_status refill(struct sim_tale *tale)
{
    const struct reference *reference = &tale->reference;
    for (uint32_t layer = 0; layer < SIM_LAYERS; ++layer) {
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
static bool went_well(struct sim_run *run, struct sim_tale *tale, enum pp_status status)
{
    if (status == PP_OK) {
        return true;
    }
    for (uint32_t tries = 0; status != PP_OK; ++tries) {
        SIM_CHECK(tries < TRIES_MAX);
        if (run->world.worker_crashed || gw_remote_recover(tale->sequence) != PP_OK) {
            return ended(run, tale, status);
        }
        run->world.seen[SIM_SEEN_RECOVERIES]++;
        status = refill(tale);
    }
    return false;
}

bool sim_tale_open(struct sim_run *run, struct sim_tale *tale)
{
    static const struct pp_estimator estimators[] = {
        {.kind = PP_EXACT}, {.kind = PP_LSH, .k = 4, .l = 12, .t = 2}, {.kind = PP_SKETCH}};
    struct gw_remote_sequence_config config = {
        .shape = tale->reference.shape,
        .fingerprint = "simulated",
        .fingerprint_bytes = 9,
        .estimator = estimators[sim_draw(run, 3)],
        .hash_seed = run->seed,
        .tokens_expected = sim_draw(run, 4) == 0 ? 0 : 1 + sim_draw(run, SIM_TOKENS_MAX),
    };
    tale->handed = 0;
    memset(tale->given, 0, sizeof(tale->given));
    enum pp_status status = gw_remote_sequence_open(run->world.remote, &config, &tale->sequence);
    SIM_CHECK(status == PP_OK || run->faults_may);
    if (status != PP_OK) {
        tale->sequence = NULL;
    }
    return status == PP_OK;
}

/* One layer's rows, tried until they are handed over or the sequence has ended. */
static bool append_layer(struct sim_run *run, struct sim_tale *tale, uint32_t layer, uint32_t count,
                         bool bulk)
{
    const struct reference *reference = &tale->reference;
    uint64_t at = reference_wire(reference, layer, tale->handed);
    bool well = false;
    reference_draw(&tale->reference, &run->rng, layer, tale->handed, count);
    for (uint32_t tries = 0; !well && tale->sequence != NULL; ++tries) {
        SIM_CHECK(tries < TRIES_MAX);
        well = went_well(run, tale,
                         gw_remote_append(tale->sequence, layer, tale->handed, count,
                                          reference->wire_k + at, reference->wire_v + at, bulk));
    }
    tale->given[layer] = tale->handed + count;
    return well;
}

void sim_tale_append(struct sim_run *run, struct sim_tale *tale)
{
    uint32_t count = 1 + (uint32_t)sim_draw(run, sim_draw(run, 4) == 0 ? 150 : 20);
    bool bulk = sim_draw(run, 2) == 0;
    if (tale->handed + count > SIM_TOKENS_MAX) {
        return;
    }
    uint32_t first = (uint32_t)sim_draw(run, SIM_LAYERS);
    bool well = true;
    for (uint32_t i = 0; i < SIM_LAYERS && well; ++i) {
        well = append_layer(run, tale, (first + i) % SIM_LAYERS, count, bulk);
    }
    tale->handed += count;
}

void sim_tale_flush(struct sim_run *run, struct sim_tale *tale)
{
    (void)went_well(run, tale, gw_remote_flush(tale->sequence));
    for (uint32_t layer = 0; layer < SIM_LAYERS && tale->sequence != NULL; ++layer) {
        SIM_CHECK(gw_remote_held(tale->sequence, layer) == tale->handed);
        SIM_CHECK(gw_remote_lacking(tale->sequence, layer).begin == tale->handed);
    }
}

/* Recovered from in the middle it is done again before anything is handed over. */
void sim_tale_truncate(struct sim_run *run, struct sim_tale *tale)
{
    uint64_t kept = sim_draw(run, tale->handed + 1);
    enum pp_status status;
    for (uint32_t tries = 0; (status = gw_remote_truncate(tale->sequence, kept)) != PP_OK;
         ++tries) {
        SIM_CHECK(tries < TRIES_MAX);
        if (run->world.worker_crashed || gw_remote_recover(tale->sequence) != PP_OK) {
            (void)ended(run, tale, status);
            return;
        }
        run->world.seen[SIM_SEEN_RECOVERIES]++;
    }
    tale->handed = kept;
    for (uint32_t layer = 0; layer < SIM_LAYERS; ++layer) {
        tale->given[layer] = kept;
    }
    (void)went_well(run, tale, refill(tale));
    for (uint32_t layer = 0; layer < SIM_LAYERS && tale->sequence != NULL; ++layer) {
        SIM_CHECK(gw_remote_held(tale->sequence, layer) == kept);
    }
}

void sim_tale_seal(struct sim_run *run, struct sim_tale *tale)
{
    (void)went_well(run, tale, gw_remote_seal(tale->sequence, NULL, NULL));
}

/* Rows come back as they were handed over, to the bit. */
void sim_tale_read(struct sim_run *run, struct sim_tale *tale)
{
    static uint8_t k[2 * SIM_TOKENS_MAX * SIM_HEADS_MAX * SIM_DIM_MAX * sizeof(float)];
    static uint8_t v[sizeof(k)];
    const struct reference *reference = &tale->reference;
    uint32_t layer = (uint32_t)sim_draw(run, SIM_LAYERS);
    if (tale->handed == 0) {
        return;
    }
    uint64_t start = sim_draw(run, tale->handed);
    uint32_t count = 1 + (uint32_t)sim_draw(run, tale->handed - start);
    uint64_t at = reference_wire(reference, layer, start);
    uint64_t bytes = reference_wire(reference, layer, start + count) - at;
    if (went_well(run, tale, gw_remote_read(tale->sequence, layer, start, count, k, v))) {
        SIM_CHECK(memcmp(k, reference->wire_k + at, bytes) == 0);
        SIM_CHECK(memcmp(v, reference->wire_v + at, bytes) == 0);
        run->world.seen[SIM_SEEN_ROWS_READ] += count;
    }
}

static bool attend_begin(struct sim_run *run, struct sim_tale *tale)
{
    const struct pp_shape *shape = &tale->reference.shape;
    for (uint32_t i = 0; i < tale->rows * shape->q_heads * shape->head_dim; ++i) {
        tale->q[i] = (float)pp_rng_normal(&run->rng);
    }
    struct gw_remote_attend attend = {
        .errors = true,
        .layer = tale->layer,
        .held_tokens = tale->asked,
        .q_rows = tale->rows,
        .q = tale->q,
        .estimator = {.kind = tale->exact ? PP_EXACT : PP_ESTIMATOR_NONE}};
    return went_well(run, tale, gw_remote_attend_begin(tale->sequence, &attend));
}

/* What is asked: any prefix of what is held, most often all of it, mostly exactly. */
static void attend_draw(struct sim_run *run, struct sim_tale *tale)
{
    tale->layer = (uint32_t)sim_draw(run, SIM_LAYERS);
    tale->rows = 1 + (uint32_t)sim_draw(run, SIM_ROWS_MAX);
    uint64_t held = gw_remote_held(tale->sequence, tale->layer);
    SIM_CHECK(held <= tale->given[tale->layer] || held <= tale->handed);
    tale->asked = sim_draw(run, 2) == 0 ? held : sim_draw(run, held + 1);
    tale->exact = sim_draw(run, 4) != 0;
}

static void check_exact(const struct sim_tale *tale, uint32_t at)
{
    const struct pp_shape *shape = &tale->reference.shape;
    double o[SIM_DIM_MAX];
    const float *q = tale->q + (uint64_t)at * shape->head_dim;
    double lse =
        reference_attend(&tale->reference, tale->layer, tale->asked, at % shape->q_heads, q, o);
    double got = (double)tale->lse[at];
    SIM_CHECK(tale->asked == 0 ? got == -INFINITY : fabs(got - lse) < 1e-4 * (1 + fabs(lse)));
    for (uint32_t d = 0; d < shape->head_dim; ++d) {
        double value = (double)tale->o[at * shape->head_dim + d];
        SIM_CHECK(fabs(value - o[d]) < 2e-4);
    }
}

/* A sample has no right value: it is finite, and about as many tokens as were asked for. */
static void check_answer(const struct sim_tale *tale, const struct gw_remote_answer *answer)
{
    const struct pp_shape *shape = &tale->reference.shape;
    SIM_CHECK(answer->keys_held == tale->asked * shape->kv_heads * tale->rows);
    SIM_CHECK(answer->keys_read <= answer->keys_held);
    SIM_CHECK(!tale->exact || answer->keys_read == answer->keys_held);
    for (uint32_t at = 0; at < tale->rows * shape->q_heads; ++at) {
        if (tale->exact) {
            check_exact(tale, at);
            continue;
        }
        SIM_CHECK(tale->asked == 0 ? tale->lse[at] == -INFINITY : isfinite(tale->lse[at]));
        for (uint32_t d = 0; d < shape->head_dim; ++d) {
            SIM_CHECK(isfinite(tale->o[at * shape->head_dim + d]));
        }
    }
}

static void attend_wait(struct sim_run *run, struct sim_tale *tale)
{
    struct gw_remote_answer answer = {.o = tale->o, .lse = tale->lse};
    uint64_t begun_us = pp_sim_net_now_us(run->world.net);
    uint64_t back_us = run->faults.worker_back_us;
    enum pp_status status = gw_remote_attend_wait(tale->sequence, &answer);
    /* A clock that went back makes every wait so much longer. */
    uint64_t most_us =
        ATTEND_US * run->world.config.replicas + run->faults.worker_back_us - back_us;
    SIM_CHECK(pp_sim_net_now_us(run->world.net) - begun_us < most_us);
    if (went_well(run, tale, status)) {
        check_answer(tale, &answer);
        run->world.seen[SIM_SEEN_ANSWERS]++;
    }
}

void sim_tale_attend(struct sim_run *run, struct sim_tale *tale, struct sim_tale *other)
{
    bool both = sim_draw(run, 2) == 0 && other->sequence != NULL;
    attend_draw(run, tale);
    bool begun = attend_begin(run, tale), other_begun = false;
    if (both) {
        attend_draw(run, other);
        other_begun = attend_begin(run, other);
    }
    if (begun) {
        attend_wait(run, tale);
    }
    if (other_begun) {
        attend_wait(run, other);
    }
}

/* Law 1 as the nodes see it. */
static void verify_nodes(const struct sim_run *run, const struct sim_tale *tale)
{
    const struct gw_remote_sequence *sequence = tale->sequence;
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        const struct gw_part *part = sequence->parts[i];
        const struct sim_node *node = sim_world_node_at(&run->world, part->node->address.address);
        uint64_t tokens, generation;
        for (uint32_t layer = 0; layer < SIM_LAYERS && node != NULL; ++layer) {
            if (atomic_load(&part->lost) || !sim_node_holds(node, part->incarnation, part->handle,
                                                            layer, &tokens, &generation)) {
                continue; /* it will be met as a loss */
            }
            SIM_CHECK(generation == sequence->generation);
            SIM_CHECK(tokens >= atomic_load(&part->acked[layer]));
            /* Behind the end of a part that was cut a node may hold what it is never asked for. */
            const struct gw_route_part *span = &sequence->route.parts[part->index];
            bool whole = span->token_begin + part->queued[layer] == span->token_end;
            SIM_CHECK(whole || tokens <= part->queued[layer]);
        }
    }
}

void sim_tale_verify(struct sim_run *run, struct sim_tale *tale)
{
    if (tale->sequence == NULL || gw_sequence_failed(tale->sequence) != PP_OK) {
        return;
    }
    verify_nodes(run, tale);
    for (uint32_t layer = 0; layer < SIM_LAYERS && tale->sequence != NULL; ++layer) {
        tale->layer = layer;
        tale->rows = 1;
        tale->exact = true;
        tale->asked = gw_remote_held(tale->sequence, layer);
        SIM_CHECK(tale->asked <= tale->handed);
        if (attend_begin(run, tale)) {
            attend_wait(run, tale);
        }
    }
}
