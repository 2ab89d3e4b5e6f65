/*
 * Rings of late queries. See late.h.
 */
#include "attn-node/kv/late.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"

struct an_late {
    uint32_t layers, q_heads, dim;
    uint32_t *next;    /* [layers] rows ever put, up to a bound that keeps the ring's place */
    uint16_t *queries; /* [layers][AN_LATE_ROWS][q_heads][dim] bf16 */
};

uint64_t an_late_bytes(uint32_t layers, uint32_t q_heads, uint32_t dim)
{
    uint64_t row = (uint64_t)q_heads * dim * sizeof(uint16_t);
    uint64_t bytes =
        sizeof(struct an_late) + (uint64_t)layers * (sizeof(uint32_t) + AN_LATE_ROWS * row);
    return bytes <= AN_LATE_BYTES_MAX ? bytes : 0;
}

struct an_late *an_late_new(uint32_t layers, uint32_t q_heads, uint32_t dim)
{
    struct an_late *late = calloc(1, an_late_bytes(layers, q_heads, dim));
    if (late != NULL) {
        late->layers = layers;
        late->q_heads = q_heads;
        late->dim = dim;
        late->next = (uint32_t *)(late + 1);
        late->queries = (uint16_t *)(late->next + layers);
    }
    return late;
}

void an_late_destroy(struct an_late *late)
{
    free(late);
}

static uint16_t *ring_of(const struct an_late *late, uint32_t layer)
{
    return late->queries + (uint64_t)layer * AN_LATE_ROWS * late->q_heads * late->dim;
}

/* f32 to bf16, half to even: a loop that becomes vectors, since it is on the path of every attend.
 */
static void narrow(const float *values, uint32_t dim, uint16_t *out)
{
    for (uint32_t i = 0; i < dim; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        out[i] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
}

void an_late_put(struct an_late *late, uint32_t layer, enum pp_dtype dtype, const uint8_t *q,
                 uint32_t rows)
{
    uint32_t skipped = rows > AN_LATE_ROWS ? rows - AN_LATE_ROWS : 0;
    uint64_t bytes = (uint64_t)late->dim * pp_dtype_bytes(dtype);
    q += (uint64_t)skipped * late->q_heads * bytes;
    for (uint32_t row = skipped; row < rows; row++) {
        uint32_t place = late->next[layer] % AN_LATE_ROWS;
        uint16_t *out = ring_of(late, layer) + (uint64_t)place * late->q_heads * late->dim;
        for (uint32_t head = 0; head < late->q_heads; head++, q += bytes, out += late->dim) {
            float aligned[PP_HEAD_DIM_MAX];
            float values[PP_HEAD_DIM_MAX];
            memcpy(aligned, q, bytes);
            if (dtype == PP_BF16) {
                memcpy(out, aligned, bytes);
                continue;
            }
            const float *wide = aligned;
            if (dtype != PP_F32) {
                pp_dtype_to_f32(dtype, aligned, late->dim, values);
                wide = values;
            }
            narrow(wide, late->dim, out);
        }
        uint32_t next = late->next[layer] + 1;
        late->next[layer] = next < 2 * AN_LATE_ROWS ? next : AN_LATE_ROWS;
    }
}

uint32_t an_late_get(const struct an_late *late, uint32_t layer, float *out)
{
    uint32_t rows = late->next[layer] < AN_LATE_ROWS ? late->next[layer] : AN_LATE_ROWS;
    uint64_t row = (uint64_t)late->q_heads * late->dim;
    pp_dtype_to_f32(PP_BF16, ring_of(late, layer), rows * row, out);
    return rows;
}
