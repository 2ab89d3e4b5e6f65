/*
 * The estimators of a sequence's layers: one for all, and others for some. On the walk it is what
 * `--estimator` says. Knows no model: how many layers there are is the caller's to check. Pure, any
 * thread.
 */
#ifndef PIGPEN_COMMON_ATTN_ESTIMATORS_H
#define PIGPEN_COMMON_ATTN_ESTIMATORS_H

#include <stddef.h>

#include "common/attn/shape.h"

#define PP_ESTIMATOR_RANGES_MAX 32u

/* Layers first to last, both included. */
struct pp_estimator_range {
    uint32_t first, last;
    struct pp_estimator estimator;
};

struct pp_estimators {
    struct pp_estimator common;
    struct pp_estimator_range ranges[PP_ESTIMATOR_RANGES_MAX]; /* no layer lies in two */
    uint32_t range_count;
};

/* What a text may be, for messages, behind PP_ESTIMATOR_SYNTAX. */
#define PP_ESTIMATORS_SYNTAX                                                                       \
    "others for some layers, counted from 0, follow behind slashes, as in "                        \
    "lsh/0-3:exact/16:lsh:k=8,l=98,t=3"

/* Parses an estimator (pp_estimator_parse), then any number of "/LAYERS:ESTIMATOR", LAYERS a number
 * or "FIRST-LAST". PP_INVALID_ARGUMENT: error_out says what is wrong and what to write. */
PP_MUST_USE enum pp_status pp_estimators_parse(const char *text, struct pp_estimators *out,
                                               char *error_out, size_t error_bytes);
/* One as pp_estimator_parse reads it, a share and an error with three digits; "" of kind NONE. */
#define PP_ESTIMATOR_TEXT_BYTES 96u
void pp_estimator_text(const struct pp_estimator *estimator, char text[PP_ESTIMATOR_TEXT_BYTES]);
/* The texts of layers 0 to count - 1 as one for all and others for runs of layers; layers whose
 * text is "" go with the others. count at most PP_LAYERS_MAX. false: none has a text, or there are
 * more runs than may be named; out then says as much as fits. */
#define PP_ESTIMATORS_TEXT_BYTES (PP_ESTIMATOR_RANGES_MAX * (PP_ESTIMATOR_TEXT_BYTES + 16u) + 128u)
bool pp_estimators_text(char (*texts)[PP_ESTIMATOR_TEXT_BYTES], size_t count,
                        char out[PP_ESTIMATORS_TEXT_BYTES]);
/* That of a layer. */
const struct pp_estimator *pp_estimators_of(const struct pp_estimators *estimators, uint32_t layer);
/* The same for every layer, in whatever order they were named. */
bool pp_estimators_same(const struct pp_estimators *a, const struct pp_estimators *b);
/* Whether some layer is attended with anything but exact. */
bool pp_estimators_sample(const struct pp_estimators *estimators);

#endif
