/*
 * What the sketch kernels of all instruction sets share: the choice of a table, the layout, and the
 * query's look-up tables, which are integers once the query is rounded. See sketch.h. It refuses to
 * know segments and budgets.
 */
#include "attn-node/kernels/sketch.h"

#include <math.h>
#include <string.h>

#include "attn-node/kernels/sketch_tables.h"
#include "common/base/rng.h"
#include "common/run/cpu.h"

#define FRACTION      256.0f /* units of a rounded r within one of an entry */
#define OCTAVE        128.0f
#define DOUBLINGS_MAX 16u

static const struct an_sketch_kernels *const tables[] = {
    [PP_ISA_SCALAR] = &an_sketch_scalar,
    [PP_ISA_AVX2] = &an_sketch_avx2,
    [PP_ISA_AVX512] = &an_sketch_avx512,
    [PP_ISA_AVX512BF16] = &an_sketch_avx512bf16,
};

const struct an_sketch_kernels *an_sketch_kernels_get(void)
{
    return tables[pp_isa_get()];
}

const struct an_sketch_kernels *an_sketch_kernels_named(const char *isa)
{
    enum pp_isa wanted;
    if (pp_isa_parse(isa, &wanted) != PP_OK || wanted > pp_isa_best()) {
        return NULL;
    }
    return tables[wanted];
}

struct an_sketch_shape an_sketch_shape_of(uint32_t dim, uint32_t bits)
{
    struct an_sketch_shape shape = {.bits = bits, .dim = dim};
    shape.padded = dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
    shape.planes = shape.padded * bits / 8;
    shape.block_bytes = AN_SKETCH_BLOCK * (shape.planes + 2);
    return shape;
}

void an_sketch_signs_init(struct an_sketch_signs *signs, uint64_t seed)
{
    for (uint32_t i = 0; i < 3; ++i) {
        for (uint32_t j = 0; j < PP_HEAD_DIM_MAX; ++j) {
            signs->flips[i][j] = (uint32_t)(pp_rng_at(seed, i * 256ull + j) & 1) << 31;
        }
    }
}

/* The dims of a field of 1 or 2 bits: slot 0 to 2 are the low six bits of a plane of the group,
 * slot 3 the top two of all. Returns their number; a dim past the planes is `padded`. */
static uint32_t field_dims(const struct an_sketch_shape *shape, uint32_t group, uint32_t slot,
                           uint32_t *dims_out)
{
    uint32_t a_byte = 8 / shape->bits;
    uint32_t top = 2 / shape->bits;
    uint32_t count = 0;
    for (uint32_t b = slot < 3 ? slot : 0; b <= (slot < 3 ? slot : 2); ++b) {
        uint32_t first = slot < 3 ? 0 : a_byte - top;
        uint32_t last = slot < 3 ? a_byte - top : a_byte;
        for (uint32_t i = first; i < last; ++i) {
            uint32_t dim = (group * 3 + b) * a_byte + i;
            dims_out[count++] = dim < shape->padded ? dim : shape->padded;
        }
    }
    return count;
}

/* Rounded sums of code_j r_j over all codes of a run of dims, from 0 up; returns the largest. */
static uint32_t entries(uint32_t bits, const int32_t *r, uint32_t dims, uint8_t *out)
{
    uint32_t mask = (1u << bits) - 1u;
    int32_t least = 0;
    uint32_t largest = 0;
    for (uint32_t j = 0; j < dims; ++j) {
        least += r[j] < 0 ? r[j] * (int32_t)mask : 0;
    }
    for (uint32_t x = 0; x < 1u << (bits * dims); ++x) {
        int32_t sum = 0;
        for (uint32_t j = 0; j < dims; ++j) {
            sum += (int32_t)((x >> (j * bits)) & mask) * r[j];
        }
        uint32_t entry = (uint32_t)(sum - least + (int32_t)(FRACTION / 2.0f)) / (uint32_t)FRACTION;
        out[x] = (uint8_t)entry;
        largest = entry > largest ? entry : largest;
    }
    return largest;
}

/* r rounded, with a zero behind it for dims that are not there; the unit of an entry into step. */
static void round_query(const struct an_sketch_shape *shape, const float *r,
                        struct an_sketch_query *query, int32_t *rounded)
{
    float widest = 0.0f;
    float codes = (float)((1u << shape->bits) - 1u);
    if (shape->bits == 4) {
        for (uint32_t i = 0; i < shape->padded; ++i) {
            widest = fabsf(r[i]) * codes > widest ? fabsf(r[i]) * codes : widest;
        }
        query->step = widest / 126.0f;
    } else {
        for (uint32_t field = 0; field < (shape->planes + 2) / 3 * 4; ++field) {
            uint32_t dims[6];
            uint32_t count = field_dims(shape, field / 4, field % 4, dims);
            float width = 0.0f;
            for (uint32_t j = 0; j < count; ++j) {
                width += dims[j] < shape->padded ? fabsf(r[dims[j]]) * codes : 0.0f;
            }
            widest = width > widest ? width : widest;
        }
        query->step = widest / 62.0f;
    }
    query->step = query->step > 0x1p-100f ? query->step : 1.0f;
    float inverse = FRACTION / query->step;
    for (uint32_t i = 0; i < shape->padded; ++i) {
        rounded[i] = (int32_t)rintf(r[i] * inverse);
    }
    rounded[shape->padded] = 0;
}

void an_sketch_tables_make(const struct an_sketch_shape *shape, const float *r,
                           struct an_sketch_query *query)
{
    int32_t rounded[PP_HEAD_DIM_MAX + 1];
    round_query(shape, r, query, rounded);
    query->sum_max = 0;
    if (shape->bits == 4) {
        for (uint32_t i = 0; i < shape->padded; ++i) {
            query->sum_max += entries(4, &rounded[i], 1, query->tables + i * 16);
        }
    } else {
        for (uint32_t field = 0; field < (shape->planes + 2) / 3 * 4; ++field) {
            uint32_t dims[6];
            int32_t values[6];
            uint8_t low[16];
            uint8_t high[4];
            uint32_t count = field_dims(shape, field / 4, field % 4, dims);
            for (uint32_t j = 0; j < count; ++j) {
                values[j] = rounded[dims[j]];
            }
            uint32_t below = 4 / shape->bits;
            query->sum_max += entries(shape->bits, values, below, low);
            query->sum_max += entries(shape->bits, values + below, count - below, high);
            for (uint32_t x = 0; x < 64; ++x) {
                query->tables[field * 64 + x] = (uint8_t)(low[x % 16] + high[x / 16]);
            }
        }
    }
    double size = 0.0;
    double square = 0.0;
    for (uint32_t i = 0; i < shape->padded; ++i) {
        size += fabs((double)rounded[i]);
        square += (double)r[i] * (double)r[i];
    }
    double level_top = ((1u << shape->bits) - 1u) / 2.0;
    double level_rms = shape->bits == 4 ? 3.5 : level_top;
    query->offset = (int32_t)rint(level_top * size / (double)FRACTION);
    query->level_max = (float)(level_rms * sqrt(shape->padded * square));
}

void an_sketch_nibbles_make(const struct an_sketch_shape *shape,
                            const struct an_sketch_query *query, uint8_t *tables_out)
{
    if (shape->bits == 4) {
        return; /* its own tables are of four bits */
    }
    const uint8_t *from = query->tables;
    for (uint32_t j = 0; j < shape->planes; j += 3, from += 256, tables_out += 96) {
        for (uint32_t x = 0; x < 16; ++x) {
            const uint8_t *third = from + 2 * 64;
            const uint8_t *top = from + 3 * 64;
            tables_out[x] = from[x];
            tables_out[16 + x] = from[64 + x];
            tables_out[32 + x] = third[x];
            tables_out[48 + x] =
                (uint8_t)(from[16 * (x % 4)] - from[0] + from[64 + 16 * (x / 4)] - from[64]);
            tables_out[64 + x] = top[x];
            tables_out[80 + x] =
                (uint8_t)(third[16 * (x % 4)] - third[0] + top[16 * (x / 4)] - top[0]);
        }
    }
}

struct an_sketch_scale an_sketch_scale_of(const struct an_sketch_query *query, float unit)
{
    struct an_sketch_scale scale = {0};
    float octaves = unit * 1.44269504f * OCTAVE;
    float a_step = query->step * octaves;
    int32_t above = (int32_t)query->sum_max - query->offset;
    int32_t reach = query->offset > above ? query->offset : above;
    while (scale.shift < 8 && reach * (2 << scale.shift) <= INT16_MAX) {
        ++scale.shift;
    }
    float range = (float)(1u << scale.shift);
    while (a_step * 32768.0f > range * 32767.0f && scale.doublings < DOUBLINGS_MAX) {
        a_step *= 0.5f;
        ++scale.doublings;
    }
    float gain = rintf(a_step / range * 32768.0f);
    scale.gain = gain < 32767.0f ? (int16_t)gain : INT16_MAX;
    scale.clamped =
        scale.doublings > 0 || !(query->level_max * octaves <= (float)AN_SKETCH_SCORE_MAX);
    return scale;
}
