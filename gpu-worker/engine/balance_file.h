/*
 * The file that keeps a model's balances from one start to the next: what was measured at the first
 * long prefill serves later texts too. One file a model, named by its fingerprint and shape,
 * written beside its place and renamed into it. It refuses to know how a balance is measured.
 *
 * FOLDER/balance-FINGERPRINT-LxHxD.bin, little-endian: "pgnbalnc", version u32 = 1, layers u32,
 * kv heads u32, head dim u32, fingerprint bytes u32, fingerprint [64] padded with zeros, values f32
 * [layers][kv head][dim] (zeros: that layer was not measured), CRC32C u32 of all before it.
 * Threads: any; two writers leave one of their files, whole.
 */
#ifndef PIGPEN_GPU_WORKER_ENGINE_BALANCE_FILE_H
#define PIGPEN_GPU_WORKER_ENGINE_BALANCE_FILE_H

#include <stdint.h>

#include "common/attn/shape.h"
#include "common/base/status.h"

/* Whose balances. */
struct gw_balance_key {
    const uint8_t *fingerprint;
    uint32_t fingerprint_bytes;
    uint32_t layers, kv_heads, head_dim;
};

/* values [layers][kv heads][dim]. PP_NOT_FOUND when there is no file; PP_DATA_LOSS when it is
 * damaged, of another version or of another model (logged); PP_IO (logged), PP_MEMORY. values_out
 * is written only on success. */
PP_MUST_USE enum pp_status
gw_balance_file_load(const char *folder, const struct gw_balance_key *key, float *values_out);
/* Makes the folder, but not what it lies in. PP_IO, PP_MEMORY, logged. */
PP_MUST_USE enum pp_status
gw_balance_file_save(const char *folder, const struct gw_balance_key *key, const float *values);

#endif
