/*
 * The choice of a kernel table, once, and the arithmetic of accumulators that is too small for a
 * kernel.
 */
#include "attn-node/kernels/kernels.h"

#include <math.h>
#include <string.h>

#include "attn-node/kernels/tables.h"
#include "common/run/cpu.h"

static const struct an_kernels *const tables[] = {
    [PP_ISA_SCALAR] = &an_kernels_scalar,
    [PP_ISA_AVX2] = &an_kernels_avx2,
    [PP_ISA_AVX512] = &an_kernels_avx512,
};

const struct an_kernels *an_kernels_get(void)
{
    enum pp_isa isa = pp_isa_get();
    return tables[isa > PP_ISA_AVX512 ? PP_ISA_AVX512 : isa];
}

const struct an_kernels *an_kernels_named(const char *isa)
{
    enum pp_isa wanted;
    if (pp_isa_parse(isa, &wanted) != PP_OK || wanted > pp_isa_best() || wanted > PP_ISA_AVX512) {
        return NULL;
    }
    return tables[wanted];
}

void an_accumulator_clear(struct an_accumulator *accumulator, uint32_t dim)
{
    memset(accumulator->o, 0, dim * sizeof(*accumulator->o));
    if (accumulator->b1 != NULL) {
        memset(accumulator->b1, 0, dim * sizeof(*accumulator->b1));
    }
    accumulator->m = -INFINITY;
    accumulator->sum = 0.0f;
    accumulator->b0 = 0.0f;
    accumulator->b2 = 0.0f;
    accumulator->keys_read = 0;
}

void an_accumulator_merge(struct an_accumulator *into, const struct an_accumulator *from,
                          uint32_t dim)
{
    into->keys_read += from->keys_read;
    if (from->m == -INFINITY) {
        return;
    }
    float m = into->m > from->m ? into->m : from->m;
    float keep = into->m == -INFINITY ? 0.0f : expf(into->m - m);
    float add = expf(from->m - m);
    for (uint32_t i = 0; i < dim; ++i) {
        into->o[i] = into->o[i] * keep + from->o[i] * add;
    }
    if (into->b1 != NULL && from->b1 != NULL) {
        for (uint32_t i = 0; i < dim; ++i) {
            into->b1[i] = into->b1[i] * keep * keep + from->b1[i] * add * add;
        }
    }
    into->m = m;
    into->sum = into->sum * keep + from->sum * add;
    into->b0 = into->b0 * keep * keep + from->b0 * add * add;
    into->b2 = into->b2 * keep * keep + from->b2 * add * add;
}
