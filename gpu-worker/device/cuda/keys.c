/*
 * Centres, second moments and lsh signatures of a layer's keys on the GPU: what goes there and what
 * comes back to host memory. The tables of a hash are copied once and kept, by what determines
 * them. It refuses to know segments and nodes.
 */
#include <stdlib.h>
#include <string.h>

#include "common/attn/hash.h"
#include "common/base/assert.h"
#include "gpu-worker/device/cuda/internal.h"

#define SUM_THREADS  32u /* few columns: spread over the processors */
#define SIGN_THREADS 256u
#define WARP         32u
#define ROTATIONS    3u

static uint64_t column_count(const struct gw_heads *heads)
{
    return (uint64_t)heads->kv_heads * heads->head_dim;
}

static struct gw_cuda_shape columns_shape(const struct gw_heads *heads)
{
    uint32_t blocks = (uint32_t)((column_count(heads) + SUM_THREADS - 1) / SUM_THREADS);
    return (struct gw_cuda_shape){blocks, 1, 1, SUM_THREADS, 0};
}

static struct gw_cuda_key_sums_args key_sums_args(struct gw_cuda_device *cuda,
                                                  const struct gw_heads *heads, const void *k,
                                                  uint64_t count)
{
    return (struct gw_cuda_key_sums_args){.k = k,
                                          .count = count,
                                          .kv_heads = heads->kv_heads,
                                          .dim = heads->head_dim,
                                          .dtype = (uint32_t)heads->kv_dtype,
                                          .centre = cuda->centre,
                                          .means = cuda->centre,
                                          .squares = cuda->squares};
}

enum pp_status gw_cuda_centre_keys(struct gw_device *device, struct gw_stream *stream,
                                   const struct gw_heads *heads, const void *k, uint64_t count,
                                   float *centre_out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_key_sums_args args = key_sums_args(cuda, heads, k, count);
    const struct gw_cuda_shape shape = columns_shape(heads);
    PP_TRY(GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_centre_keys, &shape, &args));
    PP_TRY(gw_cuda_copy_out(device, stream, centre_out, cuda->centre,
                            column_count(heads) * sizeof(float)));
    return gw_cuda_synchronize(device, stream);
}

enum pp_status gw_cuda_key_squares(struct gw_device *device, struct gw_stream *stream,
                                   const struct gw_heads *heads, const void *k, uint64_t count,
                                   const float *centre, double *sums)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_key_sums_args args = key_sums_args(cuda, heads, k, count);
    const struct gw_cuda_shape shape = columns_shape(heads);
    uint64_t columns = column_count(heads);
    PP_TRY(gw_cuda_copy_in(device, stream, cuda->centre, centre, columns * sizeof(float)));
    PP_TRY(gw_cuda_copy_in(device, stream, cuda->squares, sums, columns * sizeof(double)));
    PP_TRY(GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_key_squares, &shape, &args));
    PP_TRY(gw_cuda_copy_out(device, stream, sums, cuda->squares, columns * sizeof(double)));
    return gw_cuda_synchronize(device, stream);
}

enum pp_status gw_cuda_query_squares(struct gw_device *device, struct gw_stream *stream,
                                     const struct gw_heads *heads, const float *q, uint32_t rows,
                                     double *sums)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_query_squares_args args = {.q = q,
                                                    .rows = rows,
                                                    .q_heads = heads->q_heads,
                                                    .kv_heads = heads->kv_heads,
                                                    .dim = heads->head_dim,
                                                    .squares = cuda->squares};
    const struct gw_cuda_shape shape = columns_shape(heads);
    uint64_t bytes = column_count(heads) * sizeof(double);
    PP_TRY(gw_cuda_copy_in(device, stream, cuda->squares, sums, bytes));
    PP_TRY(
        GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_query_squares, &shape, &args));
    PP_TRY(gw_cuda_copy_out(device, stream, sums, cuda->squares, bytes));
    return gw_cuda_synchronize(device, stream);
}

/* Signs as bits, 32 dimensions a word. */
static void pack_signs(const struct pp_hash_tables *tables, uint32_t *signs)
{
    uint32_t words = tables->size / WARP;
    memset(signs, 0, sizeof(*signs) * words * (ROTATIONS + tables->blocks));
    for (uint32_t i = 0; i < ROTATIONS + tables->blocks; i++) {
        for (uint32_t d = 0; d < tables->size; d++) {
            signs[i * words + d / WARP] |= (tables->sign_masks[i][d] != 0 ? 1u : 0u) << (d % WARP);
        }
    }
}

static void hash_drop(struct gw_device *device, struct gw_cuda_hash *hash)
{
    gw_cuda_free(device, (void *)(uintptr_t)hash->signs);
    gw_cuda_free(device, (void *)(uintptr_t)hash->source);
    memset(hash, 0, sizeof(*hash));
}

static enum pp_status hash_upload(struct gw_device *device, const struct pp_hash_tables *tables,
                                  struct gw_cuda_hash *hash)
{
    uint64_t words = (uint64_t)(ROTATIONS + tables->blocks) * tables->size / WARP;
    uint64_t source_bytes = (uint64_t)tables->k * tables->l * sizeof(uint16_t);
    uint32_t *packed = malloc(words * sizeof(*packed));
    void *signs = NULL, *source = NULL;
    enum pp_status status = packed == NULL ? PP_MEMORY : PP_OK;
    if (status == PP_OK) {
        pack_signs(tables, packed);
        status = gw_cuda_alloc(device, words * sizeof(*packed), &signs);
    }
    if (status == PP_OK) {
        status = gw_cuda_alloc(device, source_bytes, &source);
    }
    *hash = (struct gw_cuda_hash){.seed = tables->seed,
                                  .dim = tables->dim,
                                  .k = tables->k,
                                  .l = tables->l,
                                  .size = tables->size,
                                  .blocks = tables->blocks,
                                  .signs = gw_cuda_pointer_of(signs),
                                  .source = gw_cuda_pointer_of(source)};
    if (status == PP_OK) {
        status = gw_cuda_copy_in(device, NULL, signs, packed, words * sizeof(*packed));
    }
    if (status == PP_OK) {
        status = gw_cuda_copy_in(device, NULL, source, tables->source, source_bytes);
    }
    if (status != PP_OK) {
        hash_drop(device, hash);
    }
    free(packed);
    return status;
}

static enum pp_status hash_of(struct gw_device *device, const struct pp_hash *hash,
                              const struct gw_cuda_hash **hash_out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct pp_hash_tables tables;
    pp_hash_tables(hash, &tables);
    for (uint32_t i = 0; i < GW_CUDA_HASHES_MAX; i++) {
        const struct gw_cuda_hash *known = &cuda->hashes[i];
        if (known->signs != 0 && known->seed == tables.seed && known->dim == tables.dim &&
            known->k == tables.k && known->l == tables.l) {
            *hash_out = known;
            return PP_OK;
        }
    }
    struct gw_cuda_hash *taken = &cuda->hashes[cuda->hash_next];
    cuda->hash_next = (cuda->hash_next + 1) % GW_CUDA_HASHES_MAX;
    hash_drop(device, taken);
    PP_TRY(hash_upload(device, &tables, taken));
    *hash_out = taken;
    return PP_OK;
}

static enum gw_cuda_kernel sign_kernel(uint32_t size)
{
    return size == 64    ? GW_CUDA_sign_keys_64
           : size == 128 ? GW_CUDA_sign_keys_128
                         : GW_CUDA_sign_keys_256;
}

/* The layout of sign_keys.cu: signs, a word a ballot of each warp, sources of the bits. */
static uint32_t sign_shared_bytes(const struct gw_cuda_hash *hash)
{
    uint32_t words = hash->size / WARP;
    return ((ROTATIONS + hash->blocks) * words + SIGN_THREADS / WARP * hash->blocks * words) *
               (uint32_t)sizeof(uint32_t) +
           hash->k * hash->l * (uint32_t)sizeof(uint16_t);
}

enum pp_status gw_cuda_sign_keys(struct gw_device *device, struct gw_stream *stream,
                                 const struct gw_heads *heads, const struct pp_hash *hash,
                                 uint32_t l, const void *k, uint64_t count, const float *centre,
                                 uint16_t *codes_out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_hash *tables;
    uint64_t codes = (uint64_t)heads->kv_heads * l; /* of a token */
    uint64_t step = GW_CUDA_CODES_BYTES / (codes * sizeof(uint16_t));
    uint64_t row_bytes = heads->kv_heads * pp_vector_bytes(heads->head_dim, heads->kv_dtype);
    PP_TRY(hash_of(device, hash, &tables));
    PP_ASSERT(tables->l == l && tables->dim == heads->head_dim && step > 0);
    PP_TRY(
        gw_cuda_copy_in(device, stream, cuda->centre, centre, column_count(heads) * sizeof(float)));
    for (uint64_t begin = 0; begin < count; begin += step) {
        const struct gw_cuda_sign_keys_args args = {
            .k = (const uint8_t *)k + begin * row_bytes,
            .count = count - begin < step ? count - begin : step,
            .kv_heads = heads->kv_heads,
            .dim = heads->head_dim,
            .dtype = (uint32_t)heads->kv_dtype,
            .table_bits = tables->k,
            .tables = l,
            .blocks = tables->blocks,
            .centre = cuda->centre,
            .signs = (const uint32_t *)(uintptr_t)tables->signs,
            .source = (const uint16_t *)(uintptr_t)tables->source,
            .codes = cuda->codes};
        struct gw_cuda_shape shape =
            gw_cuda_striding(cuda, args.count * heads->kv_heads * WARP, SIGN_THREADS);
        shape.shared_bytes = sign_shared_bytes(tables);
        PP_TRY(GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), sign_kernel(tables->size), &shape,
                              &args));
        PP_TRY(gw_cuda_copy_out(device, stream, codes_out + begin * codes, cuda->codes,
                                args.count * codes * sizeof(uint16_t)));
    }
    return gw_cuda_synchronize(device, stream);
}
