/*
 * Checks on shapes and estimators, and rounding between f32 and the wire's dtypes.
 */
#include "common/attn/shape.h"

#include <errno.h>
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

#define SKETCH_BITS_DEFAULT 2u

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

static enum pp_status resolve_lsh(struct pp_estimator *estimator)
{
    struct pp_estimator resolved = {
        .kind = PP_LSH,
        .k = estimator->k == 0 ? LSH_K_DEFAULT : estimator->k,
        .l = estimator->l == 0 ? LSH_L_DEFAULT : estimator->l,
        .t = estimator->t == 0 ? LSH_T_DEFAULT : estimator->t,
        .target_error = estimator->target_error,
    };
    if (resolved.k > PP_LSH_K_MAX || resolved.l > PP_LSH_L_MAX || resolved.t > resolved.l) {
        return PP_INVALID_ARGUMENT;
    }
    *estimator = resolved;
    return PP_OK;
}

static enum pp_status resolve_sketch(struct pp_estimator *estimator)
{
    struct pp_estimator resolved = {
        .kind = PP_SKETCH,
        .bits = estimator->bits == 0 ? SKETCH_BITS_DEFAULT : estimator->bits,
        .rows_share = estimator->rows_share,
        .rows = estimator->rows,
        .target_error = estimator->target_error,
    };
    bool bits_ok = resolved.bits == 1 || resolved.bits == 2 || resolved.bits == 4;
    bool share_ok = resolved.rows > 0 ? resolved.rows_share == 0.0f
                                      : resolved.rows_share >= 0.0f && resolved.rows_share <= 1.0f;
    if (!bits_ok || !share_ok) {
        return PP_INVALID_ARGUMENT;
    }
    *estimator = resolved;
    return PP_OK;
}

enum pp_status pp_estimator_resolve(struct pp_estimator *estimator)
{
    if (!(estimator->target_error >= 0.0f && estimator->target_error <= 1.0f)) {
        return PP_INVALID_ARGUMENT;
    }
    switch ((int)estimator->kind) {
    case PP_EXACT:
        *estimator = (struct pp_estimator){.kind = PP_EXACT};
        return PP_OK;
    case PP_LSH:
        return resolve_lsh(estimator);
    case PP_SKETCH:
        return resolve_sketch(estimator);
    default:
        return PP_INVALID_ARGUMENT;
    }
}

/* Behind "name=", a number of digits only that is at most `most`; moves *at behind it. */
static enum pp_status parse_number(const char **at, const char *name, unsigned long most,
                                   uint32_t *number_out)
{
    const char *digits = *at + strlen(name);
    bool again = *number_out != 0;
    if (again || digits[0] < '1' || digits[0] > '9') {
        return PP_INVALID_ARGUMENT;
    }
    char *end;
    errno = 0;
    unsigned long value = strtoul(digits, &end, 10);
    if (errno != 0 || value > most) {
        return PP_INVALID_ARGUMENT;
    }
    *number_out = (uint32_t)value;
    *at = end;
    return PP_OK;
}

/* A decimal between 0 and 1, without sign or exponent. */
static enum pp_status parse_share(const char **at, const char *name, float *share_out)
{
    const char *digits = *at + strlen(name);
    uint64_t length = strspn(digits, "0123456789.");
    char *end;
    float share = strtof(digits, &end);
    bool again = *share_out != 0.0f;
    if (again || length == 0 || digits + length != end || !(share > 0.0f && share <= 1.0f)) {
        return PP_INVALID_ARGUMENT;
    }
    *share_out = share;
    *at = end;
    return PP_OK;
}

/* One "k=10" of a text; moves *at behind it. */
static enum pp_status parse_parameter(const char **at, struct pp_estimator *estimator)
{
    bool lsh = estimator->kind == PP_LSH;
    struct {
        const char *name;
        bool known;
        uint32_t *target;
        unsigned long most;
    } numbers[] = {
        {"k=", lsh, &estimator->k, PP_LSH_L_MAX},      {"l=", lsh, &estimator->l, PP_LSH_L_MAX},
        {"t=", lsh, &estimator->t, PP_LSH_L_MAX},      {"bits=", !lsh, &estimator->bits, 4},
        {"rows=", !lsh, &estimator->rows, UINT32_MAX},
    };
    for (uint32_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); ++i) {
        if (numbers[i].known && strncmp(*at, numbers[i].name, strlen(numbers[i].name)) == 0) {
            return parse_number(at, numbers[i].name, numbers[i].most, numbers[i].target);
        }
    }
    if (!lsh && strncmp(*at, "share=", 6) == 0) {
        return parse_share(at, "share=", &estimator->rows_share);
    }
    if (strncmp(*at, "error=", 6) == 0) {
        return parse_share(at, "error=", &estimator->target_error);
    }
    return PP_INVALID_ARGUMENT;
}

enum pp_status pp_estimator_parse(const char *text, struct pp_estimator *estimator_out)
{
    static const enum pp_estimator_kind kinds[] = {PP_EXACT, PP_LSH, PP_SKETCH};
    struct pp_estimator estimator = {.kind = PP_ESTIMATOR_NONE};
    const char *at = text;
    for (uint32_t i = 0; i < 3; ++i) {
        uint64_t length = strlen(pp_estimator_name(kinds[i]));
        if (strncmp(text, pp_estimator_name(kinds[i]), length) == 0) {
            estimator.kind = kinds[i];
            at = text + length;
        }
    }
    for (char before = ':'; *at != '\0'; before = ',') {
        if (*at != before || estimator.kind <= PP_EXACT) {
            return PP_INVALID_ARGUMENT;
        }
        ++at;
        PP_TRY(parse_parameter(&at, &estimator));
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
