/*
 * Writes GGUF files into memory, good ones and hostile ones, for the tests of the model folder. The
 * counts in the header follow what is added unless a test overwrites them.
 */
#ifndef PIGPEN_TESTS_UNIT_GGUF_BUILD_H
#define PIGPEN_TESTS_UNIT_GGUF_BUILD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gguf_build {
    uint8_t *data; /* owned */
    size_t bytes;
    size_t capacity;
    uint64_t key_count;
    uint64_t tensor_count;
};

static inline void gguf_build_raw(struct gguf_build *build, const void *data, size_t bytes)
{
    if (build->bytes + bytes > build->capacity) {
        build->capacity = (build->bytes + bytes) * 2 + 256;
        build->data = realloc(build->data, build->capacity);
        if (build->data == NULL) {
            abort();
        }
    }
    memcpy(build->data + build->bytes, data, bytes);
    build->bytes += bytes;
}

static inline void gguf_build_u32(struct gguf_build *build, uint32_t value)
{
    gguf_build_raw(build, &value, sizeof(value));
}

static inline void gguf_build_u64(struct gguf_build *build, uint64_t value)
{
    gguf_build_raw(build, &value, sizeof(value));
}

static inline void gguf_build_text(struct gguf_build *build, const char *text)
{
    gguf_build_u64(build, strlen(text));
    gguf_build_raw(build, text, strlen(text));
}

static inline void gguf_build_begin(struct gguf_build *build)
{
    memset(build, 0, sizeof(*build));
    gguf_build_raw(build, "GGUF", 4);
    gguf_build_u32(build, 3);
    gguf_build_u64(build, 0);
    gguf_build_u64(build, 0);
}

/* Overwrites a number of the header: 8 is the count of tensors, 16 that of keys. */
static inline void gguf_build_patch_u64(struct gguf_build *build, size_t at, uint64_t value)
{
    memcpy(build->data + at, &value, sizeof(value));
}

/* A key and a type; the value is the caller's to add. */
static inline void gguf_build_key(struct gguf_build *build, const char *key, uint32_t type)
{
    gguf_build_text(build, key);
    gguf_build_u32(build, type);
    gguf_build_patch_u64(build, 16, ++build->key_count);
}

static inline void gguf_build_key_u32(struct gguf_build *build, const char *key, uint32_t value)
{
    gguf_build_key(build, key, 4);
    gguf_build_u32(build, value);
}

static inline void gguf_build_key_f32(struct gguf_build *build, const char *key, float value)
{
    gguf_build_key(build, key, 6);
    gguf_build_raw(build, &value, sizeof(value));
}

static inline void gguf_build_key_bool(struct gguf_build *build, const char *key, uint8_t value)
{
    gguf_build_key(build, key, 7);
    gguf_build_raw(build, &value, 1);
}

static inline void gguf_build_key_text(struct gguf_build *build, const char *key, const char *text)
{
    gguf_build_key(build, key, 8);
    gguf_build_text(build, text);
}

static inline void gguf_build_key_texts(struct gguf_build *build, const char *key,
                                        const char *const *texts, size_t count)
{
    gguf_build_key(build, key, 9);
    gguf_build_u32(build, 8);
    gguf_build_u64(build, count);
    for (size_t index = 0; index < count; index++) {
        gguf_build_text(build, texts[index]);
    }
}

static inline void gguf_build_key_i32s(struct gguf_build *build, const char *key,
                                       const int32_t *values, size_t count)
{
    gguf_build_key(build, key, 9);
    gguf_build_u32(build, 5);
    gguf_build_u64(build, count);
    gguf_build_raw(build, values, count * sizeof(*values));
}

/* A tensor's info; keys must all have been added. */
static inline void gguf_build_tensor(struct gguf_build *build, const char *name, uint32_t dim_count,
                                     const uint64_t *dims, uint32_t type, uint64_t offset)
{
    gguf_build_text(build, name);
    gguf_build_u32(build, dim_count);
    gguf_build_raw(build, dims, (dim_count <= 16 ? dim_count : 16) * sizeof(*dims));
    gguf_build_u32(build, type);
    gguf_build_u64(build, offset);
    gguf_build_patch_u64(build, 8, ++build->tensor_count);
}

/* Pads to the data section and adds zeroed data. */
static inline void gguf_build_data(struct gguf_build *build, size_t bytes)
{
    static const uint8_t ZEROS[256];
    while (build->bytes % 32 != 0) {
        gguf_build_raw(build, ZEROS, 1);
    }
    for (; bytes > 0; bytes -= bytes < sizeof(ZEROS) ? bytes : sizeof(ZEROS)) {
        gguf_build_raw(build, ZEROS, bytes < sizeof(ZEROS) ? bytes : sizeof(ZEROS));
    }
}

static inline void gguf_build_free(struct gguf_build *build)
{
    free(build->data);
    memset(build, 0, sizeof(*build));
}

/* The keys and tensors of a Llama model; sizes may be wrong on purpose. */
struct gguf_build_llama {
    uint32_t layers;
    uint32_t hidden;
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t ffn;
    uint32_t vocab;
};

static inline void gguf_build_llama_keys(struct gguf_build *build,
                                         const struct gguf_build_llama *llama)
{
    gguf_build_key_text(build, "general.architecture", "llama");
    gguf_build_key_text(build, "general.name", "A tiny one");
    gguf_build_key_u32(build, "llama.block_count", llama->layers);
    gguf_build_key_u32(build, "llama.embedding_length", llama->hidden);
    gguf_build_key_u32(build, "llama.feed_forward_length", llama->ffn);
    gguf_build_key_u32(build, "llama.context_length", 128);
    gguf_build_key_u32(build, "llama.attention.head_count", llama->q_heads);
    gguf_build_key_u32(build, "llama.attention.head_count_kv", llama->kv_heads);
    gguf_build_key_f32(build, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
    gguf_build_key_f32(build, "llama.rope.freq_base", 10000);
    gguf_build_key_u32(build, "llama.vocab_size", llama->vocab);
}

/* One F32 tensor behind the others; *offset moves on. out 0 makes a vector. */
static inline void gguf_build_f32(struct gguf_build *build, const char *name, uint64_t in,
                                  uint64_t out, uint64_t *offset)
{
    const uint64_t dims[2] = {in, out};
    gguf_build_tensor(build, name, out == 0 ? 1 : 2, dims, 0, *offset);
    *offset += (in * (out == 0 ? 1 : out) * 4 + 31) / 32 * 32;
}

/* Every tensor but one whose name is `without`; returns the bytes of data they need. */
static inline uint64_t gguf_build_llama_tensors(struct gguf_build *build,
                                                const struct gguf_build_llama *llama,
                                                const char *without)
{
    const uint64_t kv = llama->hidden / llama->q_heads * llama->kv_heads;
    const struct {
        const char *suffix;
        uint64_t in;
        uint64_t out;
    } layer_tensors[] = {
        {"attn_norm", llama->hidden, 0},
        {"attn_q", llama->hidden, llama->hidden},
        {"attn_k", llama->hidden, kv},
        {"attn_v", llama->hidden, kv},
        {"attn_output", llama->hidden, llama->hidden},
        {"ffn_norm", llama->hidden, 0},
        {"ffn_gate", llama->hidden, llama->ffn},
        {"ffn_up", llama->hidden, llama->ffn},
        {"ffn_down", llama->ffn, llama->hidden},
    };
    uint64_t offset = 0;
    gguf_build_f32(build, "token_embd.weight", llama->hidden, llama->vocab, &offset);
    gguf_build_f32(build, "output_norm.weight", llama->hidden, 0, &offset);
    for (uint32_t layer = 0; layer < llama->layers; layer++) {
        for (size_t index = 0; index < sizeof(layer_tensors) / sizeof(layer_tensors[0]); index++) {
            char name[64];
            (void)snprintf(name, sizeof(name), "blk.%u.%s.weight", layer,
                           layer_tensors[index].suffix);
            if (without == NULL || strcmp(name, without) != 0) {
                gguf_build_f32(build, name, layer_tensors[index].in, layer_tensors[index].out,
                               &offset);
            }
        }
    }
    return offset;
}

#endif
