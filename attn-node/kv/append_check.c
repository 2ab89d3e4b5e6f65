/*
 * What an append is refused for before anything held is looked at. See append.h. Every value here
 * came from a peer: sizes are compared as products in 64 bits, nothing is read past what was sent.
 */
#include "attn-node/kv/append.h"

#include "attn-node/kv/balance.h"
#include "common/base/crc32c.h"

static enum pp_status refuse(enum pp_status status, const char *detail, const char **detail_out)
{
    if (detail_out != NULL) {
        *detail_out = detail;
    }
    return status;
}

static enum pp_status check_range(const struct an_append *append, const char **detail_out)
{
    if (append->count == 0) {
        return refuse(PP_INVALID_ARGUMENT, "count is 0", detail_out);
    }
    if (append->count > PP_APPEND_TOKENS_MAX) {
        return refuse(PP_INVALID_ARGUMENT, "count is above 65,472", detail_out);
    }
    if (append->start > PP_TOKENS_PER_PART_MAX ||
        append->count > PP_TOKENS_PER_PART_MAX - append->start) {
        return refuse(PP_INVALID_ARGUMENT, "start + count is above the tokens of a part",
                      detail_out);
    }
    return PP_OK;
}

static enum pp_status check_sizes(const struct an_params *params, const struct an_append *append,
                                  const char **detail_out)
{
    if (append->dtype != PP_DTYPE_NONE && append->dtype != params->dtype) {
        if (pp_dtype_bytes(append->dtype) == 0) {
            return refuse(PP_BAD_DTYPE, "the dtype is unknown", detail_out);
        }
        return refuse(PP_MODEL_MISMATCH, "the dtype is not the part's", detail_out);
    }
    uint64_t vectors = append->count * params->kv_heads;
    uint64_t bytes = vectors * pp_vector_bytes(params->dim, params->dtype);
    if (append->k.data == NULL || append->v.data == NULL || append->k.bytes != bytes ||
        append->v.bytes != bytes) {
        return refuse(PP_INVALID_ARGUMENT, "K and V must have count x kv heads vectors each",
                      detail_out);
    }
    return PP_OK;
}

/* Run by run; a value that two pieces share is put together first. */
static enum pp_status check_values(enum pp_dtype dtype, struct pp_span values)
{
    uint32_t width = pp_dtype_bytes(dtype);
    while (values.bytes > 0) {
        uint64_t whole = values.run / width;
        if (whole > 0) {
            PP_TRY(pp_dtype_check_finite(dtype, values.data, whole));
            pp_span_skip(&values, whole * width);
        } else {
            uint32_t one = 0;
            pp_span_read(&values, &one, width);
            PP_TRY(pp_dtype_check_finite(dtype, &one, 1));
        }
    }
    return PP_OK;
}

/* K or V: any int8 will do, their scales are bounded. */
static enum pp_status check_vectors(const struct an_params *params, struct pp_span vectors)
{
    if (params->dtype != PP_I8) {
        return check_values(params->dtype, vectors);
    }
    bool within = true;
    while (vectors.bytes > 0) {
        float scale;
        pp_span_skip(&vectors, params->dim);
        pp_span_read(&vectors, &scale, sizeof(scale));
        within = within && pp_scale_within(scale);
    }
    return within ? PP_OK : PP_NON_FINITE;
}

static uint32_t checksum(struct pp_span bytes)
{
    uint32_t crc = 0;
    while (bytes.bytes > 0) {
        crc = pp_crc32c(crc, bytes.data, bytes.run);
        pp_span_skip(&bytes, bytes.run);
    }
    return crc;
}

static enum pp_status check_codes(const struct an_params *params, const struct an_append *append,
                                  const char **detail_out)
{
    const struct pp_estimator *estimator = &params->index.estimator;
    if (estimator->kind != PP_LSH) {
        return refuse(PP_INVALID_ARGUMENT, "signatures are for lsh", detail_out);
    }
    uint64_t rows = (uint64_t)append->count * params->kv_heads;
    if (append->signatures.bytes != rows * estimator->l * sizeof(uint16_t)) {
        return refuse(PP_INVALID_ARGUMENT, "signatures must have count x kv heads x l codes",
                      detail_out);
    }
    /* A code is an index into 2^k buckets. */
    uint16_t codes[PP_LSH_L_MAX];
    uint16_t all = 0;
    struct pp_span signatures = append->signatures;
    for (uint64_t row = 0; row < rows; row++) {
        pp_span_read(&signatures, codes, estimator->l * sizeof(uint16_t));
        for (uint32_t i = 0; i < estimator->l; i++) {
            all |= codes[i];
        }
    }
    if (((uint32_t)all >> estimator->k) != 0) {
        return refuse(PP_INVALID_ARGUMENT, "a signature has bits above k", detail_out);
    }
    return PP_OK;
}

static enum pp_status check_segment(const struct an_params *params, const struct an_append *append,
                                    const char **detail_out)
{
    if (!append->segment_given) {
        if (append->signatures.data != NULL || append->centre.data != NULL) {
            return refuse(PP_INVALID_ARGUMENT, "signatures and centre need a segment", detail_out);
        }
        return PP_OK;
    }
    if (append->segment_count == 0 || append->segment_count > PP_SEGMENT_TOKENS_MAX ||
        append->segment_begin > append->start ||
        append->start - append->segment_begin + append->count > append->segment_count) {
        return refuse(PP_INVALID_ARGUMENT, "the rows do not lie in their segment", detail_out);
    }
    uint64_t values = (uint64_t)params->kv_heads * params->dim;
    if (append->centre.data != NULL) {
        if (append->centre.bytes != values * sizeof(float)) {
            return refuse(PP_INVALID_ARGUMENT, "a centre has kv heads x dim f32", detail_out);
        }
        if (check_values(PP_F32, append->centre) != PP_OK) {
            return refuse(PP_NON_FINITE, "a centre is not finite", detail_out);
        }
    }
    if (append->signatures.data == NULL) {
        return PP_OK;
    }
    if (append->centre.data == NULL) {
        return refuse(PP_INVALID_ARGUMENT, "signatures need a centre", detail_out);
    }
    return check_codes(params, append, detail_out);
}

static enum pp_status check_balance(const struct an_params *params, const struct an_append *append,
                                    const char **detail_out)
{
    if (append->balance.data == NULL) {
        return PP_OK;
    }
    if (params->index.estimator.kind != PP_SKETCH) {
        return refuse(PP_INVALID_ARGUMENT, "a balance is for sketch", detail_out);
    }
    if (!an_balance_valid(params, append->balance)) {
        return refuse(PP_INVALID_ARGUMENT, "a balance has kv heads x dim f32 within [2^-16, 2^16]",
                      detail_out);
    }
    return PP_OK;
}

enum pp_status an_append_check(const struct an_params *params, const struct an_append *append,
                               const char **detail_out)
{
    PP_TRY(check_range(append, detail_out));
    PP_TRY(check_sizes(params, append, detail_out));
    PP_TRY(check_segment(params, append, detail_out));
    PP_TRY(check_balance(params, append, detail_out));
    if (append->checksum_given && checksum(append->payload) != append->crc32c) {
        return refuse(PP_CHECKSUM, "the payload's CRC-32C differs", detail_out);
    }
    if (check_vectors(params, append->k) != PP_OK || check_vectors(params, append->v) != PP_OK) {
        return refuse(PP_NON_FINITE, "a value is not finite or above 2^40", detail_out);
    }
    return PP_OK;
}
