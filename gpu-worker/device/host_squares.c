/*
 * Second moments of a layer's queries and centred keys on the host, summed in f64 in order of the
 * tokens, a kv head a piece of work. On the walk: engine/balance > ops > here. It refuses to know
 * what they are for.
 */
#include "common/base/limits.h"
#include "common/run/team.h"
#include "gpu-worker/device/host.h"

struct squares_work {
    const struct gw_heads *heads;
    const float *q; /* [count][q head][dim] */
    const uint8_t *k;
    const float *centre;
    uint64_t count;
    double *sums;
};

static void query_head(void *context, uint64_t head, uint32_t thread)
{
    (void)thread;
    const struct squares_work *work = context;
    uint32_t dim = work->heads->head_dim;
    uint32_t group = work->heads->q_heads / work->heads->kv_heads;
    double *sums = work->sums + head * dim;
    for (uint64_t row = 0; row < work->count; row++) {
        const float *q = work->q + (row * work->heads->q_heads + head * group) * dim;
        for (uint32_t h = 0; h < group; h++, q += dim) {
            for (uint32_t d = 0; d < dim; d++) {
                sums[d] += (double)q[d] * (double)q[d];
            }
        }
    }
}

enum pp_status gw_host_query_squares(struct gw_device *device, struct gw_stream *stream,
                                     const struct gw_heads *heads, const float *q, uint32_t rows,
                                     double *sums)
{
    (void)stream;
    struct squares_work work = {.heads = heads, .q = q, .count = rows, .sums = sums};
    pp_team_for(gw_host_device(device)->threads, heads->kv_heads, query_head, &work);
    return PP_OK;
}

static void key_head(void *context, uint64_t head, uint32_t thread)
{
    (void)thread;
    const struct squares_work *work = context;
    uint32_t dim = work->heads->head_dim;
    uint64_t bytes = pp_vector_bytes(dim, work->heads->kv_dtype);
    const uint8_t *from = work->k + head * bytes;
    const float *centre = work->centre + head * dim;
    double *sums = work->sums + head * dim;
    float key[PP_HEAD_DIM_MAX];
    for (uint64_t i = 0; i < work->count; i++, from += bytes * work->heads->kv_heads) {
        pp_dtype_to_f32(work->heads->kv_dtype, from, dim, key);
        for (uint32_t d = 0; d < dim; d++) {
            double x = (double)key[d] - (double)centre[d];
            sums[d] += x * x;
        }
    }
}

enum pp_status gw_host_key_squares(struct gw_device *device, struct gw_stream *stream,
                                   const struct gw_heads *heads, const void *k, uint64_t count,
                                   const float *centre, double *sums)
{
    (void)stream;
    struct squares_work work = {
        .heads = heads, .k = k, .centre = centre, .count = count, .sums = sums};
    pp_team_for(gw_host_device(device)->threads, heads->kv_heads, key_head, &work);
    return PP_OK;
}
