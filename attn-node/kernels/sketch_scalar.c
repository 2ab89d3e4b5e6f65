/*
 * The reference of the sketch kernels: one key after the other. See sketch.h for the mathematics;
 * the integers of every other variant are checked against these bit for bit.
 */
#include <math.h>
#include <string.h>

#include "attn-node/kernels/sketch_tables.h"

#define LANES 16u

static void rotate(const struct an_sketch_signs *signs, uint32_t padded, float *x)
{
    for (uint32_t round = 0; round < 3; ++round) {
        for (uint32_t i = 0; i < padded * LANES; ++i) {
            x[i] = signs->flips[round][i / LANES] != 0 ? -x[i] : x[i];
        }
        for (uint32_t half = 1; half < padded; half *= 2) {
            for (uint32_t i = 0; i < padded; ++i) {
                if ((i & half) != 0) {
                    continue;
                }
                for (uint32_t lane = 0; lane < LANES; ++lane) {
                    float a = x[i * LANES + lane];
                    float b = x[(i + half) * LANES + lane];
                    x[i * LANES + lane] = a + b;
                    x[(i + half) * LANES + lane] = a - b;
                }
            }
        }
    }
    float size = 1.0f / ((float)padded * sqrtf((float)padded));
    for (uint32_t i = 0; i < padded * LANES; ++i) {
        x[i] *= size;
    }
}

/* One key's codes into its byte lane; returns its factor. */
static float encode_key(const struct an_sketch_shape *shape, const float *y, uint32_t lane,
                        uint8_t *block)
{
    float square = 0.0f;
    for (uint32_t i = 0; i < shape->padded; ++i) {
        square += y[i * LANES] * y[i * LANES];
    }
    float sigma = sqrtf(square / (float)shape->padded);
    float inverse = 1.0f / ((shape->bits == 4 ? 0.335f : 0.996f) * sigma);
    float top = (float)((1u << shape->bits) / 2);
    float dot = 0.0f;
    for (uint32_t i = 0; i < shape->padded; ++i) {
        float code = y[i * LANES] > 0.0f ? 0.0f : -1.0f;
        if (shape->bits > 1 && sigma > 0.0f) {
            code = floorf(y[i * LANES] * inverse);
            code = code < -top ? -top : code > top - 1.0f ? top - 1.0f : code;
        }
        dot += (code + 0.5f) * y[i * LANES];
        uint32_t at = i * shape->bits;
        block[at / 8 * AN_SKETCH_BLOCK + lane] |= (uint8_t)((uint32_t)(code + top) << at % 8);
    }
    return sigma > 0.0f ? square / dot : NAN;
}

static void encode(const struct an_sketch_encoder *encoder, const struct an_rows *rows,
                   uint32_t begin, uint32_t count, uint8_t *block, float *factors_out)
{
    const struct an_sketch_shape *shape = &encoder->shape;
    memset(block, 0, (uint64_t)shape->planes * AN_SKETCH_BLOCK);
    for (uint32_t key = 0; key < AN_SKETCH_BLOCK; ++key) {
        float x[PP_HEAD_DIM_MAX * LANES] = {0.0f};
        float values[PP_HEAD_DIM_MAX];
        if (key >= count) {
            factors_out[key] = 0.0f;
            continue;
        }
        pp_dtype_to_f32(rows->dtype, rows->base + (begin + key) * rows->row_bytes, shape->dim,
                        values);
        for (uint32_t i = 0; i < shape->dim; ++i) {
            float balance = encoder->balance_inverse != NULL ? encoder->balance_inverse[i] : 1.0f;
            x[i * LANES] = (values[i] - encoder->centre[i]) * balance;
        }
        rotate(encoder->signs, shape->padded, x);
        factors_out[key] = encode_key(shape, x, key < 32 ? 2 * key : 2 * key - 63, block);
    }
}

static uint32_t sum_entries(const struct an_sketch_shape *shape, const uint8_t *block,
                            uint32_t lane, const uint8_t *tables)
{
    uint32_t sum = 0;
    const uint8_t *bytes = block + lane;
    if (shape->bits == 4) {
        for (uint32_t j = 0; j < shape->planes; ++j) {
            uint32_t byte = bytes[j * AN_SKETCH_BLOCK];
            sum += tables[j * 32 + byte % 16] + tables[j * 32 + 16 + byte / 16];
        }
        return sum;
    }
    for (uint32_t j = 0; j < shape->planes; j += 3, tables += 4 * 64) {
        uint32_t top = 0;
        for (uint32_t b = 0; b < 3 && j + b < shape->planes; ++b) {
            uint32_t byte = bytes[(j + b) * AN_SKETCH_BLOCK];
            sum += tables[b * 64 + byte % 64];
            top |= byte / 64 << (2 * b);
        }
        sum += tables[3 * 64 + top];
    }
    return sum;
}

static int32_t multiply_high(int32_t a, int32_t b)
{
    return (a * b + (1 << 14)) >> 15;
}

static int32_t clamp(int32_t value, int32_t bound)
{
    return value > bound ? bound : value < -bound ? -bound : value;
}

static int16_t score_key(int32_t offset, const struct an_sketch_scale *scale, uint32_t sum,
                         uint16_t factor)
{
    int32_t d = ((int32_t)sum - offset) * (1 << scale->shift);
    int32_t t = multiply_high(multiply_high(d, scale->gain), factor);
    for (uint32_t i = 0; i < scale->doublings; ++i) {
        t = clamp(2 * t, INT16_MAX);
    }
    return (int16_t)(scale->clamped ? clamp(t, AN_SKETCH_SCORE_MAX) : t);
}

/* 2^(t/128), the bits of a bf16; 0 below its range. */
static float power_of_two(int32_t t)
{
    uint32_t bits = t <= -127 * 128 ? 0 : (uint32_t)(t + 127 * 128) << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void scan(const struct an_sketch_shape *shape, const uint8_t *stream, uint32_t begin,
                 uint32_t end, const struct an_sketch_query *queries, uint32_t heads,
                 struct an_sketch_scores *scores)
{
    uint32_t first = begin / AN_SKETCH_BLOCK * AN_SKETCH_BLOCK;
    uint32_t last = (end + AN_SKETCH_BLOCK - 1) / AN_SKETCH_BLOCK * AN_SKETCH_BLOCK;
    for (uint32_t h = 0; h < heads; ++h) {
        scores[h].sum = 0.0f;
        for (uint32_t i = first; i < last; ++i) {
            scores[h].scores[i - first] = AN_SKETCH_NONE;
            if (i < begin || i >= end) {
                continue;
            }
            const uint8_t *block = stream + (uint64_t)(i / AN_SKETCH_BLOCK) * shape->block_bytes;
            uint32_t key = i % AN_SKETCH_BLOCK;
            uint16_t factor;
            memcpy(&factor, block + shape->planes * AN_SKETCH_BLOCK + 2 * key, sizeof(factor));
            uint32_t lane = key < 32 ? 2 * key : 2 * key - 63;
            uint32_t sum = sum_entries(shape, block, lane, queries[h].tables);
            int16_t t = score_key(queries[h].offset, &scores[h].scale, sum, factor);
            scores[h].scores[i - first] = t;
            scores[h].sum += power_of_two(t);
        }
    }
}

static int32_t saturated(int32_t value)
{
    return value > INT16_MAX ? INT16_MAX : value < INT16_MIN ? INT16_MIN : value;
}

static void combine(const int16_t *const *scores, const int16_t *shifts, uint32_t heads,
                    int16_t floor, uint32_t count, int16_t *into)
{
    for (uint32_t i = 0; i < count; ++i) {
        int32_t most = floor;
        for (uint32_t h = 0; h < heads; ++h) {
            int32_t shifted = saturated(scores[h][i] + shifts[h]);
            most = shifted > most ? shifted : most;
        }
        into[i] = scores[0][i] == AN_SKETCH_NONE ? AN_SKETCH_NONE : (int16_t)most;
    }
}

static void sum_u(const int16_t *logs, uint32_t count, const int16_t *shifts, float *sums_out)
{
    for (uint32_t i = 0; i < count; ++i) {
        for (uint32_t j = 0; j < 3 && logs[i] != AN_SKETCH_NONE; ++j) {
            int32_t x = saturated(logs[i] + shifts[j]);
            sums_out[j] += power_of_two(x < 0 ? x : 0);
        }
    }
}

static uint32_t draw(const int16_t *logs, uint32_t count, int16_t shift, uint64_t key,
                     uint32_t held, uint32_t id, uint16_t *ids_out, uint16_t *thresholds_out)
{
    uint32_t drawn = 0;
    for (uint32_t i = 0; i < count; ++i) {
        if (logs[i] == AN_SKETCH_NONE) {
            continue;
        }
        int32_t x = saturated(logs[i] + shift);
        uint32_t threshold = 65536;
        if (x < 0) {
            uint32_t down = (uint32_t)(-(x >> 7)) - 1;
            threshold = down > 15 ? 0 : (0x8000u | ((uint32_t)x & 127u) << 8) >> down;
            threshold = threshold > 0 ? threshold : 1;
        }
        if (an_sketch_draw(key, held + i) < threshold) {
            ids_out[drawn] = (uint16_t)(id + i);
            thresholds_out[drawn++] = (uint16_t)threshold;
        }
    }
    return drawn;
}

/* Adds a row of known weight to a head's sums; m is at least its score already. */
static void add_row(const struct an_rows *rows, const float *v, float score, float u,
                    struct an_accumulator *sums)
{
    if (score > sums->m) {
        float keep = sums->m == -INFINITY ? 0.0f : expf(sums->m - score);
        for (uint32_t d = 0; d < rows->dim; ++d) {
            sums->o[d] *= keep;
            sums->b1[d] *= keep * keep;
        }
        sums->sum *= keep;
        sums->b0 *= keep * keep;
        sums->b2 *= keep * keep;
        sums->m = score;
    }
    float a = expf(score - sums->m) / u;
    float b = (1.0f - u) * a * a;
    float square = 0.0f;
    for (uint32_t d = 0; d < rows->dim; ++d) {
        sums->o[d] += a * v[d];
        sums->b1[d] += b * v[d];
        square += v[d] * v[d];
    }
    sums->sum += a;
    sums->b0 += b;
    sums->b2 += b * square;
    ++sums->keys_read;
}

static void attend(const struct an_rows *rows, const uint16_t *ids, const uint16_t *thresholds,
                   uint32_t count, const float *q, uint32_t heads,
                   struct an_accumulator *accumulators)
{
    for (uint32_t i = 0; i < count; ++i) {
        const uint8_t *row = rows->base + ids[i] * rows->row_bytes;
        float k[PP_HEAD_DIM_MAX];
        float v[PP_HEAD_DIM_MAX];
        pp_dtype_to_f32(rows->dtype, row, rows->dim, k);
        pp_dtype_to_f32(rows->dtype, row + rows->v_offset, rows->dim, v);
        float u = thresholds[i] == 0 ? 1.0f : (float)thresholds[i] * 0x1p-16f;
        for (uint32_t h = 0; h < heads; ++h) {
            double score = 0.0;
            for (uint32_t d = 0; d < rows->dim; ++d) {
                score += (double)q[(uint64_t)h * rows->dim + d] * (double)k[d];
            }
            add_row(rows, v, (float)score, u, &accumulators[h]);
        }
    }
}

const struct an_sketch_kernels an_sketch_scalar = {
    .isa = "scalar",
    .costs = &an_sketch_costs_scalar,
    .rotate = rotate,
    .encode = encode,
    .scan = scan,
    .combine = combine,
    .sum_u = sum_u,
    .draw = draw,
    .attend = attend,
};
