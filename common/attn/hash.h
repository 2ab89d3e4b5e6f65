/*
 * LSH signatures by rotations, in integers, bit-identical everywhere (law 4).
 *
 * x = k - centre in f32 (a query is not centred), zero-padded to P = 64, 128 or 256. e = the
 * largest integer with max|x_i| 2^e <= 32767; X = rint(x 2^e), half to even, all-zero stays zero.
 * Three shared rotations X <- H(s_i * X), i = 0..2, in int32 without rounding, H the Walsh-Hadamard
 * transform. g = the least shift >= 0 with floor(sum|X_i| / 2^g) <= 32767 - P; for g > 0
 * X <- (X + 2^(g-1)) >> g; int16 from here. R = ceil(K*L/P) hash blocks y_r = H(s_{3+r} * X); a bit
 * is y > 0. s_i are vectors of +-1: bit b of dimension j of vector i is the lowest bit of
 * pp_rng_at(seed, i * 256 + j), 1 meaning -1. Bit j of table t comes from hash block (t + j) mod R,
 * its dimensions taken in order; when that block is used up, from the least used block (lowest
 * number on ties). Code of table t: bit j at position j.
 */
#ifndef PIGPEN_COMMON_ATTN_HASH_H
#define PIGPEN_COMMON_ATTN_HASH_H

#include <stdint.h>

#include "common/attn/shape.h"
#include "common/base/status.h"

struct pp_hash; /* immutable after new; shared by threads */

/* PP_INVALID_ARGUMENT on k, l or dim out of range; PP_MEMORY. */
PP_MUST_USE enum pp_status pp_hash_new(uint64_t seed, uint32_t dim, uint32_t k, uint32_t l,
                                       struct pp_hash **hash_out);
void pp_hash_destroy(struct pp_hash *hash);

/* Signature of one query: q [dim] f32 finite -> codes_out [l]. */
void pp_hash_query(const struct pp_hash *hash, const float *q, uint16_t *codes_out);

/* The same for count queries at once, in lanes: q [count][dim] f32 -> codes_out [count][l]. */
void pp_hash_queries(const struct pp_hash *hash, const float *q, uint32_t count,
                     uint16_t *codes_out);

/* Signatures of count keys. rows: the K part of each row, `row_bytes` apart, of dtype. centre [dim]
 * f32. codes_out is [l][stride], table-major: code of key i and table t at t * stride + i;
 * stride >= count rounded up to 32, and the padding may be written. codes_out 64-byte aligned and
 * stride a multiple of 32. Scratch lives on the stack. */
void pp_hash_keys(const struct pp_hash *hash, const void *rows, uint64_t row_bytes,
                  enum pp_dtype dtype, const float *centre, uint32_t count, uint16_t *codes_out,
                  uint64_t stride);

/* What the law draws of a seed, for devices that hash by themselves. size: P; blocks: R. sign_masks
 * [3 + blocks][256], of which `size` count: -1 where s_i is -1, else 0. source [k * l]: bit j of
 * table t is dimension source[t * k + j] % size of hash block source[t * k + j] / size. The arrays
 * live as long as the hash. */
struct pp_hash_tables {
    uint64_t seed;
    uint32_t dim, size, k, l, blocks;
    const int16_t (*sign_masks)[256];
    const uint16_t *source;
};
void pp_hash_tables(const struct pp_hash *hash, struct pp_hash_tables *tables_out);

#endif
