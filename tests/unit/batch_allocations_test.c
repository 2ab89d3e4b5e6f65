/*
 * Steps of several sequences at once take nothing from the heap, also where one is sampled with its
 * errors and one has no nodes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu-worker/engine/engine_state.h"
#include "tests/unit/allocations.h"
#include "tests/unit/engine_fixture.h"

#define FOUR  4u
#define STEPS 66u

static const uint32_t prompts[FOUR] = {300, 68, 1, 420};

static float logits[FOUR][VOCAB];

static struct gw_sequence *open_one(struct tiny *tiny, uint32_t index)
{
    return open_of_batch(tiny, index, prompts[index], STEPS);
}

static void step_all(struct tiny *tiny, struct gw_sequence **sequences, uint32_t step)
{
    struct gw_step steps[FOUR];
    for (uint32_t index = 0; index < FOUR; index++) {
        steps[index] = (struct gw_step){.sequence = sequences[index],
                                        .id = tiny->ids[index + prompts[index] + step],
                                        .logits_out = logits[index]};
    }
    assert_int_equal(gw_engine_step(tiny->engine, steps, FOUR), PP_OK);
}

static void steps_take_nothing_from_the_heap(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(64, PP_F32);
    struct gw_sequence *sequences[FOUR];
    fake = (struct gw_remote){.ack_every = 1};
    for (uint32_t index = 0; index < FOUR; index++) {
        sequences[index] = open_one(&tiny, index);
    }
    step_all(&tiny, sequences, 0);
    assert_true(allocations_are_seen());
    uint64_t before = atomic_load(&allocations);
    allocations_count(true);
    for (uint32_t i = 1; i < STEPS; i++) {
        step_all(&tiny, sequences, i);
    }
    allocations_count(false);
    assert_int_equal(atomic_load(&allocations), before);
    for (uint32_t index = 0; index < FOUR; index++) {
        gw_sequence_close(sequences[index]);
    }
    tiny_free(&tiny);
}

int main(void)
{
    allocations_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_take_nothing_from_the_heap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
