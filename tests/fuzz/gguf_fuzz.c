/*
 * Any bytes as a GGUF file, all the way to the tokenizer: nothing may crash, and what is accepted
 * must be readable to its last byte.
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void touch_tensors(const struct gw_gguf *gguf, const uint8_t *data, size_t size)
{
    for (uint64_t index = 0; index < gw_gguf_tensor_count(gguf); index++) {
        const struct gw_tensor *tensor = gw_gguf_tensor_at(gguf, index);
        PP_ASSERT(tensor->data >= data && tensor->data + tensor->bytes <= data + size);
        PP_ASSERT(tensor->bytes > 0 && gw_gguf_tensor(gguf, tensor->name) == tensor);
    }
}

static void load_model(const struct gw_gguf *gguf)
{
    char error[256] = "";
    struct gw_config config;
    struct gw_weights weights;
    if (gw_config_read(gguf, error, sizeof(error), &config) != PP_OK) {
        PP_ASSERT(error[0] != '\0');
        return;
    }
    PP_ASSERT(config.q_heads % config.kv_heads == 0 && config.head_dim % 2 == 0);
    if (gw_weights_init(&weights, gguf, &config, error, sizeof(error)) != PP_OK) {
        PP_ASSERT(error[0] != '\0');
        return;
    }
    float inv_freq[256];
    gw_weights_rope(&weights, &config, inv_freq);
    gw_weights_deinit(&weights);
}

static void load_tokenizer(const struct gw_gguf *gguf)
{
    static const char TEXT[] = "Hello, w\xc3\xb6rld 12 <|im_start|>\n\n  x";
    char error[256] = "";
    struct gw_tokenizer *tokenizer = NULL;
    struct gw_chat chat;
    uint32_t *ids = NULL;
    size_t count = 0;
    if (gw_tokenizer_new(gguf, error, sizeof(error), &tokenizer) != PP_OK) {
        PP_ASSERT(error[0] != '\0');
        return;
    }
    PP_ASSERT(gw_tokenizer_encode(tokenizer, TEXT, strlen(TEXT), true, &ids, &count) == PP_OK);
    for (size_t index = 0; index < count; index++) {
        PP_ASSERT(ids[index] < gw_tokenizer_vocab(tokenizer));
    }
    free(ids);
    if (gw_chat_init(&chat, gguf, tokenizer, NULL, error, sizeof(error)) == PP_OK) {
        const struct gw_chat_message message = {GW_CHAT_USER, TEXT, strlen(TEXT)};
        PP_ASSERT(gw_chat_encode(&chat, &message, 1, true, &ids, &count) == PP_OK);
        free(ids);
    }
    gw_tokenizer_destroy(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char error[256] = "";
    struct gw_gguf *gguf = NULL;
    if (gw_gguf_parse(data, size, error, sizeof(error), &gguf) != PP_OK) {
        PP_ASSERT(error[0] != '\0');
        return 0;
    }
    touch_tensors(gguf, data, size);
    load_model(gguf);
    load_tokenizer(gguf);
    gw_gguf_close(gguf);
    return 0;
}
