/*
 * What a model is: its sizes and constants, read from a GGUF file's keys and checked. The Llama
 * family (general.architecture "llama": Llama, CodeLlama, Mistral, SmolLM2). Whatever would change
 * the arithmetic and is not known here (experts, sliding windows, yarn, ...) is refused by name,
 * since a model computed otherwise than it was trained answers nonsense without any error.
 * Which tokens end an answer is the tokenizer's matter. Threads: a plain value.
 */
#ifndef PIGPEN_GPU_WORKER_MODEL_CONFIG_H
#define PIGPEN_GPU_WORKER_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/model/gguf.h"

/* Which elements of a head the rotation pairs, as the rows of this file's q and k matrices lie. */
enum gw_rope_style {
    GW_ROPE_INTERLEAVED, /* (x[2i], x[2i+1]): GGUF of arch llama, whose converter permutes rows */
    GW_ROPE_HALF_SPLIT,  /* (x[i], x[i + head_dim/2]) */
};

#define GW_CONFIG_NAME_BYTES 96

/* Tokens a vocabulary may have: eight times the largest known. */
#define GW_VOCAB_MAX (1u << 21)

struct gw_config {
    char name[GW_CONFIG_NAME_BYTES]; /* general.name made printable, or the architecture */
    uint32_t layers;
    uint32_t hidden;
    uint32_t q_heads;
    uint32_t kv_heads; /* divides q_heads */
    uint32_t head_dim; /* even, 2..PP_HEAD_DIM_MAX; q_heads x head_dim need not be hidden */
    uint32_t ffn;
    uint32_t vocab;          /* rows of the embedding; may exceed the tokenizer's ids: those without
                                a token must never be sampled */
    uint32_t context_length; /* tokens the model was trained for */
    enum gw_rope_style rope_style;
    uint32_t rope_dim;     /* elements of a head that rotate: always head_dim here */
    double rope_theta;     /* inv_freq[i] = theta^(-2i/rope_dim), before rope_freqs.weight */
    double rope_scale;     /* inv_freq is multiplied by it: 1/factor of "linear" scaling, else 1 */
    float attention_scale; /* of q.k: 1/sqrt(head_dim) unless the file says otherwise */
    float rms_eps;
    bool tied; /* no output.weight: the embedding is the output matrix too */
};

/* error_out says which key is wrong and how. PP_INVALID_ARGUMENT: missing, of a wrong type or out
 * of range; PP_UNIMPLEMENTED: a model that this program does not compute. */
PP_MUST_USE enum pp_status gw_config_read(const struct gw_gguf *gguf, char *error_out,
                                          size_t error_bytes, struct gw_config *config_out);

#endif
