/*
 * LSH signatures: the tables of signs and bits of one (seed, dim, k, l), and the way of rows into
 * lanes and of lanes into table-major codes. The arithmetic lies in hash_lanes.h.
 */
#include "common/attn/hash.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/attn/hash_lanes.h"
#include "common/base/rng.h"
#include "common/run/cpu.h"

static uint32_t padded_size(uint32_t dim)
{
    return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

static const struct pp_hash_kernels *kernels(void)
{
    switch (pp_isa_get()) {
    case PP_ISA_SCALAR:
        return &pp_hash_scalar;
    case PP_ISA_AVX2:
        return &pp_hash_avx2;
    default:
        return &pp_hash_avx512;
    }
}

static void draw_signs(struct pp_hash *hash)
{
    for (uint32_t i = 0; i < PP_HASH_SHARED + hash->block_count; ++i) {
        for (uint32_t j = 0; j < hash->size; ++j) {
            uint32_t negative = (uint32_t)(pp_rng_at(hash->seed, i * 256ull + j) & 1u);
            hash->sign_masks[i][j] = negative != 0 ? -1 : 0;
            if (i < PP_HASH_SHARED) {
                hash->shared_masks[i][j] = hash->sign_masks[i][j];
            } else {
                uint32_t bit = (i - PP_HASH_SHARED) * hash->size + j;
                hash->signed_rows[bit] = (uint16_t)(2 * j + negative);
            }
        }
    }
}

/* Bit j of table t from block (t + j) mod R in order of dimension; when that block is used up, from
 * the least used one. */
static void assign_bits(struct pp_hash *hash)
{
    for (uint32_t t = 0; t < hash->l; ++t) {
        for (uint32_t j = 0; j < hash->k; ++j) {
            uint32_t block = (t + j) % hash->block_count;
            if (hash->block_used[block] == hash->size) {
                block = 0;
                for (uint32_t r = 1; r < hash->block_count; ++r) {
                    block = hash->block_used[r] < hash->block_used[block] ? r : block;
                }
            }
            uint32_t i = hash->block_used[block]++;
            hash->target[block][i].table = (uint16_t)t;
            hash->target[block][i].bit = (uint16_t)j;
            hash->source[t * hash->k + j] = (uint16_t)(block * hash->size + i);
        }
    }
}

enum pp_status pp_hash_new(uint64_t seed, uint32_t dim, uint32_t k, uint32_t l,
                           struct pp_hash **hash_out)
{
    if (dim < 1 || dim > PP_HEAD_DIM_MAX || k < 1 || k > PP_LSH_K_MAX || l < 1 ||
        l > PP_LSH_L_MAX) {
        return PP_INVALID_ARGUMENT;
    }
    struct pp_hash *hash = calloc(1, sizeof(*hash));
    if (hash == NULL) {
        return PP_MEMORY;
    }
    hash->seed = seed;
    hash->dim = dim;
    hash->size = padded_size(dim);
    hash->k = k;
    hash->l = l;
    hash->block_count = (k * l + hash->size - 1) / hash->size;
    draw_signs(hash);
    assign_bits(hash);
    *hash_out = hash;
    return PP_OK;
}

void pp_hash_destroy(struct pp_hash *hash)
{
    free(hash);
}

void pp_hash_tables(const struct pp_hash *hash, struct pp_hash_tables *tables_out)
{
    *tables_out = (struct pp_hash_tables){.seed = hash->seed,
                                          .dim = hash->dim,
                                          .size = hash->size,
                                          .k = hash->k,
                                          .l = hash->l,
                                          .blocks = hash->block_count,
                                          .sign_masks = hash->sign_masks,
                                          .source = hash->source};
}

void pp_hash_queries(const struct pp_hash *hash, const float *q, uint32_t count,
                     uint16_t *codes_out)
{
    _Alignas(64) float x[PP_HASH_SIZE_MAX * PP_HASH_LANES];
    _Alignas(64) uint16_t codes[PP_LSH_L_MAX * PP_HASH_LANES];
    const struct pp_hash_kernels *kernel = kernels();
    for (uint32_t begin = 0; begin < count; begin += PP_HASH_LANES) {
        uint32_t lanes = count - begin < PP_HASH_LANES ? count - begin : PP_HASH_LANES;
        kernel->fill(hash, q + (uint64_t)begin * hash->dim, hash->dim * sizeof(*q), PP_F32, NULL,
                     lanes, x);
        kernel->lanes(hash, x, codes, PP_HASH_LANES);
        for (uint32_t lane = 0; lane < lanes; ++lane) {
            uint16_t *out = codes_out + (uint64_t)(begin + lane) * hash->l;
            for (uint32_t t = 0; t < hash->l; ++t) {
                out[t] = codes[t * PP_HASH_LANES + lane];
            }
        }
    }
}

void pp_hash_query(const struct pp_hash *hash, const float *q, uint16_t *codes_out)
{
    pp_hash_queries(hash, q, 1, codes_out);
}

void pp_hash_keys(const struct pp_hash *hash, const void *rows, uint64_t row_bytes,
                  enum pp_dtype dtype, const float *centre, uint32_t count, uint16_t *codes_out,
                  uint64_t stride)
{
    _Alignas(64) float x[PP_HASH_SIZE_MAX * PP_HASH_LANES];
    const struct pp_hash_kernels *kernel = kernels();
    const uint8_t *base = rows;
    for (uint32_t begin = 0; begin < count; begin += PP_HASH_LANES) {
        uint32_t lanes = count - begin < PP_HASH_LANES ? count - begin : PP_HASH_LANES;
        kernel->fill(hash, base + begin * row_bytes, row_bytes, dtype, centre, lanes, x);
        kernel->lanes(hash, x, codes_out + begin, stride);
    }
    atomic_thread_fence(memory_order_seq_cst); /* stores past the caches come before what follows */
}
