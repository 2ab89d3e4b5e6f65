/*
 * The costs that plans are made by (kernels.h), one set an instruction set, fitted to attend_bench
 * --estimator auto --threads 1 --kv-heads 1 --cold-mib 64 on an AMD EPYC Zen 4 guest: least times,
 * 1,024 to 65,472 bf16 tokens, d = 64 to 256, 1 to 64 lanes, lsh from (5,40,2) to (10,150,2). With
 * AVX-512 at d = 128 exact takes 32 ns a row for 1 lane, 46 for 4, 116 for 16; lsh takes 9 us a
 * lane for 150 tables and 66 ns a row found. Near the break-even the model is up to 1.3x too dear
 * for lsh. The sketch's are fitted to sketch_bench, 1 to 8 heads, d = 128, and to
 * attend_bench --estimator auto-sketch at shares of .24 and .6, where they meet exact.
 */
#include "attn-node/kernels/sketch_tables.h"
#include "attn-node/kernels/tables.h"

const struct an_costs an_costs_scalar = {
    .row_byte = 0.04f,
    .row_value = 9.0f,
    .query = 1000.0f,
    .table = 60.0f,
    .hit = 2.0f,
    .word = 1.5f,
    .chosen = 50.0f,
    .chosen_byte = 4.0f,
    .missed_byte = 0.08f,
};

const struct an_costs an_costs_avx2 = {
    .row_byte = 0.04f,
    .row_value = 0.12f,
    .query = 1000.0f,
    .table = 60.0f,
    .hit = 2.0f,
    .word = 1.5f,
    .chosen = 10.0f,
    .chosen_byte = 0.06f,
    .missed_byte = 0.08f,
};

const struct an_costs an_costs_avx512 = {
    .row_byte = 0.041f,
    .row_value = 0.048f,
    .query = 1000.0f,
    .table = 60.0f,
    .hit = 2.0f,
    .word = 1.5f,
    .chosen = 10.0f,
    .chosen_byte = 0.03f,
    .missed_byte = 0.08f,
};

const struct an_sketch_costs an_sketch_costs_scalar = {
    .query = 20000.0f,
    .plane = 0.2f,
    .plane_head = 0.85f,
    .nibbles = 2.0f,
    .select = 14.0f,
    .select_head = 0.6f,
    .row_byte = 0.04f,
    .row_value = 2.4f,
};

const struct an_sketch_costs an_sketch_costs_avx2 = {
    .query = 20000.0f,
    .plane = 0.02f,
    .plane_head = 0.021f,
    .nibbles = 1.0f,
    .select = 1.3f,
    .select_head = 0.05f,
    .row_byte = 0.075f,
    .row_value = 0.055f,
};

const struct an_sketch_costs an_sketch_costs_avx512 = {
    .query = 12000.0f,
    .plane = 0.02f,
    .plane_head = 0.021f,
    .nibbles = 1.0f,
    .select = 0.6f,
    .select_head = 0.04f,
    .row_byte = 0.072f,
    .row_value = 0.043f,
};

const struct an_sketch_costs an_sketch_costs_avx512bf16 = {
    .query = 12000.0f,
    .plane = 0.02f,
    .plane_head = 0.0115f,
    .nibbles = 2.0f,
    .select = 0.4f,
    .select_head = 0.04f,
    .row_byte = 0.072f,
    .row_value = 0.043f,
};

double an_exact_cost(const struct an_costs *costs, const struct an_rows *rows, uint32_t count,
                     uint32_t lanes)
{
    double reading = (double)costs->row_byte * (double)rows->row_bytes;
    double computing = (double)costs->row_value * (double)rows->dim * (double)lanes;
    return count * (reading + computing);
}
