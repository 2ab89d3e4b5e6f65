/*
 * Checks on shapes and estimators, and rounding between f32 and the wire's dtypes.
 */
#include "common/attn/shape.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/half.h"
#include "common/base/limits.h"

#define LSH_K_DEFAULT 10u
#define LSH_L_DEFAULT 150u
#define LSH_T_DEFAULT 2u

uint32_t pp_dtype_bytes(enum pp_dtype dtype)
{
    switch ((int)dtype) {
    case PP_I8:
        return 1;
    case PP_BF16:
    case PP_F16:
        return 2;
    case PP_F32:
        return 4;
    default:
        return 0;
    }
}

const char *pp_dtype_name(enum pp_dtype dtype)
{
    static const char *const names[] = {"none", "bf16", "f16", "f32", "int8"};
    unsigned index = (unsigned)dtype;
    return index < 5 ? names[index] : "invalid";
}

const char *pp_estimator_name(enum pp_estimator_kind kind)
{
    static const char *const names[] = {"none", "exact", "lsh", "sketch"};
    unsigned index = (unsigned)kind;
    return index < 4 ? names[index] : "invalid";
}

enum pp_status pp_shape_check(const struct pp_shape *shape)
{
    if (pp_dtype_bytes(shape->kv_dtype) == 0) {
        return PP_BAD_DTYPE;
    }
    bool counts_ok = shape->layers >= 1 && shape->layers <= PP_LAYERS_MAX && shape->q_heads >= 1 &&
                     shape->q_heads <= PP_Q_HEADS_MAX && shape->kv_heads >= 1 &&
                     shape->kv_heads <= PP_KV_HEADS_MAX && shape->head_dim >= 1 &&
                     shape->head_dim <= PP_HEAD_DIM_MAX;
    if (!counts_ok || shape->q_heads % shape->kv_heads != 0) {
        return PP_BAD_SHAPE;
    }
    return isfinite(shape->scale) && shape->scale > 0.0f ? PP_OK : PP_BAD_SHAPE;
}

enum pp_status pp_estimator_resolve(struct pp_estimator *estimator)
{
    switch ((int)estimator->kind) {
    case PP_EXACT:
        estimator->k = estimator->l = estimator->t = 0;
        return PP_OK;
    case PP_LSH:
        break;
    case PP_SKETCH:
        return PP_UNIMPLEMENTED;
    default:
        return PP_INVALID_ARGUMENT;
    }
    struct pp_estimator resolved = {
        .kind = PP_LSH,
        .k = estimator->k == 0 ? LSH_K_DEFAULT : estimator->k,
        .l = estimator->l == 0 ? LSH_L_DEFAULT : estimator->l,
        .t = estimator->t == 0 ? LSH_T_DEFAULT : estimator->t,
    };
    if (resolved.k > PP_LSH_K_MAX || resolved.l > PP_LSH_L_MAX || resolved.t > resolved.l) {
        return PP_INVALID_ARGUMENT;
    }
    *estimator = resolved;
    return PP_OK;
}

/* One "k=10" of an lsh text; moves *at behind it. */
static enum pp_status parse_parameter(const char **at, struct pp_estimator *estimator)
{
    uint32_t *target;
    switch ((*at)[0]) {
    case 'k':
        target = &estimator->k;
        break;
    case 'l':
        target = &estimator->l;
        break;
    case 't':
        target = &estimator->t;
        break;
    default:
        return PP_INVALID_ARGUMENT;
    }
    const char *digits = *at + 2;
    if ((*at)[1] != '=' || digits[0] < '1' || digits[0] > '9') {
        return PP_INVALID_ARGUMENT;
    }
    char *end;
    unsigned long value = strtoul(digits, &end, 10);
    if (value > PP_LSH_L_MAX) {
        return PP_INVALID_ARGUMENT;
    }
    *target = (uint32_t)value;
    *at = end;
    return PP_OK;
}

enum pp_status pp_estimator_parse(const char *text, struct pp_estimator *estimator_out)
{
    struct pp_estimator estimator = {.kind = PP_ESTIMATOR_NONE};
    if (strcmp(text, "exact") == 0) {
        estimator.kind = PP_EXACT;
    } else if (strcmp(text, "sketch") == 0) {
        estimator.kind = PP_SKETCH;
    } else if (strcmp(text, "lsh") == 0 || strncmp(text, "lsh:", 4) == 0) {
        estimator.kind = PP_LSH;
        const char *at = text + 3;
        while (*at != '\0') {
            if (*at != ':' && *at != ',') {
                return PP_INVALID_ARGUMENT;
            }
            ++at;
            PP_TRY(parse_parameter(&at, &estimator));
        }
    }
    PP_TRY(pp_estimator_resolve(&estimator));
    *estimator_out = estimator;
    return PP_OK;
}

/* The largest magnitude's bits; NaN and infinity have larger ones than any number. */
static uint32_t magnitude_bits_max(const uint8_t *values, uint64_t count)
{
    uint32_t worst = 0;
    for (uint64_t i = 0; i < count; ++i) {
        uint32_t bits;
        memcpy(&bits, values + 4 * i, sizeof(bits));
        bits &= 0x7fffffffu;
        worst = bits > worst ? bits : worst;
    }
    return worst;
}

static void int8_from_f32(const float *values, uint64_t count, uint8_t *out)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it rounds half to even */
    uint32_t bits = magnitude_bits_max((const uint8_t *)values, count);
    float largest;
    memcpy(&largest, &bits, sizeof(largest));
    float scale = largest / 127.0f;
    memcpy(out + count, &scale, sizeof(scale));
    if (!isfinite(scale) || scale == 0.0f) {
        memset(out, 0, count);
        return;
    }
    for (uint64_t i = 0; i < count; ++i) {
        float whole = (values[i] / scale + round) - round;
        whole = whole > 127.0f ? 127.0f : whole < -127.0f ? -127.0f : whole;
        out[i] = (uint8_t)(int8_t)whole;
    }
}

static void int8_to_f32(const uint8_t *vector, uint64_t count, float *out)
{
    float scale;
    memcpy(&scale, vector + count, sizeof(scale));
    for (uint64_t i = 0; i < count; ++i) {
        out[i] = (float)(int8_t)vector[i] * scale;
    }
}

void pp_dtype_from_f32(enum pp_dtype dtype, const float *values, uint64_t count, void *out)
{
    uint16_t *halves = out;
    switch ((int)dtype) {
    case PP_BF16:
        for (uint64_t i = 0; i < count; ++i) {
            halves[i] = pp_bf16_from_f32(values[i]);
        }
        break;
    case PP_F16:
        for (uint64_t i = 0; i < count; ++i) {
            halves[i] = pp_f16_from_f32(values[i]);
        }
        break;
    case PP_I8:
        int8_from_f32(values, count, out);
        break;
    default:
        memmove(out, values, count * sizeof(*values));
        break;
    }
}

void pp_dtype_to_f32(enum pp_dtype dtype, const void *values, uint64_t count, float *out)
{
    const uint8_t *bytes = values;
    uint16_t half;
    switch ((int)dtype) {
    case PP_BF16:
        for (uint64_t i = 0; i < count; ++i) {
            memcpy(&half, bytes + 2 * i, sizeof(half));
            out[i] = pp_bf16_to_f32(half);
        }
        break;
    case PP_F16:
        for (uint64_t i = 0; i < count; ++i) {
            memcpy(&half, bytes + 2 * i, sizeof(half));
            out[i] = pp_f16_to_f32(half);
        }
        break;
    case PP_I8:
        int8_to_f32(bytes, count, out);
        break;
    default:
        memcpy(out, values, count * sizeof(*out));
        break;
    }
}

void pp_vectors_from_f32(enum pp_dtype dtype, uint32_t dim, const float *values, uint64_t count,
                         void *out)
{
    if (dtype != PP_I8) {
        pp_dtype_from_f32(dtype, values, count * dim, out);
        return;
    }
    for (uint64_t i = 0; i < count; ++i) {
        int8_from_f32(values + i * dim, dim, (uint8_t *)out + i * pp_vector_bytes(dim, dtype));
    }
}

void pp_vectors_to_f32(enum pp_dtype dtype, uint32_t dim, const void *vectors, uint64_t count,
                       float *out)
{
    if (dtype != PP_I8) {
        pp_dtype_to_f32(dtype, vectors, count * dim, out);
        return;
    }
    for (uint64_t i = 0; i < count; ++i) {
        int8_to_f32((const uint8_t *)vectors + i * pp_vector_bytes(dim, dtype), dim, out + i * dim);
    }
}
