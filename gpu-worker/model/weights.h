/*
 * The tensors of a Llama-family model by their place in it, each held against the shape that the
 * config asks for; missing, misshapen and unknown ones are errors by name. Nothing is copied or
 * dequantised: the tensors are the GGUF file's and live as long as it. A matrix [in, out] has
 * dims[0] = in contiguous, so a row of dims[0] elements makes one output (y = W x).
 * Rows of q and k lie as gw_config.rope_style says. Threads: init on one; then immutable.
 */
#ifndef PIGPEN_GPU_WORKER_MODEL_WEIGHTS_H
#define PIGPEN_GPU_WORKER_MODEL_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/model/config.h"
#include "gpu-worker/model/gguf.h"

struct gw_layer_weights {
    const struct gw_tensor *attn_norm;   /* f32 [hidden] */
    const struct gw_tensor *attn_q;      /* [hidden, q_heads*head_dim] */
    const struct gw_tensor *attn_k;      /* [hidden, kv_heads*head_dim] */
    const struct gw_tensor *attn_v;      /* [hidden, kv_heads*head_dim] */
    const struct gw_tensor *attn_output; /* [q_heads*head_dim, hidden] */
    const struct gw_tensor *ffn_norm;    /* f32 [hidden] */
    const struct gw_tensor *ffn_gate;    /* [hidden, ffn] */
    const struct gw_tensor *ffn_up;      /* [hidden, ffn] */
    const struct gw_tensor *ffn_down;    /* [ffn, hidden] */
};

struct gw_weights {
    const struct gw_tensor *embedding;   /* [hidden, vocab] */
    const struct gw_tensor *output_norm; /* f32 [hidden] */
    const struct gw_tensor *output;      /* [hidden, vocab]; the embedding itself when tied */
    const struct gw_tensor *rope_freqs;  /* f32 [head_dim/2], or NULL */
    struct gw_layer_weights *layers;     /* owned, layer_count */
    uint32_t layer_count;
};

/* PP_INVALID_ARGUMENT with error_out naming the tensor; PP_MEMORY. */
PP_MUST_USE enum pp_status gw_weights_init(struct gw_weights *weights, const struct gw_gguf *gguf,
                                           const struct gw_config *config, char *error_out,
                                           size_t error_bytes);
void gw_weights_deinit(struct gw_weights *weights);

/* The angle that position 1 turns each pair by, inv_freq_out[head_dim/2]: theta^(-2i/head_dim) x
 * rope_scale, divided by rope_freqs[i] where the file has them (Llama 3's scaling). Computed in
 * f64, rounded once. The angle at a position is the f32 product position x inv_freq. */
void gw_weights_rope(const struct gw_weights *weights, const struct gw_config *config,
                     float *inv_freq_out);

#endif
