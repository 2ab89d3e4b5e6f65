/*
 * Four layers of the default model (file PIGPEN_MODEL, or the one that deploy/fetch-model puts into
 * .cache) on the CUDA device against the host: a prefill of 28 tokens, then 4
 * steps; once in f32 throughout, once by tensor cores and with K/V of bf16.
 */
#include "tests/cuda_emu/both.h"

#include "gpu-worker/engine/engine.h"
#include "tests/unit/gguf_build.h"

#define LAYERS 4u
#define PROMPT 28u
#define TOKENS 32u

struct model {
    struct gguf_build build;
    struct gw_gguf *gguf;
};

static uint8_t *file_read(const char *path, size_t *bytes_out)
{
    void *data;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail_msg("the model %s is missing: tests/run fetches it, or set PIGPEN_MODEL", path);
    }
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t bytes = (size_t)ftell(file);
    rewind(file);
    assert_int_equal(posix_memalign(&data, 64, bytes), 0);
    assert_int_equal(fread(data, 1, bytes, file), bytes);
    fclose(file);
    *bytes_out = bytes;
    return data;
}

static bool is_kept(const struct gw_tensor *tensor)
{
    unsigned layer;
    return sscanf(tensor->name, "blk.%u.", &layer) != 1 || layer < LAYERS;
}

/* Where the descriptions of tensors begin: the first of their names, with its length before it. */
static size_t tensors_begin(const struct gw_gguf *gguf, const uint8_t *data, size_t bytes)
{
    size_t begin = bytes;
    for (uint64_t i = 0; i < gw_gguf_tensor_count(gguf); i++) {
        struct gguf_build name = {0};
        gguf_build_text(&name, gw_gguf_tensor_at(gguf, i)->name);
        const uint8_t *at = memmem(data, begin, name.data, name.bytes);
        begin = at != NULL ? (size_t)(at - data) : begin;
        gguf_build_free(&name);
    }
    return begin;
}

/* The model's keys as they are but for the number of its layers, and the tensors that remain. */
static struct gguf_build cut(const struct gw_gguf *gguf, const uint8_t *data, size_t bytes)
{
    static const char key[] = "llama.block_count";
    const uint32_t layers = LAYERS;
    const size_t header = 24; /* magic, version, counts of tensors and of keys */
    size_t keys = tensors_begin(gguf, data, bytes) - header;
    struct gguf_build made;
    uint64_t key_count, offset = 0;
    memcpy(&key_count, data + 16, sizeof(key_count));
    gguf_build_begin(&made);
    gguf_build_patch_u64(&made, 16, key_count);
    gguf_build_raw(&made, data + header, keys);
    uint8_t *at = memmem(made.data, made.bytes, key, sizeof(key) - 1);
    assert_non_null(at);
    memcpy(at + sizeof(key) - 1 + sizeof(uint32_t), &layers, sizeof(layers)); /* behind its type */
    for (uint64_t i = 0; i < gw_gguf_tensor_count(gguf); i++) {
        const struct gw_tensor *tensor = gw_gguf_tensor_at(gguf, i);
        if (is_kept(tensor)) {
            gguf_build_tensor(&made, tensor->name, tensor->dim_count, tensor->dims,
                              (uint32_t)tensor->type, offset);
            offset += (tensor->bytes + 31) / 32 * 32;
        }
    }
    gguf_build_data(&made, 0);
    for (uint64_t i = 0; i < gw_gguf_tensor_count(gguf); i++) {
        const struct gw_tensor *tensor = gw_gguf_tensor_at(gguf, i);
        if (is_kept(tensor)) {
            gguf_build_raw(&made, tensor->data, tensor->bytes);
            gguf_build_data(&made, 0);
        }
    }
    return made;
}

static struct model model_open(void)
{
    const char *path = getenv("PIGPEN_MODEL");
    path = path != NULL ? path : PP_SOURCE_DIR "/.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    struct model model;
    struct gw_gguf *whole;
    char error[256] = "";
    size_t bytes;
    uint8_t *data = file_read(path, &bytes);
    if (gw_gguf_parse(data, bytes, error, sizeof(error), &whole) != PP_OK) {
        fail_msg("%s", error);
    }
    model.build = cut(whole, data, bytes);
    gw_gguf_close(whole);
    free(data);
    if (gw_gguf_parse(model.build.data, model.build.bytes, error, sizeof(error), &model.gguf) !=
        PP_OK) {
        fail_msg("%s", error);
    }
    return model;
}

/* Logits of the last prompt token and of every step: [TOKENS - PROMPT + 1][vocab]. */
static float *run(const struct model *model, struct gw_device *device, enum pp_dtype kv_dtype,
                  uint32_t chunk_tokens, uint32_t *vocab_out)
{
    struct gw_engine *engine;
    struct gw_sequence *sequence;
    char error[256] = "";
    uint32_t ids[TOKENS];
    const struct gw_engine_config config = {.device = device,
                                            .gguf = model->gguf,
                                            .kv_dtype = kv_dtype,
                                            .tokens_max = 64,
                                            .chunk_tokens = chunk_tokens,
                                            .clock = pp_clock_system()};
    const struct gw_sequence_options options = {.estimator = {.kind = PP_EXACT},
                                                .tokens_expected = TOKENS};
    if (gw_engine_new(&config, error, sizeof(error), &engine) != PP_OK) {
        fail_msg("%s", error);
    }
    uint32_t vocab = gw_engine_info(engine)->vocab;
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = (i * 7919u + 13u) % 20000u;
    }
    float *logits = malloc((TOKENS - PROMPT + 1ull) * vocab * sizeof(float));
    assert_non_null(logits);
    assert_int_equal(gw_sequence_open(engine, &options, &sequence), PP_OK);
    assert_int_equal(gw_sequence_prefill(sequence, ids, PROMPT, 1, logits, NULL, NULL), PP_OK);
    for (uint32_t i = PROMPT; i < TOKENS; i++) {
        assert_int_equal(
            gw_sequence_step(sequence, ids[i], logits + (i - PROMPT + 1ull) * vocab, NULL), PP_OK);
    }
    gw_sequence_close(sequence);
    gw_engine_destroy(engine);
    *vocab_out = vocab;
    return logits;
}

/* The largest difference of a logit to the host's, and the largest logit. */
static void compare(const struct model *model, enum pp_dtype kv_dtype, uint32_t chunk_tokens,
                    double *worst_out, double *largest_out)
{
    struct gw_device *devices[2] = {NULL, cuda_test_device_new()};
    float *logits[2];
    uint32_t vocab = 0;
    assert_int_equal(gw_host_device_new(2, &devices[0]), PP_OK);
    for (uint32_t i = 0; i < 2; i++) {
        logits[i] = run(model, devices[i], kv_dtype, chunk_tokens, &vocab);
        devices[i]->ops->destroy(devices[i]);
    }
    double worst = 0.0, largest = 0.0;
    for (uint64_t i = 0; i < (TOKENS - PROMPT + 1ull) * vocab; i++) {
        double difference = fabs((double)logits[0][i] - (double)logits[1][i]);
        worst = difference > worst ? difference : worst;
        largest = fabs((double)logits[0][i]) > largest ? fabs((double)logits[0][i]) : largest;
    }
    printf("K/V %s, chunks of %u: logits up to %.1f, at most %.2e apart\n", pp_dtype_name(kv_dtype),
           chunk_tokens, largest, worst);
    free(logits[0]);
    free(logits[1]);
    *worst_out = worst;
    *largest_out = largest;
}

/* Chunks of 4 tokens multiply without 16-bit floats, as steps do. */
static void logits_of_four_layers_in_f32_are_the_hosts(void **state)
{
    struct model *model = *state;
    double worst, largest;
    compare(model, PP_F32, 4, &worst, &largest);
    assert_true(largest > 1.0);
    assert_true(worst < 1e-3);
}

/* Two halves of 16 bits keep what f32 has; a value of K/V that lies between two of its type may
 * still become the other one. */
static void logits_of_four_layers_by_tensor_cores_are_the_hosts(void **state)
{
    struct model *model = *state;
    double worst, largest;
    compare(model, PP_BF16, 16, &worst, &largest);
    assert_true(largest > 1.0);
    assert_true(worst < 1e-2);
}

static int open_once(void **state)
{
    static struct model model;
    (void)both_setup(state);
    model = model_open();
    *state = &model;
    return 0;
}

static int close_once(void **state)
{
    struct model *model = *state;
    gw_gguf_close(model->gguf);
    gguf_build_free(&model->build);
    return 0;
}

int main(void)
{
    both_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_four_layers_in_f32_are_the_hosts),
        cmocka_unit_test(logits_of_four_layers_by_tensor_cores_are_the_hosts),
    };
    return cmocka_run_group_tests(tests, open_once, close_once);
}
