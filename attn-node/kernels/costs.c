/*
 * The costs that plans are made by (kernels.h), one set an instruction set. Fitted to attend_bench
 * on an AMD EPYC Zen 4 guest (2 threads, both busy, d = 64 and 128, bf16, 1,024 to 98,304 tokens).
 * Other machines differ less in these ratios than choices near the break-even matter.
 */
#include "attn-node/kernels/tables.h"

const struct an_costs an_costs_scalar = {
    .row_byte = 0.1f,
    .row_value = 2.0f,
    .query = 200.0f,
    .table = 20.0f,
    .hit = 2.5f,
    .word = 1.5f,
    .gather_row = 10.0f,
    .gather_byte = 0.7f,
};

const struct an_costs an_costs_avx2 = {
    .row_byte = 0.1f,
    .row_value = 0.1f,
    .query = 200.0f,
    .table = 20.0f,
    .hit = 2.5f,
    .word = 1.5f,
    .gather_row = 10.0f,
    .gather_byte = 0.1f,
};

const struct an_costs an_costs_avx512 = {
    .row_byte = 0.1f,
    .row_value = 0.04f,
    .query = 200.0f,
    .table = 20.0f,
    .hit = 2.5f,
    .word = 1.5f,
    .gather_row = 10.0f,
    .gather_byte = 0.1f,
};

double an_exact_cost(const struct an_costs *costs, const struct an_rows *rows, uint32_t count,
                     uint32_t lanes)
{
    double reading = (double)costs->row_byte * (double)rows->row_bytes;
    double computing = (double)costs->row_value * (double)rows->dim * (double)lanes;
    return count * (reading > computing ? reading : computing);
}
