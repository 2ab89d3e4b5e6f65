/*
 * A sequence whose tokens are drawn on its device, beside the host's draws of the same logits.
 */
#ifndef PIGPEN_TESTS_UNIT_ENGINE_DRAW_H
#define PIGPEN_TESTS_UNIT_ENGINE_DRAW_H

#include "gpu-worker/ops/sample.h"
#include "tests/unit/engine_fixture.h"

#define ENGINE_DRAW_PROMPT 70u /* two chunks */
#define ENGINE_DRAW_STEPS  30u

/* The device of the engine: by device_new, NULL: the host. */
static inline void engine_draw_compare(struct gw_device *(*device_new)(void))
{
    struct gw_sampling sampling = {.temperature = 0.9,
                                   .top_p = 0.95,
                                   .min_p = 0.01,
                                   .repetition = 1.2,
                                   .presence = 0.1,
                                   .frequency = 0.2,
                                   .seed = 5};
    tiny_device_new = device_new;
    struct tiny tiny = tiny_new(64, PP_F32);
    struct gw_sequence *sequence = open_kept(&tiny, NULL, 0), *bare = open_kept(&tiny, NULL, 0);
    struct gw_device *host;
    struct gw_sampler here, there, last;
    float logits[VOCAB], again[VOCAB];
    uint32_t id, expected;
    assert_int_equal(gw_host_device_new(1, &host), PP_OK);
    assert_int_equal(gw_sampler_init(&here, host, VOCAB, &sampling), PP_OK);
    assert_int_equal(gw_sampler_init(&there, tiny.device, VOCAB, &sampling), PP_OK);
    assert_int_equal(gw_sampler_prompt(&here, tiny.ids, ENGINE_DRAW_PROMPT), PP_OK);
    assert_int_equal(gw_sampler_prompt(&there, tiny.ids, ENGINE_DRAW_PROMPT), PP_OK);
    assert_int_equal(
        gw_sequence_prefill(sequence, tiny.ids, ENGINE_DRAW_PROMPT, 1, logits, NULL, NULL), PP_OK);
    for (uint32_t i = 0; i < ENGINE_DRAW_STEPS; i++) {
        assert_int_equal(gw_sampler_next(&here, NULL, logits, &expected), PP_OK);
        assert_int_equal(gw_sequence_draw(sequence, &there, &id), PP_OK);
        assert_int_equal(id, expected);
        assert_int_equal(gw_sequence_step(sequence, id, logits, NULL), PP_OK);
        assert_int_equal(gw_engine_logits(sequence->engine, sequence->engine->x, 1, again), PP_OK);
        assert_true(largest_difference(logits, again, VOCAB) == 0.0);
    }
    /* Without logits for the host nothing else is drawn. */
    assert_int_equal(gw_sampler_init(&last, tiny.device, VOCAB, &GW_SAMPLING_GREEDY), PP_OK);
    assert_int_equal(gw_sequence_prefill(bare, tiny.ids, ENGINE_DRAW_PROMPT, 1, NULL, NULL, NULL),
                     PP_OK);
    assert_int_equal(gw_sequence_draw(bare, &last, &id), PP_OK);
    assert_int_equal(gw_sequence_step(bare, id, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_draw(bare, &last, &id), PP_OK);
    assert_int_equal(gw_engine_logits(bare->engine, bare->engine->x, 1, logits), PP_OK);
    assert_int_equal(gw_argmax(logits, VOCAB, &expected), PP_OK);
    assert_int_equal(id, expected);
    gw_sampler_deinit(&here);
    gw_sampler_deinit(&there);
    gw_sampler_deinit(&last);
    gw_sequence_close(sequence);
    gw_sequence_close(bare);
    tiny_free(&tiny);
    host->ops->destroy(host);
    tiny_device_new = NULL;
}

#endif
