/*
 * The reference of what an index build does with rows and codes: see kernels.h for the orders of
 * summation, which every variant keeps to the bit.
 */
#include "attn-node/kernels/tables.h"
#include "common/base/limits.h"

#define LANES 16u

void an_sum_keys_scalar(const struct an_rows *rows, uint32_t begin, uint32_t end, double *sums)
{
    float key[PP_HEAD_DIM_MAX];
    for (uint32_t row = begin; row < end; ++row) {
        pp_dtype_to_f32(rows->dtype, rows->base + row * rows->row_bytes, rows->dim, key);
        for (uint32_t i = 0; i < rows->dim; ++i) {
            sums[i] += (double)key[i];
        }
    }
}

void an_square_distances_scalar(const struct an_rows *rows, uint32_t begin, uint32_t end,
                                const float *centre, double *squares_out)
{
    float key[PP_HEAD_DIM_MAX];
    for (uint32_t row = begin; row < end; ++row) {
        pp_dtype_to_f32(rows->dtype, rows->base + row * rows->row_bytes, rows->dim, key);
        double sums[LANES] = {0.0};
        for (uint32_t i = 0; i < rows->dim; ++i) {
            double difference = (double)(key[i] - centre[i]);
            sums[i % LANES] += difference * difference;
        }
        for (uint32_t apart = LANES / 2; apart > 0; apart /= 2) {
            for (uint32_t lane = 0; lane < apart; ++lane) {
                sums[lane] += sums[lane + apart];
            }
        }
        squares_out[row - begin] = sums[0];
    }
}

void an_sort_codes_scalar(const uint16_t *codes, uint32_t count, uint32_t k, void *scratch,
                          uint16_t *offsets, uint16_t *ids)
{
    uint16_t *cursors = an_sort_cursors(codes, count, k, scratch, offsets);
    for (uint32_t i = 0; i < count; ++i) {
        ids[cursors[codes[i]]++] = (uint16_t)i;
    }
}
