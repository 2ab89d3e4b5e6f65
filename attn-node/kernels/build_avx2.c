/*
 * The kernels of an index build compiled for one instruction set: see build_vector.h.
 */
#include "attn-node/kernels/build_vector.h"
#include "attn-node/kernels/tables.h"

void an_sum_keys_avx2(const struct an_rows *rows, uint32_t begin, uint32_t end, double *sums)
{
    switch (rows->dtype) {
    case PP_F32:
        an_sum_keys_body(rows, PP_F32, begin, end, sums);
        break;
    case PP_F16:
        an_sum_keys_body(rows, PP_F16, begin, end, sums);
        break;
    case PP_I8:
        an_sum_keys_body(rows, PP_I8, begin, end, sums);
        break;
    default:
        an_sum_keys_body(rows, PP_BF16, begin, end, sums);
    }
}

void an_square_distances_avx2(const struct an_rows *rows, uint32_t begin, uint32_t end,
                              const float *centre, double *squares_out)
{
    switch (rows->dtype) {
    case PP_F32:
        an_square_distances_body(rows, PP_F32, begin, end, centre, squares_out);
        break;
    case PP_F16:
        an_square_distances_body(rows, PP_F16, begin, end, centre, squares_out);
        break;
    case PP_I8:
        an_square_distances_body(rows, PP_I8, begin, end, centre, squares_out);
        break;
    default:
        an_square_distances_body(rows, PP_BF16, begin, end, centre, squares_out);
    }
}

void an_sort_codes_avx2(const uint16_t *codes, uint32_t count, uint32_t k, void *scratch,
                        uint16_t *offsets, uint16_t *ids)
{
    an_sort_codes_body(codes, count, k, scratch, offsets, ids);
}
