/*
 * Any bytes as a GGUF file, all the way to the tokenizer: nothing may crash, and what is accepted
 * must be readable to its last byte. Input that does not begin like a GGUF file is a list of edits
 * (place and byte) to a good file, which reaches deep without a corpus.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "gpu-worker/model/chat.h"
#include "gpu-worker/model/config.h"
#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/tokenizer.h"
#include "gpu-worker/model/weights.h"
#include "tests/unit/vocab_build.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void touch_tensors(const struct gw_gguf *gguf, const uint8_t *data, size_t size)
{
    for (uint64_t index = 0; index < gw_gguf_tensor_count(gguf); index++) {
        const struct gw_tensor *tensor = gw_gguf_tensor_at(gguf, index);
        PP_ASSERT(tensor->data >= data && tensor->data + tensor->bytes <= data + size);
        PP_ASSERT(tensor->bytes > 0 && gw_gguf_tensor(gguf, tensor->name) == tensor);
    }
}

static bool load_model(const struct gw_gguf *gguf)
{
    char error[256] = "";
    struct gw_config config;
    struct gw_weights weights;
    if (gw_config_read(gguf, error, sizeof(error), &config) != PP_OK) {
        PP_ASSERT(error[0] != '\0');
        return false;
    }
    PP_ASSERT(config.q_heads % config.kv_heads == 0 && config.head_dim % 2 == 0);
    if (gw_weights_init(&weights, gguf, &config, error, sizeof(error)) != PP_OK) {
        PP_ASSERT(error[0] != '\0');
        return false;
    }
    float inv_freq[256];
    gw_weights_rope(&weights, &config, inv_freq);
    gw_weights_deinit(&weights);
    return true;
}

static bool load_tokenizer(const struct gw_gguf *gguf)
{
    static const char TEXT[] = "Hello, w\xc3\xb6rld 12 <|im_start|>\n\n  x";
    char error[256] = "";
    struct gw_tokenizer *tokenizer = NULL;
    struct gw_chat chat;
    uint32_t *ids = NULL;
    size_t count = 0;
    if (gw_tokenizer_new(gguf, error, sizeof(error), &tokenizer) != PP_OK) {
        PP_ASSERT(error[0] != '\0');
        return false;
    }
    PP_ASSERT(gw_tokenizer_encode(tokenizer, TEXT, strlen(TEXT), true, &ids, &count) == PP_OK);
    for (size_t index = 0; index < count; index++) {
        PP_ASSERT(ids[index] < gw_tokenizer_vocab(tokenizer));
    }
    free(ids);
    const bool has_chat = gw_chat_init(&chat, gguf, tokenizer, NULL, error, sizeof(error)) == PP_OK;
    if (has_chat) {
        const struct gw_chat_message message = {GW_CHAT_USER, TEXT, strlen(TEXT)};
        PP_ASSERT(gw_chat_encode(&chat, &message, 1, true, &ids, &count) == PP_OK);
        free(ids);
    }
    gw_tokenizer_destroy(tokenizer);
    return has_chat;
}

/* Did all of it load? */
static bool load_all(const uint8_t *data, size_t size)
{
    char error[256] = "";
    struct gw_gguf *gguf = NULL;
    if (gw_gguf_parse(data, size, error, sizeof(error), &gguf) != PP_OK) {
        PP_ASSERT(error[0] != '\0');
        return false;
    }
    touch_tensors(gguf, data, size);
    const bool model = load_model(gguf);
    const bool all = load_tokenizer(gguf) && model;
    gw_gguf_close(gguf);
    return all;
}

/* A whole tiny model: keys, vocabulary, template and tensors. */
static void make_good_file(struct gguf_build *build)
{
    static const struct gguf_build_llama LLAMA = {1, 8, 2, 1, 16, 300};
    static const struct vocab_build VOCAB = {.pre = "smollm",
                                             .merges = {"b c", "a b"},
                                             .controls = {"<|im_start|>", "<|im_end|>"},
                                             .users = {"<u>"}};
    gguf_build_begin(build);
    gguf_build_llama_keys(build, &LLAMA);
    vocab_build_keys(build, &VOCAB);
    gguf_build_key_u32(build, "tokenizer.ggml.eos_token_id", 259);
    gguf_build_key_text(build, "tokenizer.chat_template",
                        "{{ '<|im_start|>system\nYou<|im_end|>\n' }}");
    uint64_t bytes = gguf_build_llama_tensors(build, &LLAMA, NULL);
    gguf_build_f32(build, "rope_freqs.weight", 2, 0, &bytes);
    gguf_build_data(build, bytes);
    static const float FACTOR = 1;
    for (size_t pair = 0; pair < 2; pair++) { /* the last tensor: 32 bytes with its padding */
        memcpy(build->data + build->bytes - 32 + 4 * pair, &FACTOR, sizeof(FACTOR));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= 4 && memcmp(data, "GGUF", 4) == 0) {
        (void)load_all(data, size);
        return 0;
    }
    struct gguf_build build;
    make_good_file(&build);
    for (size_t edit = 0; edit + 3 <= size; edit += 3) {
        const size_t place = (size_t)data[edit] << 8 | data[edit + 1];
        build.data[place % build.bytes] = data[edit + 2];
    }
    const bool loaded = load_all(build.data, build.bytes);
    PP_ASSERT(loaded || size >= 3); /* unedited it is good */
    gguf_build_free(&build);
    return 0;
}
