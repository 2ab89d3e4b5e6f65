/*
 * Whether values may be held and attended: law 7 at the door. Every appended byte passes here, so
 * the loops are compiled for each instruction set (finite_lanes.h). It refuses to know whose values
 * they are.
 */
#include <stdbool.h>
#include <string.h>

#include "common/attn/finite_lanes.h"
#include "common/attn/shape.h"
#include "common/base/limits.h"
#include "common/run/cpu.h"

static const struct pp_finite_kernels *kernels(void)
{
    switch (pp_isa_get()) {
    case PP_ISA_SCALAR:
        return &pp_finite_scalar;
    case PP_ISA_AVX2:
        return &pp_finite_avx2;
    default:
        return &pp_finite_avx512;
    }
}

enum pp_status pp_dtype_check_finite(enum pp_dtype dtype, const void *values, uint64_t count)
{
    const float magnitude_max = PP_MAGNITUDE_MAX;
    uint32_t bound;
    memcpy(&bound, &magnitude_max, sizeof(bound));
    bool within;
    switch ((int)dtype) {
    case PP_BF16:
        within = kernels()->worst_half(values, count) <= bound >> 16;
        break;
    case PP_F16: /* its largest is below the bound */
        within = kernels()->worst_half(values, count) <= 0x7bffu;
        break;
    default:
        within = kernels()->worst_word(values, count) <= bound;
        break;
    }
    return within ? PP_OK : PP_NON_FINITE;
}
