/*
 * What the detokenizer needs of the tokenizer beyond its public face. Not included from elsewhere.
 */
#ifndef PIGPEN_GPU_WORKER_MODEL_TOKENIZER_INTERNAL_H
#define PIGPEN_GPU_WORKER_MODEL_TOKENIZER_INTERNAL_H

#include "gpu-worker/model/tokenizer.h"

/* Bytes of the longest token. */
size_t gw_tokenizer_token_bytes_max(const struct gw_tokenizer *tokenizer);

#endif
