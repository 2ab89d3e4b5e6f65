/*
 * Tensors by name and shape: a whole tiny model, and one tensor missing, misshapen or too many.
 * Llama 3's frequency factors against its formula.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>

#include "gpu-worker/model/weights.h"
#include "tests/unit/gguf_build.h"

static const struct gguf_build_llama TINY = {2, 24, 6, 2, 48, 100};
static char error[256];

struct model {
    struct gguf_build build;
    struct gw_gguf *gguf;
    struct gw_config config;
};

static void load(struct model *model)
{
    error[0] = '\0';
    if (gw_gguf_parse(model->build.data, model->build.bytes, error, sizeof(error), &model->gguf) !=
            PP_OK ||
        gw_config_read(model->gguf, error, sizeof(error), &model->config) != PP_OK) {
        fail_msg("%s", error);
    }
}

static void unload(struct model *model)
{
    gw_gguf_close(model->gguf);
    gguf_build_free(&model->build);
}

static void expect_refusal(struct model *model, const char *what)
{
    struct gw_weights weights = {0};
    load(model);
    assert_int_equal(gw_weights_init(&weights, model->gguf, &model->config, error, sizeof(error)),
                     PP_INVALID_ARGUMENT);
    if (strstr(error, what) == NULL) {
        fail_msg("'%s' does not tell of '%s'", error, what);
    }
    assert_null(weights.layers);
    unload(model);
}

static void every_tensor_finds_its_place(void **state)
{
    (void)state;
    struct model model = {0};
    struct gw_weights weights;
    gguf_build_begin(&model.build);
    gguf_build_llama_keys(&model.build, &TINY);
    gguf_build_data(&model.build, gguf_build_llama_tensors(&model.build, &TINY, NULL));
    load(&model);
    assert_int_equal(gw_weights_init(&weights, model.gguf, &model.config, error, sizeof(error)),
                     PP_OK);
    assert_ptr_equal(weights.output, weights.embedding); /* tied */
    assert_null(weights.rope_freqs);
    assert_int_equal(weights.layer_count, 2);
    assert_string_equal(weights.layers[1].ffn_down->name, "blk.1.ffn_down.weight");
    assert_string_equal(weights.layers[0].attn_norm->name, "blk.0.attn_norm.weight");
    assert_string_equal(weights.layers[1].attn_k->name, "blk.1.attn_k.weight");
    gw_weights_deinit(&weights);
    gw_weights_deinit(&weights);
    unload(&model);
}

static void missing_tensor_is_named(void **state)
{
    (void)state;
    static const char *const NAMES[] = {"blk.0.attn_norm.weight", "blk.1.attn_v.weight",
                                        "blk.1.ffn_down.weight"};
    for (size_t index = 0; index < sizeof(NAMES) / sizeof(NAMES[0]); index++) {
        struct model model = {0};
        gguf_build_begin(&model.build);
        gguf_build_llama_keys(&model.build, &TINY);
        gguf_build_data(&model.build, gguf_build_llama_tensors(&model.build, &TINY, NAMES[index]));
        expect_refusal(&model, NAMES[index]);
    }
}

static void misshapen_tensor_is_named(void **state)
{
    (void)state;
    struct gguf_build_llama other = TINY;
    struct model model = {0};
    other.kv_heads = 3;
    gguf_build_begin(&model.build);
    gguf_build_llama_keys(&model.build, &TINY);
    gguf_build_data(&model.build, gguf_build_llama_tensors(&model.build, &other, NULL));
    expect_refusal(&model, "'blk.0.attn_k.weight' is [24, 12]");
    other = TINY;
    other.vocab = 101;
    gguf_build_begin(&model.build);
    gguf_build_llama_keys(&model.build, &TINY);
    gguf_build_data(&model.build, gguf_build_llama_tensors(&model.build, &other, NULL));
    expect_refusal(&model, "'token_embd.weight' is [24, 101]");
}

static void tensor_without_a_place_is_named(void **state)
{
    (void)state;
    static const char *const NAMES[] = {"blk.0.attn_q.bias", "blk.2.attn_q.weight",
                                        "blk.00.attn_q.weight", "blk.0.attn_q_norm.weight",
                                        "blk.-1.attn_q.weight"};
    for (size_t index = 0; index < sizeof(NAMES) / sizeof(NAMES[0]); index++) {
        struct model model = {0};
        gguf_build_begin(&model.build);
        gguf_build_llama_keys(&model.build, &TINY);
        uint64_t offset = gguf_build_llama_tensors(&model.build, &TINY, NULL);
        gguf_build_f32(&model.build, NAMES[index], 24, 0, &offset);
        gguf_build_data(&model.build, offset);
        expect_refusal(&model, NAMES[index]);
    }
}

/* Llama 3's rule as a factor of the wavelength: 1 for short ones, F for long ones, between them
 * blended (dimension 64, theta 5e5, factor 32, low 1, high 4, original context 8192). */
static double llama3_factor(uint32_t pair)
{
    const double inv = pow(5e5, -2.0 * pair / 64.0);
    const double wavelength = 2 * 3.14159265358979323846 / inv;
    if (wavelength < 8192.0 / 4) {
        return 1;
    }
    if (wavelength > 8192.0) {
        return 32;
    }
    const double smooth = (8192.0 / wavelength - 1) / (4 - 1);
    return inv / ((1 - smooth) * inv / 32 + smooth * inv);
}

static void rope_factors_divide_the_frequencies(void **state)
{
    (void)state;
    const struct gguf_build_llama llama = {1, 64, 1, 1, 32, 10};
    struct model model = {0};
    struct gw_weights weights;
    gguf_build_begin(&model.build);
    gguf_build_llama_keys(&model.build, &llama);
    uint64_t offset = gguf_build_llama_tensors(&model.build, &llama, NULL);
    const uint64_t factors_at = offset;
    gguf_build_f32(&model.build, "rope_freqs.weight", 32, 0, &offset);
    gguf_build_data(&model.build, offset);
    for (uint32_t pair = 0; pair < 32; pair++) {
        const float factor = (float)llama3_factor(pair);
        memcpy(model.build.data + model.build.bytes - offset + factors_at + 4UL * pair, &factor,
               sizeof(factor));
    }
    load(&model);
    model.config.rope_theta = 5e5;
    assert_int_equal(gw_weights_init(&weights, model.gguf, &model.config, error, sizeof(error)),
                     PP_OK);
    float inv_freq[32];
    gw_weights_rope(&weights, &model.config, inv_freq);
    for (uint32_t pair = 0; pair < 32; pair++) {
        const double plain = pow(5e5, -2.0 * pair / 64.0);
        const double ratio = plain / (double)inv_freq[pair];
        assert_true(fabs((double)inv_freq[pair] * llama3_factor(pair) - plain) < 1e-6 * plain);
        assert_true(pair > 14 || fabs(ratio - 1) < 1e-6);
        assert_true(pair < 15 || pair > 17 || (ratio > 1.001 && ratio < 31.9));
        assert_true(pair < 18 || fabs(ratio - 32) < 1e-4);
    }
    gw_weights_deinit(&weights);
    unload(&model);
}

static void rope_factor_of_zero_is_refused(void **state)
{
    (void)state;
    struct model model = {0};
    gguf_build_begin(&model.build);
    gguf_build_llama_keys(&model.build, &TINY);
    uint64_t offset = gguf_build_llama_tensors(&model.build, &TINY, NULL);
    gguf_build_f32(&model.build, "rope_freqs.weight", 2, 0, &offset);
    gguf_build_data(&model.build, offset);
    expect_refusal(&model, "rope_freqs.weight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_finds_its_place),
        cmocka_unit_test(missing_tensor_is_named),
        cmocka_unit_test(misshapen_tensor_is_named),
        cmocka_unit_test(tensor_without_a_place_is_named),
        cmocka_unit_test(rope_factors_divide_the_frequencies),
        cmocka_unit_test(rope_factor_of_zero_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
