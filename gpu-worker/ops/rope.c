/*
 * Builds the tables of rotary angles. It refuses to know where the parameters come from.
 */
#include "gpu-worker/ops/rope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void rope_fill(const float *inv_freq, uint32_t half, uint32_t position_count, float *cosine,
                      float *sine)
{
    for (uint64_t position = 0; position < position_count; position++) {
        for (uint32_t i = 0; i < half; i++) {
            float angle = (float)position * inv_freq[i];
            cosine[position * half + i] = (float)cos((double)angle);
            sine[position * half + i] = (float)sin((double)angle);
        }
    }
}

enum pp_status gw_rope_init(struct gw_rope_table *table, struct gw_device *device,
                            const float *inv_freq, uint32_t dim, bool interleaved,
                            uint32_t position_count)
{
    uint64_t count = (uint64_t)position_count * (dim / 2);
    uint64_t bytes = count * sizeof(float);
    enum pp_status status = PP_MEMORY;
    void *cosine = NULL, *sine = NULL;
    float *host = malloc(2 * bytes);
    if (host == NULL) {
        return PP_MEMORY;
    }
    rope_fill(inv_freq, dim / 2, position_count, host, host + count);
    status = device->ops->alloc(device, bytes, &cosine);
    if (status == PP_OK) {
        status = device->ops->alloc(device, bytes, &sine);
    }
    if (status == PP_OK) {
        status = device->ops->copy_in(device, NULL, cosine, host, bytes);
    }
    if (status == PP_OK) {
        status = device->ops->copy_in(device, NULL, sine, host + count, bytes);
    }
    free(host);
    *table = (struct gw_rope_table){cosine, sine, position_count, interleaved};
    if (status != PP_OK) {
        gw_rope_deinit(table, device);
    }
    return status;
}

static void rope_free(struct gw_device *device, const float *memory)
{
    if (memory != NULL) {
        device->ops->free(device, (void *)(uintptr_t)memory);
    }
}

void gw_rope_deinit(struct gw_rope_table *table, struct gw_device *device)
{
    rope_free(device, table->cosine);
    rope_free(device, table->sine);
    memset(table, 0, sizeof(*table));
}
