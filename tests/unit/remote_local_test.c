/*
 * What the worker attends itself on its way to the nodes: with every shard each node gets its own
 * heads' o and lse of every row, in a section behind q that signatures follow, and nothing of it
 * where nothing was given.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>

#include "tests/unit/remote_fake.h"

#define HEADS  8u
#define ROWS   2u
#define TOKENS 40u
#define CODES  64u /* tables of lsh */

/* What came to the nodes of one attend. */
struct seen {
    uint32_t asked[ROWS * HEADS]; /* how often a row and head was */
    uint32_t attends;
    bool local, codes; /* must be there, or must not */
    uint16_t signatures[ROWS * HEADS * CODES];
};

struct world {
    struct fake_net *net;
    struct gw_remote *remote;
    struct gw_remote_sequence *sequence;
    struct seen seen;
    float q[ROWS * HEADS * FAKE_DIM];
    float local_o[ROWS * HEADS * FAKE_DIM], local_lse[ROWS * HEADS];
    float o[ROWS * HEADS * FAKE_DIM], lse[ROWS * HEADS];
};

/* Values that no two places share. */
static float value_of(uint32_t row, uint32_t head, uint32_t d)
{
    return (float)(1000 * row + 20 * head + d);
}

static float float_at(const Pigpen__V1__AttendRequest *request, uint64_t offset)
{
    float value;
    assert_true(offset + sizeof(value) <= request->payload.len);
    memcpy(&value, request->payload.data + offset, sizeof(value));
    return value;
}

static const Pigpen__V1__Section *section_at(const Pigpen__V1__AttendRequest *request, size_t index,
                                             int kind, uint64_t offset, uint64_t bytes)
{
    assert_true(index < request->n_sections);
    const Pigpen__V1__Section *section = request->sections[index];
    assert_int_equal(section->kind, kind);
    assert_int_equal(section->item, 0);
    assert_int_equal(section->offset, offset);
    assert_int_equal(section->bytes, bytes);
    return section;
}

/* Every row and head of the part: [row][head][dim + 1], and q beside it. */
static void check_values(struct seen *seen, const struct fake_part *part,
                         const Pigpen__V1__AttendRequest *request, uint64_t local)
{
    uint32_t heads = 2 * part->kv_head_count;
    for (uint32_t i = 0; i < ROWS * heads; ++i) {
        uint32_t row = i / heads, head = 2 * part->kv_head_begin + i % heads;
        seen->asked[row * HEADS + head]++;
        for (uint32_t d = 0; d < FAKE_DIM; ++d) {
            uint64_t at = sizeof(float) * ((uint64_t)i * FAKE_DIM + d);
            assert_true(float_at(request, at) == -value_of(row, head, d));
            at = local + sizeof(float) * ((uint64_t)i * (FAKE_DIM + 1) + d);
            assert_true(!seen->local || float_at(request, at) == value_of(row, head, d));
        }
        uint64_t at = local + sizeof(float) * ((uint64_t)i * (FAKE_DIM + 1) + FAKE_DIM);
        assert_true(!seen->local || float_at(request, at) == value_of(row, head, FAKE_DIM));
    }
}

static void saw_attend(void *context, const struct fake_part *part,
                       const Pigpen__V1__AttendRequest *request, uint32_t index)
{
    struct seen *seen = context;
    uint64_t values = 2ull * ROWS * part->kv_head_count;
    uint64_t q = values * FAKE_DIM * sizeof(float), end = q;
    size_t sections = 1;
    assert_int_equal(index, 0);
    section_at(request, 0, PIGPEN__V1__SECTION_KIND__SECTION_KIND_Q, 0, q);
    if (seen->local) {
        uint64_t bytes = values * (FAKE_DIM + 1) * sizeof(float);
        section_at(request, sections++, PIGPEN__V1__SECTION_KIND__SECTION_KIND_LOCAL, end, bytes);
        end += bytes;
    }
    if (seen->codes) {
        uint64_t bytes = values * CODES * sizeof(uint16_t);
        section_at(request, sections++, PIGPEN__V1__SECTION_KIND__SECTION_KIND_SIGNATURES, end,
                   bytes);
        memcpy(seen->signatures, request->payload.data + end, bytes);
        end += bytes;
    }
    assert_int_equal(request->n_sections, sections);
    assert_int_equal(request->payload.len, end);
    check_values(seen, part, request, q);
    seen->attends++;
}

static struct world *world_new(uint32_t nodes, enum gw_shard shard, struct pp_estimator estimator)
{
    static const float rows[TOKENS * 4 * FAKE_DIM];
    struct world *world = calloc(1, sizeof(*world));
    struct gw_remote_config config;
    struct gw_remote_sequence_config sequence = fake_sequence_config(TOKENS);
    sequence.estimator = estimator;
    world->net = fake_net_new();
    world->net->saw_attend = saw_attend;
    world->net->saw_context = &world->seen;
    world->seen.codes = estimator.kind == PP_LSH;
    fake_remote_config(world->net, nodes, shard, &config);
    assert_int_equal(gw_remote_new(&config, &world->remote), PP_OK);
    assert_int_equal(gw_remote_ready(world->remote, 1000000, NULL, NULL), PP_OK);
    assert_int_equal(gw_remote_sequence_open(world->remote, &sequence, &world->sequence), PP_OK);
    assert_int_equal(gw_remote_append(world->sequence, 0, 0, TOKENS, rows, rows, false), PP_OK);
    assert_int_equal(gw_remote_flush(world->sequence), PP_OK);
    for (uint32_t i = 0; i < ROWS * HEADS; ++i) {
        for (uint32_t d = 0; d < FAKE_DIM; ++d) {
            world->local_o[i * FAKE_DIM + d] = value_of(i / HEADS, i % HEADS, d);
            world->q[i * FAKE_DIM + d] = -world->local_o[i * FAKE_DIM + d];
        }
        world->local_lse[i] = value_of(i / HEADS, i % HEADS, FAKE_DIM);
    }
    return world;
}

static void world_free(struct world *world)
{
    gw_remote_sequence_close(world->sequence);
    gw_remote_destroy(world->remote);
    free(world->net);
    free(world);
}

static void attend(struct world *world, bool local, uint64_t held)
{
    struct gw_remote_attend request = {.held_tokens = held,
                                       .q_rows = ROWS,
                                       .q = world->q,
                                       .local_o = local ? world->local_o : NULL,
                                       .local_lse = local ? world->local_lse : NULL};
    struct gw_remote_answer answer = {.o = world->o, .lse = world->lse};
    world->seen = (struct seen){.local = local, .codes = world->seen.codes};
    assert_int_equal(gw_remote_attend_begin(world->sequence, &request), PP_OK);
    assert_int_equal(gw_remote_attend_wait(world->sequence, &answer), PP_OK);
}

static void expect_asked(const struct seen *seen, uint32_t attends, uint32_t times)
{
    assert_int_equal(seen->attends, attends);
    for (uint32_t i = 0; i < ROWS * HEADS; ++i) {
        assert_int_equal(seen->asked[i], times);
    }
}

static const struct pp_estimator sketch = {.kind = PP_SKETCH, .target_error = 0.1f};
static const struct pp_estimator lsh = {.kind = PP_LSH, .k = 8, .l = CODES, .target_error = 0.1f};

static void every_token_shard_gets_all_heads(void **state)
{
    (void)state;
    struct world *world = world_new(2, GW_SHARD_TOKENS, sketch);
    attend(world, true, TOKENS);
    expect_asked(&world->seen, 2, 2);
    attend(world, true, TOKENS / 2); /* which the first part has alone */
    expect_asked(&world->seen, 1, 1);
    attend(world, false, TOKENS);
    expect_asked(&world->seen, 2, 2);
    world_free(world);
}

static void every_kv_head_shard_gets_its_own_heads(void **state)
{
    (void)state;
    struct world *world = world_new(3, GW_SHARD_KV_HEADS, sketch); /* of 1, 1 and 2 kv heads */
    attend(world, true, TOKENS);
    expect_asked(&world->seen, 3, 1);
    attend(world, false, TOKENS);
    expect_asked(&world->seen, 3, 1);
    world_free(world);
}

static void a_grid_of_both_gets_its_own_heads_span_by_span(void **state)
{
    (void)state;
    struct world *world = world_new(4, GW_SHARD_BOTH, sketch);
    attend(world, true, TOKENS);
    expect_asked(&world->seen, 4, 2);
    world_free(world);
}

static void signatures_follow_and_are_the_same_as_without(void **state)
{
    (void)state;
    static const enum gw_shard shards[] = {GW_SHARD_TOKENS, GW_SHARD_KV_HEADS};
    for (uint32_t i = 0; i < 2; ++i) {
        uint32_t nodes = i == 0 ? 1 : 3;
        struct world *world = world_new(nodes, shards[i], lsh);
        attend(world, true, TOKENS);
        expect_asked(&world->seen, nodes, 1);
        struct seen with = world->seen;
        attend(world, false, TOKENS);
        expect_asked(&world->seen, nodes, 1);
        assert_memory_equal(world->seen.signatures, with.signatures, sizeof(with.signatures));
        world_free(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_shard_gets_all_heads),
        cmocka_unit_test(every_kv_head_shard_gets_its_own_heads),
        cmocka_unit_test(a_grid_of_both_gets_its_own_heads_span_by_span),
        cmocka_unit_test(signatures_follow_and_are_the_same_as_without),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
