/*
 * Centres and lsh signatures of a layer's keys on the host, for nodes that then need not hash. On
 * the walk: engine/sign > ops > here. It refuses to know segments and nodes.
 */
#include "common/base/limits.h"
#include "common/run/team.h"
#include "gpu-worker/device/host.h"

#define SIGN_TOKENS 64u /* hashed at once by a thread: their codes lie on its stack */

struct sign_work {
    const struct gw_heads *heads;
    const struct pp_hash *hash;
    const uint8_t *k;
    uint64_t vector_bytes, token_bytes, count;
    uint32_t l;
    const float *centre;
    float *centre_out;
    uint16_t *codes_out;
};

static struct sign_work sign_work_of(const struct gw_heads *heads, const void *k, uint64_t count)
{
    uint64_t bytes = pp_vector_bytes(heads->head_dim, heads->kv_dtype);
    return (struct sign_work){.heads = heads,
                              .k = k,
                              .vector_bytes = bytes,
                              .token_bytes = bytes * heads->kv_heads,
                              .count = count};
}

static void centre_head(void *context, uint64_t head, uint32_t thread)
{
    (void)thread;
    const struct sign_work *work = context;
    uint32_t dim = work->heads->head_dim;
    double sums[PP_HEAD_DIM_MAX] = {0};
    float key[PP_HEAD_DIM_MAX];
    const uint8_t *from = work->k + head * work->vector_bytes;
    for (uint64_t i = 0; i < work->count; i++, from += work->token_bytes) {
        pp_dtype_to_f32(work->heads->kv_dtype, from, dim, key);
        for (uint32_t d = 0; d < dim; d++) {
            sums[d] += (double)key[d];
        }
    }
    for (uint32_t d = 0; d < dim; d++) {
        work->centre_out[head * dim + d] = (float)(sums[d] / (double)work->count);
    }
}

enum pp_status gw_host_centre_keys(struct gw_device *device, struct gw_stream *stream,
                                   const struct gw_heads *heads, const void *k, uint64_t count,
                                   float *centre_out)
{
    (void)stream;
    struct sign_work work = sign_work_of(heads, k, count);
    work.centre_out = centre_out;
    pp_team_for(gw_host_device(device)->threads, heads->kv_heads, centre_head, &work);
    return PP_OK;
}

static void sign_piece(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    const struct sign_work *work = context;
    _Alignas(64) uint16_t codes[PP_LSH_L_MAX * SIGN_TOKENS];
    uint32_t heads = work->heads->kv_heads;
    uint64_t head = index % heads;
    uint64_t begin = index / heads * SIGN_TOKENS;
    uint64_t left = work->count - begin;
    uint32_t count = left < SIGN_TOKENS ? (uint32_t)left : SIGN_TOKENS;
    pp_hash_keys(work->hash, work->k + begin * work->token_bytes + head * work->vector_bytes,
                 work->token_bytes, work->heads->kv_dtype,
                 work->centre + head * work->heads->head_dim, count, codes, SIGN_TOKENS);
    for (uint32_t i = 0; i < count; i++) {
        uint16_t *to = work->codes_out + ((begin + i) * heads + head) * work->l;
        for (uint32_t t = 0; t < work->l; t++) {
            to[t] = codes[t * SIGN_TOKENS + i];
        }
    }
}

enum pp_status gw_host_sign_keys(struct gw_device *device, struct gw_stream *stream,
                                 const struct gw_heads *heads, const struct pp_hash *hash,
                                 uint32_t l, const void *k, uint64_t count, const float *centre,
                                 uint16_t *codes_out)
{
    (void)stream;
    struct sign_work work = sign_work_of(heads, k, count);
    work.hash = hash;
    work.l = l;
    work.centre = centre;
    work.codes_out = codes_out;
    uint64_t pieces = (count + SIGN_TOKENS - 1) / SIGN_TOKENS;
    pp_team_for(gw_host_device(device)->threads, pieces * heads->kv_heads, sign_piece, &work);
    return PP_OK;
}
