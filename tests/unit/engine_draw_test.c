/*
 * Tokens drawn behind a prefill and behind steps are those of the logits there.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu-worker/engine/engine_state.h"
#include "tests/unit/engine_draw.h"

static void draws_are_of_the_logits_behind_the_last_token(void **state)
{
    (void)state;
    engine_draw_compare(NULL);
}

static void a_draw_wants_something_before_it(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(64, PP_F32);
    struct gw_sequence *sequence = open_kept(&tiny, NULL, 0);
    struct gw_sampler sampler;
    uint32_t id;
    assert_int_equal(gw_sampler_init(&sampler, tiny.device, VOCAB, &GW_SAMPLING_GREEDY), PP_OK);
    assert_int_equal(gw_sequence_draw(sequence, &sampler, &id), PP_FAILED_PRECONDITION);
    assert_int_equal(gw_sequence_step(sequence, 1, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_draw(sequence, &sampler, &id), PP_OK);
    gw_sampler_deinit(&sampler);
    gw_sequence_close(sequence);
    tiny_free(&tiny);
}

#define BATCH 5u

/* Of five steps at once the even ones draw; all give their logits, in which the draws are found. */
static void steps_of_several_sequences_draw_for_those_that_ask(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(64, PP_F32);
    const struct gw_sampling sampling = {
        .temperature = 1.0, .top_p = 0.9, .repetition = 1.3, .seed = 5};
    struct gw_sampler samplers[BATCH], alone[BATCH];
    struct gw_step steps[BATCH];
    static float logits[BATCH][VOCAB];
    for (uint32_t i = 0; i < BATCH; i++) {
        assert_int_equal(gw_sampler_init(&samplers[i], tiny.device, VOCAB, &sampling), PP_OK);
        assert_int_equal(gw_sampler_init(&alone[i], tiny.device, VOCAB, &sampling), PP_OK);
        steps[i] = (struct gw_step){.sequence = open_kept(&tiny, NULL, 0), .id = 1 + i};
        steps[i].logits_out = logits[i];
        steps[i].sampler = i % 2 == 0 ? &samplers[i] : NULL;
    }
    for (uint32_t round = 0; round < 12; round++) {
        assert_int_equal(gw_engine_step(tiny.engine, steps, BATCH), PP_OK);
        for (uint32_t i = 0; i < BATCH; i++) {
            uint32_t expected;
            assert_int_equal(steps[i].status, PP_OK);
            assert_int_equal(gw_sampler_next(&alone[i], NULL, logits[i], &expected), PP_OK);
            assert_true(steps[i].sampler == NULL || steps[i].next == expected);
            steps[i].id = expected;
        }
    }
    for (uint32_t i = 0; i < BATCH; i++) {
        gw_sequence_close(steps[i].sequence);
        gw_sampler_deinit(&samplers[i]);
        gw_sampler_deinit(&alone[i]);
    }
    tiny_free(&tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_of_the_logits_behind_the_last_token),
        cmocka_unit_test(a_draw_wants_something_before_it),
        cmocka_unit_test(steps_of_several_sequences_draw_for_those_that_ask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
